"""Exact simultaneous bands of distribution functions from i.i.d. draws.

At the i-th smallest of n draws the distribution function has the value U_(i), the i-th order
statistic of n uniform numbers, which is Beta(i, n + 1 - i). Pointwise intervals of these values,
each with the same tail probability, hold together with a probability that can be computed exactly;
the tail is chosen such that it is the confidence (Learned-Miller & DeStefano 2008; Lourie et al.
2024 for curves of tuning). With ties the bands cover more. Unlike a band of constant width
(Dvoretzky-Kiefer-Wolfowitz) they are narrow where the share is near 0 or 1.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy
from scipy.special import betaincinv, gammaln


def order_bounds(n: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """(n,) bounds of each of n uniform order statistics, each exceeded with probability `tail`."""
    rank = np.arange(1, n + 1)
    low = betaincinv(rank, n + 1 - rank, tail)
    return low, 1 - low[::-1]  # of 1 - U, the largest is the smallest


def inside(low: np.ndarray, high: np.ndarray) -> float:
    """The probability that low[i] <= U_(i) <= high[i] for all of n uniform order statistics.

    Both bounds must ascend. The number of uniform numbers up to t is a Poisson process given that
    it ends at n; its states are followed from bound to bound (Moscovich & Nadler 2017). All terms
    are positive, so nothing cancels.
    """
    n = len(low)
    times = np.unique(np.concatenate([low[low > 0], high[high < 1], [1.0]]))
    least = np.searchsorted(high, times, side="right")  # at least this many must be at or below t
    most = np.searchsorted(low, times, side="left")
    least[-1] = most[-1] = n
    rates = n * np.diff(times, prepend=0.0)
    possible = np.ceil(rates + 9 * np.sqrt(rates) + 8).astype(int)  # all but 1e-15 of the jumps
    jumps = np.arange(possible.max() + 1)
    factorials = gammaln(jumps + 1)
    first, states = 0, np.ones(1)
    for rate, log_rate, num, fewest, largest in zip(
        *(x.tolist() for x in (rates, np.log(rates), possible + 1, least, most)), strict=True
    ):
        if fewest > largest:
            return 0.0
        num = min(largest - first + 1, num)
        chance = np.exp(jumps[:num] * log_rate - rate - factorials[:num])
        states = np.convolve(states, chance)[max(fewest - first, 0) : largest - first + 1]
        first = max(first, fewest)
    return float(states[-1] / np.exp(n * np.log(n) - n - gammaln(n + 1)))


MANY = 2000  # draws, from which on a tail is found to 1e-7 of it


@functools.cache
def band_tail(n: int, confidence: float = 0.95, one_sided: bool = False) -> float:
    """The tail of each order statistic for which all bounds hold with this probability.

    One-sided: only the upper bounds, or, by symmetry, only the lower ones.
    """

    @functools.cache
    def excess(log_tail: float) -> float:
        """Of the miss, in logarithms, in which it is nearly linear."""
        low, high = order_bounds(n, float(np.exp(log_tail)))
        return math.log((1 - inside(np.zeros(n) if one_sided else low, high)) / (1 - confidence))

    if n < MANY:
        # half of what Bonferroni's inequality allows is too small a tail, and twice the miss too
        # large
        miss = 1 - confidence
        ends = np.log(miss / (4 * n)), np.log(min(2 * miss, 0.49))
        return float(np.exp(scipy.optimize.brentq(excess, *ends, xtol=1e-10)))
    # seconds for each try: begin where the tails of fewer draws lead, in logarithms of both
    before = [math.log(band_tail(n // part, confidence, one_sided)) for part in (16, 4)]
    guess = 2 * before[1] - before[0]
    second = guess - excess(guess)  # where the slope is 1, as it nearly is
    # a step of less than 1e-4 of the secant method ends within 1e-7
    return float(np.exp(scipy.optimize.newton(excess, guess, x1=second, tol=1e-4)))


@functools.cache
def share_bounds(
    n: int, confidence: float = 0.95, one_sided: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(n + 1,) low and high bounds of the distribution function where 0 to n draws are reached.

    Both hold at all levels at once; if `one_sided`, each holds without the other.
    """
    low, high = order_bounds(n, band_tail(n, confidence, one_sided))
    bounds = np.concatenate([[0.0], low]), np.concatenate([high, [1.0]])
    for bound in bounds:
        bound.setflags(write=False)  # the next call gives the same
    return bounds
