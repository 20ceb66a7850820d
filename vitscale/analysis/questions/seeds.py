"""The distribution of errors over seeds (H. Touvron's thesis, 2022, Figures 6.7 and 6.8).

Draws of an arm differ only in their seed. The arm's reference run, seed 0 in the thesis, is not a
draw and is in no statistic. Only the last epoch counts: the best of the last epochs would be a
selection. Assumptions: seeds are independent, and all share one test set, so an interval is about
other seeds and never about other images. Diverged seeds are counted and are in no mean. On few
images, much of the spread over seeds is due to which hard images a seed classifies correctly, and
would differ on other images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.columns import named, two_decimals
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.results import STATUSES, Results
from vitscale.analysis.stats import betting, spread
from vitscale.catalog.datasets import dataset_facts
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study


def draws_of(outcomes: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The draws of an arm: all planned seeds except those of its reference run."""
    return outcomes[(outcomes["arm"] == arm) & outcomes["point"].notna()]


class Sample(NamedTuple):
    """The finished draws of an arm on one evaluation set."""

    arm: str
    evaluation: str
    column: str
    values: np.ndarray  # (n,)

    @property
    def labels(self) -> dict[str, object]:
        return {"arm": self.arm, "evaluation": self.evaluation}


def samples(results: Results) -> Iterator[Sample]:
    """One for each arm and evaluation set."""
    for arm in results.study.arms:
        runs = draws_of(results.trials, arm)
        for name, column in estimates.evaluations(results.study).items():
            yield Sample(arm, name, column, estimates.errors(runs, column))


def reference_error(outcomes: pd.DataFrame, arm: str, column: str) -> float:
    """The metric of the arm's reference run; NaN unless exactly one finished."""
    runs = outcomes[(outcomes["arm"] == arm) & outcomes["point"].isna()]
    values = estimates.errors(runs, column)
    return float(values[0]) if len(values) == 1 else np.nan


def num_images(study: Study, name: str) -> int | None:
    """Images of an evaluation set of the study's dataset; None if unknown."""
    facts = dataset_facts(study.trials[0].config.dataset)
    return {"minival": facts.own_minival or None, **facts.evals}.get(name) if facts else None


def rounding_images(study: Study, name: str) -> int | None:
    """As num_images if the metric is a share of these images, and so a multiple of 1/N; else
    None.
    """
    return num_images(study, name) if study.column.metric.of_images else None


def seed_statistics(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set: the distribution of the final value over seeds (thesis,
    Figure 6.7).

    sd has ddof=1. Intervals are Student's for the mean and Bonett's for the sd, which allows for
    long tails, or that of chi-square for fewer than 8 seeds. The reference run, seed 0 in the
    thesis, is in none of these numbers: z and percentile give its position among the seeds
    (percentile 100: higher than all), `reference_p` tests whether it is one of them. min and max
    depend on n: their range grows with it.
    """
    rows = []
    for sample in samples(results):
        runs = draws_of(results.trials, sample.arm)
        row = _described(runs, sample.values, results.metric)
        rows.append(sample.labels | row | _apart(results, sample))
    return two_decimals(pd.DataFrame(rows))


def _described(runs: pd.DataFrame, values: np.ndarray, metric: Metric) -> dict[str, object]:
    num_by_status = estimates.counts(runs)
    return {
        "n": len(values),
        **{status: num_by_status[status] for status in STATUSES[1:]},
        **named("mean", estimates.value_interval(values, metric)),
        **named("sd", estimates.sd_interval(values)),
        "min": float(values.min()) if len(values) else np.nan,
        "max": float(values.max()) if len(values) else np.nan,
    }


def _apart(results: Results, sample: Sample) -> dict[str, float]:
    reference = reference_error(results.trials, sample.arm, sample.column)
    where = spread.position_among(sample.values, reference)
    if results.looks.number > 1:
        where |= named("percentile_anytime_pct", betting.percentile(sample.values, reference))
    return {
        "reference": reference,
        **{f"reference_{name}": value for name, value in where.items()},
    }


def seed_normality(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set: a test of normality over seeds, and its power at this n.

    A Shapiro-Wilk p above 5% is not evidence for a normal distribution. `finds_heavy_tails` and
    `finds_skew` are how often the test has p < 5% at this n if the truth is Student's t with 4 df,
    or a chi-square of skewness 1. A share of images is a multiple of one: `rejects_for_rounding` is
    how often a normal distribution of this sd fails the test for that reason alone (5% would be no
    effect). `max_z` and `min_z` are the extremes in sd from the mean; `expected_max_z` is the
    maximum expected of n normal values.
    """
    rows = [
        {
            **sample.labels,
            "n": len(sample.values),
            "distinct_values": len(np.unique(sample.values)),
            **spread.normality(sample.values),
            **spread.normality_power(
                sample.values, rounding_images(results.study, sample.evaluation)
            ),
            **spread.extremes(sample.values),
        }
        for sample in samples(results)
    ]
    return pd.DataFrame(rows)


def seed_noise(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set: spread over seeds, and the sampling error of one run on
    so many images.

    `one_run_sampling` is binomial and known only for shares of images: how much the result of one
    network would vary over other images. The two do not add up: which hard images a network
    classifies correctly is in both. The mean over these seeds has a smaller sampling error;
    seed_spread estimates it from the wrong images of each run, and also the spread over seeds on
    other images. The difference of two models on one test set has a smaller sampling error as well,
    since they share most of their mistakes.
    """
    rows = []
    for sample in samples(results):
        images, error = num_images(results.study, sample.evaluation), np.nan
        if images and len(sample.values) and results.metric.of_images:
            error = spread.sampling_error(float(sample.values.mean()), images)
        row: dict[str, object] = {"n": len(sample.values), "images": images or "unknown"}
        row |= named("sd_over_seeds", estimates.sd_interval(sample.values))
        rows.append(sample.labels | row | {"one_run_sampling": error})
    return two_decimals(pd.DataFrame(rows))


# ---- answers in words


def sentences(results: Results) -> list[str]:
    """Mean, spread and range for each arm and evaluation set, and the position of the reference
    run.
    """
    table = results.once(seed_statistics)
    return [_seed_sentence(row, results.metric) for _, row in table.iterrows()]


def _seed_sentence(row: pd.Series, metric: Metric) -> str:
    what = f"{row['arm']}, {metric.label} on {row['evaluation']}"
    if row["n"] < 2:
        return f"{what}: n={row['n']}, no distribution yet."
    number, unit = metric.number, "%" if metric.unit == "%" else f" {metric.unit}"
    apart = f" {metric.difference_unit}"
    mean, sd = (
        with_ends(row, key, lambda value: number(value, 2), after=suffix)
        for key, suffix in (("mean", unit), ("sd", apart))
    )
    extremes = f"{number(row['min'], 2)} to {number(row['max'], 2)}{unit}"
    sentence = (
        f"{what}: mean {mean}, sd {sd}, {extremes} over "
        f"n={row['n']} seeds, {row['diverged']} diverged"
    )
    if pd.isna(row["reference_z"]):
        return f"{sentence}."
    return (
        f"{sentence}; the reference run, {metric.text(row['reference'], 2)}, is "
        f"{row['reference_z']:+.1f} sd from the mean."
    )


ANSWERS = {"seed_statistics": sentences}
