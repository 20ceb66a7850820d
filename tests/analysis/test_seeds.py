"""The distribution over seeds, correlation, power: closed
forms, scipy, simulation, the thesis' printed numbers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import WITHOUT_PDF
from support import known
from support.seed_outcomes import EPOCHS, make_study, make_tables

from vitscale.analysis.published import tables as published
from vitscale.analysis.questions import seed_bins as bins
from vitscale.analysis.questions import seed_epochs, seed_power, seed_sets, seeds
from vitscale.analysis.report import text
from vitscale.analysis.report.report import headline, write_report
from vitscale.analysis.results import Results
from vitscale.analysis.stats import correlation, spread
from vitscale.record.workdir import Workdir

# ---- the thesis' printed numbers


def test_published_seed_statistics_have_the_derived_numbers():
    table = published.published_seed_statistics(Results(make_study(), pd.DataFrame())).set_index(
        "evaluation"
    )
    assert table.loc["val", ["mean_error_pct", "min_error_pct", "max_error_pct"]].round(
        2
    ).tolist() == [20.28, 20.02, 20.5]
    # highest accuracy, in sd above the mean
    assert (-table["min_z"]).round(2).tolist() == [2.6, 2.25, 3.04]
    assert table["max_z"].round(1).tolist() == [2.2, 2.0, 2.6]
    assert (-table["seed_0_z"]).round(1).tolist() == [1.3, 1.0, -0.4]
    assert table["standard_error_points"].round(3).tolist() == [0.010, 0.008, 0.023]
    assert table["one_run_sampling_points"][["val", "v2"]].round(2).tolist() == [0.18, 0.47]


def test_seeds_needed_for_the_thesis_spread():
    normal = [
        2 * (sd * (scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)) / 0.1) ** 2
        for sd in (0.10, 0.23)
    ]
    assert [int(np.ceil(n)) for n in normal] == [16, 84]  # 83.04: the normal approximation
    # Student's t needs one more
    assert [spread.seeds_needed(0.1, sd) for sd in (0.10, 0.23)] == [17, 85]


def test_the_largest_of_100_normal_values_is_expected_near_two_and_a_half():
    assert spread.expected_maximum(2) == pytest.approx(1 / np.sqrt(np.pi))
    assert spread.expected_maximum(3) == pytest.approx(1.5 / np.sqrt(np.pi))
    assert spread.expected_maximum(100) == pytest.approx(2.5076, abs=1e-4)  # Harter 1961
    samples = np.random.default_rng(0).standard_normal((20_000, 30)).max(axis=1)
    assert spread.expected_maximum(30) == pytest.approx(
        samples.mean(), abs=4 * samples.std() / 20_000**0.5
    )


# ---- estimators


@pytest.mark.parametrize("power", [0.8, 0.9])
@pytest.mark.parametrize("effect", [0.3, 1.0, 2.5])
def test_power_is_reached_and_one_seed_less_does_not_reach_it(effect, power):
    def power_at(n: int) -> float:
        """Power of a two-sample t test, from the noncentral t distribution."""
        df, shift = 2 * n - 2, effect * np.sqrt(n / 2)
        edge = scipy.stats.t.ppf(0.975, df)
        return scipy.stats.nct.sf(edge, df, shift) + scipy.stats.nct.cdf(-edge, df, shift)

    n = spread.seeds_needed(effect, 1.0, power)
    assert power_at(n) >= power and (n == 2 or power_at(n - 1) < power)


def test_power_is_that_of_simulated_comparisons():
    rng = np.random.default_rng(0)
    n = spread.seeds_needed(1.0, 1.0, 0.8)
    a, b = rng.normal(0, 1, (4000, n)), rng.normal(1, 1, (4000, n))
    assert np.mean(scipy.stats.ttest_ind(a, b, axis=1).pvalue < 0.05) == pytest.approx(
        0.8, abs=0.04
    )
    pairs = spread.seeds_needed(1.0, 1.0, 0.8, correlation=0.2)
    shared, own = rng.normal(0, 0.2**0.5, (4000, pairs)), rng.normal(0, 0.8**0.5, (2, 4000, pairs))
    p = scipy.stats.ttest_rel(shared + own[0], shared + own[1] + 1, axis=1).pvalue
    assert 0.78 < np.mean(p < 0.05) < 0.87  # a whole number of pairs gives a little more than 0.8
    assert pairs < n


def test_a_difference_that_is_not_positive_is_refused():
    with pytest.raises(
        ValueError, match=r"difference > 0 and sd > 0 must hold, but got \(difference=0.0, sd=1.0\)"
    ):
        spread.seeds_needed(0.0, 1.0)


def test_p_of_the_reference_run_is_uniform_if_it_is_one_of_the_seeds():
    samples = np.random.default_rng(0).normal(5, 2, (4000, 5))
    p = [spread.position_among(x[:4], x[4])["p"] for x in samples]
    assert scipy.stats.kstest(p, "uniform").pvalue > 0.01


def test_position_of_a_value_among_others():
    found = spread.position_among(np.array([1.0, 2.0, 3.0, 4.0]), 3.0)
    assert found["z"] == pytest.approx(0.5 / np.std([1, 2, 3, 4], ddof=1))
    assert found["percentile_pct"] == 62.5  # two below, one tie
    assert np.isnan(list(spread.position_among(np.array([2.0, 2.0]), 3.0).values())).all()


def test_shapiro_keeps_its_level_on_normal_values_and_breaks_it_on_rounded_ones():
    assert spread.shapiro_power(30, "normal") == pytest.approx(0.05, abs=0.03)
    assert spread.shapiro_power(30, "heavy") < spread.shapiro_power(100, "heavy")
    assert spread.shapiro_power(100, "normal", step=1.0) > 0.9
    assert spread.shapiro_power(100, "normal", step=0.01) == pytest.approx(0.05, abs=0.03)


def test_normality_is_that_of_scipy():
    values = np.random.default_rng(0).normal(0, 1, 40)
    found = spread.normality(values)
    assert (found["shapiro_w"], found["shapiro_p"]) == pytest.approx(
        tuple(scipy.stats.shapiro(values))
    )
    assert found["skewness"] == pytest.approx(pd.Series(values).skew())
    assert found["excess_kurtosis"] == pytest.approx(pd.Series(values).kurt())


def test_sampling_error_is_the_spread_of_error_rates_over_test_sets():
    rates = 100 * np.random.default_rng(0).binomial(400, 0.05, 20_000) / 400
    assert spread.sampling_error(5.0, 400) == pytest.approx(rates.std(), rel=0.03)


# ---- correlation


def test_correlations_are_those_of_scipy():
    x, y = np.random.default_rng(0).integers(0, 9, (2, 30)).astype(float)
    r, low, high = correlation.pearson(x, y)
    other = scipy.stats.pearsonr(x, y)
    assert (r, low, high) == pytest.approx((other.statistic, *other.confidence_interval(0.95)))
    rho = scipy.stats.spearmanr(x, y).statistic
    assert (
        correlation.spearman(x, y)[0]
        == correlation.spearman_bootstrap(x, y)[0]
        == pytest.approx(rho)
    )


def test_a_difference_of_correlations_is_that_of_scipys_bootstrap():
    rng = np.random.default_rng(1)
    x, noise, other = rng.standard_normal((3, 40))
    near, far = x + 0.5 * noise, x + 3 * other

    def difference(x, a, b, axis=-1):
        return scipy.stats.pearsonr(x, a, axis=axis)[0] - scipy.stats.pearsonr(x, b, axis=axis)[0]

    found = correlation.pearson_difference(x, (near, far))
    interval = scipy.stats.bootstrap(
        (x, near, far), difference, paired=True, vectorized=True, method="percentile", rng=2
    ).confidence_interval
    assert found[0] == pytest.approx(difference(x, near, far))
    assert found[1:] == pytest.approx(tuple(interval), abs=0.02)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_intervals_of_correlations_cover(rho):
    rng = np.random.default_rng(0)
    ranks = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's of a bivariate normal distribution
    hits = np.zeros(3)
    for _ in range(300):
        x, noise = rng.standard_normal((2, 40))
        y = rho * x + np.sqrt(1 - rho**2) * noise
        found = (
            correlation.pearson(x, y),
            correlation.spearman(x, y),
            correlation.spearman_bootstrap(x, y, num=200),
        )
        hits += [
            low <= truth <= high
            for (_, low, high), truth in zip(found, (rho, ranks, ranks), strict=True)
        ]
    assert ((hits / 300 > 0.91) & (hits / 300 < 0.99)).all(), hits / 300


def test_a_correlation_without_pairs_or_spread_is_unknown_and_a_perfect_one_is_1():
    line = np.arange(6.0)
    for estimate in (correlation.pearson, correlation.spearman, correlation.spearman_bootstrap):
        assert np.isnan(estimate(line[:4], line[:4])).all()
        assert np.isnan(estimate(line, np.ones(6))).all()
        assert np.isnan(estimate(np.empty(0), np.empty(0))).all()
        assert estimate(line, -line)[0] == pytest.approx(-1)


# ---- tables


def test_seed_statistics_keep_the_reference_and_diverged_seeds_out():
    study = make_study()
    outcomes, _ = make_tables(study, {3: "diverged", 5: "missing"})
    table = seeds.seed_statistics(Results(study, outcomes)).set_index("evaluation")
    draws = outcomes[outcomes["seed"].between(1, 30) & (outcomes["status"] == "finished")]
    for name in ("val", "test"):
        values, row = draws[f"{name}_ema_error_pct"], table.loc[name]
        assert (row["n"], row["diverged"], row["missing"]) == (28, 1, 1)
        assert (row["mean"], row["sd"]) == pytest.approx((values.mean(), values.std()))
        assert (row["min"], row["max"]) == (values.min(), values.max())
        zero = outcomes.loc[outcomes["seed"] == 0, f"{name}_ema_error_pct"].item()
        assert row["reference"] == zero
        assert row["reference_z"] == pytest.approx((zero - values.mean()) / values.std())


def test_seed_epochs_follow_the_draws_and_rank_them_against_their_end():
    study = make_study()
    outcomes, rows = make_tables(study, {3: "diverged"})
    table = seed_epochs.seed_epochs(Results(study, outcomes, rows))
    row = table[(table["evaluation"] == "test") & (table["epoch"] == 7)].iloc[0]
    draws = rows[rows["point"].notna() & (rows["status"] == "finished")]
    at, end = (
        draws[draws["epoch"] == epoch].set_index("trial_id")["test_ema_error_pct"]
        for epoch in (7, EPOCHS)
    )
    assert (row["n"], row["min"], row["max"]) == (29, at.min(), at.max())
    assert row["mean"] == pytest.approx(at.mean()) and row["sd"] == pytest.approx(at.std())
    assert row["rank_correlation"] == pytest.approx(at.corr(end, method="spearman"))
    assert table.loc[table["epoch"] == EPOCHS, "rank_correlation"].isna().all()


def test_seed_correlation_pairs_the_two_sets_by_seed():
    study = make_study()
    outcomes, _ = make_tables(study, {3: "diverged"})
    (row,) = seed_sets.seed_correlation(Results(study, outcomes)).to_dict("records")
    draws = outcomes[outcomes["point"].notna() & (outcomes["status"] == "finished")]
    val, test = draws["val_ema_error_pct"], draws["test_ema_error_pct"]
    assert (row["n"], row["pearson"]) == (29, pytest.approx(val.corr(test)))
    assert row["spearman"] == pytest.approx(val.corr(test, method="spearman"))
    assert row["rank_of_best"] == test.rank(method="min")[val.idxmin()]


def test_seed_power_asks_for_more_seeds_at_a_smaller_difference_and_a_larger_sd():
    study = make_study()
    table = seed_power.seed_power(Results(study, make_tables(study)[0]))
    rows = table[(table["evaluation"] == "val") & (table["power_pct"] == 80)]
    assert rows["difference"].tolist() == list(seed_power.DIFFERENCES)
    assert rows["seeds_per_arm"].is_monotonic_decreasing
    assert (rows["seeds_per_arm_low"] <= rows["seeds_per_arm"]).all()
    assert (rows["seeds_per_arm"] <= rows["seeds_per_arm_high"]).all() and (
        rows["pairs_at_half"] >= 2
    ).all()


def test_seed_noise_sets_the_spread_beside_the_sampling_error():
    study = make_study()
    outcomes, _ = make_tables(study)
    row = seeds.seed_noise(Results(study, outcomes)).iloc[0]
    values = outcomes.loc[outcomes["point"].notna(), "val_ema_error_pct"]
    share = values.mean() / 100
    assert (row["images"], row["sd_over_seeds"]) == (400, pytest.approx(values.std()))
    assert row["one_run_sampling"] == pytest.approx(100 * np.sqrt(share * (1 - share) / 400))


def test_tables_of_seeds_show_two_decimals_and_others_one():
    table = pd.DataFrame(
        {"x_pct": [1.2345], "x_pct_low": [1.0], "x_pct_high": [2.0], "y_points": [0.456]}
    )
    assert text.as_text(table).iloc[0].tolist() == ["1.2 [1.0, 2.0]", "0.5"]
    table.attrs["decimals"] = 2
    assert text.as_text(table).iloc[0].tolist() == ["1.23 [1.00, 2.00]", "0.46"]
    assert list(text.as_text(table).columns) == ["x (%)", "y (points)"]


# ---- figures, headline, report


def test_bins_are_whole_images_wide_and_hold_every_value():
    rng = np.random.default_rng(0)
    values = rng.integers(10, 30, 50) / 4  # percent of 400 images
    edges = bins.bins(values, 400)
    assert np.histogram(values, edges)[0].sum() == 50
    assert np.allclose((np.diff(edges) / 0.25) % 1, 0) and np.allclose((edges[0] / 0.25) % 1, 0.5)
    smooth = rng.normal(0, 1, 200)
    assert np.histogram(smooth, bins.bins(smooth, None))[0].sum() == 200


def test_histogram_draws_all_finished_seeds_and_the_fitted_gaussian():
    study = make_study()
    outcomes, rows = make_tables(study, {3: "diverged"})
    ax, _ = known.FIGURES["seed_histogram"](Results(study, outcomes, rows)).axes
    assert sum(bar.get_height() for bar in ax.patches) == 29
    curve, width = ax.lines[0], ax.patches[0].get_width()
    values = outcomes.loc[
        outcomes["point"].notna() & (outcomes["status"] == "finished"), "val_ema_error_pct"
    ]
    expected = 29 * width * scipy.stats.norm.pdf(curve.get_xdata(), values.mean(), values.std())
    assert np.allclose(curve.get_ydata(), expected)
    assert ax.get_title() == "a, n=29, 1 diverged"


def test_headline_of_a_seed_study_says_mean_sd_and_n():
    study = make_study()
    outcomes, _ = make_tables(study, {3: "diverged"})
    said = headline(Results(study, outcomes))
    assert said[0] == "Of 31 runs: 30 finished, 1 diverged, 0 failed, 0 missing."
    row = seeds.seed_statistics(Results(study, outcomes)).iloc[0]
    assert said[1].startswith(f"a, error on val: mean {row['mean']:.2f} [{row['mean_low']:.2f}, ")
    assert "over n=29 seeds, 1 diverged; the reference run, " in said[1] and len(said) == 5
    assert "within the range of these n=29" in " ".join(said)


STATES = {
    "done": {},
    "not begun": dict.fromkeys(range(31), "missing"),
    "one seed": dict.fromkeys([0, *range(2, 31)], "missing"),
    "all diverged": dict.fromkeys(range(31), "diverged"),
}


@pytest.mark.parametrize("more", ["test", ""])
@pytest.mark.parametrize("state", STATES)
def test_report_of_a_seed_study_at_any_stage(tmp_path, state, more):
    study = make_study(more=more)
    outcomes, rows = make_tables(study, STATES[state])
    page = write_report(Results(study, outcomes, rows), Workdir(tmp_path), {}, WITHOUT_PDF)
    assert "differ only in their seed" in page
    for name in study.tables:
        assert (tmp_path / f"{name}.csv").exists() and (tmp_path / f"{name}.md").read_text().strip()
