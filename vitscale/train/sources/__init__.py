"""One interface over all datasets: `load_split` returns the images of a split."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch

from vitscale.catalog.datasets import dataset_facts
from vitscale.plan.config import TrainConfig
from vitscale.plan.data import (
    CIFAR,
    EMBEDDED,
    REAL,
    TORCHVISION,
    check_readable,
    folder_of,
    layout_of,
)
from vitscale.plan.parts import is_part
from vitscale.train.sources.cifar import Cifar
from vitscale.train.sources.digits import Digits
from vitscale.train.sources.folders import Folders, listing, unsplit_classes
from vitscale.train.sources.idx import Idx
from vitscale.train.sources.images import LIMITS, Images, Limits, Source
from vitscale.train.sources.parquet import Parquet
from vitscale.train.sources.prepared import Prepared
from vitscale.train.sources.shards import Shards
from vitscale.train.sources.split import training_rows
from vitscale.train.sources.torchvision_class import open_class

__all__ = ["Images", "Shards", "Source", "load_other", "load_split", "open_folder", "read_real"]


def load_split(config: TrainConfig, split: str, root: Path | None) -> Images:
    """The images of "train", "minival" or an evaluation set of the dataset in the folder root/NAME.

    Images that do not fit in memory stay on disk: `pixels` is memory-mapped, or `decode` reads one
    at a time. Raises ValueError for a dataset that cannot be read or does not match the config:
    another number of training images, other classes or channels, or no such split.
    """
    if is_part(config.dataset):
        from vitscale.train.parts import OwnImages

        source: Source = OwnImages(config, root)
        real = None
    else:
        source, real = _open(config.dataset, config.channels, root)
    facts = dataset_facts(config.dataset)
    if split == "train" or (split == "minival" and not (facts and facts.own_minival)):
        whole = source.read("train")
        _check_training_set(whole, source, config)
        train, minival = training_rows(whole.labels.numpy(), config)
        if config.minival_images:
            _check_classes(whole.labels.numpy()[train], config)
        return whole.select(train if split == "train" else minival)
    if split == "real" and real is not None and "val" in source.splits:
        return read_real(_checked(source.read("val"), "val", config), real, config.num_classes)
    if split not in source.splits:
        law = f"an evaluation set of {config.dataset} must be one of {', '.join(source.splits)}"
        raise ValueError(f"{law}, but got ({split})")
    return _checked(source.read(split), split, config)


def load_other(dataset: str, split: str, config: TrainConfig, root: Path | None) -> Images:
    """The images of a split of another dataset with the classes of the config's, which it must have
    in the same order.

    Names of classes are compared where both datasets are at the root and both have names. Raises
    ValueError for a dataset that cannot be read, no such split, other classes or channels.
    """
    source, _ = _open(dataset, config.channels, root)
    facts, num = dataset_facts(dataset), config.num_classes
    if split not in source.splits:
        law = f"a split of {dataset} must be one of {', '.join(source.splits)}"
        raise ValueError(f"{law}, but got ({split})")
    images = source.read(split)
    theirs = facts.num_classes if facts else len(source.classes or ()) or num
    if theirs != num:
        law = f"the classes of {dataset} must be the {num} of {config.dataset}"
        raise ValueError(f"{law}, but got ({theirs} classes)")
    own = _class_names(config, root)
    if own and source.classes and _are_names(source.classes) and own != source.classes:
        first = next(pair for pair in zip(source.classes, own, strict=True) if pair[0] != pair[1])
        law = f"the classes of {dataset} must be those of {config.dataset}, in their order"
        raise ValueError(f"{law}, but got ({first[0]!r} for {first[1]!r})")
    return _checked(images, split, config, dataset)


def _class_names(config: TrainConfig, root: Path | None) -> tuple[str, ...] | None:
    """Names of the classes that a config trains on; None where its dataset is not at the root, or
    numbers its classes.
    """
    try:
        classes = _open(config.dataset, config.channels, root)[0].classes
    except ValueError:  # an evaluation elsewhere does not need the training images
        return None
    return classes if classes and _are_names(classes) else None


def _are_names(classes: tuple[str, ...]) -> bool:
    return not all(name.isdigit() for name in classes)


def _open(dataset: str, channels: int, root: Path | None) -> tuple[Source, Path | None]:
    """(the source of a dataset, the file of its ReaL labels if there is one)."""
    check_readable(dataset, str(root or ""))
    if dataset in EMBEDDED:
        return Digits(), None
    if dataset.startswith(TORCHVISION):
        assert root is not None
        return open_class(dataset.removeprefix(TORCHVISION), root, channels), None
    folder = folder_of(dataset, str(root or ""))
    assert folder is not None
    return open_folder(folder, channels), folder / REAL if (folder / REAL).exists() else None


def open_folder(folder: Path, channels: int, limits: Limits = LIMITS) -> Source:
    """The source in a folder; image files are decoded to `channels` (1 gray, 3 RGB)."""
    layout = layout_of(folder)
    if layout is None:
        unsplit = unsplit_classes(folder)
        raise ValueError(
            "a dataset must be class folders train/CLASS and val/CLASS, parquet shards, IDX or "
            f"CIFAR's files, or a prepared set, but got ({folder}: no train/; there are: "
            f"{listing(folder)})"
            + "; `vitscale prepare --val-fraction 0.2` makes train and val of class folders"
            * bool(unsplit)
        )
    if layout.kind == "unfinished":
        raise ValueError(f"a prepared set must be finished, but got ({folder})")
    if layout.kind in CIFAR:
        return Cifar(layout.kind, layout.folder)
    if layout.kind == "prepared":
        return Prepared(layout.folder)
    if layout.kind == "idx":
        return Idx(layout.folder)
    kind = Folders if layout.kind == "folders" else Parquet
    return kind(layout.folder, channels, limits)


def read_real(val: Images, path: Path, num_classes: int) -> Images:
    """The val images with the ReaL labels of Beyer et al. 2020.

    `allowed` holds the ReaL labels; `labels` keeps the original label, or is -1 for images without
    ReaL labels. The file has one list of labels per image, in the order of file names.
    """
    lists = json.loads(path.read_text())
    if val.names is None or len(lists) != len(val):
        raise ValueError(
            f"labels for {len(val)} named images of val must be there, but got ({path}: "
            f"{len(lists)})"
        )
    allowed = torch.zeros(len(val), num_classes, dtype=torch.bool)
    order = np.argsort([os.path.basename(name) for name in val.names.tolist()], kind="stable")
    for index, labels in zip(order.tolist(), lists, strict=True):
        if any(not 0 <= label < num_classes for label in labels):
            raise ValueError(
                f"0 <= label < {num_classes} must hold, but got ({path}: {labels}, "
                f"{val.name(index)})"
            )
        allowed[index, labels] = True
    labels = torch.where(allowed.any(1), val.labels, -1)
    return Images(labels, val.pixels, val.decode, val.white, allowed, val.names)


def _check_training_set(train: Images, source: Source, config: TrainConfig) -> None:
    """Raises ValueError unless the training set has the config's number of images and classes."""
    facts = dataset_facts(config.dataset)
    num = facts.num_train if facts else config.num_images
    if len(train) != num:
        hint = (
            "; a dataset with other images needs a name of its own, and num_images" if facts else ""
        )
        raise ValueError(
            f"{num} training images of {config.dataset} must be there, but got ({len(train)}){hint}"
        )
    if source.classes is not None and len(source.classes) != config.num_classes:
        law = f"num_classes == {len(source.classes)} must hold for {config.dataset}"
        raise ValueError(f"{law}, but got (num_classes={config.num_classes})")
    _checked(train, "train", config)
    counts = np.bincount(train.labels.numpy(), minlength=config.num_classes)
    if empty := np.flatnonzero(counts == 0).tolist():
        raise ValueError(
            f"a class must have training images, but got (class {empty[0]} of {config.dataset}: "
            "none)"
        )


