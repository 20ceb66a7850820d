"""Analysis: distributions, intervals and comparisons, held
against other code, closed forms, simulation.
"""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from statsmodels.distributions.empirical_distribution import ECDF
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint
from support.outcomes import SPACE, make_outcomes, make_study, random_errors
from support.refusals import refusing

from vitscale.analysis.distribution import compare, edf, forgiveness, tables
from vitscale.analysis.distribution.population import population
from vitscale.analysis.report import text
from vitscale.analysis.results import Results
from vitscale.analysis.stats import intervals
from vitscale.analysis.stats.correction import holm
from vitscale.plan.design import sobol
from vitscale.plan.study import Study

# ---- EDF


def test_edf_agrees_with_scipy_and_statsmodels_on_ties():
    values = np.random.default_rng(0).integers(0, 12, 50).astype(float)
    levels, shares = edf.edf(values)
    other = scipy.stats.ecdf(values).cdf
    assert np.array_equal(levels, other.quantiles)
    assert np.allclose(shares, other.probabilities)
    grid = np.linspace(-1, 13, 99)
    assert np.allclose(edf.share_at(values, grid), ECDF(values)(grid))


def test_edf_of_evenly_spaced_values_is_a_straight_line():
    _, shares = edf.edf(np.arange(1.0, 11.0)[::-1])
    assert np.allclose(shares, np.arange(1, 11) / 10)


def test_edf_refuses_what_has_no_place_in_it():
    with pytest.raises(ValueError, match="n=0"):
        edf.edf(np.array([]))
    with refusing("n=2", "nan"):
        edf.edf(np.array([1.0, np.nan]))


def test_diverged_and_failed_draws_stay_in_the_denominator_and_missing_ones_are_counted():
    study = make_study(10)
    status = {("a", 0): "diverged", ("a", 1): "diverged", ("a", 2): "failed", ("a", 9): "missing"}
    outcomes = make_outcomes(study, {"a": np.full(10, 11.0), "b": np.full(10, 11.0)}, status)
    draws = population(study, outcomes, "a")
    assert (draws.n, draws.planned) == (9, 10)
    assert draws.describe() == "n=9, 2 diverged, 1 failed, 1 missing, 0 beyond 10 points"
    levels, shares = edf.edf(draws.delta())
    assert levels.tolist() == [1.0]
    assert shares[-1] == pytest.approx(6 / 9)  # 1.0 if the three were dropped
    row = tables.edf_summary(Results(study, outcomes)).iloc[0]
    assert row["within_near_pct"] == pytest.approx(100 * 6 / 9)
    assert row["area"] == pytest.approx(6 / 9 * 0.9)
    assert [row[name] for name in ("finished", "diverged", "failed", "missing")] == [6, 2, 1, 1]


def test_draws_after_the_first_missing_one_do_not_count():
    study = make_study(10, pairs=(("a", "b"),))
    status = {
        ("a", 4): "missing",
        ("a", 6): "diverged",
        ("a", 8): "diverged",
        ("b", 2): "missing",
        ("b", 0): "diverged",
    }
    outcomes = make_outcomes(study, {"a": np.full(10, 11.0), "b": np.full(10, 30.0)}, status)
    a, b = (population(study, outcomes, arm) for arm in "ab")
    assert (a.point.tolist(), b.point.tolist()) == ([0, 1, 2, 3], [0, 1])
    assert (a.n, a.not_counted, a.planned) == (4, 5, 10) and a.describe().startswith(
        "n=4, 0 diverged, 1 missing, 5 later"
    )
    table = tables.edf_summary(Results(study, outcomes)).set_index("arm")
    assert table["within_near_pct"].tolist() == [100.0, 0.0]
    assert table[["n", "diverged", "missing", "not_counted"]].to_numpy().tolist() == [
        [4, 0, 1, 5],
        [2, 1, 1, 7],
    ]
    assert tables.arm_comparison(Results(study, outcomes))["n_a"].tolist() == [2]  # points 0 and 1
    assert population(study, outcomes, "a", whole=True).n == 9


def test_the_prefix_of_a_queue_has_no_more_than_a_third_of_a_diverged_draw_too_many():
    """Trials that diverge end after a tenth of the time, on 16 workers in the order of the plan:
    1,500 studies.

    What is too many is the run of diverged draws among those that train next: p / (1 - p) of one on
    the average, for a share p of 1/4 a third, however large the study. Counting all that have ended
    has several too many.
    """
    rng, num, workers = np.random.default_rng(20), 64, 16
    too_many: dict[str, list[float]] = {"all": [], "prefix": []}
    for _ in range(1500):
        diverged = rng.random(num) < 0.25
        times = np.where(diverged, 0.1, 1.0) * rng.uniform(0.8, 1.2, num)
        free, ends = np.zeros(workers), np.empty(num)
        for i in range(num):
            worker = free.argmin()
            ends[i] = free[worker] = free[worker] + times[i]
        done = ends <= rng.uniform(0.9, 1.9)  # looked at during the first two rounds
        first = num if done.all() else int(done.argmin())
        too_many["all"].append(float(diverged[done].sum() - 0.25 * done.sum()))
        too_many["prefix"].append(float(diverged[:first].sum() - 0.25 * first))
    error = np.std(too_many["prefix"]) / math.sqrt(1500)
    assert np.mean(too_many["prefix"]) <= 1 / 3 + 3 * error
    assert np.mean(too_many["all"]) > 1.5


