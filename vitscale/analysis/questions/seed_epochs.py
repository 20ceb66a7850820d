"""The spread over seeds by epoch, and what early values say about final ones (H. Touvron's thesis,
2022, Figures 6.9 and 6.10).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.questions.seeds import named, two_decimals
from vitscale.analysis.results import Results
from vitscale.analysis.stats import correlation
from vitscale.plan.metrics import Metric


def seed_epochs(results: Results) -> pd.DataFrame:
    """One row per arm, evaluation set and epoch: mean, sd (ddof=1), min and max over finished
    seeds.

    `rank_correlation` is Spearman's between the value at that epoch and the final one of the same
    seed (Bonett & Wright's interval, each by itself; thesis, Figures 6.9 and 6.10). An interval
    that contains 0 does not show that early values are uninformative, only that this number of
    seeds does not show that they are informative. One above 0 does not show that stopping the worse
    seeds early pays: that requires a rule and its costs.
    """
    parts = [
        _epochs(results.rows, arm, name, column, results.metric)
        for arm in results.study.arms
        for name, column in estimates.evaluations(results.study).items()
    ]
    return two_decimals(
        pd.DataFrame([row for part in parts for row in part], columns=list(EPOCH_COLUMNS))
    )


EPOCH_COLUMNS = (
    "arm",
    "evaluation",
    "epoch",
    "n",
    "mean",
    "mean_low",
    "mean_high",
    "sd",
    "min",
    "max",
    "rank_correlation",
    "rank_correlation_low",
    "rank_correlation_high",
)


def curves(rows: pd.DataFrame, arm: str, column: str) -> pd.DataFrame:
    """Values of the arm's finished draws: one row per trial, a column per epoch."""
    if column not in rows:
        return pd.DataFrame()
    known = rows[(rows["arm"] == arm) & rows["point"].notna() & (rows["status"] == "finished")]
    return (
        known.pivot(index="trial_id", columns="epoch", values=column).astype(float).dropna(axis=1)
    )


def _epochs(
    rows: pd.DataFrame, arm: str, name: str, column: str, metric: Metric
) -> list[dict[str, object]]:
    table = curves(rows, arm, column)
    return [
        {
            "arm": arm,
            "evaluation": name,
            "epoch": int(epoch),
            **_epoch(
                table[epoch].to_numpy(),
                table.iloc[:, -1].to_numpy(),
                epoch == table.columns[-1],
                metric,
            ),
        }
        for epoch in table.columns
    ]


def _epoch(
    values: np.ndarray, final: np.ndarray, is_last: bool, metric: Metric
) -> dict[str, object]:
    """Numbers of one epoch; the last one has no correlation with itself."""
    rank = (np.nan,) * 3 if is_last else correlation.spearman(values, final)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    return {
        "n": len(values),
        **named("mean", estimates.value_interval(values, metric)),
        "sd": sd,
        "min": float(values.min()),
        "max": float(values.max()),
        **named("rank_correlation", rank),
    }
