"""Means of arms along a factor or field, for arms of any kind; nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis import estimates
from vitscale.analysis.arm_means import means_by_set
from vitscale.analysis.cells import cells
from vitscale.analysis.displays import lines
from vitscale.analysis.published import figures as published
from vitscale.analysis.report import layout
from vitscale.analysis.report.tooltips import arm_texts
from vitscale.analysis.results import Results, panels
from vitscale.plan import comparisons
from vitscale.plan.study import Study
from vitscale.plan.trial import conditions

ALONE = "; single runs have none"
MANY = 8  # values of an axis: more over a wide range have ticks at doublings alone


@matplotlib.rc_context(layout.STYLE)
def arm_lines(results: Results) -> Figure:
    """The mean of the metric of each arm along the axis of the study, on the first reported set: a
    line for each combination of the other factors that vary, a panel per group.

    Each arm at its own lr. Means over the runs that finished, with 95% intervals.
    """
    study, name = results.study, comparisons.sets(results.study, "reported")[0]
    groups = {title: _curves(study, arms) for title, arms in panels(study).items()}
    figure, grid = layout.panel_grid(study, height=2.9)
    rows, legends = 0, []
    for ax, (title, curves) in zip(grid, groups.items(), strict=True):
        marked, handles = _panel(ax, curves, results, name)
        rows = max(rows, marked)
        legends.append(handles)
        ax.set(title=title, xlabel=study.axis.replace("_", " "))
    layout.legends_below(grid, legends)
    lines.make_room(grid, rows)
    for ax in grid[:: layout.num_columns(study)]:
        ax.set_ylabel(layout.axis_label_on(study, name))
    single = any(len(cell.runs) == 1 for cell in results.once(cells).values())
    note = f"Dots, beside the means: runs. Whiskers: 95% intervals{ALONE * single}."
    at_edge = any(cell.at_edge for cell in results.once(cells).values())
    note += "\nHollow: the lr is at the edge of its grid." * at_edge
    note += "\n× above the line at the top: how many of the runs diverged." * (rows > 0)
    if study.published and study.printed.get(name):
        note += published.printed_note(study, "and hollow, joined")
    return layout.finish(figure, note)


def _curves(study: Study, arms: Sequence[str]) -> list[pd.Series]:
    """Of each line the values of the axis by arm, ascending; its name has those of the factors."""
    labels, curves = conditions(study), dict[str, dict[str, float]]()
    for arm in arms:
        levels = {name: labels[arm][name] for name in comparisons.lines(study)}
        texts = [v if isinstance(v, str) else f"{name} {v}" for name, v in levels.items()]
        label = ", ".join(texts) or layout.metric_label(study)
        curves.setdefault(label, {})[arm] = float(labels[arm][study.axis])
    return [pd.Series(values, name=label).sort_values() for label, values in curves.items()]


def _panel(
    ax: Axes, curves: Sequence[pd.Series], results: Results, name: str
) -> tuple[int, list[Line2D]]:
    """The lines of a panel; returns rows of crosses, one for each line of which a run diverged, and
    the entries of a legend.
    """
    study, of_arms = results.study, results.once(cells)
    column, texts = estimates.evaluations(study)[name], results.once(arm_texts)
    table = results.once(means_by_set)
    table = table[table["evaluation"] == name].set_index("arm")
    values = np.unique(np.concatenate(curves))
    ratios = values / values[0] if values[0] > 0 else np.full(2, 3.0)
    many = len(values) > MANY and ratios[-1] > MANY
    is_log = many or (len(values) > 1 and np.allclose(ratios, 2 ** np.round(np.log2(ratios))))
    step = 0.02 * float(np.ptp(np.log2(values) if is_log else values) or 1)
    rows, handles = 0, list[Line2D]()
    for index, curve in enumerate(curves):
        x, look = np.log2(curve) if is_log else curve, lines.look(index)
        shown = [of_arms[arm] for arm in curve.index]
        runs = [cell.runs for cell in shown]
        lines.Line(
            ends=lines.ends(table.loc[curve.index], "mean"),
            x=x.to_numpy() + lines.aside(index, len(curves), 0 if many else step),
            texts=[texts[arm] for arm in curve.index],
            look=look,
            hollow=np.array([cell.at_edge for cell in shown]),
            runs=lines.runs_of(results, runs, column),
            runs_aside=0.6 * step * (1 if 2 * index >= len(curves) else -1),  # away from others
        ).draw(ax)
        published.draw_printed_line(ax, study, name, x, look["marker"])
        rows += lines.crosses(ax, x, runs, rows, look["color"])
        handles.append(lines.handle_of(str(curve.name), look, runs, "arms"))
    if not table["n"].any():
        layout.placeholder(ax, "no run finished")
    margin = max(3, len(curves) / 2 + 1) * step  # lines stand beside each other
    if is_log:
        powers = np.arange(np.floor(np.log2(ratios[-1])) + 1)
        lines.doublings(ax, values[0] * 2**powers if many else values, "", margin)
        ax.set_xlim(right=np.log2(values[-1]) + margin)
    else:
        lines.ticks(ax, values, lambda x: f"{x:g}", margin)
    return rows, handles
