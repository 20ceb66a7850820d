"""Sentences and numbers of studies of shapes, each trained at several lr and shown at one chosen on
other images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pandas as pd

from vitscale.analysis import estimates, kind, registry
from vitscale.analysis import repeats as repeat_words
from vitscale.analysis.cells import Cell, cells
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.questions.lr_sweep import lr_sweep
from vitscale.analysis.questions.shapes import reported
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import either
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.study import Study

MAX_NAMES = 6  # of shapes in a sentence
Of = TypeVar("Of", Results, Study)
Value = TypeVar("Value")


def chooses_lr(study: Study) -> bool:
    """Whether arms have several lr, of which minival chooses the one that is shown."""
    return len({(trial.arm.name, trial.config.lr) for trial in study.trials}) > len(study.arms)


def noun(study: Study) -> str:
    """What an arm is: a shape, if its factors name a size."""
    return "shape" if all("size" in arm.factors for arm in study.arms.values()) else "arm"


def a(study: Study) -> str:
    return "a shape" if noun(study) == "shape" else "an arm"


def _unless_single_lr(
    otherwise: Callable[[Of], Value],
) -> Callable[[Callable[[Of], Value]], Callable[[Of], Value]]:
    """The decorated function for a study that chooses lr; `otherwise`, of repeats, for another."""

    def decorate(words: Callable[[Of], Value]) -> Callable[[Of], Value]:
        @functools.wraps(words)
        def either_of(given: Of) -> Value:
            study = given.study if isinstance(given, Results) else given
            return words(given) if chooses_lr(study) else otherwise(given)

        return either_of

    return decorate


@_unless_single_lr(repeat_words.unfinished)
def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    planned = len(results.trials)
    missing = results.trials[results.trials["status"] == "missing"]
    if missing.empty:
        return ""
    arms = missing["arm"].unique()
    more = f" and {len(arms) - MAX_NAMES} more" if len(arms) > MAX_NAMES else ""
    return (
        f"Still missing: {len(missing)} of {planned} runs, of "
        f"{', '.join(arms[:MAX_NAMES])}{more}. An lr is compared over the runs that have an "
        f"outcome, so the lr at which {a(results.study)} is shown may yet change."
    )


@_unless_single_lr(repeat_words.counts)
def counts(results: Results) -> pd.DataFrame:
    """One row per arm: numbers of runs by status, at all its lr and at the lr at which it is
    shown.
    """
    name, outcomes = noun(results.study), results.trials
    return pd.DataFrame(
        [{name: cell.arm, **_counts_row(cell, outcomes)} for cell in results.once(cells).values()]
    )


def _counts_row(cell: Cell, outcomes: pd.DataFrame) -> dict[str, object]:
    runs, shown = outcomes[outcomes["arm"] == cell.arm], estimates.counts(cell.runs)
    at_lr = {f"{status} there": shown[status] for status in STATUSES}
    return {
        "planned": len(runs),
        **estimates.counts(runs),
        "shown at lr": cell.lr,
        **at_lr,
    }


@_unless_single_lr(repeat_words.summary)
def summary(results: Results) -> Summary:
    """The numbers of each arm that exist: the chosen lr, and at that lr the numbers of runs by
    status and means of the metric with Student's 95% intervals; n is the number of finished runs.
    """
    table = results.once(lr_sweep)
    return {str(arm): _numbers(g, results.study) for arm, g in table.groupby("shape", sort=False)}


def _numbers(sweep: pd.DataFrame, study: Study) -> dict[str, float]:
    """Those of a shape, from its rows of the table: of all its lr as long as none is chosen."""
    shown = sweep[sweep["chosen"]]
    counted = (sweep if shown.empty else shown)[list(STATUSES)].sum()
    numbers = {"n": counted[STATUSES[0]], **counted[list(STATUSES[1:])]}
    for row in shown.to_dict("records"):
        numbers["best_lr"] = row["lr"]
        for name, column in _summarized(study).items():
            numbers |= {f"{name}{end}": row[f"{column}{end}"] for end in ("", "_low", "_high")}
    return {name: float(value) for name, value in numbers.items() if not np.isnan(value)}


def _summarized(study: Study) -> dict[str, str]:
    """Name of a mean -> its column of lr_sweep: the study's own metric first."""
    names = [study.column.split, *(name for name in reported(study) if name != study.column.split)]
    return {f"{name}_mean" if index else "mean": f"{name}_mean" for index, name in enumerate(names)}


