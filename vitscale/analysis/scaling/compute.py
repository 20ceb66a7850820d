"""What a budget of compute is best spent on: size and length, and where two families change places.

Compute is the multiply-adds of a training, forward and backward. On a law of size and length, the
optimum at a budget is the size at which the law is lowest when all of the budget is spent on it.
Without a law of length, it is the size of the lowest cell that the budget affords. Either is an
optimum only between others: where the best size is the largest or the smallest that was tried at
this budget, the optimum is "none within the range".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from vitscale.analysis.results import Results
from vitscale.analysis.scaling.fits import Fit
from vitscale.analysis.scaling.tables import (
    CERTAIN,
    POINTS,
    Grid,
    Law,
    crossing,
    families,
    grid,
    interval,
    laws,
    widest,
)

NUM_BUDGETS = 5
NONE = "none within the range"


@dataclass(frozen=True)
class Costs:
    """Multiply-adds of one sample by size: straight lines between logarithms of these."""

    size: np.ndarray  # ascending
    per_sample: np.ndarray

    def at(self, size: np.ndarray) -> np.ndarray:
        """Of each size, within the range."""
        return np.exp(np.interp(np.log(size), np.log(self.size), np.log(self.per_sample)))

    def size_of(self, per_sample: np.ndarray) -> np.ndarray:
        """The size at which a sample costs so much, within the range."""
        return np.exp(np.interp(np.log(per_sample), np.log(self.per_sample), np.log(self.size)))


@dataclass(frozen=True)
class Optimum:
    """Of (rounds,) laws or tables of cells at one budget: size and samples, NaN where they lie at
    an end.
    """

    size: np.ndarray
    samples: np.ndarray
    error: np.ndarray  # at the best size within the range, also at an end


def optimum(fit: Fit, costs: Costs, samples: tuple[float, float], budget: float) -> Optimum:
    """Where laws (rounds,) of size and samples are lowest if all of a budget is spent.

    `samples`: the least and the most that were trained, which bound the sizes as well.
    """
    sizes = np.geomspace(costs.size[0], costs.size[-1], POINTS)
    length = budget / costs.at(sizes)
    within = (length >= samples[0] * (1 - 1e-9)) & (length <= samples[1] * (1 + 1e-9))
    sizes, length = sizes[within], length[within]
    rounds = np.atleast_1d(fit.floor)
    if len(sizes) < 3:
        nothing = np.full(len(rounds), np.nan)
        return Optimum(nothing, nothing, nothing)
    error = np.atleast_2d(fit.predict(np.column_stack([sizes, length])))
    best = error.argmin(1)
    inside = (best > 0) & (best < len(sizes) - 1)
    return Optimum(
        np.where(inside, sizes[best], np.nan),
        np.where(inside, length[best], np.nan),
        error.min(1),
    )


def scaling_optimum(results: Results) -> pd.DataFrame:
    """One row per family and budget of multiply-adds of a training: the size, and the samples, that
    make the most of it.

    By the law of size and length where there is one (`by`: law), else the size of the lowest cell
    that the budget affords (`by`: cells), the best of the sizes tried. 95% intervals over the
    bootstrap rounds, with seeds and the choice of lr; only where 95% of them have an optimum
    between others (`share_inside`). By cells, the ends are one tried size further out: the best
    size of all may lie between two that were tried.
    `optimum` says "none within the range" where the best size is the largest or smallest tried.
    """
    cells = results.once(grid)
    of_length = {
        law.family: law
        for law in results.once(laws)
        if law.has_floor and law.axes == ("size", "length")
    }
    rows = [
        row
        for family in families(cells)
        for row in (
            _by_law(cells, of_length[family]) if family in of_length else _by_cells(cells, family)
        )
    ]
    return pd.DataFrame(rows)


def _by_law(cells: Grid, law: Law) -> Iterator[dict[str, object]]:
    costs = _costs(cells, law)
    ends = float(law.x[:, 1].min()), float(law.x[:, 1].max())
    for budget in _budgets(cells.frame.loc[law.index, "training_flops"].to_numpy(float)):
        best, drawn = (optimum(fit, costs, ends, budget) for fit in (law.fit, law.rounds))
        yield _optimum_row(
            law.family,
            "law",
            budget,
            (best.size[0] / 1e6, drawn.size / 1e6),
            (best.samples[0], drawn.samples),
            (best.error[0], drawn.error),
            cells.has_intervals,
        )


def _by_cells(cells: Grid, family: str) -> Iterator[dict[str, object]]:
    index = cells.frame.index[(cells.frame["family"] == family) & cells.usable].to_numpy()
    frame = cells.frame.loc[index]
    flops, params = frame["training_flops"].to_numpy(float), frame["params"].to_numpy(float)
    samples = frame["samples"].to_numpy(float)
    for budget in _budgets(flops):
        affordable = flops <= budget * (1 + 1e-9)
        if not affordable.any():
            continue
        best, drawn = (
            lowest(error[..., index], params, samples, affordable)
            for error in (cells.chosen.error[None], cells.rounds.error)
        )
        row = _optimum_row(
            family,
            "cells",
            budget,
            (best.size[0] / 1e6, drawn.size / 1e6),
            (best.samples[0], np.empty(0)),
            (best.error[0], drawn.error),
            cells.has_intervals,
        )
        low, high = (f"optimal_params_m_{end}" for end in ("low", "high"))
        yield row | dict(zip((low, high), outwards(row[low], row[high], params / 1e6), strict=True))


def outwards(low: float, high: float, sizes: np.ndarray) -> tuple[float, float]:
    """The ends of an interval of tried sizes, each moved to the next tried size beyond it."""
    below, above = sizes[sizes < low * (1 - 1e-9)], sizes[sizes > high * (1 + 1e-9)]
    return (
        float(below.max()) if len(below) else low,
        float(above.min()) if len(above) else high,
    )


def lowest(
    error: np.ndarray, params: np.ndarray, samples: np.ndarray, affordable: np.ndarray
) -> Optimum:
    """The lowest of (rounds, cells) errors among the affordable cells, and where it is."""
    at = np.where(affordable & np.isfinite(error), error, np.inf).argmin(-1)
    tried = params[affordable]
    inside = (params[at] > tried.min()) & (params[at] < tried.max())
    return Optimum(
        np.where(inside, params[at], np.nan),
        np.where(inside, samples[at], np.nan),
        error[np.arange(len(error)), at],
    )


def _budgets(flops: np.ndarray) -> np.ndarray:
    """Between the cheapest and the dearest training, equally far apart in logarithms."""
    finite = flops[np.isfinite(flops)]
    if not len(finite):
        return np.empty(0)
    return np.geomspace(finite.min(), finite.max(), NUM_BUDGETS + 2)[1:-1]


Drawn = tuple[float, np.ndarray]  # a number, and that of each round


def _optimum_row(
    family: str,
    by: str,
    budget: float,
    size: Drawn,
    samples: Drawn,
    error: Drawn,
    has_intervals: bool,
) -> dict[str, Any]:
    share = float(np.isfinite(size[1]).mean())
    exists, certain = np.isfinite(size[0]), share >= CERTAIN
    return {
        "family": family,
        "by": by,
        "training_flops": float(budget),
        "optimum": ("" if certain or not has_intervals else "not certain") if exists else NONE,
        **interval("optimal_params_m", size[0], size[1] if exists and certain else np.empty(0)),
        **interval(
            "optimal_samples", samples[0], samples[1] if exists and certain else np.empty(0)
        ),
        **interval("best_value", *error),
        "share_inside": share if has_intervals else np.nan,
    }


def _costs(cells: Grid, law: Law) -> Costs:
    """Of the sizes of a law, by their cells in it."""
    frame = cells.frame.loc[law.index]
    per_sample = (frame["training_flops"] / frame["samples"]).groupby(frame["params"]).mean()
    return Costs(per_sample.index.to_numpy(float), per_sample.to_numpy(float))


def scaling_crossing_at_cost(results: Results) -> pd.DataFrame:
    """One row per pair of families: the multiply-adds of a training at which their laws cross, each
    at the size that costs so much, at the most images and samples it was trained on.

    Within the range of cost that both have. `share_crossing` is the share of bootstrap rounds with
    a crossing there; the interval is over those, and is given only if 95% of the rounds have one.
    Differences are a minus b at both ends of the range, in points: below 0, a is better.
    """
    by_family = {name: law for name, law in results.once(widest).items() if law.axes[0] == "size"}
    cells = results.once(grid)
    rows = [_crossing_row(cells, by_family[a], by_family[b]) for a, b in combinations(by_family, 2)]
    return pd.DataFrame([row for row in rows if row])


def _crossing_row(cells: Grid, a: Law, b: Law) -> dict[str, object]:
    costs = [_whole_trainings(cells, law) for law in (a, b)]
    low = max(cost.per_sample[0] for cost in costs)
    high = min(cost.per_sample[-1] for cost in costs)
    row: dict[str, object] = {"a": a.family, "b": b.family, "least_flops": low}
    row["greatest_flops"] = high
    if not low < high:
        return row
    flops = np.geomspace(low, high, POINTS)
    sizes = costs[0].size_of(flops), costs[1].size_of(flops)
    return row | crossing("crossing_flops", flops, (a, b), sizes, cells.has_intervals)


def _whole_trainings(cells: Grid, law: Law) -> Costs:
    """Costs of whole trainings at the most samples of a law, by size."""
    most = float(cells.frame.loc[law.index, "samples"].max())
    per_sample = _costs(cells, law)
    return Costs(per_sample.size, np.maximum.accumulate(per_sample.per_sample * most))
