"""A search: points are proposed in rounds, from the errors of earlier ones. It never feeds a distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitscale.plan.config import TrainConfig
from vitscale.plan.design import Point, SearchSpace, sample
from vitscale.plan.study import Study, Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SAMPLERS = {"tpe": "TPE", "gp": "Gaussian process"}


@dataclass(frozen=True, kw_only=True)
class Search:
    """A question that is answered by looking for good points. Raises ValueError if the parts contradict each other.

    What is asked next depends on what came out, so there is no plan to write down at the start; but a round is a
    function of the rounds before it, whatever the machine: points of one round know nothing of each other's errors.
    """

    name: str  # as of a Study
    scale: str
    question: str
    source: str
    arms: Mapping[str, TrainConfig]  # arm -> all that its points share
    spaces: Mapping[str, SearchSpace]  # arm -> its axes
    num: int  # points an arm
    seeds: tuple[int, ...] = (0,)  # a point is trained with each of them, and its value is the mean error
    per_round: int = 4  # points of an arm that are proposed at once; those of the first round at random
    sampler: str = "tpe"
    sampler_seed: int = 0
    asha: bool = False  # stop trainings that are behind at a third, at a ninth, ... of their epochs
    metric: str = "minival_ema_error_pct"
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    figures: tuple[str, ...] = ("search_history", "search_slices", "search_contour")
    tables: tuple[str, ...] = ("search_best", "search_importance")
    notes: str = ""

    def __post_init__(self) -> None:
        laws = (
            (f"sampler in ({', '.join(SAMPLERS)})", self.sampler in SAMPLERS, f"sampler={self.sampler!r}"),
            ("num >= 1", self.num >= 1, f"num={self.num}"),
            ("per_round >= 1", self.per_round >= 1, f"per_round={self.per_round}"),
            ("distinct seeds, at least one,", len(set(self.seeds)) == len(self.seeds) > 0, f"seeds={self.seeds}"),
            ("num_seeds == 1 with asha, which compares trainings and no means,", len(self.seeds) == 1 or not self.asha,
             f"num_seeds={len(self.seeds)}, asha={self.asha}"),
            ("a metric on minival, where no result of a study comes from,", self.metric.startswith("minival_"),
             f"metric={self.metric!r}"),
            ("a space for each arm", set(self.arms) == set(self.spaces) and bool(self.arms),
             f"arms={sorted(self.arms)}, spaces={sorted(self.spaces)}"),
        )  # fmt: skip
        for law, holds, values in laws:
            if not holds:
                raise ValueError(f"{law} must hold, but got ({values})")

    @property
    def slug(self) -> str:
        return f"{self.name}-{self.scale}"

    @property
    def num_trials(self) -> int:
        """Of all rounds, if none is stopped for want of new points."""
        return len(self.arms) * self.num * len(self.seeds)

    @property
    def adaptive(self) -> str:
        """How points are chosen, in words."""
        stops = ", stopped early by ASHA" if self.asha else ""
        return f"{SAMPLERS[self.sampler]}, {self.per_round} points at a time, sampler seed {self.sampler_seed}{stops}"

    def study(self, asked: Mapping[str, Sequence[Point]]) -> Study:
        """The study of the points that were asked so far; a point's number is its place in its arm."""
        plan = [
            Trial(arm, base.replace(**point, seed=seed), number)
            for arm, base in self.arms.items()
            for number, point in enumerate(asked.get(arm, ()))
            for seed in self.seeds
        ]
        spaces = {trial.arm: as_json(self.spaces[trial.arm]) for trial in plan}
        return Study(
            name=self.name, scale=self.scale, question=self.question, source=self.source, trials=tuple(plan),
            metric=self.metric, panels=self.panels, figures=self.figures, tables=self.tables, notes=self.notes,
            adaptive=self.adaptive, spaces=spaces,
            design=f"{self.num} points an arm, each trained with seeds {', '.join(map(str, self.seeds))}, proposed by "
            f"{self.adaptive}.",
        )  # fmt: skip

    def stand_in(self) -> Study:
        """A study of as many trials that cost as much, at points drawn at random: for a plan before there is one."""
        return self.study({arm: sample(space, num=self.num, seed=self.sampler_seed)
                           for arm, space in self.spaces.items()})  # fmt: skip


def as_json(space: SearchSpace) -> dict[str, str]:
    """Axis -> its distribution as Optuna writes it."""
    from optuna.distributions import distribution_to_json

    return {name: distribution_to_json(axis) for name, axis in space.items()}


def rounded(axis: BaseDistribution, value: object) -> object:
    """A proposed value as it is trained: floats keep 6 digits, and stay in the space."""
    from optuna.distributions import FloatDistribution

    if not isinstance(axis, FloatDistribution) or axis.step is not None:
        return value
    return min(max(float(f"{value:.6g}"), axis.low), axis.high)
