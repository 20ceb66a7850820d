"""How often intervals of scaling laws cover a known truth, and the IsoFLOP parabola beside them.

`python tests/support/known_surface.py one 300` prints the cover of a case of CASES over 300
simulations, of all methods or of those named after the number; `isoflop`, `optimum`, `cells`,
`crossing` and `misfit`, too; docs/method-scaling.md has the results. Each simulated study has three
lr per cell with three seeds each, 5% of its runs diverge, and the largest size is held out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitscale.analysis.scaling import fits
from vitscale.analysis.scaling.compute import CERTAIN, Costs, lowest, optimum, outwards
from vitscale.analysis.scaling.tables import Law, crossings, ends, misfit
from vitscale.analysis.stats.rounds import Runs, choose, relative_noise, rounds

Hit = dict[tuple[str, str], tuple[float, float, float]]  # (method, quantity) -> (truth, low, high)


@dataclass(frozen=True)
class Surface:
    """error = floor + sum of gain x^-exponent at the best lr; others are worse by `regret` per
    step squared."""

    x: np.ndarray  # (cells, axes)
    floor: float
    gains: tuple[float, ...]
    exponents: tuple[float, ...]
    num_lrs: int = 3
    num_seeds: int = 3
    noise: float = 0.05  # sd of a run relative to its error
    correlation: float = 0.5  # of a run's errors on minival and val
    noise_per_lr: float = 1.0  # by how much it is larger at each step away from the best lr
    noise_growth: float = 1.0  # the largest size over the smallest: noise grows with a power of it
    drift: float = 0.0  # by how many steps the best lr moves from the smallest to the largest size
    regret: float = 0.08
    diverged: float = 0.05

    @property
    def truth(self) -> np.ndarray:
        powers = self.x ** -np.array(self.exponents)
        return self.floor + (np.array(self.gains) * powers).sum(1)

    def runs(self, rng: np.random.Generator) -> Runs:
        shape = (len(self.x), self.num_lrs, self.num_seeds)
        steps = np.arange(self.num_lrs) - self.num_lrs // 2
        place = np.log(self.x[:, 0] / self.x[:, 0].min())
        place = place / place.max()
        steps = steps - self.drift * place[:, None]
        mean = (self.truth[:, None] * (1 + self.regret * steps**2))[..., None]
        z = rng.standard_normal((2, *shape))
        other = self.correlation * z[0] + np.sqrt(1 - self.correlation**2) * z[1]
        diverged = rng.random(shape) < self.diverged
        sd = self.noise * (self.noise_per_lr ** abs(steps))[..., None]
        sd = sd * (self.noise_growth ** (place - 0.5))[:, None, None]
        errors = [
            np.where(diverged, np.nan, mean * np.exp(sd * values - sd**2 / 2))
            for values in (z[0], other)
        ]
        return Runs(errors[0], errors[1], diverged)


def measure(
    surface: Surface, seed: int, num_rounds: int = 400, methods: Sequence[str] = ("pooled",)
) -> Hit:
    """One simulated study: intervals of the exponent of the first axis, the floor, and the held-out
    largest value, as the law has it and as it is measured."""
    rng = np.random.default_rng([7, seed])
    whole = surface.runs(rng)
    chosen = choose(whole)
    held = surface.x[:, 0] == surface.x[:, 0].max()
    seen = ~held[:, None, None]
    runs = Runs(*(np.where(seen, v, np.nan) for v in (whole.choosing, whole.reported)),
                whole.diverged & seen)  # fmt: skip
    sizes = surface.x[:, 0]
    of_ranks, of_all = relative_noise(runs, sizes), relative_noise(runs, sizes, least_df=np.inf)
    assert of_ranks and of_all
    used = ~held & (chosen.n > 0)
    last = int(np.flatnonzero(held)[-1])
    x, new, has_floor = surface.x[used], surface.x[[last]], surface.floor > 0
    truth = {
        "exponent": surface.exponents[0],
        "last exponent": surface.exponents[-1],
        "floor": surface.floor,
        "forecast": float(surface.truth[last]),
        "measured": float(chosen.error[last]),
    }
    hits: Hit = {}
    for method in methods:
        noise = of_all if method == "alike" else of_ranks
        precision, df = chosen.n[used] / noise.sd_of_cells[used] ** 2, noise.df
        found = fits.fit(x, chosen.error[used], precision, has_floor=has_floor)
        if method == "profile":
            laws = fits.likelihood_region(
                x, chosen.error[used], precision, df=df, has_floor=has_floor
            ).laws
            ends = {name: (v.min(), v.max()) for name, v in _values(laws, new).items()}
        else:
            drawn = rounds(runs, num_rounds, rng, None if method == "trials" else noise)
            laws = fits.fit(
                x,
                drawn.error[:, used],
                drawn.n[:, used] / noise.sd_of_cells[used] ** 2,
                has_floor=has_floor,
                start=found,
            )
            values = _values(laws, new)
            factors = noise.of_cells(np.array([last])).factors(num_rounds, rng)[:, 0]
            sd = noise.sd * factors / np.sqrt(max(chosen.n[last], 1))
            values["measured"] = values["forecast"] * np.exp(sd * rng.standard_t(df, num_rounds))
            ends = {name: tuple(np.percentile(v, (2.5, 97.5))) for name, v in values.items()}
        hits |= {(method, name): (truth[name], *pair) for name, pair in ends.items()}
    return hits


def misfit_p(surface: Surface, seed: int) -> float:
    """Of one simulated study: the p of the scatter around its law."""
    runs = surface.runs(np.random.default_rng([23, seed]))
    chosen, noise = choose(runs), relative_noise(runs, surface.x[:, 0])
    assert noise
    used, names = chosen.n > 0, ("size", "images")[: surface.x.shape[1]]
    x, errors, precision = surface.x[used], chosen.error[used], chosen.n[used]
    precision = precision / noise.sd_of_cells[used] ** 2
    noise = noise.of_cells(used)
    fit = fits.fit(x, errors, precision, has_floor=surface.floor > 0)
    law = Law("", names, surface.floor > 0, np.flatnonzero(used), x, fit, fit, precision)
    of_law = Runs(runs.choosing[used], runs.reported[used], runs.diverged[used])
    return misfit(law, errors, of_law, noise)[1]


def best_spent(seed: int, noise: float, budget: float = 8.0, num_rounds: int = 400) -> Hit:
    """One simulated study of five sizes and four lengths, of which a sample costs its size: the
    interval of the compute-optimal size at a budget, in closed form known; NaN for none within the
    range or where too few rounds have one."""
    surface = Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), noise=noise)
    (a, c), (b, d) = surface.gains, surface.exponents
    truth = (a * b / (c * d)) ** (1 / (b + d)) * budget ** (d / (b + d))
    law, drawn = _fitted(surface, np.random.default_rng([11, seed]), num_rounds)
    costs = Costs(np.unique(BOTH[:, 0]), np.unique(BOTH[:, 0]))
    found, of_rounds = (optimum(one, costs, (1.0, 8.0), budget).size for one in (law, drawn))
    return {("law", "optimal size"): (truth, *_certain(float(found[0]), of_rounds))}


@dataclass(frozen=True)
class Valley(Surface):
    """error = floor (1 + depth (log2 x - best)^2): large models are trained too briefly."""

    best: float = 2.3
    depth: float = 0.03

    @property
    def truth(self) -> np.ndarray:
        return self.floor * (1 + self.depth * (np.log2(self.x[:, 0]) - self.best) ** 2)


def best_cell(seed: int, noise: float, num_rounds: int = 400, best: float = 2.3) -> Hit:
    """One simulated study of six sizes without lengths, whose best size lies between two of them:
    the interval of the best of the sizes tried."""
    surface = Valley(SIZES, 10.0, (), (), noise=noise, best=best)
    rng = np.random.default_rng([17, seed])
    runs = surface.runs(rng)
    sizes, drawn = (
        surface.x[:, 0],
        rounds(runs, num_rounds, rng, relative_noise(runs, surface.x[:, 0])).error,
    )
    all_of_them = np.ones(len(sizes), dtype=bool)
    found, of_rounds = (
        lowest(error, sizes, sizes, all_of_them).size for error in (choose(runs).error[None], drawn)
    )
    ends_of = outwards(*_certain(float(found[0]), of_rounds), sizes)
    return {("cells", "optimal size"): (2**surface.best, *ends_of)}


def where_equal(seed: int, noise: float, num_rounds: int = 400) -> Hit:
    """The cost at which laws of two families of six sizes cross, true 100 / 9; a training costs its
    size."""
    sizes, rng = np.geomspace(1, 32, 256), np.random.default_rng([13, seed])
    pairs = [
        _fitted(Surface(SIZES, floor, (gain,), (0.5,), noise=noise), rng, num_rounds)
        for floor, gain in ((4.0, 30.0), (1.0, 40.0))
    ]
    at = [crossings(np.atleast_2d(a.predict(sizes[:, None]) - b.predict(sizes[:, None])), sizes)
          for a, b in zip(*pairs, strict=True)]  # fmt: skip
    return {("law", "crossing"): (100 / 9, *_certain(float(at[0][0]), at[1]))}


def _fitted(
    surface: Surface, rng: np.random.Generator, num_rounds: int
) -> tuple[fits.Fit, fits.Fit]:
    """The law of all cells of a simulated study, and those of its bootstrap rounds."""
    runs = surface.runs(rng)
    chosen, noise = choose(runs), relative_noise(runs, surface.x[:, 0])
    assert noise
    used = chosen.n > 0
    sd2 = noise.sd_of_cells[used] ** 2
    law = fits.fit(surface.x[used], chosen.error[used], chosen.n[used] / sd2)
    drawn = rounds(runs, num_rounds, rng, noise)
    of_rounds = fits.fit(surface.x[used], drawn.error[:, used], drawn.n[:, used] / sd2, start=law)
    return law, of_rounds


def _certain(found: float, drawn: np.ndarray) -> tuple[float, float]:
    """The interval as tables have it: NaN without an estimate or where 5% of rounds have none."""
    share = np.isfinite(drawn).mean()
    return ends(drawn) if np.isfinite(found) and share >= CERTAIN else (np.nan, np.nan)


def _values(laws: fits.Fit, new: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "exponent": laws.exponents[..., 0],
        "last exponent": laws.exponents[..., -1],
        "floor": laws.floor,
        "forecast": laws.predict(new)[..., 0],
    }


def cover(made: Sequence[Hit], method: str, name: str) -> tuple[float, float]:
    """(share of intervals that hold the truth, their median width)."""
    x = np.array([hit[method, name] for hit in made])
    x = x[np.isfinite(x[:, 0])]  # a held-out cell that diverged was not measured
    return float(((x[:, 1] <= x[:, 0]) & (x[:, 0] <= x[:, 2])).mean()), float(
        np.median(x[:, 2] - x[:, 1])
    )


# ---- the compute-optimal exponent, of the law and of IsoFLOP parabolas


def isoflop(seed: int, noise: float, *, off_center: float = 0.0, num_rounds: int = 200) -> Hit:
    """The exponent g of the compute-optimal size N ~ C^g, true d / (b + d), from five budgets with
    five sizes each: of the law's exponents, and of minima of parabolas in log N.

    `off_center`: how far, in logarithms of N, the sizes of the largest budget lie from the optimum.
    """
    b, d, floor, a, c = 0.34, 0.28, 2.0, 10.0, 14.0
    budgets = 4.0 ** np.arange(5)
    best = (a * b / (c * d)) ** (1 / (b + d)) * budgets ** (d / (b + d))
    shift = np.linspace(0, off_center, 5)
    sizes = np.exp(np.log(best)[:, None] + shift[:, None] + np.log(2) * np.arange(-2, 3))
    x = np.stack([sizes, budgets[:, None] / sizes], -1).reshape(-1, 2)
    truth = floor + a * x[:, 0] ** -b + c * x[:, 1] ** -d
    rng = np.random.default_rng([9, seed])
    y = truth * np.exp(noise * rng.standard_normal(len(x)))
    drawn = y * np.exp(noise * rng.standard_normal((num_rounds, len(x))))
    precision = np.full(len(x), max(noise, 1e-4) ** -2)
    found = fits.fit(x, y, precision)
    laws = fits.fit(x, drawn, precision, start=found).exponents
    values = {
        "law": laws[:, 1] / laws.sum(1),
        "parabola": _parabola(np.log(sizes), drawn.reshape(num_rounds, 5, 5), np.log(budgets)),
    }
    return {
        (name, "optimal size"): (d / (b + d), *np.nanpercentile(v, (2.5, 97.5)))
        for name, v in values.items()
    }


def _parabola(log_sizes: np.ndarray, y: np.ndarray, log_budgets: np.ndarray) -> np.ndarray:
    """(rounds,) slopes of the minima of parabolas of log error in log N over the budgets."""
    minima = np.empty(y.shape[:2])
    for i, line in enumerate(log_sizes):
        center = line.mean()
        two, one, _ = np.polyfit(line - center, np.log(y[:, i]).T, 2)
        minima[:, i] = np.where(two > 0, center - one / (2 * two), np.nan)
    known = np.isfinite(minima)
    return np.array(
        [
            np.polyfit(log_budgets[k], m[k], 1)[0] if k.sum() > 1 else np.nan
            for m, k in zip(minima, known, strict=True)
        ]
    )


SIZES = 2.0 ** np.arange(6)[:, None]
BOTH = np.array([(n, d) for n in 2.0 ** np.arange(5) for d in 2.0 ** np.arange(4)])
CASES = {
    "power": Surface(SIZES, 0.0, (30.0,), (0.35,)),
    "one": Surface(SIZES, 4.0, (30.0,), (0.5,)),
    "two": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4)),
    "steep lr": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), regret=0.3),
    "flat lr": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), regret=0.02),
    "noisy lr": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), regret=0.3, noise_per_lr=3.0),
    "growing noise": Surface(SIZES, 4.0, (30.0,), (0.5,), noise=0.03, noise_growth=4.0),
    "one lr": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), num_lrs=1, num_seeds=5),
}


METHODS = ("pooled", "alike", "trials", "profile")  # alike: one noise for all lr


def main(case: str, num: int, methods: Sequence[str] = METHODS) -> None:
    if case in ("optimum", "cells", "crossing"):
        one, method, name = {
            "optimum": (best_spent, "law", "optimal size"),
            "cells": (best_cell, "cells", "optimal size"),
            "crossing": (where_equal, "law", "crossing"),
        }[case]
        for noise in (0.02, 0.05):
            hits = [one(seed, noise)[method, name] for seed in range(num)]
            stated = [hit for hit in hits if np.isfinite(hit[1])]
            share, width = cover([{("law", name): hit} for hit in stated], "law", name)
            error = (share * (1 - share) / max(len(stated), 1)) ** 0.5
            print(
                f"{case} {noise:g} stated {len(stated)}/{num} {share:.3f} ({error:.3f}) {width:.3g}"
            )
        return
    if case == "misfit":
        for name in CASES:
            for seeds in (2, 3):
                surface = replace(CASES[name], num_seeds=seeds)
                p = np.array([misfit_p(surface, seed) for seed in range(num)])
                share = float((p < 0.05).mean())
                print(f"{name:9} {seeds} {share:.3f} ({(share * (1 - share) / num) ** 0.5:.3f})")
        return
    if case == "isoflop":
        for noise in (1e-6, 0.01):
            for off in (0.0, 1.5):
                made = [isoflop(seed, noise, off_center=off) for seed in range(num)]
                for name in ("law", "parabola"):
                    intervals = np.array([hit[name, "optimal size"] for hit in made])
                    bias = float((intervals[:, 1:].mean(1) - intervals[:, 0]).mean())
                    share, width = cover(made, name, "optimal size")
                    print(f"{noise:g} {off:g} {name:9} {share:.3f} {width:.3g} {bias:+.4f}")
        return
    made = [measure(CASES[case], seed, methods=methods) for seed in range(num)]
    for method in methods:
        for name in ("exponent", "last exponent", "floor", "forecast", "measured"):
            if (method, name) in made[0]:
                share, width = cover(made, method, name)
                error = (share * (1 - share) / num) ** 0.5
                print(f"{case:9} {method:8} {name:9} {share:.3f} ({error:.3f}) {width:.3g}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] or METHODS)
