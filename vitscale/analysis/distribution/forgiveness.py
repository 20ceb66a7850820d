"""Whether one arm is more forgiving than another: areas, ratios and shares near the reference.

The primary comparison is that of areas above the arms' own references, in the metric's unit. The
ratio of value to reference is compared as well: its scale does not depend on how low an arm's
values are. Interval and p of both include the noise of the references:

    D = mean(a) - mean(b)
    var D = var of the draws' part + sum over the arms of (slope * sd of references)^2 / k

with Satterthwaite's df from n - 1 (or the number of scrambles - 1) and k - 1 of each arm. The slope
is the change of the mean per unit of the reference. A single reference run has no sd, and that of
two is so uncertain that 6 to 8% of equal arms would be said to differ: there is no interval and no
p. The comparison of shares is conditional on the references: neither its
interval nor its p includes their noise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import stdtrit

from vitscale.analysis.distribution.edf import area_scores, log_noise, sensitivity, spread
from vitscale.analysis.distribution.population import Population
from vitscale.analysis.stats.intervals import (
    LEAST_REFERENCES,
    least_p,
    mid_p_sign_test,
    paired_share_difference,
    pseudo_error,
    pseudo_pairs_error,
    satterthwaite,
    share_difference,
    standard_error,
    t_test,
    unequal_df,
)

COLUMNS = (
    "area_difference",
    "area_difference_low",
    "area_difference_high",
    "area_p",
    "area_method",
    "ratio_a_over_b",
    "ratio_a_over_b_low",
    "ratio_a_over_b_high",
    "ratio_p",
    "ratio_method",
    "within_near_difference_pct",
    "within_near_difference_pct_low",
    "within_near_difference_pct_high",
    "within_near_p",
    "within_near_method",
)
UNDEFINED = "none: a reference or a draw of 0, or a draw without a finite value"
UNEQUAL = "none: fewer than three draws of one arm, and more of the other"
UNTESTED = (
    f"none: fewer than {LEAST_REFERENCES} reference runs of an arm, whose noise is hardly known"
)
# difference, its interval, p of no difference, method
Estimate = tuple[float, float, float, float, str]


@dataclass(frozen=True)
class Scores:
    """Scores of two arms' draws, (n,) and (m,); at the same points where `paired`."""

    a: np.ndarray
    b: np.ndarray
    scramble_a: np.ndarray | None  # None for i.i.d. draws
    scramble_b: np.ndarray | None
    paired: bool
    lost: bool = False  # whether draws without an error are among them

    @property
    def difference(self) -> float:
        """Mean of a minus mean of b."""
        return float(self.a.mean() - self.b.mean())


def forgiveness(
    a: Population, b: Population, is_paired: bool, confidence: float = 0.95
) -> dict[str, object]:
    """The values under COLUMNS: a minus b, and a over b for ratios.

    NaN without outcomes or references.
    """
    in_a, in_b = np.arange(a.n), np.arange(b.n)
    if is_paired:
        _, in_a, in_b = np.intersect1d(a.point, b.point, return_indices=True)
    why = _not_comparable(a, b, min(len(in_a), len(in_b)))
    if why:
        return dict(zip(COLUMNS, (*[np.nan] * 4, why) * 3, strict=True))
    group_a, group_b = (
        None if x.scramble is None else x.scramble[i] for x, i in ((a, in_a), (b, in_b))
    )

    lost = not (a.finished[in_a].all() and b.finished[in_b].all())

    def scores(of_a: np.ndarray, of_b: np.ndarray) -> Scores:
        return Scores(of_a, of_b, group_a, group_b, is_paired, lost)

    delta_a, delta_b = a.delta()[in_a], b.delta()[in_b]
    near, span = a.metric.near, a.metric.beyond
    areas = scores(area_scores(delta_a, span), area_scores(delta_b, span))
    slopes = sensitivity(delta_a, span), sensitivity(delta_b, span)
    noise = [
        (slope * x.reference_noise[0], x.reference_noise[1])
        for slope, x in zip(slopes, (a, b), strict=True)
    ]
    hits = scores((delta_a <= near) * 1.0, (delta_b <= near) * 1.0)
    ratios = scores(a.log_ratio()[in_a], b.log_ratio()[in_b])
    tested = _is_tested(noise)
    return dict(
        zip(
            COLUMNS,
            (
                *compare_areas(areas, noise, confidence),
                *compare_ratios(ratios, [log_noise(a), log_noise(b)], confidence),
                *compare_shares(hits, tested, confidence),
            ),
            strict=True,
        )
    )


