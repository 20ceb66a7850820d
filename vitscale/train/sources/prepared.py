"""Prepared sets: images of one size in memory-mapped Arrow files.

`vitscale prepare` writes them once. A set is a folder of files train-00000.arrow, ... and a
manifest.json, which is written last. Each file is an Arrow IPC file with one record batch, so its
pixels are one contiguous array that can be memory-mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitscale.plan.data import MANIFEST
from vitscale.train.sources.images import Images
from vitscale.train.sources.shards import Shards, open_shard

VERSION = 1


class Prepared:
    """A complete prepared set.

    Opening it compares the sizes of files with the manifest; `verify` reads every byte.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.splits = tuple(self.manifest["splits"])
        self.classes = tuple(self.manifest["classes"]) if self.manifest["classes"] else None

    def read(self, split: str) -> Images:
        files = self.manifest["splits"][split]["files"]
        for file in files:
            _check_bytes(self.folder / file["file"], file)
        size, channels = self.manifest["size"], self.manifest["channels"]
        tables = [_read_columns(self.folder / file["file"], file) for file in files]
        labels = torch.from_numpy(np.concatenate([labels for labels, _ in tables]))
        paths = tuple(str(self.folder / file["file"]) for file in files)
        pixels = Shards(paths, tuple(file["num_images"] for file in files), (channels, size, size))
        return Images(labels, pixels, names=np.concatenate([names for _, names in tables]))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared set.

    Raises ValueError if it cannot be read or has another version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"a manifest of a prepared set must be readable, but got ({path}: {error!r})"
        ) from error
    if version != VERSION:
        raise ValueError(
            f"format == {VERSION} must hold for a prepared set, but got ({path}: "
            f"format={version!r})"
        )
    return dict(manifest)


def check_sha256(path: Path, facts: dict[str, Any]) -> None:
    """Raises ValueError unless a file has the size and checksum recorded when it was written."""
    _check_bytes(path, facts)
    actual = checksum(path)
    if actual != facts["sha256"]:
        raise ValueError(
            f"sha256 == {facts['sha256']:.12}... must hold, but got ({path}: {actual:.12}...)"
        )


def _check_bytes(path: Path, facts: dict[str, Any]) -> None:
    actual = path.stat().st_size if path.exists() else "no file"
    if actual != facts["bytes"]:
        raise ValueError(
            f"bytes == {facts['bytes']} must hold for a file of a prepared set, but got ({path}: "
            f"{actual})"
        )


def _read_columns(path: Path, facts: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(labels, names) of a file; checks that it opens and has the recorded number of images."""
    batch = open_shard(path)
    if batch.num_rows != facts["num_images"]:
        raise ValueError(
            f"images == {facts['num_images']} must hold, but got ({path}: {batch.num_rows})"
        )
    names = np.array([os.fsencode(name) for name in batch.column("name").to_pylist()], np.bytes_)
    return batch.column("label").to_numpy(), names


def checksum(path: Path) -> str:
    """The sha256 of a file in hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_shard(path: Path, pixels: np.ndarray, labels: np.ndarray, names: list[str]) -> None:
    """Writes images (n, C, S, S) uint8, labels (n,) and names as one file, atomically."""
    import pyarrow as pa

    records = pa.binary(math.prod(pixels.shape[1:]))
    column = pa.Array.from_buffers(
        records, len(pixels), [None, pa.py_buffer(np.ascontiguousarray(pixels))]
    )
    batch = pa.record_batch(
        {
            "pixels": column,
            "label": pa.array(labels, pa.int64()),
            "name": _encoded(names),
        }
    )
    with (
        _replacing(path) as half,
        pa.OSFile(str(half), "wb") as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _encoded(names: list[str]) -> Any:
    """Names of files as text; as bytes where one is no UTF-8."""
    import pyarrow as pa

    try:
        return pa.array(names, pa.string())
    except UnicodeEncodeError:
        return pa.array([os.fsencode(name) for name in names], pa.binary())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file atomically."""
    with _replacing(path) as half:
        half.write_text(json.dumps(content, indent=1))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path whose file replaces `path` once it is fsynced."""
    half = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    yield half
    with open(half, "rb") as file:
        os.fsync(file.fileno())
    os.replace(half, path)
