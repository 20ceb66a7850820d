"""Designs (grid, sample, sobol, cross), and how arms and points become trials."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vitscale.plan.config import TrainConfig
from vitscale.plan.laws import FREE
from vitscale.plan.spelling import shown
from vitscale.plan.study import MAX_TRIALS
from vitscale.plan.trial import Arm, Trial

if TYPE_CHECKING:  # the trainer runs on machines without Optuna
    from optuna.distributions import BaseDistribution, IntDistribution

Point = dict[str, Any]  # values of a few TrainConfig fields
SearchSpace = Mapping[str, "BaseDistribution"]


def grid(**axes: Iterable[Any]) -> list[Point]:
    """All combinations of the axes' values; the last axis varies fastest."""
    values: dict[str, list[Any]] = {}
    for name, axis in axes.items():
        if isinstance(axis, str) or not isinstance(axis, Iterable):
            raise ValueError(
                f"an axis of a grid must be a list of values, but got ({name}={shown(axis)})"
            )
        values[name] = list(itertools.islice(axis, MAX_TRIALS + 1))
        if not values[name]:
            raise ValueError(f"an axis of a grid must have a value, but got ({name}=[])")
    _check_num(math.prod(map(len, values.values())), "points of a grid")
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def sample(space: SearchSpace, *, num: int, seed: int = 0) -> list[Point]:
    """`num` independent draws from a search space.

    Draw i does not depend on num: a longer sample extends a shorter one.
    """
    _check_sample(space, num)
    return [_point(space, np.random.default_rng([seed, i]).random(len(space))) for i in range(num)]


def sobol(space: SearchSpace, *, num: int, num_scrambles: int, seed: int = 0) -> list[Point]:
    """`num` points of `num_scrambles` independently scrambled Sobol sequences, one after another.

    The points are more evenly spread than those of `sample`, and no longer i.i.d.: intervals must
    be based on the variance between scrambles, so at least 2 are needed. num / num_scrambles must
    be a power of 2, at which Sobol points are balanced. More scrambles extend the design; more
    points per scramble give a new one.
    """
    from scipy.stats import qmc

    _check_sample(space, num)
    if type(num_scrambles) is not int or num_scrambles < 2:
        raise ValueError(
            f"num_scrambles >= 2 must hold, but got (num_scrambles={shown(num_scrambles)})"
        )
    size, rest = divmod(num, num_scrambles)
    if rest or size & (size - 1):
        raise ValueError(
            f"num / num_scrambles must be a power of 2, but got (num={num}, "
            f"num_scrambles={num_scrambles})"
        )
    scrambles = (
        qmc.Sobol(len(space), scramble=True, rng=np.random.default_rng([seed, r])).random(size)
        for r in range(num_scrambles)
    )
    return [_point(space, row) for scramble in scrambles for row in scramble]


def cross(*designs: Sequence[Point]) -> list[Point]:
    """Every point of the first design combined with every point of the next ones.

    The last design varies fastest.
    """
    _check_num(math.prod(map(len, designs)), "points of crossed designs")
    points = []
    for parts in itertools.product(*designs):
        names = [name for part in parts for name in part]
        if len(names) != len(set(names)):
            raise ValueError(
                f"crossed designs must have no axis in common, but got ({sorted(names)})"
            )
        points.append({name: value for part in parts for name, value in part.items()})
    return points


