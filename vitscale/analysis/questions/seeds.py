"""The distribution of errors over seeds (H. Touvron's thesis, 2022, Figures 6.7 and 6.8).

Draws of an arm differ only in their seed. The arm's reference run, seed 0 in the thesis, is not a
draw and is in no statistic. Only the last epoch counts: the best of the last epochs would be a
selection. Assumptions: seeds are independent, and all share one test set, so an interval is about
other seeds and never about other images. Diverged seeds are counted and are in no mean. On few
images, much of the spread over seeds is due to which hard images a seed classifies correctly, and
would differ on other images.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.results import Results
from vitscale.analysis.stats import betting, correlation, spread
from vitscale.catalog.datasets import original
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

# Beyer et al. 2020 gave images of ImageNet's validation set other labels
SAME_IMAGES = {"val", "real"}
# Images of an evaluation set. imagenet real: those of 50,000 to which Beyer et al. 2020 give a
# label.
NUM_IMAGES = {
    "digits": {"val": 400, "test": 200, "minival": 200},
    "cifar10": {"val": 10_000},
    "cifar100": {"val": 10_000},
    "fashion_mnist": {"val": 10_000},
    "imagenet": {"val": 50_000, "v2": 10_000, "real": 46_837},
}


def draws_of(outcomes: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The draws of an arm: all planned seeds except those of its reference run."""
    return outcomes[(outcomes["arm"] == arm) & outcomes["point"].notna()]


def reference_error(outcomes: pd.DataFrame, arm: str, column: str) -> float:
    """The metric of the arm's reference run; NaN unless exactly one finished."""
    runs = outcomes[(outcomes["arm"] == arm) & outcomes["point"].isna()]
    values = estimates.errors(runs, column)
    return float(values[0]) if len(values) == 1 else np.nan


def num_images(study: Study, name: str) -> int | None:
    """Images of an evaluation set of the study's dataset; None if unknown."""
    dataset = study.trials[0].config.dataset
    return NUM_IMAGES.get(original(dataset), {}).get(name)


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
    for arm in results.study.arms:
        runs = draws_of(results.trials, arm)
        for name, column in estimates.evaluations(results.study).items():
            rows.append(
                {
                    "arm": arm,
                    "evaluation": name,
                    **_described(runs, column, results.metric),
                    **_apart(results, runs, arm, column),
                }
            )
    return two_decimals(pd.DataFrame(rows))


def _described(runs: pd.DataFrame, column: str, metric: Metric) -> dict[str, object]:
    values, num_by_status = estimates.errors(runs, column), estimates.counts(runs)
    (mean, *mean_ends), (sd, *sd_ends) = (
        estimates.value_interval(values, metric),
        estimates.sd_interval(values),
    )
    low, high = (float(values.min()), float(values.max())) if len(values) else (np.nan, np.nan)
    return {
        "n": len(values),
        **{status: num_by_status[status] for status in ("diverged", "failed", "missing")},
        **named("mean", (mean, *mean_ends)),
        **named("sd", (sd, *sd_ends)),
        "min": low,
        "max": high,
    }


def _apart(results: Results, runs: pd.DataFrame, arm: str, column: str) -> dict[str, float]:
    reference = reference_error(results.trials, arm, column)
    values = estimates.errors(runs, column)
    where = spread.position_among(values, reference)
    if results.looks.number > 1:
        where |= _percentile_at_any_look(values, reference)
    return {
        "reference": reference,
        **{f"reference_{name}": value for name, value in where.items()},
    }


def _percentile_at_any_look(values: np.ndarray, reference: float) -> dict[str, float]:
    """The percentile of `position_among` with an interval by betting, in the order of the seeds."""
    names = [f"percentile_anytime_pct{end}" for end in ("", "_low", "_high")]
    if not len(values) or np.isnan(reference):
        return dict.fromkeys(names, np.nan)
    below = (values < reference) + 0.5 * (values == reference)
    ends = (float(below.mean()), *betting.interval(below))
    return dict(zip(names, (100 * end for end in ends), strict=True))


