"""Populations of two arms with a known relation, simulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from vitscale.analysis.distribution.population import Population

REFERENCE = 5.0  # percent: the true error at the optimum
Draw = Callable[[np.ndarray], np.ndarray]  # uniform numbers -> points above the reference


def skewed(u: np.ndarray) -> np.ndarray:
    """A shifted lognormal: most draws are 1 to 4 points above the reference, some below it."""
    return np.exp(0.7 + 0.8 * ndtri(u)) - 0.5


def collapsing(u: np.ndarray) -> np.ndarray:
    """The same, with one draw in twenty that diverges."""
    return np.where(u > 0.95, 95.0, skewed(np.minimum(u / 0.95, 1 - 1e-9)))


def rounded(u: np.ndarray) -> np.ndarray:
    """The same in whole images of 400."""
    return np.round(4 * skewed(u)) / 4


POPULATIONS: dict[str, Draw] = {"skewed": skewed, "collapsing": collapsing, "rounded": rounded}


def arm(
    error: np.ndarray, references: np.ndarray, scramble: np.ndarray | None = None
) -> Population:
    """The population of an arm with these errors; 100 is diverged."""
    status = np.where(error < 100, "finished", "diverged")
    return Population(
        "arm", np.arange(len(error)), error, status, scramble, {}, {}, {}, {}, 0, references, {}
    )


def studies(
    draw: Draw,
    n: int,
    k: int,
    sd: float,
    sims: int,
    seed: int = 0,
    worse: Draw | None = None,
    paired: float = 0.7,
) -> list[tuple[Population, Population]]:
    """Pairs of arms: b draws by `worse`, at the same quantile as a with probability `paired`."""
    rng = np.random.default_rng(seed)
    u, own, choice = rng.random((3, sims, n))
    a, b = draw(u), (worse or draw)(np.where(choice < paired, u, own))
    runs = REFERENCE + sd * rng.normal(size=(2, sims, k))
    return [
        (arm(REFERENCE + a[i], runs[0, i]), arm(REFERENCE + b[i], runs[1, i])) for i in range(sims)
    ]
