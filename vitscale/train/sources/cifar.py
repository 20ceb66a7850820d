"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in their original files, pickled or binary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vitscale.plan.data import CIFAR
from vitscale.train.sources.arrays_only import Forbidden, load_arrays
from vitscale.train.sources.images import Images, read_regular

PIXELS = 3 * 32 * 32


class Cifar:
    """The training set and the official test set, called val here, in the official order.

    CIFAR-100 has its fine labels.
    """

    splits = ("train", "val")

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.ten = folder, CIFAR[kind][0] == "cifar10"
        self.suffix = ".bin" if CIFAR[kind][1].endswith(".bin") else ""
        self.classes = tuple(map(str, range(10 if self.ten else 100)))

    def read(self, split: str) -> Images:
        names = [f"data_batch_{i}" for i in range(1, 6)] if self.ten else ["train"]
        if split == "val":
            names = ["test_batch" if self.ten else "test"]
        parts = [self._read_file(self.folder / f"{name}{self.suffix}") for name in names]
        labels, pixels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Images(torch.from_numpy(labels), torch.from_numpy(pixels.reshape(-1, 3, 32, 32)))

    def _read_file(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """Labels (N,) int64 and pixels (N, 3072) uint8.

        Raises ValueError for a file in another format.
        """
        try:
            labels, pixels = (
                _read_binary(path, 1 if self.ten else 2) if self.suffix else _read_pickle(path)
            )
            if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
                raise ValueError(
                    f"{len(labels)} labels, pixels {pixels.dtype} of shape {pixels.shape}"
                )
        except OSError:
            raise  # the disk's fault, not the file's
        except Forbidden as error:
            raise ValueError(
                f"a CIFAR file must hold numpy arrays alone, but got ({path}: {error})"
            ) from error
        except Exception as error:  # a damaged pickle raises anything
            raise ValueError(
                f"a CIFAR file must be whole, but got ({path}: {error!r:.100})"
            ) from error
        return labels.astype(np.int64), pixels


def _read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = load_arrays(read_regular(path))
    return np.array(content["labels" if "labels" in content else "fine_labels"]), content["data"]


def _read_binary(path: Path, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label, or for CIFAR-100 of a coarse and a fine one, followed by the pixels."""
    records = np.frombuffer(read_regular(path), np.uint8).reshape(-1, num_labels + PIXELS)
    return records[:, num_labels - 1], np.ascontiguousarray(records[:, num_labels:])
