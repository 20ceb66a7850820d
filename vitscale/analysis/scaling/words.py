"""The words and numbers of a scaling study: what the law is, whether its forecast held, what is not
identified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from vitscale.analysis import comparisons, estimates, registry
from vitscale.analysis import repeats as repeat_words
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import about
from vitscale.analysis.results import Results
from vitscale.analysis.scaling import compute, tables
from vitscale.analysis.scaling.compute import scaling_crossing_at_cost, scaling_optimum
from vitscale.analysis.scaling.tables import (
    grid,
    reported,
    scaling_cells,
    scaling_crossing,
    scaling_fit,
    scaling_forecast,
    widest,
)
from vitscale.plan.metrics import Metric
from vitscale.plan.questions import FAR
from vitscale.plan.study import Study

MISFIT_ALPHA = 0.05
MAX_NAMES = 6  # of cells in a sentence
OPTIMUM = {"law": "Compute-optimal size", "cells": "Best of the sizes tried"}


def headline(results: Results) -> list[str]:
    """How the runs ended, then the law, its forecast and the crossing of the study's tables."""
    asked = [(name, ANSWERS[name]) for name in ANSWERS if name in results.study.tables]
    return [
        repeat_words.progress_of_runs(results.trials),
        *(line for name, answer in asked for line in about(name, answer(results))),
    ]


def cells_sentences(results: Results) -> list[str]:
    """Which cells have no error, and how often the lr lies at the edge of its grid."""
    table = results.once(scaling_cells)
    without = table[table["n"] == 0]
    ended, is_whole = without["ended"] > 0, without["ended"] == without["planned"]
    failed = is_whole & (without["failed"] == without["planned"])
    diverged = without[is_whole & ~failed]["cell"]
    unfinished = without[ended & ~is_whole]["cell"]
    missing = without[~ended]["cell"]
    sentences = []
    if failed.any():
        sentences.append(
            f"All runs of {failed.sum()} of {len(table)} cells failed "
            f"({_named(without[failed]['cell'])}): they are in no law."
        )
    if len(diverged):
        sentences.append(
            f"{len(diverged)} of {len(table)} cells diverged, as no lr of theirs has as many "
            f"finished as diverged runs ({_named(diverged)}): they are in no law."
        )
    if len(unfinished):
        sentences.append(
            f"{len(unfinished)} of {len(table)} cells have no lr yet with as many finished as "
            f"diverged runs, and runs to do ({_named(unfinished)}): they are in no law."
        )
    if len(missing):
        sentences.append(
            f"a cell must have a finished trial to be in a law, but got none for {len(missing)} "
            f"of {len(table)} ({_named(missing)})."
        )
    edge = table[table["lr_at_edge"] & (table["n"] > 0)]
    if len(edge):
        sentences.append(
            f"The lr lies at the edge of its grid for {len(edge)} of {int((table['n'] > 0).sum())} "
            "cells: a better one may lie outside."
        )
    if num := int((table[reported(results.study)] == 0).sum()):
        sentences.append(
            f"{num} of {len(table)} cells have an error of 0, which has no logarithm: they are in "
            "no law."
        )
    return sentences


def fit_sentences(results: Results) -> list[str]:
    """The law of each family in numbers, what is not identified, and whether it fits."""
    table, metric = results.once(scaling_fit), results.metric
    by_family = results.once(widest)
    without = [name for name in tables.families(results.once(grid)) if name not in by_family]
    sentences = [
        f"No law of {name}: too few cells with an error for a gain, an exponent and a floor."
        for name in without
    ]
    for family, law in by_family.items():
        same = (table["family"] == family) & (table["axes"] == " and ".join(law.axes))
        row = table[same & table["has_floor"]].iloc[0]
        sentences.append(_law_sentence(row, law.axes, metric))
        sentences += _choice_sentences(table[same].set_index("has_floor"), law.axes[0])
        if row["not_identified"]:
            sentences.append(f"Not identified for {family}: {row['not_identified']}.")
        p = row["misfit_p"] * len(by_family)
        if p < MISFIT_ALPHA:
            sentences.append(
                f"The cells of {family} scatter around its law {row['misfit']:.1f} times as much "
                "(variance) as seeds alone would, more than the noise and the choice of lr explain "
                f"(p = {p:.3f} for {len(by_family)} families): these errors have another shape "
                "than the law, or noise of another kind, or an lr off its best, and its intervals "
                "are too short."
            )
    return sentences


