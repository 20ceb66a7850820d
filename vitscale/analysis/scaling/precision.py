"""What a plan of a scaling study will be able to say of a guessed law, before training."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vitscale.analysis.scaling import fits
from vitscale.plan.questions import MIN_VALUES
from vitscale.plan.study import Study

# The guess: error = FLOOR + sum over axes of gain (x / least x)^-exponent, in percent. The noise of
# a run, relative to its error, is about that on Fashion-MNIST.
FLOOR, GAINS, EXPONENTS, NOISE = 2.5, (20.0, 10.0), (0.45, 0.3), 0.04
SIMS = 200


def of_laws(study: Study) -> list[str]:
    """How precisely the cells of each family give exponent and forecast, if the guess is true."""
    seeds = min(Counter((t.arm.name, t.config.lr) for t in study.trials).values())
    cells: dict[str, dict[str, tuple[float, float]]] = {}
    for trial in study.trials:
        of_family = cells.setdefault(str(trial.arm.factors["family"]), {})
        if trial.arm.name not in of_family:
            params = float(study.cost(trial.config).params)
            of_family[trial.arm.name] = params, float(trial.config.num_train)
    said: dict[str, list[str]] = {}
    for family, of_family in cells.items():
        said.setdefault(_of_cells(np.array(list(of_family.values())), seeds), []).append(family)
    return [f"laws of {' and '.join(names)} ({text})" for text, names in said.items() if text]


def _of_cells(x: np.ndarray, seeds: int) -> str:
    """The widths for cells (cells, 2) of parameters and images; empty for too few of them."""
    varied = [axis for axis in (0, 1) if len(np.unique(x[:, axis])) >= MIN_VALUES]
    if not varied or len(np.unique(x[:, varied[0]])) <= MIN_VALUES:
        return ""
    x = x[:, varied] / x[:, varied].min(0)
    if len(varied) == 1:
        x = np.unique(x, axis=0)
    gains, exponents = (np.array(values)[varied] for values in (GAINS, EXPONENTS))
    truth = FLOOR + (gains * x**-exponents).sum(1)
    sd = NOISE / seeds**0.5
    z = np.random.default_rng(0).standard_normal((2, SIMS, len(x)))
    precision = np.full(len(x), sd**-2)
    measured = truth * np.exp(sd * z[0])
    start = fits.fit(x, truth, precision)
    slopes = fits.fit(x, measured, precision, start=start).exponents[:, 0]
    last = x[:, 0] == x[:, 0].max()
    rest = fits.fit(x[~last], measured[:, ~last], precision[~last], start=start)
    ratio = rest.predict(x[last]) / (truth[last] * np.exp(sd * z[1][:, last]))
    low, high = np.quantile(slopes, (0.025, 0.975))
    off = np.quantile(ratio, (0.025, 0.975))
    axis = ("size", "images")[varied[0]]
    return (
        f"{len(x)} cells, {seeds} seed{'s' * (seeds > 1)} at each lr): if the exponent of {axis} "
        f"is {exponents[0]:g}, 95% of studies find {low:.2f} to {high:.2f}, and predict the "
        f"largest {axis} within {100 * (off[0] - 1):+.0f} to {100 * (off[1] - 1):+.0f}% (assumed: "
        f"floor {FLOOR:g}, gain {gains[0]:g}, noise of {100 * NOISE:g}% per run, no lr to choose"
    )
