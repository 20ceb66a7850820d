"""The look that all figures share, and their grid of panels. No pyplot, no global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis.population import panels
from vitscale.plan.study import Study

Draw = Callable[[Study, pd.DataFrame, pd.DataFrame], Figure]

# Okabe & Ito 2008 without yellow, which is faint on white; dashes and markers for print without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 10.5, "legend.fontsize": 8.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.8, "svg.hashsalt": "vitscale",
}  # fmt: skip
MAX_COLUMNS = 3
NOTE_SIZE = 8


def metric_label(metric: str) -> str:
    """The name of a metric for an axis: `val_ema_error_pct` is "val EMA error"."""
    return metric.removesuffix("_pct").replace("_", " ").replace("ema", "EMA")


def style(index: int) -> dict[str, Any]:
    """Colour and dashes of the arm at a place in its panel; 28 arms differ."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index % len(DASHES)]}


def num_columns(study: Study) -> int:
    num = len(panels(study))
    return 2 if num == 4 else min(num, MAX_COLUMNS)


def panel_grid(study: Study, height: float, num_entries: int | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with axes for each panel, in reading order; legends hang below, of an entry an arm or `num_entries`."""
    shown, columns = panels(study), num_columns(study)
    lines = -(-len(shown) // columns)
    legend = 0.48 * (num_entries or max(len(arms) for arms in shown.values()))
    width = {1: 6.4, 2: 9.0, 3: 11.0}[columns]
    figure = Figure(figsize=(width, lines * (height + legend + 0.75) + 0.3), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
    for ax in grid[len(shown) :]:
        ax.remove()
    return figure, grid[: len(shown)]


def finish(figure: Figure, note: str) -> Figure:
    """Add the note at the foot and lay the figure out once, for both files."""
    figure.supxlabel(note, fontsize=NOTE_SIZE, color="#444444")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine("none")
    return figure


def legend_below(ax: Axes, handles: Sequence[Line2D]) -> None:
    below = -0.2 - 0.06 * ax.get_xlabel().count("\n")
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, below), handlelength=3.2)


def say(ax: Axes, text: str) -> None:
    """A sentence in the middle of axes that have nothing else to show."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color="#666666", backgroundcolor="w")
