"""The device of a training, and the seed of its process."""

from __future__ import annotations

import random

import numpy as np
import torch

from vitscale.record.outcome import Row


def device_at(name: str) -> torch.device:
    """The device of a name; "cuda" is the current GPU, with the index that torch.cuda demands."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
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
