"""Every form of a dataset against the arrays that were
written, torchvision and the published files' layout.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from support.image_sets import (
    CLASSES,
    NUM,
    arrays,
    cifar_parts,
    config_of,
    encode,
    stacked,
    write_cifar100,
    write_folders,
    write_pickles,
)
from support.refusals import refusing
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from vitscale.plan.config import TrainConfig
from vitscale.plan.data import check_readable
from vitscale.train.prepare import Request, prepare
from vitscale.train.sources import load_split, open_folder, parquet
from vitscale.train.sources.images import decode_image
from vitscale.train.sources.split import balanced_order, seats, training_rows

torch.set_num_threads(1)


def write_binary(folder: Path, split: str) -> None:
    images, labels = arrays(split)
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate(
        [labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(NUM, -1)], 1
    )
    for name, rows in cifar_parts(split, "data_batch_{}.bin", "test_batch.bin"):
        (folder / name).write_bytes(records[rows].tobytes())


def write_parquet(folder: Path, split: str, image: str = "image", label: str = "label") -> None:
    """As the library datasets: a struct of bytes and path, the
    features in the metadata, small row groups.
    """
    images, labels = arrays(split)
    folder = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": encode(pixels), "path": f"{i:02d}.png"} for i, pixels in enumerate(images)]
    features = {
        image: {"_type": "Image"},
        label: {"names": [f"c{i}" for i in range(CLASSES)], "_type": "ClassLabel"},
    }
    columns = {
        image: pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        label: pa.array(labels),
    }
    table = pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    name = "validation" if split == "val" else split
    for i, (start, num) in enumerate([(0, 13), (13, 7)]):
        pq.write_table(
            table.slice(start, num), folder / f"{name}-{i:05d}-of-00002.parquet", row_group_size=3
        )


def write_prepared(folder: Path, split: str) -> None:
    raw = folder.parent / "raw" / folder.name
    write_folders(raw, split)
    if split == "val":  # the last: both are there
        # of the other forms' name
        prepare(Request(str(raw), folder.parent, 32, shard_bytes=3 * 3072)).rename(folder)


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "folders": write_folders,
    "cifar-10-batches-py": write_pickles,
    "cifar-10-batches-bin": write_binary,
    "parquet": write_parquet,
    "prepared": write_prepared,
}


@pytest.fixture(scope="module", params=WRITERS)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root where "tiny" lies in one of the forms."""
    root = tmp_path_factory.mktemp(request.param)
    for split in ("train", "val"):
        WRITERS[request.param](root / "tiny", split)
    return root


# --- one content, many forms ----------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_form_gives_the_pixels_and_labels_that_were_written(root: Path, split: str) -> None:
    images, (pixels, labels) = load_split(config_of(), split, root), arrays(split)
    np.testing.assert_array_equal(stacked(images), pixels)
    np.testing.assert_array_equal(images.labels.numpy(), labels)
    assert images.white == 255 and images.allowed is None


def test_every_form_serves_worker_processes(root: Path) -> None:
    """Forked from a process that has read already, and pickled, as for spawned ones."""
    images = load_split(config_of(minival_images=10), "train", root)
    expected = stacked(images)
    reader: Any = images.pixels if images.pixels is not None else Items(images.decode)
    for sent in (reader, pickle.loads(pickle.dumps(reader))):
        loader = DataLoader(sent, batch_size=None, sampler=range(10), num_workers=1)
        np.testing.assert_array_equal(
            torch.stack(list(loader)).permute(0, 2, 3, 1).numpy(), expected
        )


class Items:
    """A decoder as a dataset."""

    def __init__(self, decode: Any) -> None:
        self.decode = decode

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.decode(index)


def test_every_form_is_split_alike(root: Path) -> None:
    pixels, labels = arrays("train")
    config = config_of(minival_images=10, subset_images=10, split_seed=5)
    train, minival = training_rows(labels, config)
    assert (
        set(train) | set(minival) == set(range(NUM))
        and np.bincount(labels[train]).tolist() == [1] * CLASSES
    )
    np.testing.assert_array_equal(stacked(load_split(config, "train", root)), pixels[train])
    np.testing.assert_array_equal(stacked(load_split(config, "minival", root)), pixels[minival])


