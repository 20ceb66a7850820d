"""How error falls with model size, images and training compute, at an lr that each cell chooses.

A cell is a model of a family at one number of images and epochs, at several lr with several
seeds. Cells, laws, forecasts, frontiers and crossings all rest on the same bootstrap rounds, so
each interval includes the noise of seeds and the choice of lr. docs/method-scaling.md has the
methods and how often their intervals cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.cells import NUM_ROUNDS, QUANTILES, runs_of
from vitscale.analysis.columns import named
from vitscale.analysis.results import Results
from vitscale.analysis.scaling import fits
from vitscale.analysis.scaling.fits import Fit
from vitscale.analysis.stats.rounds import (
    Chosen,
    Noise,
    Runs,
    choose,
    relative_noise,
    rounds,
    rounds_on,
)
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import training_flops
from vitscale.plan.questions import FAR, MIN_VALUES
from vitscale.plan.study import Study

NUM_ROUNDS_ON_LAW = 400
STEPS = (2.0, float(FAR))  # times the largest value of the axis: forecasts within the limit
FAR_STEPS = (16.0,)
# axis of a law -> column of the cells
AXES = {"size": "params", "images": "images", "length": "samples"}
# an exponent beyond these is at an end of its search
LEAST_EXPONENT, GREATEST_EXPONENT = 1.2 * fits.EXPONENTS[0], fits.EXPONENTS[1] / 1.2
LINE = 60  # points of a curve
LEVELS = ("images", "samples")  # what a curve is at
POINTS = 256  # of an axis on which laws are compared
CERTAIN = 0.95  # share of bootstrap rounds with a number, from which on it has an interval


@dataclass(frozen=True)
class Grid:
    """All cells of a study, what each chose, and bootstrap rounds of that.

    `frame` has one row per cell. `noise` is that of runs relative to their error; without repeated
    runs there is none, and nothing has an interval.
    """

    frame: pd.DataFrame
    lrs: tuple[tuple[float, ...], ...]
    runs: Runs
    chosen: Chosen
    rounds: Chosen
    noise: Noise | None

    @property
    def has_intervals(self) -> bool:
        return self.noise is not None

    @property
    def sd(self) -> np.ndarray:
        """(cells,) of a run, relative to its error."""
        if self.noise is None:
            return np.full(len(self.frame), UNKNOWN_NOISE)
        return np.maximum(self.noise.sd_of_cells, 1e-6)

    @property
    def usable(self) -> np.ndarray:
        """(cells,) whether a cell has an error: one that diverged or has no run has none."""
        return self.chosen.n > 0

    @property
    def lawful(self) -> np.ndarray:
        """(cells,) whether a cell can be in a law: an error of 0 has no logarithm."""
        return self.usable & (np.nan_to_num(self.chosen.error) > 0)

    @property
    def at_edge(self) -> np.ndarray:
        """(cells,) whether the lr lies at an end of its grid."""
        last = np.array([len(tried) - 1 for tried in self.lrs])
        return (last > 0) & ((self.chosen.lr == 0) | (self.chosen.lr == last))

    @property
    def precision(self) -> np.ndarray:
        """(cells,) 1 / variance of the logarithm of a cell's error."""
        return self.chosen.n / self.sd**2


UNKNOWN_NOISE = 0.05  # of single runs, where all weigh the same and nothing has an interval


def grid(results: Results) -> Grid:
    """The cells of a study in the order of the plan."""
    study = results.study
    configs: dict[str, TrainConfig] = {}
    for trial in study.trials:
        configs.setdefault(trial.arm.name, trial.config)
    frame = pd.DataFrame([_cell_row(study, arm, config) for arm, config in configs.items()])
    by_arm = dict(list(results.trials.groupby("arm", sort=False)))
    lrs = tuple(tuple(sorted({float(lr) for lr in by_arm[arm]["lr"]})) for arm in configs)
    runs = runs_of([by_arm[arm] for arm in configs], lrs, _columns(study))
    return _grid_of(frame, lrs, runs)


