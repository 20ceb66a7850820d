"""Where and how fast trials run, and the news that come back from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitscale.record.store import Row


@dataclass(frozen=True)
class Resources:
    """Where trials run and how fast: never part of what they are. Raises ValueError for impossible amounts."""

    cpus_per_trial: float = 1.0  # of each of its workers
    gpus_per_trial: float = 0.0  # of each of its workers; a fraction packs several trials on a GPU
    workers_per_trial: int = 1  # processes that train a trial together, data-parallel
    micro_batch: int = 0  # most images that pass through the model at once; 0: the worker's share of the batch
    parallel_branches: bool = False  # compute the branches of a parallel ViT in one go
    compiled: bool = False  # torch.compile
    device: str = "auto"  # cuda if a trial has a GPU, else cpu
    max_concurrent: int = 0  # 0: as many as fit
    address: str = ""  # of an existing Ray cluster; empty starts one on this machine
    data_root: str = ""
    num_loader_workers: int = 0
    checkpoint_every_s: float = 5.0

    def __post_init__(self) -> None:
        for name, least in (("cpus_per_trial", 0.01), ("gpus_per_trial", 0.0), ("max_concurrent", 0),
                            ("workers_per_trial", 1), ("micro_batch", 0),
                            ("num_loader_workers", 0), ("checkpoint_every_s", 0.0)):  # fmt: skip
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} >= {least} must hold, but got ({name}={getattr(self, name)})")
        if self.workers_per_trial > 1 and self.gpus_per_trial % 1:
            raise ValueError(
                "gpus_per_trial a whole number must hold with several workers, but got "
                f"(gpus_per_trial={self.gpus_per_trial}, workers_per_trial={self.workers_per_trial})"
            )

    def device_name(self) -> str:
        if self.device == "auto":
            return "cuda" if self.gpus_per_trial > 0 else "cpu"
        return self.device


@dataclass(frozen=True)
class Event:
    """News of a trial: its rows so far, or what became of it."""

    trial_id: str
    status: str  # running, finished, diverged, failed, elsewhere
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # provenance of a done trial, error of a failed one