def _choice_sentences(laws: pd.DataFrame, axis: str) -> list[str]:
    """Which law, with or without a floor, predicts the unseen largest value better."""
    ratio = laws["held_out_ratio"].astype(float)
    if len(laws) < 2 or ratio.isna().any():
        return []
    nearer = laws["nearer"]
    which = (
        f"the law {'with' if nearer[True] else 'without'} a floor predicts it better"
        if nearer.any()
        else "the laws with and without a floor predict it alike"
    )
    return [
        f"Fitted without the largest {axis}, {which}: measured over predicted is "
        f"{ratio[True]:.3f} with a floor, {ratio[False]:.3f} without."
    ]


def _law_sentence(row: pd.Series, axes: tuple[str, ...], metric: Metric) -> str:
    exponents = ", ".join(
        f"{row[f'{axis}_exponent']:.2f}{_ends(row, f'{axis}_exponent', '.2f')} for {axis}"
        for axis in axes
    )
    digits = _digits(metric)
    floor = f"{row['floor']:{digits}}{_ends(row, 'floor', digits)}"
    return (
        f"{row['family']}, {row['n_cells']} cells: the law of the {metric.label} has a floor of "
        f"{floor} {metric.unit} and exponent{'s' * (len(axes) > 1)} {exponents}."
    )


def _digits(metric: Metric) -> str:
    return ".1f" if metric.unit == "%" else ".3f"


