"""Tables of which images each run got wrong: how much of a spread over seeds is due to the test
set, and how similar two runs are.

Runs that did not finish have no such images, nor do runs of versions that did not keep them; tables
count the latter. Only the top-1 prediction is kept, so studies about another metric have no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from vitscale.analysis import estimates
from vitscale.analysis.arm_means import arm_means
from vitscale.analysis.questions.seeds import draws_of
from vitscale.analysis.report.text import with_ends
from vitscale.analysis.results import Results, panels
from vitscale.analysis.stats import images
from vitscale.plan.metrics import ERROR, fixed

MAX_PAIRS = 6  # with a sentence each
Ends = tuple[float, float, float]
NONE: Ends = (np.nan, np.nan, np.nan)


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
            bits = [b for record in records if (b := record.of(name, weights)) is not None]
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
            "n": len(of.wrong),
            "images": of.wrong.shape[1],
            "seeds_without_bits": of.without,
            **_spread(of.wrong),
        }
        for (arm, name), of in results.once(mistakes).items()
    ]
    table = pd.DataFrame(rows, columns=list(SPREAD_COLUMNS))
    table.attrs["decimals"] = 2
    return table


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


SPREAD_COLUMNS = (
    *("arm", "evaluation", "n", "images", "seeds_without_bits"),
    *_ends("sd"),
    *_ends("seed_sd"),
    "chance_sd",
    *_ends("seed_share_pct"),
    *_ends("mean"),
    *("over_seeds", "over_images"),
)


def _spread(wrong: np.ndarray) -> dict[str, float]:
    """The numbers of a row, from (runs, images) bool."""
    n, num = wrong.shape
    parts = images.parts(wrong)
    if np.isnan(parts.seed):
        return {}
    spread = estimates.sd_interval(100 * wrong.mean(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.square(spread)
        seed = num / (num - 1) * (squares - parts.chance)
        share = seed / squares
        of_share = parts.seed_over_images / squares[0] ** 2
    over_images = max(parts.mean_over_images, 0.0)
    return {
        **_named("sd", spread),
        **_named("seed_sd", np.sqrt(np.maximum(_wider(seed, parts.seed_over_images), 0))),
        "chance_sd": float(np.sqrt(parts.chance)),
        **_named("seed_share_pct", 100 * np.clip(_wider(share, of_share), 0, 1)),
        **_named("mean", _mean(parts.mean_error, spread[0] ** 2 / n, over_images, n)),
        "over_seeds": spread[0] / float(np.sqrt(n)),
        "over_images": float(np.sqrt(over_images)),
    }


def _wider(estimate: np.ndarray, variance: float) -> np.ndarray:
    """(value, low, high) with ends widened for another independent error of this variance:
    distances add in squares (Zou & Donner 2008).
    """
    value, low, high = estimate
    more = float(ndtri(0.975)) ** 2 * variance
    ends = value - np.sqrt((value - low) ** 2 + more), value + np.sqrt((high - value) ** 2 + more)
    return np.array([value, *ends])


def _mean(mean: float, over_seeds: float, over_images: float, n: int) -> Ends:
    """The mean with its interval over seeds and images, t with Satterthwaite's df; clipped to 0 and
    100.
    """
    variance = over_seeds + over_images
    if variance < estimates.NO_SPREAD**2:
        return mean, np.nan, np.nan
    # images are many: their part is taken as known
    df = (n - 1) * (variance / over_seeds) ** 2 if over_seeds else np.inf
    half = float(stdtrit(min(df, 1e6), 0.975)) * float(np.sqrt(variance))
    return mean, max(mean - half, 0.0), min(mean + half, 100.0)


def _named(name: str, values: np.ndarray | Ends) -> dict[str, float]:
    return dict(zip(_ends(name), map(float, values), strict=True))


# ---- agreement


def agreement(results: Results) -> pd.DataFrame:
    """One row per evaluation set and pair of arms of a panel, or two seeds of one arm (a and b are
    equal): how often two runs agree about an image.

    `agreement_pct` is the share of images about which both runs are right or both are wrong, a mean
    over pairs of runs; `chance_pct` is that of independent runs with these errors. `kappa` is error
    consistency (Geirhos et al. 2020): 0 by chance, 1 if all mistakes are shared. Intervals are
    about other seeds and other images, by the jackknife over both; they need three seeds of one
    arm, or two of each of two. Runs of two arms at one seed are treated as any other pair. Runs of
    `runs_without_bits` finished, but their wrong images were not kept.
    """
    rows = [
        row
        for name in estimates.evaluations(results.study)
        for pair in _pairs(results)
        for row in _agreement(results, pair, name)
    ]
    table = pd.DataFrame(rows, columns=list(AGREEMENT_COLUMNS))
    table.attrs["decimals"] = 2
    return table


AGREEMENT_COLUMNS = (
    *("a", "b", "evaluation", "n_a", "n_b", "images", "runs_without_bits"),
    *_ends("agreement_pct"),
    "chance_pct",
    *_ends("kappa"),
)


def _pairs(results: Results) -> list[tuple[str, str]]:
    """Each arm with itself, then each pair of arms of a panel."""
    of_panels = [pair for arms in panels(results.study).values() for pair in combinations(arms, 2)]
    return [*((arm, arm) for arm in results.study.arms), *dict.fromkeys(of_panels)]


def _agreement(results: Results, pair: tuple[str, str], name: str) -> Iterator[dict[str, object]]:
    """A row, if this study has wrong images at all."""
    known = results.once(mistakes)
    if (pair[0], name) not in known:
        return
    a, b = (known[arm, name] for arm in pair)
    same = pair[0] == pair[1]
    found = images.agreement(a.wrong, None if same else b.wrong)
    yield {
        **dict(zip(AGREEMENT_COLUMNS, (*pair, name, len(a.wrong), len(b.wrong)), strict=False)),
        "images": a.wrong.shape[1],
        "runs_without_bits": a.without + (0 if same else b.without),
        **_named("agreement_pct", 100 * np.array(found.share)),
        "chance_pct": 100 * found.by_chance,
        **_named("kappa", found.kappa),
    }


# ---- answers in words


def spread_sentences(results: Results) -> list[str]:
    """How much of the spread is due to the seeds, which runs are not known, and a prediction of the
    next seed.
    """
    table = results.once(seed_spread)
    known = table[table["seed_sd"].notna()]
    return [
        *(_spread_sentence(row) for _, row in known.iterrows()),
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
        f"{of['seeds_without_bits'].max()} of {arm}"
        for arm, of in table.groupby("arm")
        if of["seeds_without_bits"].max()
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


def agreement_sentences(results: Results) -> list[str]:
    """Agreement and error consistency of each pair that has an interval."""
    table = results.once(agreement)
    known = table[table["kappa_low"].notna()]
    if len(known) > MAX_PAIRS:
        return []
    return [_agreement_sentence(row) for _, row in known.iterrows()]


def _agreement_sentence(row: pd.Series) -> str:
    who = f"Two seeds of {row['a']}" if row["a"] == row["b"] else f"{row['a']} and {row['b']}"
    share = with_ends(row, "agreement_pct", partial(fixed, decimals=1), "%")
    kappa = with_ends(row, "kappa", partial(fixed, decimals=2))
    return (
        f"{who} agree on {share} of the images of {row['evaluation']}, by chance on "
        f"{row['chance_pct']:.1f}%: error consistency {kappa}."
    )


ANSWERS = {"seed_spread": spread_sentences, "agreement": agreement_sentences}