def test_ties_at_a_threshold_count_in_images():
    """For 10,000 images every error is a whole number of
    hundredths, which floats hold inexactly.
    """
    study, wrong = make_study(3000), 500 + np.arange(3000) % 97
    references = wrong / 100
    outcomes = make_outcomes(study, {"a": references + 4.0, "b": (wrong + 400) / 100})
    for i, reference in enumerate(references[:97]):
        outcomes.loc[outcomes["point"].isna(), "value"] = reference
        draws = population(
            study, outcomes[outcomes["point"].isna() | (outcomes["point"] == i)], "b"
        )
        assert (draws.delta() == 4.0).all(), reference


def test_a_diverged_draw_is_never_within_points_of_a_bad_reference():
    study = make_study(4)
    outcomes = make_outcomes(
        study, {"a": [97] * 4, "b": [97] * 4}, {("a", 0): "diverged"}, reference=97.0
    )
    assert tables.edf_summary(Results(study, outcomes))["within_near_pct"].tolist() == [
        75.0,
        100.0,
    ]


def test_delta_is_measured_from_the_reference_or_on_request_from_the_best_draw():
    study = make_study(3)
    draws = population(study, make_outcomes(study, {"a": [9, 12, 15], "b": [9, 12, 15]}), "a")
    assert draws.delta().tolist() == [-1, 2, 5]
    assert draws.delta("best draw").tolist() == [0, 3, 6]
    with refusing("baseline='best run'"):
        draws.delta("best run")


@pytest.mark.parametrize("state", ["missing", "diverged", "failed"])
def test_a_reference_without_an_error_is_not_replaced_silently(state):
    study = make_study(3)
    outcomes = make_outcomes(study, {"a": [9, 12, 15], "b": [9, 12, 15]}, {("a", None): state})
    draws = population(study, outcomes, "a")
    with pytest.raises(ValueError, match=f"reference='1 {state}'"):
        draws.delta()
    assert draws.delta("best draw").tolist() == [0, 3, 6]
    assert math.isnan(tables.edf_summary(Results(study, outcomes))["area"][0])


def test_a_malformed_table_is_refused():
    study = make_study(3)
    outcomes = make_outcomes(study, random_errors(study))
    with refusing("missing=['value']"):
        population(study, outcomes.drop(columns="value"), "a")
    with refusing("['paused']"):
        population(study, outcomes.assign(status="paused"), "a")
    with refusing("status='finished'", "value=nan"):
        population(study, outcomes.assign(value=np.nan), "a")
    with pytest.raises(ValueError, match=r"share \(lr, wd\)"):
        population(study, outcomes.assign(point=pd.NA), "a")


def test_the_reference_is_the_mean_of_the_runs_that_finished():
    study = make_study(4, num_references=3)
    errors = {"a": [9, 14, 16, 30], "b": [9, 14, 15, 30]}
    # a: 10, 11, 12; b: 11, 12
    outcomes = make_outcomes(study, errors, {("b", "seed 0"): "diverged"})
    a, b = (population(study, outcomes, arm) for arm in "ab")
    assert (a.reference, a.reference_sd, b.reference) == (11.0, 1.0, 11.5)
    assert (a.describe_references(), b.describe_references()) == (
        "3 finished",
        "2 finished, 1 diverged",
    )
    table = tables.edf_summary(Results(study, outcomes)).set_index("arm")
    assert table["num_references"].tolist() == [3, 2]
    assert table["reference_sd"].tolist() == pytest.approx([1.0, math.sqrt(0.5)])
    assert table["num_better_than_reference"].tolist() == [1, 1]
    assert table["num_beyond"].tolist() == [1, 1]
    assert table["within_near_pct"].tolist() == [50.0, 75.0]


def test_shares_are_given_for_a_reference_as_far_off_as_it_may_be():
    errors = {"a": [14.3, 14.5, 15.1, 15.5], "b": [12.0, 13.0, 17.4, 17.5]}
    # reference 11; t of 2 df is 4.303, standard error 0.577: 2.484 points
    study = make_study(4, num_references=3)
    names = [f"within_near{end}_pct" for end in ("_if_reference_lower", "", "_if_reference_higher")]
    table = tables.edf_summary(Results(study, make_outcomes(study, errors)))
    assert table[names].to_numpy().tolist() == [[0.0, 50.0, 100.0], [25.0, 50.0, 75.0]]
    low, high = (intervals.clopper_pearson(hits, 4)[end] for hits, end in ((0, 0), (4, 1)))
    assert table.loc[0, ["within_near_pct_low", "within_near_pct_high"]].tolist() == [
        100 * low,
        100 * high,
    ]
    assert table["interval_of_shares_and_area"].str.endswith("with the references' noise").all()
    study = make_study(4)  # one run: by 1 point; limits 14 - 1, 14, 14 + 1
    table = tables.edf_summary(Results(study, make_outcomes(study, errors)))
    assert table.loc[0, names].tolist() == [0.0, 0.0, 50.0]
    assert table.loc[0, "within_near_pct_high"] == 100 * intervals.clopper_pearson(0, 4)[1]
    assert table["interval_of_shares_and_area"].str.endswith("given the reference").all()


