"""Figures of a search: what was proposed, in which order, and where the low values lie.

One panel per arm.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D
from matplotlib.tri import Triangulation

from vitscale.analysis.report.layout import (
    COLORS,
    GREY,
    STYLE,
    axis_label,
    columns_of,
    finish,
    legends_below,
    num_columns,
    panel_grid,
    placeholder,
    rows_of_axes,
)
from vitscale.analysis.report.tooltips import describe
from vitscale.analysis.results import Results
from vitscale.analysis.search import tables as search
from vitscale.plan.study import Study

DOT, LINE, BAD = COLORS[0], COLORS[6], COLORS[1]
ORDER = "viridis"  # colours of the number of a proposal
NO_BREAK = "\u00a0"  # lines of a legend break between parts
LEVELS = 9  # of a contour
MARGIN = 0.05  # of an axis of the space, at either end
STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 15,
    "color": "white",  # no colour of a value
    "markeredgecolor": "black",
    "markeredgewidth": 0.9,
    "linestyle": "none",
    "zorder": 8,
}
# of a log axis of values
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
TOP = 0.965  # of the axes: where points without a value are drawn


@matplotlib.rc_context(STYLE)
def search_history(results: Results) -> Figure:
    """The value of each point in the order of proposal, with the lowest so far as a step line, a
    panel per arm.

    The line is the best of n: it falls with n by luck alone. Whiskers are the lowest and the
    highest seed of a point.
    """
    proposals = results.once(search.points)
    asked = search.info(results.study)
    size = 0 if asked.sampler == "random" else asked.per_round
    figure, grid = panel_grid(_by_arm(results.study), height=2.55)
    scale = _ValueAxis(proposals)
    for ax, arm in zip(grid, results.study.arms, strict=True):
        of_arm = proposals[proposals["arm"] == arm]
        scale.apply(ax)
        if size:
            ax.axvspan(-0.5, min(size, len(of_arm)) - 0.5, color="#f0f0f0", zorder=0)
        _history(ax, of_arm, _seed_ranges(of_arm, results.trials), results.once(_texts))
        ax.set_xlim(-0.7, max(len(of_arm) - 0.3, 1))
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        ax.set_title(arm)
        ax.set_xlabel("number of the point")
    by_arm = (proposals[proposals["arm"] == arm] for arm in results.study.arms)
    legends_below(grid, [_history_handles(of_arm) for of_arm in by_arm])
    complete = set(proposals.loc[proposals["state"] == "complete", "trial_ids"].explode())
    seeds = results.trials.loc[results.trials["trial_id"].isin(complete), "value"]
    _make_room(grid[0], seeds.tolist())
    for ax in grid[:: num_columns(_by_arm(results.study))]:
        ax.set_ylabel(_label(results.study, proposals))
    return finish(
        figure,
        f"{_sentence(results.study)}{' Grey: the first round, at random.' if size else ''}\n"
        f"Line: best of n so far, optimistic. {scale.note}",
    )


@matplotlib.rc_context(STYLE)
def search_slices(results: Results) -> Figure:
    """The value of each point against its place on each axis, a row of panels per arm; the star is
    the winner.

    Later points are lighter: where they crowd, the search has looked often, which says nothing
    about a width.
    """
    proposals = results.once(search.points)
    names, scale = search.axes(results.study), _ValueAxis(proposals)
    figure = Figure(
        figsize=(3.3 * max(len(names), 2) + 1.9, 2.7 * len(results.study.arms) + 0.6),
        layout="constrained",
    )
    grid = figure.subplots(len(results.study.arms), len(names), squeeze=False, sharey=True)
    colors = ScalarMappable(Normalize(0, max(proposals["point"].max(), 1)), ORDER)
    for line, arm in zip(grid, results.study.arms, strict=True):
        of_arm, space = proposals[proposals["arm"] == arm], search.spaces(results.study, arm)
        best = search.ranked(proposals, arm).head(1)
        for ax, name in zip(line, names, strict=True):
            scale.apply(ax)
            if name not in space:
                placeholder(ax, f"{name} is not searched")
                continue
            _slice(ax, of_arm, best, name, space[name], colors, results.once(_texts))
            ax.set_xlabel(name)
        line[0].set_title(arm, loc="left")
        line[0].set_ylabel(_label(results.study, proposals))
    ticks = MaxNLocator(nbins=7, integer=True)
    figure.colorbar(
        colors, ax=grid, label="number of the point", shrink=0.8, aspect=30, ticks=ticks
    )
    return finish(
        figure, f"{_sentence(results.study)} Star: the winner, best of many.\n{scale.note}"
    )


@matplotlib.rc_context(STYLE)
def importance_bars(results: Results) -> Figure:
    """How much of the differences between points each axis explains, by PED-ANOVA; a panel per arm.

    The line across a bar is what the share exceeds in 1 of 20 searches of pure noise: a bar that
    ends before it is hollow, and shows nothing. Diamonds are fANOVA.
    """
    table, arms = results.once(search.search_importance), list(results.study.arms)
    most = max(table.groupby("arm").size(), default=1)
    columns = columns_of(len(arms))
    figure, grid = rows_of_axes(-(-len(arms) // columns), columns, 0.9 + 0.32 * most)
    for ax, arm in itertools.zip_longest(grid.flat, arms):
        if arm is None:
            ax.remove()
            continue
        ax.set_title(arm)
        if why := search.why_no_importance(results, arm):
            ax.set_axis_off()
            placeholder(ax, "\n".join(textwrap.wrap(f"none: {why}", 34)))
            continue
        of_arm = table[table["arm"] == arm].sort_values("PED-ANOVA")
        shown = (of_arm["PED-ANOVA"] > of_arm["PED-ANOVA of noise"]).tolist()
        bars = ax.barh(of_arm["axis"], of_arm["PED-ANOVA"], height=0.6, edgecolor=DOT)
        for bar, row, is_shown in zip(bars, of_arm.to_dict("records"), shown, strict=True):
            bar.set_facecolor(DOT if is_shown else "white")
            middle = bar.get_y() + bar.get_height() / 2
            ax.vlines(row["PED-ANOVA of noise"], middle - 0.42, middle + 0.42, color="black")
            ax.plot(row["fANOVA"], middle, "D", color=BAD, markersize=5, clip_on=False)
        ax.set_xlim(0, 1)
        ax.set_xlabel(f"share (n={of_arm['n'].iloc[0]} points)")
    note = "Bars: PED-ANOVA; filled beyond the line, which 1 in 20 searches of noise exceed."
    return finish(figure, f"{note} Diamonds: fANOVA. {_sentence(results.study)}")


@matplotlib.rc_context(STYLE)
def search_contour(results: Results) -> Figure:
    """The metric over lr and wd, or the first two numeric axes, with all points; a panel per arm.

    Between points it is linear interpolation over triangles of points, and nothing was measured
    there; white is beyond the outermost points. The star is the winner, best of many.
    """
    proposals = results.once(search.points)
    columns = 2 if len(results.study.arms) in (2, 4) else min(len(results.study.arms), 3)
    lines = -(-len(results.study.arms) // columns)
    figure = Figure(figsize=(3.9 * columns + 1.6, 3.5 * lines + 0.6), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    scale = _ValueAxis(proposals)
    colors = ScalarMappable(scale.norm, "viridis_r")
    for ax, arm in zip(grid, results.study.arms, strict=False):
        _contour_panel(ax, results, arm, colors)
        ax.set_title(arm)
    for ax in grid[len(results.study.arms) :]:
        ax.remove()
    bar = figure.colorbar(
        colors,
        ax=grid[: len(results.study.arms)],
        label=_label(results.study, proposals),
        extend="max",
        shrink=0.9,
    )
    _value_ticks(bar.ax.yaxis, scale)
    marks = _marks(proposals).replace("failed", "failed (counts as the worst)")
    others = " Other axes vary, and are not shown." if len(search.axes(results.study)) > 2 else ""
    return finish(
        figure,
        (
            f"{_sentence(results.study)} Star: the winner, best of many.\nColours between points "
            f"are interpolated, not measured.{others}\n{marks}"
        ),
    )


# ---- what the three share


class _ValueAxis:
    """The axis of the metric, from the points without a diverged training; log if the highest value
    is over 8 times the lowest.

    Other points are drawn above a line at the top.
    """

    def __init__(self, proposals: pd.DataFrame) -> None:
        values = proposals.loc[
            (proposals["state"] == "complete") & ~_diverged_or_failed(proposals), "value"
        ].to_numpy(dtype=float)
        self.low, self.high = (
            (float(values.min()), float(values.max())) if len(values) else (0.0, 100.0)
        )
        self.is_log = self.low > 0 and self.high > 8 * self.low
        if self.high - self.low < 1e-9:
            self.low, self.high = max(self.low - 1, 0.0), self.high + 1
        self.norm: Normalize = (LogNorm if self.is_log else Normalize)(self.low, self.high)
        self.note = f"Above the line: {_marks(proposals)}." if _marks(proposals) else ""

    def apply(self, ax: Axes) -> None:
        if self.is_log:
            span = self.high / self.low
            ax.set_yscale("log")
            ax.set_ylim(self.low / span**0.06, self.high * span**0.16)
        else:
            span = self.high - self.low
            ax.set_ylim(self.low - 0.06 * span, self.high + 0.16 * span)
        if self.note:
            edge = self.high * span**0.05 if self.is_log else self.high + 0.05 * span
            ax.axhline(edge, color=GREY, linewidth=0.8)
            ax.annotate(
                "above: no value",
                (1, edge),
                xycoords=ax.get_yaxis_transform(),
                xytext=(0, -2),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=7,
                color="#777777",
            )
        _value_ticks(ax.yaxis, self)


def _value_ticks(axis: Any, values: _ValueAxis) -> None:
    if not values.is_log:
        return
    inside = [tick for tick in TICKS if values.low <= tick <= values.high]
    ticks = (
        inside
        if len(inside) <= 7
        else [tick for tick in inside if f"{tick:g}".strip("0.") in ("1", "2", "5")]
    )
    axis.set_major_locator(FixedLocator(ticks) if len(ticks) > 1 else LogLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def _rgba(colors: ScalarMappable, values: pd.Series) -> Any:
    """(n, 4) colours."""
    return colors.to_rgba(values.to_numpy(dtype=float))


def _diverged_or_failed(proposals: pd.DataFrame) -> pd.Series:
    """Points of which a training diverged or failed."""
    return (proposals["diverged"] + proposals["failed"]) > 0


def _by_arm(study: Study) -> Study:
    return dataclasses.replace(study, panels={arm: (arm,) for arm in study.arms})


def _label(study: Study, proposals: pd.DataFrame) -> str:
    seeds = "mean " if (proposals["num_seeds"] > 1).any() else ""
    return f"{seeds}{axis_label(study)}"


def _sentence(study: Study) -> str:
    what = "not a sample of the space" if search.is_adaptive(study) else "a random sample"
    return f"A search ({search.procedure(study)}), {what}."


def _marks(proposals: pd.DataFrame) -> str:
    """Explains the marks that occur, of points without a value."""
    texts = ("× a training diverged or failed", "▽ stopped early", "○ no outcome yet")
    without_value = _without_value(proposals)
    return ", ".join(text for text, (_, p) in zip(texts, without_value, strict=True) if len(p))


def _without_value(proposals: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Marker and points of those without a value."""
    bad = _diverged_or_failed(proposals)
    return [
        ("x", proposals[bad]),
        ("v", proposals[~bad & (proposals["state"] == "stopped")]),
        ("o", proposals[~bad & (proposals["state"] == "running")]),
    ]