def test_prepared_pixels_are_indexed_like_a_tensor(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_prepared(tmp_path / "tiny", split)  # files of three images
    config = config_of(minival_images=1, minival_rule="last")
    images = load_split(config, "train", tmp_path).select(np.arange(16))
    whole = torch.from_numpy(arrays("train")[0]).permute(0, 3, 1, 2)[:16]
    assert images.pixels is not None and images.pixels.shape == whole.shape
    for index in (
        3,
        -1,
        slice(2, 9),
        slice(None),
        torch.tensor([15, 0, 0, 7]),
        np.array([5, 4]),
        torch.tensor(6),
    ):
        assert torch.equal(images.pixels[index], whole[index])


@pytest.mark.parametrize("place", ["cifar-100-python", "."])
def test_cifar100_has_its_fine_labels(tmp_path: Path, place: str) -> None:
    for split in ("train", "val"):
        write_cifar100(tmp_path / "tiny" / place, split)
    images = load_split(config_of(), "val", tmp_path)
    assert images.labels.tolist() == arrays("val")[1].tolist()
    with pytest.raises(
        ValueError, match=r"num_classes == 100 must hold for tiny, but got \(num_classes=10\)"
    ):
        load_split(config_of(), "train", tmp_path)


def test_other_parquet_columns_and_a_test_set_alone(tmp_path: Path) -> None:
    write_parquet(tmp_path / "tiny", "train", "img", "fine_label")
    write_parquet(tmp_path / "tiny", "test", "img", "fine_label")
    images = load_split(config_of(), "val", tmp_path)
    np.testing.assert_array_equal(stacked(images), arrays("test")[0])


def test_torchvision_classes_in_memory_and_decoded(tmp_path: Path) -> None:
    """A class with arrays (KMNIST, written as its own idx
    files) and one with image files (Imagenette).
    """
    grey, labels = arrays("train")[0][:, :28, :28, 0], arrays("train")[1]
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train", "t10k"):
        head = bytes([0, 0, 8, 3]) + np.array([NUM, 28, 28], ">i4").tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + grey.tobytes())
        head = bytes([0, 0, 8, 1]) + np.array([NUM], ">i4").tobytes()
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())
    images = load_split(config_of("torchvision:KMNIST", channels=1), "train", tmp_path)
    assert images.pixels is not None and torch.equal(images.pixels[:, 0], torch.from_numpy(grey))
    assert images.labels.tolist() == labels.tolist()
    with refusing("(test)"):
        load_split(config_of("torchvision:KMNIST", channels=1, eval_split="test"), "test", tmp_path)
    wnids = (
        "n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 "
        "n03445777 n03888257"
    )
    for i, wnid in enumerate(wnids.split()):
        for split in ("train", "val"):
            path = tmp_path / "imagenette2" / split / wnid / f"{i}.JPEG"
            path.parent.mkdir(parents=True)
            path.write_bytes(encode(arrays(split)[0][i], "JPEG"))
    images = load_split(config_of("torchvision:Imagenette", num=10), "val", tmp_path)
    assert (
        torch.equal(images[4], decode_image(encode(arrays("val")[0][4], "JPEG"), "", 3))
        and len(images) == 10
    )
    with refusing(tmp_path):
        load_split(config_of("torchvision:SVHN"), "train", tmp_path)
    with refusing("torchvision:Nine"):
        load_split(config_of("torchvision:Nine"), "train", tmp_path)


