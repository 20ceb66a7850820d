"""Parquet shards with encoded images, as Hugging Face writes them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscale.plan.data import SHARD
from vitscale.train.sources.images import LIMITS, Images, Limits, decode_image

IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img"), ("label", "fine_label")


class Parquet:
    """Shards train-*, validation-* or val-*, test-*; a test set is called val where there is no
    validation set.

    A whole row group is read to get at one image, so that a shuffled training waits for it: prepare
    such a set first.
    """

    def __init__(self, folder: Path, channels: int, limits: Limits = LIMITS) -> None:
        self.channels, self.limits, self.shards = channels, limits, _shards(folder)
        self.splits = tuple(self.shards)
        self.image, self.label, self.classes = _columns(next(iter(self.shards.values()))[0])

    def read(self, split: str) -> Images:
        """Raises ValueError for a file that is no parquet, or has other columns than the first."""
        paths = self.shards[split]
        labels, names, sizes = zip(
            *(_read_facts(path, self.image, self.label) for path in paths), strict=True
        )
        groups = [
            (number, group) for number, of_file in enumerate(sizes) for group in range(len(of_file))
        ]
        ends = np.cumsum([0, *(size for of_file in sizes for size in of_file)])
        decode = RowGroups(
            tuple(map(str, paths)), self.image, np.array(groups), ends, self.channels, self.limits
        )
        known = [name for of_file in names for name in of_file]
        encoded = np.array([os.fsencode(name) for name in known]) if known and all(known) else None
        return Images(torch.from_numpy(np.concatenate(labels)), decode=decode, names=encoded)


@dataclass(frozen=True)
class RowGroups:
    """A decoder of the images of several parquet files; a
    process keeps the row groups that it read last.
    """

    paths: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 2): number of the file, number of the row group in it
    ends: np.ndarray  # (G + 1,): how many images lie before each row group, and in all
    channels: int
    limits: Limits = LIMITS

    def __call__(self, index: int) -> Tensor:
        at = int(np.searchsorted(self.ends, index, side="right")) - 1
        (number, group), row = self.groups[at].tolist(), index - int(self.ends[at])
        encoded = _read_group(self.paths[number], group, self.column)[row].as_py()
        if isinstance(encoded, dict):
            encoded = encoded["bytes"]
        name = f"{self.paths[number]}, row {row} of row group {group}"
        return decode_image(encoded or b"", name, self.channels, self.limits)


def _shards(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := SHARD.fullmatch(path.name):
            found.setdefault("val" if match[1] == "validation" else match[1], []).append(path)
    if "val" not in found and "test" in found:
        found["val"] = found.pop("test")
    return found


def _columns(path: Path) -> tuple[str, str, tuple[str, ...] | None]:
    """Names of the columns of images and of labels, and of
    the classes if the file's metadata has them.
    """
    schema = _open(str(path)).schema_arrow
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if image is None or label is None:
        law = f"columns ({' or '.join(IMAGE_COLUMNS)}) and ({' or '.join(LABEL_COLUMNS)})"
        raise ValueError(f"{law} must be there, but got ({path}: {', '.join(schema.names)})")
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = described.get("info", {}).get("features", {}).get(label, {}).get("names")
    return image, label, tuple(names) if names else None


def _read_facts(
    path: Path, image: str, label: str
) -> tuple[np.ndarray, list[str | None], list[int]]:
    """(labels (N,), file names of the images or None for
    each, images in each row group) of a shard.
    """
    file = _open(str(path))
    if missing := {image, label} - set(file.schema_arrow.names):
        raise ValueError(
            f"all shards must have the same columns, but got ({path}: no "
            f"{', '.join(sorted(missing))})"
        )
    has_path = any(file.schema.column(i).path == f"{image}.path" for i in range(len(file.schema)))
    with _naming(path):
        table = file.read(columns=[label, *([f"{image}.path"] if has_path else [])])
    names = (
        table.column(image).combine_chunks().field("path").to_pylist()
        if has_path
        else [None] * len(table)
    )
    labels = table.column(label).fill_null(-1).to_numpy().astype(np.int64)
    return (
        labels,
        names,
        [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)],
    )


@functools.lru_cache(64)
def _open(path: str) -> Any:
    import pyarrow.parquet as pq

    with _naming(path):
        return pq.ParquetFile(path, memory_map=True)


@functools.lru_cache(2)
def _read_group(path: str, group: int, column: str) -> Any:
    with _naming(path):
        # One thread: a loader runs in many processes.
        return _open(path).read_row_group(group, columns=[column], use_threads=False).column(column)


@contextlib.contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Raises ValueError with the path for what pyarrow says of a
    file's content, and lets errors of the disk pass.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        raise ValueError(
            f"a parquet file must be whole, but got ({path}: {str(error).splitlines()[0]})"
        ) from error