# ---- history


def _texts(results: Results) -> pd.Series:
    """What each point asked is, by the index of the table of points."""
    proposals, metric = results.once(search.points), results.metric
    texts = []
    for row in proposals.to_dict("records"):
        names = search.spaces(results.study, row["arm"])
        value = metric.text(float(row["value"])) if row["state"] == "complete" else row["state"]
        place = ", ".join(f"{name} {row[name]}" for name in names)
        ids = ", ".join(row["trial_ids"])
        texts.append(f"{row['arm']}, point {row['point']}: {value}\n{place}\ntrial {ids}")
    return pd.Series(texts, proposals.index, dtype=object)


def _seed_ranges(proposals: pd.DataFrame, outcomes: pd.DataFrame) -> dict[int, tuple[float, float]]:
    """Point -> its lowest and highest value over the seeds."""
    error = dict(zip(outcomes["trial_id"], outcomes["value"].astype(float), strict=True))
    values_of_point = {
        point: [error[i] for i in ids]
        for point, ids in zip(proposals["point"], proposals["trial_ids"], strict=True)
    }
    return {point: (min(values), max(values)) for point, values in values_of_point.items()}


def _history(
    ax: Axes, proposals: pd.DataFrame, ranges: dict[int, tuple[float, float]], texts: pd.Series
) -> None:
    complete = proposals[(proposals["state"] == "complete") & ~_diverged_or_failed(proposals)]
    x, y = complete["point"].to_numpy(dtype=float), complete["value"].to_numpy(dtype=float)
    if len(complete):
        ends = np.array([ranges[point] for point in complete["point"]])
        dots, _, _ = ax.errorbar(
            x,
            y,
            np.abs(ends.T - y),
            fmt="o",
            color=DOT,
            markersize=4.5,
            elinewidth=0.9,
            alpha=0.8,
            zorder=3,
        )
        describe(dots, texts.loc[complete.index])
        ax.step(
            [*x, proposals["point"].max()],
            [*np.minimum.accumulate(y), y.min()],
            where="post",
            color=LINE,
            linewidth=1.6,
            zorder=4,
        )
    for marker, others in _without_value(proposals):
        (marks,) = ax.plot(
            others["point"],
            np.full(len(others), TOP),
            marker,
            color=BAD if marker == "x" else DOT,
            markersize=5.5,
            markerfacecolor="none",
            transform=ax.get_xaxis_transform(),
            zorder=5,
        )
        describe(marks, texts.loc[others.index])
    if proposals.empty or not (proposals["state"] != "running").any():
        placeholder(ax, "no outcome yet")


