"""How many training images per second does one core read and crop?

Contestants read the same 400 JPEGs of 500 x 375 pixels (quality 90, crops of scikit-learn's two
photographs), draw a random resized crop to 224 (bicubic, antialiased), flip half of them and stack
batches of 100. All run in this process on one thread, in turns, with everything in the page cache:
the numbers are of computing and not of a disk.

    prepared            a prepared set of 256 x 256, mapped, cropped one by one
    folders             the JPEG files, in class folders
    parquet             the same files in parquet shards, row groups of 100, in order and shuffled
    timm                ImageFolder and create_transform as timm's loader uses it: uint8
    torchvision         ImageFolder and torchvision's transforms on Pillow images, uint8 too
    torchvision, float  the same, normalised image by image, as its reference scripts do

    python benchmarks/data.py  # about 1 minute, on a quiet machine
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitscale.plan.config import TrainConfig
from vitscale.train.augment import crop_boxes, crop_encoded
from vitscale.train.prepare import Request, prepare
from vitscale.train.sources import Images, load_split

NUM, BATCH, CLASSES = 400, 100, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PEER = "timm"
AIMS = {"prepared": 5.0, "folders": 1.0}  # times the peer

Contestant = Callable[[np.random.Generator], Tensor]  # a shuffled batch, (100, 3, 224, 224)


def write_jpegs(folder: Path) -> None:
    """Crops of the two photographs, each of another place and
    scale, so that contents and sizes of files vary.
    """
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    rng = np.random.default_rng(0)
    for i in range(NUM):
        width = int(rng.integers(250, 561))
        height = width * 3 // 4
        left, top = (int(rng.integers(0, most + 1)) for most in (640 - width, 427 - height))
        image = (
            photographs[i % 2]
            .crop((left, top, left + width, top + height))
            .resize((500, 375), Image.Resampling.BICUBIC)
        )
        for split in ("train", "val") if i < CLASSES else ("train",):
            path = folder / split / f"c{i % CLASSES}" / f"{i:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)


def write_parquet(source: Path, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    files = sorted((source / "train").rglob("*.jpg"))
    rows = [{"bytes": path.read_bytes(), "path": path.name} for path in files]
    table = pa.table({"image": rows, "label": [int(path.parent.name[1]) for path in files]})
    pq.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=100)


def ours(images: Images, config: TrainConfig, ordered: bool = False) -> Contestant:
    """Reads, crops and flips image by image, as loader workers do."""
    positions = np.arange(BATCH)

    def batch(rng: np.random.Generator) -> Tensor:
        rows = np.arange(BATCH) if ordered else rng.permutation(NUM)[:BATCH]
        whole = list(read(images, rows))
        sizes = np.array([image.shape[1:] for image in whole])
        boxes = crop_boxes(sizes, config, positions, rng)
        cropped = [
            crop_encoded(image, box, config) for image, box in zip(whole, boxes, strict=True)
        ]
        flips = rng.random(BATCH) < 0.5
        return torch.stack(
            [image.flip(-1) if flip else image for image, flip in zip(cropped, flips, strict=True)]
        )

    return batch


def read(images: Images, rows: np.ndarray) -> Iterator[Tensor]:
    if images.pixels is not None:
        return iter(images.pixels[torch.from_numpy(rows)])
    assert images.decode is not None
    return map(images.decode, rows.tolist())


def peer(folder: Path, transform: Any) -> Contestant:
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(folder / "train", transform)

    def batch(rng: np.random.Generator) -> Tensor:
        return torch.stack(
            [torch.as_tensor(dataset[i][0]) for i in rng.permutation(NUM)[:BATCH].tolist()]
        )

    return batch


def torchvision_transform(normalized: bool) -> Any:
    from torchvision.transforms import InterpolationMode, v2

    crop = v2.RandomResizedCrop(224, interpolation=InterpolationMode.BICUBIC)
    scale = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if normalized else []
    return v2.Compose([crop, v2.RandomHorizontalFlip(), v2.ToImage(), *scale])


def timm_transform() -> Any:
    from timm.data import create_transform

    plain: dict[str, Any] = {"color_jitter": None, "auto_augment": None, "interpolation": "bicubic"}
    return create_transform(224, is_training=True, use_prefetcher=True, **plain)


def contestants(folder: Path) -> dict[str, Contestant]:
    """Every contestant by name, on the same images."""
    write_jpegs(folder / "files" / "bench")
    write_parquet(folder / "files" / "bench", folder / "parquet" / "bench")
    fields: dict[str, Any] = {
        "num_images": NUM,
        "num_classes": CLASSES,
        "channels": 3,
        "batch_size": BATCH,
    }
    config = TrainConfig(dataset="bench", resolution=224, patch_size=16, crop="rrc", **fields)
    for root in ("first", "second"):  # the first imports what it needs
        began = time.perf_counter()
        prepare(Request(str(folder / "files" / "bench"), folder / root, 256))
    print(f"prepare: {NUM / (time.perf_counter() - began):.0f} images/s in one process")
    prepared = load_split(config.replace(dataset="bench-256"), "train", folder / "second")
    parquet = load_split(config, "train", folder / "parquet")
    return {
        "prepared": ours(prepared, config),
        "folders": ours(load_split(config, "train", folder / "files"), config),
        "parquet in order": ours(parquet, config, ordered=True),
        "parquet shuffled": ours(parquet, config),
        "timm": peer(folder / "files" / "bench", timm_transform()),
        "torchvision": peer(folder / "files" / "bench", torchvision_transform(normalized=False)),
        "torchvision, float": peer(
            folder / "files" / "bench", torchvision_transform(normalized=True)
        ),
    }


def race(named: dict[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """Images per second of each contestant in each round; they
    take turns, after a first round that does not count.
    """
    speeds: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(rounds + 1):
        for name, batch in named.items():
            rng = np.random.default_rng(turn)
            began = time.perf_counter()
            shape = tuple(batch(rng).shape)
            speed = BATCH / (time.perf_counter() - began)
            assert shape == (BATCH, 3, 224, 224)
            speeds[name] += [speed] if turn else []
    return speeds


def show(speeds: dict[str, list[float]]) -> None:
    """Medians and ranges of images/s and, paired by round, of the ratio to the peer."""
    print(
        f"{'contestant':18} {'images/s':>9} {'(range)':>11} {f'x {PEER}':>7} {'(range)':>13}  n  "
        "aim"
    )
    for name, values in speeds.items():
        ratios = [value / base for value, base in zip(values, speeds[PEER], strict=True)]
        speed, ratio = statistics.median(values), statistics.median(ratios)
        ranges = f"({min(values):.0f}-{max(values):.0f})", f"({min(ratios):.2f}-{max(ratios):.2f})"
        aim = (
            f">= {AIMS[name]:g} {'met' if ratio >= AIMS[name] else 'missed'}"
            if name in AIMS
            else ""
        )
        print(
            f"{name:18} {speed:9.0f} {ranges[0]:>11} {ratio:7.2f} {ranges[1]:>13} "
            f"{len(values):2}  {aim}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch "
        f"{torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        show(race(contestants(Path(folder)), options.rounds))


if __name__ == "__main__":
    main()
