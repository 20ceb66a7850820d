"""Figures of profiles: images per second, their change by layout, and peak memory, over batches and
resolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from vitscale.analysis.displays import lines
from vitscale.analysis.profile.tables import published_gains, speeds
from vitscale.analysis.published import figures as published
from vitscale.analysis.report.layout import (
    GREY,
    STYLE,
    WIDTHS,
    columns_of,
    finish,
    legend_above,
    placeholder,
)
from vitscale.analysis.report.tooltips import describe
from vitscale.analysis.results import Results, panels
from vitscale.plan.profile import LAYOUTS
from vitscale.plan.study import Study

SIZE = 4.5  # points of a marker
# percent: ticks of a log axis of ratios, and of one that does not reach a doubling
GAINS = (-99, -95, -90, -80, -50, 0, 100, 300, 1000, 3000, 10000)
SMALL_GAINS = (-60, -40, -20, 0, 20, 40, 60, 80)
IN_WORDS = {"seq": "one after another (seq)", "par": "in one go (par)"}


class Curve(NamedTuple):
    """The profiles of an arm along one axis, ascending, and the index of its colour in the
    panel.
    """

    name: str
    axis: str
    profiles: pd.DataFrame
    place: int


@matplotlib.rc_context(STYLE)
def throughput_by_batch(results: Results) -> Figure:
    """Images per second against the batch, with branches in sequence and in one operation, at the
    model's first resolution.
    """
    return _over_batches(
        results,
        _speeds,
        "images/s",
        (
            "Median over the timed runs, {n} per profile. Thick: 95% interval of the median. Thin: "
            "fewest to most. Both may be shorter than the marker."
        ),
    )


@matplotlib.rc_context(STYLE)
def peak_memory(results: Results) -> Figure:
    """Peak memory of tensors against the batch, including weights and batch; from one pass, which
    repeats exactly.
    """
    note = "The most that tensors took at once in a pass: one number per profile, with no spread."
    return _over_batches(results, _memories, "peak memory (MiB)", note)


@matplotlib.rc_context(STYLE)
def throughput_gain(results: Results) -> Figure:
    """Change of images per second by computing the branches in one operation instead of in
    sequence, against the batch.

    Touvron et al. 2022, Table 4, prints what is above 0 as its gain.
    """
    table = _of_two_layouts(_of_first_resolution(results.once(speeds)))
    kinds = list(dict.fromkeys(table["profile"]))
    figure = Figure(figsize=(WIDTHS[min(max(len(kinds), 1), 2)], 4.4), layout="constrained")
    axes = figure.subplots(1, max(1, len(kinds)), squeeze=False, sharey=True)[0]
    models = list(dict.fromkeys(table["model"].astype(str)))
    for ax, kind in zip(axes, kinds, strict=False):
        of_kind = table[table["profile"] == kind]
        _gain_panel(ax, kind, models, of_kind, results.study.published and kind == "inference")
    legend_above(figure, [_handle(model, index) for index, model in enumerate(models)])
    if not kinds:
        placeholder(axes[0], "no profile has two layouts")
    clipped = _gain_axis(axes, table) if kinds else False
    axes[0].set_ylabel("images/s, in one go over one after another (%)")
    num, theirs = _num_runs(results.study), ""
    beyond = " Arrow at the frame: the interval goes on." if clipped else ""
    if results.study.published:
        theirs = (
            "\nGrey, behind: Touvron et al. 2022, Table 4, V100: printed images/s, no interval."
        )
    return finish(
        figure,
        (
            f"Change of the median, with its 95% interval (bootstrap over {num} timed runs per "
            f"profile, which share the state of the machine). Log scale of the ratio.{beyond}"
            f"{theirs}"
        ),
    )


@matplotlib.rc_context(STYLE)
def throughput_by_resolution(results: Results) -> Figure:
    """Images per second and peak memory against the resolution, at the batch that was measured at
    several.
    """
    table = _of_several(results.once(speeds), "resolution", "batch_size")
    kinds = list(dict.fromkeys(table["profile"]))
    figure = Figure(figsize=(WIDTHS[min(max(len(kinds), 1), 2)], 7.0), layout="constrained")
    grid = figure.subplots(2, max(1, len(kinds)), squeeze=False, sharey="row")
    for column, kind in zip(grid.T, kinds, strict=False):
        curves = _curves(table[table["profile"] == kind], "resolution")
        batches = ", ".join(map(str, sorted(set(table[table["profile"] == kind]["batch_size"]))))
        for ax, draw in zip(column, (_speeds, _memories), strict=True):
            for curve in curves:
                draw(ax, curve)
            _log_axes(
                ax, sorted({int(x) for curve in curves for x in curve.profiles["resolution"]})
            )
        column[0].set_title(f"{kind}, batch {batches}")
        column[1].set_xlabel("pixels per side")
        column[1].legend(
            handles=[_handle(curve.name, curve.place) for curve in curves],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=2,
        )
    if not kinds:
        placeholder(grid[0][0], "no profile at several resolutions")
    for ax, label in zip(grid[:, 0], ("images/s", "peak memory (MiB)"), strict=True):
        ax.set_ylabel(label)
    return finish(
        figure,
        (
            f"Images/s: median over {_num_runs(results.study)} timed runs per profile. Thick: 95% "
            f"interval of the median. Thin: fewest to most.\nMemory: one pass.{_failed_note(table)}"
        ),
    )


def _over_batches(results: Results, draw: Any, label: str, note: str) -> Figure:
    """One panel per model and kind of profile, of those with several batches."""
    table = _of_several(_of_first_resolution(results.once(speeds)), "batch_size")
    shown = {
        title: arms
        for title, arms in panels(results.study).items()
        if table["arm"].isin(arms).any()
    }
    columns = max(1, columns_of(len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(WIDTHS[columns], 2.9 * rows + 1.0), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax in grid[max(1, len(shown)) :]:
        ax.remove()
    for ax, (title, arms) in zip(grid, shown.items(), strict=False):
        curves = _curves(table[table["arm"].isin(arms)], "batch_size")
        for curve in curves:
            draw(ax, curve)
        _log_axes(ax, sorted({int(x) for curve in curves for x in curve.profiles["batch_size"]}))
        pixels = ", ".join(
            map(str, sorted({int(x) for curve in curves for x in curve.profiles["resolution"]}))
        )
        ax.set_title(f"{title}, {pixels} pixels")
        ax.set(xlabel="batch", ylabel=label)
        ax.label_outer()
    if not shown:
        placeholder(grid[0], "no profile at several batches")
    layouts = [name for name in IN_WORDS if (table["layout"] == name).any()]
    handles = [_handle(IN_WORDS[name], index) for index, name in enumerate(layouts)]
    if len(layouts) > 1:
        legend_above(figure, handles)
    return finish(figure, note.format(n=_num_runs(results.study)) + _failed_note(table))


def _of_first_resolution(table: pd.DataFrame) -> pd.DataFrame:
    first = table.groupby("arm", sort=False)["resolution"].transform("first")
    return table[table["resolution"] == first]


def _of_two_layouts(table: pd.DataFrame) -> pd.DataFrame:
    """Profiles of models that are measured in both layouts."""
    layouts = table.groupby(["model", "profile"], sort=False)["layout"]
    return table[layouts.transform("nunique") == len(LAYOUTS)]


def _of_several(table: pd.DataFrame, axis: str, *given: str) -> pd.DataFrame:
    """Profiles of arms that were measured at several places of an axis, all else given."""
    return table[table.groupby(["arm", *given], sort=False)[axis].transform("nunique") > 1]


def _curves(table: pd.DataFrame, axis: str) -> list[Curve]:
    arms = dict.fromkeys(table["arm"])
    return [
        Curve(arm, axis, table[table["arm"] == arm].sort_values(axis), index)
        for index, arm in enumerate(arms)
    ]


def _speeds(ax: Axes, curve: Curve) -> None:
    """Median, interval and range of the runs of each profile, and a mark for those without."""
    places = curve.profiles[curve.axis].to_numpy(dtype=float)
    x = places * 2 ** (0.05 * curve.place)  # beside each other
    median, low, high = lines.ends(curve.profiles, "speed")
    fewest, most = (curve.profiles[f"speed{end}"].to_numpy(float) for end in ("_min", "_max"))
    look = lines.look(curve.place)
    (line,) = ax.plot(x, median, markersize=SIZE, zorder=3, **look)
    describe(line, _texts(curve))
    color = look["color"]
    ax.vlines(x, low, high, color=color, linewidth=3.2, alpha=0.55, zorder=2)
    ax.vlines(x, fewest, most, color=color, linewidth=1.0, zorder=2)
    _failed(ax, curve, places)


def _texts(curve: Curve) -> list[str]:
    """What each profile of a curve is."""
    return [f"{curve.name}: {curve.axis} {at}" for at in curve.profiles[curve.axis]]


def _memories(ax: Axes, curve: Curve) -> None:
    x = curve.profiles[curve.axis].to_numpy(dtype=float)
    memory = curve.profiles.get("peak_memory_mib", pd.Series(np.nan, curve.profiles.index))
    (line,) = ax.plot(x, memory, markersize=SIZE, **lines.look(curve.place))
    describe(line, _texts(curve))
    _failed(ax, curve, x)


def _failed_note(table: pd.DataFrame) -> str:
    """What the crosses are, where there are any."""
    return " × at the bottom: failed." if (table["status"] == "failed").any() else ""


def _failed(ax: Axes, curve: Curve, x: np.ndarray) -> None:
    failed = x[curve.profiles["status"] == "failed"]
    if not len(failed):  # a line of no point has no extent, which breaks the layout
        return
    y = np.full(len(failed), 0.03 + 0.04 * curve.place)
    color = lines.look(curve.place)["color"]
    ax.plot(
        failed, y, "x", color=color, markersize=6, transform=ax.get_xaxis_transform(), clip_on=False
    )


def _gain_panel(
    ax: Axes, kind: str, models: Sequence[str], table: pd.DataFrame, with_published: bool
) -> None:
    if with_published:
        _printed_gains(ax)
    ax.axhline(0, color=GREY, linewidth=0.8)
    for index, model in enumerate(models):
        gains = table[table["par_over_seq_pct"].notna() & (table["layout"] == "par")]
        gains = gains[gains["model"] == model].sort_values("batch_size")
        x = gains["batch_size"].to_numpy(dtype=float) * 2 ** (0.08 * index)  # beside each other
        estimate, low, high = lines.ends(gains, "par_over_seq_pct")
        look = lines.look(index)
        (line,) = ax.plot(x, estimate, markersize=SIZE, zorder=3, **look)
        describe(line, [f"{model}, {kind}, batch {batch}" for batch in gains["batch_size"]])
        ax.vlines(x, low, high, color=look["color"], linewidth=1.4, zorder=2)
    _log_axes(ax, sorted({int(batch) for batch in table["batch_size"]}), y=False)
    ax.set_title(kind)
    ax.set_xlabel("batch")


def _gain_axis(axes: Sequence[Axes], table: pd.DataFrame) -> bool:
    """A log axis of the ratio, labelled in percent, that spans the estimates; returns whether an
    interval leaves it, which an arrow marks.
    """
    of_par = table[table["layout"] == "par"]
    shown = of_par["par_over_seq_pct"].dropna()
    if shown.empty:
        return False
    margin = 1.6
    low = 100 * ((1 + min(shown.min(), 0) / 100) / margin - 1)
    high = 100 * ((1 + max(shown.max(), 0) / 100) * margin - 1)
    ticks = GAINS if high > 150 else SMALL_GAINS
    for ax in axes:
        ax.set_yscale("function", functions=(_log_ratio, _percent))
        ax.set_ylim(low, high)
        ax.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low < tick < high]))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:+g}" if y else "0"))
        ax.yaxis.set_minor_locator(NullLocator())
    return any([_arrows(ax, low, high) for ax in axes])


def _log_ratio(percent: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(1 + np.asarray(percent) / 100, 1e-9))


def _percent(log_ratio: np.ndarray) -> np.ndarray:
    return 100 * np.expm1(log_ratio)


def _arrows(ax: Axes, low: float, high: float) -> bool:
    """Marks where the intervals drawn so far leave the axes; returns whether any does."""
    left = False
    for bars in [drawn for drawn in ax.collections if isinstance(drawn, LineCollection)]:
        # an interval without ends (fewer than MIN_RUNS runs) is a segment without points
        for (x, start), (_, end) in (ends for ends in bars.get_segments() if len(ends)):
            for is_beyond, y, marker in ((start < low, low, "v"), (end > high, high, "^")):
                if is_beyond:
                    left = True
                    looks: dict[str, Any] = {"color": bars.get_edgecolor(), "clip_on": False}
                    ax.plot([x], [y], marker, markersize=6, zorder=6, **looks)
    return left


def _printed_gains(ax: Axes) -> None:
    for model, of_model in published_gains().groupby("model", sort=False):
        gains = of_model["gain_pct"]
        ax.plot(of_model["batch_size"], gains, color=published.GREY, linewidth=1.0, zorder=1.5)
        ax.annotate(
            str(model),
            (1, gains.iloc[0]),
            (-3, 4),
            textcoords="offset points",
            color=published.GREY,
            fontsize=7,
        )


def _log_axes(ax: Axes, places: Sequence[int], y: bool = True) -> None:
    """A log axis with a tick at each place; y as a number, not a power."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator([float(place) for place in places]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    if y:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        ax.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
        )
        ax.yaxis.set_minor_locator(NullLocator())


def _handle(label: str, index: int) -> Line2D:
    return lines.handle(label, lines.look(index), size=SIZE, width=1.8)


def _num_runs(study: Study) -> str:
    return ", ".join(
        map(str, sorted({getattr(trial.config, "timed_runs", 0) for trial in study.trials}))
    )
