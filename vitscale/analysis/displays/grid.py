"""Means of the arms of a factorial as heat maps; nothing is computed here."""

from __future__ import annotations

import itertools
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis.comparisons import factorial_means
from vitscale.analysis.report.layout import STYLE, axis_label, columns_of, finish
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import varied


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
    values = table["mean"].to_numpy(dtype=float)
    finite = values[np.isfinite(values)]
    ends = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    image = None
    for ax, panel in itertools.zip_longest(grid, panels):
        if panel is None:
            ax.remove()
            continue
        shown = table[(table[others] == list(panel)).all(axis=1)] if others else table
        image = _heat(ax, shown, results, (rows, columns), ends)
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
        cells[i, j] = row["mean"]
        dark = np.isfinite(cells[i, j]) and cells[i, j] > (ends[0] + ends[1]) / 2
        lost = f"\n{row['diverged']} d" if row["diverged"] else ""
        text = f"{results.metric.number(row['mean'])}{lost}"
        ax.text(j, i, text, ha="center", va="center", color="white" if dark else "black")
    image = ax.imshow(cells, cmap="Blues", vmin=ends[0], vmax=ends[1], aspect="auto")
    ax.set_xticks(range(len(x)), [str(value) for value in x])
    ax.set_yticks(range(len(y)), [str(value) for value in y])
    ax.set(xlabel=names[1], ylabel=names[0])
    ax.grid(visible=False)
    return image
