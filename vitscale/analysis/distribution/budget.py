"""What a tuning budget buys: the error of the best of k draws, against k.

The best of k draws is the one with the lowest error on minival; its error on val is reported, which
the choice does not make optimistic. Draws are i.i.d., so the n draws of an arm show what k of them
give (Lourie et al. 2024, for a choice and a report on one set). k ends at n / 2, since beyond it
one draw decides more than half of the choices.

The 95% band of the median holds for all k together. Its ends have 2.5% each:

- The low end is that of the best of k draws on val itself, which no choice on another set can beat:
  a quantile of the distribution of val errors, from the exact band of that distribution.
- The high end at k is the worst val error among the i draws that are best on minival. i is the
  smallest for which this end fails with at most the probability it may, in the worst case over all
  relations of minival to val in which a draw with a lower minival error is not less likely to
  be below any given val error. It is found for k = 1, 2, 4, ... up to n / 4 and serves up to the
  next one, since a larger budget is then no worse.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import bdtr, betaincinv, gammaln

from vitscale.analysis.distribution.population import populations
from vitscale.analysis.results import Results
from vitscale.analysis.stats.bands import band_tail, order_bounds
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.cost import training_flops
from vitscale.plan.study import Study

CONFIDENCE = 0.95
GRID = 60  # cut points of each of two steps, of the worst relation of minival to val
QUADRATURE = 400
COLUMNS = (
    "arm",
    "n",
    "diverged",
    "failed",
    "k",
    "median",
    "median_low",
    "median_high",
    "mean",
    "train_s",
    "training_flops",
)
COMPARED = (
    "a",
    "b",
    "max_k",
    "a_lower_from",
    "a_lower_to",
    "b_lower_from",
    "b_lower_to",
    "crossing",
    "crossing_low",
    "crossing_high",
)


@dataclass(frozen=True)
class Draws:
    """The n draws of an arm with their errors on both sets, best on minival first."""

    arm: str
    chosen_by: np.ndarray  # (n,) the metric on minival, ascending; ties as in the plan
    reported: np.ndarray  # (n,) the metric on val
    counts: dict[str, int]
    independent: bool  # False for a Sobol design, whose draws have no exact band
    bounds: tuple[float, float]
    train_s: float  # mean of a draw
    training_flops: float

    @property
    def n(self) -> int:
        return len(self.reported)

    @property
    def max_k(self) -> int:
        return max(self.n // 2, 1)


def tuning_budget(results: Results) -> pd.DataFrame:
    """One row per arm and k: the value on val of the best of k draws, chosen on minival.

    `median` and `mean` are over all choices of k of the arm's n draws, up to n / 2, which estimate
    without bias the distribution for k new draws; a tie on minival is broken at random. The 95%
    band of the median holds for all k at once: its low end for any way to choose, its high end if a
    draw with a lower value on minival is not less likely to be below any given value on val.
    Diverged and failed draws have the worst value on both sets. `train_s` and `training_flops`
    (multiply-adds) are those of k draws. Draws of a Sobol design have no band. Arms whose draws do
    not all have the metric on minival have no rows.
    """
    rows = [
        row
        for draws in results.once(budget_draws).values()
        for row in _rows(draws, band(draws, CONFIDENCE))
    ]
    types = {**dict.fromkeys(COLUMNS[1:5], "int64"), **dict.fromkeys(COLUMNS[5:], "float64")}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def tuning_crossings(results: Results) -> pd.DataFrame:
    """One row per pair of arms: at which k the best of k draws of one is lower than of the other.

    `a_lower_from` and `a_lower_to` are the smallest and the largest k at which the bands show that
    a has the lower median; b likewise. Bands are of a level at which all of them, of all pairs,
    hold together with 95%. `crossing` is the first k at which the other arm has the lower estimated
    median, if they change places once; it lies above `crossing_low` and at or below
    `crossing_high`, the nearest k at which one arm is shown to be lower, or beyond max_k if empty.
    """
    draws, pairs = results.once(budget_draws), results.study.pairs
    level = 1 - (1 - CONFIDENCE) / (2 * max(len(pairs), 1))
    rows = [_compared(draws[a], draws[b], level) for a, b in pairs if {a, b} <= draws.keys()]
    return pd.DataFrame(rows, columns=list(COMPARED)).astype(dict.fromkeys(COMPARED[2:], "Int64"))


def budget_draws(results: Results) -> dict[str, Draws]:
    """Arm -> its draws that count, of arms in which all finished ones have a value on minival."""
    made = (_draws(results, arm) for arm in results.study.arms)
    return {draws.arm: draws for draws in made if draws is not None}


def minival_column(study: Study) -> str:
    """The study's metric on minival; "" if that is the set of the results."""
    return study.column.on(CHOOSES).name if study.column.split != CHOOSES else ""