def trials(
    base: TrainConfig,
    arms: Mapping[str, Point] | Mapping[Arm, Point],
    points: Sequence[Point],
) -> tuple[Trial, ...]:
    """A trial for every arm at every point, point by point.

    All arms share the points, so they can be compared in pairs. An arm is given by its name, or as
    an Arm if it has factors. Raises ValueError unless `base` is a config, and arms and points are
    as annotated.
    """
    if not isinstance(base, TrainConfig):
        raise ValueError(f"base must be a TrainConfig, but got (base={shown(base)})")
    if not isinstance(arms, Mapping) or not all(
        isinstance(fields, Mapping) for fields in arms.values()
    ):
        raise ValueError(f"arms must map each arm to its fields, but got (arms={shown(arms)})")
    if not isinstance(points, Sequence) or not all(isinstance(point, Mapping) for point in points):
        raise ValueError(
            "points must be a list of points, such as grid or sample make, but got "
            f"({shown(points)})"
        )
    _check_num(len(arms) * len(points), "trials")
    # where points give the same fields, of FREE alone, each is a change of the first one
    names = set(points[0]) if points else set()
    alike = names <= set(FREE) and all(point.keys() == names for point in points)
    made = [
        (Arm.named(arm), fields, base.replace(**{**fields, **points[0]}) if points else base)
        for arm, fields in arms.items()
    ]
    return tuple(
        Trial(arm, first.replace(**point) if alike else base.replace(**{**fields, **point}), index)
        for index, point in enumerate(points)
        for arm, fields, first in made
    )


def interleaved(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The same trials, reordered: references of all arms first, then point by point over the arms.

    Trials are trained in the order of the plan. So an unfinished study has references for every arm
    and about the same draws of each, whatever the order in which the arms were made.
    """
    ranks: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def place(trial: Trial) -> tuple[bool, int]:
        return trial.point is not None, next(
            ranks[trial.arm.name]
        ) if trial.point is None else trial.point

    return tuple(sorted(trials, key=place))


def _check_sample(space: SearchSpace, num: int) -> None:
    if type(num) is not int or num < 1:
        raise ValueError(f"num >= 1 must hold, but got (num={shown(num)})")
    _check_num(num, "points of a sample")
    check_space(space, "space")


def _check_num(num: int, what: str) -> None:
    """Raises ValueError for more than a study can hold, before they are drawn."""
    if num > MAX_TRIALS:
        raise ValueError(f"at most {MAX_TRIALS} {what} must hold, but got ({shown(num)})")


def check_space(space: SearchSpace, name: str) -> None:
    """Raises ValueError unless a space has axes and all are Optuna distributions."""
    from optuna.distributions import BaseDistribution

    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"a search space must have an axis, but got ({name}={shown(space)})")
    for axis, distribution in space.items():
        if not isinstance(distribution, BaseDistribution):
            raise ValueError(
                f"an axis must be an optuna distribution, but got ({name}, "
                f"{axis}={shown(distribution)})"
            )


def _point(space: SearchSpace, u: np.ndarray) -> Point:
    return {
        name: _quantile(axis, float(q)) for (name, axis), q in zip(space.items(), u, strict=True)
    }


def _quantile(axis: BaseDistribution, q: float) -> Any:
    """The value of an axis at probability q in [0, 1).

    Floats keep 6 digits, so that they are the same on platforms with different math libraries.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, CategoricalDistribution):
        return axis.choices[int(q * len(axis.choices))]
    if isinstance(axis, IntDistribution):
        return _int_quantile(axis, q)
    if isinstance(axis, FloatDistribution):
        if axis.step is not None:
            num = round((axis.high - axis.low) / axis.step) + 1
            return float(f"{axis.low + int(q * num) * axis.step:.6g}")
        value = float(f"{_interpolate(axis.low, axis.high, q, axis.log):.6g}")
        return min(max(value, axis.low), axis.high)
    raise ValueError(f"an axis must be an optuna distribution, but got ({axis!r})")


def _int_quantile(axis: IntDistribution, q: float) -> int:
    if axis.log:  # each integer owns the interval of half a unit around it, as in Optuna
        nearest = round(_interpolate(axis.low - 0.5, axis.high + 0.5, q, log=True))
        return int(min(max(nearest, axis.low), axis.high))
    return int(axis.low + int(q * ((axis.high - axis.low) // axis.step + 1)) * axis.step)


def _interpolate(low: float, high: float, q: float, log: bool) -> float:
    if log:
        return math.exp(math.log(low) + q * (math.log(high) - math.log(low)))
    return low + q * (high - low)
