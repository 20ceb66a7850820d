"""Is one arm more forgiving than another: shares near, and areas above, the arms' own references.

All of it is conditional on the references: their noise is in no interval and in no p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.stats
from scipy.special import stdtrit

from vitscale.analysis.edf import FORGIVEN, area_scores
from vitscale.analysis.intervals import (
    mean_difference,
    paired_mean_difference,
    paired_share_difference,
    share_difference,
    sign_test,
    standard_error,
    t_test,
    welch,
)
from vitscale.analysis.population import Population

COLUMNS = (
    "within_4_points_difference_pct", "within_4_points_difference_pct_low", "within_4_points_difference_pct_high",
    "within_4_points_p", "within_4_points_method", "area_difference", "area_difference_low", "area_difference_high",
    "area_method",
)  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Scores in [0, 1] of two arms' draws, (n,) and (m,); at the same points where `paired`."""

    a: np.ndarray
    b: np.ndarray
    scramble_a: np.ndarray | None  # None when draws are i.i.d.
    scramble_b: np.ndarray | None
    paired: bool

    @property
    def difference(self) -> float:
        """Mean of a minus mean of b."""
        return float(self.a.mean() - self.b.mean())


def forgiveness(a: Population, b: Population, is_paired: bool, confidence: float = 0.95) -> dict[str, object]:
    """The values under COLUMNS: differences are a - b, positive ones favour a. NaN without outcomes or references."""
    in_a, in_b = np.arange(a.n), np.arange(b.n)
    if is_paired:
        _, in_a, in_b = np.intersect1d(a.point, b.point, return_indices=True)
    why = _not_comparable(a, b, min(len(in_a), len(in_b)))
    if why:
        return dict(zip(COLUMNS, (*[np.nan] * 4, why, *[np.nan] * 3, why), strict=True))
    group_a, group_b = (None if x.scramble is None else x.scramble[i] for x, i in ((a, in_a), (b, in_b)))
    delta_a, delta_b = a.delta()[in_a], b.delta()[in_b]
    hits = Scores((delta_a <= FORGIVEN) * 1.0, (delta_b <= FORGIVEN) * 1.0, group_a, group_b, is_paired)
    areas = Scores(area_scores(delta_a), area_scores(delta_b), group_a, group_b, is_paired)
    low, high, p, method = compare_shares(hits, confidence)
    share = 100 * hits.difference, 100 * low, 100 * high, p, method
    return dict(zip(COLUMNS, (*share, areas.difference, *compare_areas(areas, confidence)), strict=True))


def compare_shares(hits: Scores, confidence: float = 0.95) -> tuple[float, float, float, str]:
    """Interval of the difference of shares, exact p of none, and the names of both."""
    spread = _over_scrambles(hits, confidence)
    if spread is not None:
        return spread
    a, b = hits.a == 1, hits.b == 1
    if not hits.paired:
        (x, n), (y, m) = (int(a.sum()), len(a)), (int(b.sum()), len(b))
        p = float(scipy.stats.fisher_exact([[x, n - x], [y, m - y]])[1])
        return *share_difference(x, n, y, m, confidence), p, "Newcombe's hybrid score; Fisher's exact test"
    both, only_a, only_b = int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum())
    ends = paired_share_difference(both, only_a, only_b, len(a) - both - only_a - only_b, confidence)
    return *ends, sign_test(only_a, only_b), "Newcombe's method 10 for pairs; McNemar's exact test"


def compare_areas(scores: Scores, confidence: float = 0.95) -> tuple[float, float, str]:
    """Interval of the difference of areas, and its name."""
    spread = _over_scrambles(scores, confidence)
    if spread is not None:
        return spread[0], spread[1], spread[3]
    if scores.paired:
        return *paired_mean_difference(scores.a - scores.b, confidence), "paired t with Agresti-Min pseudo-pairs"
    return *mean_difference(scores.a, scores.b, confidence), "Welch's t with Agresti-Caffo pseudo-draws"


def _over_scrambles(scores: Scores, confidence: float) -> tuple[float, float, float, str] | None:
    """Low, high, p and name by t over the scrambles; None for i.i.d. draws and where all scrambles agree."""
    if scores.scramble_a is None or scores.scramble_b is None:
        return None
    if scores.paired:
        spread, df = standard_error(scores.a - scores.b, scores.scramble_a)
        error, freedom = float(spread), float(df)
    else:
        (error_a, df_a), (error_b, df_b) = (
            standard_error(x, group) for x, group in ((scores.a, scores.scramble_a), (scores.b, scores.scramble_b))
        )
        df = min(df_a, df_b)
        error, freedom = 0.0, float(df)
        if df and error_a + error_b > 1e-12:
            error, freedom = welch(float(error_a), float(error_b), df_a, df_b)
    if df == 0:
        return -1.0, 1.0, np.nan, "none: one scramble"
    if error <= 1e-12:
        return None
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    low, high = max(scores.difference - half, -1.0), min(scores.difference + half, 1.0)
    return low, high, t_test(scores.difference, error, freedom), "t over scrambles"


def _not_comparable(a: Population, b: Population, num: int) -> str:
    if num == 0:
        return "no pair has both outcomes" if a.n and b.n else "an arm has no outcome"
    return "an arm has no finished reference" if np.isnan(a.reference + b.reference) else ""
