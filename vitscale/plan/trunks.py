"""Trials that start from a checkpoint of another trial of their study, their trunk.

At a constant lr, trainings of several lengths are equal until the first of them cools down. So the
longest is trained as one, keeps its state at the steps where others branch off, and each of these
begins there. A trial has the same rows, by the bit, as if it were trained in one piece; its id
names the trunk and the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.trial import Plan, Trial

# fields in which a trial and its trunk may differ
OF_LENGTH = (
    "epochs",
    "decay",
    "decay_floor",
    "cooldown_share",
    "cooldown_shape",
    "trunk",
    "trunk_step",
)


def on_trunks(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The same trials, where those that differ only in length start from the longest of them.

    That is, trials with decay="cooldown" that are equal in all but `epochs` and the arm. Each
    starts at the first step of its own cooldown, so that only its cooldown is trained for itself.
    """
    planned = tuple(trials)
    longest: dict[TrainConfig, TrainConfig] = {}
    for config in (trial.config for trial in planned):
        if config.decay == "cooldown" and not config.trunk:
            of = longest.setdefault(_any_length(config), config)
            if config.epochs > of.epochs:
                longest[_any_length(config)] = config
    return tuple(_branched(trial, longest.get(_any_length(trial.config))) for trial in planned)


def _any_length(config: TrainConfig) -> TrainConfig:
    return config if config.decay != "cooldown" else config.replace(epochs=10**6)


def _branched(trial: Trial, trunk: TrainConfig | None) -> Trial:
    config = trial.config
    if trunk is None or config.trunk or not 0 < config.cooldown_start < trunk.cooldown_start:
        return trial
    start = config.replace(trunk=trunk.id, trunk_step=config.cooldown_start)
    return type(trial)(trial.arm, start, trial.point)


def check_trunks(study: Plan) -> None:
    """Raises ValueError unless the trunk of each trial is planned, and is equal up to there."""
    planned = {trial.config.id: trial.config for trial in study.trials}
    for trial in study.trials:
        if trial.config.trunk:
            _check_trunk(trial, planned.get(trial.config.trunk))


def _check_trunk(trial: Trial, trunk: TrainConfig | None) -> None:
    config = trial.config
    if trunk is None or isinstance(trunk, ProfileConfig):
        raise ValueError(
            "the trunk of a trial must be a training of the same study, but got "
            f"(arm={trial.arm.name!r}, trial={config.id}, trunk={config.trunk!r})"
        )
    names = [
        name
        for name, value in config.asdict().items()
        if value != getattr(trunk, name) and name not in OF_LENGTH
    ]
    if names:
        values = ", ".join(
            f"{name}={getattr(config, name)!r} and {getattr(trunk, name)!r}" for name in names
        )
        raise ValueError(
            "a trial and its trunk must differ only in length, decay and cooldown, but got "
            f"(arm={trial.arm.name!r}, trunk={trunk.id}: {values})"
        )
    if config.trunk_step > trunk.constant_until:
        raise ValueError(
            "a trial must leave its trunk before that decays or ends, but got "
            f"(arm={trial.arm.name!r}, trunk={trunk.id}, trunk_step={config.trunk_step}; the lr of "
            f"the trunk is constant until step {trunk.constant_until})"
        )
    if config.trunk_step == trunk.num_steps and trunk.epochs % config.eval_every:
        raise ValueError(  # of which a training in one piece has no row
            "a trial that leaves its trunk at the end must be evaluated there, but got "
            f"(arm={trial.arm.name!r}, trunk={trunk.id}, epochs={trunk.epochs}, "
            f"eval_every={config.eval_every})"
        )


def branch_steps(entries: Iterable[Mapping[str, Any]], ids: Iterable[str]) -> dict[str, set[int]]:
    """Trunk -> the steps at which trials of a plan (or of several) branch off, for trunks `ids`.

    `entries` are those of plan.json, of any version.
    """
    known, steps = set(ids), dict[str, set[int]]()
    for entry in entries:
        config = entry.get("config")
        if not isinstance(config, Mapping):
            continue
        trunk, step = config.get("trunk"), config.get("trunk_step")
        if isinstance(trunk, str) and trunk in known and type(step) is int:
            steps.setdefault(trunk, set()).add(step)
    return steps


def next_wave(todo: Sequence[TrainConfig]) -> list[TrainConfig]:
    """The trials that wait for no trunk among those to do."""
    waiting = {config.id for config in todo}
    return [config for config in todo if config.trunk not in waiting]


def num_steps_saved(study: Plan) -> int:
    """Optimizer steps of trunks that trainings in one piece would repeat."""
    return sum(trial.config.trunk_step for trial in study.trials)
