"""What a report says of error distribution functions, and its numbers in a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from vitscale.analysis.distribution import figures, tables
from vitscale.analysis.distribution.explanation import explanation
from vitscale.analysis.distribution.forgiveness import UNTESTED
from vitscale.analysis.distribution.population import counts_of, populations, still_missing
from vitscale.analysis.distribution.tables import arm_comparison, edf_summary
from vitscale.analysis.kind import Kind, Summary, named
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import either, p_value
from vitscale.analysis.results import STATUSES, Results, panels
from vitscale.plan.doubts import without_references
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

MAX_PANELS = 6  # with a sentence of their own; more are told by their extremes
MAX_ARMS = 4  # in one sentence
ALPHA = 0.05
METRICS = (
    "n",
    "diverged",
    "failed",
    "missing",
    "not_counted",
    "num_beyond_10_points",
    "reference_error_pct",
    *(
        f"{name}{end}"
        for end in ("", "_low", "_high")
        for name in (
            "median_error_pct",
            "within_4_points_pct",
            "within_1.5_times_pct",
            "area",
            "error_ratio",
        )
    ),
)
PREFIX = (
    "Diverged trials end sooner than others, so all that have ended would hold too many: only the "
    "draws before the first missing one of their arm, in the order of the plan, are in a number "
    "or a curve"
)


def headline(results: Results) -> list[str]:
    """How much is done, what share ends near its reference in each panel, which arms differ in
    forgiveness.

    Forgiveness is told on two scales, and where they disagree. Absolute error comes last, in a
    sentence of its own.
    """
    table = results.once(edf_summary).set_index("arm", drop=False)
    groups = panels(results.study)
    sentences = [_progress(results)]
    if len(groups) <= MAX_PANELS:
        sentences += [
            _panel_sentence(
                title,
                table.loc[list(arms)],
                labels_within(results.study, arms),
                results.metric,
            )
            for title, arms in groups.items()
        ]
    else:
        labels = {arm: arm for arm in results.study.arms}
        sentences.append(_panel_sentence("All panels", table, labels, results.metric))
    return sentences + (_pairs_sentences(results) if results.study.pairs else [])


def reference_problems(results: Results) -> list[str]:
    """What happened to reference runs that diverged or
    failed, a part of a sentence for each arm.
    """
    parts = []
    for draws in (results.once(populations)[arm] for arm in results.study.arms):
        bad = draws.reference_counts["diverged"] + draws.reference_counts["failed"]
        if bad:
            parts.append(
                f"{bad} of {sum(draws.reference_counts.values())} reference runs of {draws.arm}"
            )
    return parts


def _progress(results: Results) -> str:
    arms = [results.once(populations)[arm] for arm in results.study.arms]
    total = {status: sum(draws.counts[status] for draws in arms) for status in STATUSES}
    said = ", ".join(f"{total[status]} {status}" for status in STATUSES)
    later = sum(draws.not_counted for draws in arms)
    said += f", {later} not counted, after the first missing one of their arm" if later else ""
    without = [
        draws.arm
        for draws in arms
        if sum(draws.reference_counts.values()) and not len(draws.references)
    ]
    bad = reference_problems(results)
    note = f"; no finished reference run of {', '.join(without)}" if without else ""
    note += f"; {', '.join(bad)} diverged or failed" if bad else ""
    return f"Of {sum(total.values()) + later} draws: {said}{note}."


def labels_within(study: Study, names: Sequence[str]) -> dict[str, str]:
    """Arm -> the values of its factors that differ among these arms; the arm's name where they do
    not tell it apart.
    """
    factors = [study.arms[name].factors for name in names]
    differ = [key for key in factors[0] if len({of[key] for of in factors}) > 1]
    labels = [", ".join(str(of[key]) for key in differ) for of in factors]
    return dict(zip(names, labels if len(set(labels)) == len(names) > 1 else names, strict=True))


def _panel_sentence(
    title: str, table: pd.DataFrame, labels: Mapping[str, str], metric: Metric
) -> str:
    known = table[table["n"] > 0]
    if known.empty:
        return f"{title}: no outcome yet."
    shares = bool(known["within_4_points_pct"].notna().all())
    key = "within_4_points_pct" if shares else "median_error_pct"
    if len(known) > MAX_ARMS:
        title = f"{title}, highest and lowest of {len(known)} arms"
        known = known.loc[[known[key].idxmax(), known[key].idxmin()]]
    names = [labels[arm] for arm in known["arm"]]
    parts = [
        f"{name} {_estimates(row, key, metric)} ({_said(row, metric)})"
        for name, (_, row) in zip(names, known.iterrows(), strict=True)
    ]
    what = (
        f"draws within {metric.apart(metric.near)}, and 1.5 times the {metric.label}, of their "
        "reference"
        if shares
        else f"median {metric.label}"
    )
    return f"{title}, {what}: {'; '.join(parts)}."


def _estimates(row: pd.Series, key: str, metric: Metric) -> str:
    """The share within `near` with that on the other scale, or the median."""
    if key == "within_4_points_pct":
        return f"{_estimate(row, key)} and {_estimate(row, 'within_1.5_times_pct')}"
    low, high = (metric.number(row[f"{key}{end}"], 0) for end in ("_low", "_high"))
    return f"{metric.text(row[key], 0)} [{low}, {high}]"


def _estimate(row: pd.Series, key: str) -> str:
    return f"{row[key]:.0f}% [{row[f'{key}_low']:.0f}, {row[f'{key}_high']:.0f}]"


def _said(row: pd.Series, metric: Metric) -> str:
    counts = [
        f"{row[status]} {status}" for status in STATUSES[1:] if row[status] or status == "diverged"
    ]
    beyond = row["num_beyond_10_points"]
    return ", ".join(
        [
            f"n={row['n']}",
            *counts,
            *([] if pd.isna(beyond) else [f"{beyond} beyond {metric.apart(metric.beyond)}"]),
        ]
    )


def _pairs_sentences(results: Results) -> list[str]:
    """Only a pair whose corrected p is below 5% and whose
    interval leaves out no difference is said to differ.
    """
    table, metric = results.once(arm_comparison), results.metric
    alone = without_references(results.study)
    never = table["a"].isin(alone) | table["b"].isin(alone)
    points = _compared(table, "area", "area_difference", 0.0, _area, never)
    ratios = _compared(table, "error_ratio", "error_ratio_a_over_b", 1.0, _ratio, never)
    error = _compared(
        table, "error", "error_prob_a_lower", 0.5, _lower, pd.Series(False, index=table.index)
    )
    corrected = f" (p after Holm over {len(table)} pairs)" if len(table) > 1 else ""
    return [
        (
            f"Forgiveness in {metric.difference_unit} of {metric.label}, area from 0 to "
            f"{metric.apart(metric.beyond)} above the reference: {points}{corrected}."
        ),
        f"Forgiveness as a ratio, {metric.label} over reference: {ratios}{corrected}."
        f"{_scales(table)}",
        f"Absolute {metric.label}, which is another question: {error}{corrected}.",
    ]


def _scales(table: pd.DataFrame) -> str:
    """Where the two scales of forgiveness disagree: what is
    shown on one alone is a statement about the scale.
    """
    points, ratios = (
        _favours(table, *of)
        for of in (("area", "area_difference", 0.0), ("error_ratio", "error_ratio_a_over_b", 1.0))
    )
    ratios = -ratios  # a low ratio is forgiving
    if not (points.any() or ratios.any()):
        return ""
    apart = table[points != ratios]
    if apart.empty:
        return " Both scales agree in what they show."
    if len(apart) > MAX_ARMS:
        return (
            f" THE TWO SCALES DISAGREE for {len(apart)} of {len(table)} pairs: what only one "
            "shows hangs on it."
        )
    return (
        f" THE TWO SCALES DISAGREE for {'; '.join(_names(row) for _, row in apart.iterrows())}: "
        "what only one shows hangs on the scale."
    )


def _favours(table: pd.DataFrame, kind: str, estimate: str, null: float) -> pd.Series:
    """Of each pair 1 where a difference is shown that is above null, -1 where below, else 0."""
    low, high = table[f"{estimate}_low"] > null, table[f"{estimate}_high"] < null
    return (table[f"{kind}_p_holm"] < ALPHA) * (low.astype(int) - high.astype(int))


def _compared(
    table: pd.DataFrame,
    kind: str,
    estimate: str,
    null: float,
    say: Callable[[pd.Series], str],
    never: pd.Series,
) -> str:
    """Pairs that differ, in words; those that do not, with their p where they are few; and those
    not compared.

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
            "no difference shown for ",
            [f"{_names(row)}, {p_value(row[f'{kind}_p_holm'])}" for _, row in same.iterrows()],
        )
    single = (table[f"{kind}_method"] == UNTESTED) & ~never
    for reason, of in (
        ("not tested with ONE reference run per arm, whose noise is unknown", single),
        ("not compared: no reference runs planned", never),
        ("not compared yet", ~tested & ~single & ~never),
    ):
        if of.any():
            parts.append(
                f"{of.sum()} of {len(table)} {'pair' if len(table) == 1 else 'pairs'} {reason}"
            )
    return ". ".join(
        [parts[0], *(part.replace("no difference", "No difference", 1) for part in parts[1:])]
    )


