"""Depth, width and parallel branches at a fixed budget (Touvron et al. 2022, Figures 1 to 3, Tables
2 and 3).

An arm is a shape and how it is trained, at one lr or at each lr of a grid, with the same seeds.
With several lr, an arm is shown at its own lr (vitscale/analysis/cells.py), and the intervals of
its means include this choice. Those of differences do not.

Assumptions: runs at one lr differ only in their seed, and means over seeds are nearly normal. Means
are over finished runs; the number that diverged is given with them. The shape of an arm is read
from its config; its factors name the size (a width with its heads), and whether its drop path is
that of the size or rises with depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.cells import Cell, cells
from vitscale.analysis.comparisons import Layout, estimate, table_of, verdicts
from vitscale.analysis.published.tables import read
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study
from vitscale.plan.trial import DROP_PATH_BY


@dataclass(frozen=True)
class Shape(Cell):
    """A shape at the lr at which it is shown."""

    size: str
    drop_path_by: str  # "size" or "depth"; empty if the factors do not say it

    @property
    def pairs(self) -> int:
        return self.config.depth * self.config.branches

    @property
    def family(self) -> tuple[str, str]:
        """Shapes are compared within a size and a rule for drop path."""
        return self.size, self.drop_path_by

    @property
    def trained(self) -> tuple[bool, int]:
        """With LayerScale or not, and the epochs."""
        return self.config.layerscale > 0, self.config.epochs


def reported(study: Study) -> dict[str, str]:
    """Evaluation set -> its column, without the set that chooses the lr."""
    return {
        name: column for name, column in estimates.evaluations(study).items() if name != CHOOSES
    }


def all_shapes(results: Results) -> dict[str, Shape]:
    """Every shape at its lr, in the order of the plan."""
    arms = results.study.arms
    return {
        name: Shape(**vars(cell), size=str(of["size"]), drop_path_by=str(of.get(DROP_PATH_BY, "")))
        for name, cell in results.once(cells).items()
        for of in [arms[name].factors]
    }


def shape_cells(results: Results) -> pd.DataFrame:
    """One row per shape: pairs of attention and MLP, cost, the lr at which it is shown, and means
    of the metric over its seeds there with 95% intervals; no interval for a single run.

    The lr is that with the lowest mean on minival over the runs that finished, of those at which at
    least half did. The interval includes this choice; of a single lr it is Student's.
    `lr_at_edge`: the chosen lr is the lowest or the highest of the grid, which may then be too
    narrow for this shape. Multiply-adds are per image at its resolution. Peak memory, where
    measured, is that of training, not that of inference as in Table 3 of Touvron et al. 2022, which
    the study throughput measures.
    """
    rows = []
    for cell in results.once(all_shapes).values():
        errors: dict[str, float] = {}
        for name, column in reported(results.study).items():
            mean, low, high = cell.interval(column, results.metric)
            errors |= {
                f"{name}_mean": mean,
                f"{name}_mean_low": low,
                f"{name}_mean_high": high,
            }
        rows.append({**_shape_row(results.study, cell), **_lr_row(cell), **errors})
    return pd.DataFrame(rows)


def _shape_row(study: Study, cell: Shape) -> dict[str, object]:
    cost, c = study.cost(cell.config), cell.config
    memory = cell.runs.get("peak_memory_mib", pd.Series(dtype=float)).max()
    measured = {} if pd.isna(memory) else {"training_peak_memory_mib": float(memory)}
    return {
        "shape": cell.arm,
        "pairs": cell.pairs,
        "depth": c.depth,
        "branches": c.branches,
        "width": c.width,
        "layerscale": cell.trained[0],
        "epochs": c.epochs,
        "params_m": cost.params / 1e6,
        "multiply_adds_m": cost.flops / 1e6,
        **measured,
    }


def _lr_row(cell: Cell) -> dict[str, object]:
    num_by_status = estimates.counts(cell.runs)
    return {
        "lr": cell.lr,
        "num_lrs": len(cell.lrs),
        "lr_at_edge": cell.at_edge,
        "n": num_by_status["finished"],
        "diverged": num_by_status["diverged"],
        "failed": num_by_status["failed"],
        "missing": num_by_status["missing"],
    }


def lr_sweep(results: Results) -> pd.DataFrame:
    """One row per shape and lr: numbers of runs by status, and means over finished runs with
    Student's 95% intervals.

    minival chooses the lr; values on other sets at other lr are shown for the shape of the curve.
    """
    rows = []
    columns = estimates.evaluations(results.study)
    for cell in results.once(cells).values():
        rows += [
            _sweep_row(cell, lr, cell.every[cell.every["lr"] == lr], columns, results.metric)
            for lr in cell.lrs
        ]
    return pd.DataFrame(rows)


def _sweep_row(
    cell: Cell, lr: float, runs: pd.DataFrame, columns: Mapping[str, str], metric: Metric
) -> dict[str, object]:
    row: dict[str, object] = {
        "shape": cell.arm,
        "lr": lr,
        "chosen": lr == cell.lr,
        **estimates.counts(runs),
    }
    for name, column in columns.items():
        mean, low, high = estimates.value_interval(estimates.errors(runs, column), metric)
        row |= {
            f"{name}_mean": mean,
            f"{name}_mean_low": low,
            f"{name}_mean_high": high,
        }
    return row


def _layout(*keys: str) -> Layout:
    return Layout(keys, "difference", ("_a", "_b"), evaluation="last", has_lr=True)


def branch_differences(results: Results) -> pd.DataFrame:
    """One row per parallel shape and evaluation set: its mean minus that of the sequential shape
    with as many pairs, of the same size, rule for drop path, LayerScale and epochs, in points.

    Negative favours branches. Each at its own lr, over finished runs, by Welch's t; no interval for
    single runs. `difference_p_holm` is corrected over all rows of this table, of all evaluation
    sets. The rows of one sequential shape share its runs, so they are correlated.
    """
    layout = _layout("size", "pairs", "branches", "layerscale", "epochs")
    return table_of(results, "branch_differences", layout)


def layerscale_and_epochs(results: Results) -> pd.DataFrame:
    """One row per shape, effect and evaluation set (Touvron et al. 2022, Table 2): change of the
    mean by LayerScale at equal epochs, and by longer training at equal LayerScale.

    Negative: it helps. For shapes that are trained with and without LayerScale, or for several
    lengths. Statistics as in branch_differences; `difference_p_holm` is corrected over all rows of
    this table.
    """
    return table_of(results, "layerscale_and_epochs", _layout("shape", "factor", "effect"))


def blocks_or_width(results: Results) -> pd.DataFrame:
    """One row per pair of the study and evaluation set (Touvron et al. 2022, Table 3): mean of the
    shape with more blocks, a, minus that of the wider one, b.

    Negative favours blocks. `params_ratio` and `multiply_adds_ratio` are those of a to b: how equal
    the budgets are. Statistics as in branch_differences; `difference_p_holm` is corrected over all
    rows of this table.
    """
    table, study = table_of(results, "blocks_or_width", _layout("a", "b")), results.study
    cost = {arm: study.cost(cell.config) for arm, cell in results.once(cells).items()}
    both = [(cost[a], cost[b]) for a, b in zip(table["a"], table["b"], strict=True)]
    table.insert(2, "params_ratio", [a.params / b.params for a, b in both])
    table.insert(3, "multiply_adds_ratio", [a.flops / b.flops for a, b in both])
    return table


# ---- the paper's own numbers


def published_depth_vs_width(results: Results) -> pd.DataFrame:
    """Touvron et al. 2022 (ImageNet): errors of Figures 1 to 3 and Tables 1 to 3, and for each
    parallel shape the difference from the sequential one with as many pairs in the same figure or
    table, in points.

    Values of the figures are a third party's reading of the charts, to about 0.1. Single runs
    without intervals, except B12x1 of Table 3 (5 runs, sd 0.06 on val and 0.26 on v2). At imagenet
    the models of Figures 1 to 3 and Tables 2 and 3 are those of the plan, by a recipe that the text
    leaves open in part; on other data the numbers are context, not a target.
    """
    table = published_errors()
    key = ["source", "size", "pairs", "layerscale", "epochs"]
    errors = ["val_error_pct", "v2_error_pct"]
    sequential = table[table["branches"] == 1].set_index(key)[errors]
    beside = sequential.reindex(pd.MultiIndex.from_frame(table[key])).to_numpy(dtype=float)
    minus = (table[errors].to_numpy(dtype=float) - beside).round(1)
    minus[table["branches"] == 1] = np.nan
    table = table.assign(
        val_minus_sequential_points=minus[:, 0], v2_minus_sequential_points=minus[:, 1]
    )
    return table


def published_errors() -> pd.DataFrame:
    """Touvron et al. 2022: errors in percent by figure or table and shape; epochs are 300 unless
    400 is stated.
    """
    figures = read("touvron2022_figures1_3")
    depth = figures["pairs"] // figures["branches"]
    figures = figures.assign(source="Figure " + figures["figure"].astype(str), depth=depth)
    tables = [read(f"touvron2022_table{i}").assign(source=f"Table {i}") for i in (1, 2, 3)]
    table = pd.concat([figures, *tables], ignore_index=True)
    table = table.fillna({"branches": 1, "epochs": 300, "n": 1}).astype(
        {"branches": int, "epochs": int, "n": int}
    )
    for name in ("val", "v2"):
        table[f"{name}_error_pct"] = (100 - table[f"{name}_top1_pct"]).round(2)
    table = table.assign(
        pairs=table["depth"] * table["branches"], layerscale=table["layerscale"] == 1
    )
    columns = "source size depth branches pairs layerscale epochs n val_error_pct v2_error_pct"
    return table[columns.split()]


# ---- answers in words


def cells_sentences(results: Results) -> list[str]:
    """How the lr was chosen, and how often it is at the edge of the grid."""
    all_cells = list(results.once(all_shapes).values())
    swept = [cell for cell in all_cells if len(cell.lrs) > 1]
    if not swept:
        return []
    edge = [cell.arm for cell in swept if cell.at_edge]
    ended = (
        f"; at its edge for {len(edge)} of {len(swept)} ({', '.join(edge)}): for them the grid "
        "may be too narrow"
    )
    return [
        (
            "Each shape is shown at the lr that does best on minival, of "
            f"{len(swept[0].lrs)}{ended if edge else ''}."
        )
    ]


def branches_sentences(results: Results) -> list[str]:
    """How often branches beat the sequential shape with as many pairs, on each set; then the
    numbers of Figure 1.
    """
    table = results.once(branch_differences)
    what = "Parallel branches against as many pairs in sequence"
    return [*verdicts(results, table, what), *_in_figure(results.study, table)]


def _in_figure(study: Study, table: pd.DataFrame) -> list[str]:
    """The differences of Figure 1, on the first set."""
    many = table[(table["branches"] > 2) & (table["evaluation"] == next(iter(reported(study))))]
    rules = [DROP_PATH_BY] if DROP_PATH_BY in table else []
    metric = study.column.metric
    keys = ["size", *rules, "pairs", "layerscale", "epochs"]
    sentences = []
    for key in many[keys].drop_duplicates().itertuples(index=False):
        same = table[
            (table[keys] == list(key)).all(axis=1)
            & (table["evaluation"] == many["evaluation"].iloc[0])
        ]
        parts = [
            f"{row['branches']} branches {estimate(row, 'difference', metric, '+')}"
            for _, row in same.iterrows()
        ]
        rule = f" (drop path by {key.drop_path_by})" if rules else ""
        sentences.append(
            f"{key.size}{rule} of {key.pairs} pairs, {metric.label} minus that in sequence: "
            f"{'; '.join(parts)} {metric.difference_unit}."
        )
    return sentences


def effects_sentences(results: Results) -> list[str]:
    """How often LayerScale and longer training help."""
    table = results.once(layerscale_and_epochs)
    is_gain = table["factor"] == "layerscale"
    return [
        *verdicts(results, table[is_gain], "LayerScale"),
        *verdicts(results, table[~is_gain], "Longer training"),
    ]


def budgets_sentences(results: Results) -> list[str]:
    """More blocks or more width, for each pair on the first set."""
    table = results.once(blocks_or_width)
    first = table[table["evaluation"] == next(iter(reported(results.study)))]
    if first.empty:
        return []
    metric = results.metric
    parts = [
        f"{row['a']} − {row['b']} {estimate(row, 'difference', metric, '+')}"
        for _, row in first.iterrows()
    ]
    return [
        *verdicts(results, table, "More blocks against more width at about equal cost"),
        f"{metric.label.capitalize()} on {first['evaluation'].iloc[0]}: {'; '.join(parts)} "
        f"{metric.difference_unit}.",
    ]


ANSWERS = {
    "shape_cells": cells_sentences,
    "branch_differences": branches_sentences,
    "layerscale_and_epochs": effects_sentences,
    "blocks_or_width": budgets_sentences,
}
