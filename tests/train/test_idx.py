"""IDX files, as Fashion-MNIST has them: small ones of the same format, and the real ones where
Debian's package is installed.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusals import refusing

from vitscale.plan import data
from vitscale.plan.config import TrainConfig
from vitscale.plan.data import INSTALLED, check_readable, folder_of
from vitscale.train.prepare import Request, prepare
from vitscale.train.sources import load_split
from vitscale.train.sources.idx import read_idx

REAL = Path(INSTALLED["fashion_mnist"][1])
NUM = {"train": 40, "t10k": 20}
TRAIN_IMAGES = "train-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    """As the format's page describes it."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(
    folder: Path, zipped: bool = True, num: dict[str, int] = NUM
) -> dict[str, np.ndarray]:
    """Files of a small set of 6x6 images and 4 classes; returns the arrays by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, arrays = np.random.default_rng(0), {}
    for prefix, count in num.items():
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 6, 6))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(count) % 4
    for name, array in arrays.items():
        content = idx(array)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return arrays


def config(**fields: object) -> TrainConfig:
    small = {"num_images": 40, "num_classes": 4, "resolution": 6, "batch_size": 8}
    return TrainConfig(**{"dataset": "small", **small, **fields})


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["", "raw"])
def test_images_and_labels_are_those_that_were_written(
    tmp_path: Path, zipped: bool, place: str
) -> None:
    arrays = write_idx(tmp_path / "small" / place, zipped)
    for split, prefix in (("train", "train"), ("val", "t10k")):
        images = load_split(config(), split, tmp_path)
        assert images.labels.tolist() == arrays[f"{prefix}-labels-idx1-ubyte"].tolist()
        assert isinstance(images.pixels, torch.Tensor)
        assert np.array_equal(images.pixels[:, 0], arrays[f"{prefix}-images-idx3-ubyte"])


def test_they_are_those_that_torchvision_reads(tmp_path: Path) -> None:
    from torchvision.datasets import FashionMNIST

    raw = tmp_path / "FashionMNIST" / "raw"
    write_idx(raw, zipped=False)
    assert folder_of("fashion_mnist", str(tmp_path)) == raw.parent
    for prefix in NUM:
        theirs = FashionMNIST(str(tmp_path), train=prefix == "train")
        images = read_idx(raw / f"{prefix}-images-idx3-ubyte", 3)
        labels = read_idx(raw / f"{prefix}-labels-idx1-ubyte", 1)
        assert np.array_equal(theirs.data.numpy(), images)
        assert theirs.targets.tolist() == labels.tolist()


def test_a_set_of_idx_files_is_prepared_like_others(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path / "source" / "small")
    folder = prepare(Request(str(tmp_path / "source/small"), tmp_path, 6, channels=1))
    images = load_split(config(dataset=folder.name), "train", tmp_path)
    assert np.array_equal(images[7][0], arrays[TRAIN_IMAGES][7])


def damaged(change: str, content: bytes) -> bytes:
    match change:
        case "magic":
            return b"\x00\x00\x0d\x03" + content[4:]  # of floats
        case "dimensions":
            return b"\x00\x00\x08\x01" + content[4:]
        case "empty":
            return b""
        case "header":
            return content[:9]
        case "truncated":
            return content[:-1]
        case "trailing":
            return content + b"\x00"
        case "huge":  # a damaged count must not reserve its memory
            return content[:4] + b"\xff\xff\xff\xff" * 3 + content[16:]
    raise AssertionError(change)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("change", "law"),
    [
        ("magic", "must begin with 00000803, but got"),
        ("dimensions", "must begin with 00000803, but got"),
        ("empty", "must begin with 00000803, but got"),
        ("header", "ends in its header"),
        ("truncated", r"of shape \(40, 6, 6\) must hold 1440 bytes after its header, but got"),
        ("trailing", r"of shape \(40, 6, 6\) must end after 1440 bytes, but got"),
        ("huge", "truncated"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(
    tmp_path: Path, zipped: bool, change: str, law: str
) -> None:
    arrays = write_idx(tmp_path / "small", zipped)
    path = tmp_path / "small" / (f"{TRAIN_IMAGES}.gz" if zipped else TRAIN_IMAGES)
    content = damaged(change, idx(arrays[TRAIN_IMAGES]))
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(ValueError, match=law) as error:
        load_split(config(), "train", tmp_path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["cut", "flipped", "plain"])
def test_a_damaged_gzip_file_is_named_in_one_line(tmp_path: Path, change: str) -> None:
    arrays = write_idx(tmp_path / "small")
    path = tmp_path / "small" / f"{TRAIN_IMAGES}.gz"
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    plain = idx(arrays[TRAIN_IMAGES])
    path.write_bytes({"cut": content[:middle], "flipped": flipped, "plain": plain}[change])
    with refusing("small/train-images-idx3-ubyte.gz: ") as error:
        load_split(config(), "train", tmp_path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_files_and_unequal_counts_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "small")
    labels = tmp_path / "small" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.arange(39) % 4)))
    with refusing("39 labels, 40 images"):
        load_split(config(), "train", tmp_path)
    labels.unlink()
    with refusing("train-labels-idx1-ubyte[.gz]: no file"):
        load_split(config(), "train", tmp_path)


def test_another_number_of_images_or_classes_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "small")
    with pytest.raises(ValueError, match=r"41 training images .* but got \(40\)"):
        load_split(config(num_images=41), "train", tmp_path)
    with pytest.raises(ValueError, match="0 <= label < 3 must hold, but got"):
        load_split(config(num_classes=3), "train", tmp_path)
    write_idx(tmp_path / "fashion_mnist")
    known = {"dataset": "fashion_mnist", "num_images": 0, "num_classes": 10, "resolution": 28}
    with pytest.raises(ValueError, match=r"60000 training images of fashion_mnist .*\(40\)"):
        load_split(config(**known), "train", tmp_path)


def test_files_that_are_nowhere_are_said_with_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_torchvision, _, command = INSTALLED["fashion_mnist"]
    places = {"fashion_mnist": (by_torchvision, str(tmp_path / "none"), command)}
    monkeypatch.setattr(data, "INSTALLED", places)
    for root in ("", str(tmp_path)):
        with pytest.raises(ValueError, match="`apt-get install -y dataset-fashion-mnist`") as error:
            check_readable("fashion_mnist", root)
        assert "\n" not in str(error.value) and str(tmp_path / "none") in str(error.value)
    with refusing("nowhere"):
        check_readable("fashion_mnist", str(tmp_path / "nowhere"))
    write_idx(tmp_path / "FashionMNIST" / "raw")
    check_readable("fashion_mnist", str(tmp_path))
    write_idx(tmp_path / "fashion_mnist")  # one's own under the dataset's name comes first
    assert folder_of("fashion_mnist", str(tmp_path)) == tmp_path / "fashion_mnist"


installed = pytest.mark.skipif(not REAL.is_dir(), reason="dataset-fashion-mnist is not installed")


@installed
def test_the_real_set_has_the_counts_and_statistics_of_the_catalog() -> None:
    from vitscale.catalog.datasets import DATASETS

    facts = DATASETS["fashion_mnist"]
    fields = {"dataset": "fashion_mnist", "num_images": 0, "num_classes": 10, "resolution": 28}
    train, val = (load_split(config(**fields), split, None) for split in ("train", "val"))
    for images, num in ((train, facts.num_train), (val, 10_000)):
        assert torch.bincount(images.labels).tolist() == [num // 10] * 10  # balanced (Xiao 2017)
        assert images[0].shape == (1, 28, 28)
    # the first labels of the published files
    assert train.labels[:8].tolist() == [9, 0, 0, 3, 0, 2, 7, 2]
    assert isinstance(train.pixels, torch.Tensor)
    counts, values = np.bincount(train.pixels.numpy().ravel()), np.arange(256) / 255
    mean = np.average(values, weights=counts)
    std = np.average((values - mean) ** 2, weights=counts) ** 0.5
    assert (mean, std) == pytest.approx((facts.mean[0], facts.std[0]), abs=1e-7)


@installed
def test_ten_thousand_of_the_real_set_are_a_second_evaluation_set() -> None:
    fields = {"dataset": "fashion_mnist", "num_images": 0, "num_classes": 10, "resolution": 28}
    held_out = config(**fields, minival_images=10_000, more_evals="minival")
    assert held_out.evals == ("val", "minival") and held_out.num_train == 50_000
    train, minival = (load_split(held_out, split, None) for split in ("train", "minival"))
    assert torch.bincount(train.labels).tolist() == [5_000] * 10
    assert torch.bincount(minival.labels).tolist() == [1_000] * 10
