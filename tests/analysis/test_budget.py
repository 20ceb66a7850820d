"""What a tuning budget buys, and the exact bands under it: against scipy, opda and simulations."""

from __future__ import annotations

import dataclasses
import itertools
import warnings

import numpy as np
import opda.nonparametric
import pytest
import scipy.stats
from golden.capture import load

from vitscale.analysis.distribution import budget, words
from vitscale.analysis.distribution.budget import Draws, tuning_budget, tuning_crossings
from vitscale.analysis.results import Results
from vitscale.analysis.stats.bands import band_tail, inside, order_bounds, share_bounds
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome, Status
from vitscale.record.table import outcomes, tidy

# ---- exact bands


@pytest.mark.parametrize("n", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("distance", [0.6, 1.0, 1.4])
def test_a_band_of_constant_width_has_kolmogorovs_probability(n: int, distance: float) -> None:
    rank, width = np.arange(1, n + 1), distance / np.sqrt(n)
    low, high = np.clip(rank / n - width, 0, 1), np.clip((rank - 1) / n + width, 0, 1)
    expected = scipy.stats.kstwo(n).cdf(width)
    assert inside(low, high) == pytest.approx(expected, abs=1e-6)  # approximate for large n


def test_one_sided_bounds_have_the_probability_of_smirnov() -> None:
    n, width = 40, 0.2
    high = np.clip((np.arange(1, n + 1) - 1) / n + width, 0, 1)
    assert inside(np.zeros(n), high) == pytest.approx(scipy.stats.ksone(n).cdf(width), abs=1e-9)


@pytest.mark.parametrize("n", [8, 16])
def test_bounds_are_those_of_opda(n: int) -> None:
    """opda finds its tail by 100,000 simulations, so its bounds are off by up to about 0.004."""
    values = np.linspace(0.1, 0.9, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, _, high = opda.nonparametric.EmpiricalDistribution.confidence_bands(
            values,
            0.95,
            a=0.0,
            b=1.0,
            generator=np.random.default_rng(0),
            method="ld_equal_tailed",
            n_jobs=1,
        )
    ours = share_bounds(n)
    at = np.concatenate([[0.05], values])
    assert ours[0] == pytest.approx(low.cdf(at), abs=0.004)
    assert ours[1] == pytest.approx(high.cdf(at), abs=0.004)


def test_the_band_is_narrower_at_the_ends_than_one_of_constant_width() -> None:
    low, high = share_bounds(64)
    dkw = np.sqrt(np.log(2 / 0.05) / 128)
    assert high[0] == pytest.approx(0.0984, abs=1e-4) and dkw == pytest.approx(0.1698, abs=1e-4)
    assert low[-1] == pytest.approx(1 - high[0]) and 0 < (high - low)[32] / 2 / dkw - 1 < 0.12


@pytest.mark.parametrize("one_sided", [False, True])
def test_bounds_cover_what_they_claim(one_sided: bool) -> None:
    """20,000 samples, s.e. 0.15 points."""
    draws = np.sort(np.random.default_rng(1).random((20_000, 16)), axis=1)
    low, high = order_bounds(16, band_tail(16, 0.95, one_sided))
    held = (draws <= high) & (one_sided | (draws >= low))
    assert held.all(axis=1).mean() == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize("one_sided", [False, True])
def test_bounds_of_many_draws_hold_together_as_often_as_those_of_few(one_sided: bool) -> None:
    """Their tail is searched for from those of fewer draws, and only to 1e-7."""
    n = 3000
    low, high = order_bounds(n, band_tail(n, 0.95, one_sided))
    assert inside(np.zeros(n) if one_sided else low, high) == pytest.approx(0.95, abs=1e-7)


# ---- estimates


def brute(chosen_by: np.ndarray, reported: np.ndarray, k: int) -> np.ndarray:
    """The reported value of the best of each choice of k draws, ties as often as they occur."""
    values = []
    for some in map(list, itertools.combinations(range(len(reported)), k)):
        tied = [i for i in some if chosen_by[i] == chosen_by[some].min()]
        values += [reported[i] for i in tied for _ in range(12 // len(tied))]
    return np.sort(values)


def test_estimates_are_those_over_all_choices_of_k_draws() -> None:
    rng = np.random.default_rng(0)
    chosen_by = np.sort(np.array([1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 7.0]))  # 12 is a multiple of ties
    reported = rng.permutation(np.array([1.0, 2.0, 2.5, 4.0, 5.0, 9.0, 100.0]))
    medians, means = budget.best_of_k(chosen_by, reported)
    for k in range(1, 8):
        values = brute(chosen_by, reported, k)
        assert means[k - 1] == pytest.approx(values.mean())
        assert medians[k - 1] == np.median(values)


def test_the_mean_is_opdas_where_choice_and_report_are_one() -> None:
    values = np.sort(np.random.default_rng(3).gamma(2, 3, size=20))
    ks = np.arange(1, 21)
    theirs = opda.nonparametric.EmpiricalDistribution(values).u_tuning_curve(ks, minimize=True)
    assert budget.best_of_k(values, values)[1] == pytest.approx(theirs)


# ---- the band


def relation(cuts: np.ndarray, heights: np.ndarray, k: int) -> np.ndarray:
    """A falling p(u) on 2,000 ranks, scaled so that best of k is below with probability 1/2."""
    u = (np.arange(2000) + 0.5) / 2000
    p = heights[np.searchsorted(cuts, u)]
    below = float((p * k * (1 - u) ** (k - 1)).mean())
    return p * 0.5 / below if below > 0.5 else 1 - (1 - p) * 0.5 / (1 - below)


@pytest.mark.parametrize(("n", "num", "k"), [(16, 7, 4), (32, 9, 8), (16, 10, 2)])
def test_no_relation_of_the_sets_is_worse_than_the_worst_one(n: int, num: int, k: int) -> None:
    """20 random relations, of 4,000 samples each, s.e. at most 0.3 points."""
    rng, worst = np.random.default_rng(n + k), budget.all_below(n, num, k)
    ranks = np.sort(rng.random((4000, n)), axis=1)[:, :num]
    found = []
    for _ in range(20):
        cuts, heights = np.sort(rng.random(3)), np.sort(rng.random(4) ** 0.5)[::-1]
        p = relation(cuts, heights, k)
        found.append((rng.random(ranks.shape) < p[(ranks * 2000).astype(int)]).all(axis=1).mean())
    assert max(found) <= worst + 3 * np.sqrt(worst / 4000) and worst >= 0.5**num * 0.999


@pytest.mark.parametrize(("n", "num", "k"), [(16, 7, 4), (16, 8, 4), (32, 8, 8)])
def test_the_worst_relation_is_one_of_two_steps(n: int, num: int, k: int) -> None:
    """1 up to c, a constant up to d, then 0: 256 of them, each on the same 40,000 samples."""
    rng = np.random.default_rng(n + num)
    ranks = np.sort(rng.random((40_000, n)), axis=1)[:, :num]
    half, worst, found = 1 - 0.5 ** (1 / k), budget.all_below(n, num, k), []
    for c, d in itertools.product(np.linspace(0, half, 16), np.linspace(half, 1, 16) + 1e-9):
        certain, possible = 1 - (1 - c) ** k, 1 - max(1 - d, 0.0) ** k
        height = (0.5 - certain) / (possible - certain)
        num_between = ((ranks >= c) & (ranks < d)).sum(axis=1)
        found.append(((ranks < d).all(axis=1) * height**num_between).mean())
    error = np.sqrt(worst / 40_000)
    assert 0.93 * worst - 3 * error <= max(found) <= worst + 3 * error


POPULATIONS = {
    "skewed": (0.02, 1.0, 0.0),  # floor, spread of the log, share that diverges
    "collapsing": (0.02, 1.0, 0.05),
    "good": (0.015, 0.3, 0.0),  # minival hardly tells the draws apart
}


def sampled(
    population: str, num: int, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(num, n) errors on 200 images of minival and 400 of val, in percent."""
    floor, spread, diverging = POPULATIONS[population]
    truth = np.minimum(floor + 0.03 * np.exp(spread * rng.normal(size=(num, n))), 0.9)
    minival, val = rng.binomial(200, truth) / 2, rng.binomial(400, truth) / 4
    diverged = rng.random((num, n)) < diverging
    return np.where(diverged, 100.0, minival), np.where(diverged, 100.0, val)


def medians_of_best(population: str, num_k: int) -> np.ndarray:
    """(num_k,) medians of 40,000 samples of each k, which no tie of the set decides twice."""
    rng, medians = np.random.default_rng(9), []
    for k in range(1, num_k + 1):
        minival, val = sampled(population, 40_000, k, rng)
        best = np.argmin(minival + 1e-6 * rng.random(minival.shape), axis=1)
        medians.append(np.median(val[np.arange(len(val)), best]))
    return np.array(medians)


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("n", [16, 64])
def test_the_band_holds_the_median_of_all_k(population: str, n: int) -> None:
    """1,000 arms, s.e. 0.7 points at 95%."""
    truth = medians_of_best(population, n // 2)
    rng, held = np.random.default_rng(n), []
    for minival, val in zip(*sampled(population, 1000, n, rng), strict=True):
        val = val[np.argsort(minival, kind="stable")]
        low = budget.low_ends(val, 0.025, 0.0)[: n // 2]
        high = budget.high_ends(val, 0.025, 100.0)[: n // 2]
        held.append(((low <= truth) & (truth <= high)).all())
    assert np.mean(held) >= 0.95 - 3 * 0.007


def test_ends_are_nested_and_reach_the_bounds_of_few_draws() -> None:
    val = np.random.default_rng(0).gamma(2, 3, size=16)
    low, high = budget.low_ends(val, 0.025, 0.0), budget.high_ends(val, 0.025, 100.0)
    assert (np.diff(high) <= 0).all() and (np.diff(low) <= 0).all() and (low <= high).all()
    assert (budget.high_ends(val[:4], 0.025, 100.0) == 100).all()
    assert (budget.low_ends(val[:4], 0.025, 0.0) == 0).all()


# ---- two arms


def test_two_curves_cross_where_the_other_is_lower() -> None:
    a, b = np.array([5.0, 4.0, 4.0, 3.0, 3.0]), np.array([9.0, 6.0, 4.0, 2.0, 2.0])
    assert budget.crossing(a, b, [1, 2], [5]) == (4, 2, 5)
    assert budget.crossing(b, a, [5], [1, 2]) == (4, 2, 5)
    assert budget.crossing(a, b, [1], []) == (4, 1, None)
    assert budget.crossing(a, a - 1, [], []) == (None, None, None)
    assert budget.crossing(a, a, [], []) == (None, None, None)
    assert budget.crossing(a, np.array([9.0, 1.0, 9.0, 9.0, 9.0]), [], []) == (None, None, None)


def arm(name: str, values: np.ndarray) -> Draws:
    ended = {"diverged": 0, "failed": 0}
    return Draws(name, np.sort(values), np.sort(values), ended, True, (0.0, 100.0), 1.0, 1.0)


def test_a_crossing_is_found_between_the_budgets_that_show_it() -> None:
    """One arm is good everywhere, the other rarely, but then better: of 400 draws each."""
    rng = np.random.default_rng(0)
    steady = arm("steady", rng.normal(5, 0.3, 400))
    rare = arm("rare", np.where(rng.random(400) < 0.25, 2.0, 20.0) + rng.normal(0, 0.1, 400))
    row = budget._compared(steady, rare, 0.975)
    exact = np.log(0.5) / np.log(0.75)  # 2.4 draws: rare is below in half of the choices
    assert row["a_lower_from"] == 1 and row["crossing_low"] < exact < row["crossing_high"]
    assert row["crossing"] == int(np.ceil(exact)) and row["b_lower_to"] > 20


def test_equal_arms_are_rarely_said_to_differ() -> None:
    """1,000 pairs of 16 draws each from one population, at most 5% with any k (s.e. 0.7 points)."""
    rng, said = np.random.default_rng(5), 0
    for minival, val in zip(*sampled("skewed", 1000, 32, rng), strict=True):
        pair = []
        for half in (slice(0, 16), slice(16, 32)):
            order = np.argsort(minival[half], kind="stable")
            both = arm("one", minival[half])
            pair.append(dataclasses.replace(both, reported=val[half][order]))
        row = budget._compared(pair[0], pair[1], 0.975)
        said += row["a_lower_from"] is not None or row["b_lower_from"] is not None
    assert said / 1000 <= 0.05


# ---- of a study


@pytest.fixture(scope="module")
def demo() -> tuple[Study, dict[str, Outcome]]:
    study, read, _ = load("lr_wd_edf-demo")
    return study, read


def results_of(study: Study, read: dict[str, Outcome]) -> Results:
    return Results(study, outcomes(study, read), tidy(study, read))


def test_the_table_is_of_draws_chosen_on_minival(demo: tuple[Study, dict[str, Outcome]]) -> None:
    study, read = demo
    table = results_of(study, read).once(tuning_budget)
    assert len(table) == 4 * 7 and set(table["n"]) == {14}
    draws = [t for t in study.trials if t.arm.name == "ViT_P SGD" and t.point is not None]
    last = [read[t.config.id].rows[-1] for t in draws]
    values = brute(
        np.array([row["minival_ema_error_pct"] for row in last]),
        np.array([row["val_ema_error_pct"] for row in last]),
        3,
    )
    row = table[(table["arm"] == "ViT_P SGD") & (table["k"] == 3)].iloc[0]
    assert row["mean"] == pytest.approx(values.mean())
    assert row["median_low"] <= row["median"] <= row["median_high"]
    assert row["train_s"] == pytest.approx(3 * np.mean([r["train_s"] for r in last]))


def test_a_diverged_draw_is_the_worst_on_both_sets(demo: tuple[Study, dict[str, Outcome]]) -> None:
    study, read = demo
    ours = [t.config.id for t in study.trials if t.arm.name == "ViT_C SGD" and t.point is not None]
    bad = dict.fromkeys(ours[:8], Outcome(Status.DIVERGED, ({"epoch": 3.0, "unix_s": 1.0},)))
    table = results_of(study, {**read, **bad}).once(tuning_budget)
    of_arm = table[table["arm"] == "ViT_C SGD"].set_index("k")
    assert set(of_arm["diverged"]) == {8} and of_arm.loc[1, "mean"] > 50
    assert of_arm.loc[7, "median"] < 5 and of_arm.loc[1, "median_high"] == 100


def test_draws_without_minival_are_in_no_number(demo: tuple[Study, dict[str, Outcome]]) -> None:
    """Of an older version; the rest of the report stays."""
    study, read = demo
    older = {
        trial_id: dataclasses.replace(
            outcome,
            rows=tuple(
                {name: value for name, value in row.items() if "minival" not in name}
                for row in outcome.rows
            ),
        )
        for trial_id, outcome in read.items()
    }
    results = results_of(study, older)
    assert results.once(tuning_budget).empty and results.once(tuning_crossings).empty
    assert not any("best of k" in line for line in words.headline(results))
    assert "best_of_4" not in words.summary(results)["ViT_C SGD"]
    assert "no draw" in words.KIND.figures["tuning_budget"](results).axes[0].texts[0].get_text()


def test_the_number_of_an_arm_is_that_of_four_draws(demo: tuple[Study, dict[str, Outcome]]) -> None:
    results = results_of(*demo)
    table = results.once(tuning_budget).set_index(["arm", "k"])
    for name, numbers in words.summary(results).items():
        assert numbers["best_of_4"] == table.loc[(name, 4), "median"]


def test_draws_of_a_sobol_design_have_no_band(demo: tuple[Study, dict[str, Outcome]]) -> None:
    study, read = demo
    table = results_of(dataclasses.replace(study, num_scrambles=2), read).once(tuning_budget)
    assert table["median"].notna().all() and table["median_low"].isna().all()


def test_bands_that_say_nothing_are_not_drawn_and_the_figure_says_why(
    demo: tuple[Study, dict[str, Outcome]],
) -> None:
    results = results_of(*demo)
    low = results.once(tuning_budget).query("k > 1")["median_low"]
    figure = words.KIND.figures["tuning_budget"](results)
    (line,) = figure.texts
    assert (low == 0).all() and not figure.axes
    assert line.get_text().startswith("Not drawn: with 14 draws")
