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
STYLE: dict[Any, Any] = {
    **DEFAULTS,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.fontsize": 8.5,
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


def panel_grid(
    study: Study, height: float, num_entries: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with axes for each panel, in reading order; legends
    hang below, of an entry an arm or `num_entries`.
    """
    shown, columns = panels(study), num_columns(study)
    lines = -(-len(shown) // columns)
    legend = 0.48 * (num_entries or max(len(arms) for arms in shown.values()))
    figure = Figure(
        figsize=(WIDTHS[columns], lines * (height + legend + 0.75) + 0.3), layout="constrained"
    )
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


def legend_below(ax: Axes, handles: Sequence[Line2D], ncols: int = 1) -> None:
    below = -0.2 - 0.06 * ax.get_xlabel().count("\n")
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, below)}
    ax.legend(handles=handles, handlelength=3.2, ncols=ncols, **place)


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