def _listed(what: str, parts: list[str]) -> list[str]:
    """One text that opens with `what`, with the first few parts; none for no part."""
    more = [f"and {len(parts) - MAX_ARMS} more pairs"] if len(parts) > MAX_ARMS else []
    return [f"{what}{'; '.join(parts[:MAX_ARMS] + more)}"] if parts else []


def _names(row: pd.Series) -> str:
    return f"{row['a']} against {row['b']}"


def _area(row: pd.Series) -> str:
    """The more forgiving arm first, with the difference of the areas."""
    name = "area_difference"
    better, worse, area, low, high = (
        row["a"],
        row["b"],
        row[name],
        row[f"{name}_low"],
        row[f"{name}_high"],
    )
    if area < 0:
        better, worse, area, low, high = worse, better, -area, -high, -low
    p = p_value(row["area_p_holm"])
    return f"{better} is more forgiving than {worse} by {area:.2f} [{low:.2f}, {high:.2f}], {p}"


def _ratio(row: pd.Series) -> str:
    """The arm that stays nearer to its reference first, with
    the ratio of the other's error ratio to its own.
    """
    name = "error_ratio_a_over_b"
    better, worse, ratio, low, high = (
        row["b"],
        row["a"],
        row[name],
        row[f"{name}_low"],
        row[f"{name}_high"],
    )
    if ratio < 1:
        better, worse, ratio, low, high = worse, better, 1 / ratio, 1 / high, 1 / low
    times = f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
    return (
        f"{worse} is {times} times as far above its reference as {better}, "
        f"{p_value(row['error_ratio_p_holm'])}"
    )


