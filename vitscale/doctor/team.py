"""A training by a team of two processes on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from vitscale.doctor.check import Finding, Machine, not_applicable
from vitscale.doctor.training import MODELS, both, compared, losses, reference
from vitscale.plan.config import TrainConfig

PATIENCE = timedelta(seconds=30)  # of a process for the other


def team(machine: Machine) -> Finding:
    """Two processes against one: NCCL on two GPUs, gloo on CPUs."""
    if machine.on_gpu and machine.num_gpus < 2:
        return not_applicable("one GPU: a team needs one for each process")
    backend = "nccl" if machine.on_gpu else "gloo"
    measured = losses_of_two([config for config, _ in MODELS], backend)
    return both(
        *(
            compared(
                reference(machine.device, config),
                losses,
                f"{label}of two processes ({backend}) and one",
            )
            for (config, label), losses in zip(MODELS, measured, strict=True)
        )
    )


def losses_of_two(configs: Sequence[TrainConfig], backend: str) -> list[list[float]]:
    """The losses of trainings by two processes, which are those of rank 0.

    Raises RuntimeError of torch.distributed if they do not find each other.
    """
    with (
        tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder,
        ProcessPoolExecutor(2, get_context("spawn")) as pool,
    ):
        member = partial(losses_of_member, configs, backend, Path(folder) / "meeting")
        first, _ = pool.map(member, range(2))
        return first


def losses_of_member(
    configs: Sequence[TrainConfig], backend: str, meeting: Path, rank: int
) -> list[list[float]]:
    """Trains as one process of the team; runs in a process of its own."""
    import torch.distributed as dist

    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=PATIENCE
    )
    try:
        return [losses(config, Machine(device=device)) for config in configs]
    finally:
        dist.destroy_process_group()
