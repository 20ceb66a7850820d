"""NumPy arrays on their way to a device, which they reach together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, of each array in the block


class Parcel:
    """Collects arrays, sends them in one copy that nothing waits for, and then has them as tensors.

    A GPU's host spends as long on a copy of a few numbers as on one of all that a batch's
    augmentation has drawn.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []

    def add(self, array: np.ndarray) -> Callable[[], Tensor]:
        """Takes in an array, and returns what gives it as a tensor
        of its shape and type, once the parcel is sent.
        """
        place = len(self.arrays)
        self.arrays.append(np.ascontiguousarray(array))
        return lambda: self.tensors[place]

    def send(self, device: torch.device) -> None:
        """Copies all arrays to the device, if they are not there yet."""
        if device.type != "cuda":
            self.tensors = [torch.from_numpy(array).to(device) for array in self.arrays]
            return
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in self.arrays]
        ends = np.cumsum([0, *sizes]).tolist()
        block = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
        for array, start in zip(self.arrays, ends, strict=False):
            block.numpy()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        there = block.to(device, non_blocking=True)
        self.tensors = [
            there[start : start + array.nbytes]
            .view(torch.from_numpy(array).dtype)
            .view(array.shape)
            for array, start in zip(self.arrays, ends, strict=False)
        ]


def put(array: np.ndarray, device: torch.device) -> Tensor:
    """One array on the device, without waiting for it."""
    parcel = Parcel()
    tensor = parcel.add(array)
    parcel.send(device)
    return tensor()
