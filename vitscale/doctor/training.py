"""Trainings of a small model by the real trainer: a device against the CPU, and against itself.

All comparisons are of the losses of 20 optimizer steps, each a mean over 128 images of digits, with
mixup, drop path and an average of the weights. Two computations that differ only in the order of
their sums, such as a batch whole and in four parts, gave losses within 3e-7 of each other on CPUs.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscale.doctor.check import Finding, Machine, failed, judged, not_applicable
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.record.workdir import Workdir, step_saved

if TYPE_CHECKING:
    from vitscale.train.loop import Trained

# A step per epoch: the rows then have the loss of each step.
SMALL = TrainConfig(
    batch_size=128,
    subset_images=128,
    epochs=20,
    warmup_epochs=5.0,
    lr=1e-3,
    seed=1,
    patch_size=2,
    width=32,
    depth=2,
    heads=2,
    crop_padding=1,
    mixup_alpha=0.8,
    drop_path=0.1,
    ema_decay=0.9,
)
# four steps per epoch, also 20 steps
LONGER_EPOCHS = SMALL.replace(batch_size=32, epochs=5, warmup_epochs=1.0)
WITH_STEM = LONGER_EPOCHS.replace(stem="conv", stem_channels="8", stem_strides="2")
MODELS = ((SMALL, ""), (WITH_STEM, "of a ViT with convolution and BatchNorm "))
NUM_INTERRUPTED = 5
# Largest relative difference of a loss. fp32: 40 times what the order of sums changes, 2.3e-7, and
# below the 2.8e-5 that a mantissa of 10 bits changes, that of fp16 and of TF32. bf16 and fp16: ten
# times or more of what they changed on a CPU, 9e-4 and 9e-5.
BOUNDS = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}


def rows(config: TrainConfig, machine: Machine, **options: Any) -> list[Row]:
    """The rows of a training on the machine's device, which leaves nothing behind.

    Raises RuntimeError as `complete`, and if a loss is not positive: a device that computes nothing
    would otherwise agree with itself.
    """
    from vitscale.train.loop import train

    with tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder:
        options = {"checkpoint_every_s": 1e9, **options}
        trained = list(complete(train(config, Path(folder), device_name(machine), **options)))
    wrong = [row for row in trained if not row.get("train_loss", math.nan) > 0]
    if wrong:
        raise RuntimeError(
            f"a loss > 0 must hold, but got (device={machine.device!r}, step={wrong[0]['step']:g}, "
            f"loss={wrong[0].get('train_loss', math.nan)})"
        )
    return trained


def complete(training: Generator[Row, None, Trained]) -> Iterator[Row]:
    """The rows of a training.

    Raises RuntimeError for a training with `capture` of which something was not captured.
    """
    status = (yield from training).captured
    if status not in ("", "yes"):
        raise RuntimeError(f"all of a step must be captured, but got ({status})")


def device_name(machine: Machine) -> str:
    """The device as the trainer names it, made the current one if it is a GPU."""
    import torch

    torch.set_num_threads(1)
    if not machine.on_gpu:
        return "cpu"
    torch.cuda.set_device(torch.device(machine.device))
    return "cuda"


def losses(config: TrainConfig, machine: Machine, **options: Any) -> list[float]:
    """The mean training loss of each epoch, in nats."""
    return [row["train_loss"] for row in rows(config, machine, **options)]


@functools.cache
def reference(device: str, config: TrainConfig = SMALL) -> tuple[float, ...]:
    """The losses of a training on a device; on the CPU in one thread."""
    return tuple(losses(config, Machine(device=device)))


def gap(expected: Sequence[float], measured: Sequence[float]) -> float:
    """The largest relative difference; infinite if there is another number of losses, or NaN."""
    if len(expected) != len(measured):
        return math.inf
    gaps = [abs(b - a) / abs(a) for a, b in zip(expected, measured, strict=True)]
    return math.inf if any(math.isnan(g) for g in gaps) else max(gaps)


def compared(
    expected: Sequence[float], measured: Sequence[float], what: str, bound: float = BOUNDS["fp32"]
) -> Finding:
    """Whether two trainings have the same losses within a bound."""
    size = gap(expected, measured)
    detail = f"{len(expected)} losses {what}: largest difference {size:.1e} of the loss"
    values = {"gap": size, "bound": bound}
    return judged(size <= bound, f"{detail} (bound {bound:.0e})", **values)


# A device against the CPU


def fp32(machine: Machine) -> Finding:
    """fp32 on a GPU against fp32 on the CPU."""
    if not machine.on_gpu:
        return not_applicable("the CPU is what others are compared with")
    return both(
        *(
            compared(
                reference("cpu", config),
                reference(machine.device, config),
                f"{label}on GPU and CPU",
            )
            for config, label in MODELS
        )
    )


def precision(name: str, machine: Machine) -> Finding:
    """Lower precision on the device against fp32 on the CPU; that it is lower shows in the ViT."""
    vit, stem = (
        compared(
            reference("cpu", config),
            losses(config.replace(precision=name), machine),
            f"{label}in {name} and in fp32 on the CPU",
            BOUNDS[name],
        )
        for config, label in MODELS
    )
    if vit.verdict == "pass" and float(vit.values["gap"]) <= BOUNDS["fp32"]:
        vit = failed(f"{vit.detail}, as in fp32: {name} was not used")
    return both(vit, stem)


def both(first: Finding, second: Finding) -> Finding:
    """Passed if both are."""
    holds = all(f.verdict == "pass" for f in (first, second))
    values = {**first.values, **{f"{name}_stem": v for name, v in second.values.items()}}
    return judged(holds, f"{first.detail}; {second.detail}", **values)


bf16 = functools.partial(precision, "bf16")
fp16 = functools.partial(precision, "fp16")


# A device against itself


def resume(machine: Machine) -> Finding:
    """An interrupted training has the rows of an uninterrupted one, bit for bit; where two
    uninterrupted ones differ, within the bound of fp32.
    """
    last, resumed = interrupted(LONGER_EPOCHS, machine)
    if not last:
        return judged(False, "an interrupted training left no checkpoint")
    whole = rows(LONGER_EPOCHS, machine)
    if without_times(resumed) == without_times(whole):
        times = f"interrupted {NUM_INTERRUPTED} times and resumed, last at step {last} of 20"
        return judged(True, f"rows equal by the bit, {times}")
    return _unequal(resumed, whole, rows(LONGER_EPOCHS, machine))


def interrupted(config: TrainConfig, machine: Machine) -> tuple[int, list[Row]]:
    """The step of the last checkpoint and the rows of a training that is interrupted, each time in
    another step, since each start saves its first, and then resumed.
    """
    from vitscale.train.loop import train

    with tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder:
        device = device_name(machine)
        for _ in range(NUM_INTERRUPTED):
            started = train(config, Path(folder), device, checkpoint_every_s=0.0)
            next(started)
            started.close()
        last = step_saved(Workdir(Path(folder)))
        return last, list(train(config, Path(folder), device, checkpoint_every_s=1e9))


def without_times(rows: Sequence[Row]) -> list[Row]:
    from vitscale.train.loop import TIMING

    return [{name: row[name] for name in row if name not in TIMING} for row in rows]


def _unequal(resumed: Sequence[Row], whole: Sequence[Row], again: Sequence[Row]) -> Finding:
    """How far a resumed training is from an uninterrupted one, and that one from its repetition.
    A device that does not repeat itself cannot be expected to resume bit for bit.
    """
    size, noise = (
        gap([row["train_loss"] for row in whole], [row["train_loss"] for row in other])
        for other in (resumed, again)
    )
    text = f"the rows of a resumed training differ, losses by {size:.1e}"
    if without_times(again) == without_times(whole):
        return failed(f"{text}; two uninterrupted trainings are equal by the bit")
    bound = BOUNDS["fp32"]
    return judged(
        size <= bound,
        f"{text} (bound {bound:.0e}); two uninterrupted ones differ by {noise:.1e}, so this "
        "device repeats nothing bit for bit without --deterministic: see the next check",
        gap=size,
        noise=noise,
        bound=bound,
    )


def deterministic(machine: Machine) -> Finding:
    """With --deterministic, trainings of a ViT and of one with a convolutional stem repeat
    themselves and resume bit for bit. In a process of its own: it has to begin before CUDA.
    """
    if not machine.on_gpu:
        return not_applicable("a CPU repeats its trainings without --deterministic")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return as_found(pool.submit(repeated, machine).result())


def as_found(
    runs: Sequence[Sequence[list[Row]]], names: Sequence[str] = ("repeated", "resumed")
) -> Finding:
    """Judges, for each model, the rows of a training and of others that should equal them."""
    parts, same = [], True
    for number, name in enumerate(names, 1):
        gaps = [
            gap([row["train_loss"] for row in run[0]], [row["train_loss"] for row in run[number]])
            for run in runs
        ]
        equal = all(without_times(run[0]) == without_times(run[number]) for run in runs)
        same &= equal
        parts.append(
            f"{name} {'equal by the bit' if equal else f'differ, losses by {max(gaps):.1e}'}"
        )
    return judged(same, f"rows of trainings with --deterministic: {', '.join(parts)}")


def repeated(machine: Machine) -> list[tuple[list[Row], list[Row], list[Row]]]:
    """The rows of two equal trainings and of an interrupted one of each model, by deterministic
    algorithms.
    """
    from vitscale.train.deterministic import set_deterministic

    set_deterministic(True)
    return [
        (rows(config, machine), rows(config, machine), interrupted(config, machine)[1])
        for config in (LONGER_EPOCHS, WITH_STEM)
    ]


def captured(machine: Machine) -> Finding:
    """With --deterministic, steps that are CUDA graphs give the rows of those that are not, bit for
    bit. In a process of its own, as above.
    """
    if not machine.on_gpu:
        return not_applicable("a CPU has no CUDA graphs")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return as_found(pool.submit(eager_and_captured, machine).result(), ("captured",))


def eager_and_captured(machine: Machine) -> list[tuple[list[Row], list[Row]]]:
    """The rows of a training of each model without and with CUDA graphs."""
    from vitscale.train.deterministic import set_deterministic

    set_deterministic(True)
    return [
        (rows(config, machine), rows(config, machine, capture=True))
        for config in (LONGER_EPOCHS, WITH_STEM)
    ]


def micro_batches(machine: Machine) -> Finding:
    """A batch in four parts against the whole batch: only the order of sums differs."""
    parts = losses(SMALL, machine, micro_batch=32)
    return compared(reference(machine.device), parts, "with whole batches and in four parts")


def compiled(machine: Machine) -> Finding:
    """A compiled model against the eager one."""
    measured = losses(SMALL, machine, compiled=True)
    return compared(reference(machine.device), measured, "of the compiled and the eager model")


def loaders(machine: Machine) -> Finding:
    """Batches that two loader processes read from files against those that the trainer reads.

    On a GPU, batches of loaders are in pinned memory, so that copies do not wait.
    """
    import torch

    from vitscale.train.data import Batches, loader
    from vitscale.train.sources import load_split

    with tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder:
        config, root = write_images(Path(folder)), Path(folder)
        device_name(machine)
        device = torch.device(machine.device)
        batches = Batches(load_split(config, "train", root), config, device)
        alone, spread = (list(batches.iterate(0, num_workers)) for num_workers in (0, 2))
        equal = len(alone) == 4 and all(
            torch.equal(a, b)
            for x, y in zip(alone, spread, strict=True)
            for a, b in zip(x, y, strict=True)
        )
        pinned = all(
            images.is_pinned() for images, _ in loader(batches, range(4), 2, device, batches.train)
        )
    detail = "batches of 2 loader processes " + ("equal by the bit" if equal else "differ")
    if machine.on_gpu:
        detail += ", in pinned memory" if pinned else ", not in pinned memory"
    return judged(equal and pinned == machine.on_gpu, detail)


def write_images(root: Path) -> TrainConfig:
    """A dataset of 64 PNG files in class folders, and a config of 4 steps on it."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, num in (("train", 64), ("val", 4)):
        for index in range(num):
            path = root / "noise" / split / str(index % 2) / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
    return TrainConfig(
        dataset="noise",
        num_images=64,
        num_classes=2,
        channels=3,
        resolution=16,
        patch_size=4,
        width=16,
        depth=1,
        heads=2,
        batch_size=16,
        epochs=1,
        warmup_epochs=0.0,
        crop="rrc",
    )
