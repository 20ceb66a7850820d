"""Error distribution functions (EDFs): the share of an arm's draws with at most a given error.

EDF(e) is the share of all draws with an outcome whose error is <= e (Radosavovic et al. 2019; Xiao
et al. 2021, Figure 5), in the unit of the study's metric. Diverged and failed draws are in the
denominator at +inf, so a curve ends below 1 if there are any, or if draws are beyond the right
edge.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit

from vitscale.analysis.columns import named
from vitscale.analysis.distribution.population import Population
from vitscale.analysis.stats.bands import share_bounds
from vitscale.analysis.stats.intervals import (
    Interval,
    agresti_coull,
    area_interval,
    median_interval,
    pseudo_error,
    satterthwaite,
    share_interval,
    standard_error,
)

# the reference times this: a threshold on a scale that does not depend on how low values are
TIMES = 1.5
# columns of the shares within `Metric.within` of the reference
WITHIN = ("within_quarter_near_pct", "within_half_near_pct", "within_near_pct")
NUM_LEVELS = 11  # from 0 to `beyond`, of the simultaneous band of a Sobol design
NONE = (np.nan,) * 3  # an estimate that does not exist, and its interval


def edf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps of the EDF of (n,) values: (m,) ascending finite levels and (m,) shares <= them.

    +inf stands for a draw that reaches no level. Raises ValueError if there are no values or a NaN.
    """
    levels = np.unique(values[np.isfinite(values)])
    return levels, share_at(values, levels)


def share_at(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """(m,) shares of (n,) values that are <= each of (m,) levels.

    Raises ValueError if there are no values or a NaN.
    """
    if len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"an EDF needs values without NaN, but got (n={len(values)}, {values})")
    return np.searchsorted(np.sort(values), levels, side="right") / len(values)


def widened(band: Callable[[np.ndarray], Interval], levels: np.ndarray, reach: float) -> Interval:
    """A band widened for a zero of the levels that may be off by `reach` in either direction.

    The low end is taken from `reach` to the left of a level, the high end from `reach` to the
    right, so the band contains the curve wherever the zero is within that reach.
    """
    (low, _), (_, high) = band(np.round(levels - reach, 9)), band(np.round(levels + reach, 9))
    return low, high


def curve_band(
    values: np.ndarray, levels: np.ndarray, *, num_scrambles: int = 0, confidence: float = 0.95
) -> Interval:
    """Simultaneous band: contains the true EDF at all levels with at least this confidence.

    Exact for i.i.d. draws from a continuous distribution, conservative with ties; see
    `vitscale.analysis.stats.bands`. The band is conditional on the reference; see `widened` for its
    noise. Raises ValueError for a Sobol design (num_scrambles > 0), whose draws are not
    independent.
    """
    if num_scrambles > 0:
        raise ValueError(
            f"a band of a curve needs i.i.d. draws, but got (num_scrambles={num_scrambles})"
        )
    reached = np.searchsorted(np.sort(values), levels, side="right")
    low, high = share_bounds(len(values), confidence)
    return low[reached], high[reached]


def sobol_band(
    values: np.ndarray,
    levels: np.ndarray,
    scramble: np.ndarray,
    *,
    grid: np.ndarray,
    confidence: float = 0.95,
) -> Interval:
    """Simultaneous band of a Sobol design: t over the scrambles, Bonferroni over a grid of levels.

    Between two levels of the grid the band takes the lower end from the level before and the upper
    end from the level after, since an EDF never decreases. Assumes nearly normal scramble means;
    the band is wide if there are few scrambles.
    """
    low, high = share_interval(values[:, None] <= grid, scramble, 1 - (1 - confidence) / len(grid))
    low = np.concatenate([[0.0], np.maximum.accumulate(low)])
    high = np.concatenate([np.minimum.accumulate(high[::-1])[::-1], [1.0]])
    return (
        low[np.searchsorted(grid, levels, side="right")],
        high[np.searchsorted(grid, levels, side="left")],
    )


