"""The answer of a study in a few plain sentences, with n and intervals, claiming no more than the tests do."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from vitscale.analysis import repeats, search, shapes, throughput
from vitscale.analysis.forgiveness import UNTESTED
from vitscale.analysis.interaction import recipe_interaction, winners
from vitscale.analysis.population import STATUSES, panels, population
from vitscale.analysis.seeds import seed_statistics
from vitscale.analysis.stability import (
    optimizer_gap,
    optimizer_gap_interaction,
    training_length,
    training_length_interaction,
)
from vitscale.analysis.tables import arm_comparison, edf_summary
from vitscale.plan.doubts import without_references
from vitscale.plan.study import Study

MAX_PANELS = 6  # with a sentence of their own; more are told by their extremes
MAX_ARMS = 4  # in one sentence
ALPHA = 0.05


def headline(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """How much is done, then the answers of the study's tables: by default those of error distribution functions."""
    if study.adaptive:
        return [search.progress(study, outcomes), *search.answer(study, outcomes)]
    if study.measures:
        return [throughput.progress(study, outcomes), *throughput.answer(study, outcomes)]
    told = [answer for name, answer in ANSWERS.items() if name in study.tables]
    if (repeats.is_repeats(study) or shapes.is_sweep(study)) and told:
        return [_progress_of_runs(outcomes), *(sentence for answer in told for sentence in answer(study, outcomes))]
    return _edf_headline(study, outcomes)


