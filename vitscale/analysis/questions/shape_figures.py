"""Depth, width and parallel branches in figures (Touvron et al. 2022, Figures 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
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
from vitscale.analysis.report.tooltips import arm_texts
from vitscale.analysis.results import Results

SIZES = ("Ti", "S", "B", "L")  # of Touvron et al. 2022, Table 1, narrow to wide
THEIRS = "Touvron et al. 2022, ImageNet"


class View(NamedTuple):
    """A figure of the paper: functions of a shape, ours or theirs, give its x and its curve."""

    panel: str  # of the study
    source: str
    x: Callable[[Any], float]
    curve: Callable[[Any], str]
    label: str  # of the x axis
    names: Sequence[str] = ()  # of the places, where these are no numbers that a line may join

    def curves(self, cells: Iterable[Any]) -> dict[str, list[Any]]:
        """The shapes of each curve, in their order."""
        curves: dict[str, list[Any]] = {}
        for cell in cells:
            curves.setdefault(self.curve(cell), []).append(cell)
        return curves

    def look(self, index: int) -> dict[str, Any]:
        """Colour, marker and dashes of a curve."""
        return {**lines.look(index), **({"linestyle": "none"} if self.names else {})}

    def ticks(self, ax: Axes, cells: Iterable[Any]) -> None:
        """The x axis of these shapes."""
        places = {self.x(cell) for cell in cells}
        margin = 0.5 if self.names else 0.06 * (max(places) - min(places)) + 0.2
        name = (lambda x: self.names[round(x)]) if self.names else "{:.0f}".format
        lines.ticks(ax, places, name, margin, self.label)


def _in_sequence(shape: Any) -> str:
    return "in sequence" if shape.branches == 1 else f"{shape.branches} branches"


BRANCHES = View(
    "branches",
    "Figure 1",
    lambda shape: shape.branches,
    lambda shape: f"{shape.size}, {shape.pairs} pairs",
    "parallel branches",
)
WIDTHS = View(
    "widths", "Figure 2", lambda shape: SIZES.index(shape.size), _in_sequence, "size", SIZES
)
DEPTHS = View(
    "depths",
    "Figure 3",
    lambda shape: shape.pairs,
    lambda shape: f"{shape.size}, {_in_sequence(shape)}",
    "pairs of attention and MLP",
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
    study, cells = results.study, results.once(shapes.all_shapes)
    shown = [cells[arm] for arm in study.panels[view.panel]]
    names = list(shapes.reported(study))
    aside = study.published and not is_imagenet(study)
    figure = Figure(figsize=(0.9 + 3.5 * len(names) + 2.6 * aside, 4.1), layout="constrained")
    widths = [3.5] * len(names) + [2.4] * aside
    grid = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    ours, rows = grid[: len(names)], 0
    for ax, name in zip(ours, names, strict=True):
        rows = _panel(ax, view, shown, results, name)
        ax.set_title(f"{results.metric.label} on {name}", fontsize=9.5)
    share_y(ours)
    lines.make_room(ours, rows)
    grid[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})")
    handles = [
        lines.handle_of(name, view.look(index), [cell.runs for cell in curve], "shapes")
        for index, (name, curve) in enumerate(view.curves(shown).items())
    ]
    if study.published:
        handles += _theirs(grid[-1] if aside else grid[names.index("val")], view, aside)
    legend_above(figure, handles)
    return finish(figure, _note(shown, study.published, aside))


def _panel(ax: Axes, view: View, cells: Sequence[Shape], results: Results, name: str) -> int:
    """The curves on one evaluation set; returns how many rows of crosses are drawn."""
    column, curves = shapes.reported(results.study)[name], list(view.curves(cells).values())
    table, texts = results.once(shapes.shape_cells).set_index("shape"), results.once(arm_texts)
    step = 0.025 * (np.ptp([view.x(cell) for cell in cells]) + 1)
    for index, curve in enumerate(curves):
        lines.Line(
            ends=lines.ends(table.loc[[cell.arm for cell in curve]], f"{name}_mean"),
            x=np.array([view.x(cell) for cell in curve]) + lines.aside(index, len(curves), step),
            texts=[f"{texts[cell.arm]}\nshown at lr {cell.lr}" for cell in curve],
            look=lines.look(index),
            hollow=np.array([cell.at_edge for cell in curve]),
            runs=lines.runs_of(results, [cell.runs for cell in curve], column),
            runs_aside=0.6 * step * (1 if index else -1),
        ).draw(ax, joined=not view.names)
    if not any(len(estimates.errors(cell.runs, column)) for cell in cells):
        placeholder(ax, "no run finished")
    view.ticks(ax, cells)
    rows = 0
    for index, curve in enumerate(curves):
        x, color = [view.x(cell) for cell in curve], lines.look(index)["color"]
        rows += lines.crosses(ax, x, [cell.runs for cell in curve], rows, color)
    return rows


def _note(shown: Sequence[Shape], drawn: bool, aside: bool) -> str:
    """Explains the marks that are drawn."""
    num = max(len(cell.lrs) for cell in shown)
    single = [len(cell.runs) == 1 for cell in shown]
    without = "; single runs have none" if any(single) else ""
    chosen = ", which include the choice of lr" * (num > 1)
    whiskers = f"Whiskers: 95% intervals of the means{chosen}{without}."
    parts = [f"Dots, beside the means: seeds. {whiskers}"]
    if all(single):
        parts = ["Single runs: no interval."]
    if num > 1:
        hollow = "; hollow: at the edge of the grid" if any(cell.at_edge for cell in shown) else ""
        parts.append(f"Each shape at the lr of {num} that does best on minival{hollow}.")
    if any(estimates.counts(cell.runs)["diverged"] for cell in shown):
        parts.append("× above the line at the top: how many of the runs diverged.")
    if drawn:
        other = "; other data and other axes, context and no target" if aside else ""
        parts.append(f"Grey: {THEIRS}, read off the chart to about 0.1, one run each{other}.")
    return "\n".join(parts)


def _theirs(ax: Axes, view: View, alone: bool) -> list[Line2D]:
    """The paper's errors, grey, behind ours or alone on their axes; returns handles of a legend."""
    table, handles = shape_errors(), []
    printed = list(table[table["source"] == view.source].itertuples())
    for index, (name, curve) in enumerate(view.curves(printed).items()):
        style = {**view.look(index), **published.HOLLOW, **published.LINE}
        x, y = ([view.x(shape) for shape in curve], [shape.val_error_pct for shape in curve])
        ax.plot(x, y, **style)
        handles.append(Line2D([], [], label=f"{name}, theirs, n=1 each", **style))
    if alone:
        view.ticks(ax, printed)
        ax.tick_params(colors=published.GREY)
        ax.set_title(f"{THEIRS}, val", fontsize=9.5, color=published.GREY)
    return handles