def _ends(row: pd.Series, name: str, digits: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f" [{low:{digits}}, {high:{digits}}]" if pd.notna(low) else " (no interval)"


def forecast_sentences(results: Results) -> list[str]:
    """How the held-out cells came out."""
    table = results.once(scaling_forecast)
    sentences = []
    for family, rows in table[table["kind"] == "held out"].groupby("family", sort=False):
        scored = rows[rows["inside"] != ""]
        diverged = int(scored["measured"].isna().sum())
        above = rows[rows["measured"] > 0]
        ratio = np.exp(np.log(above["measured"] / above["predicted"]).mean())
        result = (
            f"{int((scored['inside'] == 'yes').sum())} of {len(scored)} inside their 95% intervals"
            + ", which share one law" * (len(scored) > 1)
            + f" ({diverged} diverged, counted as outside)" * (diverged > 0)
            if len(scored)
            else "not scored, since repeated runs or outcomes are missing; predicted: "
            + ", ".join(
                f"{results.metric.number(row['predicted'])}"
                f"{_ends(row, 'predicted', _digits(results.metric))}"
                for _, row in rows.iterrows()
            )
            + f" {results.metric.unit}"
        )
        level = f"; measured over predicted: {ratio:.2f}" if np.isfinite(ratio) else ""
        sentences.append(
            f"Forecast of the largest {rows['axes'].iloc[0].split()[0]} of {family} from the "
            f"others, {rows['times'].iloc[0]:.1f} times the next: {result}{level}."
        )
    for family, law in results.once(widest).items():
        if why := tables.lr_limits(results.once(grid), law):
            sentences.append(
                f"No forecast beyond the largest {law.axes[0]} of {family}: the lr {why} lies at "
                "the edge of its grid, so larger ones may be trained worse than they could be."
            )
    return sentences


def crossing_sentences(results: Results) -> list[str]:
    """Where laws of two families cross."""
    sentences = []
    for _, row in results.once(scaling_crossing).iterrows():
        where = f"{row['least_params_m']:.3g} to {row['greatest_params_m']:.3g} M parameters"
        share = row["share_crossing"]
        rounds = f" (in {100 * share:.0f}% of the bootstrap rounds)" if pd.notna(share) else ""
        if pd.isna(row["crossing_params_m"]):
            sentences.append(
                f"Crossing of {row['a']} and {row['b']} within {where}: {_not_crossing(row)}; "
                f"{_differences(row, results.metric)}."
            )
            continue
        interval = (
            f" [{row['crossing_params_m_low']:.3g}, {row['crossing_params_m_high']:.3g}]"
            if pd.notna(row["crossing_params_m_low"])
            else ", not certain within the range"
        )
        sentences.append(
            f"{row['a']} and {row['b']} cross at {row['crossing_params_m']:.3g}{interval} M "
            f"parameters, within {where}{rounds}; {_differences(row, results.metric)}."
        )
    return sentences


def optimum_sentences(results: Results) -> list[str]:
    """The compute-optimal size of each family at the largest budget that has one."""
    sentences = []
    table = results.once(scaling_optimum)
    if table.empty:
        return []
    for family, rows in table.groupby("family", sort=False):
        budgets = rows["training_flops"]
        span = f"{budgets.min():.2g} to {budgets.max():.2g} multiply-adds"
        inside = rows[rows["optimum"] != compute.NONE]
        if inside.empty:
            sentences.append(
                f"Compute-optimal size of {family}: none within the range at any of {len(rows)} "
                f"budgets, {span}; the best is the largest or smallest size that was tried."
            )
            continue
        row = inside.iloc[-1]
        of_law = row["by"] == "law"  # else the samples are those of the cell
        size, samples = (
            f"{row[name]:.3g}{_ends(row, name, '.3g') if not row['optimum'] and has_ends else ''}"
            for name, has_ends in (("optimal_params_m", True), ("optimal_samples", of_law))
        )
        sure = f", {row['optimum']}" if row["optimum"] else ""
        sentences.append(
            f"{OPTIMUM[row['by']]} of {family} at {row['training_flops']:.2g} multiply-adds: "
            f"{size} M parameters for {samples} samples (by its {row['by']}{sure}); {len(inside)} "
            f"of {len(rows)} budgets from "
            f"{span} have an optimum within the range."
        )
    return sentences


def cost_crossing_sentences(results: Results) -> list[str]:
    """Where laws of two families cross at equal compute."""
    sentences = []
    for _, row in results.once(scaling_crossing_at_cost).iterrows():
        where = f"{row['least_flops']:.2g} to {row['greatest_flops']:.2g} multiply-adds"
        flops = row.get("crossing_flops", np.nan)
        at = (
            f"they cross at {flops:.2g}{_ends(row, 'crossing_flops', '.2g')} multiply-adds"
            if pd.notna(flops)
            else _not_crossing(row)
        )
        sentences.append(f"{row['a']} and {row['b']} at equal training compute, {where}: {at}.")
    return sentences


def _not_crossing(row: pd.Series) -> str:
    """Which law is lower at the ends of the range, as far as that is shown."""
    ends = ("difference_at_least", "difference_at_greatest")
    if not all(f"{end}_low" in row for end in ends):
        return "no common range"
    signs = [tables.shown_sign(row.to_dict(), end) for end in ends]
    if signs[0] == signs[1] != 0:
        return f"none, {row['a'] if signs[0] < 0 else row['b']} is lower at both ends"
    if not any(signs):
        return "which is lower is not shown at either end"
    place, sign = ("lower", signs[0]) if signs[0] else ("upper", signs[1])
    lower = row["a"] if sign < 0 else row["b"]
    return f"{lower} is lower at the {place} end; which is lower is not shown at the other"


def _differences(row: pd.Series, metric: Metric) -> str:
    parts = [
        f"{metric.number(row[f'difference_at_{end}'], sign='+')}"
        f"{_ends(row, f'difference_at_{end}', '+.1f' if metric.unit == '%' else '+.3f')}"
        for end in ("least", "greatest")
    ]
    return (
        f"{row['a']} minus {row['b']} is {parts[0]} {metric.difference_unit} at the lower end and "
        f"{parts[1]} at the upper"
    )


def _named(names: pd.Series) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names.iloc[:MAX_NAMES]) + more


