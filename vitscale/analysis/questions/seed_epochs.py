"""The spread over seeds by epoch, and what early values say about final ones (H. Touvron's thesis,
2022, Figures 6.9 and 6.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.columns import ends, named, two_decimals
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.questions.seeds import draws_of
from vitscale.analysis.report.layout import (
    COLORS,
    GREY,
    STYLE,
    axis_label,
    epoch_axis,
    finish,
    placeholder,
    rows_of_axes,
)
from vitscale.analysis.report.tooltips import arm_texts, describe, trial_texts
from vitscale.analysis.results import Results
from vitscale.analysis.stats import correlation
from vitscale.plan.metrics import Metric

# of the training: epochs 150, 250 and 290 of 300, as in the thesis' Figure 6.10
SNAPSHOTS = (1 / 2, 5 / 6, 29 / 30)
COLUMNS = [
    *("arm", "evaluation", "epoch", "n"),
    *ends("mean"),
    *("sd", "min", "max"),
    *ends("rank_correlation"),
]


def seed_epochs(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set and epoch: mean, sd (ddof=1), min and max over finished
    seeds.

    `rank_correlation` is Spearman's between the value at that epoch and the final one of the same
    seed (Bonett & Wright's interval, each by itself; thesis, Figures 6.9 and 6.10). An interval
    that contains 0 does not show that early values are uninformative, only that this number of
    seeds does not show that they are informative. One above 0 does not show that stopping the worse
    seeds early pays: that requires a rule and its costs.
    """
    rows: list[dict[str, object]] = []
    for arm in results.study.arms:
        for name, column in estimates.evaluations(results.study).items():
            table = curves(results.rows, arm, column)
            for epoch in table.columns:
                is_last = epoch == table.columns[-1]
                row = _epoch(table[epoch], table.iloc[:, -1], is_last, results.metric)
                rows.append({"arm": arm, "evaluation": name, "epoch": int(epoch), **row})
    return two_decimals(pd.DataFrame(rows, columns=COLUMNS))


def curves(rows: pd.DataFrame, arm: str, column: str) -> pd.DataFrame:
    """Values of the arm's finished draws: one row per trial, a column per epoch."""
    if column not in rows:
        return pd.DataFrame()
    draws = rows[(rows["arm"] == arm) & rows["point"].notna() & (rows["status"] == "finished")]
    table = draws.pivot(index="trial_id", columns="epoch", values=column)
    return table.astype(float).dropna(axis=1)


def _epoch(values: pd.Series, final: pd.Series, is_last: bool, metric: Metric) -> dict[str, object]:
    """Numbers of one epoch; the last one has no correlation with itself."""
    x, y = values.to_numpy(), final.to_numpy()
    return {
        "n": len(x),
        **named("mean", estimates.value_interval(x, metric)),
        "sd": float(np.std(x, ddof=1)) if len(x) > 1 else np.nan,
        "min": float(x.min()),
        "max": float(x.max()),
        **named("rank_correlation", (np.nan,) * 3 if is_last else correlation.spearman(x, y)),
    }


@matplotlib.rc_context(STYLE)
def seed_curves(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.9: mean, sd, lowest and highest value over seeds in every
    epoch.
    """
    figure, grid = rows_of_axes(len(results.study.arms), 2, 2.8)
    drawn = False
    table = results.once(seed_epochs)
    first = next(iter(estimates.evaluations(results.study)))
    for line, arm in zip(grid, results.study.arms, strict=True):
        of_arm = table[(table["arm"] == arm) & (table["evaluation"] == first)]
        title = f"{arm}, {estimates.describe(draws_of(results.trials, arm))}"
        _spread(line, of_arm, title, results.once(arm_texts)[arm])
        if results.study.published:
            drawn |= published.draw_published_seed_curves(line, of_arm)
        line[0].set_ylabel(axis_label(results.study))
    return finish(
        figure,
        "Over the seeds that finished. Dark: mean ± sd (ddof=1), a spread and no interval; "
        "light: lowest to highest." + published.note(results.study, "seed_curves", drawn),
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
    table = results.once(seed_epochs)
    first, column = next(iter(estimates.evaluations(results.study).items()))
    for line, arm in zip(grid, results.study.arms, strict=True):
        _snapshots(line[:-1], curves(results.rows, arm, column), results)
        of_arm = table[(table["arm"] == arm) & (table["evaluation"] == first)]
        _rank_curve(line[-1], of_arm, results.once(arm_texts)[arm])
        line[0].set_ylabel(f"{arm}\nfinal {axis_label(results.study)}")
        population = estimates.describe(draws_of(results.trials, arm))
        line[0].set_title(population, fontsize=8.5, loc="left")
    return finish(
        figure,
        "A dot is a seed that finished; darker: several. Right: rank correlation (Spearman) "
        "with the final value, 95% band." + published.note(results.study, "seed_intermediate"),
    )


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
        band: dict[str, Any] = {"color": COLORS[0], "linewidth": 0}
        ax.fill_between(x, part["min"], part["max"], alpha=0.15, **band)
        ax.fill_between(x, mean - sd, mean + sd, alpha=0.3, **band)
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
        look: dict[str, Any] = {"color": COLORS[0], "alpha": 0.5, "markersize": 4}
        (dots,) = ax.plot(table.iloc[:, place], final, "o", markeredgewidth=0, **look)
        describe(dots, [texts[trial_id] for trial_id in table.index])
        ax.set_xlabel(f"{metric.label} at epoch {table.columns[place]:.0f} ({metric.unit})")


def _rank_curve(ax: Axes, table: pd.DataFrame, said: str) -> None:
    x, (rho, low, high) = table["epoch"].to_numpy(float), lines.ends(table, "rank_correlation")
    ax.fill_between(x, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
    (curve,) = ax.plot(x, rho, color=COLORS[0])
    describe(curve, said)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set(xlabel="epoch", ylabel="rank correlation", ylim=(-1, 1))
    if len(epochs := x[np.isfinite(rho)]):  # the last epoch has no correlation with itself
        epoch_axis(ax, epochs.max(), nbins=5)
