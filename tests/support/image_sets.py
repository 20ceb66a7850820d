"""Small datasets of known pixels in the forms that people have them in."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitscale.plan.config import TrainConfig
from vitscale.train.sources import Images

NUM, CLASSES = 20, 10


def config_of(dataset: str = "tiny", num: int = NUM, **fields: Any) -> TrainConfig:
    fields = {"channels": 3, "batch_size": 2, "num_classes": CLASSES, "num_images": num, **fields}
    return TrainConfig(dataset=dataset, epochs=9, **fields)


def arrays(split: str, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Images (20, 32, 32, 3) and labels of two images a class, in the order of classes."""
    rng = np.random.default_rng(split == "val")
    return rng.integers(0, 256, (NUM, side, side, 3), np.uint8), np.repeat(np.arange(CLASSES), 2)


def encode(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def write_folders(folder: Path, split: str) -> None:
    for i, (pixels, label) in enumerate(zip(*arrays(split), strict=True)):
        path = folder / split / f"c{label}" / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels))


def write_pickles(folder: Path, split: str) -> None:
    """As cs.toronto.edu/~kriz/cifar.html: dicts with data
    (N, 3072), red first, and lists of labels.
    """
    images, labels = arrays(split)
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in cifar_parts(split, "data_batch_{}", "test_batch"):
        batch = {
            "data": images[rows].transpose(0, 3, 1, 2).reshape(-1, 3072),
            "labels": labels[rows].tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_cifar100(folder: Path, split: str) -> None:
    images, labels = arrays(split)
    folder.mkdir(parents=True, exist_ok=True)
    batch = {"data": images.transpose(0, 3, 1, 2).reshape(-1, 3072), "coarse_labels": [7] * NUM}
    name = "test" if split == "val" else "train"
    (folder / name).write_bytes(pickle.dumps({**batch, "fine_labels": labels.tolist()}, protocol=2))


def cifar_parts(split: str, train: str, test: str) -> list[tuple[str, slice]]:
    return (
        [(test, slice(None))]
        if split == "val"
        else [(train.format(i + 1), slice(4 * i, 4 * i + 4)) for i in range(5)]
    )


def stacked(images: Images) -> np.ndarray:
    """(N, H, W, C), one image after the other."""
    return torch.stack([images[i] for i in range(len(images))]).permute(0, 2, 3, 1).numpy()
