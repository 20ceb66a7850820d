"""Scaling laws: the fit against scipy, the choice of lr, bootstrap rounds, and how often intervals
cover a known truth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares, minimize
from support.known_surface import (
    CASES,
    Surface,
    Valley,
    best_cell,
    best_spent,
    cover,
    isoflop,
    measure,
    misfit_p,
    where_equal,
)
from support.refusals import refusing

from vitscale.analysis.scaling import fits
from vitscale.analysis.scaling.compute import Costs, optimum
from vitscale.analysis.stats.rounds import Runs, choose, relative_noise, rounds

SIZES = 2.0 ** np.arange(6)[:, None]
BOTH = np.array([(n, d) for n in 2.0 ** np.arange(5) for d in 2.0 ** np.arange(4)])


def by_scipy(x: np.ndarray, y: np.ndarray, precision: float, x0: np.ndarray) -> tuple[float, Any]:
    """(twice the loss, parameters) of the best of several starts of scipy's least_squares."""
    axes = x.shape[1]

    def residual(p: np.ndarray) -> np.ndarray:
        powers = (x / x0) ** -np.exp(p[1 + axes :])
        return (np.log(p[0] + (p[1 : 1 + axes] * powers).sum(1)) - np.log(y)) * precision**0.5

    low = [1e-9] * (1 + axes) + [math.log(fits.EXPONENTS[0])] * axes
    high = [np.inf] * (1 + axes) + [math.log(fits.EXPONENTS[1])] * axes
    found = [
        least_squares(
            residual,
            [2.0] + [10.0] * axes + [math.log(b)] * axes,
            bounds=(low, high),
            loss="huber",
            f_scale=fits.HUBER,
            max_nfev=2000,
            xtol=1e-12,
            ftol=1e-12,
        )
        for b in (0.1, 0.3, 0.6, 1.5)
    ]
    best = min(found, key=lambda one: one.cost)
    return 2 * float(best.cost), best.x


