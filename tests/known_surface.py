"""How often intervals of scaling laws cover a known truth, and the IsoFLOP parabola beside them.

`python tests/known_surface.py one 300` prints the cover of a case of CASES over 300 simulations;
docs/method-scaling.md has the results. Each simulated study has three lr per cell with three seeds
each, 5% of its runs diverge, and the largest size is held out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitscale.analysis.scaling import fits
from vitscale.analysis.scaling.rounds import Runs, choose, relative_noise, rounds

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
    regret: float = 0.08
    diverged: float = 0.05

    @property
    def truth(self) -> np.ndarray:
        powers = self.x ** -np.array(self.exponents)
        return self.floor + (np.array(self.gains) * powers).sum(1)

    def runs(self, rng: np.random.Generator) -> Runs:
        shape = (len(self.x), self.num_lrs, self.num_seeds)
        steps = np.arange(self.num_lrs) - self.num_lrs // 2
        mean = self.truth[:, None, None] * (1 + self.regret * steps**2)[:, None]
        z = rng.standard_normal((2, *shape))
        other = self.correlation * z[0] + np.sqrt(1 - self.correlation**2) * z[1]
        diverged = rng.random(shape) < self.diverged
        errors = [
            np.where(diverged, np.nan, mean * np.exp(self.noise * values - self.noise**2 / 2))
            for values in (z[0], other)
        ]
        return Runs(errors[0], errors[1], diverged)


def measure(
    surface: Surface, seed: int, num_rounds: int = 400, methods: Sequence[str] = ("pooled",)
) -> Hit:
    """One simulated study: intervals of the exponent of the first axis, the floor, and the held-out
    largest value, as the law has it and as it is measured."""
    rng = np.random.default_rng([7, seed])
    runs = surface.runs(rng)
    chosen = choose(runs)
    pairs, df = relative_noise(runs)
    noise = float(np.sqrt(np.mean(pairs[:, 1] ** 2)))
    held = surface.x[:, 0] == surface.x[:, 0].max()
    used = ~held & (chosen.n > 0)
    last = int(np.flatnonzero(held)[-1])
    x, new, has_floor = surface.x[used], surface.x[[last]], surface.floor > 0
    precision = chosen.n[used] / noise**2
    found = fits.fit(x, chosen.error[used], precision, has_floor=has_floor)
    truth = {
        "exponent": surface.exponents[0],
        "floor": surface.floor,
        "forecast": float(surface.truth[last]),
        "measured": float(chosen.error[last]),
    }
    hits: Hit = {}
    for method in methods:
        if method == "profile":
            laws = fits.likelihood_region(
                x, chosen.error[used], precision, df=df, has_floor=has_floor
            ).laws
            ends = {name: (v.min(), v.max()) for name, v in _values(laws, new).items()}
        else:
            drawn = rounds(runs, num_rounds, rng, "trials" if method == "trials" else "pooled")
            laws = fits.fit(
                x,
                drawn.error[:, used],
                drawn.n[:, used] / noise**2,
                has_floor=has_floor,
                start=found,
            )
            values = _values(laws, new)
            sd = noise / np.sqrt(max(chosen.n[last], 1))
            values["measured"] = values["forecast"] * np.exp(sd * rng.standard_t(df, num_rounds))
            ends = {name: tuple(np.percentile(v, (2.5, 97.5))) for name, v in values.items()}
        hits |= {(method, name): (truth[name], *pair) for name, pair in ends.items()}
    return hits


def _values(laws: fits.Fit, new: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "exponent": laws.exponents[..., 0],
        "floor": laws.floor,
        "forecast": laws.predict(new)[..., 0],
    }


def cover(made: Sequence[Hit], method: str, name: str) -> tuple[float, float]:
    """(share of intervals that hold the truth, their median width)."""
    of = np.array([hit[method, name] for hit in made])
    of = of[np.isfinite(of[:, 0])]  # a held-out cell that diverged was not measured
    return float(((of[:, 1] <= of[:, 0]) & (of[:, 0] <= of[:, 2])).mean()), float(
        np.median(of[:, 2] - of[:, 1])
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
    "one lr": Surface(BOTH, 3.0, (15.0, 15.0), (0.5, 0.4), num_lrs=1, num_seeds=5),
}


def main(case: str, num: int) -> None:
    if case == "isoflop":
        for noise in (1e-6, 0.01):
            for off in (0.0, 1.5):
                made = [isoflop(seed, noise, off_center=off) for seed in range(num)]
                for name in ("law", "parabola"):
                    of = np.array([hit[name, "optimal size"] for hit in made])
                    bias = float((of[:, 1:].mean(1) - of[:, 0]).mean())
                    share, width = cover(made, name, "optimal size")
                    print(f"{noise:g} {off:g} {name:9} {share:.3f} {width:.3g} {bias:+.4f}")
        return
    methods = ("pooled", "trials", "profile")
    made = [measure(CASES[case], seed, methods=methods) for seed in range(num)]
    for method in methods:
        for name in ("exponent", "floor", "forecast", "measured"):
            if (method, name) in made[0]:
                share, width = cover(made, method, name)
                error = (share * (1 - share) / num) ** 0.5
                print(f"{case:9} {method:8} {name:9} {share:.3f} ({error:.3f}) {width:.3g}")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:-1]), int(sys.argv[-1]))
