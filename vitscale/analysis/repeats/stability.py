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

from collections.abc import Callable
from itertools import combinations
from typing import cast

import numpy as np
import pandas as pd

from vitscale.analysis.repeats import divergence, estimates
from vitscale.analysis.repeats.estimates import Contrast
from vitscale.analysis.results import Results, panels
from vitscale.plan.study import Study

DIVERGED = ("shown", "copied")  # what a cell does in which every run diverged
Cell = tuple[str, str, int]  # model, optimizer, epochs
RANKS = ("prob_worse", "rank_p", "diverged_p")  # of the first of two arms, of divergence.py
GAP_COLUMNS = (
    "model",
    "epochs",
    "n_sgd",
    "n_adamw",
    "diverged_sgd",
    "diverged_adamw",
    "gap_points",
    "gap_points_low",
    "gap_points_high",
    "gap_p",
    "gap_method",
    *RANKS,
)
LENGTH_COLUMNS = (
    "model",
    "optimizer",
    "optimizer_rule",
    "epochs",
    "longest_epochs",
    "n",
    "n_longest",
    "diverged",
    "diverged_longest",
    "delta_points",
    "delta_points_low",
    "delta_points_high",
    "delta_p",
    "delta_method",
    *RANKS,
)
INTERACTION_COLUMNS = (
    "a",
    "b",
    "epochs",
    "n",
    "not_finished",
    "interaction_points",
    "interaction_points_low",
    "interaction_points_high",
    "interaction_p",
    "interaction_method",
)


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


def optimizer_gap(results: Results) -> pd.DataFrame:
    """One row per model and number of epochs: mean of the metric with SGD minus mean with AdamW.

    Positive favours AdamW. Over finished runs, by Welch's t; p tests a gap of 0. The numbers of
    diverged runs are in columns of their own. `prob_worse` is how often a run with SGD is worse
    than one with AdamW, where diverged runs are the worst and ties count one half; `rank_p` is that
    of Mann and Whitney, `diverged_p` that of Fisher for the numbers of runs that diverged or
    failed, where there are any. Each `_holm` is corrected for the number of rows, that of
    `diverged_p` for the rows that have it.
    """
    return gaps(results, diverged="shown")


def optimizer_gap_copied(results: Results) -> pd.DataFrame:
    """The gaps by the rule of Xiao et al. 2021: a cell whose runs all diverged has the values of
    the best shorter schedule of the same model and optimizer.

    `copied` says which; those were not measured at that length, so such a gap has no
    interval and no p.
    """
    return gaps(results, diverged="copied")


def gaps(results: Results, *, diverged: str = "shown", confidence: float = 0.95) -> pd.DataFrame:
    """The table of optimizer_gap, or with diverged="copied" that of the paper's rule.

    Raises ValueError for another.
    """
    if diverged not in DIVERGED:
        raise ValueError(f"diverged in {DIVERGED} must hold, but got (diverged={diverged!r})")
    groups = results.once(cells)
    pairs = [
        (model, epochs)
        for model, optimizer, epochs in groups
        if optimizer == "sgd" and (model, "adamw", epochs) in groups
    ]
    order = list(dict.fromkeys(model for model, _, _ in groups))
    rows = [
        _gap(groups, *pair, diverged, confidence)
        for pair in sorted(pairs, key=lambda pair: order.index(pair[0]))
    ]
    columns = [*GAP_COLUMNS, *(["copied"] if diverged == "copied" else [])]
    return _corrected(
        results,
        pd.DataFrame(rows, columns=columns),
        f"gaps, {diverged}",
        "gap_p",
        "rank_p",
        "diverged_p",
    )


def _gap(
    groups: dict[Cell, pd.DataFrame], model: str, epochs: int, diverged: str, confidence: float
) -> dict[str, object]:
    planned = [(model, optimizer, epochs) for optimizer in ("sgd", "adamw")]
    used = [copied_from(groups, cell) if diverged == "copied" else cell for cell in planned]
    a, b = (groups[cell] for cell in used)
    ended = [estimates.counts(groups[cell])["diverged"] for cell in planned]
    result = _named(estimates.difference(a, b, confidence=confidence), {"SGD": a, "AdamW": b})
    ranks = divergence.endings(groups[planned[0]], groups[planned[1]])
    if used != planned and not np.isnan(result.estimate):
        result = Contrast(result.estimate, method="copied from shorter runs: no interval")
    values = (model, epochs, *estimates.sizes(a, b), *ended, *result[:4], result.method, *ranks)
    copies = [
        f"{cell[1]} from {cell[2]} epochs"
        for cell, plan in zip(used, planned, strict=True)
        if cell != plan
    ]
    return {**dict(zip(GAP_COLUMNS, values, strict=True)), "copied": ", ".join(copies) or "–"}