def _make_room(ax: Axes, values: Sequence[float]) -> None:
    """Lowers the bottom of axes that share y until all values above 0 are in them."""
    bottom, _ = ax.get_ylim()
    ax.set_ylim(bottom=min([bottom, *(0.9 * value for value in values if value > 0)]))


def _history_handles(proposals: pd.DataFrame) -> list[Line2D]:
    state, bad = proposals["state"], int(_diverged_or_failed(proposals).sum())
    num_by_outcome = [
        f"n={int((state == 'complete').sum())}",
        f"{bad} with a diverged or failed training",
    ]
    num_by_outcome += [
        f"{int((state == name).sum())} {text}"
        for name, text in (("stopped", "stopped early"), ("running", "without an outcome"))
        if (state == name).any()
    ]
    seeds = int(proposals["num_seeds"].max()) if len(proposals) else 1
    counted = textwrap.fill(", ".join(part.replace(" ", NO_BREAK) for part in num_by_outcome), 48)
    dots = f"point, {f'mean and range of {seeds} seeds' if seeds > 1 else 'one seed'}\n{counted}"
    return [
        Line2D([], [], color=DOT, marker="o", markersize=4.5, linestyle="none", label=dots),
        Line2D([], [], color=LINE, linewidth=1.6, label="lowest so far (best of n)"),
    ]


