"""Measures speed and memory of a model on one device.

A pass is a forward pass or a training step on a batch that is on the device already. No image is
read or augmented: what a training loses by waiting for data is not in these numbers.
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
from vitscale.train.device import check_precision, device_at, products, seed_everything
from vitscale.train.draws import seed_layers
from vitscale.train.ema import Ema
from vitscale.train.loss_scale import LossScale
from vitscale.train.model import build_model, memory_format, place
from vitscale.train.optim import build_optimizer
from vitscale.train.parallel import Team
from vitscale.train.step import TrainingStep, autocast

# shortest timed run, so that the clock's resolution and interruptions have little effect
RUN_S = 0.2
RUN_PASSES = 3  # fewest passes per timed run
WARM_UP_S = 0.5  # shortest warm-up; it lasts until two consecutive runs agree within STABLE
MAX_WARM_UP_S = 10.0
STABLE = 0.05  # relative difference
SECOND = "second pass"
Pass = Callable[[], None]


def profile(config: ProfileConfig, device: str = "cpu") -> Iterator[Row]:
    """Yields one row per timed run: images per second, milliseconds per pass, and conditions.

    `epoch` numbers the runs from 1; `peak_memory_mib` is the peak memory of tensors on the device,
    including weights and batch; `load` is the machine's 1-minute load average, which exceeds the
    number of threads if something else ran. Weights stay fp32; with bf16 or fp16 each pass casts
    them, as in a training. Raises ValueError if the device is not the one that the config names.
    """
    target = device_at(device)
    check_hardware(config, target)
    seed_everything(config.seed)
    check_precision(config, target)
    with products(config):
        yield from _rows(config, target)


def _rows(config: ProfileConfig, target: torch.device) -> Iterator[Row]:
    start = time.perf_counter()
    memory_mib = peak_memory_mib(config, target)
    one_pass = build_pass(config, target)
    passes = warm_up(one_pass, target)
    for run in range(1, config.timed_runs + 1):
        pass_s = timed(one_pass, passes, target) / passes
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
    """Raises ValueError unless the device and torch's threads are the config's hardware."""
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
    """One pass over a synthetic batch, as in an evaluation or as in a training step."""
    model = place(build_model(config), config, device)
    run_branches(model, parallel=config.layout == "par")
    shape = (config.batch_size, config.channels, config.resolution, config.resolution)
    images = torch.randn(shape, device=device)
    layout = torch.channels_last if config.model != "vit" else memory_format(config, device)
    images = images.to(memory_format=layout)
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
    """A training step, repeated on one batch at the peak learning rate.

    The value of the learning rate does not affect the time of a step.
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
        images.device,
    )
    numbers, batches = itertools.count(), itertools.repeat((images, labels))

    def one_pass() -> None:
        training_step.take(next(numbers), config.peak_lr, batches)

    return one_pass


def timed(one_pass: Pass, passes: int, device: torch.device) -> float:
    """Seconds for a number of passes, until the device has finished them."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(passes):
        one_pass()
    synchronize(device)
    return time.perf_counter() - start


def warm_up(one_pass: Pass, device: torch.device) -> int:
    """Runs until two consecutive runs agree within STABLE; returns the passes per timed run."""
    start, before, passes = time.perf_counter(), math.inf, 1
    while True:
        pass_s = timed(one_pass, passes, device) / passes
        passes, spent = max(RUN_PASSES, math.ceil(RUN_S / pass_s)), time.perf_counter() - start
        if spent > MAX_WARM_UP_S or (spent > WARM_UP_S and abs(pass_s / before - 1) < STABLE):
            return passes
        before = pass_s


def synchronize(device: torch.device) -> None:
    """Waits for a GPU to finish; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_mib(config: ProfileConfig, device: torch.device) -> float:
    """Peak memory of tensors during a pass, in MiB, including what remains between passes.

    Measured on a model of its own. On a GPU by torch's allocator; on a CPU, whose allocator has no
    statistics, by the allocations that torch's profiler records. The workspaces of matrix product
    libraries are in neither.
    """
    if device.type == "cuda":
        # allocates the libraries' workspaces, which stay in the process and belong to no model
        _two_passes(config, device)
        gc.collect()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _two_passes(config, device)
        num_bytes = torch.cuda.max_memory_allocated(device) - before
    else:
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU], profile_memory=True
        ) as trace:
            _two_passes(config, device)
        assert trace.profiler is not None and trace.profiler.kineto_results is not None
        num_bytes = _peak_bytes(trace.profiler.kineto_results.events())
    gc.collect()
    return num_bytes / 2**20


def _two_passes(config: ProfileConfig, device: torch.device) -> None:
    """Runs two passes; the second includes what the first leaves behind, such as momenta."""
    one_pass = build_pass(config, device)
    for name in ("first pass", SECOND):
        with torch.profiler.record_function(name):
            one_pass()
    synchronize(device)


def _peak_bytes(events: list[Any]) -> int:
    """Peak bytes allocated since the first event, from the start of the second pass on.

    Memory that existed before is freed with an unknown size; it counts as 0, as does its
    allocation.
    """
    begin = next(event.start_ns() for event in events if event.name() == SECOND)
    num_bytes = peak = 0
    for event in sorted(
        (event for event in events if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    ):
        before, num_bytes = num_bytes, num_bytes + event.nbytes()
        if event.start_ns() >= begin:
            peak = max(peak, before, num_bytes)
    return peak
