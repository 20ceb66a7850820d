"""Laws of each kind of study about its plan, checked before anything is trained.

The analysis of a kind is in vitscale.analysis; user-defined kinds have no laws here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitscale.plan.parents import setting, trainings
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.questions import COMPARED, check_questions, compares_pairs, of_kind
from vitscale.plan.spelling import shown
from vitscale.plan.trial import Plan, check_factors, check_not_pooled, most_common


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
    if study.kind in VARIED:
        _check_varied(study, VARIED[study.kind])
    if check := CHECKS.get(study.kind):
        check(study)
    check_questions(study)


def check_use(study: Plan) -> None:
    """Raises ValueError for a pair that is named twice, and if the kind would ignore pairs, arms or
    a margin, which a stored study may have.
    """
    if study.kind == "search" and (study.pairs or study.num_scrambles):
        raise ValueError(
            "a search must have no pairs and no scrambles, since its points are biased toward low "
            f"values, but got (pairs={shown(study.pairs)}, num_scrambles={study.num_scrambles})"
        )
    ignored = study.kind in ("repeats", "shapes", "scaling", "profile") and study.pairs
    if ignored and not compares_pairs(study):
        raise ValueError(
            "pairs must be of a study that compares them (kind distribution, or kind repeats, "
            "shapes or scaling with the table pair_differences), but got "
            f"(kind={study.kind!r}, pairs={shown(study.pairs)})"
        )
    num, pair = most_common(tuple(sorted(pair)) for pair in study.pairs) if study.pairs else (0, ())
    if num > 1:
        raise ValueError(
            "each two arms must be a pair once, since p is corrected for their number, but got "
            f"(arms={shown(pair)}, times={num})"
        )
    if study.margin is not None and of_kind(study.kind) and not COMPARED.keys() & {*study.tables}:
        raise ValueError(
            "a margin must be of a study with a table of comparisons, which judges by it, but got "
            f"(margin={study.margin:g}, kind={study.kind!r}, tables={shown(study.tables)})"
        )
    drawn = {trial.arm.name for trial in study.trials if trial.point is not None}
    without = [arm for arm in study.arms if arm not in drawn]
    if study.kind == "distribution" and without:
        raise ValueError(
            "an arm of a distribution must have draws, which are trials with a point, but got "
            f"(arm={without[0]!r}: reference runs alone)"
        )


def _scaling(study: Plan) -> None:
    check_factors(study, ("family", "size"))
    check_not_pooled(
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


def _search(study: Plan) -> None:
    for trial in study.trials:
        if trial.config.trunk:
            raise ValueError(
                "the trials of a search must start from initial weights, but got "
                f"(arm={trial.arm.name!r}, trunk={trial.config.trunk!r})"
            )


# fields in which the trials of an arm may differ
VARIED = {"repeats": ("seed",), "shapes": ("lr", "seed"), "scaling": ("lr", "seed")}
CHECKS: dict[str, Callable[[Plan], None]] = {"scaling": _scaling, "search": _search}


def _check_varied(study: Plan, varied: tuple[str, ...]) -> None:
    """Raises ValueError for an arm whose configs differ in another field.

    Where a trial starts on its trunk makes no difference to its outcome, and parents of an arm may
    differ in their seed (plan/parents.py).
    """
    first: dict[str, dict[str, Any]] = {}
    planned = trainings(study) if any(trial.config.parents for trial in study.trials) else {}
    for trial in study.trials:
        config = trial.config.in_one_piece()
        if config.parents:
            config = setting(planned, config).replace(seed=config.seed)
        fields = {name: value for name, value in config.non_default().items() if name not in varied}
        if first.setdefault(trial.arm.name, fields) != fields:
            raise ValueError(
                f"the trials of an arm must differ only in {' and '.join(varied)} in a study of "
                f"kind {study.kind}, but got (study={study.slug!r}, arm={trial.arm.name!r})"
            )
