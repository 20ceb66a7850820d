"""Confidence intervals for shares, means and medians, for i.i.d. draws and scrambled Sobol designs.

A scrambled Sobol sequence covers the space evenly, so its draws are not independent; its scrambles
are. Where `scramble` is given, the error is estimated only from the spread between scrambles (Owen
1997): Student's t, with one degree of freedom less than there are scrambles. If all scrambles
agree, that spread is 0 and uninformative, and we return the interval for i.i.d. draws; evenly
spread points are rarely worse than independent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from scipy.special import bdtr, betaincinv, expit, logit, ndtri, stdtr, stdtrit

Interval = tuple[np.ndarray, np.ndarray]  # low and high, of the shape of the estimate

# Welch's level of 5% is 10 to 12% with 2 against 10 or 20 values, and 7% with 3 against 20
# (docs/method-repeats.md). So unequal groups need LEAST_UNEQUAL values each, and `unequal_df`
# limits their degrees of freedom, most where one has over MOST_UNEQUAL times the values of another.
LEAST_UNEQUAL, MOST_UNEQUAL = 3, 2
# With 2 reference runs of an arm, 6 to 8% of equal arms would differ in area at 5%.
LEAST_REFERENCES = 3


def clopper_pearson(hits: np.ndarray | float, n: int, confidence: float = 0.95) -> Interval:
    """Exact interval for a share, from `hits` of `n` i.i.d. draws (Clopper & Pearson 1934).

    [0, 1] for n = 0. Half hits are allowed: a tie that scores 1/2 varies less than a win or a loss,
    so the interval stays conservative.
    """
    tail, hits = (1 - confidence) / 2, np.asarray(hits, dtype=float)
    misses = n - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-12), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, 1e-12), 1 - tail), 1.0)
    return low, high


def standard_error(scores: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, int]:
    """Standard error of the mean of (n, ...) scores from the spread between groups, and its df.

    The groups must be independent. This is the ratio estimator of cluster sampling (Cochran 1977,
    chapter 9), so groups may be incomplete. With groups of equal size it is the usual standard
    error of the mean of the group means. NaN for fewer than 2 groups.
    """
    labels, index = np.unique(group, return_inverse=True)
    num = len(labels)
    if num < 2:
        return np.full(scores.shape[1:], np.nan), 0
    totals = np.zeros((num, *scores.shape[1:]))
    np.add.at(totals, index, scores - scores.mean(axis=0))
    return np.sqrt(num / (num - 1) * (totals**2).sum(axis=0)) / len(scores), num - 1


def share_interval(
    hits: np.ndarray, scramble: np.ndarray | None = None, confidence: float = 0.95
) -> Interval:
    """Interval for the mean of (n, ...) hits or scores in [0, 1].

    Clopper-Pearson's for i.i.d. draws, else t over scrambles. Clopper-Pearson uses the sum of the
    scores as the number of hits. Scores between 0 and 1 vary less than hits with the same mean, so
    it is conservative for them. It also stays valid for a few low scores among high ones, which
    bootstrap resamples often miss. A few small scrambles are not close to normal: with a few
    diverged draws, 4 scrambles of 4 draws covered 86% in simulation, 4 of 8 covered 89% and 4 of 16
    covered 95%. Returns [0, 1] if only one scramble has an outcome. For scores, see
    `area_interval`.
    """
    hits = np.asarray(hits, dtype=float)
    low, high = clopper_pearson(hits.sum(axis=0), len(hits), confidence)
    if scramble is None:
        return low, high
    error, df = standard_error(hits, scramble)
    if df == 0:
        return np.zeros_like(low), np.ones_like(high)
    mean, half = hits.mean(axis=0), stdtrit(df, (1 + confidence) / 2) * error
    agree = error <= 1e-12
    low, high = np.where(agree, low, mean - half), np.where(agree, high, mean + half)
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def area_interval(
    scores: np.ndarray, scramble: np.ndarray | None = None, confidence: float = 0.95
) -> Interval:
    """Interval for the mean of (n, ...) scores in [0, 1] by `pseudo_error`.

    For Sobol designs it is at least as wide as `share_interval`: a few scrambles of any size rarely
    sample a rare bad corner of the space, and t over the scrambles alone covered 80 to 86% of such
    areas in simulation. We take the wider end of both intervals.
    """
    center, error, df = pseudo_error(scores)
    half = stdtrit(df, (1 + confidence) / 2) * error
    low, high = np.clip(center - half, 0, 1), np.clip(center + half, 0, 1)
    if scramble is None:
        return low, high
    spread_low, spread_high = share_interval(scores, scramble, confidence)
    return np.minimum(low, spread_low), np.maximum(high, spread_high)


def pseudo_error(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Center, standard error and df of the mean of (n, ...) scores in [0, 1] with pseudo-scores.

    A score of 0 and a score of 1 are added. Most scores are near 1 and a few are low; a small
    sample may contain none of the low ones, and plain t covers 88 to 94% then.
    """
    added = np.concatenate([scores, np.zeros_like(scores[:1]), np.ones_like(scores[:1])])
    return (
        added.mean(axis=0),
        added.std(axis=0, ddof=1) / np.sqrt(len(added)),
        max(len(scores) - 1, 1),
    )


