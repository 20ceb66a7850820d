"""The config of a profile: speed and memory of a model that runs alone on a device."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_cores
from vitscale.plan.fields import Count, Max, defaults
from vitscale.plan.laws import VIT_ONLY, Law
from vitscale.plan.metrics import SPEED, SPEED_COLUMN, Column

METRIC = SPEED.name  # the metric of a study of profiles
Profile = Literal["inference", "training"]
Layout = Literal["seq", "par"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
# Fields of a training that affect the speed or memory of a pass. If others varied, one profile
# would have several ids.
_SHAPE = {
    "dataset",
    "num_images",
    "channels",
    "num_classes",
    "resolution",
    "batch_size",
    "model",
    "own",
    "timm_args",
    "precision",
    "seed",
}
_STEP = {
    "optimizer",
    "momentum",
    "nesterov",
    "clip_norm",
    "loss",
    "label_smoothing",
    "drop_path",
    "ema_decay",
}
BEARING = {
    "inference": _SHAPE | set(VIT_ONLY) - {"dropout", "gain_init", "weight_init"},
    "training": _SHAPE | set(VIT_ONLY) - {"gain_init", "weight_init"} | _STEP,
}


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(TrainConfig):
    """Everything that determines how fast a model runs, including the device.

    Fields of a training that do not affect it keep their defaults. The dataset determines the
    numbers of channels and classes; its images are not read. Raises ValueError as TrainConfig does.
    """

    # inference: a forward pass; training: forward, loss, backward, clipping, optimizer and average;
    profile: Profile = ""  # type: ignore[assignment]  # required, and part of every id
    # branches of a parallel ViT are computed one after another ("seq") or in one operation ("par")
    layout: Layout = "seq"
    # repeats, each the mean over many passes and one row
    timed_runs: Annotated[Count, Max(10**6)] = 10
    # the GPU as torch names it, or the processor with its threads: "AMD EPYC, 2 threads"
    hardware: str = ""

    def laws(self) -> list[Law]:
        """The laws of a training, and those of a profile."""
        return [*super().laws(), *_profile_laws(self)]

    @property
    def columns(self) -> dict[str, Column]:
        """Its speed. Peak memory is reported beside it."""
        return {SPEED_COLUMN.name: SPEED_COLUMN}

    @property
    def reads_images(self) -> bool:
        """Its batch is synthetic."""
        return False

    @property
    def is_divisible(self) -> bool:
        """Another batch is another profile."""
        return False

    @property
    def bearing(self) -> Collection[str]:
        """The fields that affect its speed or memory."""
        return BEARING[self.profile] | {"profile", "layout", "timed_runs", "hardware"}

    @property
    def also_charted(self) -> tuple[str, ...]:
        return ()

    @property
    def row_unit(self) -> str:
        return "timed run"

    @property
    def shown(self) -> dict[str, str]:
        return {"batch": str(self.batch_size), "pixels": str(self.resolution)}

    @property
    def num_warmup_steps(self) -> int:
        """None of its own: the lr does not affect the speed."""
        return 0

    @property
    def num_steps(self) -> int:
        """Minimum number of timed passes: a run lasts until the clock can resolve it."""
        return self.timed_runs

    @property
    def last_row(self) -> int:
        """One row per timed run, numbered from 1."""
        return self.timed_runs

    @property
    def threads(self) -> int:
        """Threads of the measured processor; 0 for a GPU."""
        processor = Processor.parse(self.hardware)
        return processor.threads if processor else 0


def _profile_laws(c: ProfileConfig) -> list[Law]:
    default_of = defaults(TrainConfig)
    bearing = BEARING.get(c.profile, set(default_of))
    laws = [
        (
            "branches > 1 with the layout par",
            c.layout != "par" or c.branches > 1,
            "layout branches",
        ),
        ("hardware named", bool(c.hardware), "hardware"),
        (
            "a GPU as hardware of the precision tf32",
            c.precision != "tf32" or not c.threads,
            "precision hardware",
        ),
    ]
    return laws + [
        (
            f"{name} == {default_of[name]!r} in a profile of {c.profile}",
            getattr(c, name) == default_of[name],
            f"profile {name}",
        )
        for name in default_of
        if name not in bearing
    ]


class Processor(NamedTuple):
    """A processor, and how many of its threads torch uses.

    Its text is the `hardware` of a profile, in ids, in plan.json and after `--hardware`; `of` reads
    back what `str` writes.
    """

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"

    @classmethod
    def parse(cls, hardware: str) -> Processor | None:
        """The processor of such a text; None for a GPU."""
        match = re.fullmatch(r"(.*), (\d+) threads?", hardware)
        return cls(match[1], int(match[2])) if match else None


def processor(threads: int = 0) -> str:
    """Name and threads of this machine's processor; 0 threads: all cores of this process."""
    return str(Processor(processor_name(), threads or num_cores()))


def gpu() -> str:
    """The name of this machine's first GPU, as in torch; empty without one.

    Asks nvidia-smi, since importing torch takes seconds.
    """
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        lines = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=20
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    return lines[0].strip() if lines else ""


def processor_name() -> str:
    """The processor's name from /proc/cpuinfo, or from Python where that is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
