"""Parquet shards with encoded images, in Hugging Face's layout."""

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
    """Shards train-*, validation-* or val-*, test-*; without a validation set, test is called val.

    Reading one image reads a whole row group, so a shuffled training is slow: prepare the set
    first.
    """

    def __init__(self, folder: Path, channels: int, limits: Limits = LIMITS) -> None:
        self.channels, self.limits, self.shards = channels, limits, _shards(folder)
        self.splits = tuple(self.shards)
        self.image, self.label, self.classes = _columns(next(iter(self.shards.values()))[0])

    def read(self, split: str) -> Images:
        """Lists the images of a split.

        Raises ValueError for a file that is not Parquet, or whose columns differ from the first
        one's.
        """
        paths = self.shards[split]
        labels, names, sizes = zip(
            *(_read_facts(path, self.image, self.label) for path in paths), strict=True
        )
        groups = [
            (number, group)
            for number, file_sizes in enumerate(sizes)
            for group in range(len(file_sizes))
        ]
        ends = np.cumsum([0, *(size for file_sizes in sizes for size in file_sizes)])
        decode = RowGroups(
            tuple(map(str, paths)), self.image, np.array(groups), ends, self.channels, self.limits
        )
        flat = [name for file_names in names for name in file_names]
        encoded = np.array([os.fsencode(name) for name in flat]) if flat and all(flat) else None
        return Images(torch.from_numpy(np.concatenate(labels)), decode=decode, names=encoded)


@dataclass(frozen=True)
class RowGroups:
    """A decoder of the images of several Parquet files; caches the row groups read last."""

    paths: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 2): index of the file, index of the row group in it
    ends: np.ndarray  # (G + 1,): number of images before each row group, and in total
    channels: int
    limits: Limits = LIMITS

    def __call__(self, index: int) -> Tensor:
        place = int(np.searchsorted(self.ends, index, side="right")) - 1
        (number, group), row = self.groups[place].tolist(), index - int(self.ends[place])
        encoded = _read_group(self.paths[number], group, self.column)[row].as_py()
        if isinstance(encoded, dict):
            encoded = encoded["bytes"]
        name = f"{self.paths[number]}, row {row} of row group {group}"
        return decode_image(encoded or b"", name, self.channels, self.limits)


def _shards(folder: Path) -> dict[str, list[Path]]:
    shards: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := SHARD.fullmatch(path.name):
            shards.setdefault("val" if match[1] == "validation" else match[1], []).append(path)
    if "val" not in shards and "test" in shards:
        shards["val"] = shards.pop("test")
    return shards


def _columns(path: Path) -> tuple[str, str, tuple[str, ...] | None]:
    """Names of the image and label columns, and of the classes if the metadata has them."""
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
    """Facts of a shard: (labels (N,), file names or None per image, images per row group)."""
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
        # one thread, since loaders run in many processes
        return _open(path).read_row_group(group, columns=[column], use_threads=False).column(column)


@contextlib.contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Turns pyarrow's errors about a file's content into a ValueError with the path.

    Errors of the disk are not changed.
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