def pointwise_interval(
    values: np.ndarray,
    levels: np.ndarray,
    scramble: np.ndarray | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Pointwise interval of the share: Agresti-Coull's for i.i.d. draws, else t over the scrambles.

    The tables report the wider Clopper-Pearson intervals, which never undercover.
    """
    if scramble is not None:
        return share_interval(values[:, None] <= levels, scramble, confidence)
    hits = np.searchsorted(np.sort(values), levels, side="right")
    return agresti_coull(hits, len(values), confidence)


def area_scores(delta: np.ndarray, span: float) -> np.ndarray:
    """(n,) contributions to the area: 1 at or below the reference, 0 from `span` above it."""
    return np.clip(1 - np.maximum(delta, 0) / span, 0, 1)


def summary(draws: Population, confidence: float = 0.95) -> dict[str, float | None]:
    """The estimates of an arm with intervals.

    NaN without an outcome, and without a reference where one is needed.
    """
    values: dict[str, float | None] = {
        "median": np.nan,
        "median_low": np.nan,
        "median_high": np.nan,
    }
    if draws.n:
        low, high = median_interval(draws.error, draws.scramble, confidence, draws.metric.bounds)
        values = dict(zip(values, (float(np.median(draws.error)), low, high), strict=True))
    best = float(draws.error[draws.finished].min()) if draws.finished.any() else np.nan
    return {
        "num_references": len(draws.references),
        "reference": draws.reference,
        "reference_sd": draws.reference_sd,
        "num_better_than_reference": draws.num_better,
        "num_beyond": draws.num_beyond(),
        **values,
        "best_of_n": best,
        **_against_reference(draws, confidence),
    }


def sensitivity(delta: np.ndarray, span: float) -> float:
    """By how much the area rises per unit of the reference.

    This is the share of draws 0 to `span` above it, divided by `span`.
    """
    return float(((delta > 0) & (delta < span)).mean()) / span


def _against_reference(draws: Population, confidence: float) -> dict[str, float]:
    """Shares near the reference (%), area in [0, 1], geometric mean of error over reference."""
    has_reference = draws.n > 0 and not np.isnan(draws.reference)
    delta, above = (
        (draws.delta(), draws.above(TIMES)) if has_reference else (np.empty(0), np.empty(0))
    )
    reach = draws.reference_reach(confidence)
    limits = {
        name: (delta, within, reach)
        for name, within in zip(WITHIN, draws.metric.within, strict=True)
    }
    limits[f"within_{TIMES}_times_pct"] = (above, 0.0, TIMES * reach)
    numbers: dict[str, float] = {}
    for name, (values, limit, off) in limits.items():
        numbers |= named(
            name, _share(values, limit, off, draws, confidence) if has_reference else NONE
        )
    numbers |= named("area", _area(delta, draws, confidence) if has_reference else NONE)
    numbers |= named("ratio", _ratio(draws, confidence) if has_reference else NONE)
    least = draws.metric.within[0]
    shift = reach if draws.reference_noise[1] else least
    return numbers | _if_reference_moved(delta, draws.metric.near, shift)


def _share(
    values: np.ndarray, limit: float, reach: float, draws: Population, confidence: float
) -> tuple[float, float, float]:
    """Percentage of values up to a limit, and its interval if the limit may be off by `reach`."""
    low, high = widened(
        lambda levels: share_interval(values[:, None] <= levels, draws.scramble, confidence),
        np.array([limit]),
        reach,
    )
    return 100 * float((values <= limit).mean()), 100 * float(low[0]), 100 * float(high[0])


def _area(delta: np.ndarray, draws: Population, confidence: float) -> tuple[float, float, float]:
    """The area and its interval: that of the draws, widened by the noise of the references."""
    span = draws.metric.beyond
    scores = area_scores(delta, span)
    low, high = (float(end) for end in area_interval(scores, draws.scramble, confidence))
    noise, df_noise = draws.reference_noise
    slope = sensitivity(delta, span)
    if df_noise and slope > 0:
        center, error, df = pseudo_error(scores)
        total, freedom = satterthwaite([(float(error), df), (slope * noise, df_noise)])
        half = float(stdtrit(freedom, (1 + confidence) / 2)) * total
        low, high = (
            min(low, max(float(center) - half, 0.0)),
            max(high, min(float(center) + half, 1.0)),
        )
    return float(scores.mean()), low, high


def _ratio(draws: Population, confidence: float) -> tuple[float, float, float]:
    """Geometric mean of error over reference and its t interval, including the references' noise.

    NaN for a reference of 0. No interval for a single draw or for draws that do not differ.
    """
    ratios = draws.log_ratio()
    parts = [spread(ratios, draws.scramble), log_noise(draws)]
    mean, (error, df) = float(ratios.mean()), satterthwaite([part for part in parts if part[1]])
    if not parts[0][1] or not error > 0:
        return float(np.exp(mean)), np.nan, np.nan
    half = float(stdtrit(df, (1 + confidence) / 2)) * error
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def log_noise(draws: Population) -> tuple[float, int]:
    """Standard error of the log of the reference, and its df.

    (0, 0) for fewer than two runs, NaN for a reference of 0.
    """
    noise, df = draws.reference_noise
    if not df:
        return 0.0, 0
    return noise / draws.reference if draws.reference else np.nan, df


def spread(values: np.ndarray, scramble: np.ndarray | None) -> tuple[float, int]:
    """Standard error and df of the mean of (n,) values.

    Over the scrambles if they differ, else over the draws.
    """
    if scramble is not None:
        error, df = standard_error(values, scramble)
        if not df or error > 1e-12:
            return (float(error), df) if df else (0.0, 0)
    error, df = standard_error(values, np.arange(len(values)))
    return (float(error), df) if df else (0.0, 0)


def _if_reference_moved(delta: np.ndarray, near: float, shift: float) -> dict[str, float]:
    """The share within `near`, in percent, for a reference that is `shift` lower or higher."""
    ends = {"lower": near - shift, "higher": near + shift}
    return {
        f"within_near_if_reference_{end}_pct": 100 * float((delta <= limit).mean())
        if len(delta)
        else np.nan
        for end, limit in ends.items()
    }
