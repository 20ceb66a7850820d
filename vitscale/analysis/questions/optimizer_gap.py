"""What SGD costs against AdamW, by model and length of training (Xiao et al. 2021, Figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitscale.analysis.comparisons import ALPHA, Layout, table_of
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions import stability
from vitscale.analysis.questions.stability import (
    INTERACTION,
    OPTIMIZERS,
    Cell,
    Groups,
    between_models,
    by_model,
    cells,
    rank_sentences,
)
from vitscale.analysis.report.layout import (
    STYLE,
    axis_label,
    finish,
    legends_below,
    num_columns,
    panel_grid,
)
from vitscale.analysis.report.tooltips import text_of_arms
from vitscale.analysis.results import Results

GAP = Layout(("model", "epochs"), "gap", ("_sgd", "_adamw"), has_ranks=True)
LINES = {"sgd": ":"}  # of an optimizer, where it is not solid; dashed is a copy


def optimizer_gap(results: Results) -> pd.DataFrame:
    """One row per model and number of epochs: mean of the metric with SGD minus mean with AdamW.

    Positive favours AdamW. Over finished runs, by Welch's t; p tests a gap of 0. The numbers of
    diverged runs are in columns of their own. `prob_worse` is how often a run with SGD is worse
    than one with AdamW, where diverged runs are the worst and ties count one half; `rank_p` is that
    of Mann and Whitney, `diverged_p` that of Fisher for the numbers of runs that diverged or
    failed, where there are any. Each `_holm` is corrected for the number of rows, that of
    `diverged_p` for the rows that have it.
    """
    return table_of(results, "optimizer_gap", GAP)


def optimizer_gap_interaction(results: Results) -> pd.DataFrame:
    """One row per pair of models of a panel and number of epochs: gap of a minus gap of b, in
    points.

    The gap is the mean with SGD minus the mean with AdamW; positive means that SGD costs a more
    than b. Over finished runs; Welch's t with Satterthwaite's df. `interaction_p_holm` is corrected
    for the number of rows. Gaps are differences: a model with low values has little room for a gap.
    """
    return table_of(results, "optimizer_gap_interaction", INTERACTION)


@matplotlib.rc_context(STYLE)
def optimizer_stability(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 3: the mean of the metric against the length of training, with AdamW
    and SGD, a panel per group.

    Means over the seeds that finished, with Student's 95% interval where there are several. Where
    every run of a cell diverged there is no value and the line is broken.
    """
    return draw_optimizers(results)


def draw_optimizers(results: Results, rule: Callable[[Groups, Cell], Cell] | None = None) -> Figure:
    """The figure, with the values of the cells that `rule` puts in the place of a cell."""
    groups = results.once(cells)
    members = stability.members(results.study, groups)
    pairs = {
        title: sorted(
            dict.fromkeys(cell[:2] for cell in groups if cell[0] in models),
            key=lambda pair: (models.index(pair[0]), pair[1]),
        )
        for title, models in members.items()
    }
    figure, grid = panel_grid(results.study, height=3.0)
    drawn, rows, legends = False, 0, []
    for ax, (title, keys) in zip(grid, pairs.items(), strict=True):
        models, marked = members[title], 0
        handles = []
        for place, key in enumerate(keys):
            beside, look = lines.aside(place, len(keys), 0.07), _look(key, models)
            x = _curve(ax, results, key, look, beside, rule)
            runs = [groups[cell] for cell in stability.lengths_of(groups, key)]
            marked += lines.crosses(ax, x, runs, marked, look["color"])
            name = f"{key[0]} {OPTIMIZERS.get(key[1], key[1:])[0]}"
            handles.append(lines.handle(f"{name}\n{stability.population(groups, key)}", look))
        rows = max(rows, marked)
        lengths = {epochs for model, _, epochs in groups if model in models}
        lines.doublings(ax, lengths, "epochs")
        if results.study.published:
            drawn |= published.draw_published_optimizer_stability(
                ax, models, is_last=ax is grid[-1]
            )
        ax.set_title(title)
        legends.append(handles)
    legends_below(grid, legends)
    for ax in grid[:: num_columns(results.study)]:
        ax.set_ylabel(axis_label(results.study))
        # as many ticks at any height, or the layout would not settle
        ax.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    lines.make_room(grid, rows)
    marks = "× above the line at the top, without a value: how many of the runs diverged."
    copied = " Hollow and dashed: all diverged, copied from the best shorter schedule."
    return finish(
        figure,
        "Means of finished runs with 95% intervals over seeds, moved sideways to be told apart.\n"
        f"{marks if rows else 'No run diverged.'}{copied if rule else ''}"
        + published.note(results.study, "optimizer_stability", drawn),
    )


def _look(key: tuple[str, str], models: Sequence[str]) -> dict[str, str]:
    index = models.index(key[0])
    marker = OPTIMIZERS.get(key[1], (key[1], "o"))[1]
    return {**lines.look(index, marker=marker), "linestyle": LINES.get(key[1], "-")}


def _curve(
    ax: Axes,
    results: Results,
    key: tuple[str, str],
    look: dict[str, str],
    beside: float,
    rule: Callable[[Groups, Cell], Cell] | None,
) -> np.ndarray:
    """One model with one optimizer; returns its x, the base-2 logarithm of epochs."""
    groups = results.once(cells)
    lengths = stability.lengths_of(groups, key)
    used = [rule(groups, cell) if rule else cell for cell in lengths]
    table = results.once(stability.stability_cells).set_index(["model", "optimizer", "epochs"])
    x = np.log2([cell[2] for cell in lengths]) + beside
    ends = lines.ends(table.loc[list(used)], "mean")
    copies = np.array([a != b for a, b in zip(lengths, used, strict=True)])
    texts = [text_of_arms(results, groups[cell]["arm"]) for cell in lengths]
    lines.Line(x=x, ends=ends, texts=texts, look=look, hollow=copies).draw(ax, joined=False)
    for i in range(len(x) - 1):
        dashes = "--" if copies[i + 1] else look["linestyle"]
        part = slice(i, i + 2)
        ax.plot(x[part], ends[0][part], dashes, color=look["color"], linewidth=1.5, zorder=3)
    return x


def gap_sentences(results: Results) -> list[str]:
    """How often a gap is shown and how many runs diverged; then
    the gaps, model by model where these are few.
    """
    table = results.once(optimizer_gap)
    shown, tested = table["gap_p_holm"] < ALPHA, int(table["gap_p"].notna().sum())
    worse, better = (int((shown & sign).sum()) for sign in (table["gap"] > 0, table["gap"] < 0))
    ended = ", ".join(
        f"{table[f'diverged_{name}'].sum()} with {OPTIMIZERS[name][0]}" for name in ("sgd", "adamw")
    )
    first = (
        f"SGD against AdamW, {len(table)} pairs of a model and a length: SGD has the higher "
        f"{results.metric.label} "
        f"in {worse}, the lower in {better} (p after Holm below 5%), no difference shown in "
        f"{tested - worse - better}, no interval in {len(table) - tested}. Diverged runs: {ended}."
    )
    return [
        first,
        *by_model(table, "gap", "SGD minus AdamW", results.metric),
        *rank_sentences(table, "SGD", "AdamW"),
    ]


def gap_between_models(results: Results) -> list[str]:
    """Whether SGD costs one model more than another."""
    table = results.once(optimizer_gap_interaction)
    return between_models(table, "SGD minus AdamW", results.metric)


ANSWERS = {"optimizer_gap": gap_sentences, "optimizer_gap_interaction": gap_between_models}
