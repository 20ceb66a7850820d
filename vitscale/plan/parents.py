"""Trainings that need other trainings first.

A trial may start from a checkpoint of another trial of its study, its trunk. At a constant lr,
trainings of several lengths are equal until the first of them cools down. So the longest is trained
as one, keeps its state at the steps where others branch off, and each of these begins there. A
trial has the same rows, by the bit, as if it were trained in one piece; its id names the trunk and
the step.

A trial may start from the final weights of a parent (`init_from`), as in fine-tuning. Parents are
trainings of `Study.parents`: they have no arm and stand in no table, are trained first, and are
shared between studies by their id. The id of a child names that of its parent. The teacher of a
distillation is a parent, too, and a trial of the study may be what others need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import has_closed_form
from vitscale.plan.laws import VIT_ONLY
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


AT_END = -1  # in place of a step: the end of the training
# fields of the model that a child shares with its parent: the shapes of its weights
NOT_SHARED = ("stem_norm", "weight_init", "dropout")
OF_MODEL = (
    *("model", "own", "timm_args", "channels"),
    *(name for name in VIT_ONLY if name not in NOT_SHARED),
)

# families of timm whose weights are the same at each resolution, but for learned positions
RESIZABLE = ("timm:cait_", "timm:regnet", "timm:resnet")

# fields that a child shares with its teacher: what goes into a model and comes out of it
OF_IMAGES = ("dataset", "resolution", "channels", "num_classes")


def on_trunks(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The same trials, where those that differ only in length start from the longest of them.

    That is, trials with decay="cooldown" that are equal in all but `epochs` and the arm. Each
    starts at the first step of its own cooldown, so that only its cooldown is trained for itself.
    """
    planned = tuple(trials)
    longest: dict[TrainConfig, TrainConfig] = {}
    for config in (trial.config for trial in planned):
        if config.decay == "cooldown" and not config.trunk:
            trunk = longest.setdefault(_any_length(config), config)
            if config.epochs > trunk.epochs:
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


def _values(names: Iterable[str], *configs: TrainConfig) -> str:
    """Fields of two configs: "width=8 and 16, depth=1 and 2"."""
    return ", ".join(
        f"{name}={' and '.join(repr(getattr(c, name)) for c in configs)}" for name in names
    )


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
        raise ValueError(
            "a trial and its trunk must differ only in length, decay and cooldown, but got "
            f"(arm={trial.arm.name!r}, trunk={trunk.id}: {_values(names, config, trunk)})"
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
    """Trial -> the steps at which others of a plan (or of several) start, for trials `ids`; AT_END
    for the final weights.

    `entries` are those of plan.json, of any version.
    """
    wanted, steps = set(ids), dict[str, set[int]]()
    for entry in entries:
        config = entry.get("config")
        if not isinstance(config, Mapping):
            continue
        trunk, step = config.get("trunk"), config.get("trunk_step")
        if isinstance(trunk, str) and trunk in wanted and type(step) is int:
            steps.setdefault(trunk, set()).add(step)
        for parent in (config.get("init_from"), config.get("teacher")):
            if isinstance(parent, str) and parent in wanted:
                steps.setdefault(parent, set()).add(AT_END)
    return steps


def check_parents(study: Plan) -> None:
    """Raises ValueError unless each parent that is needed is planned, and fits its children."""
    parents = {config.id: config for config in study.parents}
    trials = {trial.config.id for trial in study.trials}
    planned = trainings(study)
    names = [config.id for config in study.parents]
    if twice := sorted({name for name in names if name in trials or names.count(name) > 1}):
        raise ValueError(
            "each parent must be planned once, and be no trial of the study, but got "
            f"(parent={', '.join(twice)})"
        )
    needed: set[str] = set()
    for who, config in (
        *((f"arm={trial.arm.name!r}", trial.config) for trial in study.trials),
        *((f"parent={config.id}", config) for config in study.parents),
    ):
        needed.update(config.parents)
        for name, check in (("init_from", _check_parent), ("teacher", _check_teacher)):
            parent = getattr(config, name)
            if parent and parent not in planned:
                raise ValueError(
                    f"{name} must be the id of a parent or a trial of the study, but got "
                    f"({who}, {name}={parent!r})"
                )
            if parent:
                check(who, config, planned[parent])
    if idle := [i for i in parents if i not in needed]:
        raise ValueError(
            "a parent must be the init_from or the teacher of a training, but got one that is "
            f"neither (parent={idle[0]})"
        )


def _check_teacher(who: str, config: TrainConfig, teacher: TrainConfig) -> None:
    names = [name for name in OF_IMAGES if getattr(config, name) != getattr(teacher, name)]
    if names:
        raise ValueError(
            "a trial and its teacher must see the same images and classes, but got "
            f"({who}, teacher={teacher.id}: {_values(names, config, teacher)})"
        )


def _check_parent(who: str, config: TrainConfig, parent: TrainConfig) -> None:
    names = [name for name in OF_MODEL if getattr(config, name) != getattr(parent, name)]
    if config.init_head == "keep" and config.num_classes != parent.num_classes:
        names.append("num_classes")
    if (config.distill == "token") != (parent.distill == "token"):
        names.append("distill")  # the token and its head are of the model
    resizable = has_closed_form(config) or config.model.startswith(RESIZABLE)
    fixed = not resizable or config.pos_embed == "relative"
    if fixed and config.resolution != parent.resolution:
        names.append("resolution")  # only absolute positions of tokens are resized
    if names:
        raise ValueError(
            "a trial and its parent must have one model, and one number of classes if it keeps the "
            f"head, but got ({who}, parent={parent.id}: {_values(names, config, parent)})"
        )
    if config.init_weights == "ema" and not (parent.ema_decay or parent.ema_alpha):
        raise ValueError(
            "init_weights ema must come with a parent that averages its weights, but got "
            f"({who}, parent={parent.id}: ema_decay=0, ema_alpha=0)"
        )


def trainings(plan: Plan) -> dict[str, TrainConfig]:
    """Id -> config, of all that others of a plan may start from or learn from."""
    return {c.id: c for c in (*plan.parents, *(trial.config for trial in plan.trials))}


def setting(planned: Mapping[str, TrainConfig], config: TrainConfig) -> TrainConfig:
    """What a training has in common with those that differ in seeds alone, also of their parents,
    and in where they start. `planned` are the `trainings` of its plan.
    """
    c = config.in_one_piece().replace(seed=0)
    names = [name for name in ("init_from", "teacher") if getattr(c, name) in planned]
    return c.replace(**{name: setting(planned, planned[getattr(c, name)]).id for name in names})


def entries(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trials and the parents of a plan.json."""
    return [*plan["trials"], *plan.get("parents", ())]


def next_wave(todo: Sequence[TrainConfig]) -> list[TrainConfig]:
    """The trainings that wait for no other one among those to do."""
    waiting = {config.id for config in todo}
    return [config for config in todo if waiting.isdisjoint(config.needs)]


def followers(wave: Sequence[TrainConfig], todo: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Those to do that may begin while a wave is trained: each when what it needs is done."""
    coming = {config.id for config in wave}
    children = []
    for config in todo:
        if config.id not in coming and any(need in coming for need in config.needs):
            children.append(config)
            coming.add(config.id)
    return children


def num_steps_saved(study: Plan) -> int:
    """Optimizer steps of trunks that trainings in one piece would repeat."""
    return sum(trial.config.trunk_step for trial in study.trials)