def test_folders_have_the_order_and_pixels_of_image_folder(tmp_path: Path) -> None:
    """JPEGs of all kinds: grey, CMYK, rotated by EXIF,
    palette PNG; odd extensions; deeper folders.
    """
    rng = np.random.default_rng(0)
    kinds = {
        "a/1.JPEG": "L",
        "a/z/0.jpg": "RGB",
        "a/10.jpg": "CMYK",
        "b/x.Png": "P",
        "b/r.jpg": "EXIF",
    }
    for name, mode in kinds.items():
        path = tmp_path / "odd" / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(rng.integers(0, 256, (9, 14, 3), np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6  # rotate by 90 degrees
        options = {"exif": exif} if mode == "EXIF" else {}
        image.convert("RGB" if mode == "EXIF" else mode).save(path, **options)
    (tmp_path / "odd" / "train" / "a" / "notes.txt").write_text("no image")
    images = load_split(config_of("odd", 5, num_classes=2), "train", tmp_path)
    reference = ImageFolder(tmp_path / "odd" / "train")
    assert images.labels.tolist() == reference.targets == [0, 0, 0, 1, 1]
    for i, (image, _) in enumerate(reference):
        np.testing.assert_array_equal(images[i].permute(1, 2, 0).numpy(), np.asarray(image))


def test_grey_is_asked_for_by_channels(tmp_path: Path) -> None:
    write_folders(tmp_path / "tiny", "train")
    images = load_split(config_of(channels=1), "train", tmp_path)
    expected = Image.fromarray(arrays("train")[0][7]).convert("L")
    np.testing.assert_array_equal(images[7].numpy(), np.asarray(expected)[None])


# --- evaluation sets of ImageNet ------------------------------------------------------------------


def test_numbered_folders_are_indices(tmp_path: Path) -> None:
    """ImageNet-V2: folders "0" to "11" beside twelve named
    classes; sorted as text, "10" would be class 2.
    """
    for label in range(12):
        for place in (f"train/n{label:02d}", f"val/n{label:02d}", f"v2/{label}"):
            path = tmp_path / "tiny" / place / "x.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(encode(np.full((4, 4, 3), label, np.uint8)))
    config = config_of(num=12, num_classes=12, more_evals="v2")
    v2 = load_split(config, "v2", tmp_path)
    assert v2.labels.tolist() == list(range(12)) == [int(v2[i].max()) for i in range(12)]


@pytest.mark.parametrize("form", ["folders", "parquet", "prepared"])
def test_real_labels_are_those_of_the_file_names(tmp_path: Path, form: str) -> None:
    """Names count down while folders count up, so that the two orders differ.

    Beyer et al. 2020: some have no label.
    """
    (raw := tmp_path / "raw" / "tiny").mkdir(parents=True)
    for split in ("train", "val"):
        for label in range(CLASSES):
            path = raw / split / f"c{label}" / f"ILSVRC2012_val_{CLASSES - label:08d}.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(encode(np.full((8, 8, 3), label, np.uint8)))
    # by file name: image i is of class 9 - i
    lists = [[9 - i, i] if i != 3 else [] for i in range(CLASSES)]
    (raw / "real.json").write_text(json.dumps(lists))
    root = tmp_path / "raw"
    if form == "prepared":
        root = prepare(Request(str(raw), tmp_path, 8)).rename(tmp_path / "tiny").parent
    elif form == "parquet":
        root = tmp_path
        for split in ("train", "val"):
            files = sorted((raw / split).rglob("*.png"))
            table = {
                "image": [{"bytes": f.read_bytes(), "path": f.name} for f in files],
                "label": range(CLASSES),
            }
            (root / "tiny").mkdir(exist_ok=True)
            pq.write_table(pa.table(table), root / "tiny" / f"{split}-0.parquet")
        (root / "tiny" / "real.json").write_text(json.dumps(lists))
    real = load_split(config_of(num=CLASSES, more_evals="real"), "real", root)
    assert real.allowed is not None
    assert [row.nonzero().flatten().tolist() for row in real.allowed] == [
        sorted({label, 9 - label}) if label != 6 else [] for label in range(CLASSES)
    ]
    assert real.labels.tolist() == [0, 1, 2, 3, 4, 5, -1, 7, 8, 9]
    assert int(real[8].max()) == 8


# --- splits ---------------------------------------------------------------------------------------


def test_digits_are_the_four_splits_of_always() -> None:
    splits = {
        name: load_split(TrainConfig(), name, None) for name in ("train", "minival", "val", "test")
    }
    assert {name: len(images) for name, images in splits.items()} == dict(
        train=997, minival=200, val=400, test=200
    )
    pixels = np.concatenate(
        [images.pixels[:].numpy() for images in splits.values() if images.pixels is not None]
    )
    whole = load_digits().images.astype(np.uint8)[:, None]
    assert (
        sorted(map(bytes, pixels)) == sorted(map(bytes, whole))
        and splits["val"].white == 16 == whole.max()
    )
    digest = hashlib.sha256(splits["minival"].labels.numpy().astype(np.uint8).tobytes()).hexdigest()
    assert digest[:12] == DIGITS_MINIVAL
    subset = load_split(TrainConfig(subset_images=100), "train", None)
    assert np.bincount(subset.labels).tolist() == pytest.approx([10] * 10, abs=1)


DIGITS_MINIVAL = "2e9cef722155"


@pytest.mark.parametrize(
    "sizes", [[5] * 4, [1, 2, 3, 50], [90, *[1] * 10], [0, 7, 0, 13], [1300, 732, 1000]]
)
def test_seats_are_in_proportion_after_each_one(sizes: list[int]) -> None:
    """Balinski and Young 1975: the quota, rounded down or up, for every number of seats."""
    given = np.array(list(seats(sizes, sum(sizes))))
    counts = np.cumsum(given[:, None] == np.arange(len(sizes)), axis=0)
    quotas = np.arange(1, sum(sizes) + 1)[:, None] * np.array(sizes) / sum(sizes)
    assert (np.abs(counts - quotas) < 1 - 1e-9).all() and counts[-1].tolist() == sizes


def test_subsets_are_nested_and_disjoint_from_minival() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), [5, *[20] * 8, 35]))
    base = config_of(num=200, minival_images=40, split_seed=3)
    minival = set(training_rows(labels, base)[1])
    subsets = [
        set(training_rows(labels, base.replace(subset_images=n))[0]) for n in (7, 40, 100, 159)
    ]
    rest = training_rows(labels, base)[0]
    assert [len(s) for s in subsets] == [7, 40, 100, 159] and len(minival) == 40
    assert all(
        small < large for small, large in zip(subsets, [*subsets[1:], set(rest)], strict=True)
    )
    assert not minival & set(rest) and (np.diff(rest) > 0).all() and len(minival) + len(rest) == 200
    quotas = 40 * np.bincount(labels) / 200
    assert (np.abs(np.bincount(labels[sorted(minival)]) - quotas) < 1).all()
    assert minival != set(training_rows(labels, base.replace(split_seed=4))[1])
    last = training_rows(labels, base.replace(minival_rule="last"))
    assert [part.tolist() for part in last] == [list(range(160)), list(range(160, 200))]


