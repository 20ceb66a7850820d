"""Adaptive search: points are proposed in rounds, from the errors of earlier rounds.

Its points never feed a distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Self

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import Measured
from vitscale.plan.design import Point, SearchSpace, check_space, sample
from vitscale.plan.metrics import columns_of
from vitscale.plan.spelling import shown
from vitscale.plan.study import (
    MAX_TRIALS,
    SAMPLERS,
    Sampler,
    SearchInfo,
    Study,
    check_arguments,
    check_names,
    check_panels,
)
from vitscale.plan.trial import Arm, Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# Samplers learn from diverged trainings, too, so the worst value of the metric must be finite.
SEARCHED = tuple(name for name, column in columns_of("minival").items() if column.metric.is_bounded)


TRIES = 20  # proposals per new point, until one is new and gives a config


@dataclass(frozen=True, kw_only=True)
class Search:
    """A question answered by searching for good points.

    The next points depend on earlier outcomes, so no plan can be written at the start. But a round
    is a function of the rounds before it, whatever the machine: points of the same round do not
    depend on each other's errors. Raises ValueError if the parts contradict each other.
    """

    name: str  # as of a Study, like the next three
    scale: str
    question: str
    source: str
    # arm, or its name if it has no factors -> the config that its points modify
    arms: Mapping[str, TrainConfig] | Mapping[Arm, TrainConfig]
    spaces: Mapping[str, SearchSpace]  # name of the arm -> its axes
    num: int  # points per arm
    # each point is trained with each seed, and its value is the mean error
    seeds: tuple[int, ...] = (0,)
    # points per arm that are proposed at once; in the first round at random
    per_round: int = 4
    sampler: Sampler = "tpe"  # tpe: tree-structured Parzen estimator; gp: Gaussian process; random
    sampler_seed: int = 0  # of the proposals; another seed is another search
    asha: bool = False  # stop the worse trainings at a ninth and a third of their epochs
    metric: str = "minival_ema_error_pct"  # a bounded column of minival, as "minival_error_pct"
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as of a Study
    figures: tuple[str, ...] = (
        "search_history",
        "search_slices",
        "search_contour",
        "importance_bars",
    )
    tables: tuple[str, ...] = ("search_best", "search_importance")
    notes: str = ""
    # file of the project, such as "search_spaces/tuned/demo.json", from which other studies read
    # the winners; `vitscale adopt` writes it, and refuses a search without one
    winners_file: str = ""
    measured: Measured = field(default_factory=dict, compare=False, repr=False)  # as of a Study

    def __new__(cls, *args: object, **given: object) -> Self:
        check_arguments(cls, args, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _check_types(self)
        laws = (
            (
                f"sampler in ({', '.join(SAMPLERS)})",
                self.sampler in SAMPLERS,
                f"sampler={self.sampler!r}",
            ),
            (
                "winners_file of type .json within the project, or none,",
                not self.winners_file or _is_inner_json(self.winners_file),
                f"winners_file={shown(self.winners_file)}",
            ),
            (
                "distinct seeds, at least one,",
                len(set(self.seeds)) == len(self.seeds) > 0,
                f"seeds={shown(self.seeds)}",
            ),
            (
                "num_seeds == 1 with asha, which compares trainings and no means,",
                len(self.seeds) == 1 or not self.asha,
                f"num_seeds={len(self.seeds)}, asha={self.asha}",
            ),
            (
                (
                    f"a built-in metric on minival ({', '.join(SEARCHED)}), from which "
                    "no result of a study is taken,"
                ),
                self.metric in SEARCHED,
                f"metric={shown(self.metric)}",
            ),
            (
                "a space for each arm",
                {arm.name for arm in self.configs} == set(self.spaces) and bool(self.arms),
                f"arms={shown(sorted(map(str, self.arms)))}, spaces={shown(sorted(self.spaces))}",
            ),
            (
                f"at most {MAX_TRIALS} trials",
                self.num_trials <= MAX_TRIALS,
                (f"num={self.num}, arms={len(self.arms)}, seeds={len(self.seeds)}"),
            ),
        )
        for law, holds, values in laws:
            if not holds:
                raise ValueError(f"{law} must hold, but got ({values})")

    @property
    def slug(self) -> str:
        return f"{self.name}-{self.scale}"

    @property
    def configs(self) -> dict[Arm, TrainConfig]:
        """Maps each arm to the config that its points modify."""
        return {Arm.named(arm): config for arm, config in self.arms.items()}

    @property
    def num_trials(self) -> int:
        """The number of trials of all rounds, if no arm runs out of new points."""
        return len(self.arms) * self.num * len(self.seeds)

    @property
    def info(self) -> SearchInfo:
        """How points are chosen."""
        return SearchInfo(
            sampler=self.sampler,
            per_round=self.per_round,
            sampler_seed=self.sampler_seed,
            asha=self.asha,
        )

    def study(self, points: Mapping[str, Sequence[Point]]) -> Study:
        """The study of the points proposed so far; a point's number is its index within its arm."""
        plan = [
            Trial(arm, base.replace(**point, seed=seed), number)
            for arm, base in self.configs.items()
            for number, point in enumerate(points.get(arm.name, ()))
            for seed in self.seeds
        ]
        spaces = {trial.arm.name: as_json(self.spaces[trial.arm.name]) for trial in plan}
        return Study(
            kind="search",
            name=self.name,
            scale=self.scale,
            question=self.question,
            source=self.source,
            trials=tuple(plan),
            metric=self.metric,
            panels=self.panels,
            figures=self.figures,
            tables=self.tables,
            notes=self.notes,
            measured=self.measured,
            search=dataclasses.replace(self.info, spaces=spaces),
            design=(
                f"{self.num} points per arm, each trained with seeds "
                f"{', '.join(map(str, self.seeds))}, proposed by {self.info.describe()}."
            ),
        )

    def stand_in(
        self, proposed: Mapping[str, Sequence[Point]] | None = None, exhausted: Sequence[str] = ()
    ) -> Study:
        """A study of the points `proposed` and of random ones in place of the others, with the same
        number and cost of trials, for printing a plan. Arms that are `exhausted` get no others.

        Raises ValueError for a space of which too few points give a config.
        """
        points = {arm: list((proposed or {}).get(arm, ()))[: self.num] for arm in self.spaces}
        for arm, first in points.items():
            if len(first) < self.num and arm not in exhausted:
                first += self._lawful_sample(arm, first)
        return self.study(points)

    def _lawful_sample(self, arm: str, first: Sequence[Point]) -> list[Point]:
        """Random points to follow the `first` ones."""
        needed, taken = self.num - len(first), set(map(str, first))
        for num in (self.num, min(TRIES * self.num, MAX_TRIALS)):
            drawn = sample(self.spaces[arm], num=num, seed=self.sampler_seed)
            whys = [self.why_not(arm, point) for point in drawn]
            lawful = [point for point, why in zip(drawn, whys, strict=True) if not why]
            by_text = {str(point): point for point in lawful}
            distinct = [point for text, point in by_text.items() if text not in taken]
            if len(distinct) >= needed:
                return distinct[:needed]
        if len(lawful) >= self.num:  # the space has no more points
            return distinct
        raise ValueError(
            f"one of {TRIES} points of a space must give a config, but got {len(lawful)} of "
            f"{len(drawn)} (arm={arm!r}; {next(filter(None, whys))})"
        )

    def why_not(self, arm: str, point: Point) -> str:
        """Why a point gives no config of an arm; empty if it does."""
        config = next(base for other, base in self.configs.items() if other.name == arm)
        try:
            config.replace(**point)
        except ValueError as error:
            return str(error)
        return ""


