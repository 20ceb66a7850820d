"""Stability of optimizers and of training length (Xiao et al. 2021, Figures 3 and 2).

A cell is a model, an optimizer and a number of epochs: one arm, each with a full schedule of its own, trained once or
with several seeds. The arms' factors name the model; optimizer and epochs are those of the config.

Assumed everywhere: runs differ in their seed alone, and means over seeds are nearly normal. Errors are means over the
runs that finished, so they are conditional on finishing; how many diverged is the other half of the answer and stands
beside them. lr and wd are given: whether others would have closed a gap is a question for another study.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from vitscale.analysis import repeats
from vitscale.analysis.compare import holm
from vitscale.analysis.repeats import Contrast
from vitscale.plan.study import Study

DIVERGED = ("shown", "copied")  # what a cell does in which every run diverged
Cell = tuple[str, str, int]  # model, optimizer, epochs
GAP_COLUMNS = (
    "model", "epochs", "n_sgd", "n_adamw", "diverged_sgd", "diverged_adamw", "gap_points", "gap_points_low",
    "gap_points_high", "gap_p", "gap_method",
)  # fmt: skip
LENGTH_COLUMNS = (
    "model", "optimizer", "optimizer_rule", "epochs", "longest_epochs", "n", "n_longest", "diverged",
    "diverged_longest", "delta_points", "delta_points_low", "delta_points_high", "delta_p", "delta_method",
)  # fmt: skip


def cells(study: Study, outcomes: pd.DataFrame) -> dict[Cell, pd.DataFrame]:
    """Every planned run, by model, optimizer and epochs, in the order of the plan; shorter schedules first."""
    table = repeats.labelled(study, outcomes).astype({"model": str, "optimizer": str, "epochs": int})
    found = {cast(Cell, key): runs for key, runs in table.groupby(["model", "optimizer", "epochs"], sort=False)}
    return dict(sorted(found.items(), key=lambda item: item[0][2]))


def copied_from(groups: dict[Cell, pd.DataFrame], cell: Cell) -> Cell:
    """The cell whose runs stand in for this one by the rule of Xiao et al. 2021, Figure 3; mostly itself.

    Where every run diverged: the shorter schedule of the same model and optimizer with the lowest mean error. Such a
    value was never measured, and makes a gap look smaller than a failure is.
    """
    model, optimizer, epochs = cell
    if not (groups[cell]["status"] == "diverged").all():
        return cell
    shorter = [key for key, runs in groups.items()
               if key[:2] == (model, optimizer) and key[2] < epochs and len(repeats.errors(runs))]  # fmt: skip
    return min(shorter, key=lambda key: repeats.errors(groups[key]).mean(), default=cell)


def stability_cells(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per model, optimizer and number of epochs: how its runs ended, and the mean error of those that finished.

    Student's interval over seeds, from the spread of this cell alone; none for a single run.
    """
    rows = []
    for (model, optimizer, epochs), runs in cells(study, outcomes).items():
        values = repeats.errors(runs)
        mean, low, high = repeats.mean_interval(values)
        rows.append({"model": model, "optimizer": optimizer, "epochs": epochs, "planned": len(runs),
                     **repeats.counts(runs), "mean_error_pct": mean, "mean_error_pct_low": low,
                     "mean_error_pct_high": high, "sd_points": repeats.sd_interval(values)[0]})  # fmt: skip
    return pd.DataFrame(rows)


