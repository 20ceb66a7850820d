"""Writes a dataset once as memory-mapped files of one image size, for `vitscale prepare`."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitscale.catalog.datasets import dataset_facts
from vitscale.plan.data import BEGUN, CIFAR, MANIFEST, REAL, TORCHVISION, layout_of
from vitscale.plan.spelling import shown
from vitscale.train.sources import Images, Source, open_folder
from vitscale.train.sources.folders import UnsplitFolders
from vitscale.train.sources.images import Limits, check_inside, to_tensor
from vitscale.train.sources.prepared import (
    VERSION,
    check_sha256,
    checksum,
    read_manifest,
    write_json,
    write_shard,
)
from vitscale.train.sources.torchvision_class import open_class

RESIZE = "shorter side to size by Pillow's antialiased bicubic filter, then the central square"
PACKAGES = ("numpy", "pillow", "pyarrow", "torchvision")
BLOCK = 16  # images that a worker process decodes per item


@dataclass(frozen=True)
class Request:
    """What to prepare from which source.

    The number of workers is not a field, since it does not change the files.
    """

    source: str  # a folder, or "torchvision:CLASS"
    data_root: Path  # the set becomes data_root/NAME-SIZE; see `_final_name` for the one exception
    size: int
    splits: tuple[str, ...] = ()  # empty: all splits of the source
    skip_unreadable: bool = False
    dataset: str = ""  # NAME; "": the name of the folder, of CIFAR, or of the class
    source_root: str = ""  # where the files of a torchvision class are
    channels: int = 3  # to which image files are decoded: 3 (RGB) or 1 (gray)
    shard_bytes: int = 512 * 2**20  # largest size of the pixels of one file
    max_megapixels: float = Limits.max_megapixels  # of an image before it is resized
    follow_symlinks: bool = Limits.follow_symlinks  # out of the source's folder
    val_fraction: float | None = None  # of each class, for class folders without val/
    seed: int | None = None  # of that split; None: 0

    def __post_init__(self) -> None:
        layout = layout_of(Path(self.source))
        if self.val_fraction is not None and (
            self.source.startswith(TORCHVISION) or (layout and layout.kind != "folders")
        ):
            raise ValueError(
                "--val-fraction must be of class folders without val/, but got "
                f"({self.source}{f': {layout.kind}' if layout else ''})"
            )
        if self.val_fraction is None and self.seed is not None:
            raise ValueError(f"--seed must come with --val-fraction, but got (seed={self.seed})")
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise ValueError(
                f"0 < val_fraction < 1 must hold, but got (val_fraction={self.val_fraction})"
            )
        if not 0 < self.max_megapixels <= 10_000:
            raise ValueError(
                "0 < max_megapixels <= 10000 must hold, but got "
                f"(max_megapixels={self.max_megapixels})"
            )

    @property
    def limits(self) -> Limits:
        return Limits(self.max_megapixels, self.follow_symlinks)

    @property
    def name(self) -> str:
        if self.dataset or self.source.startswith(TORCHVISION):
            return self.dataset or self.source.removeprefix(TORCHVISION).lower()
        folder = Path(self.source).absolute()
        layout = layout_of(folder)
        return CIFAR[layout.kind][0] if layout and layout.kind in CIFAR else folder.name


Progress = Callable[[str, int, int], None]


class Block(NamedTuple):
    """Decoded images of one file of the set, in order."""

    pixels: np.ndarray  # (b, C, S, S) uint8
    rows: list[int]  # (b,) indices in the source
    unreadable: list[tuple[int, str]]  # (index in the source, reason) of the others


def prepare(request: Request, num_workers: int = 0, progress: Progress | None = None) -> Path:
    """Writes a prepared set and returns its folder.

    A run that was killed can be repeated: it continues, and keeps the files that were finished. The
    bytes of the files depend only on the source and the request. `progress` is called with (split,
    images done, images). Raises ValueError for a source that cannot be read or has changed since
    the set was begun, for an unreadable image unless those are skipped, for a split without images,
    and if the folder holds something else.
    """
    source = _open(request)
    images = _read(source, request)
    folder = request.data_root / _final_name(request, images)
    identity = _identity(request, source, images)
    if (folder / MANIFEST).exists():
        _check_same_set(read_manifest(folder)["request"], identity, folder)
        return folder
    _begin(folder, identity)
    splits = {
        split: _write_split(folder, split, whole, request, num_workers, progress)
        for split, whole in images.items()
    }
    for split, facts in splits.items():
        if not facts["num_images"]:
            raise ValueError(
                f"a split must have an image that can be read, but got ({request.source}, {split}: "
                f"{len(facts['skipped'])} skipped, first {facts['skipped'][0]})"
            )
    _finish(folder, request, identity, source, splits)
    return folder


def verify(folder: Path) -> int:
    """Reads every file of a prepared set; returns their number.

    Raises ValueError for the first file that has changed.
    """
    files = [file for split in read_manifest(folder)["splits"].values() for file in split["files"]]
    for file in files:
        check_sha256(folder / file["file"], file)
    return len(files)


def _open(request: Request) -> Source:
    if request.source.startswith(TORCHVISION):
        return open_class(
            request.source.removeprefix(TORCHVISION), Path(request.source_root), request.channels
        )
    if not Path(request.source).is_dir():
        raise ValueError(
            f"a source must be a folder or torchvision:CLASS, but got ({request.source})"
        )
    if request.data_root.resolve().is_relative_to(Path(request.source).resolve()):
        raise ValueError(
            "the data root must lie outside the dataset's own folder, but got "
            f"(source={request.source}, data root={request.data_root})"
        )
    # the ReaL labels are copied unchanged
    check_inside(Path(request.source) / REAL, Path(request.source), request.limits)
    folder = Path(request.source)
    if request.val_fraction is None:
        return open_folder(folder, request.channels, request.limits)
    return UnsplitFolders(
        folder, request.channels, request.val_fraction, request.seed or 0, request.limits
    )


def _read(source: Source, request: Request) -> dict[str, Images]:
    """The requested splits.

    Raises ValueError for a split that does not exist, and for an image without a valid label.
    """
    if unknown := [split for split in request.splits if split not in source.splits]:
        raise ValueError(
            f"a split must be one of {', '.join(source.splits)}, but got ({', '.join(unknown)})"
        )
    images = {split: source.read(split) for split in request.splits or source.splits}
    for split, whole in images.items():
        num_classes = len(source.classes) if source.classes else 2**31
        wrong = ((whole.labels < 0) | (whole.labels >= num_classes)).nonzero().flatten().tolist()
        if wrong or not len(whole):
            problem = (
                f"{whole.name(wrong[0])}: label {int(whole.labels[wrong[0]])}"
                if wrong
                else "no images"
            )
            raise ValueError(
                f"0 <= label < {num_classes} must hold for every image, but got "
                f"({split}, {problem})"
            )
        if whole.pixels is not None and (channels := whole.pixels.shape[1]) != request.channels:
            raise ValueError(
                f"channels == {channels} must hold for {request.source}, but got "
                f"({request.channels})"
            )
    return images


def _final_name(request: Request, images: dict[str, Images]) -> str:
    """NAME-SIZE; or NAME, if it implies the size already.

    That is so for the name of a prepared set or of a known dataset (CIFAR), at the size that its
    images have. Nothing is decoded to find out: image files get NAME-SIZE whatever their sizes.
    """
    layout = layout_of(Path(request.source).absolute())
    named = dataset_facts(request.name) is not None or (
        layout is not None and layout.kind == "prepared"
    )
    sized = all(
        split.pixels is not None and tuple(split.pixels.shape[2:]) == (request.size,) * 2
        for split in images.values()
    )
    return request.name if named and sized else f"{request.name}-{request.size}"


def _begin(folder: Path, identity: dict[str, Any]) -> None:
    """Records what is being prepared. Raises ValueError if the folder holds anything else.

    A set that was begun otherwise, and stopped before its first file was finished, starts again, so
    that an option that a refusal advises can be given at once.
    """
    begun = folder / BEGUN
    finished = [path for path in folder.glob("*") if path != begun and path.suffix != ".tmp"]
    if finished and begun.exists():
        _check_same_set(json.loads(begun.read_text()), identity, folder)
    elif finished:
        raise ValueError(
            f"a prepared set needs a folder of its own, but got ({folder}: not empty); name "
            "another root"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for half in folder.glob("*.tmp"):
        half.unlink()
    write_json(begun, identity)


def _identity(request: Request, source: Source, images: dict[str, Images]) -> dict[str, Any]:
    """What determines the bytes of a set: fields of the request, and what the source holds."""
    place = (
        request.source
        if request.source.startswith(TORCHVISION)
        else str(Path(request.source).absolute())
    )
    fields = ("size", "splits", "skip_unreadable", "channels", "shard_bytes")
    return {
        "source": place,
        **{name: json.loads(json.dumps(getattr(request, name))) for name in fields},
        "val_fraction": request.val_fraction,
        "seed": None if request.val_fraction is None else request.seed or 0,
        "images": {split: len(whole) for split, whole in images.items()},
        "classes": None if source.classes is None else len(source.classes),
        "content": _digest_of(source, images),
    }


def _digest_of(source: Source, images: dict[str, Images]) -> str:
    """A digest of names of classes, and of names, labels and encoded bytes of all images."""
    digest = hashlib.sha256(json.dumps(source.classes).encode())
    for split, whole in images.items():
        digest.update(f"{split} {len(whole)}".encode())
        digest.update(whole.labels.numpy().tobytes())
        digest.update(b"" if whole.names is None else b"\0".join(whole.names.tolist()))
        if whole.decode is not None:
            whole.decode.update(digest)
        for start in range(0, len(whole) if whole.pixels is not None else 0, 4096):
            assert whole.pixels is not None
            digest.update(whole.pixels[start : start + 4096].numpy().tobytes())
    return digest.hexdigest()


SOURCE = ("images", "classes", "content")


def _check_same_set(existing: dict[str, Any], identity: dict[str, Any], folder: Path) -> None:
    for name, value in identity.items():
        if existing.get(name) == value:
            continue
        if name in SOURCE:
            raise ValueError(
                f"the source must be as it was when the set at {folder} was begun, but got "
                f"({identity['source']}: {name} was {shown(existing.get(name))}, is "
                f"{shown(value)}); delete the set, or name another one with --dataset"
            )
        law = f"{name} == {existing.get(name)!r} must hold for the set at {folder}"
        raise ValueError(
            f"{law}, but got ({name}={value!r}); name another data root, or delete the set"
        )


def _write_split(
    folder: Path,
    split: str,
    images: Images,
    request: Request,
    num_workers: int,
    progress: Progress | None,
) -> dict[str, Any]:
    """Writes all files of a split and returns the split's entry in the manifest."""
    per_file = max(1, request.shard_bytes // (request.channels * request.size**2))
    parts = [
        range(len(images))[start : start + per_file] for start in range(0, len(images), per_file)
    ]
    paths = [folder / f"{split}-{number:05d}.arrow" for number in range(len(parts))]
    kept = [_kept(path) for path in paths]
    missing = [part for part, facts in zip(parts, kept, strict=True) if facts is None]
    blocks, files = _blocks(images, missing, request, num_workers), []
    for path, part, facts in zip(paths, parts, kept, strict=True):
        files.append(facts or _write_file(path, part, images, blocks, request))
        if progress:
            progress(split, part.stop, len(images))
    skipped = [line for file in files for line in file.pop("skipped")]
    return {
        "num_images": sum(file["num_images"] for file in files),
        "skipped": skipped,
        "left_out": {reason: list(what) for reason, what in images.left_out.items()},
        "num_labels": int(images.labels.max()) + 1,
        "files": files,
    }


def _num_classes(source: Source, splits: dict[str, Any]) -> int:
    """As the source names them, or as many as the largest label asks for."""
    return len(source.classes or ()) or max(split["num_labels"] for split in splits.values())


def _kept(path: Path) -> dict[str, Any] | None:
    """The facts of a file finished by an earlier run, after verifying its bytes, or None."""
    try:
        facts: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        check_sha256(path, facts)
    except (FileNotFoundError, ValueError):
        return None
    return facts


def _write_file(
    path: Path, part: range, images: Images, blocks: Iterator[Block], request: Request
) -> dict[str, Any]:
    """Writes one file, and then its facts beside it; without them, the file does not count."""
    pixels = np.empty((len(part), request.channels, request.size, request.size), np.uint8)
    rows: list[int] = []
    skipped: list[str] = []
    for block in itertools.islice(blocks, math.ceil(len(part) / BLOCK)):
        if block.unreadable and not request.skip_unreadable:
            raise ValueError(f"{block.unreadable[0][1]}; --skip-unreadable leaves such images out")
        skipped += [f"{images.name(index)}: {reason}" for index, reason in block.unreadable]
        pixels[len(rows) : len(rows) + len(block.rows)] = block.pixels
        rows += block.rows
    write_shard(
        path,
        pixels[: len(rows)],
        images.labels[rows].numpy(),
        [images.name(index) for index in rows],
    )
    facts = {
        "file": path.name,
        "num_images": len(rows),
        "bytes": path.stat().st_size,
        "sha256": checksum(path),
    }
    write_json(path.with_suffix(".json"), {**facts, "skipped": skipped})
    return {**facts, "skipped": skipped}


def _blocks(
    images: Images, parts: list[range], request: Request, num_workers: int
) -> Iterator[Block]:
    """Decodes the blocks of each part in order, in worker processes if there are any."""
    todo = [part[start : start + BLOCK] for part in parts for start in range(0, len(part), BLOCK)]
    resized = Resized(images, request.size, request.channels)
    # Blocks stay NumPy arrays, which are sent through a pipe: tensors would need shared memory, of
    # which containers often have little.
    return iter(
        DataLoader(
            resized, batch_size=None, sampler=todo, num_workers=num_workers, collate_fn=_as_is
        )
    )


def _as_is(block: Any) -> Any:
    return block


@dataclass(frozen=True)
class Resized(Dataset[Block]):
    """Images at size x size; one item is the block of a range of indices."""

    images: Images
    size: int
    channels: int

    def __getitem__(self, rows: range) -> Block:
        good: list[int] = []
        unreadable: list[tuple[int, str]] = []
        pixels = np.empty((len(rows), self.channels, self.size, self.size), np.uint8)
        for row in rows:
            try:
                pixels[len(good)] = resize(self.images[row], self.size)
                good.append(row)
            except (OSError, ValueError) as error:
                unreadable.append((row, str(error)))
        return Block(pixels[: len(good)], good, unreadable)


def resize(image: Tensor, size: int) -> np.ndarray:
    """(C, H, W) uint8 -> (C, size, size), see RESIZE.

    Pillow computes in integers, so the bytes are the same on every machine.
    """
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop
    from torchvision.transforms.functional import resize as resize_shorter_side

    if tuple(image.shape[1:]) == (size, size):
        return image.numpy()
    array = image.permute(1, 2, 0).numpy()
    whole = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))
    square = center_crop(resize_shorter_side(whole, [size], InterpolationMode.BICUBIC), [size])
    return to_tensor(np.array(square)).numpy()


def _finish(
    folder: Path,
    request: Request,
    identity: dict[str, Any],
    source: Source,
    splits: dict[str, Any],
) -> None:
    """Writes the manifest, which completes the set, and removes temporary records."""
    real = Path(request.source) / REAL
    # ReaL labels are those of a val that exists: their file counts its images
    if real.is_file() and "val" in splits and request.val_fraction is None:
        shutil.copyfile(real, folder / REAL)
    manifest = {
        "format": VERSION,
        "name": folder.name,
        "size": request.size,
        "channels": request.channels,
        "classes": source.classes,
        "num_classes": _num_classes(source, splits),
        "resize": RESIZE,
        "request": identity,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "splits": splits,
    }
    write_json(folder / MANIFEST, manifest)
    for note in (folder / BEGUN, *folder.glob("*.arrow")):
        note.with_suffix(".json").unlink(missing_ok=True)