def test_the_second_scale_is_a_ratio_to_the_reference():
    errors = {"a": [9.0, 16.5, 17.0, 100.0], "b": [11.0, 11.0, 11.0, 44.0]}
    study = make_study(4, num_references=3)  # reference 11
    outcomes = make_outcomes(study, errors, {("a", 3): "diverged"})
    table = tables.edf_summary(Results(study, outcomes))
    assert table["within_1.5_times_pct"].tolist() == [50.0, 75.0]
    assert table["ratio"].tolist() == pytest.approx(
        [scipy.stats.gmean(errors[arm]) / 11 for arm in "ab"]
    )
    logs = np.log(errors["b"])
    parts = np.array([logs.var(ddof=1) / 4, (1 / 11) ** 2 / 3])  # of log 11, whose runs have sd 1
    half = scipy.stats.t.ppf(0.975, parts.sum() ** 2 / (parts**2 / [3, 2]).sum()) * math.sqrt(
        parts.sum()
    )
    assert math.log(table.loc[1, "ratio_high"] / table.loc[1, "ratio"]) == pytest.approx(half)


def test_an_error_of_zero_has_no_ratio_and_no_stand_in():
    study = make_study(3, num_references=2)
    outcomes = make_outcomes(study, {"a": [0.0, 0.5, 2.0], "b": [1.0, 0.5, 2.0]}, reference=1.0)
    table = tables.edf_summary(Results(study, outcomes)).set_index("arm")
    assert np.isnan(table.loc["a", "ratio"])
    assert table.loc["b", "ratio"] == pytest.approx(1 / 1.5)  # the mean of 1 and 2
    assert table.loc["a", "median"] == 0.5 and table["area"].notna().all()
    outcomes.loc[outcomes["point"].isna(), "value"] = 0.0
    assert tables.edf_summary(Results(study, outcomes))["ratio"].isna().all()


# ---- area


def test_area_is_the_integral_of_the_curve():
    delta = np.array([-2.0, 0.5, 3.0, 3.0, 9.0, 14.0, np.inf])
    grid = (np.arange(100_000) + 0.5) * 10.0 / 100_000
    assert edf.area_scores(delta, 10.0).mean() == pytest.approx(
        edf.share_at(delta, grid).mean(), abs=1e-4
    )
    assert edf.area_scores(delta, 10.0).mean() == pytest.approx((1 + 0.95 + 0.7 + 0.7 + 0.1) / 7)


def test_area_interval_covers_a_closed_form_and_a_few_bad_draws_among_many_good_ones():
    rng, mean = np.random.default_rng(1), 4.0
    truth = 1 - mean / 10 * (1 - math.exp(-10 / mean))  # of exponential deltas
    scores = edf.area_scores(rng.exponential(mean, (16, 2000)), 10.0)
    low, high = intervals.area_interval(scores)
    assert ((low <= truth) & (truth <= high)).mean() >= 0.95
    wide_low, wide_high = intervals.share_interval(scores)
    assert (high - low).mean() < 0.8 * (wide_high - wide_low).mean()
    # a bootstrap covers 65%
    scores = np.where(rng.random((16, 2000)) < 0.93, 0.98, rng.random((16, 2000)))
    low, high = intervals.area_interval(scores)
    truth = 0.93 * 0.98 + 0.07 / 2
    assert ((low <= truth) & (truth <= high)).mean() >= 0.95


# ---- intervals


def test_clopper_pearson_agrees_with_scipy():
    for hits, n in [(0, 1), (1, 1), (0, 16), (3, 16), (15, 16), (16, 16), (40, 64)]:
        low, high = intervals.clopper_pearson(hits, n)
        expected = scipy.stats.binomtest(hits, n).proportion_ci(method="exact")
        assert (float(low), float(high)) == pytest.approx((expected.low, expected.high))


def test_clopper_pearson_covers_and_so_does_it_with_ties_at_one_half():
    rng = np.random.default_rng(2)
    for probs in ([0.1, 0.0, 0.9], [0.2, 0.3, 0.5], [0.05, 0.9, 0.05]):
        scores = rng.choice([0.0, 0.5, 1.0], size=(4000, 16), p=probs)
        low, high = intervals.clopper_pearson(scores.sum(axis=1), 16)
        truth = probs[2] + probs[1] / 2
        assert ((low <= truth) & (truth <= high)).mean() >= 0.95


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_the_band_holds_the_whole_curve(kind):
    rng, n, sims = np.random.default_rng(3), 25, 1500
    covered = 0
    for _ in range(sims):
        if kind == "continuous":
            values = np.sort(rng.random(n))
            levels = truth = values
            low, _ = edf.curve_band(values, levels)
            # highest deviation is just before a step
            _, high = edf.curve_band(values, np.nextafter(levels, -1))
        else:
            values, levels = rng.integers(0, 4, n).astype(float), np.arange(4.0)
            truth = (levels + 1) / 4
            low, high = edf.curve_band(values, levels)
        covered += bool((low <= truth).all() and (truth <= high).all())
    assert covered / sims >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / sims)