def test_the_balanced_order_is_the_same_everywhere() -> None:
    order = balanced_order(np.arange(1000) % 7, 1000, [0, 1])
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:12] == BALANCED_ORDER


BALANCED_ORDER = "1ea2ebe3d70b"


# --- bad data: one line that names the file -------------------------------------------------------


def refused(root: Path, match: str, split: str = "train", **fields: Any) -> None:
    with pytest.raises(ValueError, match=match) as error:
        stacked(load_split(config_of(**fields), split, root))
    assert "\n" not in str(error.value)


def test_damaged_images_are_named(tmp_path: Path) -> None:
    write_folders(tmp_path / "tiny", "train")
    folder = tmp_path / "tiny" / "train" / "c3"
    whole = encode(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8), "JPEG")
    (folder / "06.png").write_bytes(whole[: len(whole) // 2])
    refused(
        tmp_path, r"an image must be whole, but got \(.*train/c3/06.png: image file is truncated"
    )
    (folder / "06.png").write_text("this is text")
    refused(tmp_path, r"c3/06.png: no known image format\)")


def test_classes_and_counts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_folders(tmp_path / "tiny", split)
    folder = tmp_path / "tiny"
    refused(tmp_path, r"25 training images of tiny must be there, but got \(20\)", num=25)
    refused(
        tmp_path,
        r"num_classes == 10 must hold for tiny, but got \(num_classes=11\)",
        num_classes=11,
    )
    refused(
        tmp_path,
        r"an evaluation set of tiny must be one of train, val, but got \(v2\)",
        "v2",
        eval_split="v2",
    )
    (folder / "val" / "cx").mkdir()
    refused(
        tmp_path, r"a class must have training images, but got \(.*val/cx: not in train\)", "val"
    )
    (folder / "val" / "cx").rename(folder / "val" / "other")
    (folder / "val" / "other").rmdir()
    (folder / "val" / "c9").rename(tmp_path / "c9")
    refused(tmp_path, r"a class must have evaluation images, but got \(.*val/c9: absent\)", "val")
    (folder / "train" / "empty").mkdir()
    refused(tmp_path, r"a class folder must hold images, but got \(.*train/empty: none\)")
    (tmp_path / "none" / "train").mkdir(parents=True)
    refused(
        tmp_path,
        r"a training set must have class folders, but got \(.*none/train: none\)",
        dataset="none",
    )


def test_labels_out_of_range_are_named(tmp_path: Path) -> None:
    write_pickles(tmp_path / "tiny", "train")
    path = tmp_path / "tiny" / "cifar-10-batches-py" / "data_batch_3"
    batch = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps({**batch, "labels": [4, 12, 5, 5]}))
    refused(tmp_path, r"0 <= label < 10 must hold, but got \(train of tiny, image 9: label 12\)")
    path.write_bytes(pickle.dumps({**batch, "labels": [4, 4, 5, 4]}))
    batch.pop("labels")
    path.write_bytes(pickle.dumps(batch))
    refused(tmp_path, r"a CIFAR file must be whole, but got \(.*data_batch_3: KeyError")
    path.write_bytes(b"\x80\x02 no pickle")
    refused(tmp_path, r"a CIFAR file must be whole, but got \(.*data_batch_3: ")


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "tiny", "train")
    path = tmp_path / "tiny" / "data" / "train-00001-of-00002.parquet"
    named = pq.read_schema(path).metadata
    encoded = {"image": [{"bytes": b"?", "path": None}] * 7, "label": arrays("train")[1][13:]}
    pq.write_table(pa.table(encoded).replace_schema_metadata(named), path)
    refused(
        tmp_path,
        r"image must be whole, but got \(.*train-00001-of-00002.parquet, row 0 of row group 0: "
        r"no known",
    )
    parquet._open.cache_clear()  # as in another process
    pq.write_table(pa.table({"picture": [1]}), path)
    refused(
        tmp_path,
        r"all shards must have the same columns, but got \(.*train-00001-of-00002.parquet: "
        r"no image, label\)",
    )
    parquet._open.cache_clear()
    path.write_text("no parquet")
    refused(tmp_path, r"a parquet file must be whole, but got \(.*train-00001-of-00002.parquet: ")


