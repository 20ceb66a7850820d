"""The masks of all layers at once are, to the bit, those
that each layer makes for itself, as it once did.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.train.draws import (
    Draws,
    Seeded,
    SeededDropout,
    SeededDropPath,
    key_of,
    mix,
    seed_layers,
)
from vitscale.train.loop import TIMING, train

torch.set_num_threads(1)


def uniform_of(rows: Tensor, num: int) -> Tensor:
    elements = mix(torch.arange(num, dtype=torch.int32))
    return (mix(rows[:, None] ^ elements) >> 8 & 0xFFFFFF).float() * 2.0**-24


def at(draws: Any, step: int, positions: Tensor) -> None:
    """A word for each sample; earlier trials were trained so."""
    draws.rows = mix(mix(positions.int()) ^ key_of(draws.seed, step))


def forward(layer: Any, x: Tensor) -> Tensor:
    """Each layer for itself, at each forward pass; a drop path
    draws one number a sample, a dropout one an element.
    """
    if not layer.training:
        return x
    rows = mix(layer.draws.rows ^ key_of(layer.layer))
    if isinstance(layer, SeededDropPath):
        numbers = uniform_of(rows, 1).view(-1, *[1] * (x.ndim - 1))
    else:
        numbers = uniform_of(rows, x.numel() // len(rows)).view(x.shape)
    mask = (numbers >= layer.rate).to(x.dtype)
    return x * (mask.div_(1 - layer.rate) if layer.scale else mask)


TINY = TrainConfig(
    width=16, depth=3, heads=2, patch_size=4, batch_size=64, epochs=1, warmup_epochs=0.0, lr=3e-3
)
CNN = TrainConfig(
    model="timm:convnext_atto",
    resolution=32,
    crop="rrc",
    batch_size=32,
    subset_images=96,
    epochs=1,
    warmup_epochs=0.0,
    lr=1e-4,
    drop_path=0.4,
)
CONFIGS: dict[str, tuple[TrainConfig, dict[str, Any]]] = {
    "drop path": (TINY.replace(drop_path=0.3), {}),
    "bf16": (
        TINY.replace(drop_path=0.1, drop_path_rule="linear", layerscale=0.1, precision="bf16"),
        {},
    ),
    "dropout": (TINY.replace(dropout=0.1, ema_decay=0.9), {}),
    "both, by parts": (
        TINY.replace(drop_path=0.2, dropout=0.3, batch_size=63),
        {"micro_batch": 25},
    ),
    "branches": (TINY.replace(drop_path=0.2, branches=2, dropout=0.1), {"parallel_branches": True}),
    "convnext": (CNN, {}),
}


def timeless(rows: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_are_to_the_bit_those_of_layers_that_draw_one_by_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, options = CONFIGS[name]
    rows = timeless(train(config, tmp_path / "at_once", **options))
    assert rows != timeless(
        train(
            config.replace(drop_path=0.0, drop_path_rule="uniform", dropout=0.0),
            tmp_path / "without",
            **options,
        )
    )
    monkeypatch.setattr(Draws, "at", at)
    monkeypatch.setattr(Seeded, "forward", forward)
    assert rows == timeless(train(config, tmp_path / "one_by_one", **options)) and math.isfinite(
        rows[0]["train_loss"]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_any_rate_are_to_the_bit_those_of_a_layer_alone(dtype: torch.dtype) -> None:
    from timm.layers import DropPath

    rates = [0.01, 0.05, 0.1, 0.15, 0.2, 1 / 3, 0.37, 0.5, 0.9, 0.999]
    model = nn.Sequential(
        *(DropPath(rate, scale) for rate in rates for scale in (True, False)), nn.Dropout(0.3)
    )
    draws, x = seed_layers(model, 2**40 + 5), torch.randn(77, 3, 5).to(dtype)
    for step in (0, 7):
        draws.at(step, torch.arange(77) + 11)
        ours = [layer(x) for layer in model]
        at(draws, step, torch.arange(77) + 11)
        assert all(
            torch.equal(out, forward(layer, x)) for out, layer in zip(ours, model, strict=True)
        )
        assert all(out.dtype == dtype for out in ours)
    assert isinstance(model[-1], SeededDropout)


def test_nothing_is_drawn_for_layers_that_are_not_there() -> None:
    draws = seed_layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), 0)
    draws.at(3, torch.arange(8))
    assert draws.sent is None