def test_a_sobol_design_is_refused_by_the_band_of_a_curve():
    with refusing("num_scrambles=2"):
        edf.curve_band(np.arange(4.0), np.arange(4.0), num_scrambles=2)


def test_median_interval_ends_at_the_order_statistics_of_the_binomial():
    values = np.random.default_rng(4).random(30) * 100
    rank = int(scipy.stats.binom.ppf(0.025, 30, 0.5))  # P(Bin < rank) <= 0.025
    ordered = np.sort(values)
    assert intervals.median_interval(values) == (ordered[rank - 1], ordered[30 - rank])


def test_median_interval_of_counts_is_that_of_the_table_of_all_levels():
    rng = np.random.default_rng(3)
    for n in (1, 2, 7, 40):
        values = rng.choice([3.0, 4.5, 100.0, *rng.normal(size=n)], n)
        levels = np.concatenate([[-np.inf], np.unique(values)])
        low, high = intervals.share_interval(values[:, None] <= levels)
        ends = np.concatenate([[0.0], levels[1:]])
        above = ends[low > 0.5]
        expected = ends[high >= 0.5][0], above[0] if len(above) else 100.0
        assert intervals.median_interval(values) == expected


@pytest.mark.parametrize("n", [5, 16])
def test_median_interval_covers_with_diverged_draws_and_ties(n):
    rng, covered = np.random.default_rng(5), 0
    for _ in range(600):
        # median of the mixture: 17
        values = np.where(rng.random(n) < 0.3, 100.0, rng.integers(10, 20, n))
        low, high = intervals.median_interval(values)
        covered += low <= 17 <= high
    assert covered / 600 >= 0.95


def test_standard_error_is_the_textbooks_for_equal_groups_and_for_single_draws():
    scores = np.random.default_rng(6).random(24)
    group = np.repeat(np.arange(4), 6)
    error, df = intervals.standard_error(scores, group)
    means = scores.reshape(4, 6).mean(axis=1)
    assert (float(error), df) == (pytest.approx(means.std(ddof=1) / 2), 3)
    error, df = intervals.standard_error(scores, np.arange(24))
    assert (float(error), df) == (pytest.approx(scipy.stats.sem(scores)), 23)


def test_where_all_scrambles_agree_the_interval_keeps_a_width():
    hits, scramble = np.ones(16, dtype=bool), np.repeat(np.arange(4), 4)
    low, high = intervals.share_interval(hits, scramble)
    assert (float(low), float(high)) == (pytest.approx(0.025 ** (1 / 16)), 1.0)
    low, high = intervals.share_interval(hits, np.zeros(16))
    assert (float(low), float(high)) == (0.0, 1.0)  # one scramble tells nothing of the spread


def error_surface(points: np.ndarray) -> np.ndarray:
    """Delta of a valley in (log lr, log wd) with a cliff of
    divergence, at (n, 2) points of the unit square.
    """
    u, v = points.T
    delta = 14 * (u - 0.45) ** 2 + 6 * (v - 0.5) ** 2 + 8 * (u - 0.45) * (v - 0.5)
    return np.where(u + 0.3 * v > 1.1, np.inf, delta)


def unit_square(points: list[dict]) -> np.ndarray:
    return np.array(
        [
            [math.log(p["lr"] / 1e-4) / math.log(100), math.log(p["wd"] / 0.01) / math.log(100)]
            for p in points
        ]
    )


def test_sobol_intervals_cover_a_known_error_surface():
    """Scrambled points of the real design: pointwise,
    simultaneous and area intervals against a lattice.
    """
    lattice = (np.stack(np.meshgrid(*[np.arange(1000)] * 2), -1).reshape(-1, 2) + 0.5) / 1000
    levels, scramble, sims = np.array([0.5, 1.0, 2.0, 4.0]), np.repeat(np.arange(4), 16), 200
    true = error_surface(lattice)
    truth, true_area = edf.share_at(true, levels), edf.area_scores(true, 10.0).mean()
    pointwise, whole, areas = np.zeros(4), 0, 0
    for seed in range(sims):
        delta = error_surface(unit_square(sobol(SPACE, num=64, num_scrambles=4, seed=seed)))
        low, high = edf.pointwise_interval(delta, levels, scramble)
        pointwise += (low <= truth) & (truth <= high)
        low, high = edf.sobol_band(delta, levels, scramble, grid=np.linspace(0, 10, 11))
        whole += bool(((low <= truth) & (truth <= high)).all())
        low_area, high_area = intervals.share_interval(edf.area_scores(delta, 10.0), scramble)
        areas += low_area <= true_area <= high_area
    assert (pointwise / sims >= 0.90).all()
    assert areas / sims >= 0.90
    assert whole / sims >= 0.95


