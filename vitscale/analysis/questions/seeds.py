"""The distribution of errors over seeds (H. Touvron's thesis, 2022, Figures 6.7 to 6.10), and how
many seeds to train.

Draws of an arm differ only in their seed. The arm's reference run, seed 0 in the thesis, is not a
draw and is in no statistic. Only the last epoch counts: the best of the last epochs would be a
selection. Assumptions: seeds are independent, and all share one test set, so an interval is about
other seeds and never about other images. Diverged seeds are counted and are in no mean. On few
images, much of the spread over seeds is due to which hard images a seed classifies correctly, and
would differ on other images.
"""

from __future__ import annotations

import functools
import math
from itertools import combinations

import numpy as np
import pandas as pd
import scipy
from scipy.special import ndtr

from vitscale.analysis import estimates
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.results import Results
from vitscale.analysis.stats import betting, correlation
from vitscale.analysis.stats.intervals import clopper_pearson
from vitscale.catalog.datasets import original
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

DIFFERENCES = (0.1, 0.2, 0.5, 1.0, 2.0)  # of a quarter of `near`: a point of top-1 error
POWERS = (0.8, 0.9)
ALPHA = 0.05
MAX_SEEDS = 10**6
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


# ---- estimators


def expected_maximum(n: int) -> float:
    """Expected largest of n independent standard normal values; the expected smallest is its
    negative.
    """
    if n < 2:
        return 0.0
    density = scipy.stats.norm.pdf
    return float(
        scipy.integrate.quad(
            lambda z: z * n * density(z) * ndtr(z) ** (n - 1), -8, 12, points=(0.0, 3.0)
        )[0]
    )


def position_among(values: np.ndarray, reference: float) -> dict[str, float]:
    """Position of one more value among (n,) values: z, percentile in percent with its interval, and
    p.

    z is in standard deviations (ddof=1) from the mean. The percentile is the share of values below
    it, with ties counted half, and has the interval of Clopper and Pearson. p tests whether the
    value is a draw of the same distribution: z / sqrt(1 + 1/n) has Student's t with n - 1 degrees
    of freedom for normal values. NaN for fewer than two values.
    """
    n = len(values)
    names = ("z", "percentile_pct", "percentile_pct_low", "percentile_pct_high", "p")
    sd = float(np.std(values, ddof=1)) if n > 1 else 0.0
    if sd < estimates.NO_SPREAD or np.isnan(reference):
        return dict.fromkeys(names, np.nan)
    z = (reference - float(np.mean(values))) / sd
    below = float((values < reference).sum() + 0.5 * (values == reference).sum())
    low, high = clopper_pearson(below, n)
    p = 2 * float(scipy.stats.t.sf(abs(z) / np.sqrt(1 + 1 / n), n - 1))
    return dict(
        zip(names, (z, 100 * below / n, 100 * float(low), 100 * float(high), p), strict=True)
    )


def normality(values: np.ndarray) -> dict[str, float]:
    """Shapiro and Wilk's W and p for (n,) values, skewness and excess kurtosis (unbiased); NaN
    where undefined.

    A small p is evidence against a normal distribution, or for errors rounded to few distinct
    values, which the test cannot distinguish. A large p is not evidence for one: `shapiro_power`
    gives the power of n values.
    """
    n = len(values)
    if n < 4 or np.ptp(values) < estimates.NO_SPREAD:
        return dict.fromkeys(("shapiro_w", "shapiro_p", "skewness", "excess_kurtosis"), np.nan)
    w, p = scipy.stats.shapiro(values)
    shape = scipy.stats.skew(values, bias=False), scipy.stats.kurtosis(values, bias=False)
    return {
        "shapiro_w": float(w),
        "shapiro_p": float(p),
        "skewness": float(shape[0]),
        "excess_kurtosis": float(shape[1]),
    }


@functools.cache
def shapiro_power(n: int, alternative: str, *, step: float = 0.0, num: int = 500) -> float:
    """Share of `num` simulated samples of n in which Shapiro-Wilk has p < 0.05, from seed 0.

    Alternatives: "heavy", Student's t with 4 df; "skewed", chi-square with 8 df, of skewness 1;
    "normal", for which it is the test's level. `step`: samples are rounded to multiples of it, in
    units of the alternative.
    """
    rng = np.random.default_rng(0)
    samples = {
        "heavy": lambda: rng.standard_t(4, (num, n)),
        "skewed": lambda: rng.chisquare(8, (num, n)),
        "normal": lambda: rng.standard_normal((num, n)),
    }[alternative]()
    samples = np.round(samples / step) * step if step else samples
    return float(np.mean([scipy.stats.shapiro(sample).pvalue < ALPHA for sample in samples]))


