"""Scaling laws: error = E + sum over axes of a (x / x0)^-b, fitted to many rounds of cells at once.

E is the floor, a what an axis adds to it at x0, the geometric mean of its values, in units of the
metric, and b an exponent. With one axis and no floor this is a power law; with size and images the
form of Hoffmann et al. 2022, equation 2. E, a and b are not negative.

The loss is Huber's of the residual of log error, in units of its standard error. On a log scale,
because errors of cells differ by an order of magnitude and the spread over seeds is about in
proportion to them; robust, because one cell at a bad lr must not bend a law of five; Huber's rather
than a heavier one, because it is quadratic near 0, so a likelihood region keeps its meaning.

The fit is by variable projection: for given exponents the others follow from a weighted,
non-negative least squares problem of at most three unknowns. So the search begins with the
exponents of a grid, which all rounds share. From the best of them, damped Gauss-Newton steps on all
unknowns follow. scipy.optimize minimizes the same loss, and the tests compare with it; it fits one
data set at a time, and a bootstrap has thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import scipy

HUBER = 1.345  # standard errors: 95% efficiency for normal noise (Huber 1964)
EXPONENTS = (0.01, 4.0)  # searched; a law beyond has no use, as 2**4 = 16 times lower per doubling
GRID = {1: 33, 2: 11}  # exponents per axis at which the search starts
NEAR = np.log([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])  # with `start`: around its exponents
TRIED = 12  # of the best starts, from which Gauss-Newton steps begin; with `start`, 1
STEPS = 240  # of Gauss-Newton at most; with `start`, a sixth of them
STALE = 8  # steps without a gain, after which all rounds end
LONGEST = 2.0  # step in the logarithm of an unknown
LEAST = -20.0  # logarithm of the least floor or gain, in units of the mean error
IRLS = 4  # iterations of the inner problem
CHUNK = 100_000  # numbers of an array of the search: what a cache holds
TINY = 1e-12
# of a likelihood region: exponents per axis, and floors
REGION, FLOORS = {1: 61, 2: 31}, 25


@dataclass(frozen=True)
class Fit:
    """Laws of (...) rounds: floor and loss (...), gains and exponents (..., axes).

    `loss` is the sum of Huber's losses, twice: comparable to a chi-square.
    """

    floor: np.ndarray
    gains: np.ndarray
    exponents: np.ndarray
    loss: np.ndarray
    x0: np.ndarray  # (axes,)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Errors (..., cells) at x (cells, axes)."""
        powers = np.exp(-self.exponents[..., None, :] * np.log(np.asarray(x, float) / self.x0))
        return self.floor[..., None] + (self.gains[..., None, :] * powers).sum(-1)


def num_unknowns(num_axes: int, has_floor: bool) -> int:
    return 2 * num_axes + has_floor