def test_sobol_band_is_valid_between_the_levels_of_its_grid():
    delta, scramble = np.random.default_rng(7).random(32) * 8, np.repeat(np.arange(4), 8)
    grid = np.linspace(0, 10, 11)
    low, high = edf.sobol_band(delta, np.array([2.0, 2.5, 3.0, 11.0]), scramble, grid=grid)
    assert (low[1], high[1]) == (low[0], high[2])
    assert high[3] == 1.0


# ---- comparison


def test_arms_are_paired_by_their_data_and_not_by_their_names():
    study = make_study(6)
    outcomes = make_outcomes(study, random_errors(study))
    assert compare.paired(outcomes, "a", "b")
    moved = outcomes.copy()
    moved.loc[(moved["arm"] == "b") & (moved["point"] == 3), "wd"] *= 2
    assert not compare.paired(moved, "a", "b")


def test_paired_comparison_uses_points_with_both_outcomes_and_scores_ties_half():
    study = make_study(6)
    status = {("a", 0): "diverged", ("b", 0): "diverged", ("b", 1): "diverged", ("a", 5): "missing"}
    errors = {"a": [0, 12, 13, 14, 15, 16], "b": [0, 0, 15, 13, 19, 16]}
    result = compare.compare(Results(study, make_outcomes(study, errors, status)), "a", "b")
    assert result["paired"] is True
    assert (result["n_a"], result["prob_a_lower"]) == (5, pytest.approx((3 + 0.5) / 5))
    assert result["median_difference"] == -2  # of 0, 12 - 100, -2, +1, -4
    assert result["prob_p"] == pytest.approx(scipy.stats.binomtest(3, 4).pvalue)


def test_sign_test_agrees_with_scipy():
    for wins, losses in [(0, 0), (5, 0), (9, 3), (8, 8), (2, 30)]:
        expected = scipy.stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert intervals.sign_test(wins, losses) == pytest.approx(expected)


def unpaired(study: Study, errors: dict[str, np.ndarray]) -> dict[str, object]:
    outcomes = make_outcomes(study, errors)
    outcomes.loc[outcomes["arm"] == "b", "lr"] *= 2
    return compare.compare(Results(study, outcomes), "a", "b")


def test_superiority_agrees_with_scipys_brunner_munzel_and_mann_whitney():
    study = make_study(20)
    rng = np.random.default_rng(8)
    errors = {
        "a": rng.integers(10, 20, 20).astype(float),
        "b": rng.integers(12, 26, 20).astype(float),
    }
    result = unpaired(study, errors)
    assert result["paired"] is False
    assert result["prob_p"] == pytest.approx(
        scipy.stats.brunnermunzel(errors["a"], errors["b"]).pvalue
    )
    u = scipy.stats.mannwhitneyu(errors["b"], errors["a"]).statistic
    assert result["prob_a_lower"] == pytest.approx(u / 400)
    assert result["median_difference"] == np.median(errors["a"]) - np.median(errors["b"])


def test_superiority_of_many_draws_needs_no_table_of_all_pairs():
    study = make_study(4)
    draws = population(study, make_outcomes(study, random_errors(study)), "a")
    rng = np.random.default_rng(5)
    few, many = (
        [
            replace(draws, point=np.arange(n), error=rng.integers(10, 90, n).astype(float))
            for _ in "ab"
        ]
        for n in (50, 20_000)
    )
    wins = sum((x < y) + 0.5 * (x == y) for x in few[0].error for y in few[1].error)
    assert compare.superiority(*few)[0] == wins / 2500
    tracemalloc.start()
    compare.superiority(*many)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6  # bytes; a table has 400 million cells


def test_complete_separation_has_an_interval_and_a_p_that_is_not_zero():
    study = make_study(8)
    result = unpaired(study, {"a": np.arange(8.0), "b": np.arange(8.0) + 20})
    assert (result["prob_a_lower"], result["prob_p"]) == (1.0, pytest.approx(2 * 0.5**8))
    assert result["prob_a_lower_low"] == pytest.approx(0.025 ** (1 / 8))


# ---- forgiveness


def test_newcombes_intervals_agree_with_published_ones_and_wilsons_with_statsmodels():
    published = {
        (1, 1, 7, 12): (-0.507, -0.026),  # Bentur et al. 2009, in Fagerland, Lydersen & Laake 2014
        (36, 12, 2, 0): (0.0569, 0.3404),  # Newcombe 1998, paired, Table II, method 10
        # Altman et al. 2000, Table 6.2: with the correction for continuity
        (14, 5, 0, 22): (0.011, 0.226),
    }
    for counts, (low, high) in published.items():
        assert intervals.paired_share_difference(*counts) == pytest.approx((low, high), abs=6e-4)
    for hits, n in [(56, 70), (9, 10), (10, 10), (0, 16)]:
        expected = proportion_confint(hits, n, method="wilson")
        assert np.ravel(intervals.wilson(hits, n)) == pytest.approx(expected, abs=1e-12)
        expected = proportion_confint(hits, n, method="agresti_coull")
        assert np.ravel(intervals.agresti_coull(hits, n)) == pytest.approx(expected, abs=1e-12)