def sampling_error(error_pct: float, num_images: int) -> float:
    """Standard error of the error rate of one run over samples of `num_images` images, in points:
    sqrt(p (1 - p) / N).

    It applies to one trained network on other images. For the mean over several seeds it is an
    upper bound: images that only some seeds classify correctly average out, which leaves
    sqrt(Var(p_i) / N), where p_i is the share of seeds that are wrong about image i. The table
    seed_spread estimates it.
    """
    share = error_pct / 100
    return 100 * math.sqrt(share * (1 - share) / num_images)


def seeds_needed(
    difference: float,
    sd: float,
    power: float = 0.8,
    *,
    alpha: float = ALPHA,
    correlation: float | None = None,
) -> int:
    """Seeds per arm for which a two-sided t test detects a true difference of means with this
    power.

    Two arms of independent runs with one sd; with `correlation`, that of two arms at a shared seed,
    the number of pairs. Assumes normal errors and a known sd (see its interval). At least 2, at
    most a million. Raises ValueError for a difference or sd that is not positive.
    """
    from statsmodels.stats.power import TTestIndPower, TTestPower

    if not (difference > 0 and sd > 0):
        raise ValueError(
            f"difference > 0 and sd > 0 must hold, but got (difference={difference}, sd={sd})"
        )
    spread = sd if correlation is None else sd * math.sqrt(2 * (1 - correlation))
    test = TTestIndPower() if correlation is None else TTestPower()

    def enough(n: int) -> bool:
        reached = test.power(difference / spread, n, alpha)
        # NaN: far beyond the reach of the noncentral t
        return bool(np.isnan(reached) or reached >= power)

    low, high = 1, 2
    while not enough(high):
        low, high = high, high * 2
        if high > MAX_SEEDS:
            return MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# ---- tables


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
    return _two_decimals(pd.DataFrame(rows))


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
        **_estimate("mean", (mean, *mean_ends)),
        **_estimate("sd", (sd, *sd_ends)),
        "min": low,
        "max": high,
    }


def _apart(results: Results, runs: pd.DataFrame, arm: str, column: str) -> dict[str, float]:
    reference = reference_error(results.trials, arm, column)
    values = estimates.errors(runs, column)
    where = position_among(values, reference)
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
                **normality(values),
                **_finds(values, rounding_images(results.study, name)),
                **extremes(values),
            }
            num = {"n": len(values), "distinct_values": len(np.unique(values))}
            rows.append({"arm": arm, "evaluation": name, **num, **shape})
    return pd.DataFrame(rows)


def _finds(values: np.ndarray, images: int | None) -> dict[str, float]:
    n, names = len(values), ("finds_heavy_tails_pct", "finds_skew_pct", "rejects_for_rounding_pct")
    if n < 4 or np.ptp(values) < estimates.NO_SPREAD:
        return dict.fromkeys(names, np.nan)
    step = 100 / images / float(values.std(ddof=1)) if images else 0.0
    shares = (
        shapiro_power(n, "heavy"),
        shapiro_power(n, "skewed"),
        shapiro_power(n, "normal", step=step),
    )
    return dict(zip(names, (100 * share for share in shares), strict=True))


def extremes(values: np.ndarray) -> dict[str, float]:
    """Largest and smallest of (n,) values in sd from their mean, and the expected largest."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    if sd < estimates.NO_SPREAD:
        return dict.fromkeys(("max_z", "min_z", "expected_max_z"), np.nan)
    z = (values - values.mean()) / sd
    return {
        "max_z": float(z.max()),
        "min_z": float(z.min()),
        "expected_max_z": expected_maximum(len(values)),
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
                sampling_error(float(values.mean()), images)
                if images and len(values) and results.metric.of_images
                else np.nan
            )
            rows.append(
                {
                    "arm": arm,
                    "evaluation": name,
                    "n": len(values),
                    "images": images or "unknown",
                    **_estimate("sd_over_seeds", (sd, low, high)),
                    "one_run_sampling": error,
                }
            )
    return _two_decimals(pd.DataFrame(rows))


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
                    **_estimate("pearson", correlation.pearson(x, y)),
                    **_estimate("spearman", correlation.spearman_bootstrap(x, y)),
                    "rank_of_best": rank,
                    **_estimate(
                        "shared_sd",
                        (np.nan,) * 3
                        if {first[0], second[0]} == SAME_IMAGES
                        else correlation.shared_sd(x, y),
                    ),
                }
            )
    return pd.DataFrame(rows, columns=None if rows else ["arm", "first", "second", "n"])


def seed_power(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set, difference and power: seeds per arm needed to compare two
    arms.

    For a two-sided t test at 5% of two arms that both have this arm's sd, which is an assumption
    about the other arm. The range reflects the interval of the sd. It is about finding a difference
    on these images.

    `pairs_at_half` is the number of seeds that both arms share, for a paired t test, if their
    values at one seed have correlation 1/2 and equal sds. That correlation is assumed and not
    measured, since the study has one arm: at 1/2 the difference within a pair varies as much as one
    run does. Runs of two models with one seed share the order of samples and the augmentation, but
    no weights. If they are uncorrelated, the number of pairs is that of seeds_per_arm, or one more.
    """
    rows = []
    for arm in results.study.arms:
        for name, column in estimates.evaluations(results.study).items():
            differences = [results.metric.within[0] * share for share in DIFFERENCES]
            spread = estimates.sd_interval(estimates.errors(draws_of(results.trials, arm), column))
            rows += [
                {
                    "arm": arm,
                    "evaluation": name,
                    "difference": difference,
                    "power_pct": 100 * power,
                    **_needed(difference, spread, power),
                }
                for difference in differences
                for power in POWERS
            ]
    return pd.DataFrame(rows).astype(dict.fromkeys(NEEDED, "Int64"))