def _check_classes(labels: np.ndarray, config: TrainConfig) -> None:
    """Raises ValueError if a minival took all images of a class.

    The rule "last" does so on class folders, whose images are ordered by class.
    """
    if lost := np.flatnonzero(np.bincount(labels, minlength=config.num_classes) == 0).tolist():
        raise ValueError(
            "a class must keep training images, and minival_rule='stratified' takes a share of "
            f"each, but got (minival_rule={config.minival_rule!r}, "
            f"minival_images={config.minival_images}, class {lost[0]}: none)"
        )


def _checked(images: Images, split: str, config: TrainConfig, dataset: str = "") -> Images:
    """Returns the images unchanged after checking them.

    Raises ValueError if there are none, a label is out of range or the number of channels differs.
    """
    dataset = dataset or config.dataset
    if not len(images):
        raise ValueError(f"a split must have images, but got ({split} of {dataset}: none)")
    wrong = (
        ((images.labels < 0) | (images.labels >= config.num_classes)).nonzero().flatten().tolist()
    )
    if wrong:
        label, name = int(images.labels[wrong[0]]), images.name(wrong[0])
        law = f"0 <= label < {config.num_classes} must hold"
        raise ValueError(f"{law}, but got ({split} of {dataset}, {name}: label {label})")
    if images.pixels is not None and images.pixels.shape[1] != config.channels:
        law = f"channels == {images.pixels.shape[1]} must hold for {dataset}"
        raise ValueError(f"{law}, but got (channels={config.channels})")
    return images