def _lower(row: pd.Series) -> str:
    """The better arm first, its probability of the lower error with the interval."""
    name = "error_prob_a_lower"
    better, worse, prob, low, high = (
        row["a"],
        row["b"],
        row[name],
        row[f"{name}_low"],
        row[f"{name}_high"],
    )
    if prob < 0.5:
        better, worse, prob, low, high = worse, better, 1 - prob, 1 - high, 1 - low
    pairs = (
        f"{row['n_a']} shared points"
        if row["paired"]
        else f"random pairs (n={row['n_a']} and {row['n_b']})"
    )
    interval = f"{100 * prob:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"
    return (
        f"{better} is lower than {worse} at {interval} of {pairs}, {p_value(row['error_p_holm'])}"
    )


# ---- what a reader must know


def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    configs = [trial.config for trial in results.study.trials]
    splits = ", ".join(sorted({config.eval_split for config in configs}))
    sentences = [
        f"Reported is {metric_label(results.study)} of the last epoch on the split: {splits}. No "
        f"epoch is selected: {results.metric.column('best_error_pct')}, the minimum over epochs, "
        "is in "
        "the table of trials "
        "and in no figure here.",
        (
            f"Diverged and failed draws stay in every share and median: {_worst(results.metric)} "
            "Missing draws have no outcome yet and are in no number but their count."
        ),
        _seeds(results.study),
        *_references(results),
        _independence(results.study),
        (
            "All intervals and p are conditional on the held-out images: they are about training "
            "on this held-out split, not about other images."
        ),
    ]
    if (results.trials["status"] == "missing").any():
        sentences.append(f"{PREFIX}.")
    if (num := len(results.study.pairs)) > 1:
        sentences.append(
            f"{num} pairs are compared: p_holm is corrected for that, over each kind of comparison "
            "separately, p is not."
        )
    sentences.append(
        "Intervals are 95% each; those of different arms and rows are not corrected for their "
        "number."
    )
    return sentences


def _worst(metric: Metric) -> str:
    if metric.is_bounded:
        return f"they count as {metric.text(metric.worst, 0)} {metric.label}."
    return (
        f"they count as an infinite {metric.label}, for no finite one is the worst. An arm with "
        "such a "
        "draw has no mean ratio to its reference."
    )


def _seeds(study: Study) -> str:
    seeds = sorted({trial.config.seed for trial in study.trials if trial.point is not None})
    how = seeding(study)
    if how == "one":
        return (
            f"All draws share seed {seeds[0]} (initial weights and order of samples): every "
            "interval and p is conditional on it, and another seed may move an arm as a whole."
        )
    if how in ("shared", "own"):
        shared = ", shared by the arms at a point" if how == "shared" else ""
        return f"Each draw has a seed of its own{shared}, so seed noise is part of the spread."
    shown = ", ".join(map(str, seeds[:8])) + (
        f" and {len(seeds) - 8} more" if len(seeds) > 8 else ""
    )
    return f"Seeds of the draws: {shown or 'none'}. Each draw is one training with one seed."


