"""Warnings about what makes a study's answer doubtful, found before its first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from vitscale.plan.averaging import initial_share
from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import setting, trainings
from vitscale.plan.questions import COMPARED
from vitscale.plan.study import Study

MAX_INITIAL = 0.01  # weight of the initial weights in an averaged model
MAX_WARMUP = 0.5  # fraction of a training
# with two runs per arm, one degree of freedom is left, and intervals span nearly everything
MIN_SEEDS = 3
MAX_ARMS = 4  # arms that a sentence names
# figures and tables that compare forgiveness
WITH_REFERENCES = ("edf_panels", "edf_summary", "arm_comparison")


def plan_warnings(study: Study) -> list[str]:
    """One sentence per kind of doubt, with the arms concerned."""
    sentences = (_initial(study), _warmup(study), _references(study), _seeds(study))
    return [sentence for sentence in sentences if sentence]


def without_references(study: Study) -> list[str]:
    """The arms that have draws but no planned reference run."""
    referenced = {trial.arm.name for trial in study.trials if trial.point is None}
    return [arm for arm in study.arms if arm not in referenced]


def _initial(study: Study) -> str:
    """Averaged weights that retain much of their start, if the metric is measured on them."""
    shares = _worst(study, initial_share) if study.column.averaged else {}
    arms = [arm for arm, (share, _) in shares.items() if share > MAX_INITIAL]
    if not arms:
        return ""
    share, config = max((shares[arm] for arm in arms), key=lambda worst: worst[0])
    name = "ema_alpha" if config.ema_alpha else "ema_decay"
    began = "weights it had after the warm-up" if config.ema_after_warmup else "initial weights"
    return (
        f"{100 * share:.2g}% of the averaged model are still its {began} at the end "
        f"({name}={getattr(config, name):g}, {config.num_steps} steps): {_listed(arms)}; its "
        f"{study.column.metric.label} says little about the training: average over less or "
        "train longer, or set ema_decay=0"
    )


def _warmup(study: Study) -> str:
    shares = _worst(study, lambda config: config.num_warmup_steps / max(1, config.num_steps))
    arms = [arm for arm, (share, _) in shares.items() if share > MAX_WARMUP]
    if not arms:
        return ""
    share, config = max((shares[arm] for arm in arms), key=lambda worst: worst[0])
    return (
        f"{100 * share:.2g}% of the training is warm-up ({config.num_warmup_steps} of "
        f"{config.num_steps} steps): {_listed(arms)}; set warmup_epochs"
    )


def _references(study: Study) -> str:
    """Forgiveness without references to compare with."""
    names = [name for name in (*study.figures, *study.tables) if name in WITH_REFERENCES]
    arms = without_references(study)
    if not names or not arms:
        return ""
    return (
        f"no reference run is planned (a Trial without a point, at good values): {_listed(arms)}; "
        f"{', '.join(names)} cannot compare forgiveness there, only the "
        f"{study.column.metric.label} itself"
    )


def _seeds(study: Study) -> str:
    names = [name for name in study.tables if name in COMPARED]
    seeds: dict[str, dict[TrainConfig, int]] = {arm: {} for arm in study.arms}
    planned = trainings(study) if names else {}
    for trial in study.trials if names else ():
        shared = setting(planned, trial.config)
        seeds[trial.arm.name][shared] = seeds[trial.arm.name].get(shared, 0) + 1
    few = {
        arm: min(counts.values())
        for arm, counts in seeds.items()
        if counts and min(counts.values()) < MIN_SEEDS
    }
    if not few:
        return ""
    num = min(few.values())
    shown = "no interval and no p" if num == 1 else "next to nothing, however large the difference"
    return (
        f"{num} seed{'s' * (num > 1)} of an arm can show {shown} in {', '.join(names)}: "
        f"{_listed(list(few))}; plan {MIN_SEEDS} or more"
    )


def _worst(
    study: Study, number_of: Callable[[TrainConfig], float]
) -> Mapping[str, tuple[float, TrainConfig]]:
    """Maps each arm to its largest number and the config that has it."""
    worst: dict[str, tuple[float, TrainConfig]] = {}
    for trial in study.trials:
        number = number_of(trial.config)
        if trial.arm.name not in worst or number > worst[trial.arm.name][0]:
            worst[trial.arm.name] = (number, trial.config)
    return worst


def _listed(arms: Sequence[str]) -> str:
    """The first few arms, and how many more there are."""
    return ", ".join(_parts(arms))


def _parts(arms: Sequence[str]) -> Iterator[str]:
    yield from arms[:MAX_ARMS]
    if len(arms) > MAX_ARMS:
        yield f"and {len(arms) - MAX_ARMS} more arms"
