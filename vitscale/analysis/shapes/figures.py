"""Figures of depth, width and parallel branches (Touvron et al. 2022, Figures 1 to 3), and of the
lr of each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from vitscale.analysis.published import figures as published
from vitscale.analysis.published.tables import is_imagenet
from vitscale.analysis.repeats import estimates
from vitscale.analysis.report.layout import (
    COLORS,
    DASHES,
    MARKERS,
    STYLE,
    finish,
    placeholder,
    share_y,
)
from vitscale.analysis.report.tooltips import arm_texts, describe, trial_texts
from vitscale.analysis.results import Results
from vitscale.analysis.shapes import tables as shapes
from vitscale.analysis.shapes.tables import Shape
from vitscale.plan.comparisons import CHOOSES

SIZES = ("Ti", "S", "B", "L")  # of Touvron et al. 2022, Table 1, narrow to wide
WHISKER: dict[str, Any] = {"elinewidth": 1.1, "capsize": 2.5, "linestyle": "none"}
MAX_COLUMNS = 7  # of small panels
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
    on_imagenet = is_imagenet(results.study)
    aside = results.study.published and not on_imagenet
    figure = Figure(figsize=(2.9 + 3.5 * len(columns) + 2.6 * aside, 3.9), layout="constrained")
    widths = [3.5] * len(columns) + [2.4] * aside
    grid = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for ax, (name, column) in zip(grid, columns.items(), strict=False):
        _curves_panel(ax, view, curves, results, name, column)
        ax.set_title(f"{results.metric.label} on {name}", fontsize=9.5)
    share_y(grid[: len(columns)])
    for ax in grid[: len(columns)]:
        _mark_diverged(ax, view, list(curves.values()))
    grid[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})")
    handles = [
        _handle(index, name, curve, view) for index, (name, curve) in enumerate(curves.items())
    ]
    if results.study.published:
        theirs = grid[-1] if aside else grid[list(columns).index("val")]
        handles += _theirs(theirs, view)
        if aside:
            theirs.set_title(f"{THEIRS}, val", fontsize=9.5, color=published.GREY)
    figure.legend(handles=handles, loc="outside right upper", handlelength=2.6)
    shown = [cell for curve in curves.values() for cell in curve]
    return finish(figure, _note(shown, results.study.published, aside))


def _shape(cell: Shape) -> tuple[str, int, int]:
    return cell.size, cell.pairs, cell.config.branches


def _curves_panel(
    ax: Axes, view: View, curves: dict[str, list[Shape]], results: Results, name: str, column: str
) -> None:
    table = results.once(shapes.shape_cells).set_index("shape")
    of_trials, of_arms = results.once(trial_texts), results.once(arm_texts)
    places = sorted({view.x(*_shape(cell)) for curve in curves.values() for cell in curve})
    step = 0.025 * (places[-1] - places[0] + 1)
    for index, curve in enumerate(curves.values()):
        x = np.array([view.x(*_shape(cell)) for cell in curve]) + step * (
            index - (len(curves) - 1) / 2
        )
        ends = [
            table.loc[[cell.arm for cell in curve], f"{name}_error_pct{end}"]
            for end in ("", "_low", "_high")
        ]
        beside = x + 0.6 * step * (1 if index else -1)
        _seeds(ax, beside, curve, column, _looks(index)["color"], of_trials)
        texts = [f"{of_arms[cell.arm]}\nshown at lr {cell.lr}" for cell in curve]
        _curve(ax, view, x, curve, index, np.array(ends, dtype=float), texts)
    if not any(
        len(estimates.errors(cell.runs, column)) for curve in curves.values() for cell in curve
    ):
        placeholder(ax, "no run finished")
    _places_axis(ax, view, places)


def _places_axis(ax: Axes, view: View, places: Sequence[float]) -> None:
    margin = 0.06 * (places[-1] - places[0]) + 0.2 if view.joined else 0.5
    ax.set_xlim(places[0] - margin, places[-1] + margin)
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: view.name(x)))
    ax.set_xlabel(view.label)


def _looks(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def _seeds(
    ax: Axes,
    x: np.ndarray,
    cells: Sequence[Shape],
    column: str,
    color: str,
    texts: Mapping[str, str],
) -> None:
    """Each seed as a dot, beside its mean."""
    for place, cell in zip(x, cells, strict=True):
        values = estimates.errors(cell.runs, column)
        if len(values) > 1:
            dot_style: dict[str, Any] = {"color": color, "alpha": 0.4, "markeredgewidth": 0}
            x_of_dots = np.full(len(values), place)
            (dots,) = ax.plot(x_of_dots, values, "o", markersize=3.5, **dot_style)
            describe(dots, [texts[i] for i in estimates.finished(cell.runs)["trial_id"]])


def _curve(
    ax: Axes,
    view: View,
    x: np.ndarray,
    cells: Sequence[Shape],
    index: int,
    means: np.ndarray,
    texts: Sequence[str],
) -> None:
    """(3, n) means with intervals; hollow if the lr is at the edge of its grid."""
    line_style = _looks(index)
    y, low, high = means
    if view.joined:
        ax.plot(
            x,
            y,
            color=line_style["color"],
            linewidth=1.4,
            linestyle=DASHES[index % len(DASHES)],
            zorder=3,
        )
    ends = np.nan_to_num([y - low, high - y]).clip(min=0)
    ax.errorbar(x, y, ends, ecolor=line_style["color"], zorder=3.5, **WHISKER)
    edge = np.array([cell.at_edge for cell in cells])
    for at_edge in (False, True):
        face = "white" if at_edge else line_style["color"]
        (marks,) = ax.plot(
            x[edge == at_edge],
            y[edge == at_edge],
            linestyle="none",
            markerfacecolor=face,
            markersize=6,
            zorder=4,
            **line_style,
        )
        describe(marks, [text for text, at in zip(texts, edge, strict=True) if at == at_edge])


def _mark_diverged(ax: Axes, view: View, curves: Sequence[Sequence[Shape]]) -> None:
    """Crosses above a line at the top, one line of crosses per curve with diverged runs, with their
    number.
    """
    bad = [(index, cell) for index, curve in enumerate(curves) for cell in curve if _diverged(cell)]
    if not bad:
        return
    lines = list(dict.fromkeys(index for index, _ in bad))
    low, high = ax.get_ylim()
    share = 0.06 * len(lines) + 0.03
    ax.set_ylim(low, low + (high - low) / (1 - share))
    ax.axhline(high, color="#999999", linewidth=0.8)
    for index, cell in bad:
        color, place, edge = (
            COLORS[index % len(COLORS)],
            view.x(*_shape(cell)),
            ax.get_xaxis_transform(),
        )
        height = 0.97 - 0.06 * lines.index(index)
        ax.plot([place], [height], "x", color=color, markersize=5, transform=edge, zorder=6)
        ax.annotate(
            f"{_diverged(cell)}/{len(cell.runs)}",
            (place, height),
            xycoords=edge,
            xytext=(4, 0),
            fontsize=7,
            textcoords="offset points",
            va="center",
            color=color,
        )


def _diverged(cell: Shape) -> int:
    return estimates.counts(cell.runs)["diverged"]


def _dashes(view: View, index: int) -> Any:
    return DASHES[index % len(DASHES)] if view.joined else "none"


def _handle(index: int, name: str, cells: Sequence[Shape], view: View) -> Line2D:
    runs = pd.concat([cell.runs for cell in cells])
    label = f"{name}\n{estimates.describe(runs)}, {len(cells)} shapes"
    return Line2D(
        [],
        [],
        linewidth=1.4,
        linestyle=_dashes(view, index),
        markersize=6,
        label=label,
        **_looks(index),
    )


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
    table = shapes.published_errors()
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
        line_style = {**published.HOLLOW, **published.LINE, "linestyle": _dashes(view, index)}
        line_style["marker"] = MARKERS[index % len(MARKERS)]
        ax.plot(curve["x"].to_numpy(), curve["val_error_pct"].to_numpy(), **line_style)
        handles.append(Line2D([], [], label=f"{name}, theirs, n=1 each", **line_style))
    if alone:
        _places_axis(ax, view, sorted(set(table["x"])))
        ax.tick_params(colors=published.GREY)
    return handles


# ---- the lr of each shape


@matplotlib.rc_context(STYLE)
def lr_sweep(results: Results) -> Figure:
    """The metric against lr for each shape: on minival, which chooses the lr, and on the first
    reported set.

    Means over the seeds that finished, with Student's 95% interval where there are several; a ring
    at the lr chosen.
    """
    table = results.once(shapes.lr_sweep)
    names = [name for name in estimates.evaluations(results.study) if name == CHOOSES]
    names.append(next(iter(shapes.reported(results.study))))
    arms = list(dict.fromkeys(table["shape"]))
    lines = -(-len(arms) // MAX_COLUMNS)
    columns = -(-len(arms) // lines)
    figure = Figure(figsize=(11.0, 1.9 * lines + 1.1), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for ax, arm in zip(grid.flat, arms, strict=False):
        _sweep_panel(ax, table[table["shape"] == arm], arm, names, results.once(arm_texts)[arm])
    top = np.nanmax([0.0, *(table[f"{name}_error_pct"].max() for name in names)])
    grid[0, 0].set_ylim(0, 1.2 * top or 100)
    for ax in grid.flat[len(arms) :]:
        ax.remove()
    for index in range(columns):
        lowest = grid.flat[[i for i in range(len(arms)) if i % columns == index][-1]]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel("lr", fontsize=8.5)
    for line in grid:
        line[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})", fontsize=8.5)
    handles = [_set_handle(index, name) for index, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    marks = (
        "\n× at the top: how many runs of an lr diverged; in the choice each counts as the worst."
    )
    return finish(
        figure,
        "Whiskers, cut at the frame: 95% intervals of means over the seeds that finished (n: "
        "fewest to most at an lr). Ring: the lr chosen by minival."
        + (marks if table["diverged"].any() else ""),
    )


def _set_handle(index: int, name: str) -> Line2D:
    label = f"{name}, which chooses" if name == CHOOSES else name
    dashes: Any = DASHES[index]
    return Line2D(
        [], [], linewidth=1.3, markersize=4, linestyle=dashes, label=label, **_looks(index)
    )


def _sweep_panel(ax: Axes, table: pd.DataFrame, arm: str, names: Sequence[str], text: str) -> None:
    x = np.log2(table["lr"].to_numpy(dtype=float))
    sizes = list(zip(table["lr"], table["finished"], strict=True))
    for index, name in enumerate(names):
        y, low, high = (
            table[f"{name}_error_pct{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high")
        )
        places = x + 0.08 * (index - (len(names) - 1) / 2)
        (line,) = ax.plot(
            places,
            y,
            markersize=4,
            linewidth=1.3,
            linestyle=DASHES[index],
            zorder=3 + index,
            **_looks(index),
        )
        describe(line, [f"{text}\nlr {lr:g}, {name}: {n} finished" for lr, n in sizes])
        ends = np.nan_to_num([y - low, high - y]).clip(min=0)
        ax.errorbar(
            places,
            y,
            ends,
            ecolor=_looks(index)["color"],
            zorder=3 + index,
            **{**WHISKER, "capsize": 1.5},
        )
        chosen = table["chosen"].to_numpy(dtype=bool)
        ax.plot(
            places[chosen],
            y[chosen],
            "o",
            color="black",
            markerfacecolor="none",
            markersize=9,
            zorder=6,
        )
    for places, (_, row) in zip(x, table.iterrows(), strict=True):
        if row["diverged"]:
            edge = ax.get_xaxis_transform()
            ax.plot([places], [0.95], "x", color="black", markersize=4, transform=edge)
            ax.annotate(
                f"{row['diverged']}",
                (places, 0.95),
                xycoords=edge,
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
            )
    numbers = sorted({int(table["finished"].min()), int(table["finished"].max())})
    ax.set_title(f"{arm}\nn={' to '.join(map(str, numbers))}", fontsize=8)
    ax.set_xlim(x.min() - 0.35, x.max() + 0.35)
    ax.xaxis.set_major_locator(FixedLocator(list(x)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda places, _: f"{2**places:.3g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.tick_params(labelsize=7.5)
