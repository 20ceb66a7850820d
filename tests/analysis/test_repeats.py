"""Levels and covers of the statistics of repeated seeds, simulated; closed forms and other sources
where there are.

Tolerances are three Monte Carlo standard errors. The figures stand in docs/method.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, load_script

from vitscale.analysis import divergence, estimates, power
from vitscale.analysis.stats import correlation
from vitscale.plan.metrics import ERROR

Draw = Callable[[np.random.Generator, int], np.ndarray]


def within(share: float, expected: float, num: int) -> bool:
    """Whether a simulated share is the expected one, but for three standard errors."""
    return abs(share - expected) <= 3 * np.sqrt(expected * (1 - expected) / num)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Errors like those of seeds on few images: mean 2, sd 0.5,
    skewness 1.1, in steps of one of 400 images.
    """
    return np.round((2 + 0.5 * (rng.gamma(3.3, size=n) - 3.3) / np.sqrt(3.3)) / 0.25) * 0.25


# ---- means and spreads


@pytest.mark.parametrize(
    "sizes",
    [(20, 3), (10, 3), (10, 4), (6, 3), (5, 3), (10, 2), (20, 2), (5, 5, 5, 3), (4, 4, 4, 3)],
    ids=str,
)
@pytest.mark.parametrize("sd", [1.0, 2.0])
def test_runs_in_unequal_numbers_claim_no_more_than_they_may(
    sizes: tuple[int, ...], sd: float
) -> None:
    """Also at 0.625%, the first of Holm's levels for eight tests, where Welch's t alone has up to
    7%. Two runs against more have no p. The smallest group has the largest sd."""
    rng, sims = np.random.default_rng(4), 3000
    sds, weights = [*[1.0] * (len(sizes) - 1), sd], [1.0, -1.0, -1.0, 1.0][: len(sizes)]
    p = np.array(
        [
            estimates.contrast(list(map(rng.normal, np.zeros(len(sizes)), sds, sizes)), weights).p
            for _ in range(sims)
        ]
    )
    assert np.isnan(p).all() == (min(sizes) < 3)
    for level in (0.05, 0.00625):
        assert (p < level).mean() <= level + 3 * (level * (1 - level) / sims) ** 0.5


@pytest.mark.parametrize(("mean", "sd", "n"), [(2.0, 1.0, 2), (1.0, 1.0, 3), (99.0, 1.0, 3)])
def test_interval_of_a_mean_error_stays_where_errors_are_and_covers(
    mean: float, sd: float, n: int
) -> None:
    """Few seeds near 0 or 100: Student's ends lie beyond in many
    samples; cut there, they hold the truth as often.
    """
    samples = np.random.default_rng(0).normal(mean, sd, (3000, n))
    found = np.array([estimates.value_interval(x, ERROR) for x in samples])
    assert (found[:, 1] >= 0).all() and (found[:, 2] <= 100).all()
    assert np.mean((found[:, 1] == 0) | (found[:, 2] == 100)) > 0.2
    assert within(np.mean((found[:, 1] <= mean) & (mean <= found[:, 2])), 0.95, 3000)


def test_bonetts_interval_is_the_published_formula() -> None:
    """Bonett 2006, equation 6, term by term, with scipy's trimmed mean."""
    values = np.random.default_rng(1).exponential(size=25)
    n, z = 25, scipy.stats.norm.ppf(0.975)
    center = scipy.stats.trim_mean(values, 1 / (2 * (n - 4) ** 0.5))
    kurtosis = n * np.sum((values - center) ** 4) / np.sum((values - values.mean()) ** 2) ** 2
    c = n / (n - z)
    error = c * np.sqrt((kurtosis - (n - 3) / n) / (n - 1))
    ends = np.sqrt(np.exp(np.log(c * values.var(ddof=1)) + np.array([-1, 1]) * z * error))
    assert estimates.sd_interval(values) == pytest.approx((values.std(ddof=1), *ends))


