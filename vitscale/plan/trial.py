"""A trial and its arm: one training run, and the condition that it is a run of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import Complexity
from vitscale.plan.spelling import shown

MOST_IN_A_LABEL = 200  # characters
# the factor of a shape for how its drop path is chosen: by "size" or by "depth"
DROP_PATH_BY = "drop_path_by"

Factors = Mapping[str, str | int | float]
Cell = Callable[[Mapping[str, Any]], tuple[object, ...]]  # of the conditions of an arm


@dataclass(frozen=True)
class Arm:
    """A condition that is compared: one curve of a figure, one row of a table.

    `factors` describe the arm where the config does not, such as {"model": "ViT_P-1GF"}. Tables
    group by them; nothing is parsed from the name. Raises ValueError for a name or value that
    cannot be drawn.
    """

    name: str  # its label in figures and tables; panels and pairs name it
    factors: Factors = field(default_factory=dict)  # name -> value, the same names for all arms

    def __post_init__(self) -> None:
        check_label("an arm", self.name)
        if not isinstance(self.factors, Mapping):
            raise ValueError(
                "factors of an arm must map names to values, but got "
                f"(factors={shown(self.factors)})"
            )
        for name, value in self.factors.items():
            _check_factor(name, value)
        object.__setattr__(self, "factors", dict(self.factors))

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def named(cls, arm: Arm | str) -> Arm:
        """An arm as it is; a name as an arm without factors."""
        return arm if isinstance(arm, Arm) else cls(arm)


@dataclass(frozen=True, init=False)
class Trial:
    """One training run to completion, as part of an arm.

    A string as `arm` is the name of an arm without factors. `point` is the index in the arm's
    design; trials of two arms with the same index share the point. None marks a reference run,
    trained at the arm's tuned optimum, which is not a draw of the design. In studies of repeats,
    shapes and scaling, an arm without any point has no reference: its trials are numbered.
    """

    arm: Arm  # or its name
    config: TrainConfig  # or a ProfileConfig
    point: int | None  # number of the draw; None, or nothing, for a reference run

    def __init__(self, arm: Arm | str, config: TrainConfig, point: int | None = None) -> None:
        for name, value in (("arm", Arm.named(arm)), ("config", config), ("point", point)):
            object.__setattr__(self, name, value)


class Plan(Protocol):
    """What laws read of a study while it is made."""

    @property
    def kind(self) -> str: ...
    @property
    def slug(self) -> str: ...
    @property
    def trials(self) -> tuple[Trial, ...]: ...
    @property
    def parents(self) -> tuple[TrainConfig, ...]: ...
    @property
    def arms(self) -> Mapping[str, Arm]: ...
    @property
    def panels(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def pairs(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def tables(self) -> tuple[str, ...]: ...
    @property
    def figures(self) -> tuple[str, ...]: ...
    @property
    def margin(self) -> float | None: ...
    @property
    def axis(self) -> str: ...
    @property
    def search(self) -> object | None: ...
    @property
    def num_scrambles(self) -> int: ...
    def cost(self, config: TrainConfig) -> Complexity: ...


def conditions(plan: Plan) -> dict[str, dict[str, Any]]:
    """Arm -> the fields of its first config, overridden by its factors."""
    first: dict[str, dict[str, Any]] = {}
    for trial in plan.trials:
        if trial.arm.name not in first:
            first[trial.arm.name] = {**trial.config.axes(), **trial.arm.factors}
    return first


def check_label(what: str, label: object) -> None:
    """Raises ValueError unless a label can be drawn; in figures, $ starts a formula."""
    whole = (
        isinstance(label, str)
        and label.isprintable()
        and label.strip() == label != ""
        and "$" not in label
    )
    if not whole or len(str(label)) > MOST_IN_A_LABEL:
        raise ValueError(
            f"{what} must be one line of plain text without $, of 1 to {MOST_IN_A_LABEL} "
            f"characters, but got ({shown(label)})"
        )


def _check_factor(name: object, value: object) -> None:
    """Raises ValueError unless a factor has a name and a value that tables can show."""
    check_label("the name of a factor", name)
    if type(value) not in (str, int, float) or value != value:
        raise ValueError(
            "a factor must be a str, an int, or a float other than NaN, but got "
            f"({name}={shown(value)})"
        )
    if isinstance(value, str):
        check_label("a factor", value)


# ---- laws that kinds and questions share


def check_factors(study: Plan, names: Collection[str]) -> None:
    """Raises ValueError unless the factors of each arm name these."""
    absent = [arm for arm in study.arms.values() if not set(names) <= set(arm.factors)]
    if absent:
        raise ValueError(
            "the factors of each arm of a study with these tables must name "
            f"{' and '.join(names)}, but got (arm={absent[0].name!r}: "
            f"{shown(dict(absent[0].factors))})"
        )


def check_not_pooled(study: Plan, what: str, cell: Cell) -> None:
    """Raises ValueError for two arms of one cell, which are told apart by `what`."""
    by_arm = {arm: cell(c) for arm, c in conditions(study).items()}
    num, most = most_common(by_arm.values())
    if num > 1:
        pooled = [arm for arm, value in by_arm.items() if value == most]
        raise ValueError(
            f"arms must differ in {what}, in their configs or in their factors, to avoid pooling "
            f"them, but got ({shown(pooled)}: {shown(most)})"
        )


def most_common(values: Iterable[tuple[object, ...]]) -> tuple[int, tuple[object, ...]]:
    """(how often it occurs, the most frequent value)."""
    value, num = Counter(values).most_common(1)[0]
    return num, value
