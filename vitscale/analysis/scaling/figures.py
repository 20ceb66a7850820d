"""Error against size and images with the law and its forecast, and against compute with its
frontier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from vitscale.analysis.displays import lines
from vitscale.analysis.report.layout import (
    STYLE,
    axis_label,
    finish,
    legend_above,
    placeholder,
)
from vitscale.analysis.report.tooltips import arm_texts, describe
from vitscale.analysis.results import Results
from vitscale.analysis.scaling.tables import (
    reported,
    scaling_cells,
    scaling_curves,
    scaling_forecast,
    scaling_frontier,
)

COLUMNS = {"size": "params_m", "images": "images"}  # axis -> column of the cells
LABELS = {"size": "parameters (M)", "images": "training images"}
WIDTH, HEIGHT = 4.2, 3.9  # inches of a panel


@matplotlib.rc_context(STYLE)
def error_by_scale(results: Results) -> Figure:
    """The metric against model size, a curve per number of images (or against images where only
    they vary), each cell at its own lr, with the law fitted to all cells and what it predicted of
    the largest without them.

    Points: means over the runs that finished. Whiskers: 95% intervals with the choice of lr. Lines:
    the law with a floor. Hollow: the largest value, predicted from the others, with the 95%
    interval for a measured mean, beside it.
    """
    table = results.once(scaling_cells)
    names = _families(table)
    width = 0.4 + WIDTH * min(len(names), 3)
    num_rows = -(-len(names) // 3)
    figure = Figure(figsize=(width, HEIGHT * num_rows + 0.5), layout="constrained")
    panels = figure.subplots(num_rows, min(len(names), 3), squeeze=False, sharey=True)
    for ax, family in zip(panels.flat, names, strict=False):
        _scale_panel(ax, results, family)
    for ax in panels.flat[len(names) :]:
        ax.remove()
    for row in panels:
        row[0].set_ylabel(axis_label(results.study))
    legend_above(figure, _levels(table))
    note = (
        f"Points: means over {_runs(table)} finished runs at the cell's own lr. "
        "Whiskers: 95% intervals over seeds and the choice of lr. Lines: the law with a floor, "
        "fitted to all cells. Hollow, to the right: forecast of the largest value from the others, "
        "with the 95% interval of a measured mean."
    )
    if (table["diverged_in_all"] > 0).any():
        note += "\n× above: how many of the cell's runs diverged, over all its lr."
    if not _has_intervals(results):
        note += "\nSingle runs: no intervals."
    return finish(figure, note)


def _families(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["family"]))


def _runs(table: pd.DataFrame) -> str:
    """How many finished runs a cell has at its lr, from the fewest to the most."""
    nums = table.loc[table["n"] > 0, "n"]
    return " to ".join(str(n) for n in sorted({nums.min(), nums.max()})) if len(nums) else "0"


def _has_intervals(results: Results) -> bool:
    name = f"{reported(results.study)}_low"
    return bool(results.once(scaling_cells)[name].notna().any())


def _axis_of(table: pd.DataFrame, family: str) -> str:
    return "size" if table[table["family"] == family]["params_m"].nunique() > 1 else "images"


def _level(rows: pd.DataFrame, axis: str) -> pd.Series:
    """What a curve is of: its images and, where others of as many are longer, its epochs."""
    images = rows["images"].map("{:,} images".format)
    shorter = rows["samples"] < rows.groupby("images")["samples"].transform("max") * 0.9
    epochs = rows["epochs"].map(lambda num: f"{num} epoch{'s' * (num != 1)}")
    if axis == "images":
        return epochs.where(shorter, "all subsets")
    return images + (", " + epochs).where(shorter, "")


def _levels(table: pd.DataFrame) -> list[Line2D]:
    levels = enumerate(_all_levels(table))
    return [lines.handle(level, lines.look(index), size=5.5, width=1.4) for index, level in levels]


def _all_levels(table: pd.DataFrame) -> list[str]:
    parts = [
        _level(table[table["family"] == family], _axis_of(table, family))
        for family in _families(table)
    ]
    return list(dict.fromkeys(level for part in parts for level in part))


def _scale_panel(ax: Axes, results: Results, family: str) -> None:
    table, curves = results.once(scaling_cells), results.once(scaling_curves)
    axis, levels = _axis_of(table, family), _all_levels(table)
    column, name = COLUMNS[axis], reported(results.study)
    of_family = table[table["family"] == family]
    curves = curves[curves["family"] == family]
    ax.set_xscale("log")
    ax.set_yscale("log")
    for level, rows in of_family.groupby(_level(of_family, axis), sort=False):
        looks = lines.look(levels.index(str(level)))
        x, y = rows[column].to_numpy(float), rows[name].to_numpy(float)
        lines.whiskers(ax, x, *lines.ends(rows, name), looks["color"])
        (dots,) = ax.plot(x, y, **{**looks, "linestyle": "none"}, markersize=5.5, zorder=4)
        describe(dots, [results.once(arm_texts)[cell] for cell in rows["cell"]])
        _curve(ax, curves, rows, axis, looks)
        _crosses(ax, x, rows, looks, levels.index(str(level)))
    _forecasts(ax, results, family, axis, levels)
    if of_family[name].isna().all():
        placeholder(ax, "no run finished")
    crosses = len(levels) if (table["diverged_in_all"] > 0).any() else 0
    ax.set_title(family, pad=6 + 9 * crosses)
    ax.set_xlabel(LABELS[axis])
    _log_numbers(ax)


def _curve(
    ax: Axes, curves: pd.DataFrame, rows: pd.DataFrame, axis: str, looks: dict[str, Any]
) -> None:
    """The law at the images and samples of these cells."""
    near = np.isclose(curves["samples"], rows["samples"].iloc[0])
    if axis == "size":
        near &= curves["images"] == rows["images"].iloc[0]
    curve = curves[near]
    unit = 1e6 if axis == "size" else 1.0
    ax.plot(
        curve["x"] / unit,
        curve["value"],
        color=looks["color"],
        linestyle=looks["linestyle"],
        linewidth=1.4,
        zorder=3,
    )


def _crosses(
    ax: Axes,
    x: np.ndarray,
    rows: pd.DataFrame,
    looks: dict[str, Any],
    row: int,
    say_num: bool = True,
) -> None:
    """A cross above the axes for each cell of which a run diverged, a row of them per curve."""
    for place, bad, num in zip(x, rows["diverged_in_all"], rows["ended"], strict=True):
        if bad:
            text = f"{bad}/{num}" * say_num
            lines.cross(ax, place, row, looks["color"], text, above=True)


def _forecasts(ax: Axes, results: Results, family: str, axis: str, levels: Sequence[str]) -> None:
    """Held-out cells as they were predicted, hollow, a little to the right of the measured ones."""
    cells, table = results.once(scaling_cells), results.once(scaling_forecast)
    cells = cells[cells["family"] == family].set_index("cell", drop=False)
    level = _level(cells, axis)
    for _, row in table[(table["family"] == family) & (table["kind"] == "held out")].iterrows():
        looks = lines.look(levels.index(str(level[row["target"]])))
        x = np.array([cells.loc[row["target"], COLUMNS[axis]] * 1.08])
        ends = lines.ends(row.to_frame().T, "predicted")
        lines.whiskers(ax, x, *ends, looks["color"])
        marker = {"marker": looks["marker"], "color": looks["color"], "markerfacecolor": "white"}
        ax.plot(x, ends[0], linestyle="none", markersize=5.5, zorder=4.2, **marker)


def _log_numbers(ax: Axes) -> None:
    """Numbers as 3, 10 and 0.05 and not as powers of ten."""
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
        lines.plain_numbers(axis)
    ax.tick_params(labelsize=8.5)


@matplotlib.rc_context(STYLE)
def error_by_compute(results: Results) -> Figure:
    """The metric against the multiply-adds of a whole training: every cell at its own lr, and the
    lowest value that this compute allows, by family.

    Steps: the lowest value of the cells that are affordable; bands: 95% intervals of it over the
    bootstrap rounds. The lowest of several noisy cells is optimistic: trained again, it is higher.
    """
    table, frontier = results.once(scaling_cells), results.once(scaling_frontier)
    name = reported(results.study)
    figure = Figure(figsize=(6.8, 4.4), layout="constrained")
    ax = figure.subplots()
    ax.set_xscale("log")
    ax.set_yscale("log")
    handles = []
    for index, family in enumerate(_families(table)):
        looks = lines.look(index)
        rows = table[table["family"] == family]
        (dots,) = ax.plot(
            rows["training_flops"],
            rows[name],
            looks["marker"],
            color=looks["color"],
            markersize=5,
            alpha=0.55,
            markeredgewidth=0,
            zorder=3,
        )
        describe(dots, [results.once(arm_texts)[cell] for cell in rows["cell"]])
        _crosses(ax, rows["training_flops"].to_numpy(float), rows, looks, index, say_num=False)
        if not frontier.empty:
            _steps(ax, frontier[frontier["family"] == family], rows["training_flops"].max(), looks)
        diverged = int(rows["diverged_in_all"].sum())
        label = f"{family}: {int((rows['n'] > 0).sum())} cells, {diverged} runs diverged"
        handles.append(lines.handle(label, looks, size=5, width=1.8))
    ax.set_xlabel("multiply-adds of a training, forward and backward")
    ax.set_ylabel(axis_label(results.study))
    _log_numbers(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("+", "")))
    legend_above(figure, handles)
    note = f"Points: cells, means over {_runs(table)} finished runs at their own lr. "
    note += f"Steps: the lowest {results.metric.label} of the cells that so much compute affords."
    if (table["diverged_in_all"] > 0).any():
        note += " × above: cells of which a run diverged."
    if _has_intervals(results):
        note += " Bands: pointwise 95% intervals of it, with the choice of lr."
    return finish(figure, note)


def _steps(ax: Axes, rows: pd.DataFrame, last: float, looks: dict[str, Any]) -> None:
    x = np.append(rows["training_flops"].to_numpy(float), last)
    values = [np.append(of_end, of_end[-1:]) for of_end in lines.ends(rows, "best_value")]
    color = looks["color"]
    ax.step(x, values[0], where="post", color=color, linestyle=looks["linestyle"], zorder=4)
    ax.fill_between(x, values[1], values[2], step="post", color=color, alpha=0.15, linewidth=0)
