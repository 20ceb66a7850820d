"""Sentences of a report about studies whose arms are single settings, trained with several
seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis import estimates, registry
from vitscale.analysis.arm_means import arm_means
from vitscale.analysis.columns import interval_of
from vitscale.analysis.distribution.population import (
    Population,
    counts_of,
    population,
    still_missing,
)
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import either
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

OVER_IMAGES = ("seed_spread", "agreement")  # tables with intervals over images as well
BIASED = "Diverged trials end sooner than others, so shares of an unfinished study are biased."


def headline(results: Results) -> list[str]:
    """Numbers of runs by status, then the answers of the study's tables; without any, the mean of
    each arm.
    """
    sentences = registry.answers(results) or _mean_sentences(results)
    return [progress_of_runs(results.trials), *sentences]


def _mean_sentences(results: Results) -> list[str]:
    return [_mean_sentence(row, results.metric) for _, row in results.once(arm_means).iterrows()]


def _mean_sentence(row: pd.Series, metric: Metric) -> str:
    mean, low, high = interval_of(row, "mean")
    ended = estimates.describe_counts({STATUSES[0]: row["n"], **row[list(STATUSES[1:])]})
    if np.isnan(mean):
        return f"{row['arm']}: no run finished ({ended})."
    ends = ", ".join(metric.number(end, 2) for end in (low, high))
    ends = "no interval" if np.isnan(low) else f"[{ends}]"
    text = f"mean {metric.label} {metric.text(mean, 2)}"
    return f"{row['arm']}: {text} ({ends}, {ended})."


def progress_of_runs(outcomes: pd.DataFrame) -> str:
    total = estimates.counts(outcomes)
    return (
        f"Of {len(outcomes)} runs: {', '.join(f'{total[status]} {status}' for status in STATUSES)}."
    )


def caveats(results: Results) -> list[str]:
    """What a reader must know to interpret the numbers, one sentence each."""
    splits = ", ".join(sorted({trial.config.eval_split for trial in results.study.trials}))
    numbers = sorted({int(num) for num in results.trials.groupby("arm").size()})
    sentences = [
        f"Reported is {metric_label(results.study)} of the last epoch on the split: {splits}. No "
        "epoch is selected.",
        (
            f"An arm is one setting, trained {either(numbers)} times; its runs differ only in "
            "their seed. Intervals generalize to other seeds and assume that means over seeds are "
            "nearly normal; a single run has no interval."
        ),
        (
            "Means, spreads and differences are over the runs that finished, so they are "
            "conditional on finishing: a diverged run has no value that a mean could use. The "
            "number of diverged runs is given beside every number."
        ),
        (
            "lr and wd of an arm are fixed in advance: if they are not the best for an arm, it is "
            "worse than it could be, and no interval includes that."
        ),
        (
            "All intervals and p are conditional on the held-out images: they generalize over "
            "training runs evaluated on this split, not over other images."
        ),
    ]
    over_images = [name for name in OVER_IMAGES if name in results.study.tables]
    if over_images:
        sentences[-1] += (
            f" Those of {' and '.join(over_images)} generalize to other images, too. Variances "
            "there are unbiased for any distribution if seeds and images are independent draws; "
            "the coverage of the intervals is known only from simulations: where 5% of the seeds "
            "collapse, the interval of the own sd covers 40 to 83% in place of 95%. Images that "
            "are nearly the same count as one: with two of each, the interval of the mean covers "
            "80 to 88%."
        )
    if (results.trials["status"] == "missing").any():
        sentences.append("Unfinished: missing runs are counted, and are part of no other number.")
    sentences.append(
        "Each interval is a 95% interval; they are not corrected for the number of rows. p_holm is "
        "corrected, p is not."
    )
    return sentences


def _populations(results: Results) -> list[Population]:
    """All runs of each arm that finished, also those after a missing one."""
    return [
        population(results.study, results.trials, arm, whole=True) for arm in results.study.arms
    ]


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    return still_missing(results.once(_populations), BIASED)


def counts(results: Results) -> pd.DataFrame:
    """One row per arm: numbers of its draws and reference runs by status."""
    return counts_of(results.once(_populations))


def design_text(study: Study) -> str:
    """What was planned."""
    draws = sum(trial.point is not None for trial in study.trials)
    return (
        f"{len(study.arms)} arms, {draws} draws that differ from others of their arm only in the "
        f"seed, and {len(study.trials) - draws} separate reference runs. All were fixed before the "
        "first training; none is stopped early or selected by its result. Parameters and "
        "multiply-adds are those of the arm's first trial."
    )


def summary(results: Results) -> Summary:
    """Counts, mean and sd of the runs of each arm, without reference runs."""
    table = results.once(arm_means).set_index("arm")
    return {
        str(arm): {str(name): float(value) for name, value in row.items() if not np.isnan(value)}
        for arm, row in table.iterrows()
    }


KIND = Kind(
    name="repeats",
    tables=registry.tables("repeats"),
    figures=registry.figures("repeats"),
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design_text=design_text,
)
