"""Laws of each kind of study about its plan, checked before anything is trained.

The analysis of a kind is in vitscale.analysis; user-defined kinds have no laws here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from vitscale.plan.comparisons import factorial
from vitscale.plan.parents import setting
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.spelling import shown
from vitscale.plan.trial import DROP_PATH_BY, Arm, Plan, Trial, conditions

Cell = Callable[[Mapping[str, object]], tuple[object, ...]]
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
VIEWS = ("branches", "widths", "depths")  # figures of one panel each, of the same name
SHAPES = (
    "shape_cells",
    "branch_differences",
    "layerscale_and_epochs",
    "blocks_or_width",
    "published_depth_vs_width",
    *VIEWS,
)
PROFILES = (
    "throughput",
    "throughput_by_batch",
    "throughput_gain",
    "throughput_by_resolution",
    "peak_memory",
)

SCALING = (
    "scaling_cells",
    "scaling_fit",
    "scaling_curves",
    "scaling_forecast",
    "scaling_forecast_far",
    "scaling_frontier",
    "scaling_crossing",
    "error_by_scale",
    "error_by_compute",
)
# tables that fit a law
LAWS = (
    "scaling_fit",
    "scaling_curves",
    "scaling_forecast",
    "scaling_forecast_far",
    "scaling_crossing",
)
# kind -> tables that compare pairs, where nothing else does
OF_PAIRS: dict[str, tuple[str, ...]] = {
    "repeats": ("pair_differences",),
    "scaling": ("pair_differences",),
    "profile": (),
    "shapes": ("pair_differences", "blocks_or_width"),
}
FAR = 4  # times the largest value of an axis that a law was fitted to; beyond it only if asked for
MIN_VALUES = 3  # of an axis, for a gain, an exponent and a floor; one more where one is held out


def family_of(arm: Arm) -> tuple[str, str]:
    """(size, rule for drop path) of a shape: shapes are compared within both."""
    return str(arm.factors["size"]), str(arm.factors.get(DROP_PATH_BY, ""))


def fits_laws(study: Plan) -> bool:
    """Whether tables of the study fit a law over its arms."""
    return _requests(study, LAWS)


def check_kind(study: Plan) -> None:
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
    of_cells = study.kind in ("repeats", "shapes")
    if of_cells and _requests(study, ("factorial_effects", "factorial_means", "factorial_grid")):
        factorial(study)


def check_use(study: Plan) -> None:
    """Raises ValueError if the kind would ignore pairs or arms, which a stored study may have."""
    using = OF_PAIRS.get(study.kind)
    if study.pairs and using is not None and not _requests(study, using):
        raise ValueError(
            "pairs must be of a study that compares them (kind distribution, or kind repeats, "
            "shapes or scaling with the table pair_differences), but got "
            f"(kind={study.kind!r}, pairs={shown(study.pairs)})"
        )
    drawn = {trial.arm.name for trial in study.trials if trial.point is not None}
    without = [arm for arm in study.arms if arm not in drawn]
    if study.kind == "distribution" and without:
        raise ValueError(
            "an arm of a distribution must have draws, which are trials with a point, but got "
            f"(arm={without[0]!r}: reference runs alone)"
        )


def _nothing(study: Plan) -> None:
    """Kinds without laws, such as distribution, need no factors."""


def _repeats(study: Plan) -> None:
    if arm := _unequal_arm(study, "seed"):
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


def _shapes(study: Plan) -> None:
    if arm := _unequal_arm(study, "seed", "lr"):
        raise ValueError(
            "the trials of an arm must differ only in lr and seed in a study of kind shapes, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    without = [name for name in VIEWS if name in study.figures and name not in study.panels]
    if without:
        raise ValueError(
            f"the figures {', '.join(VIEWS)} must have a panel of their name, with their arms, but "
            f"got (figure={without[0]!r}, panels={shown(list(study.panels))})"
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


def _scaling(study: Plan) -> None:
    if arm := _unequal_arm(study, "seed", "lr"):
        raise ValueError(
            "the trials of an arm must differ only in lr and seed in a study of kind scaling, but "
            f"got (study={study.slug!r}, arm={arm!r})"
        )
    _check_factors(study, ("family", "size"))
    _check_not_pooled(
        study,
        "family, size, images and epochs",
        lambda c: (c["family"], c["size"], c["subset_images"], c["epochs"]),
    )
    without = next((t for t in study.trials if "minival" not in t.config.evals), None)
    if without is not None:
        raise ValueError(
            "a study of kind scaling must evaluate on minival, which chooses each lr, but got "
            f"(arm={without.arm.name!r}, evals={shown(without.config.evals)})"
        )
    if _requests(study, LAWS):
        for family, values in _axes(study).items():
            _check_axes(study, family, values)


def _axes(study: Plan) -> dict[str, dict[str, list[float]]]:
    """Family -> axis of a law -> its values, ascending: parameters and training images."""
    cells: dict[str, dict[str, Trial]] = {}
    for trial in study.trials:
        cells.setdefault(str(trial.arm.factors["family"]), {}).setdefault(trial.arm.name, trial)
    found: dict[str, dict[str, list[float]]] = {}
    for family, of in cells.items():
        images = sorted({float(trial.config.num_train) for trial in of.values()})
        sizes = {trial.arm.factors["size"]: trial.config for trial in of.values()}
        # one size needs no cost, which not every model has in closed form
        several = len(sizes) > 1
        params = {float(study.cost(c).params) for c in sizes.values()} if several else {1.0}
        found[family] = {"size": sorted(params), "images": images}
    return found


def _check_axes(study: Plan, family: str, axes: Mapping[str, list[float]]) -> None:
    """Raises ValueError for a law of too few values, and for a forecast beyond the range."""
    varied = {axis: values for axis, values in axes.items() if len(values) > 1}
    held_out = next(iter(varied), "size")
    for axis, values in (varied or axes).items():
        least = MIN_VALUES + (axis == held_out)
        if len(values) < least:
            held = ", one of which is held out" if axis == held_out else ""
            raise ValueError(
                f"a scaling law must have at least {least} values of {axis}{held}, but got "
                f"(family={family!r}, {axis}={', '.join(f'{value:g}' for value in values)})"
            )
    *_, before, last = varied[held_out]
    if last > FAR * before and "scaling_forecast_far" not in study.tables:
        raise ValueError(
            f"the {held_out} that is held out must be at most {FAR} times the next one without "
            f"--far, but got (family={family!r}, {held_out}={last:g}, next={before:g})"
        )


def _profiles(study: Plan) -> None:
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


def _search(study: Plan) -> None:
    for trial in study.trials:
        if trial.config.trunk:
            raise ValueError(
                "the trials of a search must start from initial weights, but got "
                f"(arm={trial.arm.name!r}, trunk={trial.config.trunk!r})"
            )


CHECKS: dict[str, Callable[[Plan], None]] = {
    "repeats": _repeats,
    "shapes": _shapes,
    "scaling": _scaling,
    "profile": _profiles,
    "search": _search,
}


def _requests(study: Plan, names: Collection[str]) -> bool:
    return not set(names).isdisjoint({*study.tables, *study.figures})


def _check_factors(study: Plan, names: Collection[str]) -> None:
    absent = [arm for arm in study.arms.values() if not set(names) <= set(arm.factors)]
    if absent:
        raise ValueError(
            "the factors of each arm of a study with these tables must name "
            f"{' and '.join(names)}, but got (arm={absent[0].name!r}: "
            f"{shown(dict(absent[0].factors))})"
        )


def _check_not_pooled(study: Plan, what: str, cell: Cell) -> None:
    by_arm = {arm: cell(c) for arm, c in conditions(study).items()}
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


def _unequal_arm(study: Plan, *ignored: str) -> str:
    """The first arm whose configs differ in a field that is not ignored; else empty.

    Where a trial starts on its trunk makes no difference to its outcome, and parents of an arm may
    differ in their seed (plan/parents.py).
    """
    first: dict[str, dict[str, Any]] = {}
    for trial in study.trials:
        config = trial.config.in_one_piece()
        if config.init_from:
            config = setting(study, config).replace(seed=config.seed)
        fields = {
            name: value for name, value in config.non_default().items() if name not in ignored
        }
        if first.setdefault(trial.arm.name, fields) != fields:
            return trial.arm.name
    return ""
