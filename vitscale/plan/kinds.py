"""What each kind of study needs of its arms: laws about the plan alone, refused before anything is
trained.

What a kind reports is in vitscale.analysis; a kind of a user's own has no law here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vitscale.plan.config import shown
from vitscale.plan.profile import ProfileConfig

if TYPE_CHECKING:
    from vitscale.plan.study import Arm, Study, Trial

Cell = Callable[[Mapping[str, object]], tuple[object, ...]]
# the factor of a shape that says by what its drop path is chosen: "size" or "depth"
DROP_PATH_BY = "drop_path_by"
STABILITY = (
    "stability_cells",
    "optimizer_gap",
    "optimizer_gap_copied",
    "training_length",
    "optimizer_gap_interaction",
    "training_length_interaction",
    "optimizer_stability",
    "optimizer_stability_copied",
)
SHAPES = (
    "shape_cells",
    "branch_differences",
    "layerscale_and_epochs",
    "blocks_or_width",
    "published_depth_vs_width",
    "branches",
    "widths",
    "depths",
)
PROFILES = (
    "throughput",
    "throughput_by_batch",
    "throughput_gain",
    "throughput_by_resolution",
    "peak_memory",
)


def family_of(arm: Arm) -> tuple[str, str]:
    """Size of a shape and what its drop path is chosen by: shapes are compared within both."""
    return str(arm.factors["size"]), str(arm.factors.get(DROP_PATH_BY, ""))


def equal_within_arms(trials: Iterable[Trial], *but: str) -> bool:
    """Whether the configs of each arm are equal in all fields but these."""
    return not _unequal_arm(trials, *but)


def infer_kind(trials: Collection[Trial], fields: Mapping[str, Any]) -> str:
    """The kind of a study whose plan is of a version that had
    none; `fields` are those of Study by name.
    """
    if fields.get("search"):
        return "search"
    if any(isinstance(trial.config, ProfileConfig) for trial in trials):
        return "profile"
    asked = {*fields.get("tables", ()), *fields.get("figures", ())}
    if asked & {*SHAPES} and equal_within_arms(trials, "seed", "lr"):
        return "shapes"
    return "repeats" if equal_within_arms(trials, "seed") else "distribution"


def check_kind(study: Study) -> None:
    """Raises ValueError where arms are not what the study's kind
    is about, or would be pooled for want of factors.
    """
    if (study.kind == "search") != (study.search is not None):
        raise ValueError(
            "search must say how a study of kind search, and no other, chose its points, but "
            f"got (kind={study.kind!r}, search={shown(study.search)})"
        )
    if (study.kind == "profile") != isinstance(study.trials[0].config, ProfileConfig):
        raise ValueError(
            "profiles must be of a study of kind profile, and trainings of another, but got "
            f"(kind={study.kind!r}, study={study.slug!r})"
        )
    CHECKS.get(study.kind, _nothing)(study)


def _nothing(study: Study) -> None:
    """A distribution needs no factors."""


def _repeats(study: Study) -> None:
    if arm := _unequal_arm(study.trials, "seed"):
        raise ValueError(
            "the runs of an arm must differ in their seed alone in a study of kind repeats, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    if _asks(study, STABILITY):
        _check_not_pooled(
            study,
            "model, optimizer and epochs",
            lambda of: (of["model"], of["optimizer"], of["epochs"]),
        )
    if _asks(study, ("recipe_interaction",)):
        _need_factors(study, ("architecture", "recipe"))
        _check_not_pooled(
            study, "architecture and recipe", lambda of: (of["architecture"], of["recipe"])
        )


def _shapes(study: Study) -> None:
    if arm := _unequal_arm(study.trials, "seed", "lr"):
        raise ValueError(
            "the runs of an arm must differ in lr and seed alone in a study of kind shapes, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    _need_factors(study, ("size",))
    _check_not_pooled(
        study,
        "size, drop path rule, depth, branches, LayerScale and epochs",
        lambda of: (
            of["size"],
            of.get(DROP_PATH_BY, ""),
            of["depth"],
            of["branches"],
            of["layerscale"] != 0,
            of["epochs"],
        ),
    )


def _profiles(study: Study) -> None:
    if not _asks(study, PROFILES):
        return
    names = ("model", "profile", "resolution", "batch_size", "layout")
    factors = [{**trial.config.asdict(), **trial.arm.factors} for trial in study.trials]
    num, cell = _most_common(tuple(of[name] for name in names) for of in factors)
    if num > 1:
        raise ValueError(
            f"profiles must differ in {', '.join(names)}, or factors must tell them apart, but "
            f"got ({num} of {shown(cell)})"
        )


CHECKS: dict[str, Callable[[Study], None]] = {
    "repeats": _repeats,
    "shapes": _shapes,
    "profile": _profiles,
}


def _asks(study: Study, names: Collection[str]) -> bool:
    return not set(names).isdisjoint({*study.tables, *study.figures})


def _conditions(study: Study) -> dict[str, dict[str, object]]:
    """What each arm is made of: the fields of its first config, and in their place its factors."""
    first: dict[str, dict[str, object]] = {}
    for trial in study.trials:
        if trial.arm.name not in first:
            first[trial.arm.name] = {**trial.config.asdict(), **trial.arm.factors}
    return first


def _need_factors(study: Study, names: Collection[str]) -> None:
    absent = [arm for arm in study.arms.values() if not set(names) <= set(arm.factors)]
    if absent:
        raise ValueError(
            "the factors of each arm of a study with these tables must name "
            f"{' and '.join(names)}, but got (arm={absent[0].name!r}: "
            f"{shown(dict(absent[0].factors))})"
        )


def _check_not_pooled(study: Study, what: str, cell: Cell) -> None:
    by_arm = {arm: cell(of) for arm, of in _conditions(study).items()}
    num, most = _most_common(by_arm.values())
    if num > 1:
        pooled = [arm for arm, of in by_arm.items() if of == most]
        raise ValueError(
            f"arms must differ in {what}, by their configs or by their factors, or they would be "
            f"pooled, but got ({shown(pooled)}: {shown(most)})"
        )


def _most_common(values: Iterable[tuple[object, ...]]) -> tuple[int, tuple[object, ...]]:
    value, num = Counter(values).most_common(1)[0]
    return num, value


def _unequal_arm(trials: Iterable[Trial], *but: str) -> str:
    """The first arm whose configs differ in another field than these; empty if there is none."""
    first: dict[str, dict[str, Any]] = {}
    for trial in trials:
        fields = {
            name: value for name, value in trial.config.non_default().items() if name not in but
        }
        if first.setdefault(trial.arm.name, fields) != fields:
            return trial.arm.name
    return ""
