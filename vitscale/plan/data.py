"""The datasets at a data root, checked before the first trial starts and again by the trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vitscale.catalog.datasets import dataset_facts
from vitscale.plan.config import TrainConfig
from vitscale.plan.parts import is_part
from vitscale.plan.paths import path_of

EMBEDDED = {"digits": 8}  # dataset in scikit-learn, which needs no root -> pixels per side
TORCHVISION = "torchvision:"
MANIFEST = "manifest.json"  # written last: a prepared set without one is unfinished
BEGUN = "prepare.json"  # written first
# Beyer et al. 2020: for each image of val, in the order of file names, its list of labels
REAL = "real.json"
CIFAR = {  # official folder: (the dataset's name, a file that identifies it)
    "cifar-10-batches-py": ("cifar10", "data_batch_1"),
    "cifar-10-batches-bin": ("cifar10", "data_batch_1.bin"),
    "cifar-100-python": ("cifar100", "train"),
    "cifar-100-binary": ("cifar100", "train.bin"),
}
SHARD = re.compile(r"(train|validation|val|test)-.*\.parquet")
IDX = "train-images-idx3-ubyte"  # by which to know the IDX files of MNIST's form, gzipped or not
# Dataset -> where else its files may be: torchvision's folder under the data root, the folder of
# Debian's package, and the command that installs the package
INSTALLED = {
    "fashion_mnist": (
        "FashionMNIST",
        "/usr/share/datasets/fashion-mnist",
        "apt-get install -y dataset-fashion-mnist",
    ),
}


class Layout(NamedTuple):
    """The format of a dataset in a folder."""

    # "prepared", a key of CIFAR, "idx", "folders", "parquet"; or "unfinished", a prepared set
    kind: str
    folder: Path


def layout_of(folder: Path) -> Layout | None:
    """The format of the dataset in a folder, or None.

    The official subfolders ("cifar-10-batches-py", "data") are searched, too.
    """
    for name, kind in ((MANIFEST, "prepared"), (BEGUN, "unfinished")):
        if (folder / name).is_file():
            return Layout(kind, folder)
    for kind, (_, mark) in CIFAR.items():
        for place in (folder, folder / kind):
            if (place / mark).is_file():
                return Layout(kind, place)
    for place in (folder, folder / "raw"):
        if idx_file(place, IDX):
            return Layout("idx", place)
    if (folder / "train").is_dir():
        return Layout("folders", folder)
    for place in (folder, folder / "data"):
        if place.is_dir() and any(SHARD.fullmatch(path.name) for path in place.iterdir()):
            return Layout("parquet", place)
    return None


def idx_file(folder: Path, name: str) -> Path | None:
    """An IDX file by its official name, unpacked or gzipped; None if there is neither."""
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def folder_of(dataset: str, root: str) -> Path | None:
    """The folder of a dataset: root/NAME, or where else its files are installed; None without a
    root.
    """
    places = [Path(root) / dataset] if root else []
    if dataset in INSTALLED:
        by_torchvision, by_system, _ = INSTALLED[dataset]
        places += [Path(root) / by_torchvision] if root else []
        places.append(Path(by_system))
    return next((place for place in places if layout_of(place)), places[0] if places else None)


def check_readable(dataset: str, root: str = "") -> None:
    """Raises ValueError for a dataset that the trainer cannot find.

    The message lists what the root contains. Only file names are read: a damaged image is found
    when it is decoded.
    """
    if dataset in EMBEDDED or is_part(dataset):
        return
    installed = dataset in INSTALLED
    if not root and not installed:
        raise ValueError(
            "a data root must be given for a dataset other than digits, but got "
            f"(dataset={dataset!r}); name it with --data-root or "
            "VITSCALE_DATA"
        )
    if root and not Path(root).is_dir():
        raise ValueError(f"the data root must be a folder, but got (root={root!r})")
    if dataset.startswith(TORCHVISION):
        return
    folder = folder_of(dataset, root)
    layout = layout_of(folder) if folder else None
    if layout is None and installed:
        raise ValueError(_not_installed(dataset, root))
    if layout is None:
        raise ValueError(
            "a dataset must lie at root/name as a prepared set, class folders, parquet shards, "
            f"IDX or CIFAR's files, but got (dataset={dataset!r}, root={root!r}; there are: "
            f"{_listing(Path(root))})"
        )
    if layout.kind == "unfinished":
        raise ValueError(
            f"a prepared set must be finished, but got ({layout.folder}); run the same `vitscale "
            "prepare` again"
        )


def _not_installed(dataset: str, root: str) -> str:
    by_torchvision, by_system, command = INSTALLED[dataset]
    at_root = [str(Path(root) / name) for name in (dataset, by_torchvision)] if root else []
    return (
        f"the files of {dataset} must be there, but got none (at {', '.join([*at_root, by_system])}"
        f"); `{command}` gets them on Debian and Ubuntu"
    )


def facts(folder: str | Path) -> dict[str, Any]:
    """The fields of a config that a prepared set determines.

    These are dataset, num_images, num_classes, channels and resolution, for use as
    `TrainConfig(**facts("data/flowers-64"))`, where the folder was written by `vitscale prepare`.
    For a dataset that vitscale.catalog.datasets knows, num_images is left out. Raises ValueError
    for a folder that is not such a set.
    """
    path = path_of(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        fields: dict[str, Any] = {
            "dataset": path.parent.name,
            "num_images": int(manifest["splits"]["train"]["num_images"]),
            "num_classes": len(manifest["classes"] or ()) or int(manifest["num_classes"]),
            "channels": int(manifest["channels"]),
            "resolution": int(manifest["size"]),
        }
    except FileNotFoundError:
        raise ValueError(
            "facts must be of a set that `vitscale prepare` wrote, but got "
            f"({path}: no file); relative paths begin where the study is started"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"a manifest must name classes, size and a train split, but got ({path}: {error!r})"
        ) from None
    if dataset_facts(fields["dataset"]):
        del fields["num_images"]
    return fields


def check_embedded(configs: Iterable[TrainConfig]) -> None:
    """Raises ValueError if the crop of a config cannot produce its resolution.

    The configs are those of an embedded dataset.
    """
    for config in configs:
        size = EMBEDDED[config.dataset]
        if config.crop == "pad" and config.resolution != size:
            raise ValueError(
                "resolution == height == width must hold for the crop pad, but got (dataset="
                f"{config.dataset!r}, resolution={config.resolution}, height={size}, width={size})"
            )


def _listing(root: Path, limit: int = 20) -> str:
    """The names in a folder, at most `limit` of them, and how many more there are."""
    names = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
    return (
        ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
        or "nothing"
    )
