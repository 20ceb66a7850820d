"""The curves of the EDF figures as tables: the steps of each arm's EDF with their bands.

Figures draw these tables and estimate nothing, so what is drawn is what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from vitscale.analysis.distribution import edf
from vitscale.analysis.distribution.population import Population, populations
from vitscale.analysis.results import Results, panels
from vitscale.analysis.stats.intervals import Interval
from vitscale.plan.metrics import Metric

COLUMNS = (
    "panel",
    "arm",
    "above",
    "level",
    "share",
    "share_low",
    "share_high",
    "curve_low",
    "curve_high",
)
ABSOLUTE = "none"  # the baseline of a panel in which an arm has no finished reference


def edf_curves(results: Results) -> pd.DataFrame:
    """One row per panel, arm and step of its EDF.

    `share` is the share of draws that are at most `level` above the reference, in the metric's
    unit. `share_low` and `share_high` are its pointwise 95% interval, `curve_low` and `curve_high`
    the simultaneous 95% band of the whole curve; both include the noise of the references if there
    are two runs or more. All values hold from their level up to the next one. The first and the
    last level are the range shared by panels with the same `above`. If an arm of a panel has no
    finished reference, the panel shows absolute values and `above` is "none".
    """
    return _curves(results, "reference")


def edf_curves_vs_best(results: Results) -> pd.DataFrame:
    """The same as edf_curves with levels above the arm's best draw; bands are conditional on it."""
    return _curves(results, "best draw")


def _curves(results: Results, baseline: str) -> pd.DataFrame:
    shown = {
        panel: [results.once(populations)[arm] for arm in arms]
        for panel, arms in panels(results.study).items()
    }
    used = {
        panel: ABSOLUTE if baseline == "reference" and _lacks_reference(arms) else baseline
        for panel, arms in shown.items()
    }
    curves = []
    for name in dict.fromkeys(used.values()):
        members = [
            (panel, draws) for panel in shown if used[panel] == name for draws in shown[panel]
        ]
        values = [_values(draws, name) for _, draws in members if draws.n]
        metric = results.metric
        limits = value_limits(values, metric) if name == ABSOLUTE else _delta_limits(values, metric)
        curves += [
            _curve(draws, name, limits).assign(panel=panel, arm=draws.arm, above=name)
            for panel, draws in members
            if draws.n
        ]
    empty = pd.DataFrame(columns=list(COLUMNS))
    return pd.concat(curves, ignore_index=True)[list(COLUMNS)] if curves else empty


def _lacks_reference(arms: Sequence[Population]) -> bool:
    return any(draws.n and not len(draws.references) for draws in arms)


def _values(draws: Population, baseline: str) -> np.ndarray:
    """(n,) values or deltas; all +inf if no draw finished, since then there is no best draw."""
    if baseline == ABSOLUTE or not draws.finished.any():
        return draws.level()
    return draws.delta(baseline)


def _delta_limits(values: Sequence[np.ndarray], metric: Metric) -> tuple[float, float]:
    lowest = min((float(value.min()) for value in values if len(value)), default=0.0)
    return (lowest - 0.03 * metric.beyond if lowest < 0 else 0.0), metric.beyond


def value_limits(values: Sequence[np.ndarray], metric: Metric) -> tuple[float, float]:
    """A range slightly wider than that of the finite values, or the metric's bounds."""
    finite = np.concatenate([np.empty(0), *(value[np.isfinite(value)] for value in values)])
    if len(finite) == 0:
        return metric.bounds[0], metric.bounds[1] if np.isfinite(metric.bounds[1]) else 1.0
    margin = 0.05 * max(float(np.ptp(finite)), metric.within[0])
    return float(finite.min()) - margin, float(finite.max()) + margin


def _curve(draws: Population, baseline: str, limits: tuple[float, float]) -> pd.DataFrame:
    """The levels at which the share or one of its bands changes, and both ends of the range."""
    values = _values(draws, baseline)
    reach = draws.reference_reach() if baseline == "reference" else 0.0
    steps, _ = edf.edf(values)
    moved = [np.round(steps + off, 9) for off in (-reach, reach)] if reach else []
    inside = np.concatenate([steps, *moved])
    inside = inside[(inside > limits[0]) & (inside < limits[1])]
    level = np.unique(np.concatenate([inside, limits]))
    low, high = edf.widened(
        lambda at: edf.pointwise_interval(values, at, draws.scramble), level, reach
    )
    band = _whole_curve(draws, values, baseline)
    unknown = np.full(len(level), np.nan)
    curve_low, curve_high = edf.widened(band, level, reach) if band else (unknown, unknown)
    return pd.DataFrame(
        {
            "level": level,
            "share": edf.share_at(values, level),
            "share_low": low,
            "share_high": high,
            "curve_low": curve_low,
            "curve_high": curve_high,
        }
    )


def _whole_curve(
    draws: Population, values: np.ndarray, baseline: str
) -> Callable[[np.ndarray], Interval] | None:
    """The simultaneous band; None for values of a Sobol design, whose band is of deltas."""
    scramble = draws.scramble
    if scramble is None:
        return lambda at: edf.curve_band(values, at)
    if baseline == ABSOLUTE:
        return None
    grid = np.linspace(0, draws.metric.beyond, edf.NUM_LEVELS)
    return lambda at: edf.sobol_band(values, at, scramble, grid=grid)