@pytest.mark.parametrize("x", [SIZES, BOTH])
def test_the_fit_is_that_of_scipys_robust_least_squares(x: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    truth = 3 + (15 * x**-0.5).sum(1)
    for _ in range(4):
        y = truth * np.exp(0.03 * rng.standard_normal(len(x)))
        y[0] *= 1.5  # an outlier, which the loss must bound
        found = fits.fit(x, y, np.full(len(x), 0.03**-2))
        loss, theirs = by_scipy(x, y, 0.03**-2, found.x0)
        assert float(found.loss) <= loss + 0.01
        if abs(float(found.loss) - loss) < 1e-4:
            assert found.exponents[0] == pytest.approx(math.exp(theirs[1 + x.shape[1]]), rel=0.02)
        near = fits.fit(x, y[None], np.full(len(x), 0.03**-2), start=found)
        assert near.loss[0] <= float(found.loss) + 0.01


def least(x: np.ndarray, y: np.ndarray, precision: float, has_floor: bool) -> float:
    """Twice the least loss that L-BFGS of scipy reaches from 12 starts, with numerical slopes of
    its own; the unknowns are logarithms.
    """
    rng, axes = np.random.default_rng(1), x.shape[1]
    logs = np.log(x / np.exp(np.log(x).mean(0)))

    def loss(p: np.ndarray) -> float:
        law = np.exp(p[axes : 2 * axes] - np.exp(p[:axes]) * logs).sum(1)
        law = law + np.exp(p[-1]) * has_floor
        return float(fits.huber(abs(np.log(y / law)) * precision**0.5).sum())

    bounds = [tuple(np.log(fits.EXPONENTS))] * axes + [(-20.0, 12.0)] * (axes + 1)
    starts = rng.uniform(
        [-3.0] * axes + [-1.0] * (axes + 1), [1.0] * axes + [3.0] * (axes + 1), (12, 2 * axes + 1)
    )
    options = {"maxiter": 3000, "maxfun": 100_000, "ftol": 1e-13, "gtol": 1e-8}
    return min(
        float(minimize(loss, start, method="L-BFGS-B", bounds=bounds, options=options).fun)
        for start in starts
    )


@pytest.mark.parametrize("x", [SIZES, BOTH, BOTH[:16]], ids=["6", "5 x 4", "4 x 4"])
@pytest.mark.parametrize("has_floor", [True, False])
@pytest.mark.parametrize("scale", [0.03, 1e-3], ids=["noise", "a thirtieth of it"])
def test_no_law_is_worse_than_the_best_of_many_starts(
    x: np.ndarray, has_floor: bool, scale: float
) -> None:
    """Also where the loss is Huber's of a scale far below the noise, so nearly absolute."""
    rng = np.random.default_rng(2)
    for floor in (0.0, 2.0):
        truth = floor + (rng.uniform(8, 25, x.shape[1]) * x ** -rng.uniform(0.2, 0.7)).sum(1)
        y = truth * np.exp(0.03 * rng.standard_normal(len(x)))
        found = fits.fit(x, y, np.full(len(x), scale**-2.0), has_floor=has_floor)
        assert float(found.loss) <= least(x, y, scale**-2.0, has_floor) + 0.01


def test_a_law_without_noise_is_found_exactly() -> None:
    truth = 2 + 10 * BOTH[:, 0] ** -0.4 + 7 * BOTH[:, 1] ** -0.8
    found = fits.fit(BOTH, truth, np.full(len(BOTH), 1e4))
    assert found.exponents == pytest.approx([0.4, 0.8], rel=1e-3)
    assert float(found.floor) == pytest.approx(2, abs=0.02)
    gains = np.array([10.0, 7.0]) * found.x0 ** -np.array([0.4, 0.8])
    assert found.gains == pytest.approx(gains, rel=0.01)
    assert found.predict(4 * BOTH[-1:]) == pytest.approx(
        2 + 10 * (4 * BOTH[-1:, 0]) ** -0.4 + 7 * (4 * BOTH[-1:, 1]) ** -0.8, rel=0.01
    )


def test_non_negative_least_squares_are_scipys() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(1)
    for num in (1, 2, 3):
        columns = [rng.random(8) for _ in range(num)]
        for _ in range(20):
            target, omega = rng.standard_normal(8), rng.random(8) + 0.1
            found = fits.solve_non_negative(columns, target, omega)
            root = np.sqrt(omega)
            theirs, _ = nnls(np.column_stack(columns) * root[:, None], target * root)
            assert found == pytest.approx(theirs, abs=1e-6)


def test_too_few_values_or_cells_for_a_law_are_refused() -> None:
    with refusing("(1, 2)"):
        fits.fit(np.array([[1.0], [2.0], [2.0]]), np.ones(3), np.ones(3))
    with refusing("(2)"):
        fits.fit(SIZES[:2], np.ones(2), np.ones(2))


# ---- the choice of lr, and rounds


def test_the_lr_is_chosen_on_minival_among_those_that_finish() -> None:
    nan = np.nan
    choosing = np.array([[[5.0, 5.0, 5.0], [3.0, 3.0, nan], [1.0, nan, nan]]])
    reported = choosing + 10
    runs = Runs(choosing, reported, np.isnan(choosing))
    assert runs.candidates.tolist() == [[True, True, False]]  # 1 of 3 finished: no candidate
    chosen = choose(runs)
    assert (chosen.lr.item(), chosen.error.item(), chosen.n.item()) == (1, 13.0, 2)
    nothing = choose(Runs(choosing * nan, choosing * nan, np.ones((1, 3, 3), bool)))
    assert nothing.lr.item() == -1 and np.isnan(nothing.error.item()) and nothing.n.item() == 0


def test_rounds_have_the_variance_of_a_mean_over_seeds() -> None:
    """Of one lr, so that nothing is chosen: sd / sqrt(n), with the tails of Student's t."""
    rng = np.random.default_rng(2)
    reported = 10 * (1 + 0.05 * rng.standard_normal((40, 1, 3)))
    runs = Runs(reported, reported, np.zeros(reported.shape, bool))
    noise = relative_noise(runs, np.ones(40))
    assert noise and noise.df == 80 and noise.sd == pytest.approx(0.05, rel=0.25)
    drawn = rounds(runs, 4000, rng, noise)
    relative = drawn.error / choose(runs).error
    assert relative.std(0).mean() == pytest.approx(noise.sd / 3**0.5, rel=0.05)
    plain = rounds(runs, 4000, rng, None).error / choose(runs).error
    # variances are averaged: the sd of three values is too small on average
    assert plain.var(0).mean() == pytest.approx(noise.sd**2 / 3 * (2 / 3), rel=0.1)


def test_each_lr_has_the_noise_of_its_rank() -> None:
    """Known noise: 0.02 at the best lr, 0.1 at the other, wherever it lies in the grid; a rank with
    few degrees of freedom has that of all.
    """
    rng = np.random.default_rng(3)
    error, sd = np.array([10.0, 15.0]), np.array([0.02, 0.1])
    order = rng.permuted(np.tile([0, 1], (400, 1)), axis=1)
    values = (error * (1 + sd * rng.standard_normal((3, 400, 2))))[
        :, np.arange(400)[:, None], order
    ]
    values = np.moveaxis(values, 0, -1)
    runs = Runs(values, values, np.zeros(values.shape, bool))
    assert (runs.ranks == order).all()
    ones = np.ones(400)
    noise, of_all = relative_noise(runs, ones), relative_noise(runs, ones, least_df=np.inf)
    assert noise and of_all and noise.dfs == (800, 800) and of_all.dfs == (1600, 1600)
    of_ranks = [float(np.sqrt(np.mean(pairs[:, 1] ** 2))) for pairs in noise.pairs]
    assert of_ranks == pytest.approx(sd, rel=0.05)
    assert of_all.sd == pytest.approx(np.sqrt(np.mean(sd**2)), rel=0.05)
    drawn = noise.of_means(runs.ranks, np.full((500, 400, 2), 4), rng)[..., 1]
    spread = [drawn[:, order == rank].std() for rank in (0, 1)]
    assert spread == pytest.approx(sd / 2, rel=0.05)
    few = Runs(values[:3], values[:3], runs.diverged[:3])
    found = relative_noise(few, np.ones(3), least_df=7)
    assert found and found.dfs == (12, 12)


def test_noise_that_grows_with_size_is_found_and_constant_noise_stays() -> None:
    """Of 200 studies of six sizes: the largest size has 4 or 1 times the noise of the smallest."""
    found = {}
    for growth in (4.0, 1.0):
        surface = Surface(SIZES, 4.0, (30.0,), (0.5,), noise=0.03, noise_growth=growth, diverged=0)
        ratios = []
        for seed in range(200):
            noise = relative_noise(surface.runs(np.random.default_rng(seed)), SIZES[:, 0])
            assert noise
            ratios.append(noise.factor[-1] / noise.factor[0])
        found[growth] = np.array(ratios)
    assert 2.8 < np.exp(np.log(found[4.0]).mean()) < 4.0
    assert np.exp(np.log(found[1.0]).mean()) == pytest.approx(1, abs=0.1)
    assert (found[1.0] == 1).mean() > 0.5


# ---- a known truth


@pytest.mark.parametrize(
    "surface", [Surface(SIZES, 0.0, (30.0,), (0.35,)), Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4))]
)
def test_intervals_cover_a_known_truth(surface: Surface) -> None:
    """A small version of support/known_surface.py: of 60 simulations at least 52 cover, which a
    true cover of 95% misses with probability 0.4%, and one of 80% passes with 10%.
    """
    made = [measure(surface, seed, num_rounds=200) for seed in range(60)]
    for name in ("exponent", "forecast", "measured"):
        assert cover(made, "pooled", name)[0] >= 52 / 60, name


