"""Two arms side by side, from one study or two: how draws ended, errors, and differing fields.

Assumptions: draws of an arm are independent, and means are nearly normal. Medians are over all
draws with an outcome, where a diverged or failed draw counts as the metric's worst value. Means are
over finished draws. They have an interval only if the draws of both arms are one setting with
different seeds: over lr and wd errors have a long tail, and Student's interval of 8 draws covers 80
to 87% instead of 95%. No p is given, and nothing is corrected for the number of arms: an unplanned
comparison is exploratory and not a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.columns import interval_of, named
from vitscale.analysis.distribution.population import scrambles
from vitscale.analysis.estimates import Contrast
from vitscale.analysis.kind import mixed_evaluations
from vitscale.analysis.kinds import kind_of
from vitscale.analysis.results import STATUSES
from vitscale.analysis.stats.intervals import median_difference, median_interval, minus
from vitscale.catalog.datasets import DATASETS, original
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.metrics import Metric
from vitscale.plan.spelling import did_you_mean
from vitscale.plan.study import Study

Estimate = tuple[float, float, float]  # estimate, low, high
NONE: Estimate = (np.nan, np.nan, np.nan)
COUNTS = ("planned", "n", "diverged", "failed", "missing")
MAX_VALUES = 4  # of a field that a cell lists


@dataclass(frozen=True)
class Side:
    """An arm of a study, and the study's table with one row per planned trial."""

    study: Study
    outcomes: pd.DataFrame
    arm: str

    @property
    def name(self) -> str:
        return f"{self.study.slug}:{self.arm}"

    @property
    def draws(self) -> pd.DataFrame:
        """Rows of the planned draws, without reference runs."""
        return self.outcomes[(self.outcomes["arm"] == self.arm) & self.outcomes["point"].notna()]

    @property
    def ended(self) -> pd.DataFrame:
        """Rows of the draws with an outcome."""
        return self.draws[self.draws["status"] != "missing"]

    @property
    def configs(self) -> list[TrainConfig]:
        """Configs of the planned draws, or of the reference runs if there are no draws."""
        trials = [trial for trial in self.study.trials if trial.arm.name == self.arm]
        return [t.config for t in trials if t.point is not None] or [t.config for t in trials]


def arm_pairs(
    a: Study, b: Study, arm_a: str | None = None, arm_b: str | None = None
) -> list[tuple[str, str]]:
    """The arms to compare: the named ones, else those with equal names, else the only ones.

    Raises ValueError for an arm that a study lacks, and if neither names nor the number of arms
    determine the pairs.
    """
    of_a, of_b = (_arms(*side) for side in ((a, arm_a), (b, arm_b)))
    if len(of_a) == len(of_b) == 1:
        return [(of_a[0], of_b[0])]
    pairs = [(arm, arm) for arm in of_a if arm in of_b]
    if not pairs:
        raise ValueError(
            f"the two must share an arm, or STUDY:ARM must name one of each, but got ({a.slug}: "
            f"{', '.join(of_a)}; {b.slug}: {', '.join(of_b)})"
        )
    return pairs


def _arms(study: Study, arm: str | None) -> tuple[str, ...]:
    if arm is None:
        return tuple(study.arms)
    if arm not in study.arms:
        raise ValueError(
            f"an arm must be of {study.slug}, but got ({arm!r}; there are: "
            f"{', '.join(study.arms)}){did_you_mean(arm, study.arms)}"
        )
    return (arm,)


def incomparable_reason(a: Side, b: Side) -> str:
    """Why two arms cannot be compared: the law and the values; "" if they can."""
    for side in (a, b):
        if law := kind_of(side.study).incomparable:
            return f"{law}, but got ({side.name})"
    if a.study.metric != b.study.metric:
        return (
            f"arms compared must have one metric, but got ({a.study.metric!r}, {b.study.metric!r})"
        )
    images = [{_evaluated_on(config) for config in side.configs} for side in (a, b)]
    if images[0] != images[1]:
        shown = [", ".join(sorted({config.dataset for config in side.configs})) for side in (a, b)]
        return (
            f"arms compared must be evaluated on the same images, but got ({a.name}: {shown[0]}; "
            f"{b.name}: {shown[1]}, split {a.configs[0].eval_split})"
        )
    if mixed := mixed_evaluations(pd.concat([a.ended, b.ended])):
        return f"arms compared must be evaluated on the same images, but got ({mixed[0]})"
    return ""


