"""Error distribution functions as figures, which draw tables and compute nothing but places."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis.columns import interval_of
from vitscale.analysis.displays.curve_names import write_names
from vitscale.analysis.distribution.curves import ABSOLUTE, edf_curves, edf_curves_vs_best
from vitscale.analysis.distribution.forgiveness import LEAST_REFERENCES, UNTESTED
from vitscale.analysis.distribution.population import populations
from vitscale.analysis.distribution.tables import arm_comparison
from vitscale.analysis.published import figures as published
from vitscale.analysis.report.layout import (
    MAX_COLUMNS,
    STYLE,
    axis_label,
    columns_of,
    finish,
    metric_label,
    placeholder,
    style,
)
from vitscale.analysis.report.text import p_value
from vitscale.analysis.report.tooltips import arm_texts, describe
from vitscale.analysis.results import Results, panels
from vitscale.plan.metrics import Metric, fixed
from vitscale.plan.study import Study

FIRST = "#888888"  # the line of the first arm, where others are compared with it
LABELS = {1: 60, 2: 44, 3: 32}  # columns -> characters of a line below axes
WIDTHS = {1: 5.6, 2: 8.0, 3: 9.6}  # columns -> inches: text is legible in a page of 700 pixels
BAND, EDGE = 0.14, 0.5  # opacity of a band and of its edge: where bands overlap, colours mix


@matplotlib.rc_context(STYLE)
def edf_panels(results: Results) -> Figure:
    """The share of draws within x of the reference, one panel per group.

    After Xiao et al. 2021, Figure 5. The band is a simultaneous 95% band of the whole curve, with
    the noise of the references: it is widened by the 95% half-width of the reference (Student's t).
    For an arm with a single reference run, whose noise is unknown, it is conditional on the
    reference. A group of three arms or more has a panel for each but the first, which is the grey
    line. Difference of areas, interval and p are those of arm_comparison. If an arm of a group has
    no finished reference, its panels show absolute values and are marked so.
    """
    return _edf_figure(results, results.once(edf_curves), "reference")


@matplotlib.rc_context(STYLE)
def edf_panels_vs_best(results: Results) -> Figure:
    """The share of draws within x of the arm's best draw, which depends on n.

    Bands as in edf_panels, but conditional on the best draw, which is optimistic: more draws would
    find a better one and move the curve to the right.
    """
    return _edf_figure(results, results.once(edf_curves_vs_best), "best draw")


def _edf_figure(results: Results, curves: pd.DataFrame, baseline: str) -> Figure:
    """Axes for each panel of one or two arms, and for each arm but the first of a panel of more;
    those with the same baseline share the range of x, as in the paper, or those of a column if
    columns are panels.
    """
    shown = [
        (title, pair)
        for title, arms in panels(results.study).items()
        for pair in ([arms] if len(arms) < 3 else [(arms[0], arm) for arm in arms[1:]])
    ]
    titles = [title for title, _ in shown]
    columns, rows = len({*titles}), titles.count(titles[0])
    if is_table := rows > 1 and 1 < columns <= MAX_COLUMNS and rows * columns == len(shown):
        # a column for each panel, and a row for each arm but the first
        shown = [shown[column * rows + row] for row in range(rows) for column in range(columns)]
    else:
        columns = columns_of(len(shown))
        rows = -(-len(shown) // columns)
    size = WIDTHS[columns], (2.4 if is_table else 3.1) * rows + 0.5
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for ax in grid[len(shown) :]:
        ax.remove()
    tests, drawn, absolute = _tests(results, baseline), False, []
    for ax, (title, arms) in zip(grid, shown, strict=False):
        of_panel = curves[curves["panel"] == title]
        absolute.append(ABSOLUTE in of_panel["above"].to_numpy())
        used = ABSOLUTE if absolute[-1] else baseline
        _edf_panel(ax, title, arms, of_panel, results, used)
        with_published = bool(results.study.published) and used == "reference"
        shared = of_panel if is_table else curves  # a column has a range of its own
        ax.set(xlim=_range(shared, used, results.metric, with_published), ylim=(-0.02, 1.03))
        if with_published:
            drawn |= published.draw_published_edf(ax, results.study, list(arms))
    labels = {ax.get_xlabel() for ax in grid[: len(shown)]}
    for place, ax in enumerate(grid[: len(shown)]):
        text = [textwrap.fill(line, LABELS[columns]) for line in ax.get_xlabel().split("\n")]
        ax.set_xlabel("\n".join(text))
        if place + columns < len(shown) and len(labels) == 1:
            ax.set_xlabel("")  # it is that of the axes below
        if is_table and place >= columns:
            ax.set_title("")
    for ax in grid[: len(shown) : columns]:
        ax.set_ylabel("share of draws")
    name = "edf_panels" if baseline == "reference" else "edf_panels_vs_best"
    given = "" if baseline == "reference" and all(absolute) else baseline
    note = _band_note(results, given) + _test_note(results, tests, all(absolute))
    finish(figure, note + published.note(results.study, name, drawn))
    if engine := figure.get_layout_engine():
        engine.execute(figure)  # names need the size of their axes
    for ax, (title, arms), without in zip(grid, shown, absolute, strict=False):
        members = panels(results.study)[title]
        first = members[0] if len(members) > 2 else ""
        remark = _remark(tests, arms, without, first)
        _name_curves(ax, title, arms, curves, results, baseline, remark)
    return figure


def _edf_panel(
    ax: Axes,
    title: str,
    arms: Sequence[str],
    curves: pd.DataFrame,
    results: Results,
    baseline: str,
) -> None:
    study = results.study
    for arm in arms:
        curve = curves[curves["arm"] == arm]
        if len(curve):
            look = _look(study, title, arms, arm)
            _edf_curve(ax, curve, look, results.once(arm_texts)[arm])
    if curves.empty:
        placeholder(ax, "no outcome yet")
    draws = [results.once(populations)[arm] for arm in panels(study)[title]]
    absent = [d.arm for d in draws if baseline == ABSOLUTE and d.n and not len(d.references)]
    given = f"(absolute: no finished reference of {', '.join(absent)})" if absent else ""
    many = len(draws) > 2 and not study.panels  # a panel that no one named
    ax.set_title("\n".join([arms[-1] if many else title, *textwrap.wrap(given, 40)]))
    unit = study.column.metric.difference_unit
    above = {
        "reference": f"the reference ({unit})",
        "best draw": f"the best draw ({unit})\nbest of n draws: depends on n",
    }
    name = f"{metric_label(study)} above {above.get(baseline)}"
    ax.set_xlabel(axis_label(study) if baseline == ABSOLUTE else name)


def _look(study: Study, title: str, arms: Sequence[str], arm: str) -> dict[str, Any]:
    """Of an arm in axes: the first arm of a panel of three or more is thin and grey."""
    members = panels(study)[title]
    if len(members) > 2 and arm == members[0]:
        return {"color": FIRST, "linestyle": "-", "linewidth": 1.0}
    return style(members.index(arm))


def _edf_curve(ax: Axes, curve: pd.DataFrame, look: dict[str, Any], text: str) -> None:
    steps = _steps(curve, ["share"])
    (line,) = ax.step(steps["level"], steps["share"], where="post", zorder=3, **look)
    describe(line, text)
    if look["color"] == FIRST:
        return
    edges = _steps(curve, ["curve_low", "curve_high"])
    ax.fill_between(
        edges["level"],
        edges["curve_low"],
        edges["curve_high"],
        step="post",
        facecolor=(look["color"], BAND),
        edgecolor=(look["color"], EDGE),
        linewidth=0.6,
        zorder=2,
    )


def _steps(curve: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """The rows in which one of the columns changes, and the last row."""
    values = curve[names].fillna(-1.0)
    is_step = (values != values.shift()).any(axis=1) | (curve["level"] == curve["level"].max())
    return curve[is_step]


def _range(
    curves: pd.DataFrame, baseline: str, metric: Metric, with_published: bool
) -> tuple[float, float]:
    """The levels of all curves with this baseline, up to where nothing changes any more."""
    rows = curves[curves["above"] == baseline]
    if rows.empty:
        return 0.0, metric.beyond
    first, last = float(rows["level"].min()), float(rows["level"].max())
    steps = [
        _steps(curve, ["share", "curve_low", "curve_high"])["level"].iloc[:-1].max()
        for _, curve in rows.groupby(["panel", "arm"])
    ]
    changes = max(steps) + 0.06 * (max(steps) - first)
    least = 1.3 * metric.near if with_published else first + metric.within[0]
    return first, min(last, max(changes, least))


def _name_curves(
    ax: Axes,
    title: str,
    arms: Sequence[str],
    curves: pd.DataFrame,
    results: Results,
    baseline: str,
    remark: str,
) -> None:
    """Writes name, n, and what did not finish beside each curve."""
    corners, names, colors, without = [], [], [], []
    for arm in arms:
        curve = curves[(curves["panel"] == title) & (curves["arm"] == arm)]
        steps = _steps(curve, ["share"])[["level", "share"]].to_numpy(float)
        n, *others = results.once(populations)[arm].describe(baseline).split(", ")
        others = [part for part in others if not part.startswith("0 ")]
        name = "\n".join([_wrapped(f"{arm}, {n}"), *others])
        if len(steps):
            level, share = np.repeat(steps, 2, axis=0).T
            corners.append(np.stack([level[1:], share[:-1]], axis=1))
            names.append(name)
            colors.append(_look(results.study, title, arms, arm)["color"])
        else:
            without.append(name)
    write_names(ax, names, corners, colors, "\n".join([*without, *filter(None, [remark])]))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 28)


# ---- the compared statistic, and the note


def _tests(results: Results, baseline: str) -> pd.DataFrame:
    """The comparisons of pairs; none above the best draw, which no test is about."""
    pairs = results.study.pairs if baseline == "reference" else ()
    return results.once(arm_comparison) if pairs else pd.DataFrame(columns=["a", "b"])


def _remark(tests: pd.DataFrame, arms: Sequence[str], absolute: bool, first: str = "") -> str:
    """What the pair of these arms tests: the difference of areas, or which values are lower."""
    rows = tests[tests["a"].isin(arms) & tests["b"].isin(arms)].to_dict("records")
    return "\n".join(_lower(row) if absolute else _area(row, first) for row in rows)


def _area(row: Any, first: str) -> str:
    """The arm with the larger area first, as in the headline; where each panel compares an arm with
    the same `first` one, minus this one in all of them.
    """
    a, b = row["a"], row["b"]
    point, low, high = interval_of(row, "area_difference")
    if np.isnan(point):
        return ""
    if a == first if first in (a, b) else point < 0:
        a, b, point, low, high = b, a, -point, -high, -low
    value = fixed(point, 2).replace("-", "−")
    title = f"{_wrapped(f'area of {a}')}\n{_wrapped(f'− {b}: {value}')}"
    if row["area_method"] == UNTESTED:
        return f"{title}, not tested\nwith < {LEAST_REFERENCES} references"
    interval = f"[{fixed(low, 2)}, {fixed(high, 2)}]".replace("-", "−")
    return f"{title}\n{interval}, {p_value(row['area_p_holm'])}"


def _lower(row: Any) -> str:
    point, low, high = (100 * row[f"prob_a_lower{end}"] for end in ("", "_low", "_high"))
    if np.isnan(low):
        return ""
    text = f"{fixed(point, 0)}% [{fixed(low, 0)}, {fixed(high, 0)}] of pairs"
    pairs = f"{text}, {p_value(row['prob_p_holm'])}"
    return _wrapped(f"{row['a']} lower than {row['b']} in") + f"\n{pairs}"


def _band_note(results: Results, baseline: str) -> str:
    """Describes the bands and the ends of curves; `baseline` is "" if all values are absolute."""
    arms = results.once(populations).values()
    noisy = {len(draws.references) > 1 for draws in arms}
    given = ", conditional on the best draws" if baseline else ""
    if baseline == "reference":
        several = "with the references' noise" + " of two or more" * (len(noisy) > 1)
        given = f", {several if True in noisy else 'conditional on the references'}"
    metric, whole = results.metric, "of the whole curve"
    if num := results.study.num_scrambles:
        first, span = f"{metric.beyond / 10:g}", metric.apart(metric.beyond)
        whole = f"over {num} Sobol scrambles, at 0, {first}, …, {span}"
    first_arm = any(len(members) > 2 for members in panels(results.study).values())
    grey = " Grey: the first arm, with which each other is compared." * first_arm
    far = f"draws beyond {metric.apart(metric.beyond)} and " if baseline else ""
    return (
        f"Bands: 95%, {whole}{given}.{grey}\nA curve ends below 1 for {far}diverged and failed "
        "draws, which count in n."
    )


def _test_note(results: Results, tests: pd.DataFrame, absolute: bool) -> str:
    if tests.empty or not _remark(tests, tuple(results.study.arms), absolute).strip():
        return ""
    metric = results.metric
    areas = f"Areas: under the curves from 0 to {metric.apart(metric.beyond)}, 1 is all of it. "
    pairs = f"p after Holm's correction for {len(tests)} pairs" if len(tests) > 1 else ""
    if results.looks.is_plain:
        return f"\n{'' if absolute else areas}{pairs}{'.' * bool(pairs)}".rstrip()
    looks = f"{pairs or 'p'} and for all looks at the study; intervals are for this look alone."
    return f"\n{'' if absolute else areas}{looks}"
