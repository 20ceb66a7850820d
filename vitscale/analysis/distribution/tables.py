"""Tables of a study: functions of the study and its outcomes; a row per arm, pair or axis.

A column `x` with `x_low` and `x_high` beside it is an estimate with its 95% interval; `_pct` is
percent, `_points` are differences in percent points. The decimals of both are one, or those of the
table's attrs["decimals"].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from vitscale.analysis.distribution import compare, edf
from vitscale.analysis.distribution.curves import edf_curves, edf_curves_vs_best
from vitscale.analysis.distribution.population import AXES, Population, populations
from vitscale.analysis.results import Results
from vitscale.analysis.stats.correction import holm
from vitscale.plan.metrics import ERROR, Metric
from vitscale.plan.study import Study

P_VALUES = ("area_p", "error_ratio_p", "within_4_points_p", "error_p")  # each corrected by itself
Table = Callable[[Study, pd.DataFrame], pd.DataFrame]
EpochTable = Callable[[Study, pd.DataFrame, pd.DataFrame], pd.DataFrame]


def edf_summary(results: Results) -> pd.DataFrame:
    """A row per arm: how many draws, how they ended, and how forgiving the arm is, with 95%
    intervals.

    Counted are the draws before the first missing one of the arm. `area` is that under the EDF of
    delta from 0 to the metric's `beyond` (10 points of top-1 error), in [0, 1]; the ratio is the
    geometric mean of value over reference, where 1 is as good. The reference is the mean of the
    arm's finished reference runs, and its noise is in the intervals of shares, area and ratio; with
    one run it is unknown, and they are given the reference. `if reference lower` and `if reference
    higher` are the shares within `near` (4 points) had it been off by as far as it may be
    (Student's t), or by a quarter of `near` for a single run. Draws beyond finished, more than
    `beyond` above the reference.
    """
    table = pd.DataFrame(
        [_edf_row(results.study, results.once(populations)[arm]) for arm in results.study.arms]
    )
    return table.astype(
        dict.fromkeys(("num_better_than_reference", "num_beyond_10_points"), "Int64")
    )


def arm_comparison(results: Results) -> pd.DataFrame:
    """A row per pair of arms. First forgiveness: the area of a minus that of b (positive favours
    a), which is the primary comparison, and the ratio to the reference of a over that of b (below 1
    favours a), both with the references' noise; then the share within the metric's `near` (4 points
    of top-1 error) of the arm's own reference, given the references.

    Then absolute values, which is another question: the median of a minus b (negative favours a),
    and how often a has the lower one, ties one half. p is that of no difference; p_holm is
    corrected for the number of pairs, over each kind of p separately.
    """
    pairs = [compare.compare(results, a, b) for a, b in results.study.pairs]
    table = pd.DataFrame(pairs, columns=list(compare.COMPARISON_COLUMNS))
    for name in P_VALUES:
        table.insert(
            list(table.columns).index(name) + 1, f"{name}_holm", holm(table[name].tolist())
        )
    return table


def good_range(results: Results) -> pd.DataFrame:
    """A row per arm and axis: where good draws lie, the setting of the reference and the range
    sampled.

    `good from`, `good median` and `good to` are the 2.5, 50 and 97.5 percentiles of the best of n/4
    draws over bootstraps: they describe a range of good values and are no confidence interval.
    """
    rows = []
    for arm in results.study.arms:
        draws = results.once(populations)[arm]
        for name in AXES:
            rows.append({"arm": arm, "axis": name, "n": draws.n, **_range_row(draws, name)})
    return pd.DataFrame(rows)


def _edf_row(study: Study, draws: Population) -> dict[str, object]:
    over = f"t over {study.num_scrambles} scrambles"
    shares = (
        f"{over}; area: or pseudo-draws"
        if study.num_scrambles
        else "Clopper-Pearson; area: t with pseudo-draws"
    )
    median = f"Woodruff, {over}" if study.num_scrambles else "order statistics"
    return {
        "arm": draws.arm,
        "planned": draws.planned,
        "n": draws.n,
        **draws.counts,
        "not_counted": draws.not_counted,
        **_thresholds(draws.metric),
        **edf.summary(draws),
        "interval_of_shares_and_area": f"{shares}; {draws.given}",
        "interval_of_median": median,
    }


def _thresholds(metric: Metric) -> dict[str, float]:
    """The thresholds as columns; those of the error are in the names of its columns."""
    return {} if metric is ERROR else {"near": metric.near, "beyond": metric.beyond}


def _range_row(draws: Population, name: str) -> dict[str, float]:
    planned = draws.sampled[name]
    low, median, high = compare.good_range(draws, name)
    ends = (planned.min(), planned.max()) if len(planned) else (np.nan, np.nan)
    return {
        "good_from": low,
        "good_median": median,
        "good_to": high,
        "reference": draws.setting[name],
        "sampled_min": float(ends[0]),
        "sampled_max": float(ends[1]),
    }


TABLES = (edf_summary, arm_comparison, good_range, edf_curves, edf_curves_vs_best)
