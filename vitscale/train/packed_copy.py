"""Sends several NumPy arrays to a device in one copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, of each array in the block


class PackedCopy:
    """Collects arrays and sends them to a device in one asynchronous copy.

    A copy of a few numbers costs a GPU's host as much time as one of all parameters that a batch's
    augmentation has drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []

    def add(self, array: np.ndarray) -> Callable[[], Tensor]:
        """Adds an array; returns a function that gives it as a tensor once the copy is sent."""
        place = len(self.arrays)
        self.arrays.append(np.ascontiguousarray(array))
        return lambda: self.tensors[place]

    def send(self) -> None:
        """Copies all arrays to the device."""
        if self.device.type != "cuda":
            self.tensors = [torch.from_numpy(array).to(self.device) for array in self.arrays]
            return
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in self.arrays]
        ends = np.cumsum([0, *sizes]).tolist()
        block = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
        for array, start in zip(self.arrays, ends, strict=False):
            block.numpy()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        received = block.to(self.device, non_blocking=True)
        self.tensors = [
            received[start : start + array.nbytes]
            .view(torch.from_numpy(array).dtype)
            .view(array.shape)
            for array, start in zip(self.arrays, ends, strict=False)
        ]


def put(array: np.ndarray, device: torch.device) -> Tensor:
    """Copies one array to the device without waiting for it."""
    packed = PackedCopy(device)
    tensor = packed.add(array)
    packed.send()
    return tensor()
