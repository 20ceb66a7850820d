"""Confidence intervals for shares, means and medians, for i.i.d. draws and for scrambled Sobol designs.

A scrambled Sobol sequence spreads its points evenly, so its draws are not independent; its scrambles are.
Where `scramble` is given, the spread between the scrambles is the only measure of error (Owen 1997):
Student's t with one degree of freedom less than there are scrambles. Where all scrambles agree, that spread
is 0 and says nothing, and the interval for i.i.d. draws is given instead; even points seldom do worse than
independent ones.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, betaincinv, expit, logit, ndtri, stdtr, stdtrit

Interval = tuple[np.ndarray, np.ndarray]  # low and high, of the shape of the estimate


def clopper_pearson(hits: np.ndarray | float, n: int, confidence: float = 0.95) -> Interval:
    """Exact interval for a share, from `hits` of `n` i.i.d. draws (Clopper & Pearson 1934); [0, 1] for n = 0.

    Half hits are allowed: a tie that scores 1/2 varies less than a win or a loss, so the interval stays
    conservative.
    """
    tail, hits = (1 - confidence) / 2, np.asarray(hits, dtype=float)
    misses = n - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-12), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, 1e-12), 1 - tail), 1.0)
    return low, high


def standard_error(scores: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, int]:
    """Standard error of the mean of (n, ...) scores from the spread between independent groups, and its df.

    The ratio estimator of cluster sampling (Cochran 1977, chapter 9), so groups may be incomplete. With
    groups of equal size it is the textbook error of the mean of the group means. NaN with fewer than 2
    groups.
    """
    labels, index = np.unique(group, return_inverse=True)
    num = len(labels)
    if num < 2:
        return np.full(scores.shape[1:], np.nan), 0
    totals = np.zeros((num, *scores.shape[1:]))
    np.add.at(totals, index, scores - scores.mean(axis=0))
    return np.sqrt(num / (num - 1) * (totals**2).sum(axis=0)) / len(scores), num - 1


def share_interval(hits: np.ndarray, scramble: np.ndarray | None = None, confidence: float = 0.95) -> Interval:
    """Interval for the mean of (n, ...) hits or scores in [0, 1]: Clopper-Pearson, or t over the scrambles.

    Clopper-Pearson takes the sum of the scores for the number of hits. Scores between 0 and 1 vary less than
    hits of the same mean, so it is conservative for them, and stays valid for a few low scores among high
    ones, of which a bootstrap often sees none. Few small scrambles are not nearly normal: with a few diverged
    draws, 4 scrambles of 4 draws covered 86% of the time in simulation, 4 of 8 covered 89% and 4 of 16
    covered 95%. Tells nothing, [0, 1], when only one scramble has an outcome.
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


def wilson(hits: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval for a share (Wilson 1927): a part of Newcombe's intervals for differences."""
    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    center, half = hits + z2 / 2, np.sqrt(z2 * (hits * (n - hits) / n + z2 / 4))
    return float((center - half) / (n + z2)), float((center + half) / (n + z2))


def share_difference(hits_a: int, n_a: int, hits_b: int, n_b: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for share a - share b of independent samples: hybrid score (Newcombe 1998, p. 873, method 10)."""
    return _square_and_add(hits_a, n_a, hits_b, n_b, 0.0, confidence)


def paired_share_difference(
    both: int, only_a: int, only_b: int, neither: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval for share a - share b over the same points: Newcombe 1998, p. 2635, method 10.

    Square-and-add of two Wilson intervals with the correlation of the hits, corrected for continuity where it
    is positive. Unlike Wald's it has a width without discordant points.
    """
    n, product = both + only_a + only_b + neither, both * neither - only_a * only_b
    squares = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    corrected = max(product - n / 2, 0.0) if product > 0 else float(product)
    phi = corrected / np.sqrt(squares) if squares else 0.0
    return _square_and_add(both + only_a, n, both + only_b, n, float(phi), confidence)


def _square_and_add(hits_a: int, n_a: int, hits_b: int, n_b: int, phi: float, confidence: float) -> tuple[float, float]:
    (low_a, high_a), (low_b, high_b) = wilson(hits_a, n_a, confidence), wilson(hits_b, n_b, confidence)
    a, b = hits_a / n_a, hits_b / n_b

    def root(x: float, y: float) -> float:
        return float(np.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0)))

    return a - b - root(a - low_a, high_b - b), a - b + root(high_a - a, b - low_b)


