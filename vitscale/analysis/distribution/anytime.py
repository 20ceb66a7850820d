"""Intervals of an arm and of a pair of arms that hold at every look at a growing study.

Betting confidence sequences for the draws, in the order of their points. The references are the
same runs at every look, so Student's interval of each covers them at all looks; half of the error
is spent on the draws, the other half on the references.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from vitscale.analysis.distribution.edf import area_scores
from vitscale.analysis.distribution.population import Population
from vitscale.analysis.stats.betting import difference_interval, interval, p_of_no_difference
from vitscale.analysis.stats.looks import ALPHA, LEVELS

NONE = (np.nan, np.nan, np.nan)


def of_arm(draws: Population) -> dict[str, float]:
    """The share near the reference, in percent, and the area, each with its interval.

    NaN for Sobol designs, whose draws are not independent, and without a reference.
    """
    ends: Mapping[str, tuple[float, float, float]] = {
        "within_4_points_anytime_pct": NONE,
        "area_anytime": NONE,
    }
    if draws.n and draws.scramble is None and not np.isnan(draws.reference):
        delta, span, near = draws.delta(), draws.metric.beyond, draws.metric.near
        (reach,), alpha = _reach(draws, np.array([ALPHA])), _of_draws(draws.reference_noise[1])
        lower, higher = delta + reach, np.round(delta - reach, 9)
        hits = [(np.round(x, 9) <= near) * 1.0 for x in (lower, higher)]
        scores = [area_scores(x, span) for x in (lower, higher)]
        low, high = _ends(hits[0], hits[1], alpha)
        share = float((delta <= near).mean())
        ends = {
            "within_4_points_anytime_pct": (100 * share, 100 * low, 100 * high),
            "area_anytime": (
                float(area_scores(delta, span).mean()),
                *_ends(scores[0], scores[1], alpha),
            ),
        }
    return {
        f"{name}{end}": value
        for name, values in ends.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    }


def area_difference(
    a: Population, b: Population, is_paired: bool
) -> tuple[float, float, float, float]:
    """Area of a minus area of b with its interval, and p of no difference.

    Arms without common points are paired by the order of their draws. NaN for Sobol designs, and
    where an arm has fewer than two references.
    """
    in_a = in_b = np.arange(min(a.n, b.n))
    if is_paired:
        _, in_a, in_b = np.intersect1d(a.point, b.point, return_indices=True)
    known = a.reference_noise[1] and b.reference_noise[1] and len(in_a)
    if not known or a.scramble is not None or b.scramble is not None:
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
