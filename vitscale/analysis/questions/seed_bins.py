"""The histogram of errors over seeds as a table: counts per bin, and those expected of a
Gaussian.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy

from vitscale.analysis import estimates
from vitscale.analysis.questions import seeds
from vitscale.analysis.results import Results
from vitscale.analysis.stats.spread import NO_SPREAD

COLUMNS = (
    "arm",
    "evaluation",
    "lower",
    "upper",
    "seeds",
    "expected_seeds",
    "expected_seeds_low",
    "expected_seeds_high",
)


def seed_bins(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set and bin of values: number of seeds in it, and the number
    expected of a Gaussian with the mean and sd of seed_statistics.

    In 95% of samples from the Gaussian, the count of that bin is between `expected_seeds_low` and
    `expected_seeds_high`. No rows for fewer than two seeds, or seeds of equal values.
    """
    tables = [
        _counted(
            estimates.errors(seeds.draws_of(results.trials, arm), column),
            seeds.rounding_images(results.study, name),
        ).assign(arm=arm, evaluation=name)
        for arm in results.study.arms
        for name, column in estimates.evaluations(results.study).items()
    ]
    table = pd.concat(tables, ignore_index=True)[list(COLUMNS)]
    table.attrs["decimals"] = 2
    return table


def _counted(values: np.ndarray, images: int | None) -> pd.DataFrame:
    if len(values) < 2 or np.ptp(values) < NO_SPREAD:
        return pd.DataFrame(columns=list(COLUMNS[2:]), dtype=float)
    edges = bins(values, images)
    fitted = scipy.stats.norm(float(values.mean()), float(values.std(ddof=1)))
    share = np.diff(fitted.cdf(edges))
    low, high = (scipy.stats.binom.ppf(tail, len(values), share) for tail in (0.025, 0.975))
    numbers = (
        edges[:-1],
        edges[1:],
        np.histogram(values, edges)[0],
        len(values) * share,
        low,
        high,
    )
    return pd.DataFrame(dict(zip(COLUMNS[2:], numbers, strict=True)))


def bins(values: np.ndarray, images: int | None) -> np.ndarray:
    """Edges for a histogram of (n,) values: the rule of Freedman and Diaconis, at least 5 bins.

    With the number of images, for errors in percent, widths are whole multiples of one image and
    edges are between two counts. Other bins would contain unequal numbers of possible values, which
    produces a comb that is not in the data.
    """
    low, high = float(values.min()), float(values.max())
    spread = float(np.subtract(*np.percentile(values, [75, 25]))) or (high - low) / 2
    width = min(2 * spread / len(values) ** (1 / 3), (high - low) / 5)
    if not images:
        return np.linspace(low, high, 1 + int(np.ceil((high - low) / width)))
    step = 100 / images
    width = step * max(1, round(width / step))
    start = low - step / 2
    return start + width * np.arange(2 + int((high - start) / width))