def test_a_right_law_is_seldom_called_wrong_and_a_wrong_one_is() -> None:
    """60 studies of two axes, in which cells choose a worse lr now and then: by F, 18% of such laws
    have p < 0.05. Then errors that rise with size, which no law does.
    """
    two = replace(CASES["two"], num_seeds=3)
    p = np.array([misfit_p(two, seed) for seed in range(60)])
    assert (p < 0.05).mean() <= 7 / 60  # exceeded by a level of 5% with a probability of 3%
    valley = Valley(SIZES, 10.0, (), (), noise=0.02, depth=0.1)
    assert all(misfit_p(valley, seed) < 0.05 for seed in range(3))


def test_what_a_budget_is_best_spent_on_has_a_closed_form() -> None:
    """error = 3 + 15 N^-0.5 + 15 D^-0.4 with N D multiply-adds, and with N^2 D / 4 of them."""
    truth = 3 + 15 * BOTH[:, 0] ** -0.5 + 15 * BOTH[:, 1] ** -0.4
    found, axis = fits.fit(BOTH, truth, np.full(len(BOTH), 1e6)), np.unique(BOTH[:, 0])
    for power, scale, budgets in ((1, 1, (4.0, 8.0, 30.0)), (2, 4, (3.0, 6.0))):
        costs = Costs(axis, axis**power / scale)
        for budget in budgets:
            # 7.5 N^-1.5 = 6 power (budget scale)^-0.4 N^(0.4 power - 1)
            best = (7.5 / (6 * power) * (budget * scale) ** 0.4) ** (1 / (0.5 + 0.4 * power))
            spent = optimum(found, costs, (1.0, 8.0), budget)
            assert spent.size[0] == pytest.approx(best, rel=0.02), (power, budget)
            assert spent.samples[0] * spent.size[0] ** power / scale == pytest.approx(budget)
    long = optimum(found, Costs(axis, axis**2 / 4), (1.0, 8.0), 12.0)  # 9.1 samples would be best
    assert np.isnan(long.size[0]) and np.isfinite(long.error[0])
    ends = optimum(found, Costs(axis, axis), (1.0, 1.05), 8.0)  # one length: nothing to trade
    assert np.isnan(ends.size[0])
    dear = optimum(found, Costs(axis, axis), (1.0, 8.0), 1e5)  # more than all of it costs
    assert np.isnan(dear.size[0]) and np.isnan(dear.error[0])


