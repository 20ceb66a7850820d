"""Comparison of two arms (forgiveness, absolute error) and the range where an arm trains well."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis.distribution import forgiveness
from vitscale.analysis.distribution.population import Population, populations
from vitscale.analysis.results import Results
from vitscale.analysis.stats.intervals import (
    clopper_pearson,
    least_p,
    median_difference,
    median_interval,
    minus,
    probability_interval,
    satterthwaite,
    share_interval,
    sign_test,
    standard_error,
    t_test,
    unequal_df,
)

COMPARISON_COLUMNS = (
    "a",
    "b",
    "paired",
    "n_a",
    "n_b",
    *forgiveness.COLUMNS,
    "median_difference",
    "median_difference_low",
    "median_difference_high",
    "prob_a_lower",
    "prob_a_lower_low",
    "prob_a_lower_high",
    "prob_p",
    "prob_method",
)
MIN_GOOD_RANGE = 8  # draws; with fewer, n // 4 is one draw and nothing is selected
AT_ONCE = 50  # bootstraps: all of 25,000 draws would take 250 MB


def paired(outcomes: pd.DataFrame, a: str, b: str) -> bool:
    """Whether two arms share their draws: common points, all with equal lr and equal wd."""
    draws = outcomes[outcomes["point"].notna()].set_index("point")[["arm", "lr", "wd"]]
    first, second = (draws.loc[draws["arm"] == arm, ["lr", "wd"]] for arm in (a, b))
    shared = first.index.intersection(second.index)
    return bool(len(shared) and (first.loc[shared] == second.loc[shared]).all(axis=None))


def compare(results: Results, a: str, b: str, confidence: float = 0.95) -> dict[str, object]:
    """One comparison under COMPARISON_COLUMNS: forgiveness, then absolute error.

    The columns of forgiveness are described in `forgiveness.forgiveness`. `median_difference`
    is a - b in the metric's unit: negative favours a. `prob_a_lower` is the probability of
    superiority with ties at one half (Vargha & Delaney 2000): over pairs at the same point, or, for
    unpaired arms, over random pairs of draws. A diverged draw counts as the metric's worst value,
    so it loses to every finished draw and ties with another diverged one. NaN where an arm has no
    outcome.
    """
    first, second = (results.once(populations)[arm] for arm in (a, b))
    is_paired = paired(results.trials, a, b)
    n_a, n_b, *error = (_paired if is_paired else _unpaired)(first, second, confidence)
    near = forgiveness.forgiveness(first, second, is_paired, confidence).values()
    return dict(zip(COMPARISON_COLUMNS, (a, b, is_paired, n_a, n_b, *near, *error), strict=True))


def _paired(a: Population, b: Population, confidence: float) -> tuple[object, ...]:
    """Values of a paired comparison, from n_a on.

    We use the sign test and not Wilcoxon's: Wilcoxon ranks the magnitudes of the differences and
    assumes that they are symmetric, but the worst value of a diverged draw has no meaningful
    magnitude. The sign test and the effect size use only which arm is better.
    """
    _, in_a, in_b = np.intersect1d(a.point, b.point, return_indices=True)
    difference = minus(a.error[in_a], b.error[in_b])
    scramble = None if a.scramble is None else a.scramble[in_a]
    n = len(difference)
    if n == 0:
        return 0, 0, *[np.nan] * 7, "no pair has both outcomes"
    score = (difference < 0) + 0.5 * (difference == 0)
    median = (
        float(np.median(difference)),
        *median_interval(difference, scramble, confidence, a.metric.differences),
    )
    low, high = share_interval(score, scramble, confidence)
    p, test = _paired_p(score, scramble)
    return n, n, *median, float(score.mean()), float(low), float(high), p, test


def _paired_p(score: np.ndarray, scramble: np.ndarray | None) -> tuple[float, str]:
    """p and the name of the test: the exact sign test, or t over the scrambles if they differ."""
    if scramble is not None:
        error, df = standard_error(score, scramble)
        if df == 0:
            return np.nan, "none: one scramble"
        if error > 1e-12:
            return t_test(float(score.mean()) - 0.5, float(error), df), f"t over {df + 1} scrambles"
    return sign_test(int((score == 1).sum()), int((score == 0).sum())), "exact sign test"


def _unpaired(a: Population, b: Population, confidence: float) -> tuple[object, ...]:
    """Values of an unpaired comparison, from n_a on.

    Draws of the two arms are treated as independent. If they were sampled with the same seed, their
    quantiles agree and the intervals are conservative.
    """
    if a.n == 0 or b.n == 0:
        return a.n, b.n, *[np.nan] * 7, "an arm has no outcome"
    difference = median_difference(
        _median(a, confidence), _median(b, confidence), a.metric.differences
    )
    return a.n, b.n, *difference, *superiority(a, b, confidence)


def _median(draws: Population, confidence: float) -> tuple[float, float, float]:
    ends = median_interval(draws.error, draws.scramble, confidence, draws.metric.bounds)
    return float(np.median(draws.error)), *ends


def superiority(
    a: Population, b: Population, confidence: float = 0.95
) -> tuple[float, float, float, float, str]:
    """Probability of superiority of a with its interval, p and the name of the test.

    This is the probability that a draw of a has a lower error than a draw of b, with ties at one
    half: the Mann-Whitney statistic with the variance of Brunner & Munzel (2000). Unlike the
    Mann-Whitney test it does not assume that arms with equal medians have equal spread, and spread
    is what an EDF shows. p is for the probability 1/2, and not below what a permutation of as many
    ranks can reach. For Sobol designs the variance is estimated between scrambles. If one arm
    always wins, the variance is zero: then we report the exact interval and the sign test for as
    many independent pairs as the smaller arm has draws.
    """
    wins = b.n - _num_below(a.error, b.error)  # of each draw of a; all pairs would take n^2 bytes
    lost = _num_below(b.error, a.error)  # of each draw of b
    prob = float(wins.sum() / (a.n * b.n))
    error_a, df_a = standard_error(wins / b.n, np.arange(a.n) if a.scramble is None else a.scramble)
    error_b, df_b = standard_error(lost / a.n, np.arange(b.n) if b.scramble is None else b.scramble)
    if not df_a or not df_b or error_a + error_b < 1e-10:
        return _separated(prob, min(a.n, b.n), confidence)
    error, df = satterthwaite([(float(error_a), df_a), (float(error_b), df_b)])
    df = unequal_df(df, (df_a + 1, df_b + 1))
    if np.isnan(df):
        return prob, np.nan, np.nan, np.nan, forgiveness.UNEQUAL
    name = "Brunner-Munzel" if a.scramble is None else "Brunner-Munzel over scrambles"
    p = max(t_test(prob - 0.5, error, df), least_p(a.n, b.n, paired=False))
    return prob, *probability_interval(prob, error, df, confidence), p, name


def _num_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) for each of (n,) values how many of the others are below it, with ties at one half."""
    ascending = np.sort(others)
    below, at_most = (np.searchsorted(ascending, values, side=side) for side in ("left", "right"))
    return 0.5 * (below + at_most)


