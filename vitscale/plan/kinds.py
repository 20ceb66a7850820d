"""Laws of each kind of study about its plan, checked before anything is trained.

The analysis of a kind is in vitscale.analysis; user-defined kinds have no laws here.
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
# the factor of a shape for how its drop path is chosen: by "size" or by "depth"
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
    """(size, rule for drop path) of a shape: shapes are compared within both."""
    return str(arm.factors["size"]), str(arm.factors.get(DROP_PATH_BY, ""))


def equal_within_arms(trials: Iterable[Trial], *ignored: str) -> bool:
    """Whether the configs of each arm are equal in all fields except `ignored`."""
    return not _unequal_arm(trials, *ignored)


def infer_kind(trials: Collection[Trial], fields: Mapping[str, Any]) -> str:
    """The kind of a study whose plan is of a version without kinds; `fields` are those of Study."""
    if fields.get("search"):
        return "search"
    if any(isinstance(trial.config, ProfileConfig) for trial in trials):
        return "profile"
    requested = {*fields.get("tables", ()), *fields.get("figures", ())}
    if requested & {*SHAPES} and equal_within_arms(trials, "seed", "lr"):
        return "shapes"
    return "repeats" if equal_within_arms(trials, "seed") else "distribution"


def check_kind(study: Study) -> None:
    """Raises ValueError if arms violate the laws of their kind, or would be pooled."""
    if (study.kind == "search") != (study.search is not None):
        raise ValueError(
            "exactly the studies of kind search must have a SearchInfo as search, but "
            f"got (kind={study.kind!r}, search={shown(study.search)})"
        )
    if (study.kind == "profile") != isinstance(study.trials[0].config, ProfileConfig):
        raise ValueError(
            "a study must have profiles if and only if it is of kind profile, but got "
            f"(kind={study.kind!r}, study={study.slug!r})"
        )
    CHECKS.get(study.kind, _nothing)(study)


def _nothing(study: Study) -> None:
    """Kinds without laws, such as distribution, need no factors."""


def _repeats(study: Study) -> None:
    if arm := _unequal_arm(study.trials, "seed"):
        raise ValueError(
            "the trials of an arm must differ only in seed in a study of kind repeats, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    if _requests(study, STABILITY):
        _check_not_pooled(
            study,
            "model, optimizer and epochs",
            lambda c: (c["model"], c["optimizer"], c["epochs"]),
        )
    if _requests(study, ("recipe_interaction",)):
        _check_factors(study, ("architecture", "recipe"))
        _check_not_pooled(
            study, "architecture and recipe", lambda c: (c["architecture"], c["recipe"])
        )


def _shapes(study: Study) -> None:
    if arm := _unequal_arm(study.trials, "seed", "lr"):
        raise ValueError(
            "the trials of an arm must differ only in lr and seed in a study of kind shapes, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    _check_factors(study, ("size",))
    _check_not_pooled(
        study,
        "size, drop path rule, depth, branches, LayerScale and epochs",
        lambda c: (
            c["size"],
            c.get(DROP_PATH_BY, ""),
            c["depth"],
            c["branches"],
            c["layerscale"] != 0,
            c["epochs"],
        ),
    )


def _profiles(study: Study) -> None:
    if not _requests(study, PROFILES):
        return
    names = ("model", "profile", "resolution", "batch_size", "layout")
    factors = [{**trial.config.asdict(), **trial.arm.factors} for trial in study.trials]
    num, cell = _most_common(tuple(c[name] for name in names) for c in factors)
    if num > 1:
        raise ValueError(
            f"profiles must differ in {', '.join(names)}, or in their factors, but "
            f"got ({num} of {shown(cell)})"
        )


CHECKS: dict[str, Callable[[Study], None]] = {
    "repeats": _repeats,
    "shapes": _shapes,
    "profile": _profiles,
}


def _requests(study: Study, names: Collection[str]) -> bool:
    return not set(names).isdisjoint({*study.tables, *study.figures})


def _conditions(study: Study) -> dict[str, dict[str, object]]:
    """Arm -> the fields of its first config, overridden by its factors."""
    first: dict[str, dict[str, object]] = {}
    for trial in study.trials:
        if trial.arm.name not in first:
            first[trial.arm.name] = {**trial.config.asdict(), **trial.arm.factors}
    return first


def _check_factors(study: Study, names: Collection[str]) -> None:
    absent = [arm for arm in study.arms.values() if not set(names) <= set(arm.factors)]
    if absent:
        raise ValueError(
            "the factors of each arm of a study with these tables must name "
            f"{' and '.join(names)}, but got (arm={absent[0].name!r}: "
            f"{shown(dict(absent[0].factors))})"
        )


def _check_not_pooled(study: Study, what: str, cell: Cell) -> None:
    by_arm = {arm: cell(c) for arm, c in _conditions(study).items()}
    num, most = _most_common(by_arm.values())
    if num > 1:
        pooled = [arm for arm, value in by_arm.items() if value == most]
        raise ValueError(
            f"arms must differ in {what}, in their configs or in their factors, to avoid pooling "
            f"them, but got ({shown(pooled)}: {shown(most)})"
        )


def _most_common(values: Iterable[tuple[object, ...]]) -> tuple[int, tuple[object, ...]]:
    value, num = Counter(values).most_common(1)[0]
    return num, value


def _unequal_arm(trials: Iterable[Trial], *ignored: str) -> str:
    """The first arm whose configs differ in a field that is not ignored; else empty."""
    first: dict[str, dict[str, Any]] = {}
    for trial in trials:
        fields = {
            name: value for name, value in trial.config.non_default().items() if name not in ignored
        }
        if first.setdefault(trial.arm.name, fields) != fields:
            return trial.arm.name
    return ""
