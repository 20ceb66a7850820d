"""What one profile is: a model whose speed and memory are
measured on a device that it has to itself.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from vitscale.plan.config import VIT_ONLY, Count, Law, Max, TrainConfig, defaults
from vitscale.plan.metrics import SPEED

METRIC = SPEED.name  # what a study of profiles is about
Profile = Literal["inference", "training"]
Layout = Literal["seq", "par"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
# Fields of a training that bear on the speed of a pass, or on its memory; others would be a second
# id of one profile.
_SHAPE = {
    "dataset",
    "num_images",
    "channels",
    "num_classes",
    "resolution",
    "batch_size",
    "model",
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
    "inference": _SHAPE | set(VIT_ONLY) - {"dropout", "weight_init"},
    "training": _SHAPE | set(VIT_ONLY) - {"weight_init"} | _STEP,
}


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(TrainConfig):
    """Everything that decides how fast a model runs: unlike for an error, that includes the device.

    Fields of a training that have no bearing on it stay at their defaults. The dataset gives
    channels and classes; no image of it is read. Raises ValueError as TrainConfig does.
    """

    # a forward pass; or forward, loss, backward, clipping, optimizer and average
    profile: Profile = ""  # type: ignore[assignment]  # no default: it has to be given, and is part of every id
    # how branches of a parallel ViT are computed: one after another, or "par", in one go
    layout: Layout = "seq"
    # repeats, each the mean over many passes; a row each
    timed_runs: Annotated[Count, Max(10**6)] = 10
    # the GPU as torch names it, or the processor with its threads: "AMD EPYC, 2 threads"
    hardware: str = ""

    def laws(self) -> list[Law]:
        """Those of a training, and those of a profile."""
        return [*super().laws(), *_profile_laws(self)]

    @property
    def num_steps(self) -> int:
        """Passes that are timed, at least: a run goes on until it is long enough for the clock."""
        return self.timed_runs

    @property
    def threads(self) -> int:
        """Of the processor that is measured; 0 for a GPU."""
        named = re.search(r", (\d+) threads?$", self.hardware)
        return int(named[1]) if named else 0


def _profile_laws(c: ProfileConfig) -> list[Law]:
    known = defaults(TrainConfig)
    bearing = BEARING.get(c.profile, set(known))
    laws = [
        (
            "branches > 1 with the layout par",
            c.layout != "par" or c.branches > 1,
            "layout branches",
        ),
        ("hardware named", bool(c.hardware), "hardware"),
    ]
    return laws + [
        (
            f"{name} == {known[name]!r} in a profile of {c.profile}",
            getattr(c, name) == known[name],
            f"profile {name}",
        )
        for name in known
        if name not in bearing
    ]


def processor(threads: int = 0) -> str:
    """This machine's processor, with the threads that are used
    of it (0: as many as this process has cores).
    """
    num = threads or (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return f"{processor_name()}, {num} {'thread' if num == 1 else 'threads'}"


def gpu() -> str:
    """This machine's first GPU, as torch names it; empty without one.

    Torch itself would take seconds to load.
    """
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        lines = subprocess.run(
            asked, check=True, capture_output=True, text=True, timeout=20
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    return lines[0].strip() if lines else ""


def processor_name() -> str:
    """This machine's processor as Linux names it, elsewhere as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
