"""Lines of cells along an axis, with intervals, single runs and how many runs diverged. Nothing is
computed here but places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from vitscale.analysis import estimates
from vitscale.analysis.columns import interval_of
from vitscale.analysis.report.layout import GREY, MARKERS, style
from vitscale.analysis.report.tooltips import describe, trial_texts
from vitscale.analysis.results import Results

CROSS = 0.06  # of the height of axes: a row of crosses


def look(index: int, *, dashed: bool = True, marker: str | None = None) -> dict[str, Any]:
    """Colour, marker and dashes of a line; 28 differ."""
    solid = {} if dashed else {"linestyle": "-"}
    return {"marker": marker or MARKERS[index % len(MARKERS)], **style(index), **solid}


def ends(table: pd.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n,) each: a column of estimates and the ends of its intervals."""
    point, low, high = (column.to_numpy(float) for column in interval_of(table, name))
    return point, low, high


def aside(index: int, num: int, step: float) -> float:
    """The place of a line among `num` that are drawn beside each other, so that their intervals
    do not overlap.
    """
    return step * (index - (num - 1) / 2)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of n cells: (n,) arrays, ascending in x."""

    x: np.ndarray
    ends: tuple[np.ndarray, np.ndarray, np.ndarray]  # estimates and the ends of their intervals
    texts: Sequence[str]  # what each cell is
    look: dict[str, Any]
    hollow: np.ndarray | None = None  # cells whose mark is hollow
    runs: Sequence[tuple[np.ndarray, Sequence[str]]] = ()  # values of single runs, what each is
    runs_aside: float = 0.0

    def draw(self, ax: Axes, *, joined: bool = True, size: float = 6, width: float = 1.5) -> None:
        """Runs, the line, intervals and marks."""
        color, marker, y = self.look["color"], self.look["marker"], self.ends[0]
        for place, (values, texts) in zip(self.x, self.runs, strict=False):
            dots_at = np.full(len(values), place + self.runs_aside)
            style: dict[str, Any] = {"alpha": 0.4, "markersize": 3.5, "markeredgewidth": 0}
            (dots,) = ax.plot(dots_at, values, "o", color=color, **style)
            describe(dots, texts)
        if joined:
            dashes = self.look["linestyle"]
            ax.plot(self.x, y, color=color, linestyle=dashes, linewidth=width, zorder=3)
        whiskers(ax, self.x, *self.ends, color)
        hollow = np.zeros(len(self.x), bool) if self.hollow is None else self.hollow
        for is_hollow in (False, True):
            shown = hollow == is_hollow
            face = "white" if is_hollow else color
            style = {"color": color, "markerfacecolor": face, "markersize": size, "zorder": 4}
            (marks,) = ax.plot(self.x[shown], y[shown], marker, linestyle="none", **style)
            describe(marks, [text for text, on in zip(self.texts, shown, strict=True) if on])


def runs_of(
    results: Results, cells: Iterable[pd.DataFrame], column: str
) -> list[tuple[np.ndarray, list[str]]]:
    """For the runs of each cell: the values of those that finished, and what each is; nothing for a
    single run, which its mean shows.
    """
    texts, shown = results.once(trial_texts), []
    for runs in cells:
        runs = estimates.finished(runs if len(runs) > 1 else runs[:0])
        shown.append((estimates.errors(runs, column), [texts[i] for i in runs["trial_id"]]))
    return shown


def whiskers(
    ax: Axes,
    at: np.ndarray,
    point: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    color: str,
    *,
    across: bool = False,
    size: float = 2.5,
) -> None:
    """95% intervals as bars with caps, of no length without an interval; `across`: along x."""
    sizes = np.nan_to_num([point - low, high - point]).clip(min=0)
    style: dict[str, Any] = {"fmt": "none", "ecolor": color, "elinewidth": 1.1, "zorder": 3.5}
    if across:
        ax.errorbar(point, at, xerr=sizes, capsize=size, **style)
    else:
        ax.errorbar(at, point, yerr=sizes, capsize=size, **style)


def cross(ax: Axes, x: float, row: int, color: str, text: str, *, above: bool = False) -> None:
    """A mark for runs without a value: in a row of its own below the top of the axes, or `above`
    it.
    """
    edge, y = ax.get_xaxis_transform(), 1.02 + 0.04 * row if above else 0.97 - CROSS * row
    ax.plot([x], [y], "x", color=color, markersize=5, transform=edge, clip_on=False, zorder=6)
    ax.annotate(
        text,
        (x, y),
        xycoords=edge,
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=7,
        va="center",
        color=color,
        annotation_clip=False,
    )


def crosses(
    ax: Axes, x: Iterable[float], runs: Iterable[pd.DataFrame], row: int, color: str
) -> bool:
    """A row of crosses where runs of a line diverged, with their share; returns whether any did."""
    lost = [(at, estimates.counts(g)["diverged"], len(g)) for at, g in zip(x, runs, strict=True)]
    for at, num, total in lost:
        if num:
            cross(ax, at, row, color, f"{num}/{total}")
    return any(num for _, num, _ in lost)


def make_room(axes: Sequence[Axes], rows: int) -> None:
    """Raises the top of axes that share y by rows of crosses, so that these overlap no line."""
    if not rows:
        return
    low, high = axes[0].get_ylim()
    for ax in axes:
        ax.set_ylim(low, low + (high - low) / (1 - CROSS * rows - 0.03))
        ax.axhline(high, color=GREY, linewidth=0.8)


def handle(label: str, look: dict[str, Any], size: float = 6, width: float = 1.5) -> Line2D:
    """A line of a legend."""
    return Line2D([], [], label=label, markersize=size, linewidth=width, **look)


def handle_of(name: str, look: dict[str, Any], runs: Sequence[pd.DataFrame], cells: str) -> Line2D:
    """The same of cells with these runs, with their number and what they are."""
    return handle(f"{name}\n{estimates.describe(pd.concat(runs))}, {len(runs)} {cells}", look)


def ticks(
    ax: Axes, places: Iterable[float], text: Callable[[float], str], margin: float, label: str = ""
) -> None:
    """An x axis with a tick at each of these places."""
    at = sorted(places)
    ax.set_xlim(at[0] - margin, at[-1] + margin)
    ax.xaxis.set_major_locator(FixedLocator(at))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: text(x)))
    ax.xaxis.set_minor_locator(NullLocator())
    if label:
        ax.set_xlabel(label)


def doublings(ax: Axes, values: Iterable[float], label: str, margin: float = 0.4) -> None:
    """An x axis of base-2 logarithms with a tick at each of these values."""
    ticks(ax, np.log2(sorted(values)), lambda x: f"{2**x:.6g}", margin, label)


def plain_numbers(axis: Any) -> None:
    """Numbers of a log axis as 3, 10 and 0.05, and not as powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
