"""Do seeds that are better on one evaluation set do better on another? (H. Touvron's thesis, 2022,
Figure 6.7)
"""

from __future__ import annotations

from itertools import combinations, groupby
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.columns import named, row_of
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions import seeds
from vitscale.analysis.questions.seeds import samples
from vitscale.analysis.report.layout import (
    COLORS,
    STYLE,
    axis_label_on,
    finish,
    placeholder,
    rows_of_axes,
)
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.report.tooltips import describe
from vitscale.analysis.results import Results
from vitscale.analysis.stats import correlation

NONE = (np.nan,) * 3
# Beyer et al. 2020 gave images of ImageNet's validation set other labels
SAME_IMAGES = {"val", "real"}


def seed_correlation(results: Results) -> pd.DataFrame:
    """One row per arm and pair of evaluation sets: correlation of the values of the same seeds.

    Pearson's r with Fisher's interval (assumes a bivariate normal, sensitive to outliers),
    Spearman's with a bootstrap interval. `rank_of_best` is the rank on the second set of the seed
    that is best on the first: the benefit of picking a seed by the first set. `shared_sd` is
    the square root of the covariance, 0 where that is negative: if both sets are samples of one
    kind of images, it is the spread over seeds on infinitely many images (Jordan 2023), which is
    less than the sd over seeds on either. Its interval is Student's, of the mean product of
    deviations. None for sets that share their images.
    """
    rows: list[dict[str, object]] = []
    for arm, of_arm in groupby(samples(results), lambda sample: sample.arm):
        for first, second in combinations(of_arm, 2):
            x, y = first.values, second.values
            images = {first.evaluation, second.evaluation}
            shared = NONE if images == SAME_IMAGES else correlation.shared_sd(x, y)
            rows.append(
                {
                    "arm": arm,
                    "first": first.evaluation,
                    "second": second.evaluation,
                    "n": len(x),
                    **named("pearson", correlation.pearson(x, y)),
                    **named("spearman", correlation.spearman_bootstrap(x, y)),
                    "rank_of_best": int(1 + (y < y[x.argmin()]).sum()) if len(x) else None,
                    **named("shared_sd", shared),
                }
            )
    return pd.DataFrame(rows, columns=None if rows else ["arm", "first", "second", "n"])


@matplotlib.rc_context(STYLE)
def seed_sets(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.7: the metric of each seed on two evaluation sets, for
    each pair of sets.

    r is Pearson's correlation with Fisher's interval, ρ Spearman's with a bootstrap interval.
    """
    columns = estimates.evaluations(results.study)
    pairs = list(combinations(columns, 2))
    figure, grid = rows_of_axes(len(results.study.arms), max(len(pairs), 1), 3.4)
    drawn = False
    for line, arm in zip(grid, results.study.arms, strict=True):
        for ax, pair in zip(line, pairs, strict=False):
            drawn |= _cloud(ax, results, arm, pair)
        if not pairs:
            placeholder(line[0], "one evaluation set only")
    return finish(
        figure,
        (
            "Dots: seeds, the area is their number. Star: the reference run, in no number. "
            "Intervals: 95%."
        )
        + published.note(results.study, "seed_sets", drawn),
    )


def _cloud(ax: Axes, results: Results, arm: str, pair: tuple[str, str]) -> bool:
    """Returns whether numbers of the thesis are drawn behind the cloud."""
    columns, draws = estimates.evaluations(results.study), seeds.draws_of(results.trials, arm)
    x, y = (estimates.errors(draws, columns[name]) for name in pair)
    xlabel, ylabel = (axis_label_on(results.study, name) for name in pair)
    title = f"{arm}, {estimates.describe(draws)}"
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, fontsize=9)
    row = row_of(results.once(seed_correlation), arm=arm, first=pair[0], second=pair[1])
    if np.isnan(row["pearson"]):
        placeholder(ax, "too few seeds, or no spread")
        return False
    values, inverse, counts = np.unique(
        np.column_stack([x, y]), axis=0, return_inverse=True, return_counts=True
    )
    style: dict[str, Any] = {"color": COLORS[0], "alpha": 0.5, "linewidths": 0, "zorder": 3}
    dots = ax.scatter(values[:, 0], values[:, 1], s=18 * counts, **style)
    seed = estimates.finished(draws)["seed"].astype(str)
    same = seed.groupby(inverse.ravel())
    describe(dots, [f"{arm}: seed {', '.join(of_dot)}" for _, of_dot in same])
    statistics = results.once(seeds.seed_statistics)
    stars = [row_of(statistics, arm=arm, evaluation=name)["reference"] for name in pair]
    ax.plot(*[[star] for star in stars], "*", color=COLORS[1], markersize=11, zorder=4)
    r, rho = (with_ends(row, name, "{:.2f}".format) for name in ("pearson", "spearman"))
    ax.set_title(f"{title}\nr = {r}, ρ = {rho}", fontsize=9)
    return results.study.published and published.draw_published_seed_sets(ax, results, arm, pair)