def unseen(results: Results) -> Grid:
    """The cells as they were before the largest value of each family's first axis was trained: a
    forecast of those is the same before and after their trainings, noise and rounds included.
    """
    cells = results.once(grid)
    fitted = results.once(widest).values()
    held = np.concatenate([largest(cells, law.family, law.axes) for law in fitted])
    hidden = np.isin(np.arange(len(cells.frame)), held)[:, None, None]
    runs = Runs(
        np.where(hidden, np.nan, cells.runs.choosing),
        np.where(hidden, np.nan, cells.runs.reported),
        cells.runs.diverged & ~hidden,
    )
    return _grid_of(cells.frame, cells.lrs, runs)


def _grid_of(frame: pd.DataFrame, lrs: tuple[tuple[float, ...], ...], runs: Runs) -> Grid:
    noise, chosen = relative_noise(runs, frame["params"].to_numpy(float)), choose(runs)
    if noise is None:
        once = Chosen(chosen.lr[None], chosen.error[None], chosen.n[None])
        return Grid(frame, lrs, runs, chosen, once, None)
    drawn = rounds(runs, NUM_ROUNDS, np.random.default_rng(0), noise)
    return Grid(frame, lrs, runs, chosen, drawn, noise)


def _columns(study: Study) -> tuple[str, str]:
    """Of the trials: what chooses an lr, and what is reported."""
    return estimates.evaluations(study)[CHOOSES], "value"


def _cell_row(study: Study, arm: str, config: TrainConfig) -> dict[str, object]:
    factors, cost = study.arms[arm].factors, study.cost(config)
    return {
        "family": str(factors["family"]),
        "cell": arm,
        "size": str(factors["size"]),
        "params": float(cost.params),
        "images": float(config.num_train),
        "epochs": config.epochs,
        "samples": float(config.num_samples),
        "training_flops": training_flops(config, study.measured),
    }