def _edf_headline(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """How much is done, what share ends near its reference in each panel, which arms differ in forgiveness.

    Forgiveness is told on two scales, and where they disagree. Absolute error comes last, in a sentence of its own.
    """
    table = edf_summary(study, outcomes).set_index("arm", drop=False)
    groups = panels(study)
    sentences = [_progress(study, outcomes)]
    if len(groups) <= MAX_PANELS:
        sentences += [_panel_sentence(title, table.loc[list(arms)]) for title, arms in groups.items()]
    else:
        sentences.append(_panel_sentence("All panels", table))
    return sentences + (_pairs_sentences(study, outcomes) if study.pairs else [])


def reference_problems(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """What happened to reference runs that diverged or failed, a part of a sentence for each arm."""
    parts = []
    for draws in (population(study, outcomes, arm) for arm in study.arms):
        bad = draws.reference_counts["diverged"] + draws.reference_counts["failed"]
        if bad:
            parts.append(f"{bad} of {sum(draws.reference_counts.values())} reference runs of {draws.arm}")
    return parts


def _progress(study: Study, outcomes: pd.DataFrame) -> str:
    arms = [population(study, outcomes, arm) for arm in study.arms]
    total = {status: sum(draws.counts[status] for draws in arms) for status in STATUSES}
    said = ", ".join(f"{total[status]} {status}" for status in STATUSES)
    later = sum(draws.not_counted for draws in arms)
    said += f", {later} not counted, after the first missing one of their arm" if later else ""
    without = [draws.arm for draws in arms if sum(draws.reference_counts.values()) and not len(draws.references)]
    bad = reference_problems(study, outcomes)
    note = f"; no finished reference run of {', '.join(without)}" if without else ""
    note += f"; {', '.join(bad)} diverged or failed" if bad else ""
    return f"Of {sum(total.values()) + later} draws: {said}{note}."


def _panel_sentence(title: str, table: pd.DataFrame) -> str:
    panel, known = title, table[table["n"] > 0]
    if known.empty:
        return f"{title}: no outcome yet."
    shares = bool(known["within_4_points_pct"].notna().all())
    key = "within_4_points_pct" if shares else "median_error_pct"
    if len(known) > MAX_ARMS:
        title = f"{title}, highest and lowest of {len(known)} arms"
        known = known.loc[[known[key].idxmax(), known[key].idxmin()]]
    names = [arm.removesuffix(f" {panel}") for arm in known["arm"]]  # no need to say "AdamW" twice
    parts = [f"{name} {_estimates(row, key)} ({_said(row)})"
             for name, (_, row) in zip(names, known.iterrows(), strict=True)]  # fmt: skip
    what = "draws within 4 points, and 1.5 times the error, of their reference" if shares else "median error"
    return f"{title}, {what}: {'; '.join(parts)}."


def _estimates(row: pd.Series, key: str) -> str:
    """The share within 4 points with that on the other scale, or the one number of `key`."""
    first = _estimate(row, key)
    return f"{first} and {_estimate(row, 'within_1.5_times_pct')}" if key == "within_4_points_pct" else first


def _estimate(row: pd.Series, key: str) -> str:
    return f"{row[key]:.0f}% [{row[f'{key}_low']:.0f}, {row[f'{key}_high']:.0f}]"


def _said(row: pd.Series) -> str:
    counts = [f"{row[status]} {status}" for status in STATUSES[1:] if row[status] or status == "diverged"]
    beyond = row["num_beyond_10_points"]
    return ", ".join([f"n={row['n']}", *counts, *([] if pd.isna(beyond) else [f"{beyond} beyond 10 points"])])


def _pairs_sentences(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """Only a pair whose corrected p is below 5% and whose interval leaves out no difference is said to differ."""
    table = arm_comparison(study, outcomes)
    alone = without_references(study)
    never = table["a"].isin(alone) | table["b"].isin(alone)
    points = _compared(table, "area", "area_difference", 0.0, _area, never)
    ratios = _compared(table, "error_ratio", "error_ratio_a_over_b", 1.0, _ratio, never)
    error = _compared(table, "error", "error_prob_a_lower", 0.5, _lower, pd.Series(False, index=table.index))
    corrected = f" (p after Holm over {len(table)} pairs)" if len(table) > 1 else ""
    return [
        f"Forgiveness in points of error, area from 0 to 10 points above the reference: {points}{corrected}.",
        f"Forgiveness as a ratio, error over reference: {ratios}{corrected}.{_scales(table)}",
        f"Absolute error, which is another question: {error}{corrected}.",
    ]


def _scales(table: pd.DataFrame) -> str:
    """Where the two scales of forgiveness disagree: what is shown on one alone is a statement about the scale."""
    points, ratios = (_favours(table, *of) for of in
                      (("area", "area_difference", 0.0), ("error_ratio", "error_ratio_a_over_b", 1.0)))  # fmt: skip
    ratios = -ratios  # a low ratio is forgiving
    if not (points.any() or ratios.any()):
        return ""
    apart = table[points != ratios]
    if apart.empty:
        return " Both scales agree in what they show."
    if len(apart) > MAX_ARMS:
        return f" THE TWO SCALES DISAGREE for {len(apart)} of {len(table)} pairs: what only one shows hangs on it."
    return f" THE TWO SCALES DISAGREE for {'; '.join(_names(row) for _, row in apart.iterrows())}: " \
           "what only one shows hangs on the scale."  # fmt: skip


def _favours(table: pd.DataFrame, kind: str, estimate: str, null: float) -> pd.Series:
    """Of each pair 1 where a difference is shown that is above null, -1 where below, else 0."""
    low, high = table[f"{estimate}_low"] > null, table[f"{estimate}_high"] < null
    return (table[f"{kind}_p_holm"] < ALPHA) * (low.astype(int) - high.astype(int))


def _compared(
    table: pd.DataFrame, kind: str, estimate: str, null: float, say: Callable[[pd.Series], str], never: pd.Series
) -> str:
    """Pairs that differ, in words; those that do not, with their p where they are few; and those not compared.

    `never` marks the pairs of which an arm has no reference run planned.
    """
    tested = table[f"{kind}_p_holm"].notna()
    differs = _favours(table, kind, estimate, null) != 0
    parts = _listed("", [say(row) for _, row in table[differs].iterrows()])
    same = table[tested & ~differs]
    if len(same) > MAX_ARMS:
        parts.append(f"no difference shown in {len(same)} of {len(table)} pairs")
    else:
        parts += _listed(
            "no difference shown for ", [_names(row) + _p(row[f"{kind}_p_holm"]) for _, row in same.iterrows()]
        )
    single = (table[f"{kind}_method"] == UNTESTED) & ~never
    for reason, of in (("not tested with ONE reference run an arm, whose noise is unknown", single),
                       ("not compared: no reference runs planned", never),
                       ("not compared yet", ~tested & ~single & ~never)):  # fmt: skip
        if of.any():
            parts.append(f"{of.sum()} of {len(table)} {'pair' if len(table) == 1 else 'pairs'} {reason}")
    return ". ".join([parts[0], *(part.replace("no difference", "No difference", 1) for part in parts[1:])])


def _listed(what: str, parts: list[str]) -> list[str]:
    """One text that opens with `what`, with the first few parts; none for no part."""
    more = [f"and {len(parts) - MAX_ARMS} more pairs"] if len(parts) > MAX_ARMS else []
    return [f"{what}{'; '.join(parts[:MAX_ARMS] + more)}"] if parts else []


def _names(row: pd.Series) -> str:
    return f"{row['a']} against {row['b']}"


def _area(row: pd.Series) -> str:
    """The more forgiving arm first, with the difference of the areas."""
    name = "area_difference"
    better, worse, area, low, high = row["a"], row["b"], row[name], row[f"{name}_low"], row[f"{name}_high"]
    if area < 0:
        better, worse, area, low, high = worse, better, -area, -high, -low
    return f"{better} is more forgiving than {worse} by {area:.2f} [{low:.2f}, {high:.2f}]{_p(row['area_p_holm'])}"


def _ratio(row: pd.Series) -> str:
    """The arm that stays nearer to its reference first, with the ratio of the other's error ratio to its own."""
    name = "error_ratio_a_over_b"
    better, worse, ratio, low, high = row["b"], row["a"], row[name], row[f"{name}_low"], row[f"{name}_high"]
    if ratio < 1:
        better, worse, ratio, low, high = worse, better, 1 / ratio, 1 / high, 1 / low
    times = f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
    return f"{worse} is {times} times as far above its reference as {better}{_p(row['error_ratio_p_holm'])}"


def _lower(row: pd.Series) -> str:
    """The better arm first, its probability of the lower error with the interval."""
    name = "error_prob_a_lower"
    better, worse, prob, low, high = row["a"], row["b"], row[name], row[f"{name}_low"], row[f"{name}_high"]
    if prob < 0.5:
        better, worse, prob, low, high = worse, better, 1 - prob, 1 - high, 1 - low
    pairs = f"{row['n_a']} shared points" if row["paired"] else f"random pairs (n={row['n_a']} and {row['n_b']})"
    interval = f"{100 * prob:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{better} is lower than {worse} at {interval} of {pairs}{_p(row['error_p_holm'])}"


def _p(p: float) -> str:
    return ", p < 0.001" if p < 0.001 else f", p = {p:.3f}"


# ---- arms that are one setting, trained with several seeds


def _progress_of_runs(outcomes: pd.DataFrame) -> str:
    total = repeats.counts(outcomes)
    return f"Of {len(outcomes)} runs: {', '.join(f'{total[status]} {status}' for status in STATUSES)}."


def _gap_sentences(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """How often a gap is shown and how many runs diverged; then the gaps, model by model where these are few."""
    table = optimizer_gap(study, outcomes)
    shown, tested = table["gap_p_holm"] < ALPHA, int(table["gap_p"].notna().sum())
    worse, better = (int((shown & of).sum()) for of in (table["gap_points"] > 0, table["gap_points"] < 0))
    ended = ", ".join(f"{table[f'diverged_{name}'].sum()} with {label}" for name, label in OPTIMIZERS.items())
    first = (
        f"SGD against AdamW, {len(table)} pairs of a model and a length: SGD has the higher error in {worse}, the "
        f"lower in {better} (p after Holm below 5%), no difference shown in {tested - worse - better}, no interval in "
        f"{len(table) - tested}. Diverged runs: {ended}."
    )
    return [first, *_by_model(table, "gap", "SGD minus AdamW"), *_rank_sentences(table, "SGD", "AdamW")]


def _length_sentences(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """What shorter schedules cost, model by model where these are few."""
    table = training_length(study, outcomes)
    shown = int(((table["delta_p_holm"] < ALPHA) & (table["delta_points"] > 0)).sum())
    first = f"A shorter schedule is shown to be worse than the longest in {shown} of {len(table)} pairs (Holm, 5%)."
    ranks = _rank_sentences(table, "the shorter schedule", "the longest")
    return [first, *_by_model(table, "delta", "error above that of the longest schedule"), *ranks]


def _rank_sentences(table: pd.DataFrame, a: str, b: str) -> list[str]:
    """Pairs of which runs did not finish, compared with such a run as the worst and by how many there are."""
    some = table[table["diverged_p"].notna()]
    if some.empty:
        return []
    more, worse = some["diverged_p_holm"] < ALPHA, (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] > 0.5)
    better = (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] < 0.5)
    return [
        f"Runs diverged or failed in {len(some)} pairs, and are the worst in this comparison: {a} ranks behind {b} in "
        f"{worse.sum()} and ahead in {better.sum()} of them; that the numbers of such runs differ is shown in "
        f"{more.sum()} (Mann and Whitney's, Fisher's exact test; p after Holm below 5%)."
    ]


def _interaction_of_gap(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """Whether SGD costs one model more than another."""
    return _between_models(optimizer_gap_interaction(study, outcomes), "SGD minus AdamW")


def _interaction_of_length(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """Whether a short schedule costs one model more than another."""
    return _between_models(training_length_interaction(study, outcomes), "error above that of the longest schedule")


def _between_models(table: pd.DataFrame, what: str) -> list[str]:
    """How often models are shown to differ in an effect; with the numbers for a single pair of models."""
    if table.empty:
        return []
    shown, tested = table["interaction_p_holm"] < ALPHA, int(table["interaction_p"].notna().sum())
    pairs = list(table.groupby(["a", "b"], sort=False))
    first = (
        f"{what}, compared between models: the difference is shown in {shown.sum()} of {len(table)} comparisons (p "
        f"after Holm below 5%), no interval in {len(table) - tested}."
    )
    if len(pairs) > MAX_PANELS:
        return [first]
    return [first, *(f"{a} minus {b}: {'; '.join(_one_interaction(row) for _, row in of.iterrows())}."
                     for (a, b), of in pairs)]  # fmt: skip


def _one_interaction(row: pd.Series) -> str:
    text = _at_length(row, "interaction")
    return text if pd.isna(row["interaction_p"]) else f"{text}{_p(row['interaction_p_holm'])}"


def _by_model(table: pd.DataFrame, name: str, what: str) -> list[str]:
    """A sentence a model with the difference at each length."""
    groups = list(table.groupby("model", sort=False))
    if len(groups) > MAX_PANELS:
        return []
    return [f"{model}, {what}: {'; '.join(_at_length(row, name) for _, row in of.iterrows())}." for model, of in groups]


def _at_length(row: pd.Series, name: str) -> str:
    point = f"{name}_points"
    if pd.isna(row[point]):
        return f"{row['epochs']} epochs none ({row[f'{name}_method']})"
    low, high = row[f"{point}_low"], row[f"{point}_high"]
    ends = f" [{low:.1f}, {high:.1f}]" if pd.notna(low) else ", no interval"
    return f"{row['epochs']} epochs {row[point]:.1f}{ends}"


def _seed_sentences(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """Mean, spread and range for each arm and evaluation set, and where the reference run stands."""
    return [_seed_sentence(row) for _, row in seed_statistics(study, outcomes).iterrows()]


def _seed_sentence(row: pd.Series) -> str:
    what = f"{row['arm']}, error on {row['evaluation']}"
    if row["n"] < 2:
        return f"{what}: n={row['n']}, no distribution yet."
    mean, sd = (
        f"{row[key]:.2f} [{row[f'{key}_low']:.2f}, {row[f'{key}_high']:.2f}]" for key in ("mean_error_pct", "sd_points")
    )
    ends = f"{row['min_error_pct']:.2f} to {row['max_error_pct']:.2f}%"
    said = f"{what}: mean {mean}%, sd {sd} points, {ends} over n={row['n']} seeds, {row['diverged']} diverged"
    if pd.isna(row["reference_z"]):
        return f"{said}."
    return (
        f"{said}; the reference run, {row['reference_error_pct']:.2f}%, is {row['reference_z']:+.1f} sd from the mean."
    )


def _interaction_sentences(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """What is better under each recipe on each set, whether the winner changes, and the interactions."""
    table = recipe_interaction(study, outcomes)
    simple, crossed = winners(table), table[table["kind"] == "interaction"]
    found = [f"{row['winner'] or 'no difference shown'} under {row['recipe']} on {row['evaluation']}"
             for _, row in simple.iterrows()]  # fmt: skip
    changes = (simple[simple["winner"] != ""].groupby(["a", "b"])["winner"].nunique() > 1).any()
    verdict = "so the winner changes" if changes else "no change of winner is shown"
    parts = [f"{_difference(row)} on {row['evaluation']}" for _, row in crossed.iterrows()]
    return [f"Lower error (p after Holm below 5%): {'; '.join(found)}; {verdict}.",
            f"Interaction of recipe and architecture: {'; '.join(parts)} (p after Holm)."]  # fmt: skip


def _difference(row: pd.Series) -> str:
    low, high = row["difference_points_low"], row["difference_points_high"]
    if pd.isna(low):
        return f"no interval ({row['method']})"
    return f"{row['difference_points']:.1f} [{low:.1f}, {high:.1f}] points{_p(row['difference_p_holm'])}"


OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
ANSWERS: dict[str, Callable[[Study, pd.DataFrame], list[str]]] = {  # table -> its answer
    "optimizer_gap": _gap_sentences,
    "optimizer_gap_interaction": _interaction_of_gap,
    "training_length": _length_sentences,
    "training_length_interaction": _interaction_of_length,
    "seed_statistics": _seed_sentences,
    "recipe_interaction": _interaction_sentences,
    "search_best": search.answer,
    **shapes.ANSWERS,
}
