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

from dataclasses import dataclass, replace

import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.cells import Cell, cells
from vitscale.analysis.columns import named
from vitscale.analysis.comparisons import PAIRS, estimate, table_of, verdicts
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.study import Study
from vitscale.plan.trial import DROP_PATH_BY


@dataclass(frozen=True)
class Shape(Cell):
    """A shape at the lr at which it is shown."""

    size: str

    @property
    def pairs(self) -> int:
        return self.config.depth * self.config.branches

    @property
    def branches(self) -> int:
        return self.config.branches


def reported(study: Study) -> dict[str, str]:
    """Evaluation set -> its column, without the set that chooses the lr."""
    return {
        name: column for name, column in estimates.evaluations(study).items() if name != CHOOSES
    }


def all_shapes(results: Results) -> dict[str, Shape]:
    """Every shape at its lr, in the order of the plan."""
    arms = results.study.arms
    return {
        name: Shape(**vars(cell), size=str(arms[name].factors["size"]))
        for name, cell in results.once(cells).items()
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
        ended = estimates.counts(cell.runs)
        row = _shape_row(results.study, cell) | {
            "lr": cell.lr,
            "num_lrs": len(cell.lrs),
            "lr_at_edge": cell.at_edge,
            "n": ended["finished"],
            **{status: ended[status] for status in STATUSES[1:]},
        }
        for name, column in reported(results.study).items():
            row |= named(f"{name}_mean", cell.interval(column, results.metric))
        rows.append(row)
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
        "layerscale": c.layerscale > 0,
        "epochs": c.epochs,
        "params_m": cost.params / 1e6,
        "multiply_adds_m": cost.flops / 1e6,
        **measured,
    }


def branch_differences(results: Results) -> pd.DataFrame:
    """One row per parallel shape and evaluation set: its mean minus that of the sequential shape
    with as many pairs, of the same size, rule for drop path, LayerScale and epochs, in points.

    Negative favours branches. Each at its own lr, over finished runs, by Welch's t; no interval for
    single runs. `difference_p_holm` is corrected over all rows of this table, of all evaluation
    sets. The rows of one sequential shape share its runs, so they are correlated.
    """
    layout = replace(PAIRS, keys=("size", "pairs", "branches", "layerscale", "epochs"))
    return table_of(results, "branch_differences", layout)


def layerscale_and_epochs(results: Results) -> pd.DataFrame:
    """One row per shape, effect and evaluation set (Touvron et al. 2022, Table 2): change of the
    mean by LayerScale at equal epochs, and by longer training at equal LayerScale.

    Negative: it helps. For shapes that are trained with and without LayerScale, or for several
    lengths. Statistics as in branch_differences; `difference_p_holm` is corrected over all rows of
    this table.
    """
    return table_of(
        results, "layerscale_and_epochs", replace(PAIRS, keys=("shape", "factor", "effect"))
    )


# ---- answers in words


def cells_sentences(results: Results) -> list[str]:
    """How the lr was chosen, and how often it is at the edge of the grid."""
    swept = [cell for cell in results.once(all_shapes).values() if len(cell.lrs) > 1]
    if not swept:
        return []
    text = f"Each shape is shown at the lr that does best on minival, of {len(swept[0].lrs)}"
    if edge := [cell.arm for cell in swept if cell.at_edge]:
        text += (
            f"; at its edge for {len(edge)} of {len(swept)} ({', '.join(edge)}): for them the grid "
            "may be too narrow"
        )
    return [f"{text}."]


def branches_sentences(results: Results) -> list[str]:
    """How often branches beat the sequential shape with as many pairs, on each set; then the
    numbers of Figure 1.
    """
    table = results.once(branch_differences)
    what = "Parallel branches against as many pairs in sequence"
    return [*verdicts(results, table, what), *_in_figure(results.study, table)]


def _in_figure(study: Study, table: pd.DataFrame) -> list[str]:
    """The differences of Figure 1, on the first set."""
    table, metric = table[table["evaluation"] == next(iter(reported(study)))], study.column.metric
    rules, sentences = [DROP_PATH_BY] if DROP_PATH_BY in table else [], []
    for _, group in table.groupby(["size", *rules, "pairs", "layerscale", "epochs"], sort=False):
        if (group["branches"] <= 2).all():
            continue
        first, parts = (
            group.iloc[0],
            [
                f"{row['branches']} branches {estimate(row, 'difference', metric, '+')}"
                for _, row in group.iterrows()
            ],
        )
        rule = f" (drop path by {first[DROP_PATH_BY]})" if rules else ""
        sentences.append(
            f"{first['size']}{rule} of {first['pairs']} pairs, {metric.label} minus that in "
            f"sequence: {'; '.join(parts)} {metric.difference_unit}."
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


ANSWERS = {
    "shape_cells": cells_sentences,
    "branch_differences": branches_sentences,
    "layerscale_and_epochs": effects_sentences,
}