def optimizer_gap(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per model and number of epochs: mean error with SGD minus mean error with AdamW, in points.

    Positive favours AdamW. Over the runs that finished; how many diverged stands beside it. Student's t over the pairs
    of runs with one seed where both optimizers were planned with the same seeds (n is then that of pairs), else Welch's
    t. p is that of no gap;
    gap_p_holm is corrected for the number of rows.
    """
    return gaps(study, outcomes, diverged="shown")


def optimizer_gap_copied(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """The gaps by the rule of Xiao et al. 2021: a cell whose runs all diverged has the errors of the best shorter
    schedule of the same model and optimizer.

    `copied` says which; those errors were not measured at that length, so no claim should rest on them.
    """
    return gaps(study, outcomes, diverged="copied")


def gaps(study: Study, outcomes: pd.DataFrame, *, diverged: str = "shown", confidence: float = 0.95) -> pd.DataFrame:
    """The table of optimizer_gap, or with diverged="copied" that of the paper's rule. Raises ValueError for another."""
    if diverged not in DIVERGED:
        raise ValueError(f"diverged in {DIVERGED} must hold, but got (diverged={diverged!r})")
    groups = cells(study, outcomes)
    pairs = [(model, epochs) for model, optimizer, epochs in groups
             if optimizer == "sgd" and (model, "adamw", epochs) in groups]  # fmt: skip
    order = list(dict.fromkeys(model for model, _, _ in groups))
    rows = [_gap(groups, *pair, diverged, confidence) for pair in sorted(pairs, key=lambda pair: order.index(pair[0]))]
    columns = [*GAP_COLUMNS, *(["copied"] if diverged == "copied" else [])]
    return _corrected(pd.DataFrame(rows, columns=columns), "gap_p")


def _gap(
    groups: dict[Cell, pd.DataFrame], model: str, epochs: int, diverged: str, confidence: float
) -> dict[str, object]:
    planned = [(model, optimizer, epochs) for optimizer in ("sgd", "adamw")]
    used = [copied_from(groups, cell) if diverged == "copied" else cell for cell in planned]
    a, b = (groups[cell] for cell in used)
    num_a, num_b = _sizes(a, b)
    ended = [repeats.counts(groups[cell])["diverged"] for cell in planned]
    result = _named(repeats.difference(a, b, confidence=confidence), {"SGD": a, "AdamW": b})
    values = (model, epochs, num_a, num_b, *ended, *result[:4], result.method)
    copies = [f"{cell[1]} from {cell[2]} epochs" for cell, plan in zip(used, planned, strict=True) if cell != plan]
    return {**dict(zip(GAP_COLUMNS, values, strict=True)), "copied": ", ".join(copies) or "–"}


def best_optimizer(groups: dict[Cell, pd.DataFrame], model: str) -> tuple[str, str]:
    """The optimizer for a model's curve of training length, and by which rule it was taken.

    The only one, where there is one. Else that of the lowest mean error at the longest schedule, over finished runs:
    chosen by the same runs that are then shown, so its errors are a little optimistic at that length.
    """
    names = list(dict.fromkeys(optimizer for name, optimizer, _ in groups if name == model))
    if len(names) == 1:
        return names[0], "the only one"
    longest = max(epochs for name, _, epochs in groups if name == model)
    known = {name: repeats.errors(groups[model, name, longest]) for name in names if (model, name, longest) in groups}
    means = {name: float(values.mean()) for name, values in known.items() if len(values)}
    if not means:
        return names[0], f"none finished {longest} epochs"
    return min(means, key=lambda name: means[name]), f"lowest mean error at {longest} epochs"


def training_length(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per model and schedule: mean error minus that of the model's longest schedule, in points.

    Positive: the shorter schedule is worse. Every length is a full schedule of its own, and none a checkpoint of the
    longest. With the model's best optimizer, by the rule named in the row. Over finished runs; Student's t over pairs
    of one seed where seeds are shared, else Welch's t. All deltas of a model hang on the same longest runs, so they
    err together. delta_p_holm is corrected for the number of rows.
    """
    groups = cells(study, outcomes)
    rows = [row for model in dict.fromkeys(model for model, _, _ in groups) for row in _lengths(groups, model)]
    return _corrected(pd.DataFrame(rows, columns=list(LENGTH_COLUMNS)), "delta_p")


def _lengths(groups: dict[Cell, pd.DataFrame], model: str) -> list[dict[str, object]]:
    optimizer, rule = best_optimizer(groups, model)
    lengths = [epochs for name, of, epochs in groups if (name, of) == (model, optimizer)]
    b = groups[model, optimizer, lengths[-1]]
    rows = []
    for epochs in lengths[:-1]:
        a = groups[model, optimizer, epochs]
        result = _named(repeats.difference(a, b), {f"{epochs} epochs": a, f"{lengths[-1]} epochs": b})
        ended = [repeats.counts(runs)["diverged"] for runs in (a, b)]
        values = (model, optimizer, rule, epochs, lengths[-1], *_sizes(a, b), *ended, *result[:4], result.method)
        rows.append(dict(zip(LENGTH_COLUMNS, values, strict=True)))
    return rows


def _sizes(a: pd.DataFrame, b: pd.DataFrame) -> tuple[int, int]:
    """Runs that the difference rests on: finished ones, or pairs of finished ones."""
    if repeats.shares_seeds(a, b):
        return (len(repeats.paired_errors(a, b)),) * 2
    return len(repeats.errors(a)), len(repeats.errors(b))


def _named(result: Contrast, groups: dict[str, pd.DataFrame]) -> Contrast:
    """The contrast with a method that says why there is no difference, where there is none."""
    if not np.isnan(result.estimate):
        return result
    without = [f"{name}: {repeats.said(runs)}" for name, runs in groups.items() if not len(repeats.errors(runs))]
    return result._replace(method="; ".join(without) or "no seed finished in both")


def _corrected(table: pd.DataFrame, name: str) -> pd.DataFrame:
    table.insert(list(table.columns).index(name) + 1, f"{name}_holm", holm(table[name].astype(float).tolist()))
    return table