def ends(values: np.ndarray) -> tuple[float, float]:
    """The 2.5 and 97.5% quantiles of a number over the rounds that have it; NaN for one round."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return np.nan, np.nan
    low, high = np.percentile(finite, QUANTILES)
    return float(low), float(high)


def interval(name: str, estimate: float, values: np.ndarray) -> dict[str, float]:
    """The columns of an estimate and of its interval over the rounds."""
    return named(name, (estimate, *ends(values)))


def scaling_cells(results: Results) -> pd.DataFrame:
    """One row per cell: cost, how its runs ended, the lr with the lowest mean on minival, and the
    mean of the metric there over the runs that finished.

    An lr is a candidate if at least half of its ended runs finished; a cell without one is
    diverged, has no error and is in no law. The 95% interval includes the noise of seeds and the
    choice of lr. Multiply-adds of the whole training, forward and backward. `diverged` is at the
    chosen lr, or of all runs where none is chosen; `diverged_in_all` at every lr. Both hold the
    `failed` ones of all lr.
    """
    cells = results.once(grid)
    return pd.DataFrame([_cells_row(results, cells, index) for index in range(len(cells.frame))])


def reported(study: Study) -> str:
    """The column of scaling_cells with the reported value of a cell."""
    return f"{next(iter(estimates.evaluations(study)))}_mean"


def _cells_row(results: Results, cells: Grid, index: int) -> dict[str, object]:
    row, lr = cells.frame.iloc[index], int(cells.chosen.lr[index])
    diverged = cells.runs.diverged[index]
    grid_of = cells.lrs[index]
    of_cell = results.trials[results.trials["arm"] == row["cell"]]
    ended = int(diverged.sum() + np.isfinite(cells.runs.reported[index]).sum())
    name = reported(results.study)
    return {
        **{key: row[key] for key in ("family", "cell", "size")},
        "params_m": row["params"] / 1e6,
        "images": int(row["images"]),
        "epochs": row["epochs"],
        "samples": row["samples"],
        "training_flops": row["training_flops"],
        "lr": grid_of[lr] if lr >= 0 else np.nan,
        "lr_at_edge": bool(cells.at_edge[index]),
        "n": int(cells.chosen.n[index]),
        "diverged": int(diverged[lr].sum() if lr >= 0 else diverged.sum()),
        "diverged_in_all": int(diverged.sum()),
        "failed": int((of_cell["status"] == "failed").sum()),
        "ended": ended,
        "planned": len(of_cell),
        **interval(name, cells.chosen.error[index], cells.rounds.error[:, index]),
    }


# ---- laws


@dataclass(frozen=True)
class Law:
    """A law of a family on some axes, fitted to its cells and to every round of them."""

    family: str
    axes: tuple[str, ...]
    has_floor: bool
    index: np.ndarray  # of the cells in the fit
    x: np.ndarray  # (cells, axes) of the fit
    fit: Fit
    rounds: Fit
    precision: np.ndarray


def cells_of(cells: Grid, family: str, axes: Sequence[str]) -> np.ndarray:
    """Indices of a family's cells, usable or not, that differ in these axes alone: at the most
    images, unless images are an axis, and at the greatest length, unless length is one.
    """
    frame = cells.frame[cells.frame["family"] == family]
    if "length" in axes or "images" not in axes:
        frame = frame[frame["images"] == frame["images"].max()]
    if "length" not in axes:
        longest = frame.groupby(["size", "images"])["samples"].transform("max")
        frame = frame[frame["samples"] == longest]
    return frame.index.to_numpy()


def axes_of(cells: Grid, family: str) -> list[tuple[str, ...]]:
    """The axes of the laws of a family, those with the most axes last."""
    frame = cells.frame[cells.frame["family"] == family]
    varied = [axis for axis in AXES if _num_values(cells, family, axis) >= MIN_VALUES]
    if len(frame) < MIN_VALUES or not varied:
        return []
    if "size" not in varied:
        return [(varied[0],)]
    return [("size",), *(("size", axis) for axis in varied if axis != "size")]


def _num_values(cells: Grid, family: str, axis: str) -> int:
    index = cells_of(cells, family, ("size", axis) if axis != "size" else ("size",))
    return int(cells.frame.loc[index, AXES[axis]].nunique())


def fit_law(
    cells: Grid,
    family: str,
    axes: Sequence[str],
    *,
    has_floor: bool,
    without: np.ndarray | None = None,
) -> Law | None:
    """A law of a family, `without` some cells; None where too few cells have an error above 0."""
    index = cells_of(cells, family, axes)
    index = index[cells.lawful[index]]
    if without is not None:
        index = np.setdiff1d(index, without)
    x = cells.frame.loc[index, [AXES[axis] for axis in axes]].to_numpy(float)
    try:
        fits.check_identified(x, has_floor)
    except ValueError:
        return None
    precision = cells.precision[index]
    measured = fits.fit(x, cells.chosen.error[index], precision, has_floor=has_floor)
    error, n = cells.rounds.error[:, index], cells.rounds.n[:, index]
    drawn = fits.fit(x, error, n / cells.sd[index] ** 2, has_floor=has_floor, start=measured)
    return Law(family, tuple(axes), has_floor, index, x, measured, drawn, precision)


def laws(results: Results) -> list[Law]:
    """All laws of all families, with and without a floor, that the cells identify."""
    cells = results.once(grid)
    fitted = []
    for family in families(cells):
        for axes in axes_of(cells, family):
            fitted += [
                fit_law(cells, family, axes, has_floor=has_floor) for has_floor in (True, False)
            ]
    return [law for law in fitted if law is not None]


def families(cells: Grid) -> list[str]:
    return list(dict.fromkeys(cells.frame["family"]))


def widest(results: Results) -> dict[str, Law]:
    """Family -> its law with a floor and the most axes, size and images before size and length:
    what figures, crossings and forecasts beyond the largest cell use.
    """
    best: dict[str, Law] = {}
    for law in results.once(laws):
        before = best.get(law.family)
        if law.has_floor and (before is None or len(law.axes) > len(before.axes)):
            best[law.family] = law
    return best


def scaling_fit(results: Results) -> pd.DataFrame:
    """One row per family, axes and whether the law has a floor: error = floor + gain (x / x0)^-b,
    summed over the axes, with 95% intervals.

    x0 is the geometric mean of the axis over the cells, so that a gain is what the axis adds there.
    Intervals are of bootstrap rounds over the runs, their seeds and the choice of lr, given which
    runs finished; those of profile likelihood, given the lr, stand beside the exponents and the
    floor. `misfit` is the scatter of the cells around the law over that of seeds alone, in
    variance; misfit_p is small where the law is not the shape of the data. `held_out_ratio` is the
    error measured at the largest value of the first axis over what the same law predicts without
    it, a geometric mean; a law that comes nearer to 1 than the other in 95% of the bootstrap rounds
    is `nearer`. `not_identified` names what no interval bounds.
    """
    cells = results.once(grid)
    all_laws = results.once(laws)
    held_out = [_held_out_ratios(cells, law) for law in all_laws]
    rows = [
        _fit_row(cells, law, float(ratio))
        for law, (ratio, _) in zip(all_laws, held_out, strict=True)
    ]
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    table.insert(3, "nearer", False)
    for _, pair in table.groupby(["family", "axes"], sort=False):
        if len(pair) == 2 and pair["held_out_ratio"].notna().all():
            a, b = (abs(np.log(held_out[place][1])) for place in pair.index)
            table.loc[pair.index, "nearer"] = [(a < b).mean() >= CERTAIN, (b < a).mean() >= CERTAIN]
    return table


def _fit_row(cells: Grid, law: Law, held_out_ratio: float) -> dict[str, object]:
    drawn, row = law.rounds, {"family": law.family, "axes": " and ".join(law.axes)}
    profile = _profile(cells, law)
    numbers: dict[str, object] = {
        **row,
        "has_floor": law.has_floor,
        "n_cells": len(law.index),
        "diverged_cells": _diverged_cells(cells, law.family, law.axes),
        **interval("floor", float(law.fit.floor), drawn.floor),
        "floor_profile_low": profile["floor"][0],
        "floor_profile_high": profile["floor"][1],
    }
    for i, axis in enumerate(law.axes):
        numbers |= {
            f"{axis}_x0": float(law.fit.x0[i]),
            **interval(f"{axis}_gain", law.fit.gains[i], drawn.gains[:, i]),
            **interval(f"{axis}_exponent", law.fit.exponents[i], drawn.exponents[:, i]),
            f"{axis}_exponent_profile_low": profile[axis][0],
            f"{axis}_exponent_profile_high": profile[axis][1],
        }
    misfit, p = _misfit(cells, law)
    return {
        **numbers,
        "misfit": misfit,
        "misfit_p": p,
        "held_out_ratio": held_out_ratio,
        "not_identified": ", ".join(_not_identified(law)),
    }


def _profile(cells: Grid, law: Law) -> dict[str, tuple[float, float]]:
    nothing = {name: (np.nan, np.nan) for name in ("floor", *law.axes)}
    if cells.noise is None:
        return nothing
    region = fits.likelihood_region(
        law.x,
        cells.chosen.error[law.index],
        law.precision,
        df=cells.noise.df,
        has_floor=law.has_floor,
    )
    intervals = {
        axis: region.interval(region.laws.exponents[:, i]) for i, axis in enumerate(law.axes)
    }
    return {"floor": region.interval(region.laws.floor), **intervals}


def _diverged_cells(cells: Grid, family: str, axes: Sequence[str]) -> int:
    """Cells that a law leaves out because they diverged, not because outcomes are missing."""
    index = cells_of(cells, family, axes)
    return int((~cells.usable[index] & cells.runs.diverged[index].any((1, 2))).sum())


def _misfit(cells: Grid, law: Law) -> tuple[float, float]:
    """(mean square of standardised residuals, p); NaN without noise or degrees of freedom.

    p is the share of rounds on the law itself, each with the noise of seeds, the divergence and the
    choice of lr of these cells, that scatter as much. By F, which takes each lr as given, 5 to 22%
    of right laws would be called wrong.
    """
    if cells.noise is None:
        return np.nan, np.nan
    every = cells.runs
    runs = Runs(every.choosing[law.index], every.reported[law.index], every.diverged[law.index])
    return misfit(law, cells.chosen.error[law.index], runs, cells.noise.of_cells(law.index))


def misfit(law: Law, errors: np.ndarray, runs: Runs, noise: Noise) -> tuple[float, float]:
    """The same of the cells of a law, their errors and runs, and their noise."""
    sd2 = np.maximum(noise.sd_of_cells**2, 1e-12)
    ratio = float(_scatter(law, law.fit, errors, law.precision))
    if not np.isfinite(ratio):
        return np.nan, np.nan
    on_law = rounds_on(
        runs, law.fit.predict(law.x), noise, NUM_ROUNDS_ON_LAW, np.random.default_rng(2)
    )
    precision = on_law.n / sd2
    again = fits.fit(law.x, on_law.error, precision, has_floor=law.has_floor, start=law.fit)
    scatter = _scatter(law, again, on_law.error, precision)
    return ratio, float((1 + (scatter >= ratio).sum()) / (1 + np.isfinite(scatter).sum()))


def _scatter(law: Law, fit: Fit, errors: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(...) mean squares of standardised residuals of (..., cells); NaN without a df."""
    df = (precision > 0).sum(-1) - fits.num_unknowns(len(law.axes), law.has_floor)
    residual = np.log(np.where(precision > 0, errors, 1.0) / fit.predict(law.x))
    return (residual**2 * precision).sum(-1) / np.where(df > 0, df, np.nan)