def wilson(hits: np.ndarray | float, n: int, confidence: float = 0.95) -> Interval:
    """Score interval for a share (Wilson 1927), from `hits` of `n`; not degenerate at 0 and 1."""
    hits, z2 = np.asarray(hits, dtype=float), float(ndtri((1 + confidence) / 2)) ** 2
    center, half = hits + z2 / 2, np.sqrt(z2 * (hits * (n - hits) / n + z2 / 4))
    return np.maximum((center - half) / (n + z2), 0.0), np.minimum((center + half) / (n + z2), 1.0)


def agresti_coull(hits: np.ndarray, n: int, confidence: float = 0.95) -> Interval:
    """Interval of a share with the center of Wilson's and a normal width (Agresti & Coull 1998).

    It covers at least 92% (exact, 8 draws and more, shares from 1 to 99%), where Wilson's falls to
    85%, and is 2 to 5% wider.
    """
    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    center = (np.asarray(hits, dtype=float) + z2 / 2) / (n + z2)
    half = np.sqrt(z2 * center * (1 - center) / (n + z2))
    return np.maximum(center - half, 0.0), np.minimum(center + half, 1.0)


def share_difference(
    hits_a: int, n_a: int, hits_b: int, n_b: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval within [-1, 1] for share a - share b of independent samples (Agresti & Caffo 2000).

    Newcombe's hybrid score has the same width and covers as little as 88% with 8 draws per arm, 92%
    with 16.
    """
    from statsmodels.stats.proportion import confint_proportions_2indep

    low, high = confint_proportions_2indep(
        hits_a, n_a, hits_b, n_b, method="agresti-caffo", alpha=1 - confidence
    )
    return max(float(low), -1.0), min(float(high), 1.0)


def paired_share_difference(
    both: int, only_a: int, only_b: int, neither: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval for share a - share b over the same points: Newcombe 1998, p. 2635, method 10.

    It combines two Wilson intervals (square-and-add) with the correlation of the hits, which is
    corrected for continuity if it is positive. Unlike Wald's interval, it is not degenerate without
    discordant points.
    """
    n, product = both + only_a + only_b + neither, both * neither - only_a * only_b
    squares = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    corrected = max(product - n / 2, 0.0) if product > 0 else float(product)
    phi = corrected / np.sqrt(squares) if squares else 0.0
    return _square_and_add(both + only_a, n, both + only_b, n, float(phi), confidence)


def _square_and_add(
    hits_a: int, n_a: int, hits_b: int, n_b: int, phi: float, confidence: float
) -> tuple[float, float]:
    (low_a, high_a), (low_b, high_b) = (
        tuple(map(float, wilson(hits, n, confidence))) for hits, n in ((hits_a, n_a), (hits_b, n_b))
    )
    a, b = hits_a / n_a, hits_b / n_b

    def root(x: float, y: float) -> float:
        return float(np.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0)))

    return a - b - root(a - low_a, high_b - b), a - b + root(high_a - a, b - low_b)


