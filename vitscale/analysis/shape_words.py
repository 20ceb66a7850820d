"""The words and numbers of a study of shapes, each trained at several lr and shown at one that other images chose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from vitscale.analysis import repeats
from vitscale.analysis.layout import metric_label
from vitscale.analysis.population import STATUSES
from vitscale.analysis.shapes import CHOOSES, Cell, cells, is_sweep, reported
from vitscale.plan.study import Study

MAX_NAMES = 6  # of shapes in a sentence


def chooses_lr(study: Study) -> bool:
    """Whether arms are shapes at several lr, of which minival chooses the one that is shown.

    Draws that differ in lr alone are no such study: nothing is chosen there.
    """
    sized = bool(study.factors) and all("size" in of for of in study.factors.values())
    return sized and CHOOSES in repeats.evaluations(study) and is_sweep(study) and not repeats.is_repeats(study)


def unfinished(study: Study, outcomes: pd.DataFrame) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    missing = outcomes[outcomes["status"] == "missing"]
    if missing.empty:
        return ""
    arms = missing["arm"].unique()
    more = f" and {len(arms) - MAX_NAMES} more" if len(arms) > MAX_NAMES else ""
    return (
        f"Still missing: {len(missing)} of {len(outcomes)} runs, of {', '.join(arms[:MAX_NAMES])}{more}. An lr is "
        "compared over the runs that have an outcome, so the lr at which a shape is shown may yet change."
    )


def counts(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per shape: how the runs at all its lr ended, and how those at the lr at which it is shown."""
    return pd.DataFrame([_counts_row(cell, outcomes) for cell in cells(study, outcomes).values()])


def _counts_row(cell: Cell, outcomes: pd.DataFrame) -> dict[str, object]:
    runs, shown = outcomes[outcomes["arm"] == cell.arm], repeats.counts(cell.runs)
    at_lr = {f"{status} there": shown[status] for status in STATUSES}
    return {"shape": cell.arm, "planned": len(runs), **repeats.counts(runs), "shown at lr": cell.lr, **at_lr}


def summary(study: Study, outcomes: pd.DataFrame) -> dict[str, float]:
    """The numbers of the arms under `arm/name`: the chosen lr, and at it how runs ended and mean errors in percent with
    Student's 95% intervals; those that exist. n: runs that finished there.
    """
    others = {name: column for name, column in reported(study).items() if column != study.metric}
    columns = {"mean_error_pct": "error_pct", **{f"{name}_mean_error_pct": column for name, column in others.items()}}
    numbers: dict[str, float] = {}
    for cell in cells(study, outcomes).values():
        known = not np.isnan(cell.lr)
        of = repeats.counts(cell.runs if known else outcomes[outcomes["arm"] == cell.arm])
        found = {"n": of["finished"], **{status: of[status] for status in STATUSES[1:]}, "best_lr": cell.lr}
        for name, column in columns.items():
            ends = repeats.error_interval(repeats.errors(cell.runs, column))
            found |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), ends, strict=True)}
        numbers |= {f"{cell.arm}/{name}": float(value) for name, value in found.items() if not np.isnan(value)}
    return numbers


def design(study: Study) -> pd.DataFrame:
    """A row per shape: its runs, lr and seeds, what it is trained with, and its size."""
    return pd.DataFrame([_design_row(study, arm) for arm in study.arms])


def _design_row(study: Study, arm: str) -> dict[str, object]:
    configs = [trial.config for trial in study.trials if trial.arm == arm]
    size, first = study.cost(configs[0]), configs[0]
    return {
        "shape": arm, "runs": len(configs), "lr": _listed(config.lr for config in configs),
        "seeds": _listed(config.seed for config in configs), "wd": f"{first.wd:g}", "optimizer": first.optimizer,
        "epochs": first.epochs, "dataset": first.dataset, "parameters": f"{size.params:,}",
        "multiply-adds": f"{size.flops:,}",
    }  # fmt: skip


def _listed(values: Iterable[float]) -> str:
    found = sorted(set(values))
    return ", ".join(f"{value:g}" for value in found) if len(found) <= 4 else f"{found[0]:g} to {found[-1]:g}"


def design_words(study: Study) -> str:
    """What was planned, and what is chosen after training."""
    return (
        f"{len(study.arms)} shapes, each at {_grid(study)}: {len(study.trials)} runs. All were fixed before the first "
        f"training and none is stopped early. What is chosen by results is the lr at which a shape is shown, on "
        f"{CHOOSES}. Multiply-adds are those of one image."
    )


def _grid(study: Study) -> str:
    """How many lr and seeds a shape has, and whether each lr has the same seeds, as planned."""
    seeds: dict[str, dict[float, set[int]]] = {}
    for trial in study.trials:
        seeds.setdefault(trial.arm, {}).setdefault(trial.config.lr, set()).add(trial.config.seed)
    lrs = _either(len(of) for of in seeds.values())
    nums = _either(len(at_lr) for of in seeds.values() for at_lr in of.values())
    same = all(at_lr == next(iter(of.values())) for of in seeds.values() for at_lr in of.values())
    return f"{lrs} lr with {'the same ' if same else ''}{nums} seeds at each"


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(numbers))))


def honesty(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    shown = " and ".join(reported(study))
    sentences = [
        f"Reported is {metric_label(study)}, and the same on the other sets, of the last epoch on the splits: "
        f"{shown}. No epoch is selected.",
        f"An arm is one shape at {_grid(study)}. It is shown at the lr with the lowest mean error on {CHOOSES} over "
        f"its seeds, the smaller of equal ones; a diverged or failed run counts as 100% in that choice. {shown} have "
        "no part in it.",
        "Means and differences are over the runs at that lr that finished, so they are conditional on finishing. How "
        "many diverged there stands beside every number; how many at the other lr is in the table above.",
        "Intervals are Student's over the seeds at that lr, and rest on means over seeds being nearly normal; a single "
        "run has none. They do not hold the choice of lr, which uses the same runs on other images: a run that is "
        f"lucky on {CHOOSES} and on a reported set alike helps its lr, and other seeds may choose another.",
        "wd and all else of an arm are given: an arm for which they are not the best is worse than it need be, in no "
        "interval.",
        "All intervals and p are conditional on the held-out images: they are about training on these held-out "
        "splits, not about other images.",
    ]
    if (outcomes["status"] == "missing").any():
        sentences.append("Unfinished: missing runs are in no number but their count, and in no choice of lr.")
    sentences.append(
        "Intervals are 95% each; those of different rows are not corrected for their number. difference_p_holm is "
        "corrected over all rows of its table, difference_p is not."
    )
    return sentences