def largest(cells: Grid, family: str, axes: Sequence[str]) -> np.ndarray:
    """Indices of the cells at the largest value of the first axis."""
    index = cells_of(cells, family, axes)
    values = cells.frame.loc[index, AXES[axes[0]]]
    return index[(values == values.max()).to_numpy()]


def _held_out_ratios(cells: Grid, law: Law) -> tuple[float, np.ndarray]:
    """Measured over predicted of the largest value, and the same of each round."""
    held = largest(cells, law.family, law.axes)
    rest = fit_law(cells, law.family, law.axes, has_floor=law.has_floor, without=held)
    held = held[cells.lawful[held]]
    if rest is None or not len(held):
        return np.nan, np.full(1, np.nan)
    x = _points(cells, held, law.axes)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, drawn = (
            np.exp(np.log(error / fit.predict(x)).mean(-1))
            for error, fit in (
                (cells.chosen.error[held], rest.fit),
                (cells.rounds.error[:, held], rest.rounds),
            )
        )
    return float(ratio), np.atleast_1d(drawn)


def _points(cells: Grid, index: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    return cells.frame.loc[index, [AXES[axis] for axis in axes]].to_numpy(float)


def _not_identified(law: Law) -> Iterator[str]:
    """What the intervals of a law do not bound; nothing where it has none."""
    low, high = ends(law.rounds.floor)
    if law.has_floor and low < 0.01 * high:
        yield "floor (reaches 0)"
    for i, axis in enumerate(law.axes):
        low, high = ends(law.rounds.exponents[:, i])
        if low <= LEAST_EXPONENT:
            yield f"{axis} exponent (reaches 0)"
        if high >= GREATEST_EXPONENT:
            yield f"{axis} exponent (no upper end)"
        low, _ = ends(law.rounds.gains[:, i])
        if low <= 0:
            yield f"{axis} gain (reaches 0)"


def scaling_curves(results: Results) -> pd.DataFrame:
    """The lines of error_by_scale: one row per point of the law with a floor and the most axes,
    for each number of images and length that a family was trained at.
    """
    cells = results.once(grid)
    rows = [row for law in results.once(widest).values() for row in _curve_rows(cells, law)]
    return pd.DataFrame(rows, columns=["family", "images", "samples", "x", "value"])


def _curve_rows(cells: Grid, law: Law) -> Iterator[dict[str, object]]:
    frame = cells.frame.loc[law.index]
    column, others = AXES[law.axes[0]], [AXES[axis] for axis in law.axes[1:]]
    levels = frame.groupby(others, sort=False) if others else [((), frame)]
    for _, level in levels:
        line = np.geomspace(level[column].min(), level[column].max(), LINE)
        rest = np.broadcast_to(level[others].iloc[0].to_numpy(float), (LINE, len(others)))
        for x, error in zip(line, law.fit.predict(np.column_stack([line, rest])), strict=True):
            first = level.iloc[0]
            levels_of = {name: first[name] if name != column else np.nan for name in LEVELS}
            yield {"family": law.family, **levels_of, "x": x, "value": error}


# ---- forecasts


FORECAST = (
    "family", "axes", "target", "kind", "times", "params_m", "images", "samples",
    "predicted", "predicted_low", "predicted_high",
    "measured", "n", "inside",
)  # fmt: skip


def scaling_forecast(results: Results) -> pd.DataFrame:
    """One row per forecast of the law with a floor and the most axes: the cells at the largest
    value of its first axis, predicted without them, then 2 and 4 times that value, predicted by
    all.

    The interval of a held-out cell is where 95% of measured means of as many runs would lie, with
    the seeds' noise, and the choice of lr of the other cells. All of it comes from these: it is the
    same before and after the held-out ones are trained. `inside` scores it: "no", too, where the
    cell diverged. For a value that was not trained it is the law's. `times`: the forecast's value
    over the largest that the law was fitted to.
    """
    rows = [row for law in results.once(widest).values() for row in _forecasts(results, law, STEPS)]
    return pd.DataFrame(rows, columns=list(FORECAST))


def scaling_forecast_far(results: Results) -> pd.DataFrame:
    """One row per family: the law with a floor at 16 times the largest value of its first axis.

    Beyond 4 times no simulation of ours says how good it is: marked far, drawn nowhere.
    """
    cells = results.once(grid)
    rows = [
        row
        for law in results.once(widest).values()
        for row in _beyond(cells, law, FAR_STEPS, "far extrapolation")
    ]
    return pd.DataFrame(rows, columns=list(FORECAST))


def _forecasts(
    results: Results, law: Law, steps: Sequence[float]
) -> Iterator[Mapping[str, object]]:
    cells, before = results.once(grid), results.once(unseen)
    held = largest(cells, law.family, law.axes)
    rest = fit_law(before, law.family, law.axes, has_floor=True)
    if rest is not None:
        times = cells.frame.loc[held[0], AXES[law.axes[0]]] / rest.x[:, 0].max()
        x = _points(cells, held, law.axes)
        predicted, drawn = rest.fit.predict(x), rest.rounds.predict(x)
        noise = _new_noise(before, held, _num_runs(results, held), drawn.shape)
        for i, index in enumerate(held):
            yield _forecast_row(
                cells, law, index, "held out", times, predicted[i], drawn[:, i] * noise[:, i]
            )
    yield from _beyond(cells, law, steps, "extrapolation")


def _num_runs(results: Results, index: np.ndarray) -> np.ndarray:
    """How many runs the mean of each of these cells has, or will have if it has none yet."""
    cells = results.once(grid)
    planned = results.trials.groupby("arm")["seed"].nunique()
    of_plan = planned[cells.frame.loc[index, "cell"]].to_numpy()
    return np.where(cells.usable[index], cells.chosen.n[index], of_plan)


def _new_noise(
    cells: Grid, index: np.ndarray, num_runs: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Factors of measured means of so many runs of these cells, by Student's t."""
    if cells.noise is None:
        return np.ones(shape)
    rng = np.random.default_rng(1)
    sd = cells.noise.sd * cells.noise.of_cells(index).factors(shape[0], rng) / np.sqrt(num_runs)
    return np.exp(sd * rng.standard_t(cells.noise.df, shape))


def _beyond(
    cells: Grid, law: Law, steps: Sequence[float], kind: str
) -> Iterator[Mapping[str, object]]:
    """Forecasts at multiples of the largest cell in the law: as many images and samples as it has.
    A larger one that was planned, and has no error yet, is no base to extrapolate from. None where
    the lr lies at an end of its grid in the largest cell or in over a third of all: a better lr may
    lie outside, and the law bends there.
    """
    if lr_limits(cells, law):
        return
    largest_first = np.lexsort([*law.x[:, 1:].T, law.x[:, 0]])
    last = int(law.index[largest_first[-1]])
    for times in steps:
        x = _points(cells, np.array([last]), law.axes).copy()
        x[0, 0] *= times
        yield _forecast_row(
            cells, law, last, kind, times, law.fit.predict(x)[0], law.rounds.predict(x)[:, 0]
        )


def lr_limits(cells: Grid, law: Law) -> str:
    """Why a law must not be extrapolated, as its lr are at ends of their grids; empty if it may."""
    at_edge = cells.at_edge[law.index]
    if at_edge[np.lexsort([*law.x[:, 1:].T, law.x[:, 0]])[-1]]:
        return "of its largest cell"
    return f"of {at_edge.sum()} of {len(at_edge)} cells" if 3 * at_edge.sum() > len(at_edge) else ""


def _forecast_row(
    cells: Grid,
    law: Law,
    index: int,
    kind: str,
    times: float,
    predicted: float,
    drawn: np.ndarray,
) -> dict[str, object]:
    cell, held = cells.frame.loc[index], kind == "held out"
    by = {axis: 1.0 if held or axis != law.axes[0] else times for axis in AXES}
    low, high = ends(drawn)
    measured = float(cells.chosen.error[index]) if held else np.nan
    diverged = held and bool(~cells.usable[index] and cells.runs.diverged[index].any())
    n = int(cells.chosen.n[index]) if held else 0
    what = cell["cell"] if held else f"{times:g} times the {law.axes[0]} of {cell['cell']}"
    params = cell["params"] * by["size"] / 1e6
    values = (
        law.family,
        " and ".join(law.axes),
        what,
        kind,
        float(times),
        params,
        cell["images"] * by["images"],
        cell["samples"] * by["length"],
        float(predicted),
        low,
        high,
        measured,
        n,
        _inside(measured, low, high, diverged),
    )
    return dict(zip(FORECAST, values, strict=True))


def _inside(measured: float, low: float, high: float, diverged: bool) -> str:
    """Whether a forecast held; nothing where it cannot be scored. One of a cell that diverged did
    not.
    """
    if not np.isfinite(low) or not (diverged or np.isfinite(measured)):
        return ""
    return "yes" if low <= measured <= high else "no"


# ---- compute


def scaling_frontier(results: Results) -> pd.DataFrame:
    """One row per family and cell that no cheaper cell matches: training multiply-adds, the lowest
    value that this compute allows, and the size that reaches it.

    The band is over the bootstrap rounds, each with its own lr and its own lowest cells:
    `best_value` of the lowest error at this compute, `optimal_params_m` of the size there. The
    lowest of several noisy errors is lower than the error of that cell trained again. `on_frontier`
    is the share of rounds in which this cell is the lowest.
    """
    cells = results.once(grid)
    rows = [row for family in families(cells) for row in _frontier_rows(cells, family)]
    return pd.DataFrame(rows)


def _frontier_rows(cells: Grid, family: str) -> Iterator[dict[str, object]]:
    index = cells.frame.index[(cells.frame["family"] == family) & cells.usable].to_numpy()
    flops = cells.frame.loc[index, "training_flops"].to_numpy(float)
    params = cells.frame.loc[index, "params"].to_numpy(float) / 1e6
    error, drawn = cells.chosen.error[index], cells.rounds.error[:, index]
    for place in np.argsort(flops, kind="stable"):
        affordable = flops <= flops[place]
        if error[place] > error[affordable].min():
            continue
        within = np.where(affordable & np.isfinite(drawn), drawn, np.inf)
        best = within.argmin(1)
        yield {
            "family": family,
            "cell": cells.frame.loc[index[place], "cell"],
            "training_flops": flops[place],
            "n": int(cells.chosen.n[index[place]]),
            **interval("best_value", error[place], within.min(1)),
            **interval("optimal_params_m", params[place], params[best]),
            "on_frontier": float((best == place).mean()),
        }


def scaling_crossing(results: Results) -> pd.DataFrame:
    """One row per pair of families: the number of parameters at which their laws cross, within the
    range that both were trained in, at the most images and samples both have.

    A family that lacks the largest cells of the other is compared at the most that it has itself.
    `share_crossing` is the share of bootstrap rounds with a crossing in that range; the interval is
    over those, and is given only if 95% of the rounds have one. Differences are a minus b at both
    ends of the range, in points: below 0, a is better.
    """
    by_family = {name: law for name, law in results.once(widest).items() if law.axes[0] == "size"}
    rows = [
        _crossing_row(results, by_family[a], by_family[b]) for a, b in combinations(by_family, 2)
    ]
    return pd.DataFrame(rows)


def _crossing_row(results: Results, a: Law, b: Law) -> dict[str, object]:
    low = max(a.x[:, 0].min(), b.x[:, 0].min())
    high = min(a.x[:, 0].max(), b.x[:, 0].max())
    row: dict[str, object] = {
        "a": a.family,
        "b": b.family,
        "n_cells_a": len(a.index),
        "n_cells_b": len(b.index),
        "least_params_m": low / 1e6,
        "greatest_params_m": high / 1e6,
    }
    sizes = np.geomspace(low, max(high, low), POINTS)
    has_intervals = results.once(grid).has_intervals
    most = _common(a, b)
    return row | crossing(
        "crossing_params_m", sizes / 1e6, (a, b), (sizes, sizes), has_intervals, (most, most)
    )


def _common(a: Law, b: Law) -> dict[str, float]:
    """Axis -> the most that both laws have of it, beside their size."""
    ends = [dict(zip(law.axes[1:], law.x.max(0)[1:], strict=True)) for law in (a, b)]
    return {axis: min(end.get(axis, np.inf) for end in ends) for end in ends for axis in end}


def crossing(
    name: str,
    x: np.ndarray,
    pair: tuple[Law, Law],
    sizes: tuple[np.ndarray, np.ndarray],
    has_intervals: bool,
    most: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
) -> dict[str, float]:
    """The columns of where two laws cross along x (POINTS,), each at its own sizes (POINTS,), and
    of their difference at both ends; the crossing has an interval if CERTAIN of the rounds cross.
    `most`: of the other axes of each law, by name; by default all that it has.
    """
    a, b = pair
    point, drawn = (
        _at_sizes(fit, a, sizes[0], most[0]) - _at_sizes(other, b, sizes[1], most[1])
        for fit, other in ((a.fit, b.fit), (a.rounds, b.rounds))
    )
    at, at_drawn = float(crossings(point[None], x)[0]), crossings(drawn, x)
    share = float(np.isfinite(at_drawn).mean())
    differences = {
        **interval("difference_at_least", point[0], drawn[:, 0]),
        **interval("difference_at_greatest", point[-1], drawn[:, -1]),
    }
    signs = [shown_sign(differences, f"difference_at_{end}") for end in ENDS]
    at = at if signs[0] * signs[1] < 0 else np.nan
    certain = share >= CERTAIN and np.isfinite(at)
    return {
        **interval(name, at, at_drawn if certain else np.empty(0)),
        "share_crossing": share if has_intervals else np.nan,
        **differences,
    }


ENDS = ("least", "greatest")  # of the range in which laws are compared


def shown_sign(row: Mapping[Any, Any], name: str) -> int:
    """-1 or 1 where the interval of a difference lies on this side of 0, else 0."""
    return int(row[f"{name}_low"] > 0) - int(row[f"{name}_high"] < 0)


def _at_sizes(fit: Fit, law: Law, sizes: np.ndarray, most: Mapping[str, float]) -> np.ndarray:
    """Errors (..., sizes) at so many images and samples, by default the most of a law."""
    ends = [most.get(axis, end) for axis, end in zip(law.axes, law.x.max(0), strict=True)]
    rest = np.broadcast_to(ends[1:], (len(sizes), len(law.axes) - 1))
    return fit.predict(np.column_stack([sizes, rest]))


def crossings(difference: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(rounds,) the first size at which a difference (rounds, sizes) changes sign; NaN if none."""
    change = difference[:, :-1] * difference[:, 1:] < 0
    first = change.argmax(1)
    return np.where(change.any(1), np.sqrt(sizes[first] * sizes[first + 1]), np.nan)
