"""Figures about distributions: functions of a study's results that draw tables and rows.

No pyplot, no global state.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from vitscale.analysis.distribution.budget import tuning_budget as budget_table
from vitscale.analysis.distribution.curves import (
    value_limits,
)
from vitscale.analysis.distribution.population import AXES, Population, populations
from vitscale.analysis.distribution.tables import edf_summary, good_range
from vitscale.analysis.published import figures as published
from vitscale.analysis.report.layout import (
    COLORS,
    GREY,
    MARKERS,
    STYLE,
    axis_label,
    epoch_axis,
    finish,
    legends_below,
    not_drawn,
    num_columns,
    panel_grid,
    placeholder,
    style,
)
from vitscale.analysis.report.tooltips import arm_texts, describe, trial_texts
from vitscale.analysis.results import Results, panels
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study


@matplotlib.rc_context(STYLE)
def lr_wd_scatter(results: Results) -> Figure:
    """The metric of each draw against lr, wd and lr*wd, one row of axes per panel.

    After Xiao et al. 2021, Figure 4.
    """
    shown = panels(results.study)
    figure = Figure(figsize=(9.6, 0.5 + 2.5 * len(shown)), layout="constrained")
    drawn = _varied(results)
    grid = figure.subplots(len(shown), len(drawn), squeeze=False, sharey="row")
    strips = False
    for line, (title, arms) in zip(grid, shown.items(), strict=True):
        strips |= _scatter_row(line, title, arms, results, drawn)
    for ax, name in zip(grid[-1], drawn, strict=True):
        ax.set_xlabel(name.replace("*", " × "))
    return finish(
        figure,
        _scatter_note(results, grid, strips) + published.note(results.study, "lr_wd_scatter"),
    )


@matplotlib.rc_context(STYLE)
def tuning_budget_figure(results: Results) -> Figure:
    """What a tuning budget buys: the value on val of the best of k draws, chosen on minival.

    After Lourie et al. 2024. The line is the median over all choices of k of the arm's n draws, for
    k up to n / 2, at k draws on the left and at their cost in training on the right. The band is a
    simultaneous 95% band over all k. Its low end holds for any way to choose; its high end assumes
    that a draw with a lower value on minival is not less likely to be below any given value on val.
    Diverged and failed draws count as the worst value on both sets. Where the band of every arm
    reaches the best possible value from k = 2 on, it says nothing, and nothing is drawn.
    """
    shown, table = panels(results.study), results.once(budget_table)
    low = table.loc[table["k"] > 1, "median_low"].astype(float)
    if len(low) and (low <= results.metric.bounds[0]).all():
        n = int(table["n"].min())
        return not_drawn(
            f"with {n} draws the 95% bands of the best of k reach the best possible value from "
            "k = 2 on.\nThe numbers are in the table tuning_budget."
        )
    figure = Figure(figsize=(9.0, 0.6 + 3.4 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), 2, squeeze=False, sharey="row")
    for line, (title, arms) in zip(grid, shown.items(), strict=True):
        _budget_row(line, title, arms, results, table)
    for ax, label in zip(grid[-1], ("draws tried, k", "multiply-adds of k trainings"), strict=True):
        ax.set_xlabel(label)
    return finish(figure, _budget_note(results, table))


@matplotlib.rc_context(STYLE)
def learning_curves(results: Results) -> Figure:
    """The metric per epoch: thin lines are draws, thick ones references; one panel per group."""
    figure, grid = panel_grid(results.study, height=2.55)
    legends = []
    for ax, (title, arms) in zip(grid, panels(results.study).items(), strict=False):
        draws = [results.once(populations)[arm] for arm in arms]
        metric, texts = results.study.metric, results.once(trial_texts)
        _curves_panel(ax, title, draws, results.rows, metric, texts)
        legends.append([_handle(entry, index) for index, entry in enumerate(draws)])
    legends_below(grid, legends)
    for ax in grid[:: num_columns(results.study)]:
        ax.set_ylabel(axis_label(results.study))
    thick = (
        "Thick: one reference run each. "
        if any(trial.point is None for trial in results.study.trials)
        else ""
    )
    points = results.trials["point"]
    first = f", the first {MAX_CURVES:,} of an arm" if (points >= MAX_CURVES).any() else ""
    diverged = (results.trials["status"] == "diverged") & points.notna()
    crosses = "× at the top: the epoch in which a draw diverged." if diverged.any() else ""
    return finish(
        figure,
        f"Thin: one draw each{first}. {thick}{crosses}".strip()
        + published.note(results.study, "learning_curves"),
    )


def _handle(draws: Population, index: int) -> Line2D:
    # wrapped between parts
    parts = [part.replace(" ", "\u00a0") for part in draws.describe_ended().split(", ")]
    label = f"{draws.arm}\n{textwrap.fill(', '.join(parts), 44)}"
    return Line2D([], [], label=label, **style(index))


# ---- the metric against lr, wd and lr*wd


ENDED = {"diverged": "× diverged", "failed": "+ failed"}


def _scatter_note(results: Results, grid: np.ndarray, strips: bool) -> str:
    """Describes the marks that are drawn."""
    parts = []
    marks = {line.get_marker() for ax in grid.flat for line in ax.lines}
    if any(trial.point is None for trial in results.study.trials):
        line = "Vertical line: lr and wd of the reference, with a tick at its value"
        outside = "; an arrow at the edge: outside the plot" if marks & {"<", ">"} else ""
        parts.append(f"{line}{outside}.\n")
    if strips:
        parts.append(
            "Strip at the bottom: good range, 2.5 to 97.5 percentile of the best of n/4 draws "
            "(tick: median). "
        )
    ended = [text for status, text in ENDED.items() if _ended(results, status)]
    if ended:
        parts.append(f"Above the line at the top, without a value: {', '.join(ended)}.")
    return "".join(parts).strip()


def _ended(results: Results, *status: str) -> bool:
    """Whether a draw that counts has this status."""
    arms = results.once(populations).values()
    return any(draws.counts[name] for draws in arms for name in status)


def _varied(results: Results) -> Sequence[str]:
    """The axes on which the draws differ; without any, all."""
    arms = results.once(populations).values()
    values = {name: np.concatenate([draws.sampled[name] for draws in arms]) for name in AXES}
    varied = [name for name in AXES if len(np.unique(values[name])) > 1]
    if {"lr", "wd"} <= {*varied}:
        return tuple(AXES)
    # of one that varies, lr*wd is a multiple
    return [name for name in varied if name != "lr*wd"] or tuple(AXES)


def _scatter_row(
    axes: Sequence[Axes],
    title: str,
    names: Sequence[str],
    results: Results,
    drawn: Sequence[str],
) -> bool:
    """Plots a panel; returns whether it contains a strip of good values."""
    strips = False
    arms = [results.once(populations)[arm] for arm in names]
    texts = results.once(trial_texts)
    ids = {draws.arm: _trial_ids(results.study, draws) for draws in arms}
    references = results.once(edf_summary).set_index("arm")["reference"]
    good = results.once(good_range).set_index(["arm", "axis"])
    strip = good[["good_from", "good_median", "good_to"]].astype(float)
    low, high = value_limits(
        [np.append(draws.level(), references[draws.arm]) for draws in arms], results.metric
    )
    floor = 0.055 * len(arms) * (high - low)
    marked = _ended(results, *ENDED)
    ceiling = 0.06 * (len(arms) + 1) * (high - low) if marked else 0.0
    for ax, name in zip(axes, drawn, strict=True):
        ax.set(xscale="log", ylim=(low - floor, high + ceiling))
        if marked:
            ax.axhline(high, color=GREY, linewidth=0.8)
        _log_axis(ax, np.concatenate([draws.sampled[name] for draws in arms]))
        for index, draws in enumerate(arms):
            strips |= _scatter_arm(
                ax, draws, name, index, ids[draws.arm], texts, *strip.loc[(draws.arm, name), :]
            )
            _scatter_reference(ax, draws.setting[name], float(references[draws.arm]), index)
    if not any(draws.n for draws in arms):
        placeholder(axes[len(axes) // 2], "no outcome yet")
    axes[0].set_title(title, loc="left")
    axes[0].set_ylabel(axis_label(results.study))
    handles = [
        Line2D(
            [],
            [],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            linestyle="none",
            label=textwrap.fill(f"{draws.arm}: {draws.describe_ended()}", 40),
        )
        for index, draws in enumerate(arms)
    ]
    if len(handles) > 2:
        axes[-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.03))
    else:  # beside the title, over the axes
        place: Any = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "handletextpad": 0.2}
        place |= {"borderaxespad": 0.1, "borderpad": 0.1}
        axes[-1].legend(handles=handles, ncols=2, **place).set_in_layout(False)
    if strips:
        look: Any = {"xycoords": "axes fraction", "ha": "center", "va": "center", "fontsize": 6.5}
        axes[0].annotate("good range", (0.5, 0.02 + 0.04 * (len(arms) - 1)), **look)
    return strips


def _trial_ids(study: Study, draws: Population) -> np.ndarray:
    """(n,) the trial of each draw."""
    ids = {t.point: t.config.id for t in study.trials if t.arm.name == draws.arm}
    return np.array([ids[int(point)] for point in draws.point], dtype=object)


def _scatter_arm(
    ax: Axes,
    draws: Population,
    name: str,
    index: int,
    ids: np.ndarray,
    texts: Mapping[str, str],
    low: float,
    median: float,
    high: float,
) -> bool:
    """Plots an arm; returns whether it has a strip of good values."""
    color = COLORS[index % len(COLORS)]
    x = draws.values[name]
    (dots,) = ax.plot(
        x[draws.finished],
        draws.error[draws.finished],
        MARKERS[index % len(MARKERS)],
        color=color,
        markersize=4.5,
        alpha=0.75,
        markeredgewidth=0,
        zorder=3,
    )
    describe(dots, (texts[i] for i in ids[draws.finished]))
    edge = ax.get_xaxis_transform()  # x in data, y as a fraction of the axes
    top = 0.975 - 0.04 * index
    for status, marker in (("diverged", "x"), ("failed", "+")):
        ended = draws.status == status
        (marks,) = ax.plot(
            x[ended],
            np.full(ended.sum(), top),
            marker,
            color=color,
            markersize=5,
            transform=edge,
            zorder=4,
        )
        describe(marks, (texts[i] for i in ids[ended]))
    if np.isfinite(median):
        y = 0.022 + 0.04 * index
        ax.plot(
            [low, high],
            [y, y],
            color=color,
            alpha=0.35,
            linewidth=5,
            solid_capstyle="butt",
            transform=edge,
        )
        ax.plot([median], [y], "|", color=color, markersize=6, markeredgewidth=1.6, transform=edge)
    return bool(np.isfinite(median))


def _scatter_reference(ax: Axes, x: float, y: float, index: int) -> None:
    """A line at the reference setting with a tick at its value; an arrow if it is out of range."""
    low, high = ax.get_xlim()
    color = COLORS[index % len(COLORS)]
    if low <= x <= high:
        ax.axvline(x, linewidth=1.2, zorder=1, **style(index))
        ax.plot([x], [y], "_", color=color, markersize=15, markeredgewidth=2.2, zorder=5)
    elif np.isfinite(x) and np.isfinite(y):
        edge, marker = (0.0, "<") if x < low else (1.0, ">")
        ax.plot(
            [edge],
            [y],
            marker,
            color=color,
            markersize=8,
            transform=ax.get_yaxis_transform(),
            clip_on=False,
            zorder=6,
        )


def _log_axis(ax: Axes, values: np.ndarray) -> None:
    """A log axis slightly wider than the draws: a distant reference would squeeze the panel."""
    positive = values[values > 0]
    if len(positive) == 0:
        return
    low, high = float(positive.min()), float(positive.max())
    # never less than a decade, so that it has ticks
    margin = (high / low) ** 0.05 if high > 10 * low else 3.2
    ax.set_xlim(low / margin, high * margin)
    decades = np.log10(high / low)
    ax.xaxis.set_major_locator(
        LogLocator(subs=(1,) if decades > 1.5 else (1, 3) if decades > 1 else (1, 2, 5))
    )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("e-0", "e-")))
    ax.xaxis.set_minor_locator(NullLocator())


# ---- the best of k draws


def _budget_row(
    axes: Sequence[Axes], title: str, arms: Sequence[str], results: Results, table: pd.DataFrame
) -> None:
    of_panel = table[table["arm"].isin(arms)]
    for ax, x in zip(axes, ("k", "training_flops"), strict=True):
        for index, arm in enumerate(arms):
            curve, text = of_panel[of_panel["arm"] == arm], results.once(arm_texts)[arm]
            _budget_curve(ax, curve, x, index, text)
        if of_panel.empty:
            placeholder(ax, "no draw has a value on minival")
        else:
            ax.set_xscale("log")
    if len(of_panel):
        last = int(of_panel["k"].max())
        ticks = [2**power for power in range(last.bit_length()) if 2**power <= last]
        axes[0].set_xticks(ticks, [str(k) for k in ticks])
        axes[0].xaxis.set_minor_locator(NullLocator())
        axes[1].xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes[1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0e}".replace("+", "")))
        axes[1].xaxis.set_minor_locator(NullLocator())
        axes[0].set_ylim(*_budget_range(of_panel, results.metric))
    axes[0].set_title(title, loc="left")
    axes[0].set_ylabel(f"{axis_label(results.study)},\nbest of k on minival")
    drawn = [results.once(populations)[arm] for arm in arms]
    handles = [
        Line2D([], [], label=f"{draws.arm}: {draws.describe_ended()}", **style(index))
        for index, draws in enumerate(drawn)
    ]
    axes[-1].legend(handles=handles, loc="upper right", handlelength=3.2)


def _budget_curve(ax: Axes, rows: pd.DataFrame, x: str, index: int, text: str) -> None:
    marker, y = MARKERS[index % len(MARKERS)], rows["median"]
    (line,) = ax.plot(rows[x], y, marker=marker, markersize=4, zorder=3, **style(index))
    describe(line, text)
    ax.fill_between(
        rows[x],
        rows["median_low"].astype(float),
        rows["median_high"].astype(float),
        color=COLORS[index % len(COLORS)],
        alpha=0.16,
        linewidth=0,
        zorder=2,
    )


def _budget_range(rows: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """From the lowest possible value to above the finite ends that are not the worst value."""
    columns = rows[["median", "median_low", "median_high"]]
    values = columns.to_numpy(dtype=float).ravel()
    values = values[np.isfinite(values) & (values != metric.worst)]
    top = float(values.max()) if len(values) else metric.beyond
    return metric.bounds[0], 1.08 * top


def _budget_note(results: Results, table: pd.DataFrame) -> str:
    drawn = table["median_low"].notna().any()
    band = (
        "Band: 95%, simultaneous over all k; its high end assumes that a lower value on minival "
        "does not mean a higher one on val.\n"
        if drawn
        else ""
    )
    return (
        f"Median of the best of k draws, over all choices of k of the n. {band}Diverged and failed "
        "draws are the worst on both sets."
    )


# ---- learning curves


def _curves_panel(
    ax: Axes,
    title: str,
    arms: Sequence[Population],
    rows: pd.DataFrame,
    metric: str,
    texts: Mapping[str, str],
) -> None:
    names = ["arm", "point", "status", "trial_id", "epoch", "diverged", metric]
    begun = rows.filter(names)[rows["arm"].isin([draws.arm for draws in arms])]
    for index, draws in enumerate(arms if len(begun) else ()):
        _arm_curves(ax, begun[begun["arm"] == draws.arm], metric, index, texts)
    if begun.empty:
        placeholder(ax, "no row yet")
    ax.autoscale_view()
    if len(begun):
        epoch_axis(ax, float(begun["epoch"].max()))
    ax.set_title(title)
    ax.set_xlabel("epoch")


def _arm_curves(
    ax: Axes, rows: pd.DataFrame, metric: str, index: int, texts: Mapping[str, str]
) -> None:
    """The lines of one arm; thin ones are rasterized if they are many, since a thousand make a
    large SVG, and then have no text of their own.
    """
    thin: dict[str, np.ndarray] = {}
    looks = style(index)
    shown = rows[rows["point"].isna() | (rows["point"] < MAX_CURVES)]
    for trial_id, curve, is_reference in _curves(shown, metric):
        if is_reference:
            (line,) = ax.plot(*curve.T, linewidth=2.2, zorder=5, **looks)
            describe(line, texts[trial_id])
        else:
            thin[trial_id] = curve
    many = sum(map(len, thin.values())) > MAX_VERTICES
    lines = LineCollection(
        list(thin.values()), linewidths=0.7, alpha=0.45, rasterized=many, zorder=2, **looks
    )
    ax.add_collection(lines)
    if not many:
        describe(lines, [texts[trial_id] for trial_id in thin])
    diverged = rows.loc[(rows["status"] == "diverged") & rows["point"].notna()]
    ends = diverged.groupby("trial_id")["epoch"].max()
    top = np.full(len(ends), 0.975 - 0.04 * index)
    (crosses,) = ax.plot(
        ends.to_numpy(dtype=float),
        top,
        "x",
        color=looks["color"],
        markersize=5,
        transform=ax.get_xaxis_transform(),
        zorder=6,
    )
    describe(crosses, [texts[trial_id] for trial_id in ends.index])


MAX_CURVES = 1_000  # of an arm: more cover each other
MAX_VERTICES = 2_000  # of an arm's thin curves as lines of an SVG, about 25 bytes each


def _curves(rows: pd.DataFrame, metric: str) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Id of each trial, its (m, 2) epochs and metrics, and whether it is a reference run.

    The last row of a diverged trial holds the metric's worst value, which was not measured, and is
    left out.
    """
    measured = np.isfinite(rows[metric].to_numpy(dtype=float))
    if "diverged" in rows:
        measured &= rows["diverged"].to_numpy(dtype=float) != 1
    measured_rows = rows[measured].sort_values(["trial_id", "epoch"])
    if measured_rows.empty:
        return
    trial_id = measured_rows["trial_id"].to_numpy(dtype=str)
    starts = np.flatnonzero(trial_id[1:] != trial_id[:-1]) + 1
    curves = np.split(measured_rows[["epoch", metric]].to_numpy(dtype=float), starts)
    is_reference = measured_rows.iloc[[0, *starts]]["point"].isna()
    yield from zip(trial_id[[0, *starts]], curves, is_reference, strict=True)
