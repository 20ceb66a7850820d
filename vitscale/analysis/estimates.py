"""Runs that differ in their seed alone: what an arm is made of, means, spreads and contrasts with
intervals.

Means and spreads are over the runs that finished. A diverged run has no error that a mean could
use: its worst value is a label. So every mean here is conditional on finishing, and the counts of
what did not finish stand beside it; divergence.py compares arms with those runs as the worst. How
often each interval covers: docs/method.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from scipy.special import chdtri, ndtri, stdtr, stdtrit
from scipy.special import ndtr as normal_cdf

from vitscale.analysis.results import STATUSES
from vitscale.analysis.stats.intervals import least_p, t_test, unequal_df
from vitscale.analysis.stats.spread import NO_SPREAD
from vitscale.plan.comparisons import num_independent
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

# values; of fewer the kurtosis is a guess, and chi-square's interval covers no worse
MIN_BONETT = 8


class Contrast(NamedTuple):
    """A weighted sum of means, its interval, two-sided
    p of 0, standard error, df and how it was made.
    """

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p: float = np.nan
    error: float = np.nan
    df: float = np.nan
    method: str = ""


def labelled(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """The table with a column for each factor of the study's
    arms, in place of a config column of that name.
    """
    names = next(iter(study.arms.values())).factors
    columns = {
        name: outcomes["arm"].map({arm.name: arm.factors[name] for arm in study.arms.values()})
        for name in names
    }
    return outcomes.assign(**columns)


def evaluations(study: Study) -> dict[str, str]:
    """Evaluation set -> the column with the study's metric on it, of the same weights."""
    first = study.trials[0].config
    common = [
        name for name in first.evals if all(name in trial.config.evals for trial in study.trials)
    ]
    return {name: study.column.on(name).name for name in common}


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that trained to the end."""
    return runs[runs["status"] == "finished"]


def errors(runs: pd.DataFrame, column: str = "value") -> np.ndarray:
    """(n,) values of the finished runs, by default of the study's metric.

    Raises ValueError if a finished run has no finite one.
    """
    if column not in runs:
        return np.empty(0)
    done = runs["status"] == "finished"
    values = runs[column][done].to_numpy(dtype=float)  # not of the frame: it has 100 columns
    if not np.isfinite(values).all():
        trial = runs["trial_id"][done].to_numpy()[~np.isfinite(values)][0]
        raise ValueError(
            f"a finished run must have a finite value, but got (trial_id={trial!r}, "
            f"column={column!r})"
        )
    return values


def by_parent(runs: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    """Means of the values (n,) of finished runs over those that start from one parent, which are
    not independent, in the order of parents. If all runs start from one, the values themselves.
    """
    starts = runs["init_from"].fillna("").tolist() if "init_from" in runs else [""]
    if not all(starts) or num_independent(starts) == len(starts):
        return values
    return means_of_parents(finished(runs), values)


def means_of_parents(done: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    """The mean of the values (n,) of each parent of finished runs, in the order of parents."""
    return pd.Series(values).groupby(done["init_from"].to_numpy()).mean().to_numpy()


def counts(runs: pd.DataFrame) -> dict[str, int]:
    """How many runs ended how, under the names of the statuses."""
    ended = runs["status"].tolist()
    return {status: ended.count(status) for status in STATUSES}


def describe(runs: pd.DataFrame) -> str:
    """The population in words: finished ones as n, and what did not finish."""
    return describe_counts(counts(runs))


def describe_counts(num_by_status: Mapping[str, int]) -> str:
    """The same of runs counted by status."""
    finished, *others = STATUSES
    ended = [f"{num_by_status[s]} {s}" for s in others if num_by_status[s] or s == "diverged"]
    return ", ".join([f"n={num_by_status[finished]}", *ended])


def mean_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of (n,) values, such as differences, and Student's interval: exact for normal values.

    Ends are NaN without any spread. The mean of a metric has its interval from `value_interval`.
    """
    result = contrast([values], [1.0], confidence=confidence)
    return result.estimate, result.low, result.high


