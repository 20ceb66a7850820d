"""Figures of comparisons and factorials, for arms of any kind; nothing is computed here."""

from __future__ import annotations

import itertools
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vitscale.analysis.comparisons import (
    ALPHA,
    VERDICTS,
    factorial_effects,
    factorial_means,
    pair_differences,
)
from vitscale.analysis.report.layout import (
    COLORS,
    STYLE,
    axis_label,
    columns_of,
    finish,
    placeholder,
)
from vitscale.analysis.report.tooltips import describe
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import varied

ROW, CHARACTER = 0.3, 0.085  # inches of a comparison, and of a character of its label
SHOWN, SAME, OPEN = COLORS[1], COLORS[2], COLORS[0]
FOREST = {of.__name__: of for of in (pair_differences, factorial_effects)}


@matplotlib.rc_context(STYLE)
def comparison_forest(results: Results) -> Figure:
    """Every comparison of pair_differences or factorial_effects with its 95% interval, a panel per
    evaluation set.

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
    for ax, name in itertools.zip_longest(grid, sets):
        if name is None:
            placeholder(ax, "no pairs")
            continue
        _forest(ax, table[table["evaluation"] == name], results)
        ax.set_title(f"{metric.label} on {name}")
        ax.set_xlabel(f"difference ({metric.difference_unit})")
    shaded = same = ""
    if study.margin is not None:
        shaded = f" Shaded: {metric.apart(study.margin)} to either side."
        same = " or equivalent (green)"
    note = f"95% intervals, not corrected.{shaded} Filled: shown after Holm (orange){same}; hollow:"
    return finish(figure, f"{note} undecided.")


def _label(row: Any) -> str:
    return str(row["effect"]) if isinstance(row.get("effect"), str) else f"{row['a']} − {row['b']}"


def _forest(ax: Axes, table: pd.DataFrame, results: Results) -> None:
    if results.study.margin is not None:
        ax.axvspan(-results.study.margin, results.study.margin, color="#eeeeee", zorder=0)
    ax.axvline(0, color="#999999", linewidth=0.8)
    labels = []
    for y, (_, row) in enumerate(table.iterrows()):
        point, low, high = (row[f"difference_points{end}"] for end in ("", "_low", "_high"))
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


@matplotlib.rc_context(STYLE)
def factorial_grid(results: Results) -> Figure:
    """The mean of the metric of each arm of a factorial as a heat map of its first two factors, a
    panel for each combination of the others.

    Numbers: the mean, and how many runs diverged if any did.
    """
    table, levels = results.once(factorial_means), varied(results.study)
    rows, columns, *others = [*levels, *[""] * max(0, 2 - len(levels))]
    panels = list(itertools.product(*(levels[name] for name in others)))
    wide = columns_of(len(panels))
    lines = -(-len(panels) // wide)
    size = (max(len(levels.get(columns, [0])) * 1.1 * wide + 2.2, 4.5), 2.2 + 1.6 * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(lines, wide, squeeze=False).flat)
    values = table["mean_error_pct"].to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    ends = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    image = None
    for ax, panel in itertools.zip_longest(grid, panels):
        if panel is None:
            ax.remove()
            continue
        of = table[(table[others] == list(panel)).all(axis=1)] if others else table
        image = _heat(ax, of, results, (rows, columns), ends)
        ax.set_title(", ".join(f"{n}={v}" for n, v in zip(others, panel, strict=True)))
    if image is not None:
        figure.colorbar(image, ax=grid[: len(panels)], label=axis_label(results.study), shrink=0.8)
    return finish(figure, "Means over the runs that finished; d: how many diverged.")


def _heat(
    ax: Axes, table: pd.DataFrame, results: Results, names: tuple[str, str], ends: tuple[float, ...]
) -> Any:
    levels = varied(results.study)
    y, x = levels[names[0]], levels.get(names[1], [""])
    cells = np.full((len(y), len(x)), np.nan)
    for _, row in table.iterrows():
        i, j = y.index(row[names[0]]), x.index(row[names[1]]) if names[1] else 0
        cells[i, j] = row["mean_error_pct"]
        dark = np.isfinite(cells[i, j]) and cells[i, j] > (ends[0] + ends[1]) / 2
        lost = f"\n{row['diverged']} d" if row["diverged"] else ""
        text = f"{results.metric.number(row['mean_error_pct'])}{lost}"
        ax.text(j, i, text, ha="center", va="center", color="white" if dark else "black")
    image = ax.imshow(cells, cmap="Blues", vmin=ends[0], vmax=ends[1], aspect="auto")
    ax.set_xticks(range(len(x)), [str(value) for value in x])
    ax.set_yticks(range(len(y)), [str(value) for value in y])
    ax.set(xlabel=names[1], ylabel=names[0])
    ax.grid(visible=False)
    return image
