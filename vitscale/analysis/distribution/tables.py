"""Tables about distributions: functions of a study's results, with one row per arm, pair or axis.

A column `x` with `x_low` and `x_high` is an estimate with its 95% interval; `_pct` is percent,
`_points` are differences in percentage points. Both are printed with one decimal, or with the
decimals in the table's attrs["decimals"].
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis.distribution import anytime, compare, edf
from vitscale.analysis.distribution.population import AXES, Population, populations
from vitscale.analysis.results import Results
from vitscale.plan.metrics import ERROR, Metric
from vitscale.plan.study import Study

P_VALUES = ("area_p", "ratio_p", "within_near_p", "prob_p")  # each corrected by itself


def edf_summary(results: Results) -> pd.DataFrame:
    """One row per arm: number of draws, how they ended, and forgiveness, with 95% intervals.

    Only the draws before the arm's first missing one count. `area` is the area under the EDF of
    delta from 0 to the metric's `beyond` (10 points of top-1 error), in [0, 1]; the ratio is the
    geometric mean of value over reference, where 1 is as good as the reference. The reference is
    the mean of the arm's finished reference runs. The intervals of shares, area and ratio include
    its noise; with a single run the noise is unknown, and the intervals are conditional on the
    reference. `if reference lower` and `if reference higher` show the sensitivity to the reference:
    the share within `near` (4 points) if it were off by its 95% half-width (Student's t), or by a
    quarter of `near` for a single run. Draws beyond are finished draws that are more than `beyond`
    above the reference. Columns named anytime, if there are any, hold at every look at a growing
    study.
    """
    table = pd.DataFrame(
        [_edf_row(results.study, results.once(populations)[arm]) for arm in results.study.arms]
    )
    if results.looks.number > 1:
        of_arms = [anytime.of_arm(results.once(populations)[arm]) for arm in results.study.arms]
        table = table.join(pd.DataFrame(of_arms))
    return table.astype(dict.fromkeys(("num_better_than_reference", "num_beyond"), "Int64"))


def arm_comparison(results: Results) -> pd.DataFrame:
    """One row per pair of arms: forgiveness of a against b, then absolute values.

    Forgiveness is the area of a minus that of b (positive favours a), which is the primary
    comparison, and the ratio to the reference of a over that of b (below 1 favours a), both with
    the references' noise; then the share within the metric's `near` (4 points of top-1 error) of
    the arm's own reference, conditional on the references.

    Absolute values answer another question: the median of a minus that of b (negative favours a),
    and how often a has the lower one, with ties at one half. p tests for no difference; p_holm is
    corrected for the number of pairs, separately for each kind of p, and for looks at a growing
    study. Columns named anytime, if there are any, hold at every look.
    """
    pairs = [compare.compare(results, a, b) for a, b in results.study.pairs]
    table = pd.DataFrame(pairs, columns=list(compare.COMPARISON_COLUMNS))
    growing = _anytime(results) if results.looks.number > 1 else pd.DataFrame()
    for name in P_VALUES:
        at_any_look = growing["p"].tolist() if name == "area_p" and len(growing) else None
        corrected = results.corrected(name, results.study.pairs, table[name].tolist(), at_any_look)
        table.insert(list(table.columns).index(name) + 1, f"{name}_holm", corrected)
    for name in growing.columns.drop("p", errors="ignore"):
        table.insert(list(table.columns).index("area_p"), name, growing[name])
    return table


def _anytime(results: Results) -> pd.DataFrame:
    """One row per pair: what holds at every look."""
    draws = results.once(populations)
    rows = [
        anytime.of_pair(draws[a], draws[b], compare.paired(results.trials, a, b))
        for a, b in results.study.pairs
    ]
    return pd.DataFrame(rows)


def good_range(results: Results) -> pd.DataFrame:
    """One row per arm and axis: where good draws are, the reference setting and the sampled range.

    `good from`, `good median` and `good to` are the 2.5, 50 and 97.5 percentiles of the best of n/4
    draws over bootstraps: they describe a range of good values and are not a confidence interval.
    """
    rows = []
    for arm in results.study.arms:
        draws = results.once(populations)[arm]
        good = compare.good_draws(draws)
        for name in AXES:
            rows.append({"arm": arm, "axis": name, "n": draws.n, **_range_row(draws, name, good)})
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
    """The thresholds as columns; for the error, the column names state them."""
    return {} if metric is ERROR else {"near": metric.near, "beyond": metric.beyond}


def _range_row(draws: Population, name: str, good: np.ndarray) -> dict[str, float]:
    planned = draws.sampled[name]
    low, median, high = compare.good_range(draws, name, good)
    ends = (planned.min(), planned.max()) if len(planned) else (np.nan, np.nan)
    return {
        "good_from": low,
        "good_median": median,
        "good_to": high,
        "reference_setting": draws.setting[name],
        "sampled_min": float(ends[0]),
        "sampled_max": float(ends[1]),
    }
