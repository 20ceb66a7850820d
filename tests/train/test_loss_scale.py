"""fp16 with a loss scale: what it skips is counted and is
no divergence, and it resumes to the bit.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest import NARROW
from torch import nn

from vitscale.record.outcome import Row
from vitscale.train import loop, loss_scale
from vitscale.train.loop import TIMING, train
from vitscale.train.loss_scale import LossScale
from vitscale.train.optim import build_optimizer

torch.set_num_threads(1)

TINY = NARROW.replace(
    batch_size=100,
    ema_decay=0.7,
    lr=0.01,
    precision="fp16",
)
OPTIMIZERS = {
    "adamw": TINY,
    "adam": TINY.replace(optimizer="adam"),
    "sgd": TINY.replace(optimizer="sgd", lr=0.1),
    "lamb": TINY.replace(optimizer="lamb"),
    "lion": TINY.replace(optimizer="lion", lr=0.001),
    "clipped": TINY.replace(clip_norm=1.0),
    "bce": TINY.replace(loss="bce", drop_path=0.1, dropout=0.1),
}


def timeless(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(max(folder.glob("checkpoint-*")), weights_only=True)["model"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp16_computes_in_fp16_and_learns_what_fp32_learns(name: str, tmp_path: Path) -> None:
    fp32, fp16 = (
        list(train(OPTIMIZERS[name].replace(precision=precision), tmp_path / precision))
        for precision in ("fp32", "fp16")
    )
    assert fp16[-1]["train_loss"] == pytest.approx(fp32[-1]["train_loss"], rel=0.02)
    assert fp16[-1]["train_loss"] != fp32[-1]["train_loss"]
    assert [row["skipped_steps"] for row in fp16] == [0.0, 0.0] and "skipped_steps" not in fp32[0]
    assert {value.dtype for value in weights(tmp_path / "fp16").values()} <= {
        torch.float32,
        torch.int64,
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_is_counted_and_is_no_divergence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a scale of 2**40 gradients overflow until it is small
    enough; the trial goes on as one with less steps.
    """
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**40)
    rows = list(train(OPTIMIZERS[name].replace(epochs=4), tmp_path))
    skipped = [row["skipped_steps"] for row in rows]
    assert skipped[0] >= 9 and skipped == sorted(skipped) and skipped[-1] < 34
    assert not any(row["diverged"] for row in rows) and rows[-1]["epoch"] == 4
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_skipped_step_changes_neither_weights_nor_moments(name: str) -> None:
    layer = nn.Linear(2, 1)
    optimizer = build_optimizer(layer, OPTIMIZERS[name].replace(wd=0.0))
    scale, before = (
        LossScale(TINY, torch.device("cpu")),
        [p.detach().clone() for p in layer.parameters()],
    )
    for loss, same in (
        (layer(torch.ones(1, 2)).sum() * math.inf, True),
        (layer(torch.ones(1, 2)).sum(), False),
    ):
        optimizer.zero_grad()
        scale.scaled(loss).backward()
        scale.step(optimizer)
        assert (
            all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True)) == same
        )
    assert scale.columns() == {"skipped_steps": 1.0}
    assert scale.scaler.get_scale() == loss_scale.FIRST_SCALE / 2
    for parameter, state in optimizer.state.items():
        if name == "sgd":  # the first momentum is the gradient
            assert torch.equal(state["momentum_buffer"], torch.ones_like(parameter))
        else:  # Adam's correction of its bias
            assert float(state["step"]) == 1.0


def test_a_scaled_step_is_the_step_of_the_gradient_itself() -> None:
    """A power of two changes no digit; clipping sees the gradient's own size."""
    for clip in (False, True):
        layers = [nn.Linear(3, 1), nn.Linear(3, 1)]
        layers[1].load_state_dict(layers[0].state_dict())
        optimizers = [
            torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, fused=True)
            for layer in layers
        ]
        scales = [
            LossScale(TINY.replace(precision=p), torch.device("cpu")) for p in ("fp16", "fp32")
        ]
        for layer, optimizer, scale in zip(layers, optimizers, scales, strict=True):
            for step in range(3):
                optimizer.zero_grad()
                scale.scaled(layer(torch.full((2, 3), 1.0 + step)).square().sum()).backward()
                if clip:
                    scale.unscale(optimizer)
                    nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
                scale.step(optimizer)
        assert torch.equal(layers[0].weight, layers[1].weight)
        assert (
            scales[0].columns() == {"skipped_steps": 0.0}
            and scales[1].columns() == scales[1].state_dict() == {}
        )


def test_the_scale_doubles_after_steps_that_were_not_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    layer = nn.Linear(2, 1)
    optimizer, scale = (
        torch.optim.SGD(layer.parameters(), lr=0.0),
        LossScale(TINY, torch.device("cpu")),
    )
    seen = []
    for factor in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        scale.scaled(layer(torch.ones(1, 2)).sum() * factor).backward()
        scale.step(optimizer)
        seen.append(math.log2(scale.scaler.get_scale()))
    assert seen == [16, 16, 17, 16, 16, 16, 17]


@pytest.mark.parametrize("name", ["adamw", "lamb", "clipped"])
def test_an_interruption_at_any_step_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While steps are skipped, and while the scale grows again."""
    monkeypatch.setattr(loop, "OFTEN_SHARE", math.inf)
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**34)
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 4)
    config = OPTIMIZERS[name].replace(epochs=3)
    whole = list(train(config, tmp_path / "whole"))
    assert whole[0]["skipped_steps"] >= 4 and whole[-1]["skipped_steps"] > whole[0]["skipped_steps"]
    for epoch in (0, 1):  # the newest checkpoint is before the end of the last epoch that was seen
        training = train(config, tmp_path / "cut", checkpoint_every_s=0.0)
        for _ in range(epoch + 1):
            next(training)
        training.close()
        newest = max(path.name for path in (tmp_path / "cut").glob("checkpoint-*"))
        assert int(newest.split("-")[1]) % config.steps_per_epoch
    assert timeless(list(train(config, tmp_path / "cut"))) == timeless(whole)
    last, other = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(value, other[part]) for part, value in last.items())


def test_what_no_scale_makes_finite_is_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the step after which the scale is below the least one; here that comes soon."""
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**60)
    monkeypatch.setattr(loss_scale, "MIN_SCALE", 2.0**57)
    (row,) = train(TINY, tmp_path)
    assert (row["diverged"], row["diverged_step"], row["skipped_steps"]) == (1, 3, 4)
    assert row["val_error_pct"] == 100


def test_a_loss_that_is_not_finite_is_divergence_as_ever(tmp_path: Path) -> None:
    (row,) = train(TINY.replace(optimizer="sgd", lr=1e20), tmp_path)
    # that of the step itself
    assert (row["diverged"], row["step"], row["skipped_steps"]) == (1, 2, 1)
