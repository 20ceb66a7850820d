"""Class folders, SPLIT/CLASS/image.jpg, as read by torchvision's ImageFolder."""

from __future__ import annotations

import functools
import hashlib
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vitscale.train.sources.images import (
    LIMITS,
    Files,
    Images,
    Limits,
    check_inside,
    is_hidden,
    why_no_image,
)


class Folders:
    """A dataset of class folders.

    Every folder beside train/ that contains folders is a split; classes are the sorted folder names
    of train/.
    """

    def __init__(self, folder: Path, channels: int, limits: Limits = LIMITS) -> None:
        self.folder, self.channels, self.limits = folder, channels, limits
        self.classes = _subfolders(folder / "train")
        if not self.classes:
            raise ValueError(
                f"a training set must have class folders, but got ({folder / 'train'}: none)"
            )
        self.splits = tuple(name for name in _subfolders(folder) if _subfolders(folder / name))

    def read(self, split: str) -> Images:
        """Lists the images of a split.

        Raises ValueError for a class without images, for one that is not in train/, and for folders
        that link elsewhere.
        """
        names, labels, left_out = _list(self.folder, split, self.classes, self.limits)
        decode = Files(self.folder, names, self.channels, self.limits)
        return Images(torch.from_numpy(labels), decode=decode, names=names, left_out=left_out)


