"""Tables of a study: functions of the study and its outcomes; a row per arm, pair or axis.

A column `x` with `x_low` and `x_high` beside it is an estimate with its 95% interval; `_pct` is percent, `_points`
are points of error. The decimals of both are one, or those of the table's attrs["decimals"].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from vitscale.analysis import compare, edf, interaction, published, search, seeds, shapes, stability, throughput
from vitscale.analysis.population import AXES, Population, population
from vitscale.plan.study import Study

P_VALUES = ("area_p", "error_ratio_p", "within_4_points_p", "error_p")  # each corrected by itself
Table = Callable[[Study, pd.DataFrame], pd.DataFrame]
EpochTable = Callable[[Study, pd.DataFrame, pd.DataFrame], pd.DataFrame]


def edf_summary(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per arm: how many draws, how they ended, and how forgiving the arm is, with 95% intervals.

    Counted are the draws before the first missing one of the arm. `area` is that under the EDF of delta from 0 to
    10 points, in [0, 1]; `error ratio` is the geometric mean of error over reference, where 1 is as good. The
    reference is the mean of the arm's finished reference runs, and its noise is in the intervals of shares, area
    and ratio; with one run it is unknown, and they are given the reference. `if reference lower` and `if reference
    higher` are the shares within 4 points had it been off by as far as it may be (Student's t), or by 1 point for a
    single run. Draws beyond 10 points finished, more than 10 points above the reference.
    """
    table = pd.DataFrame([_edf_row(study, population(study, outcomes, arm)) for arm in study.arms])
    return table.astype(dict.fromkeys(("num_better_than_reference", "num_beyond_10_points"), "Int64"))


def arm_comparison(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per pair of arms. First forgiveness: the area of a minus that of b (positive favours a), which is the
    primary comparison, and the error ratio of a over that of b (below 1 favours a), both with the references' noise;
    then the share within 4 points of the arm's own reference, given the references.

    Then absolute error, which is another question: the median of a minus b (negative favours a), and how often
    a has the lower error, ties one half. p is that of no difference; p_holm is corrected for the number of
    pairs, over each kind of p separately.
    """
    results = [compare.compare(study, outcomes, a, b) for a, b in study.pairs]
    table = pd.DataFrame(results, columns=list(compare.COMPARISON_COLUMNS))
    for name in P_VALUES:
        table.insert(list(table.columns).index(name) + 1, f"{name}_holm", compare.holm(table[name].tolist()))
    return table


def good_range(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and axis: where good draws lie, the setting of the reference and the range sampled.

    `good from`, `good median` and `good to` are the 2.5, 50 and 97.5 percentiles of the best of n/4 draws over
    bootstraps: they describe a range of good values and are no confidence interval.
    """
    rows = []
    for arm in study.arms:
        draws = population(study, outcomes, arm)
        for name in AXES:
            rows.append({"arm": arm, "axis": name, "n": draws.n, **_range_row(draws, name)})
    return pd.DataFrame(rows)


def make(name: str, study: Study, outcomes: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The table of that name; `rows` has a row per trial and evaluation."""
    if name in EPOCH_TABLES:
        return EPOCH_TABLES[name](study, outcomes, rows)
    return TABLES[name](study, outcomes)


TABLES: dict[str, Table] = {
    f.__name__: f
    for f in (
        edf_summary, arm_comparison, good_range,
        stability.stability_cells, stability.optimizer_gap, stability.optimizer_gap_copied, stability.training_length,
        stability.optimizer_gap_interaction, stability.training_length_interaction,
        seeds.seed_statistics, seeds.seed_normality, seeds.seed_noise, seeds.seed_correlation, seeds.seed_power,
        interaction.recipe_interaction, published.published_training_length, published.published_seed_statistics,
        published.published_recipe_interaction, search.search_best, search.search_importance, *shapes.TABLES,
        throughput.throughput, throughput.epoch_minutes, throughput.published_throughput,
    )
}  # fmt: skip
EPOCH_TABLES: dict[str, EpochTable] = {f.__name__: f for f in (seeds.seed_epochs,)}  # from every epoch of every trial
ALL: dict[str, Callable[..., pd.DataFrame]] = {**TABLES, **EPOCH_TABLES}


def to_markdown(table: pd.DataFrame) -> str:
    """A table as Markdown, each estimate together with its interval."""
    shown = as_text(table)
    if shown.empty:
        return "(no row)\n"
    cells = [list(shown.columns), *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(shown.columns), *lines[1:]]) + "\n"


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a reader wants it: strings, `x [low, high]` in one column, a dash for a missing number."""
    shown, decimals = {}, int(table.attrs.get("decimals", 1))
    for name in map(str, table.columns):
        base = name.removesuffix("_low").removesuffix("_high")
        if base != name and base in table.columns:
            continue
        cells = [_number(value, name, decimals) for value in table[name]]
        if f"{name}_low" in table.columns:
            ends = zip(table[f"{name}_low"], table[f"{name}_high"], strict=True)
            cells = [
                f"{cell} [{_number(low, name, decimals)}, {_number(high, name, decimals)}]" if cell != "–" else cell
                for cell, (low, high) in zip(cells, ends, strict=True)
            ]
        shown[_heading(name)] = cells
    return pd.DataFrame(shown, dtype=str)


def _edf_row(study: Study, draws: Population) -> dict[str, object]:
    over = f"t over {study.num_scrambles} scrambles"
    shares = f"{over}; area: or pseudo-draws" if study.num_scrambles else "Clopper-Pearson; area: t with pseudo-draws"
    median = f"Woodruff, {over}" if study.num_scrambles else "order statistics"
    return {"arm": draws.arm, "planned": draws.planned, "n": draws.n, **draws.counts,
            "not_counted": draws.not_counted, **edf.summary(draws),
            "interval_of_shares_and_area": f"{shares}; {draws.given}", "interval_of_median": median}  # fmt: skip


def _range_row(draws: Population, name: str) -> dict[str, float]:
    planned = draws.sampled[name]
    low, median, high = compare.good_range(draws, name)
    ends = (planned.min(), planned.max()) if len(planned) else (np.nan, np.nan)
    return {"good_from": low, "good_median": median, "good_to": high, "reference": draws.setting[name],
            "sampled_min": float(ends[0]), "sampled_max": float(ends[1])}  # fmt: skip


def _heading(name: str) -> str:
    for suffix, unit in (("_pct", " (%)"), ("_points", " (points)")):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ") + unit
    return name.replace("_", " ")


def _number(value: object, name: str, decimals: int = 1) -> str:
    """A cell: percent and points with so many decimals, p with three, other floats with three digits or more."""
    if value is pd.NA:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if not isinstance(value, (float, np.floating)):
        return str(value)
    if np.isnan(value):
        return "–"
    if name.removesuffix("_holm").endswith("_p"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if "_pct" in name or name.endswith("_points") or name.startswith("error_median"):
        return f"{value:.{decimals}f}"
    return f"{value:,.0f}" if abs(float(value)) >= 1000 else f"{value:.3g}"