def test_the_interval_of_a_difference_of_independent_shares_covers_exactly():
    """Agresti & Caffo's, over all counts of 8 and of 16
    draws and a grid of shares: never below 93.9%.
    """
    for n in (8, 16):
        ends = np.array(
            [[intervals.share_difference(x, n, y, n) for y in range(n + 1)] for x in range(n + 1)]
        )
        for p, q in [(0.5, 0.5), (0.9, 0.9), (0.95, 0.5), (0.7, 0.2), (0.98, 0.9), (0.1, 0.03)]:
            chance = np.outer(
                *(scipy.stats.binom.pmf(np.arange(n + 1), n, share) for share in (p, q))
            )
            held = (ends[..., 0] <= p - q + 1e-12) & (p - q <= ends[..., 1] + 1e-12)
            assert chance[held].sum() >= 0.939, (n, p, q)
    assert intervals.share_difference(16, 16, 0, 16)[1] == 1.0


@pytest.mark.parametrize("n", [8, 14, 16, 64])
def test_the_darker_band_covers_near_the_ends_where_a_bootstrap_does_not(n: int):
    """Exactly; at 16 draws percentiles of the bootstrap cover 55% at a share of 0.95, and Wilson's
    interval 85% at 0.98."""
    counts = np.arange(n + 1)
    values = np.where(np.arange(n) < counts[:, None], 0.0, 9.0)
    ends = np.array([edf.pointwise_interval(draws, np.array([4.0])) for draws in values])[..., 0]
    for share in np.linspace(0.01, 0.99, 99):
        held = (ends[:, 0] <= share) & (share <= ends[:, 1])
        assert scipy.stats.binom.pmf(counts, n, share)[held].sum() >= 0.92, share


def test_mid_p_is_the_exact_p_less_half_the_chance_of_what_was_seen():
    for wins, losses in [(0, 0), (5, 0), (3, 9), (8, 8), (2, 30)]:
        seen = scipy.stats.binom.pmf(wins, wins + losses, 0.5)
        expected = 1.0 if wins == losses else intervals.sign_test(wins, losses) - seen
        assert intervals.mid_p_sign_test(wins, losses) == pytest.approx(expected)