def compare_areas(
    scores: Scores, noise: Sequence[tuple[float, int]], confidence: float = 0.95
) -> Estimate:
    """Difference of the areas of scores in [0, 1].

    `noise` is (error, df) contributed by the references of each arm.
    """
    if not _is_tested(noise):
        return scores.difference, np.nan, np.nan, np.nan, UNTESTED
    parts, how = _draws_parts(scores)
    if not any(error > 0 for error, _ in parts):
        parts, how = _pseudo_parts(scores), f"{how} with pseudo-draws"
    error, df = _error(parts, noise)
    if np.isnan(df):
        return scores.difference, np.nan, np.nan, np.nan, UNEQUAL
    half = float(stdtrit(df, (1 + confidence) / 2)) * error
    low, high = max(scores.difference - half, -1.0), min(scores.difference + half, 1.0)
    return (
        scores.difference,
        low,
        high,
        _p(scores, error, df),
        f"{how}, with the references' noise",
    )


def compare_ratios(
    ratios: Scores, noise: Sequence[tuple[float, int]], confidence: float = 0.95
) -> Estimate:
    """Ratio of the geometric means of error over reference, estimated from logarithms.

    `noise` is (error, df) of the log of the reference of each arm.
    """
    center = float(np.exp(ratios.difference))
    if not _is_tested(noise):
        return center, np.nan, np.nan, np.nan, UNTESTED
    if np.isnan(center):
        return np.nan, np.nan, np.nan, np.nan, UNDEFINED
    parts, how = _draws_parts(ratios)
    if not any(error > 0 for error, _ in parts):
        return center, np.nan, np.nan, np.nan, "none: draws do not differ"
    error, df = _error(parts, noise)
    if np.isnan(df):
        return center, np.nan, np.nan, np.nan, UNEQUAL
    half = float(stdtrit(df, (1 + confidence) / 2)) * error
    low, high = np.exp(ratios.difference - half), np.exp(ratios.difference + half)
    how = f"{how} of logarithms, with the references' noise"
    return center, float(low), float(high), _p(ratios, error, df), how


def _p(scores: Scores, error: float, df: float) -> float:
    """p of no difference by t. It is at least the smallest p of an exact test of as many draws if
    some have no error, or if all scores of an arm are equal.

    Such scores are not from a normal distribution. If half of the draws diverge, 3 of 3 do so in
    one arm and 0 of 3 in the other in 3% of studies, where t has p < 0.001 and an exact test 0.1.
    """
    p = t_test(scores.difference, error, df)
    if not scores.lost and np.ptp(scores.a) > 0 and np.ptp(scores.b) > 0:
        return p
    return max(p, least_p(len(scores.a), len(scores.b), scores.paired))


def _is_tested(noise: Sequence[tuple[float, int]]) -> bool:
    """Whether the references tell enough of their noise, by the df of each arm."""
    return min(df for _, df in noise) + 1 >= LEAST_REFERENCES


def _error(
    parts: Sequence[tuple[float, int]], noise: Sequence[tuple[float, int]]
) -> tuple[float, float]:
    """Standard error and df of a difference, from (error, df) of the draws and of the references;
    df is NaN if the numbers of draws, or of scrambles, are too unequal.
    """
    error, df = satterthwaite([*parts, *noise])
    return error, unequal_df(df, [of_part + 1 for _, of_part in parts])


def _draws_parts(scores: Scores) -> tuple[list[tuple[float, int]], str]:
    """(error, df) contributed by the draws to the difference of means, and the name of the test."""
    over = "t over scrambles" if scores.scramble_a is not None else ""
    if scores.paired:
        return [spread(scores.a - scores.b, scores.scramble_a)], over or "paired t"
    return [
        spread(scores.a, scores.scramble_a),
        spread(scores.b, scores.scramble_b),
    ], over or "Welch's t"


