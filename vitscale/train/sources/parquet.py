"""Parquet shards with encoded images, in Hugging Face's layout."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscale.plan.data import SHARD
from vitscale.plan.spelling import shown
from vitscale.train.sources.images import LIMITS, Digest, Images, Limits, decode_image
from vitscale.train.sources.prepared import checksum

OF_N = re.compile(r"-(\d+)-of-(\d+)")
IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img"), ("label", "fine_label")


class Parquet:
    """Shards train-*, validation-* or val-*, test-*; without a validation set, test is called val.

    Reading one image reads a whole row group, so a shuffled training is slow: prepare the set
    first.
    """

    def __init__(self, folder: Path, channels: int, limits: Limits = LIMITS) -> None:
        self.channels, self.limits, self.shards = channels, limits, _shards(folder)
        self.splits = tuple(self.shards)
        first = self.shards.get("train", next(iter(self.shards.values())))[0]
        self.image, self.label, self.classes = _columns(first)

    def read(self, split: str) -> Images:
        """Lists the images of a split.

        Raises ValueError for a file that is not Parquet, or whose columns differ from the first
        one's.
        """
        paths = self.shards[split]
        labels, names, sizes = zip(
            *(_read_facts(path, self.image, self.label, self.classes) for path in paths),
            strict=True,
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

    def update(self, digest: Digest) -> None:
        """Adds the bytes of all files to a digest."""
        for path in self.paths:
            digest.update(bytes.fromhex(checksum(Path(path))))


def _shards(folder: Path) -> dict[str, list[Path]]:
    shards: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := SHARD.fullmatch(path.name):
            shards.setdefault("val" if match[1] == "validation" else match[1], []).append(path)
    for split, paths in shards.items():
        _check_whole(split, paths)
    if "val" not in shards and "test" in shards:
        shards["val"] = shards.pop("test")
    return shards


def _check_whole(split: str, paths: list[Path]) -> None:
    """Raises ValueError unless shards whose names say "of N" are all there, once, and of one N."""
    matches = [OF_N.search(path.name) for path in paths]
    if not any(matches):
        return
    parts = [(int(match[1]), int(match[2])) if match else None for match in matches]
    num = next(part[1] for part in parts if part)
    if (
        sorted(part[0] for part in parts if part and part[1] == num) != list(range(num))
        or len(parts) != num
    ):
        present = {part[0] for part in parts if part and part[1] == num}
        missing = [number for number in range(num) if number not in present]
        what = f"no shard {missing[0]}" if missing else "others beside them"
        raise ValueError(
            f"the {num} shards of {split} must be there once, and no others, but got "
            f"({paths[0].parent}: {len(paths)} files, {what})"
        )


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
    path: Path, image: str, label: str, classes: tuple[str, ...] | None
) -> tuple[np.ndarray, list[str | None], list[int]]:
    """Facts of a shard: (labels (N,), file names or None per image, images per row group).

    Labels are numbers of `classes`: a shard that names them in another order is renumbered.
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
    labels = _as_classes(table.column(label), path, label)
    own = _columns(path)[2]
    if (own is None) != (classes is None) or sorted(own or ()) != sorted(classes or ()):
        raise ValueError(
            "all shards must name the same classes, but got "
            f"({path}: {shown(own)}; train: {shown(classes)})"
        )
    if own is not None and classes is not None and own != classes:
        number = np.array([classes.index(name) for name in own])
        in_range = (labels >= 0) & (labels < len(own))
        labels = np.where(in_range, number[np.where(in_range, labels, 0)], labels)
    return (
        labels,
        names,
        [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)],
    )


def _as_classes(column: Any, path: Path, name: str) -> np.ndarray:
    """Numbers of classes (N,); -1 for none. Raises ValueError for a column of another type."""
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        raise ValueError(
            "labels must be numbers of classes, of an integer type, but got "
            f"({path}: column {name!r} of type {column.type})"
        )
    return column.fill_null(-1).to_numpy().astype(np.int64)


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
