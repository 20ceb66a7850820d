"""The distribution over seeds in four figures (H. Touvron's thesis, 2022, Figures 6.7 to 6.10)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis import estimates
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions import seed_epochs, seeds
from vitscale.analysis.questions.seed_bins import seed_bins
from vitscale.analysis.report.layout import (
    COLORS,
    GREY,
    STYLE,
    axis_label,
    axis_label_on,
    epoch_axis,
    finish,
    legends_below,
    placeholder,
    rows_of_axes,
)
from vitscale.analysis.report.tooltips import arm_texts, describe, trial_texts
from vitscale.analysis.results import Results

# of the training: epochs 150, 250 and 290 of 300, as in the thesis' Figure 6.10
SNAPSHOTS = (1 / 2, 5 / 6, 29 / 30)


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


@matplotlib.rc_context(STYLE)
def seed_curves(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.9: mean, sd, lowest and highest value over seeds in every
    epoch.
    """
    figure, grid = rows_of_axes(len(results.study.arms), 2, 2.8)
    drawn = False
    table = results.once(seed_epochs.seed_epochs)
    first = next(iter(estimates.evaluations(results.study)))
    for line, arm in zip(grid, results.study.arms, strict=True):
        of_arm = table[(table["arm"] == arm) & (table["evaluation"] == first)]
        title = f"{arm}, {_population(results.trials, arm)}"
        _spread(line, of_arm, title, results.once(arm_texts)[arm])
        if results.study.published:
            drawn |= published.draw_published_seed_curves(line, results, arm)
        line[0].set_ylabel(axis_label(results.study))
    return finish(
        figure,
        (
            "Over the seeds that finished. Dark: mean ± sd (ddof=1), a spread and no interval; "
            "light: lowest to highest."
        )
        + published.note(results.study, "seed_curves", drawn),
    )