def _separated(prob: float, n: int, confidence: float) -> tuple[float, float, float, float, str]:
    low, high = clopper_pearson(prob * n, n, confidence)
    p = sign_test(int(prob * n), int((1 - prob) * n))
    return prob, float(low), float(high), p, "exact sign test of random pairs"


def good_draws(draws: Population, *, num: int = 2500, seed: int = 0) -> np.ndarray:
    """(m,) draws with the lowest error of `num` bootstraps of n / 4 draws with replacement.

    Bootstraps without a finished draw have none, so m <= num; m = 0 for fewer than 8 draws.
    """
    if draws.n < MIN_GOOD_RANGE:
        return np.empty(0, int)
    rng, errors, best = np.random.default_rng(seed), draws.level(), []
    for begin in range(0, num, AT_ONCE):
        picks = rng.integers(draws.n, size=(min(AT_ONCE, num - begin), draws.n // 4))
        best.append(np.take_along_axis(picks, errors[picks].argmin(axis=1)[:, None], 1)[:, 0])
    winners = np.concatenate(best)
    return winners[np.isfinite(errors[winners])]


def good_range(draws: Population, name: str, good: np.ndarray) -> tuple[float, float, float]:
    """2.5, 50 and 97.5 percentiles (on a log scale) of lr, wd or lr*wd over `good_draws`.

    The good range of pycls (Radosavovic et al.): it describes where good draws are and is not a
    confidence interval. NaN without good draws, or for a value <= 0.
    """
    values = draws.values[name]
    if not len(good) or not (values > 0).all():
        return np.nan, np.nan, np.nan
    low, median, high = 10 ** np.quantile(np.log10(values[good]), [0.025, 0.5, 0.975])
    return float(low), float(median), float(high)
