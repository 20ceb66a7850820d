"""Intervals for the mean of bounded values that hold at any look: betting confidence sequences.

Waudby-Smith & Ramdas 2024, the hedged capital process with predictable plug-in bets (section 4).
A mean m is in the interval after n values unless bets against m have at some time made 1 into
1 / alpha. So the chance that any of the intervals of n = 1, 2, ... misses the mean is at most
alpha, for any distribution in [0, 1], whenever and however often one looks.
"""

from __future__ import annotations

import numpy as np

from vitscale.analysis.stats.sequential import ALPHA, LEVELS

GRID = 1001  # means that are bet against; an end of an interval is the next one outside of it
TRUNCATION = 0.5  # of the bets, so that no single value takes all of the capital


def log_capital(values: np.ndarray, mean: np.ndarray, alpha: np.ndarray | float) -> np.ndarray:
    """(..., 2, n) log of the capital after each value, of bets that the mean is higher and lower.

    `values` (..., n) are in [0, 1]; `mean` and `alpha` broadcast against their leading shape. Each
    bet rests on earlier values alone. Half of the capital is put on each side.
    """
    n = values.shape[-1]
    time = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(values, axis=-1)) / (time + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2, axis=-1)) / (time + 1)
    first = np.full((*values.shape[:-1], 1), 0.25)
    earlier = np.concatenate([first, variances[..., :-1]], axis=-1)
    stakes = 2 * np.log(2 / np.asarray(alpha))[..., None] / (earlier * time * np.log1p(time))
    bets, at = np.sqrt(stakes), np.asarray(mean)[..., None]
    higher = np.minimum(bets, TRUNCATION / np.maximum(at, 1e-12))
    lower = np.minimum(bets, TRUNCATION / np.maximum(1 - at, 1e-12))
    off = values - at
    sides = np.stack([np.log1p(higher * off), np.log1p(-lower * off)], axis=-2)
    return np.cumsum(sides, axis=-1) - np.log(2)


def interval(values: np.ndarray, alpha: float = ALPHA) -> tuple[float, float]:
    """Interval for the mean of (n,) i.i.d. values in [0, 1], in the order in which they came."""
    if len(values) == 0:
        return 0.0, 1.0
    grid = np.linspace(0, 1, GRID)
    most = log_capital(values[None], grid, alpha).max(axis=-1)
    too_low, too_high = (most >= np.log(1 / alpha)).T
    above = np.flatnonzero(~too_low)  # the means that are not refuted as too low
    below = np.flatnonzero(~too_high)
    low = grid[max(above[0] - 1, 0)] if len(above) else 1.0
    high = grid[min(below[-1] + 1, GRID - 1)] if len(below) else 0.0
    return float(low), float(high)


def difference_interval(
    raised: np.ndarray, lowered: np.ndarray, alpha: float = ALPHA
) -> tuple[float, float]:
    """Interval for the mean of (n,) i.i.d. differences in [-1, 1].

    The upper end is that of `raised`, the lower end that of `lowered`; both are the differences
    where these are known without error.
    """
    low, high = interval((lowered + 1) / 2, alpha)[0], interval((raised + 1) / 2, alpha)[1]
    return 2 * low - 1, 2 * high - 1


def p_of_no_difference(raised: np.ndarray, lowered: np.ndarray, alpha: np.ndarray) -> float:
    """The smallest of LEVELS at which 0 is outside the interval of a mean difference; 1 for none.

    `raised` and `lowered` are (A, n), one row per level, as in `difference_interval`; `alpha` (A,)
    is what their intervals may spend of that level.
    """
    limit, half = -np.log(alpha), np.full(len(LEVELS), 0.5)
    too_low = log_capital((lowered + 1) / 2, half, alpha)[:, 0].max(axis=-1) >= limit
    too_high = log_capital((raised + 1) / 2, half, alpha)[:, 1].max(axis=-1) >= limit
    levels = LEVELS[too_low | too_high]
    return float(levels[0]) if len(levels) else 1.0


def percentile(values: np.ndarray, value: float) -> tuple[float, float, float]:
    """Percentage of (n,) values below one more, ties counted half, with an interval that holds at
    any look; in the order in which they were planned. NaN without values, or of NaN.
    """
    if not len(values) or np.isnan(value):
        return np.nan, np.nan, np.nan
    below = (values < value) + 0.5 * (values == value)
    low, high = interval(below)
    return 100 * float(below.mean()), 100 * low, 100 * high