NEEDED = ("seeds_per_arm", "seeds_per_arm_low", "seeds_per_arm_high", "pairs_at_half")


def _needed(
    difference: float, spread: tuple[float, float, float], power: float
) -> dict[str, int | None]:
    if not spread[0] > estimates.NO_SPREAD:
        return dict.fromkeys(NEEDED)
    numbers = [seeds_needed(difference, sd, power) for sd in spread]
    return dict(
        zip(
            NEEDED,
            (*numbers, seeds_needed(difference, spread[0], power, correlation=0.5)),
            strict=True,
        )
    )


def seed_epochs(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set and epoch: mean, sd (ddof=1), min and max over finished
    seeds.

    `rank_correlation` is Spearman's between the value at that epoch and the final one of the same
    seed (Bonett & Wright's interval, each by itself; thesis, Figures 6.9 and 6.10). An interval
    that contains 0 does not show that early values are uninformative, only that this number of
    seeds does not show that they are informative. One above 0 does not show that stopping the worse
    seeds early pays: that requires a rule and its costs.
    """
    parts = [
        _epochs(results.rows, arm, name, column, results.metric)
        for arm in results.study.arms
        for name, column in estimates.evaluations(results.study).items()
    ]
    return _two_decimals(
        pd.DataFrame([row for part in parts for row in part], columns=list(EPOCH_COLUMNS))
    )


EPOCH_COLUMNS = (
    "arm",
    "evaluation",
    "epoch",
    "n",
    "mean",
    "mean_low",
    "mean_high",
    "sd",
    "min",
    "max",
    "rank_correlation",
    "rank_correlation_low",
    "rank_correlation_high",
)


def curves(rows: pd.DataFrame, arm: str, column: str) -> pd.DataFrame:
    """Values of the arm's finished draws: one row per trial, a column per epoch."""
    if column not in rows:
        return pd.DataFrame()
    known = rows[(rows["arm"] == arm) & rows["point"].notna() & (rows["status"] == "finished")]
    return (
        known.pivot(index="trial_id", columns="epoch", values=column).astype(float).dropna(axis=1)
    )


def _epochs(
    rows: pd.DataFrame, arm: str, name: str, column: str, metric: Metric
) -> list[dict[str, object]]:
    table = curves(rows, arm, column)
    return [
        {
            "arm": arm,
            "evaluation": name,
            "epoch": int(epoch),
            **_epoch(
                table[epoch].to_numpy(),
                table.iloc[:, -1].to_numpy(),
                epoch == table.columns[-1],
                metric,
            ),
        }
        for epoch in table.columns
    ]


def _epoch(
    values: np.ndarray, final: np.ndarray, is_last: bool, metric: Metric
) -> dict[str, object]:
    """Numbers of one epoch; the last one has no correlation with itself."""
    rank = (np.nan,) * 3 if is_last else correlation.spearman(values, final)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    return {
        "n": len(values),
        **_estimate("mean", estimates.value_interval(values, metric)),
        "sd": sd,
        "min": float(values.min()),
        "max": float(values.max()),
        **_estimate("rank_correlation", rank),
    }


def _estimate(name: str, values: tuple[float, ...]) -> dict[str, float]:
    """An estimate under its name, with the ends of its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _two_decimals(table: pd.DataFrame) -> pd.DataFrame:
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