def _evaluated_on(config: TrainConfig) -> tuple[object, ...]:
    """What determines the images of the evaluation.

    A dataset prepared at another size is the same dataset.
    """
    carved = (
        (config.minival_images, config.minival_rule, config.split_seed)
        if config.eval_split == "minival"
        else ()
    )
    dataset = original(config.dataset)
    return dataset if dataset in DATASETS else config.dataset, config.eval_split, *carved


def side_by_side(a: Side, b: Side) -> dict[str, object]:
    """Plain values: counts and errors of both arms, their difference and the fields that differ.

    Estimates have 95% intervals. The difference a - b is over pairs of draws if the plans share
    them (see `paired_by`), else between independent draws; negative favours a. Raises ValueError
    for arms that cannot be compared.
    """
    reason = incomparable_reason(a, b)
    if reason:
        raise ValueError(reason)
    fields = paired_by(a, b)
    difference = _unpaired(a, b) if fields is None else _paired(a, b, fields)
    shared = len({config.id for config in a.configs} & {config.id for config in b.configs})
    return {
        "metric": a.study.metric,
        "a": _summary(a),
        "b": _summary(b),
        "difference": difference,
        "shared_trials": shared,
        "fields": differing(a.configs, b.configs),
    }


def paired_by(a: Side, b: Side) -> list[str] | None:
    """The fields that vary within the arms, if they pair every draw of the smaller arm; else None.

    Draws of one design share lr, wd and seed; repeats share the seed. The rule depends on the plan
    only, never on errors.
    """
    fields = [name for name in DEFAULTS if any(side.draws[name].nunique() > 1 for side in (a, b))]
    keys = [_keys(side.draws, fields) for side in (a, b)]
    if not all(keys) or any(len(set(side_keys)) < len(side_keys) for side_keys in keys):
        return None
    return fields if len(set(keys[0]) & set(keys[1])) == min(map(len, keys)) else None


def _keys(draws: pd.DataFrame, fields: Sequence[str]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in fields) for row in draws.to_dict("records")]


def _paired(a: Side, b: Side, fields: list[str]) -> dict[str, object]:
    """Differences between partners that both have an outcome; for the mean, that both finished."""
    partner = {key: i for i, key in enumerate(_keys(b.ended, fields))}
    keys = _keys(a.ended, fields)
    in_a = [i for i, key in enumerate(keys) if key in partner]
    first, second = a.ended.iloc[in_a], b.ended.iloc[[partner[keys[i]] for i in in_a]]
    difference = minus(_errors(first), _errors(second))
    both = (first["status"].to_numpy() == "finished") & (second["status"].to_numpy() == "finished")
    group = _scrambles(a, first)
    mean = estimates.contrast([difference[both]], [1.0])
    mean = mean if _are_repeats(a) and _are_repeats(b) else _without_interval(mean)
    return {
        **named("median", _median(difference, group, a.study.column.metric.differences)),
        **named("mean", (mean.estimate, mean.low, mean.high)),
        "paired_by": fields,
        "num_pairs": len(difference),
        "num_finished_pairs": int(both.sum()),
    }


def _unpaired(a: Side, b: Side) -> dict[str, object]:
    """Differences between independent draws.

    The intervals of the two medians are combined (Zou & Donner 2008); the interval of the
    difference of means is Welch's.
    """
    groups = [_scrambles(side, side.ended) for side in (a, b)]
    metric = a.study.column.metric
    first, second = (
        _median(_errors(side.ended), group, metric.bounds)
        for side, group in zip((a, b), groups, strict=True)
    )
    mean = estimates.contrast([estimates.errors(side.draws) for side in (a, b)], [1.0, -1.0])
    mean = mean if _are_repeats(a) and _are_repeats(b) else _without_interval(mean)
    return {
        **named("median", median_difference(first, second, metric.differences)),
        **named("mean", (mean.estimate, mean.low, mean.high)),
        "paired_by": None,
        "num_pairs": 0,
        "num_finished_pairs": 0,
    }


