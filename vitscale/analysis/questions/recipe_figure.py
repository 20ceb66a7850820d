"""Architectures under each recipe as lines (H. Touvron's thesis, 2022, section 6.3.4)."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitscale.analysis import estimates
from vitscale.analysis.columns import interval_of
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions.recipes import (
    cells,
    rank_agreement,
    recipe_cells,
    recipe_interaction,
    tau_in_words,
)
from vitscale.analysis.report.layout import STYLE, finish, legend_above, rows_of_axes, share_y
from vitscale.analysis.report.tooltips import text_of_arms
from vitscale.analysis.results import Results
from vitscale.plan.metrics import Metric


@matplotlib.rc_context(STYLE)
def recipe_interaction_figure(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, section 6.3.4: the metric of architectures under each recipe, a
    panel per evaluation set.

    Means over the seeds that finished with Student's 95% interval. Lines that are not parallel are
    an interaction; lines that cross are a change of winner, if both differences are shown. Of more
    than two architectures the titles have Kendall's tau of their rankings.
    """
    groups, columns = results.once(cells), estimates.evaluations(results.study)
    architectures, recipes = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    table = results.once(recipe_interaction)
    figure, ((*grid,),) = rows_of_axes(1, len(columns), 3.4)
    for ax, (name, column) in zip(grid, columns.items(), strict=True):
        for index, architecture in enumerate(architectures):
            keys = [(architecture, r) for r in recipes if (architecture, r) in groups]
            beside = lines.aside(index, len(architectures), 0.08)
            x = np.array([recipes.index(recipe) for _, recipe in keys]) + beside
            _curve(results, keys, x, name, column, index).draw(ax)
        # as many ticks at any height, or the layout would not settle
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.set_xticks(range(len(recipes)), recipes)
        ax.set_xlim(-0.5, len(recipes) - 0.5)
    share_y(grid)
    drawn, several = False, len(architectures) > 2
    ranks = results.once(rank_agreement).to_dict("records") if several else []
    for ax, name in zip(grid, columns, strict=True):
        crossed = table[(table["kind"] == "interaction") & (table["evaluation"] == name)]
        said = [_label(row, results.metric) for _, row in crossed.iterrows()]
        if several:
            said = [tau_in_words(row) for row in ranks if row["evaluation"] == name]
        elif results.study.published:  # of two architectures
            drawn |= published.draw_published_recipe_interaction(ax, results, name)
        ax.set_title("\n".join([f"{results.metric.label} on {name}", *said]), fontsize=9)
    grid[0].set_ylabel(f"{results.metric.label} ({results.metric.unit})")
    handles = []
    for index, architecture in enumerate(architectures):
        runs = pd.concat([group for (name, _), group in groups.items() if name == architecture])
        label = f"{architecture}\n{estimates.describe(runs)}"
        handles.append(lines.handle(label, lines.look(index)))
    legend_above(figure, handles)
    return finish(
        figure,
        "Dots, beside the means: seeds. Whiskers: 95% intervals of the means. n counts the runs of "
        "both recipes." + published.note(results.study, "recipe_interaction", drawn),
    )


def _curve(
    results: Results,
    keys: list[tuple[str, str]],
    x: np.ndarray,
    name: str,
    column: str,
    index: int,
) -> lines.Line:
    """An architecture under each of its recipes, at x, on one evaluation set."""
    groups, means = results.once(cells), results.once(recipe_cells)
    of_set = means[means["evaluation"] == name].set_index(["architecture", "recipe"]).loc[keys]
    runs = [groups[key] for key in keys]
    return lines.Line(
        x=x,
        ends=lines.ends(of_set, "mean"),
        texts=[text_of_arms(results, cell["arm"]) for cell in runs],
        look=lines.look(index),
        runs=lines.runs_of(results, runs, column),
        runs_aside=0.03 * (1 if index else -1),
    )


def _label(row: pd.Series, metric: Metric) -> str:
    point, low, high = interval_of(row, "difference")
    return (
        f"interaction {metric.number(point, 2)} [{metric.number(low, 2)}, "
        f"{metric.number(high, 2)}] "
        f"{metric.difference_unit}"
        if np.isfinite(low)
        else f"interaction: {row['method']}"
    )
