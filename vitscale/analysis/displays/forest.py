"""Every comparison with its interval, for arms of any kind; nothing is computed here."""

from __future__ import annotations

import itertools
import re
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vitscale.analysis import estimates
from vitscale.analysis.cells import cells
from vitscale.analysis.columns import interval_of
from vitscale.analysis.comparisons import (
    ALPHA,
    VERDICTS,
    factorial_effects,
    main_effects,
    pair_differences,
)
from vitscale.analysis.published import figures as published
from vitscale.analysis.report.layout import (
    COLORS,
    GREY,
    STYLE,
    finish,
    placeholder,
)
from vitscale.analysis.report.tooltips import describe
from vitscale.analysis.results import Results

ROW, CHARACTER = 0.3, 0.085  # inches of a comparison, and of a character of its label
SHOWN, SAME, OPEN = COLORS[1], COLORS[2], COLORS[0]
FOREST = {table.__name__: table for table in (pair_differences, factorial_effects, main_effects)}


@matplotlib.rc_context(STYLE)
def comparison_forest(results: Results) -> Figure:
    """Every comparison of pair_differences, factorial_effects or main_effects with its 95%
    interval, a panel per evaluation set.

    Filled: the difference is shown, or the arms are equivalent within the study's margin, which is
    shaded; hollow: undecided. Zero is no difference.
    """
    study, metric = results.study, results.metric
    names = [name for name in FOREST if name in study.tables] or ["pair_differences"]
    table = pd.concat([results.once(FOREST[name]) for name in names], ignore_index=True)
    sets = list(dict.fromkeys(table["evaluation"]))
    rows = max((int((table["evaluation"] == name).sum()) for name in sets), default=1)
    num = max(len(sets), 1)
    wide = max(map(len, map(_label, table.to_dict("records"))), default=0)
    size = (1.0 + CHARACTER * wide + 3.4 * num, 1.5 + ROW * rows)
    # labels take up to 2% more room at another resolution than that of the layout
    engine = ConstrainedLayoutEngine(w_pad=0.04 + 0.002 * wide)
    figure = Figure(figsize=size, layout=engine)
    grid = figure.subplots(1, num, squeeze=False, sharey=True)[0]
    drawn = False
    for ax, name in itertools.zip_longest(grid, sets):
        if name is None:
            placeholder(ax, "no pairs")
            continue
        _forest(ax, table[table["evaluation"] == name], results)
        drawn |= published.draw_printed_pairs(ax, study, table[table["evaluation"] == name])
        ax.set_title(f"{metric.label} on {name}")
        ax.set_xlabel(f"difference ({metric.difference_unit})")
    shaded = same = ""
    if study.margin is not None:
        shaded = f" Shaded: {metric.apart(study.margin)} to either side."
        same = " or equivalent (green)"
    finished = {estimates.counts(cell.runs)["finished"] for cell in results.once(cells).values()}
    n = " to ".join(map(str, sorted({min(finished), max(finished)})))
    note = f"n = {n} runs of an arm. 95% intervals, not corrected.{shaded} Filled: shown after Holm"
    note += f" (orange){same}; hollow: undecided."
    return finish(figure, note + published.printed_note(study, "diamonds") * drawn)


def _label(row: Any) -> str:
    if isinstance(row.get("effect"), str):  # with the values of a factor
        return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.3g}", row["effect"])
    return f"{row['a']} − {row['b']}"


def _forest(ax: Axes, table: pd.DataFrame, results: Results) -> None:
    if results.study.margin is not None:
        ax.axvspan(-results.study.margin, results.study.margin, color="#eeeeee", zorder=0)
    ax.axvline(0, color=GREY, linewidth=0.8)
    labels = []
    for y, (_, row) in enumerate(table.iterrows()):
        point, low, high = interval_of(row, "difference")
        label = _label(row)
        labels.append(label)
        color = SHOWN if row["difference_p_holm"] < ALPHA else OPEN
        color = SAME if row.get("verdict") == VERDICTS[1] else color
        if np.isfinite(low):
            ax.plot([low, high], [y, y], color=color, linewidth=1.4)
        face: Any = "white" if color == OPEN else color
        if np.isfinite(point):
            (mark,) = ax.plot(point, y, "o", color=color, markerfacecolor=face, markersize=6)
            describe(mark, f"{label}: {point:.3g} [{low:.3g}, {high:.3g}]")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
