"""Figures of studies whose arms are single settings, trained with several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from vitscale.analysis.published import figures as published
from vitscale.analysis.repeats import bins, estimates, interaction, mistakes, seeds, stability
from vitscale.analysis.repeats.stability import Cell
from vitscale.analysis.report.layout import (
    COLORS,
    DASHES,
    MARKERS,
    STYLE,
    axis_label,
    axis_label_on,
    epoch_axis,
    finish,
    legend_below,
    metric_label,
    num_columns,
    panel_grid,
    placeholder,
    share_y,
)
from vitscale.analysis.report.tooltips import arm_texts, describe, trial_texts
from vitscale.analysis.results import Results
from vitscale.plan.metrics import Metric

Groups = dict[Cell, pd.DataFrame]
# label, marker of Xiao et al. 2021, Figure 3
OPTIMIZERS = {"adamw": ("AdamW", "^"), "sgd": ("SGD", "v")}
SOLID: tuple[Any, ...] = ("-", "-.", ":")  # lines of the models of a panel; dashed is a copy
# of the training: epochs 150, 250 and 290 of 300, as in the thesis' Figure 6.10
SNAPSHOTS = (1 / 2, 5 / 6, 29 / 30)
WHISKER: dict[str, Any] = {"elinewidth": 1.1, "capsize": 2.5, "linestyle": "none"}


# ---- stability of optimizers and of training length


@matplotlib.rc_context(STYLE)
def optimizer_stability(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 3: the mean of the metric against the length of training, with AdamW
    and SGD, a panel per group.

    Means over the seeds that finished, with Student's 95% interval where there are several. Where
    every run of a cell diverged there is no value and the line is broken.
    """
    return _stability_figure(results, "shown")