def planned_optimizer(groups: dict[Cell, pd.DataFrame], model: str) -> tuple[str, str]:
    """The optimizer for a model's curve of training length, and the rule: the first of the plan.

    No result has a say. To choose by the errors that are then tested would make 7% of claims false
    instead of 5%, with four optimizers that are alike.
    """
    names = list(dict.fromkeys(optimizer for name, optimizer, _ in groups if name == model))
    return names[0], "the only one" if len(names) == 1 else "the first of the plan"


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
    groups = results.once(cells)
    rows = [
        row
        for model in dict.fromkeys(model for model, _, _ in groups)
        for row in _lengths(groups, model)
    ]
    return _corrected(
        results,
        pd.DataFrame(rows, columns=list(LENGTH_COLUMNS)),
        "lengths",
        "delta_p",
        "rank_p",
        "diverged_p",
    )


def _lengths(groups: dict[Cell, pd.DataFrame], model: str) -> list[dict[str, object]]:
    optimizer, rule = planned_optimizer(groups, model)
    lengths = [
        epochs
        for name, name_of_optimizer, epochs in groups
        if (name, name_of_optimizer) == (model, optimizer)
    ]
    b = groups[model, optimizer, lengths[-1]]
    rows = []
    for epochs in lengths[:-1]:
        a = groups[model, optimizer, epochs]
        result = _named(
            estimates.difference(a, b), {f"{epochs} epochs": a, f"{lengths[-1]} epochs": b}
        )
        ended = [estimates.counts(runs)["diverged"] for runs in (a, b)]
        values = (
            model,
            optimizer,
            rule,
            epochs,
            lengths[-1],
            *estimates.sizes(a, b),
            *ended,
            *result[:4],
            result.method,
            *divergence.endings(a, b),
        )
        rows.append(dict(zip(LENGTH_COLUMNS, values, strict=True)))
    return rows


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
    groups = results.once(cells)
    return _interactions(
        results,
        "gaps",
        groups,
        lambda model, epochs: [(model, "sgd", epochs), (model, "adamw", epochs)],
    )


def training_length_interaction(results: Results) -> pd.DataFrame:
    """One row per pair of models of a panel and schedule: cost of the shorter schedule for a minus
    that for b.

    The cost is the metric above that of the model's longest schedule; positive means that a loses
    more. Statistics as in optimizer_gap_interaction. The rows of a pair share the longest runs, so
    they are correlated.
    """
    groups = results.once(cells)
    planned = {
        model: planned_optimizer(groups, model)[0]
        for model in dict.fromkeys(model for model, _, _ in groups)
    }
    longest = {model: max(e for name, _, e in groups if name == model) for model in planned}
    return _interactions(
        results,
        "lengths",
        groups,
        lambda model, epochs: (
            []
            if epochs == longest[model]
            else [(model, planned[model], epochs), (model, planned[model], longest[model])]
        ),
    )


def _interactions(
    results: Results,
    family: str,
    groups: dict[Cell, pd.DataFrame],
    effect: Callable[[str, int], list[Cell]],
) -> pd.DataFrame:
    """Differences of an effect between the models of a panel, which are a family; an effect is the
    error of its first cell minus that of its second.
    """
    rows, lengths = [], sorted({epochs for _, _, epochs in groups})
    for a, b in (
        pair
        for models in members(results.study, groups).values()
        for pair in combinations(models, 2)
    ):
        for epochs in lengths:
            used = [cell for model in (a, b) for cell in effect(model, epochs)]
            if len(used) == 4 and all(cell in groups for cell in used):
                rows.append(_interaction(a, b, epochs, [groups[cell] for cell in used]))
    return _corrected(
        results, pd.DataFrame(rows, columns=list(INTERACTION_COLUMNS)), family, "interaction_p"
    )


def _interaction(a: str, b: str, epochs: int, runs: list[pd.DataFrame]) -> dict[str, object]:
    values = [estimates.errors(of_cell) for of_cell in runs]
    result = estimates.contrast(values, [1, -1, -1, 1])
    sizes = [len(of_cell) for of_cell in values]
    num_unfinished = sum(map(len, runs)) - sum(sizes)
    row_values = (
        a,
        b,
        epochs,
        ", ".join(map(str, sizes)),
        num_unfinished,
        *result[:4],
        result.method,
    )
    return dict(zip(INTERACTION_COLUMNS, row_values, strict=True))


def _named(result: Contrast, groups: dict[str, pd.DataFrame]) -> Contrast:
    """The contrast, with a method that gives the reason if there is no difference."""
    if not np.isnan(result.estimate):
        return result
    without = [
        f"{name}: {estimates.describe(runs)}"
        for name, runs in groups.items()
        if not len(estimates.errors(runs))
    ]
    return result._replace(method="; ".join(without))


def _corrected(results: Results, table: pd.DataFrame, family: str, *names: str) -> pd.DataFrame:
    """The table with each of these p corrected for the number of rows, which are a family;
    diverged_p for the rows in which a run diverged.
    """
    keys = [name for name in ("model", "a", "b", "epochs") if name in table]
    for name in names:
        p = table[name].astype(float)
        used = p.dropna() if name == "diverged_p" else p
        tests = list(table.loc[used.index, keys].itertuples(index=False, name=None))
        of_used = results.corrected(name, tests, used.tolist(), family=family)
        corrected = pd.Series(of_used, used.index, dtype=float).reindex(p.index)
        table.insert(list(table.columns).index(name) + 1, f"{name}_holm", corrected)
    return table
