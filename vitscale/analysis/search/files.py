"""The files that a search writes beside its report: its winners, and a study that Optuna opens."""

from __future__ import annotations

import json
from typing import Any

from vitscale.analysis.results import Results
from vitscale.analysis.search.tables import as_optuna, procedure, space_of, winners
from vitscale.plan.study import Study

ALWAYS_RECORDED = (
    "dataset",
    "minival_images",
    "subset_images",
    "split_seed",
    "resolution",
    "model",
    "epochs",
    "eval_split",
)


def files(results: Results) -> dict[str, bytes]:
    """Name of a file -> its content."""
    return {
        "winners.json": json.dumps(search_result(results), indent=1).encode(),
        "optuna.db": as_optuna(results),
    }


def search_result(results: Results) -> dict[str, Any]:
    """The result of a search so far and how it was found, as plain values for `vitscale adopt`."""
    study = results.study

    def distinct(column: str) -> list[str]:
        return sorted({str(value) for value in results.trials[column].dropna()} - {""})

    return {
        "search": study.slug,
        "how": procedure(study),
        "metric": study.metric,
        "epochs": max(trial.config.epochs for trial in study.trials),
        "trained": _trained(study),
        **{
            name: distinct(column)
            for name, column in (
                ("commits", "commit"),
                ("versions", "versions"),
                ("machines", "machine"),
            )
        },
        "winners": results.once(winners),
    }


def _trained(study: Study) -> dict[str, dict[str, Any]]:
    """Maps each arm to the fields that its trials share.

    These are the fields that differ from their default, and always data, length and split.
    """
    shared = {}
    for arm in study.arms:
        config = next(trial.config for trial in study.trials if trial.arm.name == arm)
        varied = {"seed", *space_of(study, arm)}
        names = {*config.non_default(), *ALWAYS_RECORDED} - varied
        shared[arm] = {name: value for name, value in config.asdict().items() if name in names}
    return shared
