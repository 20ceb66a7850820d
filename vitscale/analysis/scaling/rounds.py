"""Cells of trials, the lr of each, and bootstrap rounds over their runs and the choice of lr.

A cell is one setting (size, images, length) at several lr with several seeds. An lr is a candidate
if at least half of its ended runs finished; the candidate with the lowest mean on minival over the
finished ones is chosen. A cell without a candidate is diverged: it has no error, and is in no fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Method = Literal["pooled", "trials"]
# Share of the noise of a mean that a round adds where it chooses an lr. The means already hold
# noise once, so with all of it the choice would count twice: intervals then cover 97 to 98%, with
# none of it 92 to 95%, with half of it 94 to 97% (docs/method-scaling.md).
CHOICE_NOISE = 0.5


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


@dataclass(frozen=True)
class Chosen:
    """Of (..., cells): the index of the lr (-1: none), the mean error there and how many runs."""

    lr: np.ndarray
    error: np.ndarray
    n: np.ndarray


def choose(runs: Runs) -> Chosen:
    """Each cell at its own lr."""
    return _at_best(_mean(runs.choosing), _mean(runs.reported), runs.candidates, runs.finished)


def relative_noise(runs: Runs) -> tuple[np.ndarray, int]:
    """Residuals (pairs, 2) on (choosing, reported) relative to the mean of their cell and lr, and
    their degrees of freedom.

    Each is scaled by sqrt(n / (n - 1)), so that their variance is that of a run.
    """
    n = runs.finished
    used = (n >= 2) & runs.candidates
    scale = np.sqrt(n / np.maximum(n - 1, 1))[..., None]
    parts = []
    for values in (runs.choosing, runs.reported):
        mean = _mean(values)[..., None]
        parts.append((values - mean) / np.where(mean > 0, mean, np.nan) * scale)
    both = np.stack(parts, -1)[used]
    pairs = both[np.isfinite(both).all(-1)]
    return pairs, int((n[used] - 1).sum())


def rounds(runs: Runs, num: int, rng: np.random.Generator, method: Method = "pooled") -> Chosen:
    """`num` bootstrap rounds: (num, cells) choices of lr and errors.

    trials: the runs of each cell and lr are drawn with replacement, diverged ones too. Of three
    seeds this has two thirds of the variance. pooled: mean errors get the noise of n runs drawn
    from the residuals of all cells, which are alike relative to the error, scaled by the root of
    df / chi-square, so that the quantiles are those of Student's t. The choice gets CHOICE_NOISE of
    it.
    """
    if method == "trials":
        return _drawn_trials(runs, num, rng)
    pairs, df = relative_noise(runs)
    n, shape = runs.finished, (num, *runs.finished.shape)
    choosing = np.broadcast_to(_mean(runs.choosing), shape).copy()
    reported = np.broadcast_to(_mean(runs.reported), shape).copy()
    inflation = np.sqrt(df / rng.chisquare(df, num))[:, None]
    for count in np.unique(n[n > 0]):
        of = n == count
        drawn = pairs[rng.integers(len(pairs), size=(num, int(of.sum()), count))].mean(2)
        choosing[:, of] *= np.maximum(1 + CHOICE_NOISE * inflation * drawn[..., 0], 0.05)
        reported[:, of] *= np.maximum(1 + inflation * drawn[..., 1], 0.05)
    return _at_best(choosing, reported, runs.candidates, n)


def rounds_on(
    runs: Runs,
    errors: np.ndarray,
    noise: tuple[np.ndarray, int],
    num: int,
    rng: np.random.Generator,
) -> Chosen:
    """`num` rounds of these cells if `errors` (cells,) were true at the lr that each has chosen,
    and the other lr kept their ratios to it. `noise` is that of relative_noise.

    Runs diverge again as well, each with the share of the candidates' runs that did: a cell that
    loses its best lr by chance is as far off as one that has chosen a worse one.
    """
    pairs, df = noise
    ended = np.where(runs.candidates, runs.finished + runs.diverged.sum(-1), 0)
    diverged = np.where(runs.candidates, runs.diverged.sum(-1), 0).sum() / max(ended.sum(), 1)
    n = rng.binomial(ended, 1 - diverged, (num, *ended.shape))
    of_means = np.zeros((*n.shape, 2))
    for count in np.unique(n[n > 0]):
        of = n == count
        of_means[of] = pairs[rng.integers(len(pairs), size=(int(of.sum()), count))].mean(1)
    of_means *= np.sqrt(df / rng.chisquare(df, num))[:, None, None, None]
    scale = (errors / choose(runs).error)[:, None]
    choosing, reported = (
        scale * _mean(values) * np.maximum(1 + share * of_means[..., column], 0.05)
        for column, (values, share) in enumerate(
            ((runs.choosing, CHOICE_NOISE), (runs.reported, 1.0))
        )
    )
    return _at_best(choosing, reported, (n > 0) & (2 * n >= ended), n)


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
    known = np.isfinite(values)
    num = known.sum(-1)
    total = np.where(known, values, 0.0).sum(-1)
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
