"""IDX files (LeCun, Cortes and Burges, the MNIST database), gzipped or not: Fashion-MNIST, MNIST
and others with the same four files.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch

from vitscale.plan.data import idx_file
from vitscale.train.sources.images import Images

PREFIXES = {"train": "train", "val": "t10k"}  # the official test set is called val here
LABELS, IMAGES = ("labels", 1), ("images", 3)  # what a file holds, and its number of dimensions
UNSIGNED_BYTE = 0x08  # the third byte of the header: the type of the data
MOST_EXPANSION = 1032  # of deflate: a header that announces more is not that of its file


class Idx:
    """Train and the official test set, called val here, in the official order."""

    splits = tuple(PREFIXES)
    classes = None  # the files do not name them

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, split: str) -> Images:
        """Pixels (N, 1, H, W). Raises ValueError for a missing or damaged file, and for unequal
        counts.
        """
        labels, pixels = (self._read(split, *part) for part in (LABELS, IMAGES))
        if len(labels) != len(pixels):
            raise ValueError(
                "a split must have a label for each image, but got "
                f"({self.folder}, {split}: {len(labels)} labels, {len(pixels)} images)"
            )
        return Images(torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(pixels[:, None]))

    def _read(self, split: str, part: str, num_dimensions: int) -> np.ndarray:
        name = f"{PREFIXES[split]}-{part}-idx{num_dimensions}-ubyte"
        path = idx_file(self.folder, name)
        if path is None:
            raise ValueError(
                f"an IDX set must have its four files, but got ({self.folder / name}[.gz]: no file)"
            )
        return read_idx(path, num_dimensions)


def read_idx(path: Path, num_dimensions: int) -> np.ndarray:
    """The array of an IDX file of unsigned bytes, uint8, gzipped if its name ends in .gz.

    Header: two zero bytes, the type, the number of dimensions, then each size as a big-endian
    unsigned 32-bit integer. Raises ValueError for another header, and for a file that is shorter or
    longer than its header says.
    """
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            return _read_array(file, path, num_dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"an IDX file must be whole, but got ({path}: {error})") from error


def _read_array(file: BinaryIO, path: Path, num_dimensions: int) -> np.ndarray:
    expected = struct.pack(">HBB", 0, UNSIGNED_BYTE, num_dimensions)
    magic = file.read(4)
    if magic != expected:
        raise ValueError(
            f"an IDX file of {num_dimensions} dimensions must begin with {expected.hex()}, but got "
            f"({path}: {magic.hex() or 'nothing'})"
        )
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise ValueError(f"an IDX file must be whole, but got ({path}: ends in its header)")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    num = math.prod(shape)
    # else a few damaged bytes of the header would ask for terabytes of memory
    possible = num <= MOST_EXPANSION * path.stat().st_size
    content = file.read(num) if possible else b""
    if len(content) < num:
        law = f"an IDX file of shape {shape} must hold {num} bytes after its header"
        raise ValueError(f"{law}, but got ({path}: truncated)")
    if file.read(1):
        law = f"an IDX file of shape {shape} must end after {num} bytes"
        raise ValueError(f"{law}, but got ({path}: trailing bytes)")
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)
