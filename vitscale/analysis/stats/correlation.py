"""Correlation of two measurements of the same runs, with intervals."""

from __future__ import annotations

import numpy as np
import scipy
from scipy.special import ndtri, stdtrit

Estimate = tuple[float, float, float]  # estimate, low, high
# of fewer, an interval spans nearly all of [-1, 1], or the bootstrap has nothing to draw from
MIN_PAIRS = 5


def pearson(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Pearson's r of (n,) pairs and Fisher's z interval (Fisher 1921).

    The standard error of z is 1 / sqrt(n - 3). Assumes independent, bivariate normal pairs; r is
    sensitive to outliers. NaN for fewer than 5 pairs or if a side is constant.
    """
    r = _correlation(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return _fisher(r, 1 / np.sqrt(max(len(x) - 3, 1)), confidence)


def spearman(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Spearman's rank correlation of (n,) pairs with the interval of Bonett & Wright 2000.

    This is Fisher's z with 1 + r**2 / 2. Assumes independent pairs and few ties; intended for |r| <
    0.9. Fast enough for every epoch of a training.
    """
    rho = _correlation(scipy.stats.rankdata(x), scipy.stats.rankdata(y))
    return _fisher(rho, np.sqrt((1 + rho**2 / 2) / max(len(x) - 3, 1)), confidence)


def spearman_bootstrap(
    x: np.ndarray, y: np.ndarray, confidence: float = 0.95, *, num: int = 2000, seed: int = 0
) -> Estimate:
    """Spearman's rank correlation of (n,) pairs with an interval from `num` resamples of the pairs.

    The standard deviation of Fisher's z over the resamples is used around z. It assumes independent
    pairs, but neither a shape of the distribution nor the absence of ties. Percentiles are not
    better centred, since resampling creates ties.
    """
    rho = _correlation(scipy.stats.rankdata(x), scipy.stats.rankdata(y))
    if np.isnan(rho):
        return np.nan, np.nan, np.nan
    picks = np.random.default_rng(seed).integers(len(x), size=(num, len(x)))
    ranks = (scipy.stats.rankdata(np.asarray(side)[picks], axis=1) for side in (x, y))
    a, b = (side - side.mean(axis=1, keepdims=True) for side in ranks)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    resampled = ((a * b).sum(axis=1) / np.where(scale > 0, scale, np.nan)).clip(-1 + 1e-9, 1 - 1e-9)
    return _fisher(rho, float(np.nanstd(np.arctanh(resampled), ddof=1)), confidence)


def pearson_difference(
    x: np.ndarray, others: tuple[np.ndarray, np.ndarray], *, num: int = 10_000, seed: int = 0
) -> Estimate:
    """Pearson's r of (n,) x with the first of `others` minus that with the second, with a 95%
    percentile interval from `num` resamples of the n units.

    The two share x, so intervals of each do not tell whether they differ. No resample may be of
    equal units alone, which needs about ten of them.
    """
    picks = np.random.default_rng(seed).integers(len(x), size=(num, len(x)))
    sides = [np.asarray(side, dtype=float)[picks] for side in (x, *others)]
    a, *b = (side - side.mean(axis=1, keepdims=True) for side in sides)
    first, second = (
        (a * c).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (c * c).sum(axis=1)) for c in b
    )
    low, high = np.percentile(first - second, (2.5, 97.5))
    return _correlation(x, others[0]) - _correlation(x, others[1]), float(low), float(high)


def shared_sd(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Square root of the covariance of (n,) pairs, with its interval; 0 for a negative covariance.

    This is the spread that x and y share: for the errors of networks on two sets with different
    images, it is the spread of their errors on infinitely many images (Jordan 2023, arXiv
    2304.01910). The interval is Student's for the mean product of deviations, which is the
    covariance, cut at 0 before the square root: if both ends are 0, no common variation is shown.
    NaN for fewer than 5 pairs.
    """
    n = len(x)
    if n < MIN_PAIRS:
        return np.nan, np.nan, np.nan
    products = (x - x.mean()) * (y - y.mean()) * n / (n - 1)
    center, half = (
        products.mean(),
        stdtrit(n - 1, (1 + confidence) / 2) * products.std(ddof=1) / np.sqrt(n),
    )
    covariance, low, high = (
        float(np.sqrt(max(value, 0.0))) for value in (center, center - half, center + half)
    )
    return covariance, low, high


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    a, b = x - x.mean() if len(x) else x, y - y.mean() if len(y) else y
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if len(x) >= MIN_PAIRS and scale > 1e-12 else np.nan


def _fisher(r: float, error: float, confidence: float) -> Estimate:
    """r with an interval on the scale of z = atanh r; zero width if |r| is 1."""
    half = float(ndtri((1 + confidence) / 2)) * error
    z = np.arctanh(np.clip(r, -1, 1)) if abs(r) < 1 else np.sign(r) * np.inf
    return r, float(np.tanh(z - half)), float(np.tanh(z + half))