def seed_normality(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set: a test of normality over seeds, and its power at this n.

    A Shapiro-Wilk p above 5% is not evidence for a normal distribution. `finds_heavy_tails` and
    `finds_skew` are how often the test has p < 5% at this n if the truth is Student's t with 4 df,
    or a chi-square of skewness 1. A share of images is a multiple of one: `rejects_for_rounding` is
    how often a normal distribution of this sd fails the test for that reason alone (5% would be no
    effect). `max_z` and `min_z` are the extremes in sd from the mean; `expected_max_z` is the
    maximum expected of n normal values.
    """
    rows = []
    for arm in results.study.arms:
        for name, column in estimates.evaluations(results.study).items():
            values = estimates.errors(draws_of(results.trials, arm), column)
            shape = {
                **spread.normality(values),
                **_finds(values, rounding_images(results.study, name)),
                **extremes(values),
            }
            num = {"n": len(values), "distinct_values": len(np.unique(values))}
            rows.append({"arm": arm, "evaluation": name, **num, **shape})
    return pd.DataFrame(rows)


def _finds(values: np.ndarray, images: int | None) -> dict[str, float]:
    n, names = len(values), ("finds_heavy_tails_pct", "finds_skew_pct", "rejects_for_rounding_pct")
    if n < 4 or np.ptp(values) < spread.NO_SPREAD:
        return dict.fromkeys(names, np.nan)
    step = 100 / images / float(values.std(ddof=1)) if images else 0.0
    shares = (
        spread.shapiro_power(n, "heavy"),
        spread.shapiro_power(n, "skewed"),
        spread.shapiro_power(n, "normal", step=step),
    )
    return dict(zip(names, (100 * share for share in shares), strict=True))


def extremes(values: np.ndarray) -> dict[str, float]:
    """Largest and smallest of (n,) values in sd from their mean, and the expected largest."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    if sd < spread.NO_SPREAD:
        return dict.fromkeys(("max_z", "min_z", "expected_max_z"), np.nan)
    z = (values - values.mean()) / sd
    return {
        "max_z": float(z.max()),
        "min_z": float(z.min()),
        "expected_max_z": spread.expected_maximum(len(values)),
    }


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
    for arm in results.study.arms:
        for name, column in estimates.evaluations(results.study).items():
            values, images = (
                estimates.errors(draws_of(results.trials, arm), column),
                num_images(results.study, name),
            )
            sd, low, high = estimates.sd_interval(values)
            error = (
                spread.sampling_error(float(values.mean()), images)
                if images and len(values) and results.metric.of_images
                else np.nan
            )
            rows.append(
                {
                    "arm": arm,
                    "evaluation": name,
                    "n": len(values),
                    "images": images or "unknown",
                    **named("sd_over_seeds", (sd, low, high)),
                    "one_run_sampling": error,
                }
            )
    return two_decimals(pd.DataFrame(rows))


def seed_correlation(results: Results) -> pd.DataFrame:
    """One row per arm and pair of evaluation sets: correlation of the values of the same seeds.

    Pearson's r with Fisher's interval (assumes a bivariate normal, sensitive to outliers),
    Spearman's with a bootstrap interval. `rank_of_best` is the rank on the second set of the seed
    that is best on the first: the benefit of picking a seed by the first set. `shared_sd` is
    the square root of the covariance, 0 where that is negative: if both sets are samples of one
    kind of images, it is the spread over seeds on infinitely many images (Jordan 2023), which is
    less than the sd over seeds on either. Its interval is Student's, of the mean product of
    deviations. None for sets that share their images.
    """
    rows = []
    for arm in results.study.arms:
        for first, second in combinations(estimates.evaluations(results.study).items(), 2):
            runs = draws_of(results.trials, arm)
            x, y = estimates.errors(runs, first[1]), estimates.errors(runs, second[1])
            rank = int(1 + (y < y[x.argmin()]).sum()) if len(x) else None
            rows.append(
                {
                    "arm": arm,
                    "first": first[0],
                    "second": second[0],
                    "n": len(x),
                    **named("pearson", correlation.pearson(x, y)),
                    **named("spearman", correlation.spearman_bootstrap(x, y)),
                    "rank_of_best": rank,
                    **named(
                        "shared_sd",
                        (np.nan,) * 3
                        if {first[0], second[0]} == SAME_IMAGES
                        else correlation.shared_sd(x, y),
                    ),
                }
            )
    return pd.DataFrame(rows, columns=None if rows else ["arm", "first", "second", "n"])


def named(name: str, values: tuple[float, ...]) -> dict[str, float]:
    """An estimate under its name, with the ends of its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def two_decimals(table: pd.DataFrame) -> pd.DataFrame:
    """Shows percentages and points of this table with two decimals: seeds differ in the second."""
    table.attrs["decimals"] = 2
    return table


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
        with_ends(row, key, lambda value: number(value, 2), after=of)
        for key, of in (("mean", unit), ("sd", apart))
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
