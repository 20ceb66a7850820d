"""Short trainings and their final state, compared by the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from conftest import NARROW

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.record.workdir import Workdir
from vitscale.train.loop import TIMING, train

TINY: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "patch_size": 4}
# 3 steps per epoch
QUICK: dict[str, Any] = {**TINY, "batch_size": 332, "epochs": 2, "warmup_epochs": 1.0}


def rows_of(config: TrainConfig, path: Path, **options: Any) -> list[Row]:
    """The rows of a whole training, without the columns that two runs of one trial do not share."""
    path.mkdir(parents=True, exist_ok=True)
    return [
        {k: v for k, v in row.items() if k not in TIMING} for row in train(config, path, **options)
    ]


# Everything that has a state: BatchNorm, EMA, an optimizer, and random streams that must not start
# again.
CONV = NARROW.replace(
    batch_size=332,
    ema_decay=0.7,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    crop_padding=1,
    flip_prob=0.5,
    label_smoothing=0.1,
    clip_norm=1.0,
    lr=0.01,
)


def timeless(rows: list[Row]) -> list[Row]:
    """Rows without the columns that two runs of one trial do not share."""
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def every_step(config: TrainConfig, path: Path | Workdir) -> Iterator[Row]:
    """A training that writes a checkpoint after each step."""
    return train(config, path, checkpoint_every_s=0.0)


def final_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint: weights, averages, moments, generators."""
    newest = max(path.glob("checkpoint-*"))
    found: dict[str, torch.Tensor] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, part in value.items():
                collect(f"{name}.{key}", part)
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                collect(f"{name}.{index}", part)

    collect("", torch.load(newest, weights_only=True))
    assert len(found) > 50
    return found


def assert_same(
    path: Path, rows: list[Row], whole: tuple[list[Row], dict[str, torch.Tensor]]
) -> None:
    """Bit for bit."""
    assert timeless(rows) == whole[0]
    tensors = final_tensors(path)
    assert set(tensors) == set(whole[1])
    unequal = [
        name
        for name, t in tensors.items()
        if not torch.equal(t, whole[1][name]) and not t.isnan().any()
    ]
    assert not unequal
