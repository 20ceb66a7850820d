"""Comparison of two arms with diverged runs: ranks with those runs as the worst, and their numbers.

The mean error of finished runs favours the arm that diverges more, since the runs that diverge
would have been the bad ones. A diverged or failed run is not a missing value: it has no error, but
it has a rank, behind every finished run.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

MAX_PERMUTATIONS = 20_000  # all of them up to 8 runs in each arm


class Endings(NamedTuple):
    """How often a run of a is worse than one of b (ties count half), two-sided p of equal ranks, p
    of equal counts.
    """

    prob_a_worse: float = np.nan
    rank_p: float = np.nan
    diverged_p: float = np.nan


def endings(a: pd.DataFrame, b: pd.DataFrame, column: str = "value") -> Endings:
    """Compares the runs of two arms that have an outcome; those that diverged or failed are tied as
    the worst.

    rank_p: Mann and Whitney's test, by all permutations for up to 8 runs per arm, else normal with
    its correction for ties. The null hypothesis is that the arms have one distribution. diverged_p:
    Fisher's exact test of the numbers of runs that did not finish; NaN if all finished in both
    arms, since no data could then reject it (Tarone 1990). NaN if an arm has no outcome yet.
    """
    first, second = (_errors(runs, column) for runs in (a, b))
    if not len(first) or not len(second):
        return Endings()
    levels = np.unique(np.concatenate([first, second]))
    ranks = [np.searchsorted(levels, side).astype(float) for side in (first, second)]
    prob = float((0.5 + 0.5 * np.sign(ranks[0][:, None] - ranks[1])).mean())
    return Endings(prob, _rank_p(*ranks), _count_p(np.isinf(first), np.isinf(second)))


def _errors(runs: pd.DataFrame, column: str) -> np.ndarray:
    """(n,) errors of the runs with an outcome, infinite for one that did not finish."""
    ended = runs[runs["status"] != "missing"]
    if not (ended["status"] == "finished").any():
        return np.full(len(ended), np.inf)
    return ended[column].astype(float).where(ended["status"] == "finished", np.inf).to_numpy()


def _rank_p(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(np.concatenate([a, b])) == 0 or min(len(a), len(b)) < 2:
        return np.nan
    exact = comb(len(a) + len(b), len(a)) <= MAX_PERMUTATIONS
    method = scipy.stats.PermutationMethod(n_resamples=MAX_PERMUTATIONS) if exact else "asymptotic"
    return float(scipy.stats.mannwhitneyu(a, b, method=method).pvalue)


def _count_p(a: np.ndarray, b: np.ndarray) -> float:
    if not a.any() and not b.any():
        return np.nan
    return float(scipy.stats.fisher_exact([[a.sum(), (~a).sum()], [b.sum(), (~b).sum()]]).pvalue)