@matplotlib.rc_context(STYLE)
def seed_intermediate(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.10: does the intermediate value predict the final one?

    Three epochs against the last, and Spearman's rank correlation with the final value in every
    epoch, each with its own 95% interval (Bonett & Wright 2000). A band that reaches 0 does not
    show that early values say nothing; one that stays above 0 does not show that stopping the seeds
    that are behind pays.
    """
    figure, grid = rows_of_axes(len(results.study.arms), len(SNAPSHOTS) + 1, 2.7)
    table = results.once(seed_epochs.seed_epochs)
    first, column = next(iter(estimates.evaluations(results.study).items()))
    for line, arm in zip(grid, results.study.arms, strict=True):
        _snapshots(line[:-1], seed_epochs.curves(results.rows, arm, column), results)
        of_arm = table[(table["arm"] == arm) & (table["evaluation"] == first)]
        _rank_curve(line[-1], of_arm, results.once(arm_texts)[arm])
        line[0].set_ylabel(f"{arm}\nfinal {axis_label(results.study)}")
        line[0].set_title(_population(results.trials, arm), fontsize=8.5, loc="left")
    return finish(
        figure,
        (
            "A dot is a seed that finished; darker: several. Right: rank correlation (Spearman) "
            "with the final value, 95% band."
        )
        + published.note(results.study, "seed_intermediate"),
    )


def _population(outcomes: pd.DataFrame, arm: str) -> str:
    return estimates.describe(seeds.draws_of(outcomes, arm))


def _histogram(ax: Axes, results: Results, arm: str, name: str) -> list[Line2D]:
    """Returns the entries of a legend."""
    ax.set_xlabel(axis_label_on(results.study, name))
    ax.set_title(f"{arm}, {_population(results.trials, arm)}", fontsize=9)
    table = results.once(seed_bins)
    table = table[(table["arm"] == arm) & (table["evaluation"] == name)]
    if table.empty:
        placeholder(ax, "no spread to show")
        return []
    row = _row_of(results.once(seeds.seed_statistics), arm=arm, evaluation=name)
    curve = _gaussian(ax, table, float(row["mean"]), float(row["sd"]))
    describe(curve, results.once(arm_texts)[arm])
    _bars(ax, table)
    handles = [Line2D([], [], color=COLORS[1], label=_fit_label(results, arm, name))]
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


def _fit_label(results: Results, arm: str, name: str) -> str:
    row = _row_of(results.once(seeds.seed_statistics), arm=arm, evaluation=name)
    (mean, low, high), (sd, sd_low, sd_high) = (
        [row[f"{key}{end}"] for end in ("", "_low", "_high")] for key in ("mean", "sd")
    )
    number = results.metric.number
    p = _row_of(results.once(seeds.seed_normality), arm=arm, evaluation=name)["shapiro_p"]
    return (
        f"mean {number(mean, 2)} [{number(low, 2)}, {number(high, 2)}], "
        f"sd {number(sd, 2)} [{number(sd_low, 2)}, {number(sd_high, 2)}]\n"
        f"Shapiro-Wilk p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
    )


def _row_of(table: pd.DataFrame, **labels: str) -> pd.Series:
    """The only row with these labels."""
    (row,) = (
        row
        for _, row in table[(table[list(labels)] == list(labels.values())).all(axis=1)].iterrows()
    )
    return row


def _cloud(ax: Axes, results: Results, arm: str, pair: tuple[str, str]) -> bool:
    """Returns whether numbers of the thesis are drawn behind the cloud."""
    columns = [estimates.evaluations(results.study)[name] for name in pair]
    x, y = (estimates.errors(seeds.draws_of(results.trials, arm), column) for column in columns)
    ax.set(
        **dict(
            zip(("xlabel", "ylabel"), (axis_label_on(results.study, s) for s in pair), strict=True)
        )
    )
    ax.set_title(f"{arm}, {_population(results.trials, arm)}", fontsize=9)
    table = results.once(seeds.seed_correlation)
    row = _row_of(table, arm=arm, first=pair[0], second=pair[1])
    if np.isnan(row["pearson"]):
        placeholder(ax, "too few seeds, or no spread")
        return False
    values, inverse, counts = np.unique(
        np.column_stack([x, y]), axis=0, return_inverse=True, return_counts=True
    )
    dots = ax.scatter(
        values[:, 0],
        values[:, 1],
        s=18 * counts,
        color=COLORS[0],
        alpha=0.5,
        linewidths=0,
        zorder=3,
    )
    seed = estimates.finished(seeds.draws_of(results.trials, arm))["seed"].astype(str)
    same = seed.groupby(inverse.ravel())
    describe(dots, [f"{arm}: seed {', '.join(of_dot)}" for _, of_dot in same])
    statistics = results.once(seeds.seed_statistics)
    reference = [_row_of(statistics, arm=arm, evaluation=name)["reference"] for name in pair]
    ax.plot(*[[value] for value in reference], "*", color=COLORS[1], markersize=11, zorder=4)
    (r, *r_ends), (rho, *rho_ends) = (
        [row[f"{key}{end}"] for end in ("", "_low", "_high")] for key in ("pearson", "spearman")
    )
    labels = (
        f"r = {r:.2f} [{r_ends[0]:.2f}, {r_ends[1]:.2f}]",
        f"ρ = {rho:.2f} [{rho_ends[0]:.2f}, {rho_ends[1]:.2f}]",
    )
    ax.set_title(f"{arm}, {_population(results.trials, arm)}\n{', '.join(labels)}", fontsize=9)
    return results.study.published and published.draw_published_seed_sets(ax, results, arm, pair)


def _spread(line: Sequence[Axes], table: pd.DataFrame, title: str, said: str) -> None:
    """Two axes: the whole training, and its last third at a scale of its own."""
    line[0].set_title(title, fontsize=9)
    line[1].set_title("last third", fontsize=9)
    for ax, part in zip(
        line, (table, table[table["epoch"] > table["epoch"].max() * 2 / 3]), strict=True
    ):
        ax.set_xlabel("epoch")
        if part.empty:
            placeholder(ax, "no row yet")
            continue
        epoch_axis(ax, part["epoch"].max(), part["epoch"].min())
        x, mean, sd = (part[name].to_numpy(dtype=float) for name in ("epoch", "mean", "sd"))
        ax.fill_between(
            x,
            part["min"],
            part["max"],
            color=COLORS[0],
            alpha=0.15,
            linewidth=0,
        )
        ax.fill_between(x, mean - sd, mean + sd, color=COLORS[0], alpha=0.3, linewidth=0)
        (curve,) = ax.plot(x, mean, color=COLORS[0], zorder=3)
        describe(curve, said)


def _snapshots(line: Sequence[Axes], table: pd.DataFrame, results: Results) -> None:
    if table.empty:
        for ax in line:
            placeholder(ax, "no row yet")
        return
    final, metric, texts = table.iloc[:, -1].to_numpy(), results.metric, results.once(trial_texts)
    for ax, share in zip(line, SNAPSHOTS, strict=True):
        place = max(0, min(round(share * table.shape[1]), table.shape[1] - 1) - 1)
        (dots,) = ax.plot(
            table.iloc[:, place],
            final,
            "o",
            color=COLORS[0],
            alpha=0.5,
            markersize=4,
            markeredgewidth=0,
        )
        describe(dots, [texts[trial_id] for trial_id in table.index])
        ax.set_xlabel(f"{metric.label} at epoch {table.columns[place]:.0f} ({metric.unit})")


def _rank_curve(ax: Axes, table: pd.DataFrame, said: str) -> None:
    x, rho, low, high = (
        table[name].to_numpy(dtype=float)
        for name in ("epoch", "rank_correlation", "rank_correlation_low", "rank_correlation_high")
    )
    ax.fill_between(x, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
    (curve,) = ax.plot(x, rho, color=COLORS[0])
    describe(curve, said)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set(xlabel="epoch", ylabel="rank correlation", ylim=(-1, 1))
    if len(known := x[np.isfinite(rho)]):  # the last epoch has no correlation with itself
        epoch_axis(ax, known.max(), nbins=5)
