"""Intervals of an arm and of a pair of arms that hold at every look at a growing study.

Betting confidence sequences for the draws, in the order of their points. The references are the
same runs at every look, so Student's interval of each covers them at all looks; half of the error
is spent on the draws, the other half on the references.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from vitscale.analysis.columns import named
from vitscale.analysis.distribution.edf import TIMES, WITHIN, area_scores
from vitscale.analysis.distribution.population import Population
from vitscale.analysis.stats.betting import difference_interval, interval, p_of_no_difference
from vitscale.analysis.stats.intervals import minus
from vitscale.analysis.stats.sequential import ALPHA, LEVELS

TIMES_SHARE = f"within_{TIMES}_times_pct"
NONE = (np.nan, np.nan, np.nan)


def of_arm(draws: Population) -> dict[str, float]:
    """The shares near the reference, in percent, and the area, each with its interval.

    NaN for Sobol designs, whose draws are not independent, and without a reference.
    """
    has_numbers = draws.n > 0 and draws.scramble is None and not np.isnan(draws.reference)
    limits = dict(zip(WITHIN, draws.metric.within, strict=True))
    names = {name: name.replace("_pct", "_anytime_pct") for name in (*limits, TIMES_SHARE)}
    ends: dict[str, tuple[float, ...]] = dict.fromkeys([*names.values(), "area_anytime"], NONE)
    if has_numbers:
        delta, (reach,) = draws.delta(), _reach(draws, np.array([ALPHA]))
        alpha = _of_draws(draws.reference_noise[1])
        for name, within in limits.items():
            ends[names[name]] = _share(delta, within, reach, alpha)
        ends[names[TIMES_SHARE]] = _share(draws.above(TIMES), 0.0, TIMES * reach, alpha)
        scores = [area_scores(delta + off, draws.metric.beyond) for off in (0.0, reach, -reach)]
        ends["area_anytime"] = float(scores[0].mean()), *_ends(scores[1], scores[2], alpha)
    return _columns(ends)


def _share(
    values: np.ndarray, limit: float, reach: float, alpha: float
) -> tuple[float, float, float]:
    """Percentage of values up to a limit that may be off by `reach`, with its interval."""
    hits = [(np.round(values + off, 9) <= limit) * 1.0 for off in (reach, -reach)]
    low, high = _ends(hits[0], hits[1], alpha)
    return 100 * float((values <= limit).mean()), 100 * low, 100 * high


def _columns(ends: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    return {column: x for entry in ends.items() for column, x in named(*entry).items()}


def of_pair(a: Population, b: Population, is_paired: bool) -> dict[str, float]:
    """Differences of areas and of shares near the references, and how often a is lower, each with
    its interval; `p` of no difference of areas.

    The share's difference is given the references. Arms without common points are paired by the
    order of their draws.
    """
    *area, p = area_difference(a, b, is_paired)
    ends: dict[str, tuple[float, ...]] = {
        "area_anytime_difference": tuple(area),
        "within_near_anytime_difference_pct": NONE,
        "prob_a_lower_anytime": NONE,
    }
    in_a, in_b = _pairs(a, b, is_paired)
    if len(in_a) and a.scramble is None and b.scramble is None:
        difference = minus(a.error[in_a], b.error[in_b])
        lower = (difference < 0) + 0.5 * (difference == 0)
        ends["prob_a_lower_anytime"] = float(lower.mean()), *interval(lower)
        if not np.isnan([a.reference, b.reference]).any():
            near = a.metric.near
            apart = (a.delta()[in_a] <= near) * 1.0 - (b.delta()[in_b] <= near)
            values = 100 * np.array([apart.mean(), *difference_interval(apart, apart)])
            ends["within_near_anytime_difference_pct"] = tuple(values.tolist())
    return {**_columns(ends), "p": p}


def _pairs(a: Population, b: Population, is_paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the draws that are compared: at common points, or in the order of the draws."""
    if not is_paired:
        order = np.arange(min(a.n, b.n))
        return order, order
    _, in_a, in_b = np.intersect1d(a.point, b.point, return_indices=True)
    return in_a, in_b


def area_difference(
    a: Population, b: Population, is_paired: bool
) -> tuple[float, float, float, float]:
    """Area of a minus area of b with its interval, and p of no difference.

    Arms without common points are paired by the order of their draws. NaN for Sobol designs, and
    where an arm has fewer than two references.
    """
    in_a, in_b = _pairs(a, b, is_paired)
    has_numbers = a.reference_noise[1] and b.reference_noise[1] and len(in_a)
    if not has_numbers or a.scramble is not None or b.scramble is not None:
        return np.nan, np.nan, np.nan, np.nan
    delta_a, delta_b, span = a.delta()[in_a], b.delta()[in_b], a.metric.beyond

    def differences(sign: float, alpha: np.ndarray) -> np.ndarray:
        """(A, n), with both references off to the side that raises (1) or lowers (-1) it."""
        off_a, off_b = (sign * _reach(x, alpha, 2)[:, None] for x in (a, b))
        return area_scores(delta_a - off_a, span) - area_scores(delta_b + off_b, span)

    raised, lowered = (differences(sign, np.array([ALPHA]))[0] for sign in (1.0, -1.0))
    low, high = difference_interval(raised, lowered, ALPHA / 2)
    mean = area_scores(delta_a, span).mean() - area_scores(delta_b, span).mean()
    p = p_of_no_difference(differences(1.0, LEVELS), differences(-1.0, LEVELS), LEVELS / 2)
    return float(mean), low, high, p


def _of_draws(df: int) -> float:
    """The part of the error that is left for the draws: half, or all if noise is unknown."""
    return ALPHA / 2 if df else ALPHA


def _reach(draws: Population, alpha: np.ndarray, num_arms: int = 1) -> np.ndarray:
    """(A,) how far a reference may be off, at half of alpha over all arms; 0 for a single run."""
    error, df = draws.reference_noise
    if not df:
        return np.zeros(len(alpha))
    return np.asarray(stdtrit(df, 1 - alpha / (4 * num_arms))) * error


def _ends(lower: np.ndarray, higher: np.ndarray, alpha: float) -> tuple[float, float]:
    return interval(lower, alpha)[0], interval(higher, alpha)[1]
