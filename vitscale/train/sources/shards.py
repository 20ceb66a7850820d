"""Pixels in memory-mapped Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Shards:
    """Pixels (N, C, S, S) uint8 in several memory-mapped files.

    Indexing copies only the selected images. The first dimension is indexed as in a tensor, by an
    int, a slice or integers (B,); `shards[:]` loads everything into memory.
    """

    dtype, device = torch.uint8, torch.device("cpu")

    def __init__(
        self,
        paths: tuple[str, ...],
        counts: tuple[int, ...],
        image_shape: tuple[int, int, int],
        rows: np.ndarray | None = None,
    ) -> None:
        self.paths, self.counts, self.image_shape = paths, counts, image_shape
        self.ends = np.cumsum((0, *counts))
        self.rows = np.arange(self.ends[-1]) if rows is None else rows
        self.arrays: dict[int, np.ndarray] = {}

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.image_shape))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice | Tensor | np.ndarray) -> Tensor:
        chosen = self.rows[index.cpu().numpy() if isinstance(index, Tensor) else index]
        rows = np.atleast_1d(chosen)
        numbers = np.searchsorted(self.ends, rows, side="right") - 1
        pixels = np.empty((len(rows), *self.image_shape), np.uint8)
        for i, (number, row) in enumerate(
            zip(numbers.tolist(), (rows - self.ends[numbers]).tolist(), strict=True)
        ):
            pixels[i] = self._array(number)[row]
        return torch.from_numpy(pixels[0] if chosen.ndim == 0 else pixels)

    def select(self, rows: np.ndarray) -> Shards:
        return Shards(self.paths, self.counts, self.image_shape, self.rows[rows])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "arrays": {}}  # a worker process maps the files itself

    def _array(self, number: int) -> np.ndarray:
        """The memory-mapped pixels (n, C, S, S) of one file."""
        if number not in self.arrays:
            column = open_shard(self.paths[number]).column("pixels")
            self.arrays[number] = np.frombuffer(column.buffers()[1], np.uint8).reshape(
                -1, *self.image_shape
            )
        return self.arrays[number]


def open_shard(path: Path | str) -> Any:
    """The record batch of a file: pixels (C * S * S bytes), label, name.

    Raises ValueError for a damaged file.
    """
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"a file of a prepared set must be whole, but got ({path}: {error})"
        ) from error
