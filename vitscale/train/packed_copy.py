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
        self.received: Tensor  # (bytes,) on a GPU: what `tensors` are views of

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
        block = self._block()
        self.received = block.to(self.device, non_blocking=True)
        self.tensors = [
            self.received[start : start + array.nbytes]
            .view(torch.from_numpy(array).dtype)
            .view(array.shape)
            for array, start in zip(self.arrays, self._ends(), strict=False)
        ]

    def send_over(self, sent: PackedCopy) -> None:
        """Copies all arrays over those that an earlier copy with the same layout has sent."""
        sent.received.copy_(self._block(), non_blocking=True)
        self.received, self.tensors = sent.received, sent.tensors

    @property
    def layout(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        """Shape and type of each array."""
        return tuple((array.shape, array.dtype) for array in self.arrays)

    def _block(self) -> Tensor:
        """All arrays as bytes, in pinned memory."""
        ends = self._ends()
        block = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
        for array, start in zip(self.arrays, ends, strict=False):
            block.numpy()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        return block

    def _ends(self) -> list[int]:
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in self.arrays]
        return np.cumsum([0, *sizes]).tolist()


def put(array: np.ndarray, device: torch.device) -> Tensor:
    """Copies one array to the device without waiting for it."""
    packed = PackedCopy(device)
    tensor = packed.add(array)
    packed.send()
    return tensor()