def _is_inner_json(name: str) -> bool:
    path = PurePath(name)
    return path.suffix == ".json" and not path.is_absolute() and ".." not in path.parts


def _check_types(search: Search) -> None:
    """Raises ValueError for a field of the wrong type; the study checks texts."""
    check_names(search.name, search.scale)
    for name, lower in (("num", 1), ("per_round", 1), ("sampler_seed", 0)):
        value = getattr(search, name)
        if type(value) is not int:
            raise ValueError(f"{name} must be of type int, but got ({name}={shown(value)})")
        if not lower <= value <= MAX_TRIALS:
            law = f"{name} >= {lower}" if value < lower else f"{name} <= {MAX_TRIALS}"
            raise ValueError(f"{law} must hold, but got ({name}={shown(value)})")
    if type(search.asha) is not bool:
        raise ValueError(f"asha must be of type bool, but got (asha={shown(search.asha)})")
    seeds = search.seeds
    if not isinstance(seeds, tuple | list) or not all(
        type(seed) is int and 0 <= seed < 2**63 for seed in seeds
    ):
        raise ValueError(f"seeds must be a tuple of seeds from 0, but got (seeds={shown(seeds)})")
    for name in ("sampler", "metric", "winners_file"):
        if not isinstance(getattr(search, name), str):
            raise ValueError(
                f"{name} must be of type str, but got ({name}={shown(getattr(search, name))})"
            )
    for name, values, kind, described in (
        ("arms", search.arms, TrainConfig, "TrainConfig"),
        ("spaces", search.spaces, Mapping, "axes"),
    ):
        if not isinstance(values, Mapping) or not all(
            isinstance(value, kind) for value in values.values()
        ):
            raise ValueError(
                f"{name} must map each arm to its {described}, but got ({name}={shown(values)})"
            )
        for arm in values:
            Arm.named(arm)  # which refuses other names
    for arm, axes in search.spaces.items():
        check_space(axes, f"space of {arm}")
    check_panels(search.panels)


def as_json(space: SearchSpace) -> dict[str, str]:
    """Maps each axis to its distribution in Optuna's JSON format."""
    from optuna.distributions import distribution_to_json

    return {name: distribution_to_json(axis) for name, axis in space.items()}


def rounded(axis: BaseDistribution, value: object) -> object:
    """A proposed value as it will be trained: floats keep 6 digits, and stay within the space."""
    from optuna.distributions import FloatDistribution

    if not isinstance(axis, FloatDistribution) or axis.step is not None:
        return value
    return min(max(float(f"{value:.6g}"), axis.low), axis.high)