@_unless_single_lr(kind.design)
def design(study: Study) -> pd.DataFrame:
    """One row per arm: its runs, lr and seeds, what it is trained with, and its size."""
    return pd.DataFrame([_design_row(study, arm) for arm in study.arms])


def _design_row(study: Study, arm: str) -> dict[str, object]:
    configs = [trial.config for trial in study.trials if trial.arm.name == arm]
    size, first = study.cost(configs[0]), configs[0]
    return {
        noun(study): arm,
        "runs": len(configs),
        "lr": _listed(config.lr for config in configs),
        "seeds": _listed(config.seed for config in configs),
        "wd": f"{first.wd:g}",
        "optimizer": first.optimizer,
        "epochs": first.epochs,
        "dataset": first.dataset,
        "parameters": f"{size.params:,}",
        "multiply-adds": f"{size.flops:,}",
    }


def _listed(values: Iterable[float]) -> str:
    distinct = sorted(set(values))
    return (
        ", ".join(f"{value:g}" for value in distinct)
        if len(distinct) <= 4
        else f"{distinct[0]:g} to {distinct[-1]:g}"
    )


@_unless_single_lr(repeat_words.design_text)
def design_text(study: Study) -> str:
    """What was planned, and what is chosen after training."""
    return (
        f"{len(study.arms)} {noun(study)}s, each at {_grid(study)}: {len(study.trials)} runs. All "
        "were fixed before the first training and none is stopped early. Only the lr at which "
        f"{a(study)} is shown is chosen by results, on {CHOOSES}. Multiply-adds are those of one "
        "image."
    )


def _grid(study: Study) -> str:
    """How many lr and seeds a shape has, and whether each lr has the same seeds, as planned."""
    seeds: dict[str, dict[float, set[int]]] = {}
    for trial in study.trials:
        seeds.setdefault(trial.arm.name, {}).setdefault(trial.config.lr, set()).add(
            trial.config.seed
        )
    lrs = either(len(own) for own in seeds.values())
    nums = either(len(at_lr) for own in seeds.values() for at_lr in own.values())
    same = all(
        at_lr == next(iter(own.values())) for own in seeds.values() for at_lr in own.values()
    )
    return f"{lrs} lr with {'the same ' if same else ''}{nums} seeds at each"


@_unless_single_lr(repeat_words.caveats)
def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    label = metric_label(results.study)
    sets, grid = reported(results.study), _grid(results.study)
    shown, has, on = " and ".join(sets), "has", " of the last epoch on the split"
    if len(sets) > 1:
        has, on = "have", f", and the same on the other sets,{on}s"
    sentences = [
        f"Reported is {label}{on}: {shown}. No epoch is selected.",
        (
            f"An arm is one {'setting' if noun(results.study) == 'arm' else 'shape'} at {grid}. It "
            f"is shown at the lr with the lowest mean on {CHOOSES} over the runs that finished, "
            "the smaller of equal ones, among the lr at which at least half of the runs did. "
            f"{shown} {has} no part in that choice."
        ),
        (
            "Means and differences are over the runs at that lr that finished, so they are "
            "conditional on finishing. The number of runs that diverged at that lr is given beside "
            "every number; those at the other lr are in the table above."
        ),
        (
            "Intervals of means include the choice of lr: its noise is that of all runs of the "
            f"{noun(results.study)}, relative to the mean of their lr. Intervals and p of "
            "differences are Welch's at the chosen lr, without the choice. A run that is lucky on "
            f"both {CHOOSES} and a reported set favours its lr. A single run has no interval."
        ),
        (
            "wd and all other fields of an arm are fixed in advance: if they are not the best for "
            "an arm, it is worse than it could be, and no interval includes that."
        ),
        (
            "All intervals and p are conditional on the held-out images: they generalize over "
            "training runs evaluated on these splits, not over other images."
        ),
    ]
    if (results.trials["status"] == "missing").any():
        sentences.append(
            "Unfinished: missing runs are counted, and are part of no other number or choice of lr."
        )
    sentences.append(
        "Each interval is a 95% interval; they are not corrected for the number of rows. "
        "difference_p_holm is corrected over all rows of its table, difference_p is not."
    )
    return sentences


def headline(results: Results) -> list[str]:
    """Numbers of runs by status, then the answers of the study's tables."""
    return [repeat_words.progress_of_runs(results.trials), *registry.answers(results)]


KIND = Kind(
    name="shapes",
    tables=registry.tables("shapes"),
    figures=registry.figures("shapes"),
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design=design,
    design_text=design_text,
)