def near_and_far(study: Study, near: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Errors of 11 where an arm is near its reference of 10, else 30."""
    return {arm: np.where(np.asarray(hits) == 1, 11.0, 30.0) for arm, hits in near.items()}


def test_shares_of_paired_arms_are_compared_by_mcnemars_mid_p():
    study = make_study(12, num_references=3)
    # both 3, only a 6, only b 1, neither 2
    hits = {"a": [1] * 9 + [0] * 3, "b": [1] * 3 + [0] * 6 + [1] + [0] * 2}
    result = compare.compare(
        Results(study, make_outcomes(study, near_and_far(study, hits))), "a", "b"
    )
    assert result["within_near_difference_pct"] == pytest.approx(100 * 5 / 12)
    exact = mcnemar([[3, 6], [1, 2]], exact=True).pvalue
    assert result["within_near_p"] == pytest.approx(exact - scipy.stats.binom.pmf(1, 7, 0.5))
    ends = [result[f"within_near_difference_pct_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx(
        [100 * end for end in intervals.paired_share_difference(3, 6, 1, 2)]
    )
    assert "McNemar" in str(result["within_near_method"])


def test_forgiveness_is_about_each_arms_own_reference_and_not_about_its_error():
    study = make_study(16)
    outcomes = make_outcomes(study, {"a": np.full(16, 11.0), "b": np.full(16, 31.0)})
    outcomes.loc[(outcomes["arm"] == "b") & outcomes["point"].isna(), "value"] = 30.0
    result = compare.compare(Results(study, outcomes), "a", "b")
    assert (result["within_near_difference_pct"], result["area_difference"]) == (0.0, 0.0)
    assert result["ratio_a_over_b"] == pytest.approx(1.1 / (31 / 30)) and result["prob_p"] < 0.001


@pytest.mark.parametrize("num", [1, 2])
def test_one_or_two_reference_runs_make_no_test_of_forgiveness(num: int):
    study = make_study(16, num_references=num)
    result = compare.compare(Results(study, make_outcomes(study, random_errors(study))), "a", "b")
    for name in ("area", "ratio"):
        assert np.isnan(result[f"{name}_p"]) and "fewer than 3 reference runs" in str(
            result[f"{name}_method"]
        )
    assert np.isnan([result["area_difference_low"], result["ratio_a_over_b_high"]]).all()
    assert np.isfinite([result["area_difference"], result["within_near_difference_pct_low"]]).all()
    assert np.isnan(result["within_near_p"]) and str(result["within_near_method"]).endswith(
        "given the references"
    )


def test_shares_of_unpaired_arms_are_compared_by_boschloos_test():
    study = make_study(12, num_references=3)
    hits = {"a": [1] * 10 + [0] * 2, "b": [1] * 4 + [0] * 8}
    result = unpaired(study, near_and_far(study, hits))
    expected = scipy.stats.boschloo_exact([[10, 4], [2, 8]]).pvalue
    assert (
        result["within_near_p"] == pytest.approx(expected)
        and expected < scipy.stats.fisher_exact([[10, 4], [2, 8]])[1]
    )
    ends = confint_proportions_2indep(10, 12, 4, 12, method="agresti-caffo")
    assert result["within_near_difference_pct_low"] == pytest.approx(100 * ends[0])
    assert forgiveness.boschloo(12, 12, 12, 12) == forgiveness.boschloo(0, 5, 0, 9) == 1.0


def test_forgiveness_of_a_sobol_design_is_t_over_its_scrambles():
    study = make_study(32, num_scrambles=4, num_references=3)
    rng = np.random.default_rng(12)
    hits = {"a": rng.integers(0, 2, 32), "b": rng.integers(0, 2, 32)}
    outcomes = make_outcomes(study, near_and_far(study, hits))
    blocks = {arm: hits[arm].reshape(4, 8).mean(axis=1) for arm in "ab"}
    result = compare.compare(Results(study, outcomes), "a", "b")
    assert result["within_near_p"] == pytest.approx(
        scipy.stats.ttest_rel(blocks["a"], blocks["b"]).pvalue
    )
    outcomes.loc[outcomes["arm"] == "b", "lr"] *= 2
    result = compare.compare(Results(study, outcomes), "a", "b")
    welch = scipy.stats.ttest_ind(blocks["a"], blocks["b"], equal_var=False)
    assert result["within_near_p"] == pytest.approx(welch.pvalue)
    _, high = welch.confidence_interval()
    assert result["within_near_difference_pct_high"] == pytest.approx(100 * high)


def test_forgiveness_without_a_reference_or_a_draw_says_why():
    study = make_study(4)
    outcomes = make_outcomes(study, random_errors(study), {("b", None): "diverged"})
    result = compare.compare(Results(study, outcomes), "a", "b")
    assert result["within_near_method"] == "an arm has no finished reference"
    assert np.isnan(result["within_near_p"]) and np.isfinite(result["prob_p"])


@pytest.mark.parametrize(
    "probs", [(0.6, 0.2, 0.1, 0.1), (0.8, 0.12, 0.02, 0.06), (0.3, 0.2, 0.2, 0.3)]
)
def test_interval_and_test_of_paired_shares_hold_with_16_draws(probs):
    """Exactly, over all tables of 16 points: coverage of the
    interval, and level of the test where shares agree.
    """
    covered = wrong = 0.0
    truth = probs[1] - probs[2]
    for both in range(17):
        for a in range(17 - both):
            for b in range(17 - both - a):
                counts = (both, a, b, 16 - both - a - b)
                chance = scipy.stats.multinomial.pmf(counts, 16, probs)
                low, high = intervals.paired_share_difference(*counts)
                covered += chance * (low <= truth <= high)
                wrong += chance * (truth == 0 and intervals.mid_p_sign_test(a, b) < 0.05)
    assert covered >= 0.94
    assert wrong <= 0.05


# ---- calibration of absolute error


def simulate(shift: float, spread: float, is_paired: bool, sims: int = 160) -> pd.DataFrame:
    """Comparisons of two simulated arms with noise of their own, median difference `shift`."""
    study, rng, results = make_study(16), np.random.default_rng(9), []
    frame = make_outcomes(study, random_errors(study))
    if not is_paired:
        frame.loc[frame["arm"] == "b", "lr"] *= 2
    for _ in range(sims):
        common = rng.exponential(4, 16) if is_paired else 0.0
        a, b = (20 + common + scale * rng.normal(size=16) for scale in (1.0, spread))
        for arm, values in (("a", a), ("b", b + shift)):
            frame.loc[(frame["arm"] == arm) & frame["point"].notna(), "value"] = values
        results.append(compare.compare(Results(study, frame), "a", "b"))
    return pd.DataFrame(results)


@pytest.mark.parametrize(("is_paired", "spread"), [(True, 1.0), (False, 1.0), (False, 4.0)])
def test_comparison_is_calibrated_without_a_difference(is_paired, spread):
    results = simulate(0.0, spread, is_paired)
    assert (results["prob_p"] < 0.05).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 160)
    for name, truth in (("prob_a_lower", 0.5), ("median_difference", 0.0)):
        held = (results[f"{name}_low"] <= truth) & (truth <= results[f"{name}_high"])
        assert held.mean() >= 0.95 - 2.5 * math.sqrt(0.05 * 0.95 / 160)


@pytest.mark.parametrize("is_paired", [True, False])
def test_comparison_finds_a_difference_and_covers_its_size(is_paired):
    results = simulate(2.0, 1.0, is_paired)
    assert (results["prob_p"] < 0.05).mean() >= 0.9
    held = (results["median_difference_low"] <= -2) & (results["median_difference_high"] >= -2)
    assert held.mean() >= 0.93
    truth = scipy.stats.norm.cdf(2 / math.sqrt(2))
    held = (results["prob_a_lower_low"] <= truth) & (truth <= results["prob_a_lower_high"])
    assert held.mean() >= 0.92


def test_a_sobol_design_is_compared_over_its_scrambles():
    study = make_study(32, num_scrambles=4)
    rng = np.random.default_rng(10)
    errors = {"a": rng.normal(20, 1, 32), "b": rng.normal(20.3, 1, 32)}
    result = compare.compare(Results(study, make_outcomes(study, errors)), "a", "b")
    blocks = (errors["a"] < errors["b"]).reshape(4, 8).mean(axis=1)
    assert result["prob_p"] == pytest.approx(scipy.stats.ttest_1samp(blocks, 0.5).pvalue)
    assert "4 scrambles" in str(result["prob_method"])


def test_holm_agrees_with_a_hand_computation_and_counts_comparisons_to_come():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, np.nan])[0] == pytest.approx(0.02)
    assert math.isnan(holm([0.01, np.nan])[1])
    assert holm([0.01]) == pytest.approx([0.01])


def test_good_range_agrees_with_the_exact_distribution_of_the_winner():
    study = make_study(64)
    errors = random_errors(study)
    draws = population(study, make_outcomes(study, errors), "a")
    order = np.argsort(errors["a"])
    beaten = (1 - np.arange(65) / 64) ** 16  # P(none of the 16 is among the best k)
    chance = pd.Series(
        beaten[:-1] - beaten[1:], index=np.log10(draws.values["lr"][order])
    ).sort_index()
    good = compare.good_draws(draws, num=40_000)
    low, median, high = compare.good_range(draws, "lr", good)
    for value, share in ((low, 0.025), (median, 0.5), (high, 0.975)):
        below = chance[chance.index < math.log10(value) - 1e-6].sum()
        up_to = chance[chance.index < math.log10(value) + 1e-6].sum()
        assert below - 0.01 <= share <= up_to + 0.01
    assert not np.isnan(compare.good_range(draws, "lr*wd", good)).any()


def test_good_range_is_not_given_for_too_few_or_only_diverged_draws():
    few, many = make_study(7), make_study(8)
    diverged = {("a", i): "diverged" for i in range(8)}
    for draws in (
        population(few, make_outcomes(few, random_errors(few)), "a"),
        population(many, make_outcomes(many, random_errors(many), diverged), "a"),
    ):
        good = compare.good_draws(draws)
        assert not len(good) and np.isnan(compare.good_range(draws, "lr", good)).all()


# ---- tables


def test_markdown_joins_an_estimate_with_its_interval():
    table = pd.DataFrame(
        {
            "arm": ["x|y"],
            "n": [3],
            "share_pct": [50.0],
            "share_pct_low": [9.43],
            "share_pct_high": [90.57],
            "prob_p": [0.0001],
            "area": [np.nan],
        }
    )
    lines = text.to_markdown(table).splitlines()
    assert lines[0] == "| arm | n | share (%) | prob p | area |"
    assert lines[2] == "| x\\|y | 3 | 50.0 [9.4, 90.6] | < 0.001 | – |"


def test_arm_comparison_has_both_p_columns_and_no_row_without_pairs():
    study = make_study(8, arms=("a", "b", "c"), pairs=(("a", "b"), ("a", "c")), num_references=3)
    errors = random_errors(study)
    table = tables.arm_comparison(Results(study, make_outcomes(study, errors)))
    for name in ("area_p", "ratio_p", "within_near_p", "prob_p"):
        assert table[f"{name}_holm"].tolist() == pytest.approx(holm(table[name].tolist()))
    assert list(
        tables.arm_comparison(Results(make_study(8), make_outcomes(study, errors))).columns
    ) == list(table.columns)


def test_tables_of_an_unstarted_study_have_a_row_per_arm_and_no_number():
    study = make_study(8, pairs=(("a", "b"),))
    status = {(trial.arm.name, trial.point): "missing" for trial in study.trials}
    outcomes = make_outcomes(study, random_errors(study), status)
    summary = tables.edf_summary(Results(study, outcomes))
    assert summary["missing"].tolist() == [8, 8] and summary["n"].tolist() == [0, 0]
    assert summary[["median", "area", "within_quarter_near_pct"]].isna().all(axis=None)
    assert (
        tables.arm_comparison(Results(study, outcomes))[["prob_p", "area_p", "ratio_p"]]
        .isna()
        .all(axis=None)
    )
    assert tables.good_range(Results(study, outcomes))["good_median"].isna().all()
    assert not any(
        name.endswith(("_low", "_high")) for name in tables.good_range(Results(study, outcomes))
    )