@matplotlib.rc_context(STYLE)
def optimizer_stability_copied(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 3, by the rule of the paper: where every run diverged, the best
    result of a shorter schedule of the same model and optimizer is drawn again, hollow and with a
    dashed line.

    A hollow point was never measured.
    """
    return _stability_figure(results, "copied")


@matplotlib.rc_context(STYLE)
def training_length(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 2: the metric of each schedule above that of the model's longest, a
    panel per group.

    Differences of means over the seeds that finished, with the 95% interval of the table
    training_length.
    """
    groups = results.once(stability.cells)
    table = results.once(stability.training_length)
    members = stability.members(results.study, groups)
    figure, grid = panel_grid(
        results.study, height=2.55, num_entries=max(map(len, members.values()))
    )
    drawn = False
    for ax, (title, models) in zip(grid, members.items(), strict=True):
        for index, model in enumerate(models):
            _length_curve(ax, table[table["model"] == model], index, len(models))
        ax.axhline(0, color="#999999", linewidth=0.8)
        lengths = {epochs for model, _, epochs in groups if model in models}
        _epochs_axis(ax, lengths)
        if results.study.published:
            drawn |= published.draw_published_training_length(ax, models, sorted(lengths), MARKERS)
        ax.set_title(title)
        legend_below(
            ax, [_length_handle(groups, model, index) for index, model in enumerate(models)]
        )
    for ax in grid[:: num_columns(results.study)]:
        ax.set_ylabel(
            f"{metric_label(results.study)} above\nthat of the longest "
            f"({results.metric.difference_unit})"
        )
    return finish(
        figure,
        "Each length is a schedule of its own. Whiskers: 95% intervals over seeds;\n"
        "all points of a model share its longest runs and err together."
        + published.note(results.study, "training_length", drawn),
    )


def _stability_figure(results: Results, diverged: str) -> Figure:
    groups = results.once(stability.cells)
    members = stability.members(results.study, groups)
    pairs = {
        title: [key for key in dict.fromkeys(key[:2] for key in groups) if key[0] in models]
        for title, models in members.items()
    }
    figure, grid = panel_grid(results.study, height=2.75, num_entries=max(map(len, pairs.values())))
    drawn = False
    for ax, (title, keys) in zip(grid, pairs.items(), strict=True):
        models = members[title]
        keys = sorted(keys, key=lambda key: (models.index(key[0]), key[1]))
        for place, key in enumerate(keys):
            _stability_curve(
                ax, results, key, models.index(key[0]), _aside(place, len(keys)), diverged
            )
        for line, key in enumerate(_with_diverged(groups, keys)):
            aside, color = (
                _aside(keys.index(key), len(keys)),
                COLORS[models.index(key[0]) % len(COLORS)],
            )
            for cell in _lengths(groups, key):
                _mark_diverged(ax, np.log2(cell[2]) + aside, groups[cell], color, line)
        _epochs_axis(ax, {epochs for model, _, epochs in groups if model in models})
        if results.study.published:
            drawn |= published.draw_published_optimizer_stability(
                ax, models, is_last=ax is grid[-1]
            )
        ax.set_title(title)
        legend_below(ax, [_stability_handle(groups, key, models.index(key[0])) for key in keys])
    for ax in grid[:: num_columns(results.study)]:
        ax.set_ylabel(axis_label(results.study))
        ax.yaxis.set_major_locator(
            MaxNLocator(8, steps=[1, 2, 5, 10])
        )  # as many ticks at any height, or the layout would not settle
    num_marked = max(len(_with_diverged(groups, keys)) for keys in pairs.values())
    if num_marked:
        _make_room(grid, num_marked)
    marks = "× above the line at the top, without a value: how many of the runs diverged."
    rule = (
        " Hollow and dashed: all diverged, copied from the best shorter schedule."
        if diverged == "copied"
        else ""
    )
    return finish(
        figure,
        "Means of finished runs with 95% intervals over seeds, moved sideways to be told apart.\n"
        f"{marks if num_marked else 'No run diverged.'}{rule}"
        + published.note(results.study, "optimizer_stability", drawn),
    )


def _lengths(groups: Groups, key: tuple[str, str]) -> list[Cell]:
    return [cell for cell in groups if cell[:2] == key]


def _with_diverged(groups: Groups, keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The curves with a diverged run: each needs a line of marks above the curves."""
    return [
        key
        for key in keys
        if any((groups[cell]["status"] == "diverged").any() for cell in _lengths(groups, key))
    ]


def _stability_curve(
    ax: Axes, results: Results, key: tuple[str, str], index: int, aside: float, diverged: str
) -> None:
    """One model with one optimizer; x is the base-2 logarithm of epochs, moved a little aside."""
    groups = results.once(stability.cells)
    table = results.once(stability.stability_cells).set_index(["model", "optimizer", "epochs"])
    lengths = _lengths(groups, key)
    used = [
        stability.copied_from(groups, cell) if diverged == "copied" else cell for cell in lengths
    ]
    x = np.log2([cell[2] for cell in lengths]) + aside
    y, low, high = (
        table.loc[list(used)][f"mean_error_pct{end}"].to_numpy(dtype=float)
        for end in ("", "_low", "_high")
    )
    color, (_, marker) = COLORS[index % len(COLORS)], OPTIMIZERS.get(key[1], (key[1], "o"))
    is_copy = np.array([a != b for a, b in zip(lengths, used, strict=True)])
    for i in range(len(x) - 1):
        ax.plot(
            x[i : i + 2],
            y[i : i + 2],
            "--" if is_copy[i + 1] else SOLID[index % len(SOLID)],
            color=color,
            linewidth=1.5,
            zorder=3,
        )
    ax.errorbar(x, y, _ends(y, low, high), ecolor=color, zorder=4, **WHISKER)
    for hollow in (False, True):
        is_shown = is_copy == hollow
        face = "white" if hollow else color
        (marks,) = ax.plot(
            x[is_shown],
            y[is_shown],
            marker,
            color=color,
            markerfacecolor=face,
            markersize=6,
            zorder=5,
        )
        shown = [cell for cell, is_in in zip(lengths, is_shown, strict=True) if is_in]
        describe(marks, [_cell_text(results, groups[cell]) for cell in shown])


def _cell_text(results: Results, runs: pd.DataFrame) -> str:
    """The arms of a cell; one that is copied from a shorter schedule is still itself."""
    return "\n".join(results.once(arm_texts)[arm] for arm in dict.fromkeys(runs["arm"]))


def _mark_diverged(ax: Axes, x: float, runs: pd.DataFrame, color: str, line: int) -> None:
    bad = int((runs["status"] == "diverged").sum())
    if bad:
        y, edge = 0.97 - 0.055 * line, ax.get_xaxis_transform()
        ax.plot([x], [y], "x", color=color, markersize=5, transform=edge, zorder=6)
        ax.annotate(
            f"{bad}/{len(runs)}",
            (x, y),
            xycoords=edge,
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
            color=color,
        )


def _make_room(grid: Sequence[Axes], num: int) -> None:
    """Raises the top of axes that share y, so that the marks of diverged runs overlap no curve."""
    share = 0.055 * num + 0.025
    low, high = grid[0].get_ylim()
    grid[0].set_ylim(low, low + (high - low) / (1 - share))
    for ax in grid:
        ax.axhline(high, color="#999999", linewidth=0.8)


def _stability_handle(groups: Groups, key: tuple[str, str], index: int) -> Line2D:
    name, marker = OPTIMIZERS.get(key[1], (key[1], "o"))
    label = f"{key[0]} {name}\n{_population_over_lengths(groups, key)}"
    return Line2D(
        [],
        [],
        color=COLORS[index % len(COLORS)],
        linestyle=SOLID[index % len(SOLID)],
        marker=marker,
        markersize=6,
        linewidth=1.5,
        label=label,
    )


def _population_over_lengths(groups: Groups, key: tuple[str, str]) -> str:
    """The population of a curve, all its lengths together."""
    lengths = _lengths(groups, key)
    return (
        f"{estimates.describe(pd.concat([groups[cell] for cell in lengths]))}, over "
        f"{len(lengths)} lengths"
    )


def _length_curve(ax: Axes, table: pd.DataFrame, index: int, num: int) -> None:
    color = COLORS[index % len(COLORS)]
    if table.empty:
        return
    y, low, high = (
        np.append(table[name].to_numpy(dtype=float), last)
        for name, last in (
            ("delta_points", 0.0),
            ("delta_points_low", np.nan),
            ("delta_points_high", np.nan),
        )
    )
    x = np.log2(np.append(table["epochs"], table["longest_epochs"].iloc[0]).astype(float)) + _aside(
        index, num
    )
    y[-1] = 0.0 if np.isfinite(y).sum() > 1 else np.nan
    (line,) = ax.plot(
        x,
        y,
        marker=MARKERS[index % len(MARKERS)],
        color=color,
        markersize=5,
        linewidth=1.5,
        zorder=4,
    )
    model, longest = table["model"].iloc[0], table["longest_epochs"].iloc[0]
    lengths = [f"{model}: {epochs} instead of {longest} epochs" for epochs in table["epochs"]]
    describe(line, [*lengths, f"{model}: {longest} epochs, the longest"])
    ax.errorbar(x, y, _ends(y, low, high), ecolor=color, zorder=3, **WHISKER)


def _length_handle(groups: Groups, model: str, index: int) -> Line2D:
    optimizer = stability.planned_optimizer(groups, model)
    name = OPTIMIZERS.get(optimizer, (optimizer, ""))[0]
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    label = f"{model} {name}\n{_population_over_lengths(groups, (model, optimizer))}"
    return Line2D([], [], color=color, marker=marker, linewidth=1.5, label=label)


def _aside(place: int, num: int) -> float:
    """A step sideways, in doublings of epochs, so that whiskers of several curves do not
    overlap.
    """
    return 0.07 * (place - (num - 1) / 2)


def _ends(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(2, n) lengths of whiskers, 0 where there is no interval."""
    return np.nan_to_num([y - low, high - y]).clip(min=0)


def _epochs_axis(ax: Axes, lengths: Iterable[int]) -> None:
    """Doublings of epochs, with a tick at each length."""
    places = np.log2(sorted(lengths))
    ax.set_xlim(places[0] - 0.4, places[-1] + 0.4)
    ax.xaxis.set_major_locator(FixedLocator(list(places)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{2**x:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("epochs")


# ---- distribution over seeds


@matplotlib.rc_context(STYLE)
def seed_histogram(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.8: the final metric over seeds and a fitted Gaussian, a
    column per evaluation set.

    Whiskers: between them lies the count of that bin in 95% of samples from the fitted Gaussian.
    Bins of a share of images are whole numbers of images wide. A Shapiro-Wilk p above 5% does not
    show that the distribution is normal.
    """
    columns = estimates.evaluations(results.study)
    figure, grid = _grid(
        len(results.study.arms), len(columns), 3.3 if results.study.published else 2.6
    )
    drawn = False
    for line, arm in zip(grid, results.study.arms, strict=True):
        for ax, name in zip(line, columns, strict=True):
            _histogram(ax, results, arm, name)
            if results.study.published:
                drawn |= published.draw_published_seed_histogram(ax, results, arm, name)
        line[0].set_ylabel("number of seeds")
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
    figure, grid = _grid(len(results.study.arms), max(len(pairs), 1), 3.4)
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
    figure, grid = _grid(len(results.study.arms), 2, 2.8)
    drawn = False
    table = results.once(seeds.seed_epochs)
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
    figure, grid = _grid(len(results.study.arms), len(SNAPSHOTS) + 1, 2.7)
    table = results.once(seeds.seed_epochs)
    first, column = next(iter(estimates.evaluations(results.study).items()))
    for line, arm in zip(grid, results.study.arms, strict=True):
        _snapshots(line[:-1], seeds.curves(results.rows, arm, column), results)
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


def _grid(lines: int, columns: int, height: float) -> tuple[Figure, np.ndarray]:
    width = min(11.0, 2.6 + 3.4 * columns)
    figure = Figure(figsize=(width, lines * height + 0.7), layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False)


def _population(outcomes: pd.DataFrame, arm: str) -> str:
    return estimates.describe(seeds.draws_of(outcomes, arm))


def _histogram(ax: Axes, results: Results, arm: str, name: str) -> None:
    ax.set_xlabel(axis_label_on(results.study, name))
    ax.set_title(f"{arm}, {_population(results.trials, arm)}", fontsize=9)
    table = results.once(bins.seed_bins)
    table = table[(table["arm"] == arm) & (table["evaluation"] == name)]
    if table.empty:
        return placeholder(ax, "no spread to show")
    row = _row_of(results.once(seeds.seed_statistics), arm=arm, evaluation=name)
    curve = _gaussian(ax, table, float(row["mean_error_pct"]), float(row["sd_points"]))
    describe(curve, results.once(arm_texts)[arm])
    _bars(ax, table)
    handles = [Line2D([], [], color=COLORS[1], label=_fit_label(results, arm, name))]
    reference = float(row["reference_error_pct"])
    if np.isfinite(reference):
        ax.axvline(reference, color="black", linestyle="--", linewidth=1.2)
        label = f"reference {results.metric.number(reference, 2)}, z = {row['reference_z']:+.1f}"
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1.2, label=label))
    legend_below(ax, handles)


def _bars(ax: Axes, table: pd.DataFrame) -> None:
    """Counted seeds as bars, expected ones as dots with the range of 95% of samples."""
    low, high = (table[f"{end}_pct"].to_numpy(dtype=float) for end in ("low", "high"))
    centers, edges = (low + high) / 2, [*low, high[-1]]
    bar_style: dict[str, Any] = {"color": COLORS[0], "alpha": 0.35, "edgecolor": "white"}
    ax.hist(centers, edges, weights=table["seeds"].to_numpy(dtype=float), zorder=2, **bar_style)
    expected, low_count, high_count = (
        table[f"expected_seeds{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high")
    )
    ax.errorbar(
        centers,
        expected,
        _ends(expected, low_count, high_count),
        fmt="o",
        markersize=2.5,
        color=COLORS[1],
        elinewidth=0.8,
        alpha=0.8,
        zorder=4,
    )


def _gaussian(ax: Axes, table: pd.DataFrame, mean: float, sd: float) -> Line2D:
    """The density of a Gaussian as seeds per bin, from 3 sd below to 3 sd above its mean, cut at 0,
    the lower bound of every metric.
    """
    low, high = table["low_pct"].min(), table["high_pct"].max()
    x = np.linspace(max(min(low, mean - 3 * sd), 0.0), max(high, mean + 3 * sd), 200)
    width = float(table["high_pct"].iloc[0] - table["low_pct"].iloc[0])
    density = np.exp(-(((x - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
    (curve,) = ax.plot(x, table["seeds"].sum() * width * density, color=COLORS[1], zorder=3)
    return curve


def _fit_label(results: Results, arm: str, name: str) -> str:
    row = _row_of(results.once(seeds.seed_statistics), arm=arm, evaluation=name)
    (mean, low, high), (sd, sd_low, sd_high) = (
        [row[f"{key}{end}"] for end in ("", "_low", "_high")]
        for key in ("mean_error_pct", "sd_points")
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
    reference = [
        _row_of(statistics, arm=arm, evaluation=name)["reference_error_pct"] for name in pair
    ]
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
        x, mean, sd = (
            part[name].to_numpy(dtype=float) for name in ("epoch", "mean_error_pct", "sd_points")
        )
        ax.fill_between(
            x,
            part["min_error_pct"],
            part["max_error_pct"],
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
    ax.axhline(0, color="#999999", linewidth=0.8)
    ax.set(xlabel="epoch", ylabel="rank correlation", ylim=(-1, 1))
    if len(known := x[np.isfinite(rho)]):  # the last epoch has no correlation with itself
        epoch_axis(ax, known.max(), nbins=5)


# ---- recipe and architecture


@matplotlib.rc_context(STYLE)
def recipe_interaction(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, section 6.3.4: the metric of architectures under each recipe, a
    panel per evaluation set.

    Means over the seeds that finished with Student's 95% interval. Lines that are not parallel are
    an interaction; lines that cross are a change of winner, if both differences are shown.
    """
    groups, columns = results.once(interaction.cells), estimates.evaluations(results.study)
    table, means = (
        results.once(make) for make in (interaction.recipe_interaction, interaction.recipe_cells)
    )
    figure, grid = _grid(1, len(columns), 3.4)
    drawn = False
    for ax, (name, column) in zip(grid[0], columns.items(), strict=True):
        of_set = means[means["evaluation"] == name]
        _crossing(ax, results, groups, of_set.set_index(["architecture", "recipe"]), column)
    share_y(grid[0])
    for ax, name in zip(grid[0], columns, strict=True):
        if results.study.published:
            drawn |= published.draw_published_recipe_interaction(ax, results, name)
        crossed = table[(table["kind"] == "interaction") & (table["evaluation"] == name)]
        ax.set_title(
            "\n".join(
                [
                    f"{results.metric.label} on {name}",
                    *(_interaction_label(row, results.metric) for _, row in crossed.iterrows()),
                ]
            ),
            fontsize=9,
        )
    grid[0][0].set_ylabel(f"{results.metric.label} ({results.metric.unit})")
    handles = [line for line in grid[0][0].lines if not str(line.get_label()).startswith("_")]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=3.2)
    return finish(
        figure,
        "Dots, beside the means: seeds. Whiskers: 95% intervals of the means. n counts the runs of "
        "both recipes." + published.note(results.study, "recipe_interaction", drawn),
    )


def _crossing(
    ax: Axes,
    results: Results,
    groups: Mapping[tuple[str, str], pd.DataFrame],
    means: pd.DataFrame,
    column: str,
) -> None:
    architectures, recipes = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    for index, architecture in enumerate(architectures):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        runs = [
            groups[architecture, recipe] for recipe in recipes if (architecture, recipe) in groups
        ]
        x = np.flatnonzero([(architecture, recipe) in groups for recipe in recipes]) + 0.08 * (
            index - (len(architectures) - 1) / 2
        )
        keys = [(architecture, recipe) for recipe in recipes if (architecture, recipe) in groups]
        means_of_architecture = means.loc[keys]
        y, low, high = (
            means_of_architecture[f"mean_error_pct{end}"].to_numpy(dtype=float)
            for end in ("", "_low", "_high")
        )
        for place, cell in zip(x, runs, strict=True):
            values, texts = estimates.errors(cell, column), results.once(trial_texts)
            (dots,) = ax.plot(
                np.full(len(values), place + 0.06 * (1 if index else -1)),
                values,
                "o",
                color=color,
                alpha=0.4,
                markersize=3.5,
                markeredgewidth=0,
            )
            describe(dots, [texts[i] for i in estimates.finished(cell)["trial_id"]])
        dashes: Any = DASHES[index % len(DASHES)]
        line_style: dict[str, Any] = {"marker": marker, "color": color, "linestyle": dashes}
        (line,) = ax.plot(x, y, markersize=6, linewidth=1.5, zorder=4, **line_style)
        describe(line, [_cell_text(results, cell) for cell in runs])
        ax.errorbar(x, y, _ends(y, low, high), ecolor=color, zorder=3, **WHISKER)
        legend_label = f"{architecture}\n{estimates.describe(pd.concat(runs))}"
        ax.plot([], [], markersize=6, linewidth=1.5, label=legend_label, **line_style)
    ax.yaxis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 5, 10])
    )  # as many ticks at any height, or the layout would not settle
    ax.set_xticks(range(len(recipes)), recipes)
    ax.set_xlim(-0.5, len(recipes) - 0.5)


def _interaction_label(row: pd.Series, metric: Metric) -> str:
    point, low, high = (row[f"difference_points{end}"] for end in ("", "_low", "_high"))
    return (
        f"interaction {metric.number(point, 2)} [{metric.number(low, 2)}, "
        f"{metric.number(high, 2)}] "
        f"{metric.difference_unit}"
        if np.isfinite(low)
        else f"interaction: {row['method']}"
    )


# ---- single images


@matplotlib.rc_context(STYLE)
def agreement(results: Results) -> Figure:
    """How often two runs agree about an image, for two seeds of each arm and for two arms: share of
    images, the share expected by chance, and error consistency (Geirhos et al. 2020).

    Intervals are about other seeds and other images. Error consistency is 0 where mistakes are
    shared only by chance, and 1 where all are shared.
    """
    table = results.once(mistakes.agreement)
    pairs = list(dict.fromkeys(zip(table["a"], table["b"], strict=True)))
    names = list(dict.fromkeys(table["evaluation"]))
    height = 1.5 + max(len(pairs), 1) * (0.35 + 0.16 * len(names))
    figure = Figure(figsize=(9.0, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, name in enumerate(names):
        aside = 0.5 * (index - (len(names) - 1) / 2) / len(names)
        of_set = table[table["evaluation"] == name]
        y = np.array([pairs.index(pair) for pair in zip(of_set["a"], of_set["b"], strict=True)])
        look: dict[str, Any] = {
            "color": COLORS[index % len(COLORS)],
            "marker": MARKERS[index % len(MARKERS)],
        }
        texts = [_pair_text(results, *pair) for pair in zip(of_set["a"], of_set["b"], strict=True)]
        dots = _dots(left, of_set, "agreement_pct", y + aside, look, f"two runs, {name}")
        describe(dots, texts)
        label = f"chance, {name}"
        chance = of_set["chance_pct"]
        left.plot(chance, y + aside, linestyle="none", markerfacecolor="w", label=label, **look)
        describe(_dots(right, of_set, "kappa", y + aside, look, ""), texts)
    left.set_yticks(range(len(pairs)), [_pair_label(table, *pair) for pair in pairs])
    left.set(ylim=(max(len(pairs), 1) - 0.5, -0.5), xlabel="images on which they agree (%)")
    right.axvline(0, color="#999999", linewidth=0.8)
    right.set(xlim=(min(right.get_xlim()[0], -0.05), 1.0), xlabel="error consistency κ")
    if table[["n_a", "n_b"]].empty or not table["agreement_pct"].notna().any():
        placeholder(left, "too few runs with\nwrong images kept")
    elif names:
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return finish(
        figure,
        "Whiskers: 95% intervals over seeds and images. Hollow: independent runs of these errors. "
        "κ = 0: mistakes are shared by chance alone; 1: all are shared.",
    )


def _dots(
    ax: Axes, table: pd.DataFrame, name: str, y: np.ndarray, look: dict[str, Any], label: str
) -> Line2D:
    x, low, high = (table[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    ax.errorbar(x, y, xerr=_ends(x, low, high), ecolor=look["color"], zorder=3, **WHISKER)
    (dots,) = ax.plot(x, y, linestyle="none", markersize=6, zorder=4, label=label, **look)
    return dots


def _pair_text(results: Results, a: str, b: str) -> str:
    """The arms of a pair; two seeds of an arm are of one."""
    return "\n".join(results.once(arm_texts)[arm] for arm in dict.fromkeys((a, b)))


def _pair_label(table: pd.DataFrame, a: str, b: str) -> str:
    row = table[(table["a"] == a) & (table["b"] == b)].iloc[0]
    if a == b:
        return f"two seeds of {a}\nn={row['n_a']}"
    return f"{a} and {b}\nn={row['n_a']}, {row['n_b']}"
