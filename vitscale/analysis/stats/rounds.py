"""Cells of trials, the lr of each, and bootstrap rounds over their runs and the choice of lr.

A cell is one setting (size, images, length) at several lr with several seeds. An lr is a candidate
if at least half of its ended runs finished; the candidate with the lowest mean on minival over the
finished ones is chosen. A cell without a candidate is diverged: it has no error, and is in no fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import polygamma, psi

# Share of the noise of a mean that a round adds where it chooses an lr. The means already hold
# noise once, so with all of it the choice would count twice: intervals then cover 97 to 98%, with
# none of it 92 to 95%, with half of it 94 to 97% (docs/method-scaling.md).
CHOICE_NOISE = 0.5
LEAST_DF = 4  # an lr of a rank with fewer degrees of freedom has the noise of all of them


@dataclass(frozen=True)
class Runs:
    """Errors of the runs of each cell: chosen on `choosing`, reported on `reported`.

    Both (cells, lrs, seeds): NaN where a run has no outcome or did not finish. `diverged` (same
    shape): it ended without an error.
    """

    choosing: np.ndarray
    reported: np.ndarray
    diverged: np.ndarray

    @property
    def finished(self) -> np.ndarray:
        """(cells, lrs) numbers of runs."""
        return np.isfinite(self.reported).sum(-1)

    @property
    def candidates(self) -> np.ndarray:
        """(cells, lrs): whether an lr may be chosen."""
        return (self.finished > 0) & (self.finished >= self.diverged.sum(-1))

    @property
    def ranks(self) -> np.ndarray:
        """(cells, lrs): 0 for the lr that is chosen, 1 for the next; those that may not be are
        last.
        """
        scores = np.where(self.candidates, _mean(self.choosing), np.inf)
        return scores.argsort(-1, kind="stable").argsort(-1, kind="stable")


@dataclass(frozen=True)
class Chosen:
    """Of (..., cells): the index of the lr (-1: none), the mean error there and how many runs."""

    lr: np.ndarray
    error: np.ndarray
    n: np.ndarray


def choose(runs: Runs) -> Chosen:
    """Each cell at its own lr."""
    scores = _mean(runs.choosing).round(9)  # sums of equal values in another order may differ
    return _at_best(scores, _mean(runs.reported), runs.candidates, runs.finished)


@dataclass(frozen=True)
class Noise:
    """Of each rank of an lr in its cell, the residuals of all cells there: (pairs, 2) on (choosing,
    reported), relative to the mean of their cell and lr, and their degrees of freedom.

    Each is scaled by sqrt(n / (n - 1)), so that their variance is that of a run, and divided by the
    `factor` (cells,) of its cell, by which runs of larger models may be noisier. `uncertain`
    (cells,) is the standard error of its logarithm, negative below the mean size.
    """

    pairs: tuple[np.ndarray, ...]
    dfs: tuple[int, ...]
    factor: np.ndarray
    uncertain: np.ndarray

    def of_cells(self, index: np.ndarray) -> Noise:
        """The noise of some of the cells."""
        return replace(self, factor=self.factor[index], uncertain=self.uncertain[index])

    def factors(self, num: int, rng: np.random.Generator) -> np.ndarray:
        """(num, cells) of rounds, each with a power of the size of its own."""
        return self.factor * np.exp(rng.standard_normal((num, 1)) * self.uncertain)

    @property
    def df(self) -> int:
        """Of the noise at the chosen lr."""
        return self.dfs[0]

    @property
    def sd(self) -> float:
        """Of a reported run at the chosen lr, relative to its error, in a cell of factor 1."""
        return float(np.sqrt(np.mean(self.pairs[0][:, 1] ** 2)))

    @property
    def sd_of_cells(self) -> np.ndarray:
        """(cells,) the same in each cell."""
        return self.sd * self.factor

    def of_means(self, ranks: np.ndarray, n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(rounds, cells, lrs, 2) of means of n (rounds, cells, lrs) runs, scaled in each round by
        the root of df / chi-square: so their quantiles are those of Student's t.
        """
        drawn = np.zeros((*n.shape, 2))
        for rank, (pairs, df) in enumerate(zip(self.pairs, self.dfs, strict=True)):
            inflation = np.sqrt(df / rng.chisquare(df, len(n)))
            for count in np.unique(n[n > 0]):
                chosen = (n == count) & (ranks == rank)
                index = rng.integers(len(pairs), size=(int(chosen.sum()), count))
                drawn[chosen] = pairs[index].mean(1) * inflation[chosen.nonzero()[0], None]
        return drawn * self.factors(len(n), rng)[..., None, None]


