"""Is what is better on one evaluation set better on another? A line over arms (H. Touvron's thesis,
2022, Figure 6.11).
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import scipy
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.report.layout import STYLE, axis_label_on, finish, rows_of_axes
from vitscale.analysis.report.tooltips import describe, text_of_arms
from vitscale.analysis.results import Results

MIN_ARMS = 4  # a line through fewer fits whatever they are
LINE = ("intercept", "intercept_low", "intercept_high", "slope", "slope_low", "slope_high")
COLUMNS = ["evaluation", "arm", "n", "x", "y", "residual", *LINE]


def sets_regression(results: Results) -> pd.DataFrame:
    """One row per further evaluation set and arm: the mean of the metric on the first set (x) and
    on that one (y), and y = intercept + slope x over the arms, by least squares.

    A residual below 0: better on that set than the first lets expect. Intervals are Student's with
    two df less than arms, and are about other arms, as if these were drawn at random; x has the
    noise of its seeds, which makes a slope flatter. Fewer than 4 arms have no line.
    """
    first, *others = estimates.evaluations(results.study).items()
    rows: list[dict[str, object]] = []
    for name, column in others:
        of_arms = {
            str(arm): [estimates.errors(runs, column_name) for column_name in (first[1], column)]
            for arm, runs in results.trials.groupby("arm", sort=False)
        }
        of_arms = {arm: values for arm, values in of_arms.items() if all(map(len, values))}
        x, y = (np.array([values[i].mean() for values in of_arms.values()]) for i in (0, 1))
        line = _line(x, y)
        left = y - line["intercept"] - line["slope"] * x
        for (arm, values), *numbers in zip(of_arms.items(), x, y, left, strict=True):
            row = (name, arm, len(values[0]), *numbers)
            rows.append(dict(zip(COLUMNS, row, strict=False)) | line)
    return pd.DataFrame(rows, columns=COLUMNS)


def _line(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Intercept and slope with their 95% intervals; NaN without a line."""
    if len(x) < MIN_ARMS or np.ptp(x) < estimates.NO_SPREAD:
        return dict.fromkeys(LINE, np.nan)
    fit = scipy.stats.linregress(x, y)
    half = scipy.stats.t.ppf(0.975, len(x) - 2) * np.array([0, -1, 1])
    ends = *(fit.intercept + half * fit.intercept_stderr), *(fit.slope + half * fit.stderr)
    return dict(zip(LINE, map(float, ends), strict=True))


def sentences(results: Results) -> list[str]:
    """The slope on each set, and the arm farthest from the line to either side."""
    first, said = next(iter(estimates.evaluations(results.study))), []
    for name, rows in results.once(sets_regression).groupby("evaluation", sort=False):
        row, text = rows.iloc[0], f"{name} against {first} over {len(rows)} arms:"
        if np.isnan(row["slope"]):
            said.append(f"{text} no line.")
            continue
        text += f" slope {row['slope']:.2f} [{row['slope_low']:.2f}, {row['slope_high']:.2f}]"
        far = (rows.loc[rows["residual"].agg(end)] for end in ("idxmin", "idxmax"))
        apart = (
            f"{point['arm']} {results.metric.number(point['residual'], 2, '+')}" for point in far
        )
        said.append(f"{text}; from the line {' and '.join(apart)}.")
    return said


ANSWERS = {"sets_regression": sentences}


@matplotlib.rc_context(STYLE)
def sets_regression_figure(results: Results) -> Figure:
    """H. Touvron's thesis, 2022, Figure 6.11: the metric of each arm on a further evaluation set
    against that on the first one, with the line over the arms.
    """
    table = results.once(sets_regression)
    first = next(iter(estimates.evaluations(results.study)))
    names = list(dict.fromkeys(table["evaluation"]))
    figure, ((*grid,),) = rows_of_axes(1, max(len(names), 1), 3.8)
    for ax, name in zip(grid, names, strict=False):
        rows = table[table["evaluation"] == name]
        dots = ax.scatter(rows["x"], rows["y"], s=14)
        describe(dots, [text_of_arms(results, [arm]) for arm in rows["arm"]])
        for _, row in rows.iterrows():
            ax.annotate(
                row["arm"], (row["x"], row["y"]), (4, 3), textcoords="offset points", fontsize=6
            )
        ends = np.array([rows["x"].min(), rows["x"].max()])
        ax.plot(ends, rows["intercept"].iloc[0] + rows["slope"].iloc[0] * ends, lw=1)
        ax.set(
            xlabel=axis_label_on(results.study, first), ylabel=axis_label_on(results.study, name)
        )
    return finish(figure, "Dots: means of the runs of an arm that finished. Line: least squares.")
