"""p values of a study that is looked at more than once while it grows.

Which rule holds for a look:

- "fixed": the only look, at a size that was fixed beforehand. p stays as it is.
- "spending": the final size was fixed beforehand. p is the smallest level at which the boundary of
  this look is crossed, where the boundaries spend that level over the looks (Lan & DeMets 1983),
  by the function that resembles O'Brien & Fleming's boundaries.
- "anytime": the study grew, and no final size was declared. p holds for any number of looks at
  any time: that of a test of normal increments with a mixture of alternatives (Robbins 1970).

All looks together may spend 5%. "anytime" looks share what the looks before them have left: nothing
after a look at a whole plan, which has spent all of it. p is then not below that of the look that
spent it: what was claimed there can be kept or given up, and nothing new is claimed. A study that
is declared to be open, before its first look, leaves them a part: its first look spends OPEN_FIRST
of the 5%, all others the rest.

A p becomes the normal quantile of the same tail, as is usual for t tests in group sequential trials
(Jennison & Turnbull 2000, section 3.8); docs/method.md has simulations of it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from vitscale.analysis.stats.correction import holm

ALPHA = 0.05
# Quantiles of t from few values are less correlated from look to look than those of a Brownian
# motion, so boundaries spend more than they should: up to a share of FEW / n more, n at the first
# look (benchmarks/looks.py: 18% at 2, 8% at 5, by simulation of normal values).
FEW = 0.4
OPEN_FIRST = 0.8  # of ALPHA: for the first look at a study without an end
# two-sided levels at which boundaries are computed; those of Holm's first steps are among them
LEVELS = np.unique(np.concatenate([np.logspace(-10, np.log10(0.98), 60), ALPHA / np.arange(1, 41)]))
NODES, WEIGHTS = np.polynomial.legendre.leggauss(128)
REACH = 8.0  # standard deviations: the states that are integrated over
LEAST_STEP = 0.005  # of the information so far; steps below it are integrated as this
SPENT_UP = 1e-9  # two looks at the same share of the final size
HALVINGS = 50


@dataclass(frozen=True)
class Looks:
    """The place of a report among all that looked at a study.

    `fractions` are the shares of the declared final size at this look and at those before it; none
    where no size was declared. `n` is the number of draws or seeds per arm. `budget` is the
    error that this look may spend, with all other anytime-valid ones; 0 after it is spent. `kept`
    are then the p of the look that spent it: column -> test -> p. `again` are those of the first
    report of the same rows, or None; `tested` the tests of all looks so far: column -> tests.
    `number` counts the looks with a p, which alone can claim; `reports` all of them.
    """

    number: int = 1
    fractions: tuple[float, ...] = ()
    n: float = 0.0
    final_num: int = 0  # --final-num; 0 for the size of the first plan
    growth: Literal["", "open", "grown", "replaced"] = ""  # why there is no size to spend error on
    budget: float = ALPHA
    reports: int = 1  # those of other rows, with and without p
    kept: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    again: Mapping[str, Mapping[str, float]] | None = None
    tested: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def rule(self) -> str:
        """ "fixed", "spending" or "anytime"; see above."""
        if self.fractions:
            return "fixed" if self.fractions == (1.0,) else "spending"
        return "fixed" if self.number == 1 else "anytime"

    @property
    def is_plain(self) -> bool:
        """True for the only look at a whole study: its p need no correction for looks."""
        return self.rule == "fixed" and self.budget == ALPHA

    def adjusted(
        self, p: Sequence[float] | np.ndarray, kept: Sequence[float] | None = None
    ) -> np.ndarray:
        """(n,) p that hold for all looks together; NaN stays NaN.

        `kept` are those of the same tests at the look that has spent the error, 1 by default: where
        it is spent, no p is below them, so that a claim at any look is one at that look, too.
        """
        values = np.asarray(p, dtype=float)
        if not self.budget:
            return np.maximum(values, 1.0 if kept is None else np.asarray(kept, dtype=float))
        if self.rule == "spending":
            return np.minimum(sequential_p(values, self.fractions) * self._of_few, 1.0)
        return self._within_budget(values if self.rule == "fixed" else anytime_p(values, self.n))

    @property
    def _of_few(self) -> float:
        """How much more error boundaries make after a look at few draws or seeds (see FEW)."""
        shares = [share for share in self.fractions if share]
        if len(shares) < 2 or not self.n:
            return 1.0
        return 1 + FEW / (self.n * shares[0] / shares[-1])

    def _within_budget(self, p: np.ndarray) -> np.ndarray:
        """p of which 5% are the budget."""
        if self.budget == ALPHA:
            return p
        return np.minimum(p * ALPHA / self.budget, 1.0)

    def corrected(
        self,
        p: Sequence[float],
        anytime: Sequence[float] | None = None,
        kept: Sequence[float] | None = None,
    ) -> np.ndarray:
        """(n,) p that hold for all looks and for the number of tests (Holm 1979).

        `anytime` are p that hold at any look; NaN where there is none. `kept` as in `adjusted`,
        corrected.
        """
        if not self.budget:
            return self.adjusted(holm(p), kept)
        values = self.adjusted(p)
        if anytime is not None and self.rule == "anytime":
            own = np.asarray(anytime, dtype=float)
            own = self._within_budget(own)
            values = np.where(np.isnan(own) | np.isnan(values), values, own)
        return holm(values.tolist())

    def absent(self, key: str, tests: Collection[str]) -> int:
        """How many tests looks so far made in this column, of any metric, that are not these."""
        (metric, _, column), num = key.partition("/"), 0
        for name, made in self.tested.items():
            its_metric, _, its_column = name.partition("/")
            if its_column == column:
                num += len(set(made).difference(tests if its_metric == metric else ()))
        return num

    @property
    def threshold(self) -> float:
        """The largest p of one test, with its n as if fixed, that shows a difference now."""
        if self.rule == "fixed":
            return self.budget
        if self.rule == "spending":
            return float(2 * ndtr(-boundaries(self.fractions, ALPHA / self._of_few)[-1]))
        return float(2 * ndtr(-anytime_boundary(self.n, self.budget))) if self.budget else 0.0

    @property
    def spent(self) -> float:
        """How much of the error of 5% is spent with this look; all of it without a final size."""
        return spent_at(self.fractions[-1]) if self.fractions else ALPHA


ONE_LOOK = Looks()


# ---- a final size that was declared


def spending(fraction: np.ndarray, alpha: np.ndarray | float = ALPHA) -> np.ndarray:
    """The two-sided error that may be spent up to a share of the final size.

    Lan & DeMets 1983: 2 - 2 Phi(z / sqrt(fraction)) for each side, with half of alpha.
    """
    quantile = ndtri(1 - np.asarray(alpha) / 4)
    with np.errstate(divide="ignore"):
        return 4 * ndtr(-quantile / np.sqrt(np.clip(fraction, 0, 1)))


def spent_at(fraction: float) -> float:
    """The error that looks up to this share of the final size have spent of ALPHA."""
    return float(spending(np.array(fraction), ALPHA))


def boundaries(fractions: Sequence[float], alpha: float = ALPHA) -> np.ndarray:
    """(K,) boundaries of |z| at looks with these shares of the final size, which must not fall.

    Infinite at a look that adds nothing. By the recursion of Armitage, McPherson & Rowe 1969.
    """
    return _boundaries(tuple(fractions), (alpha,))[:, 0]


def sequential_p(p: np.ndarray, fractions: Sequence[float]) -> np.ndarray:
    """(n,) smallest levels at which the boundary of the last look is crossed; 1 if at none.

    p are two-sided, each for its n as if that were fixed.
    """
    nodes = _boundaries(tuple(fractions), tuple(LEVELS))[-1]
    nodes = np.minimum.accumulate(nodes)  # of a higher level a lower boundary
    z = -ndtri(np.clip(p, 0, 1) / 2)
    crossed = np.isfinite(nodes)
    if not crossed.any():
        return np.where(np.isnan(p), np.nan, 1.0)
    levels = np.interp(-z, -nodes[crossed], np.log(LEVELS[crossed]), right=0.0)
    return np.where(np.isnan(p), np.nan, np.exp(levels))


@functools.lru_cache(maxsize=64)
def _boundaries(fractions: tuple[float, ...], levels: tuple[float, ...]) -> np.ndarray:
    """(K, A) boundaries for several levels at once.

    The state is a Brownian motion at time `fraction`; `density` is that of the paths that no look
    has stopped, at Gauss-Legendre nodes between the boundaries of the last look.
    """
    alpha = np.array(levels)
    bounds = np.full((len(fractions), len(alpha)), np.inf)
    state, mass = np.zeros((len(alpha), 1)), np.ones((len(alpha), 1))  # nodes, density x weight
    before, spent = 0.0, np.zeros(len(alpha))
    for look, fraction in enumerate(fractions):
        if fraction <= before + SPENT_UP:
            continue
        step = np.sqrt(max(fraction - before, LEAST_STEP * fraction))
        allowed = spending(np.array(fraction), alpha) - spent
        bound = _bound(state, mass, step, np.sqrt(fraction), allowed)
        bounds[look] = bound
        edge = np.minimum(bound, REACH)[:, None] * np.sqrt(fraction)
        nodes = edge * NODES
        moved = (nodes[:, :, None] - state[:, None, :]) / step
        kernel = np.exp(-0.5 * moved**2) / (step * np.sqrt(2 * np.pi))
        mass = (kernel @ mass[:, :, None])[:, :, 0] * edge * WEIGHTS
        state, before, spent = nodes, fraction, spent + allowed
    return bounds


def _bound(
    state: np.ndarray, mass: np.ndarray, step: float, scale: float, allowed: np.ndarray
) -> np.ndarray:
    """(A,) bounds of |z| that paths cross with the allowed probability, by bisection."""
    low, high = np.zeros(len(allowed)), np.full(len(allowed), 40.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        edge = middle[:, None] * scale
        tail = ndtr((-edge - state) / step) + ndtr((state - edge) / step)
        more = (mass * tail).sum(axis=1) > allowed
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.where(allowed > 0, high, np.inf)


# ---- no final size


def anytime_p(p: np.ndarray, n: float) -> np.ndarray:
    """(n,) p that hold at any look: one over the Bayes factor of effects drawn from N(0, 1 sd).

    Exact for normal increments of known variance, approximate otherwise.
    """
    z = -ndtri(np.clip(p, 0, 1) / 2)
    log_factor = z**2 / 2 * n / (1 + n) - np.log1p(n) / 2
    return np.where(np.isnan(p), np.nan, np.exp(-np.maximum(log_factor, 0.0)))


def anytime_boundary(n: float, alpha: float = ALPHA) -> float:
    """The |z| from which on `anytime_p` is at most alpha."""
    return float(np.sqrt(2 * (1 + n) / max(n, 1e-9) * (np.log(1 / alpha) + np.log1p(n) / 2)))
