"""Means of arms along a factor or field, for arms of any kind; nothing is computed here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.arm_means import means_by_set
from vitscale.analysis.cells import cells
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.report.layout import (
    STYLE,
    axis_label_on,
    finish,
    legend_below,
    metric_label,
    num_columns,
    panel_grid,
    placeholder,
)
from vitscale.analysis.report.tooltips import arm_texts, trial_texts
from vitscale.analysis.results import Results, panels
from vitscale.plan import comparisons
from vitscale.plan.study import Study
from vitscale.plan.trial import conditions


@dataclass(frozen=True)
class Curve:
    """The arms of a line, ascending along the axis."""

    label: str
    arms: tuple[str, ...]
    values: np.ndarray


@matplotlib.rc_context(STYLE)
def arm_lines(results: Results) -> Figure:
    """The mean of the metric of each arm along the axis of the study, on the first reported set: a
    line for each combination of the other factors that vary, a panel per group.

    Each arm at its own lr. Means over the runs that finished, with the 95% interval where there are
    several.
    """
    study, of_arms = results.study, results.once(cells)
    name = comparisons.sets(study, "reported")[0]
    groups = {title: _curves(study, arms) for title, arms in panels(study).items()}
    figure, grid = panel_grid(study, height=2.9, num_entries=max(map(len, groups.values())))
    drawn, rows = False, 0
    for ax, (title, curves) in zip(grid, groups.items(), strict=True):
        drawn |= _panel(ax, curves, results, name)
        ax.set_title(title)
        rows = max(rows, _crosses(ax, curves, results))
    lines.make_room(grid, rows)
    for ax in grid[:: num_columns(study)]:
        ax.set_ylabel(axis_label_on(study, name))
    note = "Dots, beside the means: runs. Whiskers: 95% intervals; single runs have none."
    if any(cell.at_edge for cell in of_arms.values()):
        note += "\nHollow: the lr of the arm is at the edge of its grid."
    if rows:
        note += "\n× above the line at the top: how many of the runs diverged."
    theirs = published.printed_note(study, "and hollow, joined") if drawn else ""
    return finish(figure, note + theirs)


def _curves(study: Study, arms: Sequence[str]) -> list[Curve]:
    """Lines in the order of the arms; labels name the factors that are numbers."""
    of, names = conditions(study), comparisons.lines(study)
    members: dict[tuple[str | int | float, ...], list[str]] = {}
    for arm in arms:
        members.setdefault(tuple(of[arm][name] for name in names), []).append(arm)
    curves = []
    for key, some in members.items():
        parts = zip(names, key, strict=True)
        label = ", ".join(v if isinstance(v, str) else f"{name} {v:g}" for name, v in parts)
        ordered = sorted(some, key=lambda arm: of[arm][study.axis])
        values = np.array([of[arm][study.axis] for arm in ordered], dtype=float)
        curves.append(Curve(label or metric_label(study), tuple(ordered), values))
    return curves


def _values(curves: Collection[Curve]) -> np.ndarray:
    return np.unique(np.concatenate([curve.values for curve in curves]))


def _doubles(values: np.ndarray) -> bool:
    """Whether ascending values are powers of two apart."""
    if len(values) < 2 or values[0] <= 0:
        return False
    powers = np.log2(values / values[0])
    return bool(np.allclose(powers, np.round(powers), atol=1e-9))


def _places(curve: Curve, curves: Collection[Curve]) -> np.ndarray:
    return np.log2(curve.values) if _doubles(_values(curves)) else curve.values


def _panel(ax: Axes, curves: Sequence[Curve], results: Results, name: str) -> bool:
    """The lines of a panel; returns whether printed errors were drawn."""
    study, of_arms = results.study, results.once(cells)
    column, texts = estimates.evaluations(study)[name], results.once(arm_texts)
    table = results.once(means_by_set)
    table = table[table["evaluation"] == name].set_index("arm")
    every, drawn, handles = _values(curves), False, []
    ends = np.log2(every[[0, -1]]) if _doubles(every) else every[[0, -1]]
    step = 0.02 * float(ends[1] - ends[0] or 1)
    for index, curve in enumerate(curves):
        y, low, high = lines.ends(table.loc[list(curve.arms)], "mean")
        runs = [of_arms[arm].runs for arm in curve.arms]
        x, look = _places(curve, curves), lines.look(index)
        drawn |= published.draw_printed_line(ax, study, name, curve.arms, x, look["marker"])
        several = [of if len(of) > 1 else of[:0] for of in runs]
        lines.Line(
            x=x + lines.aside(index, len(curves), step),
            y=y,
            low=low,
            high=high,
            texts=[texts[arm] for arm in curve.arms],
            look=look,
            hollow=np.array([of_arms[arm].at_edge for arm in curve.arms]),
            runs=[lines.values_of(of, column, results.once(trial_texts)) for of in several],
            runs_aside=0.6 * step * (1 if 2 * index >= len(curves) else -1),  # away from others
        ).draw(ax)
        label = f"{curve.label}\n{estimates.describe(pd.concat(runs))}, {len(runs)} arms"
        handles.append(lines.handle(label, look))
    if not table["n"].loc[[arm for curve in curves for arm in curve.arms]].any():
        placeholder(ax, "no run finished")
    label = study.axis.replace("_", " ")
    if _doubles(every):
        lines.doublings(ax, every, label)
    else:
        lines.ticks(ax, every, lambda x: f"{x:g}", 3 * step, label)
    legend_below(ax, handles)
    return drawn


def _crosses(ax: Axes, curves: Sequence[Curve], results: Results) -> int:
    """Marks the arms of which runs diverged, a row for each line with one; returns the rows."""
    rows = 0
    for index, curve in enumerate(curves):
        ended = [estimates.counts(results.once(cells)[arm].runs) for arm in curve.arms]
        for x, of in zip(_places(curve, curves), ended, strict=True):
            if of["diverged"]:
                text = f"{of['diverged']}/{sum(of.values())}"
                lines.cross(ax, x, rows, lines.look(index)["color"], text)
        rows += any(of["diverged"] for of in ended)
    return rows