def _draws(results: Results, arm: str) -> Draws | None:
    counted, column = results.once(populations)[arm], minival_column(results.study)
    if not counted.n or column not in results.trials:
        return None
    trials = results.trials
    planned = trials[(trials["arm"] == arm) & trials["point"].notna()].set_index("point")
    of_arm = planned.loc[counted.point]
    chosen_by = of_arm[column].to_numpy(dtype=float)
    chosen_by = np.where(counted.finished, chosen_by, counted.metric.worst)
    if np.isnan(chosen_by).any():
        return None
    order = np.argsort(chosen_by, kind="stable")
    ids = set(of_arm["trial_id"])
    configs = [t.config for t in results.study.trials if t.arm.name == arm and t.config.id in ids]
    flops = [training_flops(config, results.study.measured) for config in configs]
    return Draws(
        arm=arm,
        chosen_by=chosen_by[order],
        reported=counted.error[order],
        counts=counted.counts,
        independent=counted.scramble is None,
        bounds=counted.metric.bounds,
        train_s=float(of_arm["train_s"].astype(float).mean()),
        training_flops=float(np.mean(flops)),
    )


def _rows(draws: Draws, ends: tuple[np.ndarray, np.ndarray]) -> list[dict[str, object]]:
    medians, means = best_of_k(draws.chosen_by, draws.reported)
    return [
        {
            "arm": draws.arm,
            "n": draws.n,
            "diverged": draws.counts["diverged"],
            "failed": draws.counts["failed"],
            "k": k,
            "median": median,
            "median_low": low,
            "median_high": high,
            "mean": mean,
            "train_s": k * draws.train_s,
            "training_flops": k * draws.training_flops,
        }
        for k, median, low, high, mean in zip(
            range(1, draws.max_k + 1), medians, *ends, means, strict=False
        )
    ]


