"""The metric of each arm against its lr, on the set that chooses it and on the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.cells import cells
from vitscale.analysis.columns import named
from vitscale.analysis.displays import lines
from vitscale.analysis.questions.shapes import reported
from vitscale.analysis.report.layout import STYLE, finish, legend_above
from vitscale.analysis.report.tooltips import arm_texts
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import CHOOSES

MAX_COLUMNS = 7  # of small panels


def lr_sweep(results: Results) -> pd.DataFrame:
    """One row per shape and lr: numbers of runs by status, and means over finished runs with
    Student's 95% intervals.

    minival chooses the lr; values on other sets at other lr are shown for the shape of the curve.
    """
    metric, columns, rows = results.metric, estimates.evaluations(results.study), []
    for cell in results.once(cells).values():
        for lr in cell.lrs:
            runs = cell.every[cell.every["lr"] == lr]
            row = {"shape": cell.arm, "lr": lr, "chosen": lr == cell.lr, **estimates.counts(runs)}
            for name, column in columns.items():
                interval = estimates.value_interval(estimates.errors(runs, column), metric)
                row |= named(f"{name}_mean", interval)
            rows.append(row)
    return pd.DataFrame(rows)


@matplotlib.rc_context(STYLE)
def lr_sweep_figure(results: Results) -> Figure:
    """The metric against lr for each shape: on minival, which chooses the lr, and on the first
    reported set.

    Means over the seeds that finished, with Student's 95% interval where there are several; a ring
    at the lr chosen.
    """
    table = results.once(lr_sweep)
    names = [name for name in estimates.evaluations(results.study) if name == CHOOSES]
    names.append(next(iter(reported(results.study))))
    arms = list(dict.fromkeys(table["shape"]))
    rows = -(-len(arms) // MAX_COLUMNS)
    columns = -(-len(arms) // rows)
    figure = Figure(figsize=(11.0, 1.9 * rows + 1.1), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for ax, arm in zip(grid.flat, arms, strict=False):
        _panel(ax, table[table["shape"] == arm], arm, names, results.once(arm_texts)[arm])
    top = np.nanmax([0.0, *(table[f"{name}_mean"].max() for name in names)])
    grid[0, 0].set_ylim(0, 1.2 * top or 100)
    for ax in grid.flat[len(arms) :]:
        ax.remove()
    for index in range(columns):
        lowest = grid.flat[[i for i in range(len(arms)) if i % columns == index][-1]]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel("lr", fontsize=8.5)
    for line in grid:
        line[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})", fontsize=8.5)
    labels = [f"{name}, which chooses" if name == CHOOSES else name for name in names]
    looks = map(lines.look, range(len(names)))
    handles = [lines.handle(*entry, size=4, width=1.3) for entry in zip(labels, looks, strict=True)]
    legend_above(figure, handles)
    marks = (
        "\n× at the top: how many runs of an lr diverged; in the choice each counts as the worst."
    )
    return finish(
        figure,
        "Whiskers, cut at the frame: 95% intervals of means over the seeds that finished (n: "
        "fewest to most at an lr). Ring: the lr chosen by minival."
        + (marks if table["diverged"].any() else ""),
    )


def _panel(ax: Axes, table: pd.DataFrame, arm: str, names: Sequence[str], text: str) -> None:
    x = np.log2(table["lr"].to_numpy(dtype=float))
    sizes = list(zip(table["lr"], table["finished"], strict=True))
    chosen = table["chosen"].to_numpy(dtype=bool)
    for index, name in enumerate(names):
        ends = lines.ends(table, f"{name}_mean")
        places = x + lines.aside(index, len(names), 0.08)
        texts = [f"{text}\nlr {lr:g}, {name}: {n} finished" for lr, n in sizes]
        look = lines.look(index)
        lines.Line(x=places, ends=ends, texts=texts, look=look).draw(ax, size=4, width=1.3)
        ring: dict[str, Any] = {"color": "black", "markerfacecolor": "none", "zorder": 6}
        ax.plot(places[chosen], ends[0][chosen], "o", markersize=9, **ring)
    for place, diverged in zip(x, table["diverged"], strict=True):
        if diverged:
            lines.cross(ax, place, 0, "black", str(diverged))
    numbers = sorted({int(table["finished"].min()), int(table["finished"].max())})
    ax.set_title(f"{arm}\nn={' to '.join(map(str, numbers))}", fontsize=8)
    lines.doublings(ax, table["lr"], "", 0.35)
    ax.tick_params(labelsize=7.5)
