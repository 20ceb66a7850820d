"""How often two runs agree about an image, as a figure."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis.displays import lines
from vitscale.analysis.questions.mistakes import agreement
from vitscale.analysis.report.layout import GREY, STYLE, finish, not_drawn, placeholder
from vitscale.analysis.report.tooltips import describe, text_of_arms
from vitscale.analysis.results import Results


@matplotlib.rc_context(STYLE)
def agreement_figure(results: Results) -> Figure:
    """How often two runs agree about an image, for two seeds of each arm and for two arms: share of
    images, the share expected by chance, and error consistency (Geirhos et al. 2020).

    Intervals are about other seeds and other images. Error consistency is 0 where mistakes are
    shared only by chance, and 1 where all are shared. A single pair is in the table alone.
    """
    table = results.once(agreement)
    pairs = list(dict.fromkeys(zip(table["a"], table["b"], strict=True)))
    names = list(dict.fromkeys(table["evaluation"]))
    if len(pairs) == 1:
        return not_drawn("there is one pair only, whose numbers are in the table agreement.")
    height = 1.5 + max(len(pairs), 1) * (0.35 + 0.16 * len(names))
    figure = Figure(figsize=(9.0, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, name in enumerate(names):
        aside = lines.aside(index, len(names), 0.5 / len(names))
        of_set = table[table["evaluation"] == name]
        y = np.array([pairs.index(pair) for pair in zip(of_set["a"], of_set["b"], strict=True)])
        look = {**lines.look(index), "linestyle": "none"}
        texts = [text_of_arms(results, pair) for pair in zip(of_set["a"], of_set["b"], strict=True)]
        dots = _dots(left, of_set, "agreement_pct", y + aside, look, f"two runs, {name}")
        describe(dots, texts)
        label = f"chance, {name}"
        chance = of_set["chance_pct"]
        left.plot(chance, y + aside, markerfacecolor="w", label=label, **look)
        describe(_dots(right, of_set, "kappa", y + aside, look, ""), texts)
    left.set_yticks(range(len(pairs)), [_pair_label(table, *pair) for pair in pairs])
    left.set(ylim=(max(len(pairs), 1) - 0.5, -0.5), xlabel="images on which they agree (%)")
    right.axvline(0, color=GREY, linewidth=0.8)
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
    x, low, high = lines.ends(table, name)
    lines.whiskers(ax, y, x, low, high, look["color"], across=True)
    (dots,) = ax.plot(x, y, markersize=6, zorder=4, label=label, **look)
    return dots


def _pair_label(table: pd.DataFrame, a: str, b: str) -> str:
    row = table[(table["a"] == a) & (table["b"] == b)].iloc[0]
    if a == b:
        return f"two seeds of {a}\nn={row['n_a']}"
    return f"{a} and {b}\nn={row['n_a']}, {row['n_b']}"
