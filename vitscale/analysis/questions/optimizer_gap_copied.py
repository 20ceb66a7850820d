"""What SGD costs against AdamW by the rule of Xiao et al. 2021, Figure 3, which puts values that
were never measured in the place of runs that diverged.
"""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscale.analysis import estimates
from vitscale.analysis.comparisons import Row, difference, table_of
from vitscale.analysis.estimates import Contrast
from vitscale.analysis.questions.optimizer_gap import GAP, draw_optimizers
from vitscale.analysis.questions.stability import Cell, Groups, cells
from vitscale.analysis.report.layout import STYLE
from vitscale.analysis.results import Results


def copied_from(groups: Groups, cell: Cell) -> Cell:
    """The cell whose runs replace those of this one by the rule of Xiao et al. 2021, Figure 3;
    usually the cell itself.

    Where every run diverged, it is the shorter schedule of the same model and optimizer with the
    lowest mean error. Such a value was never measured, and makes a gap look smaller than a failure
    is.
    """
    model, optimizer, epochs = cell
    if not (groups[cell]["status"] == "diverged").all():
        return cell
    shorter = [
        key
        for key, runs in groups.items()
        if key[:2] == (model, optimizer) and key[2] < epochs and len(estimates.errors(runs))
    ]
    return min(shorter, key=lambda key: estimates.errors(groups[key]).mean(), default=cell)


def optimizer_gap_copied(results: Results) -> pd.DataFrame:
    """The gaps by the rule of Xiao et al. 2021: a cell whose runs all diverged has the values of
    the best shorter schedule of the same model and optimizer.

    `copied` says which; those were not measured at that length, so such a gap has no
    interval and no p.
    """
    groups = results.once(cells)
    cell_of = {str(runs["arm"].iloc[0]): cell for cell, runs in groups.items()}
    copied: list[str] = []

    def change(row: Row) -> Row:
        planned = [cell_of[arm] for arm in row.comparison.weights]
        used = [copied_from(groups, cell) for cell in planned]
        copies = [
            f"{cell[1]} from {cell[2]} epochs"
            for cell, plan in zip(used, planned, strict=True)
            if cell != plan
        ]
        copied.append(", ".join(copies) or "–")
        if not copies:
            return row
        runs = tuple(groups[cell] for cell in used)
        result = difference(runs, row.comparison, [estimates.errors(arm_runs) for arm_runs in runs])
        if not np.isnan(result.estimate):
            result = Contrast(result.estimate, method="copied from shorter runs: no interval")
        return replace(row, runs=runs, result=result)

    return table_of(results, "optimizer_gap_copied", GAP, change).assign(copied=copied)


@matplotlib.rc_context(STYLE)
def optimizer_stability_copied(results: Results) -> Figure:
    """Xiao et al. 2021, Figure 3, by the rule of the paper: where every run diverged, the best
    result of a shorter schedule of the same model and optimizer is drawn again, hollow and with a
    dashed line.

    A hollow point was never measured.
    """
    return draw_optimizers(results, copied_from)
