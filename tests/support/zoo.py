"""Image files of the dataset of studies/zoo.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

NUM, CLASSES = 24, ("cat", "dog", "emu")


def write_zoo(folder: Path) -> Path:
    """Class folders of JPEGs of several sizes, as ImageNet's."""
    rng = np.random.default_rng(0)
    for split, num in (("train", NUM), ("val", 9), ("v2", 6)):
        for index in range(num):
            path = folder / "zoo" / split / CLASSES[index % 3] / f"{index:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (40 + index % 5, 48 - index % 7, 3), dtype=np.uint8)
            image = Image.fromarray(pixels).resize((60, 50), Image.Resampling.BICUBIC)
            image.save(path, quality=90)
    return folder
