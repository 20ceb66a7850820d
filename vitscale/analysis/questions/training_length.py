"""What a shorter schedule costs a model (Xiao et al. 2021, Figure 2)."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis.comparisons import ALPHA, Layout, table_of
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions import stability
from vitscale.analysis.questions.stability import (
    INTERACTION,
    OPTIMIZERS,
    between_models,
    by_model,
    cells,
    rank_sentences,
)
from vitscale.analysis.report.layout import (
    GREY,
    MARKERS,
    STYLE,
    finish,
    legends_below,
    metric_label,
    num_columns,
    panel_grid,
)
from vitscale.analysis.results import Results

LENGTH = Layout(
    ("model", "optimizer", "optimizer_rule", "epochs", "longest_epochs"),
    "delta",
    ("", "_longest"),
    has_ranks=True,
)


def training_length(results: Results) -> pd.DataFrame:
    """One row per model and schedule: mean of the metric minus that of the model's longest
    schedule.

    Positive: the shorter schedule is worse. Each length is a full schedule, not a checkpoint of the
    longest. With the model's first optimizer of the plan. Over finished runs, by Welch's t. All
    deltas of a model share its longest runs, so they are correlated. `prob_worse` is how often a
    run of this length is worse than one of the longest, where diverged runs are the worst and ties
    count one half; `rank_p` is that of Mann and Whitney, `diverged_p` that of Fisher for the
    numbers of runs that diverged or failed, where there are any. Each `_holm` is corrected for the
    number of rows, that of `diverged_p` for the rows that have it.
    """
    return table_of(results, "training_length", LENGTH)


def training_length_interaction(results: Results) -> pd.DataFrame:
    """One row per pair of models of a panel and schedule: cost of the shorter schedule for a minus
    that for b.

    The cost is the metric above that of the model's longest schedule; positive means that a loses
    more. Statistics as in optimizer_gap_interaction. The rows of a pair share the longest runs, so
    they are correlated.
    """
    return table_of(results, "training_length_interaction", INTERACTION)


@matplotlib.rc_context(STYLE)
def training_length_figure(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 2: the metric of each schedule above that of the model's longest, a
    panel per group.

    Differences of means over the seeds that finished, with the 95% interval of the table
    training_length.
    """
    groups, table = results.once(cells), results.once(training_length)
    members = stability.members(results.study, groups)
    figure, grid = panel_grid(results.study, height=2.75)
    drawn, legends = False, []
    for ax, (title, models) in zip(grid, members.items(), strict=True):
        handles = []
        for index, model in enumerate(models):
            look = lines.look(index, dashed=False)
            _curve(ax, table[table["model"] == model], look, lines.aside(index, len(models), 0.07))
            optimizer = next(opt for name, opt, _ in groups if name == model)  # the first planned
            name = f"{model} {OPTIMIZERS.get(optimizer, (optimizer, ''))[0]}"
            population = stability.population(groups, (model, optimizer))
            handles.append(lines.handle(f"{name}\n{population}", look))
        ax.axhline(0, color=GREY, linewidth=0.8)
        lengths = sorted({epochs for model, _, epochs in groups if model in models})
        lines.doublings(ax, lengths, "epochs")
        if results.study.published:
            drawn |= published.draw_published_training_length(ax, models, lengths, MARKERS)
        ax.set_title(title)
        legends.append(handles)
    legends_below(grid, legends)
    for ax in grid[:: num_columns(results.study)]:
        ax.set_ylabel(
            f"{metric_label(results.study)} above\nthat of the longest "
            f"({results.metric.difference_unit})"
        )
    return finish(
        figure,
        "Each length is a schedule of its own. Whiskers: 95% intervals over seeds;\n"
        "all points of a model share its longest runs and err together."
        + published.note(results.study, "training_length", drawn),
    )


def _curve(ax: Axes, table: pd.DataFrame, look: dict[str, Any], beside: float) -> None:
    """The differences of a model, and 0 at its longest schedule."""
    if table.empty:
        return
    model, longest = table["model"].iloc[0], table["longest_epochs"].iloc[0]
    y, low, high = (np.append(column, np.nan) for column in lines.ends(table, "delta"))
    if np.isfinite(y).any():
        y[-1] = 0.0
    texts = [f"{model}: {epochs} instead of {longest} epochs" for epochs in table["epochs"]]
    lines.Line(
        x=np.log2(np.append(table["epochs"], longest).astype(float)) + beside,
        ends=(y, low, high),
        texts=[*texts, f"{model}: {longest} epochs, the longest"],
        look=look,
    ).draw(ax, size=5)


def length_sentences(results: Results) -> list[str]:
    """What shorter schedules cost, model by model where these are few."""
    table = results.once(training_length)
    shown = int(((table["delta_p_holm"] < ALPHA) & (table["delta"] > 0)).sum())
    first = (
        f"A shorter schedule is shown to be worse than the longest in {shown} of {len(table)} "
        "pairs (Holm, 5%)."
    )
    above = f"{results.metric.label} above that of the longest schedule"
    ranks = rank_sentences(table, "the shorter schedule", "the longest")
    return [first, *by_model(table, "delta", above, results.metric), *ranks]


def length_between_models(results: Results) -> list[str]:
    """Whether a short schedule costs one model more than another."""
    return between_models(
        results.once(training_length_interaction),
        f"{results.metric.label} above that of the longest schedule",
        results.metric,
    )


ANSWERS = {
    "training_length": length_sentences,
    "training_length_interaction": length_between_models,
}