def paired_mean_difference(differences: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the mean of (n,) differences of scores in [0, 1]: t with pseudo-pairs (Agresti & Min 2005).

    Half a pair of difference 1, half of -1 and one of 0 are added. Scores are mostly near 1 with a few low ones, of
    which a small sample may see none: plain t covered down to 76% and bootstrap-t down to 74% at n = 16 in
    simulation, this 97% and more.
    """
    n = len(differences)
    if n < 2:
        return -1.0, 1.0
    mean = differences.sum() / (n + 2)
    variance = ((differences**2).sum() + 1) / (n + 2) - mean**2
    half = stdtrit(n - 1, (1 + confidence) / 2) * np.sqrt(variance / (n + 1))
    return max(float(mean - half), -1.0), min(float(mean + half), 1.0)


def mean_difference(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the difference of the means of independent scores in [0, 1]: Welch's t with pseudo-draws.

    A score of 0 and one of 1 are added to each sample (Agresti & Caffo 2000), for the reason given at
    `paired_mean_difference`.
    """
    if min(len(a), len(b)) < 2:
        return -1.0, 1.0
    first, second = (np.concatenate([scores, [0.0, 1.0]]) for scores in (a, b))
    error_a, error_b = (float(x.std(ddof=1)) / len(x) ** 0.5 for x in (first, second))
    error, df = welch(error_a, error_b, len(a) - 1, len(b) - 1)
    center, half = first.mean() - second.mean(), float(stdtrit(df, (1 + confidence) / 2)) * error
    return max(float(center - half), -1.0), min(float(center + half), 1.0)


def welch(error_a: float, error_b: float, df_a: int, df_b: int) -> tuple[float, float]:
    """Standard error of a difference of independent means, not 0, and its df (Welch 1947)."""
    a, b = error_a**2, error_b**2
    return float(np.sqrt(a + b)), (a + b) ** 2 / (a**2 / df_a + b**2 / df_b)


def median_interval(
    values: np.ndarray,
    scramble: np.ndarray | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (0.0, 100.0),
) -> tuple[float, float]:
    """Interval for the median of (n,) values: all x where the interval of the share <= x holds 1/2 (Woodruff 1952).

    For i.i.d. draws it ends at order statistics and covers at least as often as promised, whatever the
    distribution and its ties. `bounds` are the possible values; an end that the draws cannot tell lies there.
    """
    levels = np.unique(values)
    reached = np.asarray(values)[:, None] <= np.concatenate([[-np.inf], levels])
    low, high = share_interval(reached, scramble, confidence)
    ends = np.concatenate([[bounds[0]], levels])
    above = low > 0.5
    return float(ends[high >= 0.5][0]), float(ends[above][0]) if above.any() else bounds[1]


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p of the sign test; ties are left out before. 1 when nothing is left."""
    num = wins + losses
    return float(min(1.0, 2 * bdtr(float(min(wins, losses)), num, 0.5))) if num else 1.0


def t_test(difference: float, error: float, df: float) -> float:
    """Two-sided p of a difference from 0 with its standard error."""
    return float(2 * stdtr(df, -abs(difference) / error))


def probability_interval(prob: float, error: float, df: float, confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of a probability in (0, 1), on the scale of its logit.

    Brunner & Munzel's own, on the plain scale, covers 89% instead of 95% near the ends with 16 draws an arm.
    """
    half = float(stdtrit(df, (1 + confidence) / 2)) * error / (prob * (1 - prob))
    center = logit(prob)
    return float(expit(center - half)), float(expit(center + half))
