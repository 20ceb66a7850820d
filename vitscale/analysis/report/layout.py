"""The look that all figures share, and their grid of panels. No pyplot, no global state."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from vitscale.analysis.results import panels
from vitscale.plan.study import Study

# Okabe & Ito 2008 without yellow, which is faint on white; dashes and markers for print without
# colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
GREY = "#999999"  # of lines that are no data
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# settings of the user (matplotlibrc, rcParams) do not reach a figure
DEFAULTS: dict[Any, Any] = {
    name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"
}
LEGEND_SIZE, ENTRY = 8.5, 0.07  # points, and inches of a character
STYLE: dict[Any, Any] = {
    **DEFAULTS,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.fontsize": LEGEND_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "vitscale",
}
MAX_COLUMNS = 3
WIDTHS = {1: 6.4, 2: 9.0, 3: 11.0}  # columns -> inches of a figure
NOTE_SIZE = 8
CHARACTERS_PER_INCH = 14.5  # of a note
NOTE_LINE = 0.16  # inches of a line of a note beyond the first two


def metric_label(study: Study) -> str:
    """The name of a study's metric for sentences: `val_ema_error_pct` is "val EMA error",
    `test_top5_error_pct` "test top-5 error".

    Where no arm averages its weights the column holds the error of the weights themselves, and is
    named so.
    """
    split, label = study.column.split.replace("_", " "), study.column.metric.label
    on = {bool(trial.config.ema_decay or trial.config.ema_alpha) for trial in study.trials}
    if study.column.averaged and on == {True}:
        return f"{split} EMA {label}"
    name = f"{split} {label}".lstrip()
    return f"{name}, EMA in some arms," if study.column.averaged and True in on else name


def axis_label(study: Study) -> str:
    """The same with the unit, for an axis of values."""
    return f"{metric_label(study)} ({study.column.metric.unit})"


def axis_label_on(study: Study, name: str) -> str:
    """The metric on an evaluation set, for an axis of values."""
    metric = study.column.metric
    return f"{metric.label} on {name} ({metric.unit})"


def style(index: int) -> dict[str, Any]:
    """Colour and dashes of the arm at a place in its panel; 28 arms differ."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index % len(DASHES)]}


def num_columns(study: Study) -> int:
    return columns_of(len(panels(study)))


def columns_of(num: int) -> int:
    """Columns of a grid of `num` panels."""
    return 2 if num == 4 else min(num, MAX_COLUMNS)


def panel_grid(study: Study, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with axes for each panel, in reading order."""
    shown, columns = panels(study), num_columns(study)
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTHS[columns], lines * (height + 0.75) + 0.3), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
    for ax in grid[len(shown) :]:
        ax.remove()
    return figure, grid[: len(shown)]


def rows_of_axes(rows: int, columns: int, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and its (rows, columns) axes, of `height` inches each."""
    width = min(11.0, 2.6 + 3.4 * columns)
    figure = Figure(figsize=(width, rows * height + 0.7), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def finish(figure: Figure, note: str) -> Figure:
    """The figure with the note at its foot, in lines that fit and with room for them; its files
    lay it out.
    """
    width = int(CHARACTERS_PER_INCH * figure.get_figwidth())
    lines = "\n".join(_balanced(line, width) for line in note.splitlines())
    figure.set_figheight(figure.get_figheight() + NOTE_LINE * max(0, lines.count("\n") - 1))
    figure.supxlabel(lines, fontsize=NOTE_SIZE, color="#444444")
    return figure


def _balanced(text: str, width: int) -> str:
    """The text in as few lines as fit, of nearly one length: none ends with a single word."""
    num = len(textwrap.wrap(text, width))
    while len(textwrap.wrap(text, width - 1)) == num and width > 20:
        width -= 1
    return textwrap.fill(text, width)


def share_y(grid: Sequence[Axes]) -> None:
    """One range of y for panels of one quantity, where the common one is at most twice as long as
    the longest: errors on sets that lie far apart keep their own.
    """
    limits = [ax.get_ylim() for ax in grid]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    if high - low <= 2 * max(high - low for low, high in limits):
        for ax in grid:
            ax.set_ylim(low, high)


def epoch_axis(ax: Axes, last: float, first: float = 0, nbins: int = 7) -> None:
    """About `nbins` ticks at whole epochs, one of them at the last epoch."""
    ticks = np.asarray(MaxNLocator(nbins=nbins, integer=True).tick_values(first, last))
    step = ticks[1] - ticks[0]
    inner = ticks[(ticks >= first) & (ticks <= last - step / 2)]
    ax.xaxis.set_major_locator(FixedLocator([*inner, last]))


def legends_below(grid: Sequence[Axes], handles: Sequence[Sequence[Line2D]]) -> None:
    """A legend below each axes, with room for it: entries stand beside each other where they fit,
    and what all labels say after their first line stands once, above them.
    """
    figure, room = grid[0].get_figure(root=True), dict[int, float]()
    for ax, entries in zip(grid, handles, strict=True):
        spec = ax.get_subplotspec()
        if entries and spec and figure:
            width = figure.get_figwidth() / spec.get_gridspec().ncols - 0.5
            row = spec.rowspan.start
            room[row] = max(room.get(row, 0.0), _legend_below(ax, entries, width))
    if figure:
        figure.set_figheight(figure.get_figheight() + sum(room.values()))


def legend_above(figure: Figure, handles: Sequence[Line2D]) -> None:
    """A legend of all axes, above them: entries stand beside each other where they fit."""
    lines = [line for handle in handles for line in str(handle.get_label()).split("\n")]
    fit = max(1, int(figure.get_figwidth() / (0.75 + ENTRY * max(map(len, lines), default=0))))
    columns = -(-len(handles) // max(1, -(-len(handles) // fit)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=3.2)


def _legend_below(ax: Axes, handles: Sequence[Line2D], width: float) -> float:
    """Draws a legend in `width` inches; returns its height in inches."""
    labels = [str(handle.get_label()) for handle in handles]
    firsts, rests = zip(
        *(label.split("\n", 1) + [""] * ("\n" not in label) for label in labels), strict=True
    )
    title = f"each {rests[0]}" if rests[0] and len({*rests}) == 1 < len(labels) else ""
    labels = list(firsts) if title else labels
    lines = [line for label in labels for line in label.split("\n")]
    fit = max(1, int(width / (0.75 + ENTRY * max(map(len, lines)))))
    rows = -(-len(labels) // fit)
    legend = ax.legend(
        handles,
        labels,
        title=title,
        title_fontsize=LEGEND_SIZE,
        handlelength=3.2,
        ncols=-(-len(labels) // rows),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=(0.45 + 0.19 * ax.get_xlabel().count("\n")) * 72 / LEGEND_SIZE,
    )
    legend.get_title().set_multialignment("center")
    most = max(label.count("\n") + 1 for label in labels)
    return 0.1 + LEGEND_SIZE / 72 * 1.5 * (rows * most + bool(title))


def not_drawn(reason: str) -> Figure:
    """A line in place of a figure that would say nothing."""
    figure = Figure(figsize=(WIDTHS[2], 0.5))
    figure.text(0.01, 0.5, f"Not drawn: {reason}", va="center", fontsize=9, color="#444444")
    return figure


def placeholder(ax: Axes, text: str) -> None:
    """A sentence in the middle of axes that have nothing else to show."""
    ax.text(
        0.5,
        0.5,
        text,
        transform=ax.transAxes,
        ha="center",
        va="center",
        color="#666666",
        backgroundcolor="w",
    )