def _summary(side: Side) -> dict[str, object]:
    """How the draws ended, the median of draws with an outcome, and the mean and sd (ddof=1) of
    finished draws.
    """
    counts, group = estimates.counts(side.draws), _scrambles(side, side.ended)
    errors, metric = estimates.errors(side.draws), side.study.column.metric
    mean = (
        estimates.value_interval(errors, metric)
        if len(errors) and _are_repeats(side)
        else (_mean(errors), np.nan, np.nan)
    )
    return {
        "study": side.study.slug,
        "arm": side.arm,
        "planned": len(side.draws),
        "n": len(side.ended),
        **{status: counts[status] for status in STATUSES},
        **named("median", _median(_errors(side.ended), group, metric.bounds)),
        **named("mean", mean),
        "sd": float(errors.std(ddof=1)) if len(errors) > 1 else np.nan,
    }


def _mean(errors: np.ndarray) -> float:
    return float(errors.mean()) if len(errors) else np.nan


def _are_repeats(side: Side) -> bool:
    """Whether the draws of an arm are one setting with independent seeds."""
    return (
        not side.study.num_scrambles
        and len({config.in_one_piece().replace(seed=0) for config in side.configs}) == 1
    )


def _errors(draws: pd.DataFrame) -> np.ndarray:
    return draws["value"].to_numpy(dtype=float)


def _scrambles(side: Side, draws: pd.DataFrame) -> np.ndarray | None:
    return scrambles(side.study, draws["point"].to_numpy(dtype=int), num=len(side.draws))


def _median(values: np.ndarray, group: np.ndarray | None, bounds: tuple[float, float]) -> Estimate:
    return (
        (float(np.median(values)), *median_interval(values, group, bounds=bounds))
        if len(values)
        else NONE
    )


def _without_interval(mean: Contrast) -> Contrast:
    return mean._replace(low=np.nan, high=np.nan)


def differing(
    a: Sequence[TrainConfig], b: Sequence[TrainConfig]
) -> dict[str, dict[str, list[object]]]:
    """Field -> its values in a and in b (ascending), for the fields whose values differ."""
    values = {
        name: [sorted({getattr(config, name) for config in side}) for side in (a, b)]
        for name in DEFAULTS
    }
    return {
        name: {"a": first, "b": second}
        for name, (first, second) in values.items()
        if first != second
    }


def as_cells(comparison: dict, metric: Metric) -> list[list[str]]:
    """The comparison as rows of four cells (what, a, b, a - b); the first row names the arms."""
    a, b, difference = (comparison[name] for name in ("a", "b", "difference"))
    rows = [["", *(f"{side['study']}:{side['arm']}" for side in (a, b)), "difference"]]
    rows += [
        [name, str(a[name]), str(b[name]), _pairs(difference) if name == "n" else ""]
        for name in COUNTS
    ]
    for name, subset in (("median", ""), ("mean", " of finished")):
        cells = (_interval(side, name, metric) for side in (a, b))
        title = f"{name} {metric.label}{subset} ({metric.unit})"
        rows.append([title, *cells, _interval(difference, name, metric, sign="+")])
    spreads = [side["sd"] for side in (a, b)]
    shown = ["–" if np.isnan(sd) else metric.number(sd) for sd in spreads]
    rows.append([f"sd {metric.label} of finished ({metric.difference_unit})", *shown, ""])
    if comparison["shared_trials"]:
        rows.append(["trials in both", *[str(comparison["shared_trials"])] * 2, ""])
    return rows + [
        [name, _values(sides["a"]), _values(sides["b"]), ""]
        for name, sides in comparison["fields"].items()
    ]


def _pairs(difference: dict) -> str:
    if difference["paired_by"] is None:
        return "unpaired"
    by = f" of equal {', '.join(difference['paired_by'])}" if difference["paired_by"] else ""
    return f"{difference['num_pairs']} pair{'s' * (difference['num_pairs'] != 1)}{by}"


def _interval(part: dict, name: str, metric: Metric, sign: str = "") -> str:
    estimate, low, high = interval_of(part, name)
    if np.isnan(estimate):
        return "–"
    ends = ", ".join(metric.number(end, sign=sign) for end in (low, high))
    return metric.number(estimate, sign=sign) + ("" if np.isnan(low) else f" [{ends}]")


def _values(values: Sequence[object]) -> str:
    if len(values) <= MAX_VALUES:
        return ", ".join(_value(value) for value in values)
    return f"{_value(values[0])} to {_value(values[-1])} ({len(values)} values)"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value) or "–"