class UnsplitFolders:
    """Class folders without val/: a share of the images of each class becomes val.

    The classes lie in train/, or, as CLASS/image.jpg, in the folder itself. An image falls into val
    by a hash of its name and the seed, so that the split depends neither on the order in which a
    file system lists files nor on a random generator.
    """

    def __init__(
        self, folder: Path, channels: int, val_fraction: float, seed: int, limits: Limits = LIMITS
    ) -> None:
        in_train = (folder / "train").is_dir() and bool(_subfolders(folder / "train"))
        self.classes = _subfolders(folder / "train") if in_train else unsplit_classes(folder)
        if not self.classes or (in_train and (folder / "val").is_dir()):
            raise ValueError(
                "class folders that hold images, and no val/, must be there to hold out "
                f"--val-fraction of them, but got ({folder}: there are {listing(folder)})"
            )
        self.splits = ("train", "val")
        self.folder, self.channels, self.limits = folder, channels, limits
        self.val_fraction, self.seed, self.place = val_fraction, seed, "train" if in_train else "."

    def read(self, split: str) -> Images:
        """Lists the images of a split.

        Raises ValueError for a class with a single image, and as `Folders` does.
        """
        names, labels, left_out = _list(self.folder, self.place, self.classes, self.limits)
        in_val = self._in_val(names, labels)
        rows = np.flatnonzero(in_val if split == "val" else ~in_val)
        return Images(
            torch.from_numpy(labels[rows]),
            decode=Files(self.folder, names[rows], self.channels, self.limits),
            names=names[rows],
            left_out=left_out if split == "train" else {},
        )

    def _in_val(self, names: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Which images (N,) are of val, bool: at least one of each class, and never all."""
        in_val = np.zeros(len(labels), bool)
        for label, of_class in enumerate(self.classes):
            rows = np.flatnonzero(labels == label)
            if len(rows) < 2:
                raise ValueError(
                    "a class must have two images or more, one of them for val, but got "
                    f"({self.folder / self.place / of_class}: {len(rows)})"
                )
            num = min(max(round(len(rows) * self.val_fraction), 1), len(rows) - 1)
            in_val[sorted(rows, key=lambda row: self._rank(names.item(row)))[:num]] = True
        return in_val

    def _rank(self, name: bytes) -> tuple[bytes, bytes]:
        """By name below the folder of the classes: the same wherever and however it is stored."""
        relative = os.path.relpath(os.fsdecode(name), self.place)
        key = os.fsencode(unicodedata.normalize("NFC", relative))
        return hashlib.sha256(b"%d\0%s" % (self.seed, key)).digest(), key


def unsplit_classes(folder: Path) -> tuple[str, ...]:
    """The class folders of a folder without train/; empty unless each of them holds an image.

    Folders such as training/CLASS are no classes.
    """
    names = _subfolders(folder)
    holds = (any(not why_no_image(file) for file in os.listdir(folder / name)) for name in names)
    return names if all(holds) else ()


def listing(folder: Path) -> str:
    """The first names in a folder."""
    there = sorted(name for name in os.listdir(folder) if not is_hidden(name))
    return f"{', '.join(there[:5]) or 'nothing'}{', ...' * (len(there) > 5)}"


def _subfolders(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_dir() and not is_hidden(entry.name)
        )
    )


# cached: listing a million files takes seconds, and a worker process trains many trials
@functools.lru_cache(4)
def _list(
    folder: Path, split: str, classes: tuple[str, ...], limits: Limits
) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[int, str]]]:
    """File names (N,) and labels (N,), sorted by class and then as torchvision's ImageFolder sorts
    them, and what was left out.

    Names are bytes relative to the folder.
    """
    _check_linked_folders(folder, split, limits)
    label_of = _labels_of(folder, split, classes)
    samples: list[tuple[str, int]] = []
    left_out: dict[str, tuple[int, str]] = {}

    def leave_out(reason: str, path: str) -> None:
        num, first = left_out.get(reason, (0, os.path.relpath(path, folder)))
        left_out[reason] = num + 1, first

    for entry in sorted(os.scandir(folder / split), key=lambda entry: entry.name):
        if entry.name not in label_of:
            leave_out("hidden" if is_hidden(entry.name) else "not in a class folder", entry.path)
    for name, label in label_of.items():
        # os.walk asks for the folders to enter before it enters them
        places: list[tuple[str, list[str]]] = []
        for place, folders, files in os.walk(folder / split / name, followlinks=True):
            for hidden in filter(is_hidden, folders):
                leave_out("hidden", os.path.join(place, hidden))
            folders[:] = [kept for kept in folders if not is_hidden(kept)]
            places.append((place, files))
        for place, files in sorted(places):
            for file in sorted(files):
                path = os.path.join(place, file)
                if reason := why_no_image(file):
                    leave_out(reason, path)
                else:
                    samples.append((path, label))
    # by class; needed because numbered folders are listed alphabetically (10 before 2)
    samples.sort(key=lambda sample: sample[1])
    labels = np.array([label for _, label in samples], np.int64)
    counts = np.bincount(labels, minlength=len(classes))
    for name, label in label_of.items():
        if not counts[label]:
            raise ValueError(
                f"a class folder must hold images, but got ({folder / split / name}: none)"
            )
    names = np.array([os.fsencode(os.path.relpath(path, folder)) for path, _ in samples])
    return names, labels, left_out


def _check_linked_folders(folder: Path, split: str, limits: Limits) -> None:
    """Raises ValueError for links to a folder outside the dataset or to a parent of the link.

    Listing would follow both.
    """
    for parent, names, _ in os.walk(folder / split):
        paths = (os.path.join(parent, name) for name in names)
        for path in (Path(path) for path in paths if os.path.islink(path)):
            check_inside(path, folder, limits)
            if Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(path)):
                raise ValueError(
                    f"a link must not lead around itself, but got ({path}: "
                    f"{os.path.realpath(path)})"
                )
    check_inside(folder / split, folder, limits)


def _labels_of(folder: Path, split: str, classes: tuple[str, ...]) -> dict[str, int]:
    """The label of each class folder of a split.

    Folders named "0", "1", ... are indices (ImageNet-V2), unless those of train are named so, too.
    """
    present = _subfolders(folder / split)
    label_of = {name: label for label, name in enumerate(classes)}
    indices = {str(label) for label in range(len(classes))}
    if set(present) == indices and set(present) != set(classes):
        return {str(label): label for label in range(len(classes))}
    if unknown := [name for name in present if name not in label_of]:
        _check_normalized(unknown, classes, folder / split)
        raise ValueError(
            f"a class must have training images, but got ({folder / split / unknown[0]}: not in "
            "train)"
        )
    if split == "val" and (absent := [name for name in classes if name not in present]):
        raise ValueError(
            f"a class must have evaluation images, but got ({folder / split / absent[0]}: absent)"
        )
    # evaluation sets other than val may have fewer classes
    return {name: label_of[name] for name in present}


def _check_normalized(names: Sequence[str], classes: Sequence[str], folder: Path) -> None:
    """Raises ValueError for a class that is in train in another normalization of Unicode."""
    normalized = {unicodedata.normalize("NFC", name): name for name in classes}
    for name in names:
        if (same := normalized.get(unicodedata.normalize("NFC", name))) is not None:
            raise ValueError(
                "a class must have one spelling, but got two that look alike and differ in Unicode "
                f"normalization ({folder / name}: {name!a}, and in train {same!a})"
            )