def colours(path: Path, names: list[str], labels: pa.Array | None = None) -> None:
    """A shard of two black and two white images, labelled by the places of their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [
        {"bytes": png(np.full((8, 8), value, np.uint8)), "path": None} for value in (0, 255, 0, 255)
    ]
    own = [names.index(name) for name in ("black", "white")] * 2
    table = pa.table({"image": images, "label": pa.array(own) if labels is None else labels})
    features = {"info": {"features": {"label": {"names": names}}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), path)


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def test_classes_of_shards_are_matched_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "bw"
    colours(folder / "train-00000-of-00002.parquet", ["black", "white"])
    colours(folder / "train-00001-of-00002.parquet", ["white", "black"])
    colours(folder / "validation-00000-of-00001.parquet", ["white", "black"])
    source = open_folder(folder, 1)
    for split in ("train", "val"):
        images = source.read(split)
        for index in range(len(images)):
            assert images.labels[index] == (images[index].max() > 0)
    parquet._open.cache_clear()
    colours(folder / "validation-00000-of-00001.parquet", ["black", "white", "red"])
    with refusing("validation"):
        open_folder(folder, 1).read("val")


@pytest.mark.parametrize(
    "names",
    [
        ["train-00000-of-00003", "train-00002-of-00003"],
        ["train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"],
        ["train-00000-of-00001", "train-more"],
    ],
)
def test_shards_of_n_are_all_there_once(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        colours(tmp_path / f"{name}.parquet", ["black", "white"])
    with refusing(tmp_path, f"{len(names)} files"):
        open_folder(tmp_path, 1)


@pytest.mark.parametrize(
    "labels", [["a", "b"] * 2, [0.4, 1.7] * 2, [True, False] * 2, [[0], [1]] * 2], ids=str
)
def test_labels_that_are_no_numbers_of_classes_are_refused(tmp_path: Path, labels: Any) -> None:
    column = pa.array(labels)
    colours(tmp_path / "train-0.parquet", ["black", "white"], column)
    with refusing(f"column 'label' of type {str(column.type)[:4]}"):
        open_folder(tmp_path, 1).read("train")


def test_what_is_no_image_is_left_out_and_counted_at_every_level(tmp_path: Path) -> None:
    pixels, folder = np.zeros((4, 4), np.uint8), tmp_path / "set"
    for name in ("a", "b"):
        for place in (f"train/{name}", f"train/{name}/.hidden", f"train/{name}/@eaDir/x"):
            (folder / place).mkdir(parents=True)
            (folder / place / "0.png").write_bytes(png(pixels))
    for place in ("train/.x", "train/__MACOSX/a", "__MACOSX/a", ".y/a"):
        (folder / place).mkdir(parents=True)
        (folder / place / "0.png").write_bytes(png(pixels))
    for name in ("._0.png", "Thumbs.db", "notes", "1.GIF", "2.jfif", "3.avif", "4.jp2"):
        (folder / "train" / "a" / name).write_bytes(b"")
    source = open_folder(folder, 1)
    images = source.read("train")
    assert source.splits == ("train",) and source.classes == ("a", "b")
    assert images.names is not None
    assert [name.decode() for name in images.names] == [
        *(f"train/a/{name}" for name in ("0.png", "1.GIF", "2.jfif", "3.avif", "4.jp2")),
        "train/b/0.png",
    ]
    assert {reason: num for reason, (num, _) in images.left_out.items()} == {
        "hidden": 7,
        "not an image format (.db)": 1,
        "not an image format (no ending)": 1,
    }


def test_sixteen_bits_have_their_high_byte_and_other_numbers_are_refused() -> None:
    ramp = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    for kind in ("PNG", "TIFF"):
        content = io.BytesIO()
        Image.fromarray(ramp).save(content, kind)
        decoded = decode_image(content.getvalue(), kind, 1)[0].numpy()
        assert np.array_equal(decoded, ramp >> 8)
    content = io.BytesIO()
    Image.fromarray(ramp.astype(np.float32)).save(content, "TIFF")
    with refusing("x.tif: mode F"):
        decode_image(content.getvalue(), "x.tif", 1)
    with refusing("20000 x 1 pixels"):
        decode_image(png(np.zeros((1, 20_000), np.uint8)), "line.png", 1)


def test_names_of_classes_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    for split, name in (("train", "caf\u00e9"), ("val", "cafe\u0301")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "0.png").write_bytes(png(np.zeros((4, 4), np.uint8)))
    with refusing(r"cafe\u0301", r"caf\xe9"):
        open_folder(tmp_path, 1).read("val")


def test_the_plan_says_what_there_is(tmp_path: Path) -> None:
    check_readable("digits")
    (tmp_path / "other").mkdir()
    lines = [
        ("tiny", "", r"a data root must be given .*\(dataset='tiny'\)"),
        ("tiny", str(tmp_path / "no"), "the data root must be a folder"),
        ("tiny", str(tmp_path), r"dataset='tiny', root='.*'; there are: other\)"),
    ]
    for dataset, root, line in lines:
        with pytest.raises(ValueError, match=line) as error:
            check_readable(dataset, root)
        assert "\n" not in str(error.value)
    write_folders(tmp_path / "tiny", "train")
    check_readable("tiny", str(tmp_path))
