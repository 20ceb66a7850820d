"""How often two runs agree about an image (Geirhos et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis import estimates
from vitscale.analysis.columns import ends, named, two_decimals
from vitscale.analysis.displays import lines
from vitscale.analysis.questions.mistakes import mistakes
from vitscale.analysis.report.layout import GREY, STYLE, finish, not_drawn, placeholder
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.report.tooltips import describe, text_of_arms
from vitscale.analysis.results import Results, panels
from vitscale.analysis.stats import images
from vitscale.plan.metrics import fixed

MAX_PAIRS = 6  # with a sentence each
COLUMNS = (
    *("a", "b", "evaluation", "n_a", "n_b", "images", "runs_without_bits"),
    *ends("agreement_pct"),
    "chance_pct",
    *ends("kappa"),
)


def agreement(results: Results) -> pd.DataFrame:
    """One row per evaluation set and pair of arms of a panel, or two seeds of one arm (a and b are
    equal): how often two runs agree about an image.

    `agreement_pct` is the share of images about which both runs are right or both are wrong, a mean
    over pairs of runs; `chance_pct` is that of independent runs with these errors. `kappa` is error
    consistency (Geirhos et al. 2020): 0 by chance, 1 if all mistakes are shared. Intervals are
    about other seeds and other images, by the jackknife over both; they need three seeds of one
    arm, or two of each of two. Runs of two arms at one seed are treated as any other pair. Runs of
    `runs_without_bits` finished, but their wrong images were not kept.
    """
    rows = [
        row
        for name in estimates.evaluations(results.study)
        for pair in _pairs(results)
        for row in _agreement(results, pair, name)
    ]
    return two_decimals(pd.DataFrame(rows, columns=list(COLUMNS)))


def _pairs(results: Results) -> list[tuple[str, str]]:
    """Each arm with itself, then each pair of arms of a panel."""
    of_panels = [pair for arms in panels(results.study).values() for pair in combinations(arms, 2)]
    return [*((arm, arm) for arm in results.study.arms), *dict.fromkeys(of_panels)]


def _agreement(results: Results, pair: tuple[str, str], name: str) -> Iterator[dict[str, object]]:
    """A row, if this study has wrong images at all."""
    by_cell = results.once(mistakes)
    if (pair[0], name) not in by_cell:
        return
    a, b = (by_cell[arm, name] for arm in pair)
    same = pair[0] == pair[1]
    alike = images.agreement(a.wrong, None if same else b.wrong)
    yield {
        **dict(zip(COLUMNS, (*pair, name, len(a.wrong), len(b.wrong)), strict=False)),
        "images": a.wrong.shape[1],
        "runs_without_bits": a.without + (0 if same else b.without),
        **named("agreement_pct", 100 * np.array(alike.share)),
        "chance_pct": 100 * alike.by_chance,
        **named("kappa", alike.kappa),
    }


def sentences(results: Results) -> list[str]:
    """Agreement and error consistency of each pair that has an interval."""
    table = results.once(agreement)
    table = table[table["kappa_low"].notna()]
    if len(table) > MAX_PAIRS:
        return []
    return [_sentence(row) for _, row in table.iterrows()]


def _sentence(row: pd.Series) -> str:
    who = f"Two seeds of {row['a']}" if row["a"] == row["b"] else f"{row['a']} and {row['b']}"
    share = with_ends(row, "agreement_pct", partial(fixed, decimals=1), "%")
    kappa = with_ends(row, "kappa", partial(fixed, decimals=2))
    return (
        f"{who} agree on {share} of the images of {row['evaluation']}, by chance on "
        f"{row['chance_pct']:.1f}%: error consistency {kappa}."
    )


ANSWERS = {"agreement": sentences}


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
