"""The cores that this process may use, which may be fewer than the machine has, and their use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def num_cores() -> int:
    """By affinity (taskset, SLURM) and by quotas of control groups (containers, systemd), rounded
    down; at least 1.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas()])))


def num_readers(asked: int | Literal["auto"], cores: int, is_on_disk: bool) -> int:
    """The number of processes that read images for a training.

    "auto": none for images that are in memory, and for images on disk one per core but the first,
    at least one.
    """
    if asked != "auto":
        return asked
    return max(1, cores - 1) if is_on_disk else 0


def quotas() -> Iterator[float]:
    """The quota, in cores, of each control group of this process that has one."""
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            root = CGROUPS / "cpu" if controllers else CGROUPS
            own = root / path.lstrip("/")
            for group in (own, *own.parents):
                yield from _quota(group, bool(controllers))


def _quota(group: Path, is_first_version: bool) -> Iterator[float]:
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first_version else ("cpu.max",)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        quota, period = (int(word) for name in files for word in (group / name).read_text().split())
        if quota > 0:  # -1: none
            yield quota / period