def relative_noise(runs: Runs, sizes: np.ndarray, least_df: float = LEAST_DF) -> Noise | None:
    """The noise at each rank of lr; None where no lr of a cell has two runs. `sizes` (cells,) of
    models: the noise may grow or fall with them (_by_size).

    Apart, because a training at a worse lr is often noisier, relative to its error: with the noise
    of all lr, the intervals of what was measured at the best would be too wide. A rank with less
    than `least_df` has the noise of all lr.
    """
    n = runs.finished
    used = (n >= 2) & runs.candidates
    scale = np.sqrt(n / np.maximum(n - 1, 1))[..., None]
    parts = []
    for values in (runs.choosing, runs.reported):
        mean = _mean(values)[..., None]
        parts.append((values - mean) / np.where(mean > 0, mean, np.nan) * scale)
    both, ranks = np.stack(parts, -1), runs.ranks
    residuals = np.where(used[..., None], both[..., 1], np.nan)
    factor, uncertain = _by_size(residuals, np.where(used, n, 0), sizes)
    both = both / factor[:, None, None, None]

    def among(chosen: np.ndarray) -> tuple[np.ndarray, int]:
        pairs = both[chosen]
        return pairs[np.isfinite(pairs).all(-1)], int((n[chosen] - 1).sum())

    every = among(used)
    if not len(every[0]):
        return None
    of_ranks = [among(used & (ranks == rank)) for rank in range(n.shape[-1])]
    kept = [own if own[1] >= least_df and len(own[0]) else every for own in of_ranks]
    return Noise(tuple(pairs for pairs, _ in kept), tuple(df for _, df in kept), factor, uncertain)