def test_intervals_of_the_optimum_and_of_a_crossing_cover_their_closed_forms() -> None:
    """Of 24 simulations at least 19 cover, which a true cover of 95% misses with 0.1%."""
    for one, name in ((best_spent, "optimal size"), (where_equal, "crossing")):
        made = [one(seed, 0.02, num_rounds=100) for seed in range(24)]
        assert all(np.isfinite(hit["law", name][1]) for hit in made), name
        assert cover(made, "law", name)[0] >= 19 / 24, name


def test_the_lowest_cell_is_the_true_one_as_often_as_its_interval_says() -> None:
    """A small version of `known_surface.py cells`: its intervals hold in 99% of 400 simulations."""
    made = [best_cell(seed, 0.02, num_rounds=200) for seed in range(60)]
    stated = [hit for hit in made if np.isfinite(hit["cells", "optimal size"][1])]
    assert len(stated) >= 55 and cover(stated, "cells", "optimal size")[0] >= 52 / 60


def test_parabolas_are_biased_without_noise_where_the_law_is_not() -> None:
    """IsoFLOP sizes that drift away from the optimum with the budget: a parabola in log N is no
    slice of the law, so its minimum errs even without noise (seed noise of 1e-6 here)."""
    made = isoflop(0, 1e-6, off_center=1.5, num_rounds=20)
    error = {name: np.mean(ends) - truth for (name, _), (truth, *ends) in made.items()}
    assert abs(error["law"]) < 0.002 < abs(error["parabola"])