def value_interval(
    values: np.ndarray, metric: Metric, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of (n,) values of a metric with Student's interval, for every place that shows one.

    Ends that few runs push out of the metric's bounds, as an error beyond 0 or 100%, are cut there:
    the interval covers as often.
    """
    mean, low, high = mean_interval(values, confidence)
    return mean, float(np.clip(low, *metric.bounds)), float(np.clip(high, *metric.bounds))


def sd_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Standard deviation (ddof=1) of (n,) values and its interval; NaN for fewer than two.

    Bonett's (2006), which takes the kurtosis from the values: errors over seeds have long upper
    tails, where that of chi-square covers 86% instead of 95% at n = 100. For fewer than 8 values
    chi-square's, exact for normal values only.
    """
    df, tail = len(values) - 1, (1 - confidence) / 2
    if df < 1:
        return np.nan, np.nan, np.nan
    sd = float(np.std(values, ddof=1))
    if len(values) >= MIN_BONETT:
        return sd, *_bonett(np.asarray(values, dtype=float), sd, float(ndtri(1 - tail)))
    low, high = (sd * float(np.sqrt(df / chdtri(df, p))) for p in (tail, 1 - tail))
    return sd, low, high


def _bonett(values: np.ndarray, sd: float, z: float) -> tuple[float, float]:
    """Ends of the interval of an sd: Bonett 2006, Comput. Stat. Data Anal. 50, 775-782, equation 6.

    Normal on the logarithm of the variance, with an error from the kurtosis around a trimmed mean.
    """
    n = len(values)
    if sd < NO_SPREAD:
        return np.nan, np.nan
    center = scipy.stats.trim_mean(values, 1 / (2 * np.sqrt(n - 4)))
    kurtosis = (
        n
        * float(((values - center) ** 4).sum())
        / float(((values - values.mean()) ** 2).sum()) ** 2
    )
    c = n / (n - z)
    half = z * c * float(np.sqrt(max(kurtosis - (n - 3) / n, 0.0) / (n - 1)))
    return sd * float(np.sqrt(c * np.exp(-half))), sd * float(np.sqrt(c * np.exp(half)))


def contrast(
    groups: Sequence[np.ndarray],
    weights: Sequence[float],
    *,
    sd: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Contrast:
    """The weighted sum of the means of groups, by Welch and Satterthwaite (Welch 1947): no equal
    variances.

    Assumes independent runs and means that are nearly normal. Without `sd` a group needs two runs,
    three if the groups differ in number, and some group a spread, or there is no interval. df is
    limited where the numbers differ (`unequal_df`). `sd`: standard
    deviations known from elsewhere, one a group, with normal quantiles: for single runs, and no
    better than the claim that the spread is the same here. If a group has equal errors, p is not
    below what an exact test of as many runs can reach.
    """
    sizes = np.array([len(values) for values in groups])
    if not sizes.all():
        return Contrast(method="no run finished")
    estimate = float(np.dot(weights, [np.mean(values) for values in groups]))
    if sd is not None:
        return _known(estimate, np.asarray(weights) * np.asarray(sd) / np.sqrt(sizes), confidence)
    if (sizes < 2).any():
        return Contrast(estimate, method="single run: no interval")
    parts = np.square(weights) * np.array([np.var(values, ddof=1) for values in groups]) / sizes
    error = float(np.sqrt(parts.sum()))
    if error < NO_SPREAD:
        return Contrast(estimate, method="equal errors: no interval")
    df = float(parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum())
    df = unequal_df(df, sizes.tolist())
    if np.isnan(df):
        return Contrast(estimate, method=f"{sizes.min()} runs against {sizes.max()}: no interval")
    half = float(stdtrit(df, (1 + confidence) / 2)) * error
    p = max(t_test(estimate, error, df), _least_p(groups, weights))
    name = "t" if len(groups) == 1 else "Welch's t"
    return Contrast(estimate, estimate - half, estimate + half, p, error, df, name)


def equivalence_p(
    result: Contrast, margin: float, groups: Sequence[np.ndarray], weights: Sequence[float]
) -> float:
    """p of a contrast of at least `margin` to either side, by two one-sided t tests (Schuirmann
    1987); NaN without an interval. Below 5% where the 90% interval lies within the margin.
    """
    if np.isnan(result.p):
        return np.nan
    nearer = (margin - abs(result.estimate)) / result.error
    return max(float(stdtr(result.df, -nearer)), _least_p(groups, weights))


def _least_p(groups: Sequence[np.ndarray], weights: Sequence[float]) -> float:
    """The smallest p that an exact test of as many runs can have, if a group has equal errors; 0
    otherwise, where t stands for itself.

    Equal errors are not from a normal distribution: of seeds that collapse, all have the error of
    chance. If half of them do so, 3 of 3 in one arm and 0 of 3 in the other is 3% of studies.
    """
    if min(float(np.ptp(values)) for values in groups) >= NO_SPREAD:
        return 0.0
    n, m = (
        sum(len(x) for x, w in zip(groups, weights, strict=True) if (w > 0) == side)
        for side in (True, False)
    )
    return least_p(n, m, paired=False)


def _known(estimate: float, parts: np.ndarray, confidence: float) -> Contrast:
    error = float(np.sqrt((parts**2).sum()))
    half = float(ndtri((1 + confidence) / 2)) * error
    p = float(2 * normal_cdf(-abs(estimate) / error))
    return Contrast(
        estimate,
        estimate - half,
        estimate + half,
        p,
        error,
        np.inf,
        "normal, spread from elsewhere",
    )