def seeding(study: Study) -> str:
    """How draws got their seeds: "one" for all; "own" for each of
    an arm, or so and "shared" by arms; or "other".
    """
    draws = [trial for trial in study.trials if trial.point is not None]
    if len({trial.config.seed for trial in draws}) == 1:
        return "one"
    pairs = {(trial.point, trial.config.seed) for trial in draws}
    num = len({trial.point for trial in draws})
    if draws and len(pairs) == num == len({seed for _, seed in pairs}):
        return "shared" if len({trial.arm.name for trial in draws}) > 1 else "own"
    of_arm = {(trial.arm.name, trial.config.seed) for trial in draws}
    return "own" if draws and len(of_arm) == len(draws) else "other"


def _references(results: Results) -> list[str]:
    arms = [
        draws
        for draws in (results.once(populations)[arm] for arm in results.study.arms)
        if sum(draws.reference_counts.values())
    ]
    if not arms:
        return []
    planned = {sum(draws.reference_counts.values()) for draws in arms}
    runs = "ONE run" if planned == {1} else f"the mean of {either(planned)} runs"
    noise = (
        "which shifts every delta of the arm, is unknown: shares, areas, ratios and bands are "
        "given the reference, and no test of forgiveness is made"
        if planned == {1}
        else (
            "is in the intervals of shares, areas and ratios, in the bands, and in the "
            "comparisons of areas and ratios; the comparison of shares is given the references"
        )
    )
    sentences = [
        (
            f"The reference of an arm is {runs} at a setting found good beforehand. Its noise "
            f"{noise}."
        )
    ]
    bad = reference_problems(results)
    if bad:
        sentences.append(
            f"Diverged or failed: {', '.join(bad)}; a reference is the mean of those that finished."
        )
    beaten = [
        f"{draws.num_better} of {draws.n} of {draws.arm}"
        for draws in arms
        if draws.n and draws.num_better
    ]
    if beaten:
        sentences.append(
            f"Draws with a lower {results.metric.label} than the reference: {', '.join(beaten)}. "
            "A reference that "
            "many draws beat was not an optimum."
        )
    return sentences


def _independence(study: Study) -> str:
    given = {"one": "with the same seed", "other": "with the same seeds"}.get(
        seeding(study), "and other seeds"
    )
    if study.num_scrambles:
        return (
            f"The draws are {study.num_scrambles} independent scrambles of a Sobol sequence; "
            "intervals rest on the spread between the scrambles, or on the interval of "
            f"independent draws where all scrambles agree. They are about other scrambles {given}."
        )
    return (
        "Draws are independent; intervals are about other draws from the same intervals of lr and "
        f"wd, {given}."
    )


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    arms = list(results.once(populations).values())
    later = sum(draws.not_counted for draws in arms)
    return still_missing(
        arms, f"{PREFIX}; {later} with an outcome are not." if later else f"{PREFIX}."
    )


def counts(results: Results) -> pd.DataFrame:
    """A row per arm: how its draws and its reference runs ended."""
    return counts_of(list(results.once(populations).values()))


def design_text(study: Study) -> str:
    """What was planned."""
    draws = sum(trial.point is not None for trial in study.trials)
    how = (
        f"{study.num_scrambles} scrambles of a Sobol sequence an arm"
        if study.num_scrambles
        else "independent draws"
    )
    return (
        f"{len(study.arms)} arms, {draws} draws ({how}) and {len(study.trials) - draws} reference "
        "runs, which are no draws. All were fixed before the first training; none is stopped "
        "early or chosen by its result. Parameters and multiply-adds are those of the arm's first "
        "trial, at its resolution."
    )


def summary(results: Results) -> Summary:
    """Counts, shares, area, ratio and median of each arm, with the ends of their intervals."""
    table = (
        results.once(edf_summary).set_index("arm")[list(METRICS)].astype("Float64").astype(float)
    )
    return {
        str(arm): {str(name): float(value) for name, value in row.dropna().items()}
        for arm, row in table.iterrows()
    }


KIND = Kind(
    name="distribution",
    tables=named(tables.TABLES),
    figures=named(figures.FIGURES),
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design_text=design_text,
    explain=explanation,
)