def _by_size(
    residuals: np.ndarray, n: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(cells,) factors of the noise by a power of the size, with a geometric mean of about 1, and
    the standard errors of their logarithms.

    The power is that of weighted least squares of the logarithm of the variance of each cell, whose
    mean and variance for normal runs are known (Bartlett & Kendall 1946), times 1 - (standard error
    / estimate)^2, or 0: so noise that does not depend on the size is left as it is.
    """
    df = np.maximum(n - 1, 0).sum(1)
    # residuals are scaled by n / (n - 1), so a sum of squares has n / (n - 1) too much
    shares = np.where(n > 1, (n - 1) / np.maximum(n, 1), 0.0)[..., None]
    squares = np.nansum(residuals**2 * shares, axis=(1, 2))
    usable = (df > 0) & (squares > 0)
    x = np.log(np.asarray(sizes, float))
    if len(np.unique(x[usable])) < 3:
        return np.ones(len(x)), np.zeros(len(x))
    half = df[usable] / 2
    y = np.log(squares[usable] / df[usable]) - psi(half) + np.log(half)
    weights = 1 / polygamma(1, half)
    center = np.average(x[usable], weights=weights)
    spread = (weights * (x[usable] - center) ** 2).sum()
    power = float((weights * (x[usable] - center) * y).sum() / spread)
    residual = y - np.average(y, weights=weights) - power * (x[usable] - center)
    # above 1 where runs have heavier tails than normal ones
    excess = max(1.0, float((weights * residual**2).sum()) / max(len(y) - 2, 1))
    kept = max(0.0, 1 - excess / spread / power**2) if power else 0.0
    half = (x - center) / 2
    error = (excess / spread) ** 0.5 if kept else 0.0
    return np.exp(kept * power * half), error * half


def rounds(runs: Runs, num: int, rng: np.random.Generator, noise: Noise | None) -> Chosen:
    """`num` bootstrap rounds: (num, cells) choices of lr and errors.

    Mean errors get the noise of n runs drawn from the residuals of all cells at lr of the same
    rank, which are alike relative to the error. The choice gets CHOICE_NOISE of it. Runs diverge
    again, each with the share of all that did: a cell may have lost its best lr by chance. Without
    noise, the runs of each cell and lr are drawn with replacement, diverged ones too: of three
    seeds this has two thirds of the variance.
    """
    if noise is None:
        return _drawn_trials(runs, num, rng)
    ended = runs.finished + runs.diverged.sum(-1)
    n = rng.binomial(ended, 1 - runs.diverged.sum() / max(ended.sum(), 1), (num, *ended.shape))
    candidates = (n > 0) & (2 * n >= ended) & (runs.finished > 0)
    return _with_noise(runs, noise, n, candidates, rng)


def rounds_on(
    runs: Runs,
    errors: np.ndarray,
    noise: Noise,
    num: int,
    rng: np.random.Generator,
) -> Chosen:
    """`num` rounds of these cells if `errors` (cells,) were true at the lr that each has chosen,
    and the other lr kept their ratios to it. `noise` is that of relative_noise.

    Runs diverge again as well, each with the share of the candidates' runs that did: a cell that
    loses its best lr by chance is as far off as one that has chosen a worse one.
    """
    ended = np.where(runs.candidates, runs.finished + runs.diverged.sum(-1), 0)
    diverged = np.where(runs.candidates, runs.diverged.sum(-1), 0).sum() / max(ended.sum(), 1)
    n = rng.binomial(ended, 1 - diverged, (num, *ended.shape))
    scale = (errors / choose(runs).error)[:, None]
    return _with_noise(runs, noise, n, (n > 0) & (2 * n >= ended), rng, scale)


def _with_noise(
    runs: Runs,
    noise: Noise,
    n: np.ndarray,
    candidates: np.ndarray,
    rng: np.random.Generator,
    scale: np.ndarray | float = 1.0,
) -> Chosen:
    """Rounds in which the means of the cells are of n (rounds, cells, lrs) runs, with noise."""
    drawn = noise.of_means(runs.ranks, n, rng)
    choosing, reported = (
        scale * _mean(values) * np.maximum(1 + share * drawn[..., column], 0.05)
        for column, (values, share) in enumerate(
            ((runs.choosing, CHOICE_NOISE), (runs.reported, 1.0))
        )
    )
    return _at_best(choosing, reported, candidates, n)


def _drawn_trials(runs: Runs, num: int, rng: np.random.Generator) -> Chosen:
    seeds = runs.reported.shape[-1]
    index = rng.integers(seeds, size=(num, *runs.reported.shape))
    choosing, reported, diverged = (
        np.take_along_axis(np.broadcast_to(values, index.shape), index, -1)
        for values in (runs.choosing, runs.reported, runs.diverged)
    )
    drawn = Runs(choosing, reported, diverged)
    return _at_best(_mean(choosing), _mean(reported), drawn.candidates, drawn.finished)


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis, of what is there; NaN for nothing."""
    finite = np.isfinite(values)
    num = finite.sum(-1)
    total = np.where(finite, values, 0.0).sum(-1)
    return np.where(num > 0, total / np.maximum(num, 1), np.nan)


def _at_best(
    choosing: np.ndarray, reported: np.ndarray, candidates: np.ndarray, n: np.ndarray
) -> Chosen:
    scores = np.where(candidates & np.isfinite(choosing), choosing, np.inf)
    lr = scores.argmin(-1)
    exists = np.isfinite(scores.min(-1))

    def at(values: np.ndarray) -> np.ndarray:
        full = np.broadcast_to(values, scores.shape)
        return np.take_along_axis(full, lr[..., None], -1)[..., 0]

    return Chosen(
        np.where(exists, lr, -1),
        np.where(exists, at(reported), np.nan),
        np.where(exists, at(n), 0),
    )