def fit(
    x: np.ndarray,
    y: np.ndarray,
    precision: np.ndarray,
    *,
    has_floor: bool = True,
    start: Fit | None = None,
) -> Fit:
    """The laws of errors y (..., cells) at x (cells, axes).

    precision (..., cells): 1 / variance of log y; 0, or an error of 0, leaves a cell out. `start`,
    one fit, such as that of the cells that were measured, is what bootstrap rounds search around,
    at a third of the cost. Raises ValueError for more unknowns than distinct values of an axis can
    tell, or than there are cells.
    """
    x, y = np.atleast_2d(np.asarray(x, float)), np.asarray(y, float)
    check_identified(x, has_floor)
    shape = y.shape[:-1]
    flat = y.reshape(-1, y.shape[-1])
    weights = np.broadcast_to(precision, y.shape).reshape(flat.shape)
    weights = np.where(flat > 0, weights, 0.0)  # an error of 0 has no logarithm
    flat = np.where(weights > 0, flat, 1.0)  # what is left out may have no error
    x0 = np.exp(np.log(x).mean(0))
    logs = np.log(x / x0)
    starts, *effort = _starts(x.shape[1], start)
    chunk = max(1, CHUNK // (len(starts) * x.shape[0]))
    parts = [
        _fit_rounds(logs, flat[i : i + chunk], weights[i : i + chunk], has_floor, starts, *effort)
        for i in range(0, len(flat), chunk)
    ]
    exponents, coefficients, loss = (np.concatenate(part) for part in zip(*parts, strict=True))
    floor = coefficients[:, 0] if has_floor else np.zeros(len(flat))
    gains = coefficients[:, 1:] if has_floor else coefficients
    axes = x.shape[1]
    return Fit(
        floor.reshape(shape),
        gains.reshape(*shape, axes),
        exponents.reshape(*shape, axes),
        loss.reshape(shape),
        x0,
    )


def check_identified(x: np.ndarray, has_floor: bool) -> None:
    """Raises ValueError unless each axis has enough values, and there are enough cells."""
    unknowns = num_unknowns(x.shape[1], has_floor)
    if len(x) < unknowns:
        raise ValueError(
            f"a law of {unknowns} unknowns must have at least {unknowns} cells, but got ({len(x)})"
        )
    for values in x.T:
        num = len(np.unique(values))
        if num < 3:
            raise ValueError(
                "a law must have at least 3 values of each axis, but got "
                f"({', '.join(f'{value:g}' for value in np.unique(values))})"
            )


def _starts(num_axes: int, start: Fit | None) -> tuple[np.ndarray, int, int]:
    """Logarithms of exponents (starts, axes), how many of the best are tried, and most steps."""
    low, high = np.log(EXPONENTS)
    if start is None:
        line = np.linspace(low, high, GRID[num_axes])
        return np.array(list(product(line, repeat=num_axes))), TRIED, STEPS
    near = np.array(list(product(NEAR, repeat=num_axes)))
    return np.clip(np.log(start.exponents).reshape(num_axes) + near, low, high), 1, STEPS // 6


def _fit_rounds(
    logs: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    has_floor: bool,
    starts: np.ndarray,
    num_tried: int,
    num_steps: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(exponents, coefficients, loss) of each of the rounds y (rounds, cells)."""
    shared = np.broadcast_to(starts, (len(y), *starts.shape))
    coefficients, losses = _project(logs, shared, y, weights, has_floor)
    rounds = np.arange(len(y))
    best: tuple[np.ndarray, ...] | None = None
    for chosen in losses.argsort(1)[:, :num_tried].T:
        law = starts[chosen], coefficients[rounds, chosen], losses[rounds, chosen]
        fit = _descend(logs, y, weights, has_floor, law, num_steps)
        if best is None:
            best = fit
        else:
            lower = fit[2] < best[2]
            best = tuple(
                np.where(lower.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(fit, best, strict=True)
            )
    assert best is not None
    return np.exp(best[0]), best[1], best[2]


def _descend(
    logs: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    has_floor: bool,
    law: tuple[np.ndarray, np.ndarray, np.ndarray],
    num_steps: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A law (log exponents, coefficients, loss) of each round after damped Gauss-Newton steps on
    the logarithms of all unknowns (Levenberg 1944, Marquardt 1963), with Huber's weights.
    """
    exponents, coefficients, loss = law
    axes, scale = logs.shape[1], np.log(y).mean(1, keepdims=True)
    unit = np.maximum(coefficients * np.exp(-scale), np.exp(LEAST))
    point = np.concatenate([exponents, np.log(unit)], 1)
    low = np.array([np.log(EXPONENTS[0])] * axes + [LEAST] * unit.shape[1])
    high = np.array([np.log(EXPONENTS[1])] * axes + [np.inf] * unit.shape[1])
    begun = point, loss
    state = _linearized(logs, y, weights, has_floor, point, scale)
    damping, stale = np.full(len(y), 1e-3), np.zeros(len(y), int)
    for _ in range(num_steps):
        _, residual, jacobian, omega = state
        square = np.einsum("rpc,rc,rqc->rpq", jacobian, omega, jacobian)
        slope = np.einsum("rpc,rc->rp", jacobian, omega * residual)
        free = ~((point <= low) & (slope < 0) | (point >= high) & (slope > 0))
        square = np.where(free[:, :, None] & free[:, None], square, 0.0)
        diagonal = np.einsum("rpp->rp", square)
        ridge = damping[:, None] * diagonal + np.where(free, TINY * diagonal.max(), 1.0) + TINY
        step = np.linalg.solve(
            square + ridge[..., None] * np.eye(point.shape[1]), (slope * free)[..., None]
        )
        tried = np.clip(point + np.clip(step[..., 0], -LONGEST, LONGEST), low, high)
        after = _linearized(logs, y, weights, has_floor, tried, scale)
        better = after[0] < state[0]
        stale = np.where(after[0] < state[0] * (1 - 1e-9), 0, stale + 1)
        point = np.where(better[:, None], tried, point)
        state = tuple(
            np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(after, state, strict=True)
        )
        damping = np.where(better, damping / 5, np.minimum(damping * 8, 1e8))
        if stale.min() >= STALE:
            break
    worse = (state[0] > begun[1])[:, None]  # a gain of 0 has no logarithm
    # below a millionth of the mean error, an unknown is on its way to 0
    unit = np.where(point[:, axes:] < np.log(1e-6), 0.0, np.exp(point[:, axes:] + scale))
    return (
        np.where(worse, begun[0][:, :axes], point[:, :axes]),
        np.where(worse, coefficients, unit),
        np.minimum(state[0], begun[1]),
    )


def _linearized(
    logs: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    has_floor: bool,
    point: np.ndarray,
    scale: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """(loss (rounds,), residual of log error and Huber's weights (rounds, cells), derivatives of
    log error by the logarithms of the unknowns (rounds, unknowns, cells)), residual first.
    """
    axes = logs.shape[1]
    slopes = -np.exp(point[:, :axes, None]) * logs.T
    powers = np.exp(point[:, -axes:, None] + scale[..., None] + slopes)
    parts = powers
    if has_floor:
        floor = np.exp(point[:, axes, None] + scale)
        parts = np.concatenate([np.broadcast_to(floor[:, None], (len(y), 1, len(logs))), powers], 1)
    fitted = parts.sum(1)
    shares = parts / fitted[:, None]
    jacobian = np.concatenate([slopes * shares[:, -axes:], shares], 1)
    residual = np.log(y) - np.log(fitted)
    size = np.abs(residual) * np.sqrt(weights)
    omega = weights * np.minimum(1.0, HUBER / np.maximum(size, TINY))
    return huber(size).sum(1), residual, jacobian, omega


def _project(
    logs: np.ndarray,
    log_exponents: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    has_floor: bool,
    iterations: int = IRLS,
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (rounds, tried, unknowns) and losses (rounds, tried) at given exponents."""
    exponents = np.exp(log_exponents)
    columns = [np.exp(-exponents[..., i, None] * logs[:, i]) for i in range(logs.shape[1])]
    if has_floor:
        columns.insert(0, np.ones_like(columns[0]))
    return inner(columns, y[:, None], weights[:, None], iterations)


def inner(
    columns: Sequence[np.ndarray],
    y: np.ndarray,
    weights: np.ndarray,
    iterations: int = IRLS,
    offset: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (..., unknowns), not negative, and twice Huber's loss of log residuals (...).

    Columns (..., cells) each. Gauss-Newton steps on log error: with the model f linear, the
    residual log y - log f is nearly (z - f) / f0 around f0, z = f0 (1 + log y - log f0).
    """
    log_y = np.log(np.maximum(y, TINY))
    fitted = np.broadcast_to(np.maximum(y, TINY), columns[0].shape)
    root = np.sqrt(weights)
    best: np.ndarray | None = None
    lowest = np.empty(0)
    for _ in range(iterations):
        residual = log_y - np.log(fitted)
        size = np.abs(residual) * root
        omega = weights * np.minimum(1.0, HUBER / np.maximum(size, TINY)) / fitted**2
        target = fitted * (1 + residual) - offset
        coefficients = solve_non_negative(columns, target, omega)
        fitted = np.maximum(
            sum(coefficients[..., i, None] * column for i, column in enumerate(columns)) + offset,
            TINY,
        )
        loss = huber(np.abs(log_y - np.log(fitted)) * root).sum(-1)
        if best is None:
            best, lowest = coefficients, loss
        else:
            better = loss < lowest
            best = np.where(better[..., None], coefficients, best)
            lowest = np.where(better, loss, lowest)
    assert best is not None
    return best, lowest


def huber(size: np.ndarray) -> np.ndarray:
    """Twice Huber's loss of standardised residuals: their square near 0."""
    return np.where(size <= HUBER, size**2, HUBER * (2 * size - HUBER))


def solve_non_negative(
    columns: Sequence[np.ndarray], target: np.ndarray, omega: np.ndarray
) -> np.ndarray:
    """The non-negative least squares solutions (..., unknowns), of all subsets of the columns the
    best feasible one; exact, for at most three columns.
    """
    num = len(columns)
    weighted = [omega * column for column in columns]
    gram = {
        (i, j): (weighted[i] * columns[j]).sum(-1) * (1 + 1e-10 * (i == j))
        for i in range(num)
        for j in range(i, num)
    }
    right = [(column * target).sum(-1) for column in weighted]
    best = np.zeros((*right[0].shape, num))
    gain = np.zeros(right[0].shape)
    for size in range(1, num + 1):
        for subset in combinations(range(num), size):
            solution = _cramer(gram, right, subset)
            feasible = np.all([value >= 0 for value in solution], axis=0)
            # half the decrease of the sum of squares
            reached = sum(value * right[i] for value, i in zip(solution, subset, strict=True))
            better = feasible & (reached > gain)
            gain = np.where(better, reached, gain)
            for i in range(num):
                value = solution[subset.index(i)] if i in subset else 0.0
                best[..., i] = np.where(better, value, best[..., i])
    return best


def _cramer(
    gram: dict[tuple[int, int], np.ndarray], right: Sequence[np.ndarray], subset: Sequence[int]
) -> list[np.ndarray]:
    """The unconstrained solution with these columns alone."""

    def g(i: int, j: int) -> np.ndarray:
        return gram[min(i, j), max(i, j)]

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if len(subset) == 1:
            (i,) = subset
            return [right[i] / g(i, i)]
        if len(subset) == 2:
            i, j = subset
            det = g(i, i) * g(j, j) - g(i, j) ** 2
            return [
                (right[i] * g(j, j) - right[j] * g(i, j)) / det,
                (right[j] * g(i, i) - right[i] * g(i, j)) / det,
            ]
        i, j, k = subset
        a = g(j, j) * g(k, k) - g(j, k) ** 2
        b = g(i, k) * g(j, k) - g(i, j) * g(k, k)
        c = g(i, j) * g(j, k) - g(i, k) * g(j, j)
        d = g(i, i) * g(k, k) - g(i, k) ** 2
        e = g(i, j) * g(i, k) - g(i, i) * g(j, k)
        f = g(i, i) * g(j, j) - g(i, j) ** 2
        det = g(i, i) * a + g(i, j) * b + g(i, k) * c
        r = [right[i], right[j], right[k]]
        return [
            (a * r[0] + b * r[1] + c * r[2]) / det,
            (b * r[0] + d * r[1] + e * r[2]) / det,
            (c * r[0] + e * r[1] + f * r[2]) / det,
        ]


@dataclass(frozen=True)
class Region:
    """Laws whose loss is within that of a 95% likelihood region for one quantity."""

    laws: Fit

    def interval(self, values: np.ndarray) -> tuple[float, float]:
        """The range of a quantity of these laws: its profile likelihood interval."""
        return float(values.min()), float(values.max())


def likelihood_region(
    x: np.ndarray,
    y: np.ndarray,
    precision: np.ndarray,
    *,
    df: float,
    has_floor: bool = True,
    confidence: float = 0.95,
) -> Region:
    """The laws that the cells y (cells,) do not refuse, on a grid of exponents and floors.

    The range of any quantity over them is its profile likelihood interval, as the least loss at a
    value of it is the profile. `df`: degrees of freedom of the precision, for F in place of
    chi-square.
    """
    best = fit(x, y, precision, has_floor=has_floor)
    limit = float(best.loss) + float(scipy.stats.f.ppf(confidence, 1, df))
    logs = np.log(np.asarray(x, float) / best.x0)
    axes = logs.shape[1]
    low, high = np.log(EXPONENTS)
    lines = [np.linspace(low, high, REGION[axes]) for _ in range(axes)]
    floors = np.linspace(0.0, 1.2 * float(np.min(y)), FLOORS) if has_floor else np.zeros(1)
    laws = _within(logs, y, precision, lines, floors, limit, best)
    # again where the first, coarse grid found laws, with its spacing to spare on each side
    spare = (high - low) / (REGION[axes] - 1)
    inside = np.log(laws.exponents)
    lines = [
        np.linspace(max(values.min() - spare, low), min(values.max() + spare, high), REGION[axes])
        for values in inside.T
    ]
    if has_floor:
        spare = float(floors[1])
        ends = max(laws.floor.min() - spare, 0.0), laws.floor.max() + spare
        floors = np.linspace(*ends, FLOORS)
    return Region(_within(logs, y, precision, lines, floors, limit, best))


def _within(
    logs: np.ndarray,
    y: np.ndarray,
    precision: np.ndarray,
    lines: Sequence[np.ndarray],
    floors: np.ndarray,
    limit: float,
    best: Fit,
) -> Fit:
    """The laws on a grid of logarithms of exponents and floors with a loss of at most `limit`, and
    the best."""
    axes = logs.shape[1]
    exponents = np.exp(np.array(list(product(*lines))))
    columns = [np.exp(-exponents[:, i, None] * logs[:, i]) for i in range(axes)]
    within = []
    for floor in floors:
        gains, loss = inner(columns, y[None], np.asarray(precision)[None], IRLS, offset=floor)
        near = loss <= limit
        within.append((np.full(near.sum(), floor), gains[near], exponents[near], loss[near]))
    parts = [np.concatenate(part) for part in zip(*within, strict=True)]
    own = (best.floor, best.gains, best.exponents, best.loss)
    floor, gains, exponents, loss = (
        np.concatenate([part, np.asarray(value)[None]])
        for part, value in zip(parts, own, strict=True)
    )
    return Fit(floor, gains, exponents, loss, best.x0)