@pytest.mark.parametrize("n", [16, 100])
def test_interval_of_an_sd_covers_where_chi_squares_does_not(n: int) -> None:
    rng, num = np.random.default_rng(2), 1500
    truth = float(skewed(rng, 2_000_000).std())
    samples = [skewed(rng, n) for _ in range(num)]
    tails = np.sqrt((n - 1) / scipy.stats.chi2.ppf([0.975, 0.025], n - 1))
    found = np.array([estimates.sd_interval(x)[1:] for x in samples])
    of_normal = np.array([x.std(ddof=1) * tails for x in samples])
    cover, of_chi2 = (
        np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])) for ends in (found, of_normal)
    )
    assert 0.92 < cover < 0.97 and of_chi2 < 0.915


def test_an_sd_of_few_or_equal_values_has_no_interval_that_it_cannot_have() -> None:
    assert np.isnan(estimates.sd_interval(np.array([1.0]))).all()
    equal = estimates.sd_interval(np.full(10, 3.0))
    assert equal[0] == 0 and np.isnan(equal[1:]).all()


# ---- differences


@pytest.mark.parametrize("shared", [0.0, 0.5])
@pytest.mark.parametrize("n", [3, 5, 20])
def test_difference_holds_its_level_and_shared_seeds_only_lower_it(n: int, shared: float) -> None:
    """Arms whose sds are 2 to 1 and whose errors at one seed have this correlation."""
    rng, num = np.random.default_rng(3), 3000
    both = rng.multivariate_normal([0, 0], [[1, 2 * shared], [2 * shared, 4]], (num, n))
    p = np.array([estimates.contrast([x[:, 0], x[:, 1]], [1.0, -1.0]).p for x in both])
    level = np.mean(p < 0.05)
    assert within(level, 0.05, num) or (level < 0.05 and (shared or n == 3))


def test_without_correlation_welch_needs_fewer_seeds_than_pairs() -> None:
    """The reason why differences are unpaired: at 3 and 5 seeds
    pairs have intervals wider by 24 and by 12%.
    """
    rng = np.random.default_rng(4)
    for n, factor in ((3, 1.24), (5, 1.12)):
        widths = []
        for x, y in rng.normal(size=(2000, 2, n)):
            welch, pairs = (
                estimates.contrast([x, y], [1.0, -1.0]),
                estimates.contrast([x - y], [1.0]),
            )
            widths.append((pairs.high - pairs.low, welch.high - welch.low))
        mean = np.mean(widths, axis=0)
        assert mean[0] / mean[1] == pytest.approx(factor, abs=0.05)


@pytest.mark.parametrize("n", [3, 5])
def test_an_interaction_that_is_not_there_is_seldom_shown(n: int) -> None:
    """Four cells whose sds are 1 to 4 to 0.5 to 2."""
    rng, num = np.random.default_rng(5), 3000
    sds = np.array([1.0, 4.0, 0.5, 2.0])[:, None]
    p = [estimates.contrast(list(sds * x), [1, -1, -1, 1]).p for x in rng.normal(size=(num, 4, n))]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / num)


# ---- diverged runs


def runs(errors: np.ndarray) -> pd.DataFrame:
    """Runs with these errors; an infinite one diverged, one that is NaN has no outcome yet."""
    status = np.where(
        np.isinf(errors), "diverged", np.where(np.isnan(errors), "missing", "finished")
    )
    return pd.DataFrame({"status": status, "value": np.where(np.isinf(errors), 100.0, errors)})


def test_endings_are_those_of_all_permutations() -> None:
    """Mann and Whitney's p against every way to deal the
    runs out, ties and diverged runs included.
    """
    a, b = np.array([3.0, 5.0, np.inf, np.inf]), np.array([1.0, 2.0, 3.0, 3.0, np.inf])
    ranks = scipy.stats.rankdata(np.concatenate([a, b]))
    sums = np.array([ranks[list(chosen)].sum() for chosen in combinations(range(9), 4)])
    p = 2 * min(np.mean(sums >= ranks[:4].sum()), np.mean(sums <= ranks[:4].sum()))
    found = divergence.endings(runs(a), runs(b))
    assert found.rank_p == pytest.approx(p, abs=1e-9)
    prob = np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b])
    assert found.prob_a_worse == pytest.approx(prob)
    assert found.diverged_p == pytest.approx(scipy.stats.fisher_exact([[2, 2], [1, 4]]).pvalue)


