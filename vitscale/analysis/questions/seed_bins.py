"""The histogram of a metric over seeds, and a fitted Gaussian (H. Touvron's thesis, 2022, Figure
6.8).
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis import estimates
from vitscale.analysis.columns import ends, row_of, two_decimals
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions.seeds import (
    draws_of,
    rounding_images,
    samples,
    seed_normality,
    seed_statistics,
)
from vitscale.analysis.report.layout import (
    COLORS,
    STYLE,
    axis_label_on,
    finish,
    legends_below,
    placeholder,
    rows_of_axes,
)
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.report.tooltips import arm_texts, describe
from vitscale.analysis.results import Results
from vitscale.analysis.stats.spread import NO_SPREAD
from vitscale.plan.metrics import Metric

COLUMNS = ["arm", "evaluation", "lower", "upper", "seeds", *ends("expected_seeds")]


def seed_bins(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set and bin of values: number of seeds in it, and the number
    expected of a Gaussian with the mean and sd of seed_statistics.

    In 95% of samples from the Gaussian, the count of that bin is between `expected_seeds_low` and
    `expected_seeds_high`. No rows for fewer than two seeds, or seeds of equal values.
    """
    tables = [
        _counted(sample.values, rounding_images(results.study, sample.evaluation)).assign(
            arm=sample.arm, evaluation=sample.evaluation
        )
        for sample in samples(results)
    ]
    return two_decimals(pd.concat(tables, ignore_index=True)[COLUMNS])


def _counted(values: np.ndarray, images: int | None) -> pd.DataFrame:
    if len(values) < 2 or np.ptp(values) < NO_SPREAD:
        return pd.DataFrame(columns=COLUMNS[2:], dtype=float)
    edges = bins(values, images)
    fitted = scipy.stats.norm(float(values.mean()), float(values.std(ddof=1)))
    share = np.diff(fitted.cdf(edges))
    low, high = (scipy.stats.binom.ppf(tail, len(values), share) for tail in (0.025, 0.975))
    seeds = np.histogram(values, edges)[0]
    numbers = (edges[:-1], edges[1:], seeds, len(values) * share, low, high)
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


@matplotlib.rc_context(STYLE)
def seed_histogram(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.8: the final metric over seeds and a fitted Gaussian, a
    column per evaluation set.

    Whiskers: between them lies the count of that bin in 95% of samples from the fitted Gaussian.
    Bins of a share of images are whole numbers of images wide. A Shapiro-Wilk p above 5% does not
    show that the distribution is normal.
    """
    columns = estimates.evaluations(results.study)
    figure, grid = rows_of_axes(
        len(results.study.arms), len(columns), 2.6 if results.study.published else 1.9
    )
    drawn, legends = False, []
    for line, arm in zip(grid, results.study.arms, strict=True):
        for ax, name in zip(line, columns, strict=True):
            legends.append(_histogram(ax, results, arm, name))
            if results.study.published:
                drawn |= published.draw_published_seed_histogram(ax, results, arm, name)
        line[0].set_ylabel("number of seeds")
    legends_below(list(grid.flat), legends)
    return finish(
        figure,
        (
            "Curve: Gaussian with the mean and sd (ddof=1) of the finished seeds. Dots and "
            "whiskers: its expected count in each bin, and 95% of samples.\nDashed: the reference "
            "run, which is not a draw. "
            f"A Gaussian is cut at {results.metric.text(0.0, 0)}. p: Shapiro-Wilk; a large p is no "
            "evidence for a Gaussian."
        )
        + published.note(results.study, "seed_histogram", drawn),
    )


def _histogram(ax: Axes, results: Results, arm: str, name: str) -> list[Line2D]:
    """Returns the entries of a legend."""
    ax.set_xlabel(axis_label_on(results.study, name))
    ax.set_title(f"{arm}, {estimates.describe(draws_of(results.trials, arm))}", fontsize=9)
    table = results.once(seed_bins)
    table = table[(table["arm"] == arm) & (table["evaluation"] == name)]
    if table.empty:
        placeholder(ax, "no spread to show")
        return []
    row, normality = (
        row_of(results.once(table_of_seeds), arm=arm, evaluation=name)
        for table_of_seeds in (seed_statistics, seed_normality)
    )
    curve = _gaussian(ax, table, float(row["mean"]), float(row["sd"]))
    describe(curve, results.once(arm_texts)[arm])
    _bars(ax, table)
    label = _fit_label(row, normality["shapiro_p"], results.metric)
    handles = [Line2D([], [], color=COLORS[1], label=label)]
    reference = float(row["reference"])
    if np.isfinite(reference):
        ax.axvline(reference, color="black", linestyle="--", linewidth=1.2)
        label = f"reference {results.metric.number(reference, 2)}, z = {row['reference_z']:+.1f}"
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1.2, label=label))
    return handles


def _bars(ax: Axes, table: pd.DataFrame) -> None:
    """Counted seeds as bars, expected ones as dots with the range of 95% of samples."""
    low, high = (table[end].to_numpy(dtype=float) for end in ("lower", "upper"))
    centers, edges = (low + high) / 2, [*low, high[-1]]
    bar_style: dict[str, Any] = {"color": COLORS[0], "alpha": 0.35, "edgecolor": "white"}
    ax.hist(centers, edges, weights=table["seeds"].to_numpy(dtype=float), zorder=2, **bar_style)
    expected, fewest, most = lines.ends(table, "expected_seeds")
    lines.whiskers(ax, centers, expected, fewest, most, COLORS[1], size=0)
    ax.plot(centers, expected, "o", markersize=2.5, color=COLORS[1], zorder=4)


def _gaussian(ax: Axes, table: pd.DataFrame, mean: float, sd: float) -> Line2D:
    """The density of a Gaussian as seeds per bin, from 3 sd below to 3 sd above its mean, cut at 0,
    the lower bound of every metric.
    """
    low, high = table["lower"].min(), table["upper"].max()
    x = np.linspace(max(min(low, mean - 3 * sd), 0.0), max(high, mean + 3 * sd), 200)
    width = float(table["upper"].iloc[0] - table["lower"].iloc[0])
    density = np.exp(-(((x - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
    (curve,) = ax.plot(x, table["seeds"].sum() * width * density, color=COLORS[1], zorder=3)
    return curve


def _fit_label(row: pd.Series, p: float, metric: Metric) -> str:
    mean, sd = (with_ends(row, key, lambda x: metric.number(x, 2)) for key in ("mean", "sd"))
    p_text = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    return f"mean {mean}, sd {sd}\nShapiro-Wilk p {p_text}"