# ---- slices


def _slice(
    ax: Axes,
    proposals: pd.DataFrame,
    best: pd.DataFrame,
    name: str,
    axis: Any,
    colors: ScalarMappable,
    texts: pd.Series,
) -> None:
    complete = proposals[(proposals["state"] == "complete") & ~_diverged_or_failed(proposals)]
    dots = ax.scatter(
        _places(complete[name], axis),
        complete["value"].astype(float),
        s=24,
        c=_rgba(colors, complete["point"]),
        edgecolors="#444444",
        linewidths=0.4,
        zorder=3,
    )
    describe(dots, texts.loc[complete.index])
    for marker, others in _without_value(proposals):
        edge = ax.get_xaxis_transform()
        shades = _rgba(colors, others["point"])
        mark_style = (
            {"c": shades} if marker == "x" else {"facecolors": "none", "edgecolors": shades}
        )
        marks = ax.scatter(
            _places(others[name], axis),
            np.full(len(others), TOP),
            s=26,
            marker=marker,
            linewidths=1.3,
            transform=edge,
            zorder=4,
            **mark_style,
        )
        describe(marks, texts.loc[others.index])
    if len(best) and not _diverged_or_failed(best).any():
        ax.plot(_places(best[name], axis), best["value"].astype(float), **STAR)
    _space_axis(ax.xaxis, axis)
    low, high = _limits(axis)
    ax.set_xlim(low, high)


