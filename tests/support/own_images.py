"""A user's own class folders, and a study of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

BASE: dict[str, Any] = {
    "dataset": "own",
    "num_images": 12,
    "num_classes": 3,
    "channels": 3,
    "resolution": 8,
    "batch_size": 4,
    "epochs": 1,
    "warmup_epochs": 0.0,
    "width": 8,
    "heads": 2,
    "depth": 1,
    "crop": "rrc",
}


def write(root: Path, seed: int = 0, size: int = 12, classes: str = "abc") -> Path:
    """Class folders root/own: 4 images a class to train on and 2 to evaluate on."""
    rng = np.random.default_rng(seed)
    for split, num in (("train", 4), ("val", 2)):
        for name in classes:
            folder = root / "own" / split / name
            folder.mkdir(parents=True)
            for i in range(num):
                pixels = rng.integers(0, 256, (size, size + 2, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def study(num: int = 2, **fields: Any) -> Study:
    config = TrainConfig(**{**BASE, **fields})
    trials = tuple(
        Trial(arm, config.replace(optimizer=arm, lr=(i + 1) * 1e-3), i)
        for arm in ("adamw", "sgd")
        for i in range(num)
    )
    return Study(
        kind="distribution", name="own", scale="demo", question="?", source="none", trials=trials
    )
