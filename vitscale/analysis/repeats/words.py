"""Sentences of a report about studies whose arms are single settings, trained with several
seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from vitscale.analysis import comparisons, registry
from vitscale.analysis.distribution.population import (
    Population,
    counts_of,
    population,
    still_missing,
)
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.repeats import estimates
from vitscale.analysis.repeats.arms import arm_means
from vitscale.analysis.repeats.interaction import recipe_interaction, winners
from vitscale.analysis.repeats.mistakes import agreement, seed_spread
from vitscale.analysis.repeats.seeds import seed_statistics
from vitscale.analysis.repeats.stability import (
    optimizer_gap,
    optimizer_gap_interaction,
    training_length,
    training_length_interaction,
)
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import either, p_value
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.metrics import ERROR, Metric
from vitscale.plan.study import Study

MAX_PANELS = 6  # with a sentence of their own; more are told by their extremes
ALPHA = 0.05
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
OVER_IMAGES = ("seed_spread", "agreement")  # tables with intervals over images as well
BIASED = "Diverged trials end sooner than others, so shares of an unfinished study are biased."


def headline(results: Results) -> list[str]:
    """Numbers of runs by status, then the answers of the study's tables; without any, the mean of
    each arm.
    """
    functions = [answer for name, answer in ANSWERS.items() if name in results.study.tables]
    sentences = [
        sentence for answer in functions or [_mean_sentences] for sentence in answer(results)
    ]
    return [progress_of_runs(results.trials), *sentences]


def _mean_sentences(results: Results) -> list[str]:
    return [_mean_sentence(row, results.metric) for _, row in results.once(arm_means).iterrows()]


def _mean_sentence(row: pd.Series, metric: Metric) -> str:
    mean, low, high = (row[f"mean_error_pct{end}"] for end in ("", "_low", "_high"))
    ended = estimates.describe_counts({STATUSES[0]: row["n"], **row[list(STATUSES[1:])]})
    if np.isnan(mean):
        return f"{row['arm']}: no run finished ({ended})."
    ends = ", ".join(metric.number(end, 2) for end in (low, high))
    ends = "no interval" if np.isnan(low) else f"[{ends}]"
    found = f"mean {metric.label} {metric.text(mean, 2)}"
    return f"{row['arm']}: {found} ({ends}, {ended})."


def progress_of_runs(outcomes: pd.DataFrame) -> str:
    total = estimates.counts(outcomes)
    return (
        f"Of {len(outcomes)} runs: {', '.join(f'{total[status]} {status}' for status in STATUSES)}."
    )


def _gap_sentences(results: Results) -> list[str]:
    """How often a gap is shown and how many runs diverged; then
    the gaps, model by model where these are few.
    """
    table = results.once(optimizer_gap)
    shown, tested = table["gap_p_holm"] < ALPHA, int(table["gap_p"].notna().sum())
    worse, better = (
        int((shown & of).sum()) for of in (table["gap_points"] > 0, table["gap_points"] < 0)
    )
    ended = ", ".join(
        f"{table[f'diverged_{name}'].sum()} with {label}" for name, label in OPTIMIZERS.items()
    )
    first = (
        f"SGD against AdamW, {len(table)} pairs of a model and a length: SGD has the higher "
        f"{results.metric.label} "
        f"in {worse}, the lower in {better} (p after Holm below 5%), no difference shown in "
        f"{tested - worse - better}, no interval in {len(table) - tested}. Diverged runs: {ended}."
    )
    return [
        first,
        *_by_model(table, "gap", "SGD minus AdamW", results.metric),
        *_rank_sentences(table, "SGD", "AdamW"),
    ]


def _length_sentences(results: Results) -> list[str]:
    """What shorter schedules cost, model by model where these are few."""
    table = results.once(training_length)
    shown = int(((table["delta_p_holm"] < ALPHA) & (table["delta_points"] > 0)).sum())
    first = (
        f"A shorter schedule is shown to be worse than the longest in {shown} of {len(table)} "
        "pairs (Holm, 5%)."
    )
    above = f"{results.metric.label} above that of the longest schedule"
    ranks = _rank_sentences(table, "the shorter schedule", "the longest")
    return [first, *_by_model(table, "delta", above, results.metric), *ranks]


def _rank_sentences(table: pd.DataFrame, a: str, b: str) -> list[str]:
    """Pairs of arms with unfinished runs, compared with those runs as the worst and by their
    number.
    """
    some = table[table["diverged_p"].notna()]
    if some.empty:
        return []
    more, worse = (
        some["diverged_p_holm"] < ALPHA,
        (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] > 0.5),
    )
    better = (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] < 0.5)
    return [
        f"Runs diverged or failed in {len(some)} pairs, and are the worst in this comparison: {a} "
        f"ranks behind {b} in {worse.sum()} and ahead in {better.sum()} of them; that the numbers "
        f"of such runs differ is shown in {more.sum()} (Mann and Whitney's, Fisher's exact test; "
        "p after Holm below 5%)."
    ]


def _interaction_of_gap(results: Results) -> list[str]:
    """Whether SGD costs one model more than another."""
    table = results.once(optimizer_gap_interaction)
    return _between_models(table, "SGD minus AdamW", results.metric)


def _interaction_of_length(results: Results) -> list[str]:
    """Whether a short schedule costs one model more than another."""
    return _between_models(
        results.once(training_length_interaction),
        f"{results.metric.label} above that of the longest schedule",
        results.metric,
    )


def _between_models(table: pd.DataFrame, what: str, metric: Metric) -> list[str]:
    """How often models are shown to differ in an effect;
    with the numbers for a single pair of models.
    """
    if table.empty:
        return []
    shown, tested = table["interaction_p_holm"] < ALPHA, int(table["interaction_p"].notna().sum())
    pairs = list(table.groupby(["a", "b"], sort=False))
    first = (
        f"{what}, compared between models: the difference is shown in {shown.sum()} of "
        f"{len(table)} comparisons (p after Holm below 5%), no interval in {len(table) - tested}."
    )
    if len(pairs) > MAX_PANELS:
        return [first]
    return [
        first,
        *(
            f"{a} minus {b}: "
            f"{'; '.join(_one_interaction(row, metric) for _, row in of.iterrows())}."
            for (a, b), of in pairs
        ),
    ]


def _one_interaction(row: pd.Series, metric: Metric) -> str:
    text = _at_length(row, "interaction", metric)
    return (
        text if pd.isna(row["interaction_p"]) else f"{text}, {p_value(row['interaction_p_holm'])}"
    )


def _by_model(table: pd.DataFrame, name: str, what: str, metric: Metric) -> list[str]:
    """One sentence per model with the difference at each length."""
    groups = list(table.groupby("model", sort=False))
    if len(groups) > MAX_PANELS:
        return []
    parts = {
        str(model): [_at_length(row, name, metric) for _, row in rows.iterrows()]
        for model, rows in groups
    }
    return [f"{model}, {what}: {'; '.join(of_model)}." for model, of_model in parts.items()]


def _at_length(row: pd.Series, name: str, metric: Metric) -> str:
    point = f"{name}_points"
    if pd.isna(row[point]):
        return f"{row['epochs']} epochs none ({row[f'{name}_method']})"
    low, high = (metric.number(row[f"{point}{end}"]) for end in ("_low", "_high"))
    ends = f" [{low}, {high}]" if pd.notna(row[f"{point}_low"]) else ", no interval"
    return f"{row['epochs']} epochs {metric.number(row[point])}{ends}"


def _seed_sentences(results: Results) -> list[str]:
    """Mean, spread and range for each arm and evaluation set, and the position of the reference
    run.
    """
    table = results.once(seed_statistics)
    return [_seed_sentence(row, results.metric) for _, row in table.iterrows()]


def _seed_sentence(row: pd.Series, metric: Metric) -> str:
    what = f"{row['arm']}, {metric.label} on {row['evaluation']}"
    if row["n"] < 2:
        return f"{what}: n={row['n']}, no distribution yet."
    number, unit = metric.number, "%" if metric.unit == "%" else f" {metric.unit}"
    apart = f" {metric.difference_unit}"
    mean, sd = (
        _with_ends(row, key, lambda value: number(value, 2), after=of)
        for key, of in (("mean_error_pct", unit), ("sd_points", apart))
    )
    extremes = f"{number(row['min_error_pct'], 2)} to {number(row['max_error_pct'], 2)}{unit}"
    sentence = (
        f"{what}: mean {mean}, sd {sd}, {extremes} over "
        f"n={row['n']} seeds, {row['diverged']} diverged"
    )
    if pd.isna(row["reference_z"]):
        return f"{sentence}."
    return (
        f"{sentence}; the reference run, {metric.text(row['reference_error_pct'], 2)}, is "
        f"{row['reference_z']:+.1f} sd from the mean."
    )


def _with_ends(
    row: pd.Series, name: str, number: Callable[[float], str], unit: str = "", after: str = ""
) -> str:
    """A number with its interval, if it has one; `after`: a unit behind both."""
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if np.isnan([low, high]).any():
        return f"{number(value)}{unit}{after} (no interval)"
    return f"{number(value)}{unit} [{number(low)}, {number(high)}]{after}"


def _spread_sentences(results: Results) -> list[str]:
    """How much of the spread is due to the seeds, which runs are not known, and a prediction of the
    next seed.
    """
    table = results.once(seed_spread)
    known = table[table["seed_sd_points"].notna()]
    return [
        *(_spread_sentence(row) for _, row in known.iterrows()),
        *_without_bits(results, table),
        *_next_seed(results),
    ]


def _spread_sentence(row: pd.Series) -> str:
    share = _with_ends(row, "seed_share_pct", "{:.0f}".format, "%")
    sd = _with_ends(row, "seed_sd_points", "{:.2f}".format, " points")
    mean = _with_ends(row, "mean_error_pct", "{:.2f}".format, "%")
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


def _agreement_sentences(results: Results) -> list[str]:
    """Agreement and error consistency of each pair that has an interval."""
    table = results.once(agreement)
    known = table[table["kappa_low"].notna()]
    if len(known) > MAX_PANELS:
        return []
    return [_agreement_sentence(row) for _, row in known.iterrows()]


def _agreement_sentence(row: pd.Series) -> str:
    who = f"Two seeds of {row['a']}" if row["a"] == row["b"] else f"{row['a']} and {row['b']}"
    share = _with_ends(row, "agreement_pct", "{:.1f}".format, "%")
    kappa = _with_ends(row, "kappa", "{:.2f}".format)
    return (
        f"{who} agree on {share} of the images of {row['evaluation']}, by chance on "
        f"{row['chance_pct']:.1f}%: error consistency {kappa}."
    )


def _interaction_sentences(results: Results) -> list[str]:
    """The better architecture under each recipe on each set, whether the winner changes, and the
    interactions.
    """
    table = results.once(recipe_interaction)
    simple, crossed = winners(table), table[table["kind"] == "interaction"]
    verdicts = [
        (f"{row['winner'] or 'no difference shown'} under {row['recipe']} on {row['evaluation']}")
        for _, row in simple.iterrows()
    ]
    changes = (simple[simple["winner"] != ""].groupby(["a", "b"])["winner"].nunique() > 1).any()
    verdict = "so the winner changes" if changes else "no change of winner is shown"
    parts = [
        f"{_difference(row, results.metric)} on {row['evaluation']}"
        for _, row in crossed.iterrows()
    ]
    return [
        f"Lower {results.metric.label} (p after Holm below 5%): {'; '.join(verdicts)}; {verdict}.",
        f"Interaction of recipe and architecture: {'; '.join(parts)} (p after Holm).",
    ]


def _difference(row: pd.Series, metric: Metric) -> str:
    low, high = row["difference_points_low"], row["difference_points_high"]
    if pd.isna(low):
        return f"no interval ({row['method']})"
    return (
        f"{metric.number(row['difference_points'])} [{metric.number(low)}, {metric.number(high)}] "
        f"{metric.difference_unit}, "
        f"{p_value(row['difference_p_holm'])}"
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


ANSWERS: dict[str, Callable[[Results], list[str]]] = {  # table -> its answer
    **comparisons.ANSWERS,
    "optimizer_gap": _gap_sentences,
    "optimizer_gap_interaction": _interaction_of_gap,
    "training_length": _length_sentences,
    "training_length_interaction": _interaction_of_length,
    "seed_statistics": _seed_sentences,
    "seed_spread": _spread_sentences,
    "agreement": _agreement_sentences,
    "recipe_interaction": _interaction_sentences,
}
KIND = Kind(
    name="repeats",
    tables=registry.load(registry.TABLES, "repeats"),
    figures=registry.load(registry.FIGURES, "repeats"),
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design_text=design_text,
)
