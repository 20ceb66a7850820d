"""Which images each run got wrong, and how much of a spread over seeds is due to the test set.

Runs that did not finish have no such images, nor do runs of versions that did not keep them; tables
count the latter. Only the top-1 prediction is kept, so studies about another metric have no rows.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.arm_means import arm_means
from vitscale.analysis.columns import ends, named, two_decimals
from vitscale.analysis.questions.seeds import draws_of
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.results import Results
from vitscale.analysis.stats import images
from vitscale.plan.metrics import ERROR, fixed


class Mistakes(NamedTuple):
    """Of the finished draws of an arm, on one evaluation set."""

    wrong: np.ndarray  # (runs, images) bool
    without: int  # runs of which it is not known, or known of other images


def mistakes(results: Results) -> dict[tuple[str, str], Mistakes]:
    """(arm, evaluation set) -> wrong images of its runs, all on the same images: if the sets of the
    runs differ, on the set that most runs have.
    """
    by_cell: dict[tuple[str, str], Mistakes] = {}
    if results.metric is not ERROR:
        return by_cell
    weights = results.study.column.weights
    runs = {
        arm: estimates.finished(draws_of(results.trials, arm))["trial_id"].tolist()
        for arm in results.study.arms
    }
    read = {trial_id: results.misclassified(trial_id) for ids in runs.values() for trial_id in ids}
    for name in estimates.evaluations(results.study):
        sets = Counter(
            record.images[name] for record in read.values() if record and name in record.images
        )
        shared = sets.most_common(1)[0][0] if sets else None
        for arm, ids in runs.items():
            records = [
                record for i in ids if (record := read[i]) and record.images.get(name) == shared
            ]
            bits = [b for record in records if (b := record.bits_of(name, weights)) is not None]
            wrong = np.stack(bits) if bits else np.empty((0, 0), dtype=bool)
            by_cell[arm, name] = Mistakes(wrong, len(ids) - len(bits))
    return by_cell


# ---- seeds or images


def seed_spread(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set: how much of the spread over seeds is due to the seed, and
    how much to these images (Jordan 2023).

    `seed_sd` is the sd over seeds on infinitely many images, 0 where its square is estimated
    to be negative. `chance_sd` is the sd that seeds of one true error would show on these
    images, if mistakes on different images were independent. `seed_share_pct` is the seeds' part of
    the variance. `over_seeds` is the standard error of the mean over seeds,
    `over_images` the one over other images; the interval of `mean` includes both,
    those of other tables only the first. Estimates of variances are unbiased for any distribution
    of errors. Intervals of the sds are based on Bonett's (chi-square's below 8 seeds); that of
    `seed_sd` includes the variance over images. Seeds of `seeds_without_bits` finished, but
    their wrong images were not kept, as in older versions; they are in no other number.
    """
    rows = [
        {
            "arm": arm,
            "evaluation": name,
            "n": len(entry.wrong),
            "images": entry.wrong.shape[1],
            "seeds_without_bits": entry.without,
            **_spread(entry.wrong),
        }
        for (arm, name), entry in results.once(mistakes).items()
    ]
    return two_decimals(pd.DataFrame(rows, columns=list(SPREAD_COLUMNS)))


SPREAD_COLUMNS = (
    *("arm", "evaluation", "n", "images", "seeds_without_bits"),
    *ends("sd"),
    *ends("seed_sd"),
    "chance_sd",
    *ends("seed_share_pct"),
    *ends("mean"),
    *("over_seeds", "over_images"),
)


def _spread(wrong: np.ndarray) -> dict[str, float]:
    """The numbers of a row, from (runs, images) bool."""
    if min(wrong.shape) < 2:
        return {}
    row: dict[str, float] = {}
    spread = images.spread(wrong, estimates.sd_interval(100 * wrong.mean(1)))
    for name, value in spread._asdict().items():
        row |= named(name, value) if isinstance(value, tuple) else {name: value}
    return row


# ---- answers in words


def spread_sentences(results: Results) -> list[str]:
    """How much of the spread is due to the seeds, which runs are not known, and a prediction of the
    next seed.
    """
    table = results.once(seed_spread)
    rows = table[table["seed_sd"].notna()]
    return [
        *(_spread_sentence(row) for _, row in rows.iterrows()),
        *_without_bits(results, table),
        *_next_seed(results),
    ]


def _spread_sentence(row: pd.Series) -> str:
    share = with_ends(row, "seed_share_pct", partial(fixed, decimals=0), "%")
    sd = with_ends(row, "seed_sd", partial(fixed, decimals=2), " points")
    mean = with_ends(row, "mean", partial(fixed, decimals=2), "%")
    spread = (
        f"the n={row['n']} seeds have equal errors on these {row['images']} images, which shows no "
        "sd of their own and no bound of it."
        if np.isnan(row["seed_share_pct"])
        else f"{share} of the variance over n={row['n']} seeds is the seeds' own, an sd of {sd}; "
        f"the rest comes with these {row['images']} images."
    )
    return (
        f"{row['arm']}, spread on {row['evaluation']}: {spread} The mean over other seeds and "
        f"other images is {mean}."
    )


def _without_bits(results: Results, table: pd.DataFrame) -> list[str]:
    """Which runs are in no number about single images."""
    if results.metric is not ERROR:
        return [
            "Which images were wrong is kept of the top-1 error alone, and this study is about "
            f"the {results.metric.label}: seed_spread and agreement are empty."
        ]
    runs = [
        f"{rows['seeds_without_bits'].max()} of {arm}"
        for arm, rows in table.groupby("arm")
        if rows["seeds_without_bits"].max()
    ]
    if not runs:
        return []
    return [
        f"Finished seeds of which the wrong images were not kept, as in older versions: "
        f"{', '.join(runs)}; they are in no number of seed_spread and agreement."
    ]


def _next_seed(results: Results) -> list[str]:
    """A prediction that needs no distribution: ranks of exchangeable errors."""
    table = results.once(arm_means)
    return [
        f"{arm}: whatever the distribution, one more seed, if it finishes, lies within the range "
        f"of these n={n} on the same images with a probability of at least "
        f"{100 * (n - 1) // (n + 1)}%."
        for arm, n in zip(table["arm"], table["n"], strict=True)
        if n > 1
    ]


ANSWERS = {"seed_spread": spread_sentences}
