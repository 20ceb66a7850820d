"""Depth, width and parallel branches in figures (Touvron et al. 2022, Figures 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis import estimates
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.published.tables import is_imagenet, shape_errors
from vitscale.analysis.questions import shapes
from vitscale.analysis.questions.shapes import Shape
from vitscale.analysis.report.layout import STYLE, finish, legend_above, placeholder, share_y
from vitscale.analysis.report.tooltips import arm_texts, trial_texts
from vitscale.analysis.results import Results

SIZES = ("Ti", "S", "B", "L")  # of Touvron et al. 2022, Table 1, narrow to wide
THEIRS = "Touvron et al. 2022, ImageNet"


class View(NamedTuple):
    """A figure of the paper: functions of (size, pairs, branches) give the x and the curve of a
    shape.
    """

    panel: str  # of the study
    source: str
    x: Callable[[str, int, int], float]
    curve: Callable[[str, int, int], str]
    label: str  # of the x axis
    name: Callable[[float], str]  # of a place on it
    joined: bool  # whether the places are numbers, between which a line means something


def _in_sequence(branches: int) -> str:
    return "in sequence" if branches == 1 else f"{branches} branches"


BRANCHES = View(
    "branches",
    "Figure 1",
    lambda size, pairs, branches: branches,
    lambda size, pairs, branches: f"{size}, {pairs} pairs",
    "parallel branches",
    lambda x: f"{x:.0f}",
    True,
)


WIDTHS = View(
    "widths",
    "Figure 2",
    lambda size, pairs, branches: SIZES.index(size),
    lambda size, pairs, branches: _in_sequence(branches),
    "size",
    lambda x: SIZES[round(x)],
    False,
)


DEPTHS = View(
    "depths",
    "Figure 3",
    lambda size, pairs, branches: pairs,
    lambda size, pairs, branches: f"{size}, {_in_sequence(branches)}",
    "pairs of attention and MLP",
    lambda x: f"{x:.0f}",
    True,
)


@matplotlib.rc_context(STYLE)
def branches(results: Results) -> Figure:
    """Touvron et al. 2022, Figure 1: the metric against the number of parallel branches, at a fixed
    number of pairs of attention and MLP, so at equal parameters and multiply-adds.

    Each shape at its own lr. Means over the seeds that finished, with Student's 95% interval where
    there are several.
    """
    return _view_figure(results, BRANCHES)


@matplotlib.rc_context(STYLE)
def widths(results: Results) -> Figure:
    """Touvron et al. 2022, Figure 2: the metric by width, in sequence and in two branches, at one
    number of pairs.

    Each shape at its own lr. Means over the seeds that finished, with Student's 95% interval where
    there are several.
    """
    return _view_figure(results, WIDTHS)


@matplotlib.rc_context(STYLE)
def depths(results: Results) -> Figure:
    """Touvron et al. 2022, Figure 3: the metric against the number of pairs, in sequence and in two
    branches, by width.

    Each shape at its own lr. Means over the seeds that finished, with Student's 95% interval where
    there are several.
    """
    return _view_figure(results, DEPTHS)


def _view_figure(results: Results, view: View) -> Figure:
    cells = results.once(shapes.all_shapes)
    curves: dict[str, list[Shape]] = {}
    for cell in (cells[arm] for arm in results.study.panels[view.panel]):
        curves.setdefault(view.curve(*_shape(cell)), []).append(cell)
    columns = shapes.reported(results.study)
    aside = results.study.published and not is_imagenet(results.study)
    figure = Figure(figsize=(0.9 + 3.5 * len(columns) + 2.6 * aside, 4.1), layout="constrained")
    widths = [3.5] * len(columns) + [2.4] * aside
    grid = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for ax, (name, column) in zip(grid, columns.items(), strict=False):
        _panel(ax, view, list(curves.values()), results, name, column)
        ax.set_title(f"{results.metric.label} on {name}", fontsize=9.5)
    ours = grid[: len(columns)]
    share_y(ours)
    for ax in ours:
        rows = 0
        for index, curve in enumerate(curves.values()):
            x, color = [view.x(*_shape(cell)) for cell in curve], lines.look(index)["color"]
            rows += lines.crosses(ax, x, [cell.runs for cell in curve], rows, color)
        lines.make_room([ax], rows)
    grid[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})")
    handles = [
        _handle(index, name, curve, view) for index, (name, curve) in enumerate(curves.items())
    ]
    if results.study.published:
        theirs = grid[-1] if aside else grid[list(columns).index("val")]
        handles += _theirs(theirs, view)
        if aside:
            theirs.set_title(f"{THEIRS}, val", fontsize=9.5, color=published.GREY)
    legend_above(figure, handles)
    shown = [cell for curve in curves.values() for cell in curve]
    return finish(figure, _note(shown, results.study.published, aside))


def _shape(cell: Shape) -> tuple[str, int, int]:
    return cell.size, cell.pairs, cell.config.branches


def _panel(
    ax: Axes,
    view: View,
    curves: Sequence[Sequence[Shape]],
    results: Results,
    name: str,
    column: str,
) -> None:
    """The curves on one evaluation set; hollow where the lr is at the edge of its grid."""
    table = results.once(shapes.shape_cells).set_index("shape")
    of_trials, of_arms = results.once(trial_texts), results.once(arm_texts)
    places = sorted({view.x(*_shape(cell)) for curve in curves for cell in curve})
    step = 0.025 * (places[-1] - places[0] + 1)
    for index, curve in enumerate(curves):
        y, low, high = lines.ends(table.loc[[cell.arm for cell in curve]], f"{name}_mean")
        several = [cell.runs if len(cell.runs) > 1 else cell.runs[:0] for cell in curve]
        lines.Line(
            x=np.array([view.x(*_shape(cell)) for cell in curve])
            + lines.aside(index, len(curves), step),
            y=y,
            low=low,
            high=high,
            texts=[f"{of_arms[cell.arm]}\nshown at lr {cell.lr}" for cell in curve],
            look=lines.look(index),
            hollow=np.array([cell.at_edge for cell in curve]),
            runs=[lines.values_of(of, column, of_trials) for of in several],
            runs_aside=0.6 * step * (1 if index else -1),
        ).draw(ax, joined=view.joined)
    if not any(len(estimates.errors(cell.runs, column)) for curve in curves for cell in curve):
        placeholder(ax, "no run finished")
    _places_axis(ax, view, places)


def _places_axis(ax: Axes, view: View, places: Sequence[float]) -> None:
    margin = 0.06 * (places[-1] - places[0]) + 0.2 if view.joined else 0.5
    lines.ticks(ax, places, view.name, margin, view.label)


def _diverged(cell: Shape) -> int:
    return estimates.counts(cell.runs)["diverged"]


def _look(view: View, index: int) -> dict[str, Any]:
    return {**lines.look(index), **({} if view.joined else {"linestyle": "none"})}


def _handle(index: int, name: str, cells: Sequence[Shape], view: View) -> Line2D:
    runs = pd.concat([cell.runs for cell in cells])
    label = f"{name}\n{estimates.describe(runs)}, {len(cells)} shapes"
    return lines.handle(label, _look(view, index))


def _note(shown: Sequence[Shape], drawn: bool, aside: bool) -> str:
    """Explains the marks that are drawn."""
    num = max(len(cell.lrs) for cell in shown)
    single = [len(cell.runs) == 1 for cell in shown]
    without = "; single runs have none" if any(single) else ""
    parts = [f"Dots, beside the means: seeds. Whiskers: 95% intervals of the means{without}."]
    if all(single):
        parts = ["Single runs: no interval."]
    if num > 1:
        hollow = "; hollow: at the edge of the grid" if any(cell.at_edge for cell in shown) else ""
        parts.append(f"Each shape at the lr of {num} that does best on minival{hollow}.")
    if any(_diverged(cell) for cell in shown):
        parts.append("× above the line at the top: how many of the runs diverged.")
    if drawn:
        other = "; other data and other axes, context and no target" if aside else ""
        parts.append(f"Grey: {THEIRS}, read off the chart to about 0.1, one run each{other}.")
    return "\n".join(parts)


def _theirs(ax: Axes, view: View) -> list[Line2D]:
    """Draws the paper's errors, grey and hollow, behind ours or alone on their own axes; returns
    handles of a legend.
    """
    table = shape_errors()
    table = table[table["source"] == view.source]
    keys = list(
        zip(
            table["size"].astype(str),
            table["pairs"].astype(int),
            table["branches"].astype(int),
            strict=True,
        )
    )
    table = table.assign(x=[view.x(*key) for key in keys], curve=[view.curve(*key) for key in keys])
    alone, handles = not ax.has_data(), []
    for index, (name, curve) in enumerate(table.groupby("curve", sort=False)):
        ours = {name: _look(view, index)[name] for name in ("marker", "linestyle")}
        line_style = {**published.HOLLOW, **published.LINE, **ours}
        ax.plot(curve["x"].to_numpy(), curve["val_error_pct"].to_numpy(), **line_style)
        handles.append(Line2D([], [], label=f"{name}, theirs, n=1 each", **line_style))
    if alone:
        _places_axis(ax, view, sorted(set(table["x"])))
        ax.tick_params(colors=published.GREY)
    return handles
