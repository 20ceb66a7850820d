"""Datasets read by a class of torchvision, such as "torchvision:SVHN"."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitscale.plan.data import CIFAR
from vitscale.train.sources.cifar import Cifar
from vitscale.train.sources.images import MODES, Digest, Images, Source, to_tensor

# Our name of a split -> torchvision's; a test set is called val if there is no validation set.
SPLITS = {"train": ("train", "trainval"), "val": ("val", "valid", "test"), "test": ("test",)}
CIFAR_FOLDERS = {"CIFAR10": "cifar-10-batches-py", "CIFAR100": "cifar-100-python"}


def open_class(name: str, root: Path, channels: int) -> Source:
    """The source of torchvision:NAME.

    CIFAR's pickles are read by our own reader, which admits only arrays.
    """
    if name not in CIFAR_FOLDERS:
        return TorchvisionClass(name, root, channels)
    kind = CIFAR_FOLDERS[name]
    if not (root / kind / CIFAR[kind][1]).is_file():
        raise ValueError(
            f"the files of torchvision:{name} must be there, but got ({root / kind}: none)"
        )
    return Cifar(kind, root / kind)


class TorchvisionClass:
    """A torchvision dataset class with an argument `train` or `split`.

    Its files must exist already: nothing is downloaded.
    """

    def __init__(self, name: str, root: Path, channels: int) -> None:
        import torchvision.datasets

        cls = getattr(torchvision.datasets, name, None)
        if not inspect.isclass(cls) or not {"train", "split"} & set(_arguments(cls)):
            law = "a class of torchvision.datasets with an argument train or split"
            raise ValueError(f"{law} must be named, but got (torchvision:{name})")
        if _unpickles(cls):
            raise ValueError(
                f"a dataset must be read without pickle, which may run any code, but got ({cls})"
            )
        if cls.__module__.partition(".")[0] != "torchvision":
            raise ValueError(
                "torchvision:NAME must name a class that torchvision itself defines, since workers "
                f"do not run the study's script, but got ({name}, defined in {cls.__module__})"
            )
        self.name, self.root, self.channels = name, root, channels
        self.cls: Any = cls
        self.made: dict[str, tuple[str, Any]] = {}

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        if "train" in _arguments(self.cls):
            return ("train", "val")
        return ("train", "val") if self._make("val")[0] == "test" else ("train", "val", "test")

    @functools.cached_property
    def classes(self) -> tuple[str, ...] | None:
        named = getattr(self._make("train")[1], "classes", None)
        return tuple(map(str, named)) if named else None

    def _make(self, split: str) -> tuple[str, Any]:
        """(torchvision's name of a split, the dataset), constructed once."""
        if split not in self.made:
            self.made[split] = self._open(split)
        return self.made[split]

    def _open(self, split: str) -> tuple[str, Any]:
        """Raises ValueError if the files do not exist, or the class has no such split."""
        for name in SPLITS[split]:
            try:
                by_flag = "train" in _arguments(self.cls)
                return name, self.cls(
                    str(self.root), **({"train": split == "train"} if by_flag else {"split": name})
                )
            except ValueError:
                continue  # no such split
            except (RuntimeError, TypeError) as error:
                law = (
                    f"the files of torchvision:{self.name} must be there, as torchvision's own "
                    "download lays them out, unpacked"
                )
                reason = str(error).splitlines()[0].partition(" You can use download")[0]
                raise ValueError(f"{law}, but got ({self.root}: {reason})") from error
        raise ValueError(f"torchvision:{self.name} must have the split, but got ({split})")

    def read(self, split: str) -> Images:
        """All images, as one array if the class has one, otherwise decoded one at a time."""
        _, dataset = self._make(split)
        labels, pixels = torch.from_numpy(_labels(dataset)), _pixels(dataset)
        if pixels is not None:
            return Images(labels, pixels)
        return Images(labels, decode=Items(dataset, self.channels))


@dataclass(frozen=True)
class Items:
    """A decoder of the images of a torchvision dataset."""

    dataset: Any
    channels: int

    def __call__(self, index: int) -> Tensor:
        try:
            image = self.dataset[index][0].convert(MODES[self.channels])
        except Exception as error:
            if getattr(error, "errno", None):
                raise
            raise ValueError(
                f"an image must be whole, but got ({self.dataset!r:.60}, image {index}: {error})"
            ) from error
        return to_tensor(np.array(image))

    def update(self, digest: Digest) -> None:
        """Adds the pixels of all images to a digest."""
        for index in range(len(self.dataset)):
            digest.update(self(index).numpy().tobytes())


def _unpickles(cls: type) -> bool:
    """Whether the module of a class, or of one of its base classes, imports pickle."""
    return any(hasattr(sys.modules[base.__module__], "pickle") for base in inspect.getmro(cls))


def _arguments(cls: Any) -> list[str]:
    """Names of the arguments of a class and of its base classes, to which it passes keywords."""
    return [
        name for base in inspect.getmro(cls)[:-1] for name in inspect.signature(base).parameters
    ]


def _labels(dataset: Any) -> np.ndarray:
    """Labels (N,) int64 of a torchvision dataset.

    The attributes are no public interface of torchvision, so they are compared with some items.
    """
    for name in ("targets", "labels", "_labels", "_samples"):
        values = getattr(dataset, name, None)
        if values is None or len(values) != len(dataset):
            continue
        labels = np.asarray([row[1] for row in values] if name == "_samples" else values)
        checked = sorted({0, len(dataset) // 2, len(dataset) - 1})
        if labels.ndim == 1 and all(int(labels[i]) == int(dataset[i][1]) for i in checked):
            return labels.astype(np.int64)
    return np.array([int(dataset[i][1]) for i in range(len(dataset))], np.int64)


def _pixels(dataset: Any) -> Tensor | None:
    """Pixels (N, C, S, S) uint8 if the dataset holds such an array in a known layout, or None."""
    data = getattr(dataset, "data", None)
    if not isinstance(data, np.ndarray | Tensor) or len(data) != len(dataset):
        return None
    array = np.asarray(data)
    first = to_tensor(np.array(dataset[0][0])).numpy()
    for ordered in (array[:, None], array, np.moveaxis(array, -1, 1)):
        if (
            array.dtype == np.uint8
            and ordered[0].shape == first.shape
            and np.array_equal(ordered[0], first)
        ):
            return torch.from_numpy(np.ascontiguousarray(ordered))
    return None
