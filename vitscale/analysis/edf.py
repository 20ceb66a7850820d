"""Error distribution functions (EDFs): what share of an arm's draws ends within how many points of error.

EDF(e) is the share of all draws with an outcome whose error is <= e (Radosavovic et al. 2019; Xiao et al.
2021, Figure 5). Diverged and failed draws are in the denominator at +inf. A curve ends below 1 for them, and for
draws beyond the right edge.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from vitscale.analysis.intervals import Interval, median_interval, share_interval
from vitscale.analysis.population import BEYOND, Population

SPAN = BEYOND  # points: the range of the x axis
WITHIN = (1, 2, 4)  # points of the reference that the table reports
FORGIVEN = 4.0  # points of its reference: a draw that is within them is called forgiven, in comparisons
SOBOL_GRID = np.arange(0.0, SPAN + 1)  # points; levels of the simultaneous band of a Sobol design


def edf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps of the EDF of (n,) values: (m,) ascending finite levels, (m,) shares of n that are <= them.

    +inf stands for a draw that reaches no level. Raises ValueError for no value or a NaN.
    """
    levels = np.unique(values[np.isfinite(values)])
    return levels, share_at(values, levels)


def share_at(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """(m,) shares of (n,) values that are <= each of (m,) levels. Raises ValueError for no value or a NaN."""
    if len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"an EDF needs values that are no NaN, but got (n={len(values)}, {values})")
    return np.searchsorted(np.sort(values), levels, side="right") / len(values)


def dkw_epsilon(n: int, confidence: float = 0.95) -> float:
    """Half width of the Dvoretzky-Kiefer-Wolfowitz band with Massart's constant (Massart 1990)."""
    return float(np.sqrt(np.log(2 / (1 - confidence)) / (2 * n)))


def dkw_band(values: np.ndarray, levels: np.ndarray, *, num_scrambles: int = 0, confidence: float = 0.95) -> Interval:
    """Simultaneous band: the true EDF is within it at all levels at once, with at least this confidence.

    Assumes i.i.d. draws from any distribution, discrete ones included; given the reference, whose noise is
    not in it. Raises ValueError for a Sobol design (num_scrambles > 0), whose draws are not independent.
    """
    if num_scrambles > 0:
        raise ValueError(f"a DKW band needs i.i.d. draws, but got (num_scrambles={num_scrambles})")
    share, epsilon = share_at(values, levels), dkw_epsilon(len(values), confidence)
    return np.clip(share - epsilon, 0, 1), np.clip(share + epsilon, 0, 1)


def sobol_band(
    values: np.ndarray,
    levels: np.ndarray,
    scramble: np.ndarray,
    *,
    grid: np.ndarray = SOBOL_GRID,
    confidence: float = 0.95,
) -> Interval:
    """Simultaneous band of a Sobol design: t intervals over the scrambles, Bonferroni over a grid of levels.

    Between two levels of the grid the band carries the lower end of the one before and the upper end of the
    one after, for an EDF never falls. Assumes scramble means that are nearly normal; with few scrambles it is
    wide.
    """
    low, high = share_interval(values[:, None] <= grid, scramble, 1 - (1 - confidence) / len(grid))
    low = np.concatenate([[0.0], np.maximum.accumulate(low)])
    high = np.concatenate([np.minimum.accumulate(high[::-1])[::-1], [1.0]])
    return (
        low[np.searchsorted(grid, levels, side="right")],
        high[np.searchsorted(grid, levels, side="left")],
    )


def pointwise_interval(
    values: np.ndarray, levels: np.ndarray, scramble: np.ndarray | None = None, confidence: float = 0.95
) -> Interval:
    """Interval of the share at each level by itself: bootstrap percentiles for i.i.d. draws, else t over scrambles.

    Resampling n draws gives Binomial(n, share) / n at each level, so the percentiles are computed and not simulated.
    They have no width where the share is 0 or 1 and too little near them; the tables give Clopper-Pearson intervals.
    """
    if scramble is not None:
        return share_interval(values[:, None] <= levels, scramble, confidence)
    n, share, tail = len(values), share_at(values, levels), (1 - confidence) / 2
    return binom.ppf(tail, n, share) / n, binom.ppf(1 - tail, n, share) / n


def area_scores(delta: np.ndarray, span: float = SPAN) -> np.ndarray:
    """(n,) contributions to the area: 1 at or below the reference, 0 from `span` points above it."""
    return np.clip(1 - np.maximum(delta, 0) / span, 0, 1)


def area(delta: np.ndarray, span: float = SPAN) -> float:
    """Area under the EDF of delta from 0 to `span` points, over `span`: 1 is perfectly robust, 0 is hopeless."""
    return float(area_scores(delta, span).mean())


def summary(draws: Population, confidence: float = 0.95) -> dict[str, float | None]:
    """Numbers of an arm with intervals; NaN where there is no outcome, or no reference for what needs one."""
    values: dict[str, float | None] = {
        "median_error_pct": np.nan,
        "median_error_pct_low": np.nan,
        "median_error_pct_high": np.nan,
    }
    if draws.n:
        low, high = median_interval(draws.error, draws.scramble, confidence)
        values = dict(zip(values, (float(np.median(draws.error)), low, high), strict=True))
    best = float(draws.error[draws.finished].min()) if draws.finished.any() else np.nan
    return {
        "num_references": len(draws.references), "reference_error_pct": draws.reference,
        "reference_sd_pct": draws.reference_sd, "num_better_than_reference": draws.num_better,
        "num_beyond_10_points": draws.num_beyond(), **values, "best_of_n_error_pct": best,
        **_against_reference(draws, confidence),
    }  # fmt: skip


def _against_reference(draws: Population, confidence: float) -> dict[str, float]:
    """Shares within a few points of the reference, in percent, and the area, in [0, 1]."""
    names = [*(f"within_{points}_points_pct" for points in WITHIN), "area"]
    known = draws.n > 0 and not np.isnan(draws.reference)
    delta = draws.delta() if known else np.empty(0)
    scores = [*(100 * (delta <= points) for points in WITHIN), area_scores(delta)]
    numbers: dict[str, float] = {}
    for name, score, scale in zip(names, scores, (100, 100, 100, 1), strict=True):
        low, high = share_interval(score / scale, draws.scramble, confidence) if known else (np.nan, np.nan)
        mean = float(score.mean()) if known else np.nan
        numbers |= {name: mean, f"{name}_low": scale * float(low), f"{name}_high": scale * float(high)}
    return numbers | _if_reference_moved(delta, draws.reference_shift)


def _if_reference_moved(delta: np.ndarray, shift: float) -> dict[str, float]:
    """The share within 4 points, in percent, had the reference been `shift` points lower or higher."""
    ends = {"lower": FORGIVEN - shift, "higher": FORGIVEN + shift}
    return {f"within_4_points_if_reference_{end}_pct": 100 * float((delta <= points).mean()) if len(delta) else np.nan
            for end, points in ends.items()}  # fmt: skip