def test_runs_without_an_outcome_are_in_no_rank() -> None:
    some, none = runs(np.array([1.0, 2.0, np.nan])), runs(np.array([np.nan, np.nan]))
    assert divergence.endings(some, runs(np.array([3.0, 4.0]))).prob_a_worse == 0.0
    assert np.isnan(divergence.endings(some, none)).all()
    assert np.isnan(divergence.endings(runs(np.full(3, np.inf)), runs(np.full(3, np.inf))).rank_p)


@pytest.mark.parametrize("n", [5, 12])
def test_ranks_hold_their_level_where_runs_diverge(n: int) -> None:
    """Three in ten runs of both arms diverge."""
    rng, num = np.random.default_rng(6), 300
    p = []
    for _ in range(num):
        errors = np.where(rng.random((2, n)) < 0.3, np.inf, rng.normal(20, 1, (2, n)))
        found = divergence.endings(runs(errors[0]), runs(errors[1]))
        p.append((found.rank_p, found.diverged_p))
    for level in np.mean(np.array(p) < 0.05, axis=0):
        assert level < 0.05 + 3 * np.sqrt(0.05 * 0.95 / num)


def test_ranks_see_what_the_mean_of_finished_runs_hides() -> None:
    """SGD's worst runs diverge: over the finished ones the
    arms are alike, in ranks they are not.
    """
    rng, num = np.random.default_rng(7), 300
    shown = []
    for _ in range(num):
        a, b = rng.normal(21, 1, 12), rng.normal(20, 1, 12)
        a[a > 20.5] = np.inf  # what is bad is lost
        kept = a[np.isfinite(a)]
        by_mean = (
            estimates.contrast([kept, b], [1.0, -1.0]).p < 0.05
            and len(kept) > 1
            and kept.mean() > b.mean()
        )
        shown.append((by_mean, divergence.endings(runs(a), runs(b)).rank_p < 0.05))
    by_mean, by_rank = np.mean(shown, axis=0)
    assert by_mean < 0.02 and by_rank > 0.5


# ---- the spread that two sets of images share


def test_shared_sd_covers_the_spread_on_images_without_end() -> None:
    """100 networks whose true errors have sd 0.16, each with
    its own coin flips on two sets of images.
    """
    rng, num = np.random.default_rng(8), 1000
    covered, alone = [], []
    for _ in range(num):
        true = rng.normal(0, 0.16, 100)
        x, y = true + rng.normal(0, 0.5, 100), true + rng.normal(0, 0.8, 100)
        _, low, high = correlation.shared_sd(x, y)
        covered.append(low <= 0.16 <= high)
        alone.append(x.std(ddof=1))
    assert within(np.mean(covered), 0.95, num)
    assert np.mean(alone) > 3 * 0.16  # what one set calls the spread over seeds


def test_shared_sd_of_sets_with_nothing_in_common_reaches_0() -> None:
    rng = np.random.default_rng(9)
    found = np.array([correlation.shared_sd(*rng.normal(size=(2, 60))) for _ in range(600)])
    assert within(np.mean(found[:, 1] > 0), 0.025, 600)
    assert np.isnan(correlation.shared_sd(np.arange(4.0), np.arange(4.0))).all()


# ---- what a plan can show