def pseudo_pairs_error(differences: np.ndarray) -> float:
    """Standard error of the mean of (n,) differences of scores in [0, 1], with pseudo-pairs.

    Half a pair with difference 1, half a pair with -1 and one pair with 0 are added (Agresti & Min
    2005), so the error is not 0 if all differences are equal.
    """
    n = len(differences)
    variance = ((differences**2).sum() + 1) / (n + 2) - (differences.sum() / (n + 2)) ** 2
    return float(np.sqrt(variance / (n + 1)))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent estimates and its df (Satterthwaite 1946;
    Welch 1947 of two).

    `parts` are (error, df) of each estimate. A part with error 0 is ignored. The df is infinite if
    all errors are 0.
    """
    squares = [(error**2, df) for error, df in parts if error > 0]
    total = sum(square for square, _ in squares)
    return float(np.sqrt(total)), total**2 / sum(
        square**2 / df for square, df in squares
    ) if squares else np.inf


def unequal_df(df: float, sizes: Sequence[int]) -> float:
    """df of independent means of so many values each, from Welch's or Satterthwaite's; NaN if they
    carry no interval.

    If the numbers differ, df is at most 1 + g/4 times that of the smallest of the g groups, and at
    most that one if another group is over twice as large. The smallest group may have the largest
    sd, and Welch's df is then too large. The factor is from simulations of 2 and 4 groups.
    """
    least, most = min(sizes), max(sizes)
    if least == most:
        return df
    if least < LEAST_UNEQUAL:
        return np.nan
    factor = 1.0 if most > MOST_UNEQUAL * least else 1 + len(sizes) / 4
    return min(df, factor * (least - 1))


def median_interval(
    values: np.ndarray,
    scramble: np.ndarray | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (0.0, 100.0),
) -> tuple[float, float]:
    """Interval for the median of (n,) values, by inverting that of the share (Woodruff 1952).

    It contains all x for which the interval of the share <= x contains 1/2. For i.i.d. draws the
    ends are order statistics, and the coverage is at least nominal for any distribution, with or
    without ties. `bounds` are the possible values: an end that the draws do not determine is set to
    its bound.
    """
    levels = np.unique(values)
    if scramble is None:  # counts, since the table of the other branch has n^2 entries
        reached = np.searchsorted(np.sort(values), [-np.inf, *levels], side="right")
        low, high = clopper_pearson(reached, len(values), confidence)
    else:
        table = np.asarray(values)[:, None] <= np.concatenate([[-np.inf], levels])
        low, high = share_interval(table, scramble, confidence)
    ends = np.concatenate([[bounds[0]], levels])
    above = low > 0.5
    return float(ends[high >= 0.5][0]), float(ends[above][0]) if above.any() else bounds[1]


def minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,) differences a - b; 0 between two equal values, also infinite ones."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


def median_difference(
    a: tuple[float, float, float],
    b: tuple[float, float, float],
    bounds: tuple[float, float],
) -> tuple[float, float, float]:
    """a - b of two independent medians, with an interval that combines those of both.

    Source: Zou & Donner 2008. Unlike a bootstrap it is valid for small n, ties and Sobol designs.
    `bounds` are the possible differences, which are returned if a median is infinite.
    """
    (x, x_low, x_high), (y, y_low, y_high) = a, b
    if not (np.isfinite(x) and np.isfinite(y)):
        return float(minus(np.array([x]), np.array([y]))[0]), *bounds
    low, high = x - y - np.hypot(x - x_low, y_high - y), x - y + np.hypot(x_high - x, y - y_low)
    return x - y, float(max(low, bounds[0])), float(min(high, bounds[1]))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p of the sign test, without ties; 1 if there are neither wins nor losses."""
    num = wins + losses
    return float(min(1.0, 2 * bdtr(float(min(wins, losses)), num, 0.5))) if num else 1.0


def mid_p_sign_test(wins: int, losses: int) -> float:
    """Two-sided mid-p of the sign test, and so of McNemar's test (Lancaster 1961).

    The probability of the observed result counts half. The level is closer to the nominal one than
    that of the exact test and rarely exceeds it. 1 if wins equal losses.
    """
    fewer, num = min(wins, losses), wins + losses
    seen = (
        bdtr(float(fewer), num, 0.5) - (bdtr(float(fewer - 1), num, 0.5) if fewer else 0.0)
        if num
        else 0.0
    )
    return 1.0 if wins == losses else float(2 * bdtr(float(fewer), num, 0.5) - seen)


def t_test(difference: float, error: float, df: float) -> float:
    """Two-sided p for a difference of 0, from the difference and its standard error."""
    return float(2 * stdtr(df, -abs(difference) / error))


def least_p(n: int, m: int, paired: bool) -> float:
    """The smallest two-sided p that an exact permutation test of n and m values can have."""
    return 0.5 ** (n - 1) if paired else min(1.0, 2 / comb(n + m, n))


def probability_interval(
    prob: float, error: float, df: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Student's interval of a probability in (0, 1) on the logit scale.

    The interval of Brunner & Munzel, on the plain scale, covers 89% instead of 95% near the ends
    with 16 draws per arm.
    """
    half = float(stdtrit(df, (1 + confidence) / 2)) * error / (prob * (1 - prob))
    center = logit(prob)
    return float(expit(center - half)), float(expit(center + half))