def _places(values: pd.Series, axis: Any) -> np.ndarray:
    """Values as places on an axis: choices by their number."""
    if hasattr(axis, "choices"):
        return np.array([axis.choices.index(value) for value in values], dtype=float)
    return values.to_numpy(dtype=float)


def _limits(axis: Any) -> tuple[float, float]:
    """A little beyond the space."""
    if hasattr(axis, "choices"):
        return -0.5, len(axis.choices) - 0.5
    if axis.log:
        margin = (axis.high / axis.low) ** MARGIN
        return axis.low / margin, axis.high * margin
    margin = MARGIN * (axis.high - axis.low) or 0.5
    return axis.low - margin, axis.high + margin


def _space_axis(line: Any, axis: Any) -> None:
    """Scale and ticks of an axis of the space."""
    if hasattr(axis, "choices"):
        line.set_major_locator(FixedLocator(range(len(axis.choices))))
        line.set_major_formatter(FuncFormatter(lambda x, _: str(axis.choices[round(x)])))
    elif axis.log:
        line.axes.set(**{f"{line.axis_name}scale": "log"})
        decades = np.log10(axis.high / axis.low)
        line.set_major_locator(
            LogLocator(subs=(1,) if decades > 2 else (1, 3) if decades > 1 else (1, 2, 5))
        )
        line.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("e-0", "e-")))
        line.set_minor_locator(NullLocator())
    else:
        line.set_major_locator(MaxNLocator(nbins=5))


# ---- contour


def _contour_panel(ax: Axes, results: Results, arm: str, colors: ScalarMappable) -> None:
    proposals = results.once(search.points)
    space = search.spaces(results.study, arm)
    names = search.contour_axes(results.study, arm)
    if len(names) < 2:
        placeholder(ax, "a contour needs two numeric axes")
        return
    of_arm = proposals[proposals["arm"] == arm]
    for line, name in zip((ax.xaxis, ax.yaxis), names, strict=True):
        _space_axis(line, space[name])
    ax.set(
        xlabel=names[0],
        ylabel=names[1],
        xlim=_limits(space[names[0]]),
        ylim=_limits(space[names[1]]),
    )
    mean = results.once(search.surface)
    _interpolated(ax, mean[mean["arm"] == arm], [space[name] for name in names], colors)
    good, texts = (
        of_arm[(of_arm["state"] == "complete") & ~_diverged_or_failed(of_arm)],
        results.once(_texts),
    )
    dots = ax.scatter(
        good[names[0]],
        good[names[1]],
        s=20,
        c=_rgba(colors, good["value"]),
        edgecolors="white",
        linewidths=0.9,
        zorder=4,
    )
    describe(dots, texts.loc[good.index])
    for marker, others in _without_value(of_arm):
        (marks,) = ax.plot(
            others[names[0]],
            others[names[1]],
            marker,
            color=BAD if marker == "x" else "black",
            markersize=6,
            markeredgewidth=1.6,
            markerfacecolor="none",
            linestyle="none",
            zorder=5,
        )
        describe(marks, texts.loc[others.index])
    best = search.ranked(proposals, arm).head(1)
    ax.plot(best[names[0]], best[names[1]], **STAR)


def _interpolated(
    ax: Axes, mean: pd.DataFrame, space: Sequence[Any], colors: ScalarMappable
) -> None:
    """Filled contours over the triangles of the points, on the
    axes' own scales; nothing for points on a line.
    """
    places = np.array(
        [
            [search.share(axis, value) for value in mean[x]]
            for x, axis in zip("xy", space, strict=True)
        ]
    )
    if len(mean) < 3 or np.linalg.matrix_rank(places - places[:, :1], tol=1e-6) < 2:
        return
    own_scale = Affine2D().translate(MARGIN, MARGIN).scale(1 / (1 + 2 * MARGIN)) + ax.transAxes
    norm: Any = colors.norm
    levels = (np.geomspace if isinstance(norm, LogNorm) else np.linspace)(
        norm.vmin, norm.vmax, LEVELS
    )
    contour_style: dict[str, Any] = {
        "norm": norm,
        "cmap": colors.cmap,
        "extend": "both",
        "alpha": 0.85,
        "zorder": 1,
    }
    ax.tricontourf(
        Triangulation(*places),
        mean["value"].to_numpy(dtype=float),
        levels=levels,
        transform=own_scale,
        **contour_style,
    )
