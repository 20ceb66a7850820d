"""Correlation of two measurements of the same runs, with intervals."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit
from scipy.stats import rankdata

Estimate = tuple[float, float, float]  # estimate, low, high
# of fewer, an interval spans nearly all of [-1, 1], or the bootstrap has nothing to draw from
MIN_PAIRS = 5


def pearson(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Pearson's r of (n,) pairs and Fisher's z interval, standard error 1 / sqrt(n - 3) (Fisher
    1921).

    Assumes independent pairs that are bivariate normal; r is moved by a single outlier. NaN for
    fewer than 5 pairs or a side without spread.
    """
    r = _correlation(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return _fisher(r, 1 / np.sqrt(max(len(x) - 3, 1)), confidence)


def spearman(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Spearman's rank correlation of (n,) pairs and the interval of Bonett & Wright 2000: Fisher's
    z with 1 + r**2 / 2.

    Assumes independent pairs and no heavy ties; made for |r| < 0.9. Cheap enough for every epoch of
    a training.
    """
    rho = _correlation(rankdata(x), rankdata(y))
    return _fisher(rho, np.sqrt((1 + rho**2 / 2) / max(len(x) - 3, 1)), confidence)


def spearman_bootstrap(
    x: np.ndarray, y: np.ndarray, confidence: float = 0.95, *, num: int = 2000, seed: int = 0
) -> Estimate:
    """Spearman's rank correlation of (n,) pairs, with an interval from `num` resamples of the
    pairs.

    The spread of Fisher's z over the resamples, put around z: no assumption about the shape of the
    cloud, ties included, but independent pairs. Plain percentiles are no better centred, for
    resampling makes ties.
    """
    rho = _correlation(rankdata(x), rankdata(y))
    if np.isnan(rho):
        return np.nan, np.nan, np.nan
    picks = np.random.default_rng(seed).integers(len(x), size=(num, len(x)))
    ranks = (rankdata(np.asarray(side)[picks], axis=1) for side in (x, y))
    a, b = (side - side.mean(axis=1, keepdims=True) for side in ranks)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    resampled = ((a * b).sum(axis=1) / np.where(scale > 0, scale, np.nan)).clip(-1 + 1e-9, 1 - 1e-9)
    return _fisher(rho, float(np.nanstd(np.arctanh(resampled), ddof=1)), confidence)


def shared_sd(x: np.ndarray, y: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Root of the covariance of (n,) pairs, 0 where it is negative, and its interval; NaN for fewer
    than 5 pairs.

    What x and y vary by together: of the errors of networks on two sets of other images, the spread
    of their errors on images without end (Jordan 2023, arXiv 2304.01910). Student's interval of the
    mean product of deviations, which is the covariance, cut at 0 before the root is taken: both
    ends 0 say that nothing in common is shown.
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
    """r with an interval on the scale of z = atanh r; without width where r is 1."""
    half = float(ndtri((1 + confidence) / 2)) * error
    z = np.arctanh(np.clip(r, -1, 1)) if abs(r) < 1 else np.sign(r) * np.inf
    return r, float(np.tanh(z - half)), float(np.tanh(z + half))