def best_of_k(chosen_by: np.ndarray, reported: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) median and (n,) mean of the reported value of the best of k draws, for k = 1 to n.

    Over all choices of k of the n draws, which are sorted by `chosen_by`. The median is the mean of
    the two middle values where half of the choices are at most the lower one, so that of k = 1 is
    the usual median of the draws.
    """
    weights = _tied(_weights(len(reported)), chosen_by)
    order = np.argsort(reported, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    middle = [(reached >= 0.5 + off).argmax(axis=1) for off in (-1e-9, 1e-9)]
    medians = reported[order][np.array(middle)].mean(axis=0)
    with np.errstate(invalid="ignore"):  # an infinite loss that is never chosen counts nothing
        means = np.where(weights > 0, weights * reported, 0.0).sum(axis=1)
    return medians, means


def _weights(n: int) -> np.ndarray:
    """(n, n) the probability that the draw of rank i is the best of k of the n draws, by k - 1."""
    k, i = np.arange(1, n + 1)[:, None], np.arange(1, n + 1)
    rest = np.maximum(n - i - k + 1, 0)  # C(n - i, k - 1) / C(n, k)
    log = gammaln(n - i + 1) - gammaln(k) - gammaln(rest + 1)
    log = log - (gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
    return np.where(n - i >= k - 1, np.exp(log), 0.0)


def _tied(weights: np.ndarray, chosen_by: np.ndarray) -> np.ndarray:
    """The weights shared equally by draws that are equal on minival."""
    _, block, size = np.unique(chosen_by, return_inverse=True, return_counts=True)
    totals = np.zeros((len(weights), len(size)))
    np.add.at(totals.T, block, weights.T)
    return (totals / size)[:, block]


# ---- the band


def band(draws: Draws, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """(n,) low and (n,) high end of the median for k = 1 to n; NaN for a Sobol design."""
    if not draws.independent:
        return np.full(draws.n, np.nan), np.full(draws.n, np.nan)
    miss = (1 - confidence) / 2
    return (
        low_ends(draws.reported, miss, draws.bounds[0]),
        high_ends(draws.reported, miss, draws.bounds[1]),
    )


def low_ends(reported: np.ndarray, miss: float, least: float) -> np.ndarray:
    """(n,) values below which the median of the best of k draws on this set lies for no k.

    `least` where even the lowest draw does not determine the end.
    """
    n = len(reported)
    _, high = order_bounds(n, band_tail(n, 1 - miss, one_sided=True))
    reached = np.append(high, 1.0)  # after 0 to n draws the share is at most this
    half = 1 - 0.5 ** (1 / np.arange(1, n + 1))
    ends = np.concatenate([[least], np.sort(reported)])
    return ends[np.argmax(reached >= half[:, None], axis=1)]


def high_ends(reported: np.ndarray, miss: float, most: float) -> np.ndarray:
    """(n,) values above which the median of the best of k draws lies for no k.

    `reported` is sorted by minival. `most` where there are too few draws for an end.
    """
    n = len(reported)
    ends = np.full(n, float(most))
    anchors = _anchors(n)
    for k in anchors:
        end = _first_end(reported, k, miss / len(anchors), most)
        ends[k - 1 :] = np.minimum(ends[k - 1 :], end)
    return ends


def _anchors(n: int) -> list[int]:
    return [2**power for power in range(n.bit_length()) if 2**power <= max(n // 4, 1)]


def _first_end(reported: np.ndarray, k: int, miss: float, most: float) -> float:
    if k == 1:  # no choice: the median of all draws, whose exact bound is an order statistic
        rank = np.arange(1, len(reported) + 1)
        holds = bdtr(rank - 1, len(reported), 0.5) >= 1 - miss
        return float(np.sort(reported)[holds.argmax()]) if holds.any() else most
    num = num_best(len(reported), k, miss)
    return float(reported[:num].max()) if num else most


@functools.cache
def num_best(n: int, k: int, miss: float) -> int:
    """How many of the draws that are best on minival serve the high end at k.

    The least number that are all below the median of the best of k with at most the probability
    `miss`; 0 if all n are too few.
    """
    low, high = 0, n + 1  # the probability falls with the number
    while high - low > 1:
        middle = (low + high) // 2
        if all_below(n, middle, k) <= 0.99 * miss:  # 1% for the grid
            high = middle
        else:
            low = middle
    return high if high <= n else 0


def all_below(n: int, num: int, k: int) -> float:
    """The largest probability that the `num` best of n draws on minival are all below the median.

    Let p(u) be the probability that a draw of rank u on minival, a uniform number, is below the
    median of the best of k draws on val. It does not rise, and the integral of k (1 - u)^(k - 1)
    p(u) is at most 1/2. Given the next draw's rank w, the best draws are i.i.d. up to w, so the
    probability is the mean of (mean of p up to w)^num over w, Beta(num + 1, n - num). It is convex
    in p, and hence largest for p with two steps: 1 up to c, a constant up to d, then 0.
    """
    half = 1 - 0.5 ** (1 / k)
    c = np.linspace(0, half, GRID)[:, None, None]
    d = np.linspace(half, 1, GRID)[:, None]
    at_c, at_d = 1 - (1 - c) ** k, 1 - (1 - d) ** k
    gap = at_d - at_c
    share = np.where(gap > 1e-12, (at_d - 0.5) / np.maximum(gap, 1e-12), 1.0)
    levels = (np.arange(QUADRATURE) + 0.5) / QUADRATURE
    w = betaincinv(num + 1, n - num, levels) if num < n else np.ones(1)
    mean = share * np.minimum(c / w, 1) + (1 - share) * np.minimum(d / w, 1)
    return float((mean**num).mean(axis=-1).max())


# ---- two arms


def _compared(a: Draws, b: Draws, confidence: float) -> dict[str, object]:
    size = min(a.max_k, b.max_k)
    (low_a, high_a), (low_b, high_b) = (band(draws, confidence) for draws in (a, b))
    shown_a, shown_b = (
        np.flatnonzero(high[:size] < low[:size]) + 1
        for high, low in ((high_a, low_b), (high_b, low_a))
    )
    median_a, median_b = (best_of_k(draws.chosen_by, draws.reported)[0][:size] for draws in (a, b))
    where, low, high = crossing(median_a, median_b, shown_a.tolist(), shown_b.tolist())
    numbers = (size, *_ends(shown_a), *_ends(shown_b), where, low, high)
    return dict(zip(COMPARED, (a.arm, b.arm, *numbers), strict=True))


def _ends(shown: np.ndarray) -> tuple[int | None, int | None]:
    return (int(shown[0]), int(shown[-1])) if len(shown) else (None, None)


def crossing(
    a: np.ndarray, b: np.ndarray, shown_a: Sequence[int], shown_b: Sequence[int]
) -> tuple[int | None, int | None, int | None]:
    """The first k at which the other of two curves is lower, and the k that enclose it.

    All None if the curves do not change places, or more than once. `shown_a` are the k at which a
    is shown to be lower.
    """
    lower = np.sign(np.where(a == b, 0.0, a) - np.where(a == b, 0.0, b))
    k = np.flatnonzero(lower) + 1
    changes = np.flatnonzero(np.diff(lower[k - 1]))
    if len(changes) != 1:
        return None, None, None
    where = int(k[changes[0] + 1])
    before, after = (shown_a, shown_b) if lower[k[0] - 1] < 0 else (shown_b, shown_a)
    low = max((int(x) for x in before if x < where), default=None)
    return where, low, min((int(x) for x in after if x >= where), default=None)
