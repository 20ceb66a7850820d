"""How many seeds an arm needs to show a difference."""

from __future__ import annotations

from itertools import product

import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.columns import ends
from vitscale.analysis.questions.seeds import samples
from vitscale.analysis.results import Results
from vitscale.analysis.stats.spread import NO_SPREAD, seeds_needed

DIFFERENCES = (0.1, 0.2, 0.5, 1.0, 2.0)  # of a quarter of `near`: a point of top-1 error
POWERS = (0.8, 0.9)


def seed_power(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set, difference and power: seeds per arm needed to compare two
    arms.

    For a two-sided t test at 5% of two arms that both have this arm's sd, which is an assumption
    about the other arm. The range reflects the interval of the sd. It is about finding a difference
    on these images.

    `pairs_at_half` is the number of seeds that both arms share, for a paired t test, if their
    values at one seed have correlation 1/2 and equal sds. That correlation is assumed and not
    measured, since the study has one arm: at 1/2 the difference within a pair varies as much as one
    run does. Runs of two models with one seed share the order of samples and the augmentation, but
    no weights. If they are uncorrelated, the number of pairs is that of seeds_per_arm, or one more.
    """
    rows = []
    for sample in samples(results):
        spread = estimates.sd_interval(sample.values)
        for share, power in product(DIFFERENCES, POWERS):
            difference = results.metric.within[0] * share
            row = {"difference": difference, "power_pct": 100 * power}
            rows.append(sample.labels | row | _needed(difference, spread, power))
    return pd.DataFrame(rows).astype(dict.fromkeys(NEEDED, "Int64"))


NEEDED = (*ends("seeds_per_arm"), "pairs_at_half")


def _needed(
    difference: float, spread: tuple[float, float, float], power: float
) -> dict[str, int | None]:
    if not spread[0] > NO_SPREAD:
        return dict.fromkeys(NEEDED)
    numbers = [seeds_needed(difference, sd, power) for sd in spread]
    paired = seeds_needed(difference, spread[0], power, correlation=0.5)
    return dict(zip(NEEDED, (*numbers, paired), strict=True))
