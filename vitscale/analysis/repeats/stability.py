"""Stability of optimizers and of training length (Xiao et al. 2021, Figures 3 and 2).

A cell is a model, an optimizer and a number of epochs. Each cell is one arm with a full schedule,
trained with one or several seeds. The arms' factors name the model; optimizer and epochs are those
of the config.

Assumptions: runs of a cell differ only in their seed, and means over seeds are nearly normal. Means
are over finished runs, so they are conditional on finishing. Tables also state how many runs
diverged, and compare arms with such runs as the worst (divergence.py). lr and wd are fixed: whether
other values would close a gap is another question.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pandas as pd

from vitscale.analysis.comparisons import Layout, Row, difference, table_of
from vitscale.analysis.repeats import estimates
from vitscale.analysis.repeats.estimates import Contrast
from vitscale.analysis.results import Results, panels
from vitscale.plan.study import Study

DIVERGED = ("shown", "copied")  # what a cell does in which every run diverged
Cell = tuple[str, str, int]  # model, optimizer, epochs


def cells(results: Results) -> dict[Cell, pd.DataFrame]:
    """Every planned run by model, optimizer and epochs, in the order of the plan; shorter schedules
    first.
    """
    table = estimates.labelled(results.study, results.trials).astype(
        {"model": str, "optimizer": str, "epochs": int}
    )
    found = {
        cast(Cell, key): runs
        for key, runs in table.groupby(["model", "optimizer", "epochs"], sort=False)
    }
    return dict(sorted(found.items(), key=lambda item: item[0][2]))


def copied_from(groups: dict[Cell, pd.DataFrame], cell: Cell) -> Cell:
    """The cell whose runs replace those of this one by the rule of Xiao et al. 2021, Figure 3;
    usually the cell itself.

    Where every run diverged, it is the shorter schedule of the same model and optimizer with the
    lowest mean error. Such a value was never measured, and makes a gap look smaller than a failure
    is.
    """
    model, optimizer, epochs = cell
    if not (groups[cell]["status"] == "diverged").all():
        return cell
    shorter = [
        key
        for key, runs in groups.items()
        if key[:2] == (model, optimizer) and key[2] < epochs and len(estimates.errors(runs))
    ]
    return min(shorter, key=lambda key: estimates.errors(groups[key]).mean(), default=cell)


def stability_cells(results: Results) -> pd.DataFrame:
    """One row per model, optimizer and number of epochs: how its runs ended, and the mean of
    the metric over those that finished.

    Student's interval over seeds, from the spread of this cell alone; none for a single run.
    """
    rows = []
    for (model, optimizer, epochs), runs in results.once(cells).items():
        values = estimates.errors(runs)
        mean, low, high = estimates.value_interval(values, results.metric)
        rows.append(
            {
                "model": model,
                "optimizer": optimizer,
                "epochs": epochs,
                "planned": len(runs),
                **estimates.counts(runs),
                "mean_error_pct": mean,
                "mean_error_pct_low": low,
                "mean_error_pct_high": high,
                "sd_points": estimates.sd_interval(values)[0],
            }
        )
    return pd.DataFrame(rows)


GAP = Layout(("model", "epochs"), "gap", ("_sgd", "_adamw"), has_ranks=True)
LENGTH = Layout(
    ("model", "optimizer", "optimizer_rule", "epochs", "longest_epochs"),
    "delta",
    ("", "_longest"),
    has_ranks=True,
)
INTERACTION = Layout(("a", "b", "epochs"), "interaction")


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


def optimizer_gap_copied(results: Results) -> pd.DataFrame:
    """The gaps by the rule of Xiao et al. 2021: a cell whose runs all diverged has the values of
    the best shorter schedule of the same model and optimizer.

    `copied` says which; those were not measured at that length, so such a gap has no
    interval and no p.
    """
    groups = results.once(cells)
    cell_of = {str(runs["arm"].iloc[0]): cell for cell, runs in groups.items()}
    copied: list[str] = []

    def change(row: Row) -> Row:
        planned = [cell_of[arm] for arm in row.comparison.weights]
        used = [copied_from(groups, cell) for cell in planned]
        copies = [
            f"{cell[1]} from {cell[2]} epochs"
            for cell, plan in zip(used, planned, strict=True)
            if cell != plan
        ]
        copied.append(", ".join(copies) or "–")
        if not copies:
            return row
        runs = tuple(groups[cell] for cell in used)
        result = difference(runs, row.comparison, ["error_pct"])
        if not np.isnan(result.estimate):
            result = Contrast(result.estimate, method="copied from shorter runs: no interval")
        return replace(row, runs=runs, result=result)

    return table_of(results, "optimizer_gap_copied", GAP, change).assign(copied=copied)


def planned_optimizer(groups: dict[Cell, pd.DataFrame], model: str) -> str:
    """The optimizer of a model's curve of training length: the first of the plan."""
    return next(optimizer for name, optimizer, _ in groups if name == model)


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


def members(study: Study, groups: dict[Cell, pd.DataFrame]) -> dict[str, list[str]]:
    """Title of a panel -> its models, in the order of its arms."""
    model_of = {
        str(arm): model for (model, _, _), runs in groups.items() for arm in runs["arm"].unique()
    }
    return {
        title: list(dict.fromkeys(model_of[arm] for arm in arms))
        for title, arms in panels(study).items()
    }


def optimizer_gap_interaction(results: Results) -> pd.DataFrame:
    """One row per pair of models of a panel and number of epochs: gap of a minus gap of b, in
    points.

    The gap is the mean with SGD minus the mean with AdamW; positive means that SGD costs a more
    than b. Over finished runs; Welch's t with Satterthwaite's df. `interaction_p_holm` is corrected
    for the number of rows. Gaps are differences: a model with low values has little room for a gap.
    """
    return table_of(results, "optimizer_gap_interaction", INTERACTION)


def training_length_interaction(results: Results) -> pd.DataFrame:
    """One row per pair of models of a panel and schedule: cost of the shorter schedule for a minus
    that for b.

    The cost is the metric above that of the model's longest schedule; positive means that a loses
    more. Statistics as in optimizer_gap_interaction. The rows of a pair share the longest runs, so
    they are correlated.
    """
    return table_of(results, "training_length_interaction", INTERACTION)