def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    cells = results.once(grid)
    reported_on = next(iter(estimates.evaluations(results.study)))
    sentences = [
        f"Reported is {metric_label(results.study)} of the last epoch. No epoch is selected.",
        (
            "Each cell is shown at the lr with the lowest mean on minival over its finished runs, "
            "among the lr at which at least half of the ended runs finished; "
            f"{reported_on} has no part in that. A cell without such an lr is diverged: counted, "
            "drawn as ×, and in no law. Means are over runs that finished."
        ),
        (
            "Intervals are of bootstrap rounds that draw the noise of the runs and which of them "
            "diverge again, choose each lr again and fit again. The noise is that of all cells at "
            "lr of the same rank, as a share of their error, and may depend on the size of a "
            "model. The band of the lowest error is for one budget at a time. Cover under "
            "simulation: docs/method-scaling.md."
        ),
        (
            "Intervals hold if the law has the right shape. misfit seldom says that it has not: of "
            "laws whose exponent falls from 0.6 to 0.2 within six sizes, in one of eight, and one "
            "of six of their intervals at 4 times the largest size holds (docs/method-scaling.md). "
            "Intervals hold nothing about other images of the test set, other data, or an lr "
            "outside the grid."
        ),
        (
            f"Nothing is extrapolated beyond {FAR} times the largest value without --far, and "
            "nothing at all where the lr lies at the edge of its grid in the largest cell or in "
            "over a third of all. What is "
            "predicted for a value that nobody trained is not scored."
        ),
        (
            "wd, batch size and schedule are the same for all cells: where a size needs others, "
            "its error is higher than it need be, and the law bends."
        ),
    ]
    if not cells.has_intervals:
        sentences.append("Single runs: no cell, law or forecast has an interval.")
    if (results.trials["status"] == "missing").any():
        sentences.append("Unfinished: missing runs are only counted, and a law may change.")
    return sentences


def summary(results: Results) -> Summary:
    """The numbers of each cell: runs, the lr, the error with its interval."""
    table = results.once(scaling_cells)
    name = reported(results.study)
    by_cell: Summary = {}
    for _, row in table.iterrows():
        numbers = {
            "n": row["n"],
            "diverged": row["diverged_in_all"],
            "best_lr": row["lr"],
            **{f"mean{end}": row[f"{name}{end}"] for end in ("", "_low", "_high")},
        }
        by_cell[str(row["cell"])] = {
            key: float(value) for key, value in numbers.items() if pd.notna(value)
        }
    return by_cell


def design_text(study: Study) -> str:
    """What was planned, and what is chosen after training."""
    return (
        f"{len(study.arms)} cells, {len(study.trials)} runs, all fixed before the first training "
        "and none stopped early. What results choose is the lr of each cell, on minival. Subsets "
        "of images are nested, with the same share of each class. Parameters and multiply-adds are "
        "those of the arm's first trial."
    )


ANSWERS: dict[str, Callable[[Results], list[str]]] = {  # table -> its answer
    **comparisons.ANSWERS,
    "scaling_cells": cells_sentences,
    "scaling_fit": fit_sentences,
    "scaling_forecast": forecast_sentences,
    "scaling_optimum": optimum_sentences,
    "scaling_crossing": crossing_sentences,
    "scaling_crossing_at_cost": cost_crossing_sentences,
}
KIND = Kind(
    name="scaling",
    tables=registry.tables("scaling"),
    figures=registry.figures("scaling"),
    headline=headline,
    caveats=caveats,
    summary=summary,
    design_text=design_text,
    uncorrected="laws, forecasts, frontiers, compute-optimal sizes and crossings",
)