@pytest.mark.parametrize(
    ("n", "comparisons", "weights"),
    [(3, 1, (1, -1)), (5, 8, (1, -1)), (5, 4, (1, -1, -1, 1)), (20, 1, (0.5, 0.5, -0.5, -0.5))],
)
def test_a_plan_shows_with_80_percent_power_what_it_says(
    n: int, comparisons: int, weights: tuple[float, ...]
) -> None:
    """At the strictest step of Holm, in other samples than those that it was simulated with."""
    rng, num = np.random.default_rng(10), 4000
    shift, signs = power.smallest_mean(n, comparisons, weights), np.array(weights)
    x = rng.normal(0, 1, (num, len(weights), n))
    x[:, 0] += shift / weights[0]
    parts = signs**2 * x.var(axis=2, ddof=1) / n
    df = parts.sum(axis=1) ** 2 / (parts**2 / (n - 1)).sum(axis=1)
    t = (x.mean(axis=2) * signs).sum(axis=1) / np.sqrt(parts.sum(axis=1))
    assert np.mean(2 * scipy.stats.t.sf(np.abs(t), df) < 0.05 / comparisons) == pytest.approx(
        0.8, abs=0.022
    )


def test_plans_say_what_seeds_can_show_and_that_two_show_nothing() -> None:
    plan = {
        name: load_script(ROOT / "studies" / f"{name}.py").study
        for name in (
            "optimizer_stability",
            "training_length",
            "recipe_vs_architecture",
            "depth_vs_width",
        )
    }
    said = {name: power.sentences(study()) for name, study in plan.items()}
    assert [len(sentences) for sentences in said.values()] == [2, 2, 2, 3]
    assert said["optimizer_stability"][0].startswith(
        "gap of SGD to AdamW (5 seeds per cell, 8 comparisons, Holm): a true"
    )
    assert said["optimizer_stability"][1].startswith(
        "gap of one model minus that of another (5 seeds per cell, 4 comp"
    )
    assert said["training_length"][0].startswith(
        "error above that of the longest schedule (5 seeds per cell, 6 comp"
    )
    assert said["recipe_vs_architecture"][1].startswith(
        "interaction of recipe and architecture (20 seeds per cell, 2 c"
    )
    assert said["depth_vs_width"][0].startswith(
        "branches against a sequence (5 seeds per cell, 10 comparisons, Holm)"
    )
    assert said["depth_vs_width"][1].startswith(
        "LayerScale, and longer training (5 seeds per cell, 4 comparisons, Holm): a true"
    )
    assert said["depth_vs_width"][2].startswith(
        "more blocks against more width (5 seeds per cell, 4 comparisons, Holm)"
    )
    assert all("nothing" in sentence for sentence in power.sentences(plan["depth_vs_width"](num=2)))
    assert all(
        "single runs" in sentence
        for sentence in power.sentences(plan["optimizer_stability"]("imagenet"))
    )


def test_a_plan_of_seeds_says_how_well_they_give_mean_and_sd() -> None:
    """Its widths are those that normal errors have, by simulation."""
    make = load_script(ROOT / "studies" / "seed_distribution.py").study
    (one,) = power.sentences(make(num=1))
    assert one.endswith("nothing: single runs have no spread")
    (said,) = power.sentences(make(num=8))
    half, below, above = map(float, re.findall(r"\d+\.\d+", said))
    values = np.random.default_rng(0).standard_normal((20_000, 8))
    sd = values.std(axis=1, ddof=1)
    assert within(np.mean(abs(values.mean(1)) < half * sd), 0.95, 20_000)
    assert within(np.mean((below * sd < 1) & (above * sd > 1)), 0.95, 20_000)


@pytest.mark.parametrize("n", [3, 5])
def test_seeds_that_all_collapse_claim_no_more_than_an_exact_test(n: int) -> None:
    """All seeds of one arm have the error of chance, those of the other differ as they do."""
    good = 10 + np.random.default_rng(n).standard_normal(n)
    least = scipy.stats.mannwhitneyu(good, np.full(n, 90.0), method="exact").pvalue
    assert estimates.contrast([good, np.full(n, 90.0)], [1, -1]).p == pytest.approx(least)
    spread = 90 + np.random.default_rng(0).standard_normal(n)
    t = scipy.stats.ttest_ind(good, spread, equal_var=False)
    assert (
        estimates.contrast([good, spread], [1, -1]).p == pytest.approx(t.pvalue)
        and t.pvalue < least
    )
