"""Speed and memory of a model on one device: forward passes, or steps of training, of a batch that
lies on it already.

No image is read and none is augmented, so that it is the model that is measured; what a training
loses to its data beyond that is not in these numbers.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, assert_never

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from vitscale.plan.profile import ProfileConfig, processor
from vitscale.record.outcome import Row
from vitscale.train.blocks import run_branches
from vitscale.train.draws import seed_layers
from vitscale.train.ema import Ema
from vitscale.train.loop import device_at, seed_everything
from vitscale.train.loss_scale import LossScale
from vitscale.train.model import build_model
from vitscale.train.optim import build_optimizer
from vitscale.train.parallel import Team
from vitscale.train.step import TrainingStep, autocast

# a timed run lasts this long at least, so that the clock and a stray interruption weigh little
RUN_S = 0.2
RUN_PASSES = 3  # at least
WARM_UP_S = 0.5  # at least, and until two runs in a row agree within STABLE
WARM_UP_MOST_S = 10.0
STABLE = 0.05
SECOND = "second pass"
Pass = Callable[[], None]


def profile(config: ProfileConfig, device: str = "cpu") -> Iterator[Row]:
    """Yields a row for each timed run: images per second, milliseconds a pass, and what they were
    measured under.

    `epoch` numbers the runs, from 1; `peak_memory_mib` is the most that tensors took on the device,
    weights and batch included; `load` the 1-minute load average of the machine, which is above the
    number of threads where something else ran. Weights stay fp32; with bf16 or fp16 each pass casts
    them, as in a training. Raises ValueError if the device is another one than the config names.
    """
    at = device_at(device)
    check_hardware(config, at)
    seed_everything(config.seed)
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    start = time.perf_counter()
    memory_mib = peak_memory_mib(config, at)
    one_pass = build_pass(config, at)
    passes = warm_up(one_pass, at)
    for run in range(1, config.timed_runs + 1):
        pass_s = timed(one_pass, passes, at) / passes
        row = {
            "epoch": run,
            "step": run * passes,
            "samples": run * passes * config.batch_size,
            "diverged": 0,
            "images_per_s": config.batch_size / pass_s,
            "step_ms": 1e3 * pass_s,
            "peak_memory_mib": memory_mib,
            "load": os.getloadavg()[0],
            "train_s": time.perf_counter() - start,
            "unix_s": time.time(),
        }
        yield {name: float(value) for name, value in row.items()}


def check_hardware(config: ProfileConfig, device: torch.device) -> None:
    """Raises ValueError unless the device, with the threads that
    torch uses, is the one that the config names.
    """
    here = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else processor(torch.get_num_threads())
    )
    if here != config.hardware:
        raise ValueError(
            f"a profile must be taken on its hardware, but got (hardware={config.hardware!r}, "
            f"{here=})"
        )


def build_pass(config: ProfileConfig, device: torch.device) -> Pass:
    """One pass over a synthetic batch: as an evaluation
    makes it, or as a step of the trainer does.
    """
    model = build_model(config).to(device)
    run_branches(model, parallel=config.layout == "par")
    shape = (config.batch_size, config.channels, config.resolution, config.resolution)
    images = torch.randn(shape, device=device)
    if config.model != "vit":
        model, images = (
            model.to(memory_format=torch.channels_last),
            images.to(memory_format=torch.channels_last),
        )
    match config.profile:
        case "inference":
            return _forward(model.eval(), images, config)
        case "training":
            labels = torch.randint(config.num_classes, (config.batch_size,), device=device)
            return _training_step(model.train(), images, labels, config)
        case never:
            assert_never(never)


def _forward(model: nn.Module, images: torch.Tensor, config: ProfileConfig) -> Pass:
    @torch.inference_mode()
    def one_pass() -> None:
        with autocast(config, images.device):
            model(images)

    return one_pass


def _training_step(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, config: ProfileConfig
) -> Pass:
    """A step of the trainer, again and again on one batch; at the
    peak learning rate, which costs what others cost.
    """
    training_step = TrainingStep(
        config,
        model,
        model,
        seed_layers(model, config.seed),
        build_optimizer(model, config),
        Ema(model, config),
        LossScale(config, images.device),
        Team(),
        [torch.arange(config.batch_size)],
    )
    numbers, batches = itertools.count(), itertools.repeat((images, labels))

    def one_pass() -> None:
        training_step.take(next(numbers), config.peak_lr, batches)

    return one_pass


def timed(one_pass: Pass, passes: int, device: torch.device) -> float:
    """Seconds that so many passes take, until the device has done them."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(passes):
        one_pass()
    synchronize(device)
    return time.perf_counter() - start


def warm_up(one_pass: Pass, device: torch.device) -> int:
    """Runs until two runs in a row take the same time, and
    returns the passes that a timed run needs.
    """
    start, before, passes = time.perf_counter(), math.inf, 1
    while True:
        pass_s = timed(one_pass, passes, device) / passes
        passes, spent = max(RUN_PASSES, math.ceil(RUN_S / pass_s)), time.perf_counter() - start
        if spent > WARM_UP_MOST_S or (spent > WARM_UP_S and abs(pass_s / before - 1) < STABLE):
            return passes
        before = pass_s


def synchronize(device: torch.device) -> None:
    """Waits for a GPU; a CPU is always done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_mib(config: ProfileConfig, device: torch.device) -> float:
    """The most memory that tensors take in a pass, with all that stays between passes, of a model
    of its own; MiB.

    On a GPU by its allocator. On a CPU, whose allocator keeps no account, by the allocations that
    torch's profiler sees. Work space that the libraries of matrix products keep is in neither.
    """
    if device.type == "cuda":
        # the libraries' work space stays in the process, and counts for no model
        _two_passes(config, device)
        gc.collect()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _two_passes(config, device)
        num_bytes = torch.cuda.max_memory_allocated(device) - before
    else:
        with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            _two_passes(config, device)
        assert seen.profiler is not None and seen.profiler.kineto_results is not None
        num_bytes = _most_bytes(seen.profiler.kineto_results.events())
    gc.collect()
    return num_bytes / 2**20


def _two_passes(config: ProfileConfig, device: torch.device) -> None:
    """The second has what the first leaves behind: the state of the optimizer, say."""
    one_pass = build_pass(config, device)
    for name in ("first pass", SECOND):
        with torch.profiler.record_function(name):
            one_pass()
    synchronize(device)


def _most_bytes(events: list[Any]) -> int:
    """The most that was allocated at once from the start of the second pass on, of all that was
    since the first event.

    What was there before is freed with a size that is not known and counts as 0, as does its
    allocation.
    """
    begin = next(event.start_ns() for event in events if event.name() == SECOND)
    num_bytes = most = 0
    for event in sorted(
        (event for event in events if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    ):
        before, num_bytes = num_bytes, num_bytes + event.nbytes()
        if event.start_ns() >= begin:
            most = max(most, before, num_bytes)
    return most
