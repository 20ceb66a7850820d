"""More blocks or more width at about equal cost (Touvron et al. 2022, Table 3)."""

from __future__ import annotations

import pandas as pd

from vitscale.analysis.cells import cells
from vitscale.analysis.comparisons import PAIRS, estimate, table_of, verdicts
from vitscale.analysis.questions.shapes import reported
from vitscale.analysis.results import Results


def blocks_or_width(results: Results) -> pd.DataFrame:
    """One row per pair of the study and evaluation set (Touvron et al. 2022, Table 3): mean of the
    shape with more blocks, a, minus that of the wider one, b.

    Negative favours blocks. `params_ratio` and `multiply_adds_ratio` are those of a to b: how equal
    the budgets are. Statistics as in branch_differences; `difference_p_holm` is corrected over all
    rows of this table.
    """
    table, study = table_of(results, "blocks_or_width", PAIRS), results.study
    cost = {arm: study.cost(cell.config) for arm, cell in results.once(cells).items()}
    both = [(cost[a], cost[b]) for a, b in zip(table["a"], table["b"], strict=True)]
    table.insert(2, "params_ratio", [a.params / b.params for a, b in both])
    table.insert(3, "multiply_adds_ratio", [a.flops / b.flops for a, b in both])
    return table


def sentences(results: Results) -> list[str]:
    """More blocks or more width, for each pair on the first set."""
    table, metric = results.once(blocks_or_width), results.metric
    name = next(iter(reported(results.study)))
    first = table[table["evaluation"] == name]
    if first.empty:
        return []
    parts = [
        f"{row['a']} − {row['b']} {estimate(row, 'difference', metric, '+')}"
        for _, row in first.iterrows()
    ]
    return [
        *verdicts(results, table, "More blocks against more width at about equal cost"),
        f"{metric.label.capitalize()} on {name}: {'; '.join(parts)} {metric.difference_unit}.",
    ]


ANSWERS = {"blocks_or_width": sentences}
