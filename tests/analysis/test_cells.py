"""The rule by which an arm with several lr is shown at one of them, and its interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitscale.analysis.cells import Cell, choose_lr, runs_of
from vitscale.analysis.stats.rounds import choose
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import ERROR


def runs_at(lrs: list[float], minival: np.ndarray, val: np.ndarray) -> pd.DataFrame:
    """Runs of (lrs, seeds) values; NaN where a run diverged."""
    num = minival.shape[1]
    return pd.DataFrame(
        {
            "trial_id": [f"{lr}-{seed}" for lr in lrs for seed in range(num)],
            "lr": np.repeat(lrs, num),
            "seed": np.tile(np.arange(num), len(lrs)),
            "status": np.where(np.isnan(minival.ravel()), "diverged", "finished"),
            "minival": minival.ravel(),
            "val": val.ravel(),
        }
    )


def cell_of(lrs: list[float], minival: np.ndarray, val: np.ndarray) -> Cell:
    runs = runs_at(lrs, minival, val)
    lr = choose_lr(runs, "minival")
    return Cell("a", TrainConfig(), tuple(lrs), lr, runs[runs["lr"] == lr], runs, "minival")


@pytest.mark.parametrize(
    ("minival", "chosen"),
    [
        ([[30.0, 31.0], [1.0, np.nan]], 3e-3),  # half finished
        ([[30.0, 31.0, 30.0], [1.0, np.nan, np.nan]], 1e-3),  # most diverged
        ([[2.0, 2.0], [2.0, 2.0]], 1e-3),
        ([[np.nan, np.nan], [np.nan, np.nan]], np.nan),
    ],
    ids=["half", "most", "equal", "none"],
)
def test_all_kinds_of_study_choose_the_same_lr(minival: list[list[float]], chosen: float) -> None:
    values, lrs = np.array(minival), [1e-3, 3e-3]
    cell = cell_of(lrs, values, values)
    assert cell.lr == pytest.approx(chosen, nan_ok=True)
    of_law = choose(runs_of([cell.every], [lrs], ("minival", "val"))).lr[0]
    assert [*lrs, np.nan][of_law] == pytest.approx(chosen, nan_ok=True)


@pytest.mark.parametrize("diverge", [0.0, 0.2])
@pytest.mark.parametrize(("num", "sd"), [(2, 0.3), (3, 0.02), (5, 0.3)])
def test_the_interval_of_a_cell_covers_the_error_at_its_best_lr(
    num: int, sd: float, diverge: float
) -> None:
    """Three lr, minival and val correlated by 1/2; 95% and more, as none is too narrow."""
    rng, sims, lrs = np.random.default_rng(5), 300, [1e-3, 2e-3, 4e-3]
    truth, held = 20 * np.array([1.08, 1.0, 1.06]), []
    for _ in range(sims):
        val, other = rng.standard_normal((2, 3, num))
        lost = rng.random((3, num)) < diverge
        minival = truth[:, None] * (1 + sd * (0.5 * val + 0.75**0.5 * other))
        values = [np.where(lost, np.nan, x) for x in (minival, truth[:, None] * (1 + sd * val))]
        _, low, high = cell_of(lrs, *values).interval("val", ERROR)
        held.append(np.nan if np.isnan(low) else low <= truth.min() <= high)
    assert np.nanmean(held) >= 0.95 - 3 * (0.05 * 0.95 / sims) ** 0.5
    assert np.mean(np.isnan(held)) <= 0.08 * (diverge > 0)  # where no lr has two finished runs


def test_runs_without_a_spread_have_no_interval() -> None:
    same = np.full((2, 3), 7.0)
    mean, low, high = cell_of([1e-3, 2e-3], same, same).interval("val", ERROR)
    assert mean == 7.0 and np.isnan([low, high]).all()
