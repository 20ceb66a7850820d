"""The runs of each arm as one row: what its sentence and its numbers in MLflow are read from."""

from __future__ import annotations

import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.cells import cells
from vitscale.analysis.columns import ends, named
from vitscale.analysis.questions.seeds import draws_of
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.metrics import Metric


def arm_means(results: Results) -> pd.DataFrame:
    """One row per arm: numbers of its runs by status, n of them finished, and mean and sd (ddof=1)
    of the metric over those.

    Reference runs are in none of these numbers. Intervals are Student's for the mean and, for the
    sd, Bonett's, or that of chi-square for fewer than 8 runs; none for a single run. An arm with
    several lr is shown at its own one, `lr`, and the interval of its mean includes that choice.
    """
    metric, of_arms = results.metric, results.once(cells)
    chosen = any(cell.chooses for cell in of_arms.values())
    rows = []
    for arm, cell in of_arms.items():
        row = {"arm": arm, **({"lr": cell.lr} if chosen else {})}
        if cell.chooses:
            row |= _row(cell.runs, metric) | named("mean", cell.interval("value", metric))
        else:
            row |= _row(draws_of(results.trials, arm), metric)
        rows.append(row)
    return pd.DataFrame(rows)


def means_by_set(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set, also of minival: mean of the metric with its 95%
    interval, n, and how many runs diverged; each arm at its own lr.
    """
    rows = []
    for arm, cell in results.once(cells).items():
        ended = estimates.counts(cell.runs)
        for name, column in estimates.evaluations(results.study).items():
            mean = cell.interval(column, results.metric)
            rows.append((arm, name, *mean, ended["finished"], ended["diverged"]))
    columns = ["arm", "evaluation", *ends("mean"), "n", "diverged"]
    return pd.DataFrame(rows, columns=columns)


def _row(runs: pd.DataFrame, metric: Metric) -> dict[str, float]:
    values, num_by_status = estimates.errors(runs), estimates.counts(runs)
    return {
        "n": len(values),
        **{status: num_by_status[status] for status in STATUSES[1:]},
        **named("mean", estimates.value_interval(values, metric)),
        **named("sd", estimates.sd_interval(values)),
    }
