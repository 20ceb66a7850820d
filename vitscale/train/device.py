"""The device of a training, and the seed of its process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row

TF32_CAPABILITY = (8, 0)  # of compute, from which on GPUs have TF32


def device_at(name: str) -> torch.device:
    """The device of a name; "cuda" is the current GPU, with the index that torch.cuda demands."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    )


@contextlib.contextmanager
def products(config: TrainConfig) -> Iterator[None]:
    """Lets a GPU compute fp32 matrix products and convolutions in TF32 as the precision says, until
    it ends. By itself, torch does so for convolutions. A CPU computes fp32.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = config.precision == "tf32", config.precision != "fp32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def check_precision(config: TrainConfig, device: torch.device) -> None:
    """Raises OSError for a training in TF32 on a device that would compute fp32 instead."""
    if config.precision != "tf32":
        return
    has = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if has is None or has < TF32_CAPABILITY:
        raise OSError(
            "compute capability >= 8.0 must hold for a training in TF32, but got "
            f"(precision='tf32', device={device.type!r}, capability={has})"
        )


def peak_memory(device: torch.device) -> Row:
    """Peak memory of tensors on the GPU since the process began, in MiB; no column on a CPU."""
    return (
        {"peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
        if device.type == "cuda"
        else {}
    )


def seed_everything(seed: int) -> None:
    """Seeds the global generators; batches do not draw from them, but init and layers do."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