def _pseudo_parts(scores: Scores) -> list[tuple[float, int]]:
    """The same for scores in [0, 1] that do not differ.

    Equal scores happen by chance and do not prove that there is no spread.
    """
    if scores.paired:
        return [(pseudo_pairs_error(scores.a - scores.b), max(len(scores.a) - 1, 1))]
    return [(float(error), df) for _, error, df in map(pseudo_error, (scores.a, scores.b))]


def compare_shares(hits: Scores, tested: bool = True, confidence: float = 0.95) -> Estimate:
    """Difference of shares in percentage points, given the references; no p unless `tested`."""
    low, high, p, method = _shares(hits, tested, confidence)
    return (
        100 * hits.difference,
        100 * low,
        100 * high,
        p if tested else np.nan,
        f"{method}; given the references",
    )


def _shares(hits: Scores, tested: bool, confidence: float) -> tuple[float, float, float, str]:
    """Interval of the difference of shares, p of no difference, and the names of both methods."""
    over = _over_scrambles(hits, confidence)
    if over is not None:
        return over
    a, b = hits.a == 1, hits.b == 1
    if not hits.paired:
        (x, n), (y, m) = (int(a.sum()), len(a)), (int(b.sum()), len(b))
        p = boschloo(x, n, y, m) if tested else np.nan
        return *share_difference(x, n, y, m, confidence), p, "Agresti-Caffo; Boschloo's exact test"
    both, only_a, only_b = int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum())
    ends = paired_share_difference(
        both, only_a, only_b, len(a) - both - only_a - only_b, confidence
    )
    # a mid-p is half of what the exact test of as many pairs can reach
    p = max(mid_p_sign_test(only_a, only_b), least_p(len(a), len(b), paired=True))
    return *ends, p, "Newcombe's method 10 for pairs; McNemar's mid-p"


@functools.cache  # it takes 0.1 s, and pairs of a study often have the same counts
def boschloo(hits_a: int, n_a: int, hits_b: int, n_b: int) -> float:
    """p of equal shares of independent samples: exact, never less powerful than Fisher's test.

    Source: Boschloo 1970.
    """
    if hits_a + hits_b in (0, n_a + n_b):
        return 1.0
    return float(
        scipy.stats.boschloo_exact([[hits_a, hits_b], [n_a - hits_a, n_b - hits_b]]).pvalue
    )


def _over_scrambles(scores: Scores, confidence: float) -> tuple[float, float, float, str] | None:
    """Low, high, p and name by t over the scrambles.

    None for i.i.d. draws, and if all scrambles agree.
    """
    if scores.scramble_a is None or scores.scramble_b is None:
        return None
    if scores.paired:
        within, df = standard_error(scores.a - scores.b, scores.scramble_a)
        error, freedom = float(within), float(df)
    else:
        (error_a, df_a), (error_b, df_b) = (
            standard_error(x, group)
            for x, group in ((scores.a, scores.scramble_a), (scores.b, scores.scramble_b))
        )
        df = min(df_a, df_b)
        error, freedom = 0.0, float(df)
        if df and error_a + error_b > 1e-12:
            error, freedom = satterthwaite([(float(error_a), df_a), (float(error_b), df_b)])
            freedom = unequal_df(freedom, (df_a + 1, df_b + 1))
    if df == 0:
        return -1.0, 1.0, np.nan, "none: one scramble"
    if error <= 1e-12:
        return None
    if np.isnan(freedom):
        return -1.0, 1.0, np.nan, UNEQUAL
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    low, high = max(scores.difference - half, -1.0), min(scores.difference + half, 1.0)
    return low, high, t_test(scores.difference, error, freedom), "t over scrambles"


def _not_comparable(a: Population, b: Population, num: int) -> str:
    if num == 0:
        return "no pair has both outcomes" if a.n and b.n else "an arm has no outcome"
    return "an arm has no finished reference" if np.isnan(a.reference + b.reference) else ""
