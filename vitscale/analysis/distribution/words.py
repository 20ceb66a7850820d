"""Sentences of a report about error distribution functions, and its summary for MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from vitscale.analysis import registry
from vitscale.analysis.columns import interval_of
from vitscale.analysis.distribution.budget import tuning_budget, tuning_crossings
from vitscale.analysis.distribution.explanation import explanation
from vitscale.analysis.distribution.forgiveness import LEAST_REFERENCES, UNTESTED
from vitscale.analysis.distribution.population import counts_of, populations, still_missing
from vitscale.analysis.distribution.tables import arm_comparison, edf_summary
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.report.text import about, either, p_value
from vitscale.analysis.results import STATUSES, Results, panels
from vitscale.plan.metrics import Metric, fixed
from vitscale.plan.plan_warnings import without_references
from vitscale.plan.study import Study

MAX_PANELS = 6  # that a sentence lists; of more, only the extremes are stated
MAX_ARMS = 4  # in one sentence
ALPHA = 0.05
FEW = 4  # draws of a small tuning budget, whose best value is among the numbers of an arm
METRICS = (
    "n",
    "diverged",
    "failed",
    "missing",
    "not_counted",
    "num_beyond",
    "reference",
    *(
        f"{name}{end}"
        for end in ("", "_low", "_high")
        for name in (
            "median",
            "within_near_pct",
            "within_1.5_times_pct",
            "area",
            "ratio",
        )
    ),
)
PREFIX = (
    "Diverged trials end sooner than others and would be overrepresented among ended trials: "
    "numbers and curves include only the draws before the first missing one of their arm, in the "
    "order of the plan"
)


def headline(results: Results) -> list[str]:
    """Progress, shares near the reference per panel, and the pairs that differ in forgiveness.

    Forgiveness is stated on two scales, with a note if they disagree. Absolute error comes last, in
    a sentence of its own.
    """
    table = results.once(edf_summary).set_index("arm", drop=False)
    groups = panels(results.study)
    sentences = [_progress(results)]
    if len(groups) <= MAX_PANELS:
        shares = [
            _panel_sentence(
                title or "All arms",  # a figure of one panel may have no title
                table.loc[list(arms)],
                labels_within(results.study, arms),
                results.metric,
            )
            for title, arms in groups.items()
        ]
    else:
        labels = {arm: arm for arm in results.study.arms}
        shares = [_panel_sentence("All panels", table, labels, results.metric)]
    sentences += about("edf_summary", shares)
    if results.study.pairs:
        sentences += about("arm_comparison", _pairs_sentences(results))
    if _shows_budget(results.study):
        sentences += about("tuning_crossings", _budget_sentences(results))
    return sentences


def reference_problems(results: Results) -> list[str]:
    """For each arm with diverged or failed reference runs, a phrase that says so."""
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
    ended = ", ".join(f"{total[status]} {status}" for status in STATUSES)
    later = sum(draws.not_counted for draws in arms)
    ended += f", {later} not counted, after the first missing one of their arm" if later else ""
    without = [
        draws.arm
        for draws in arms
        if sum(draws.reference_counts.values()) and not len(draws.references)
    ]
    bad = reference_problems(results)
    note = f"; no finished reference run of {', '.join(without)}" if without else ""
    note += f"; {', '.join(bad)} diverged or failed" if bad else ""
    return f"Of {sum(total.values()) + later} draws: {ended}{note}."


def labels_within(study: Study, names: Sequence[str]) -> dict[str, str]:
    """Arm -> the factor values that distinguish it among these arms.

    Arms that their factors do not distinguish keep their names.
    """
    factors = [study.arms[name].factors for name in names]
    differ = [key for key in factors[0] if len({levels[key] for levels in factors}) > 1]
    labels = [", ".join(str(levels[key]) for key in differ) for levels in factors]
    return dict(zip(names, labels if len(set(labels)) == len(names) > 1 else names, strict=True))


def _panel_sentence(
    title: str, table: pd.DataFrame, labels: Mapping[str, str], metric: Metric
) -> str:
    shown = table[table["n"] > 0]
    if shown.empty:
        return f"{title}: no outcome yet."
    shares = bool(shown["within_near_pct"].notna().all())
    key = "within_near_pct" if shares else "median"
    if len(shown) > MAX_ARMS:
        title = f"{title}, highest and lowest of {len(shown)} arms"
        shown = shown.loc[[shown[key].idxmax(), shown[key].idxmin()]]
    names = [labels[arm] for arm in shown["arm"]]
    parts = [
        f"{name} {_estimates(row, key, metric)} ({_counts(row, metric)})"
        for name, (_, row) in zip(names, shown.iterrows(), strict=True)
    ]
    what = (
        f"draws within {metric.apart(metric.near)}, and 1.5 times the {metric.label}, of their "
        "reference"
        if shares
        else f"median {metric.label}"
    )
    return f"{title}, {what}: {'; '.join(parts)}."


def _estimates(row: pd.Series, key: str, metric: Metric) -> str:
    """The share within `near` and that on the ratio scale, or the median."""
    if key == "within_near_pct":
        return f"{_estimate(row, key)} and {_estimate(row, 'within_1.5_times_pct')}"
    low, high = (metric.number(row[f"{key}{end}"], 0) for end in ("_low", "_high"))
    return f"{metric.text(row[key], 0)} [{low}, {high}]"


def _estimate(row: pd.Series, key: str) -> str:
    point, low, high = (fixed(value, 0) for value in interval_of(row, key))
    return f"{point}% [{low}, {high}]"


def _counts(row: pd.Series, metric: Metric) -> str:
    counts = [
        f"{row[status]} {status}" for status in STATUSES[1:] if row[status] or status == "diverged"
    ]
    beyond = row["num_beyond"]
    return ", ".join(
        [
            f"n={row['n']}",
            *counts,
            *([] if pd.isna(beyond) else [f"{beyond} beyond {metric.apart(metric.beyond)}"]),
        ]
    )


def _pairs_sentences(results: Results) -> list[str]:
    """The comparisons of pairs on the two scales of forgiveness, then in absolute error.

    A pair is said to differ only if its corrected p is below 5% and its interval excludes no
    difference.
    """
    table, metric = results.once(arm_comparison), results.metric
    alone = without_references(results.study)
    never = table["a"].isin(alone) | table["b"].isin(alone)
    points = _compared(table, "area", "area_difference", 0.0, _area, never)
    ratios = _compared(table, "ratio", "ratio_a_over_b", 1.0, _ratio, never)
    error = _compared(
        table, "prob", "prob_a_lower", 0.5, _lower, pd.Series(False, index=table.index)
    )
    corrected = f" (p after Holm over {len(table)} pairs)" if len(table) > 1 else ""
    return [
        (
            f"Forgiveness in {metric.difference_unit} of {metric.label}, area from 0 to "
            f"{metric.apart(metric.beyond)} above the reference: {points}{corrected}."
        ),
        f"Forgiveness as a ratio, {metric.label} over reference: {ratios}{corrected}."
        f"{_scales(table)}",
        f"Absolute {metric.label} (a separate question): {error}{corrected}.",
    ]


def _scales(table: pd.DataFrame) -> str:
    """States where the two scales of forgiveness disagree: such a finding depends on the scale."""
    points, ratios = (
        _favours(table, *columns)
        for columns in (
            ("area", "area_difference", 0.0),
            ("ratio", "ratio_a_over_b", 1.0),
        )
    )
    ratios = -ratios  # a low ratio is forgiving
    both = table["area_p_holm"].notna() & table["ratio_p_holm"].notna()
    if not (both & (points.astype(bool) | ratios.astype(bool))).any():
        return ""
    apart = table[both & (points != ratios)]
    if apart.empty:
        return " Both scales agree in what they show."
    if len(apart) > MAX_ARMS:
        return (
            f" THE TWO SCALES DISAGREE for {len(apart)} of {len(table)} pairs: what only one "
            "shows depends on the scale."
        )
    return (
        f" THE TWO SCALES DISAGREE for {'; '.join(_names(row) for _, row in apart.iterrows())}: "
        "what only one shows depends on the scale."
    )


def _favours(table: pd.DataFrame, kind: str, estimate: str, null: float) -> pd.Series:
    """For each pair 1 if a difference above null is shown, -1 if below, else 0."""
    low, high = table[f"{estimate}_low"] > null, table[f"{estimate}_high"] < null
    return (table[f"{kind}_p_holm"] < ALPHA) * (low.astype(int) - high.astype(int))


def _compared(
    table: pd.DataFrame,
    kind: str,
    estimate: str,
    null: float,
    sentence: Callable[[pd.Series], str],
    never: pd.Series,
) -> str:
    """Pairs that differ, pairs that do not, and pairs that were not compared.

    p is stated where they are few. `never` marks pairs in which an arm has no planned reference
    run.
    """
    tested = table[f"{kind}_p_holm"].notna()
    differs = _favours(table, kind, estimate, null) != 0
    parts = _listed("", [sentence(row) for _, row in table[differs].iterrows()])
    same = table[tested & ~differs]
    if len(same) > MAX_ARMS:
        parts.append(f"no difference shown in {len(same)} of {len(table)} pairs")
    else:
        parts += _listed(
            "no difference shown for ",
            [f"{_names(row)}, {p_value(row[f'{kind}_p_holm'])}" for _, row in same.iterrows()],
        )
    few = (table[f"{kind}_method"] == UNTESTED) & ~never
    for reason, pairs in (
        (f"not tested with fewer than {LEAST_REFERENCES} reference runs per arm", few),
        ("not compared: no reference runs planned", never),
        ("not compared yet", ~tested & ~few & ~never),
    ):
        if pairs.any():
            parts.append(
                f"{pairs.sum()} of {len(table)} {'pair' if len(table) == 1 else 'pairs'} {reason}"
            )
    return ". ".join(
        [parts[0], *(part.replace("no difference", "No difference", 1) for part in parts[1:])]
    )


def _listed(what: str, parts: list[str]) -> list[str]:
    """A one-element list: `what` followed by the first few parts; empty if there are no parts."""
    more = [f"and {len(parts) - MAX_ARMS} more pairs"] if len(parts) > MAX_ARMS else []
    return [f"{what}{'; '.join(parts[:MAX_ARMS] + more)}"] if parts else []


def _names(row: pd.Series) -> str:
    return f"{row['a']} against {row['b']}"


def _area(row: pd.Series) -> str:
    """The more forgiving arm first, with the difference of the areas."""
    better, worse, (area, low, high) = row["a"], row["b"], interval_of(row, "area_difference")
    if area < 0:
        better, worse, area, low, high = worse, better, -area, -high, -low
    p = p_value(row["area_p_holm"])
    by = f"{fixed(area, 2)} [{fixed(low, 2)}, {fixed(high, 2)}]"
    return f"{better} is more forgiving than {worse} by {by}, {p}"


def _ratio(row: pd.Series) -> str:
    """The arm closer to its reference first, with the ratio of the two error ratios."""
    better, worse, (ratio, low, high) = row["b"], row["a"], interval_of(row, "ratio_a_over_b")
    if ratio < 1:
        better, worse, ratio, low, high = worse, better, 1 / ratio, 1 / high, 1 / low
    times = f"{fixed(ratio, 2)} [{fixed(low, 2)}, {fixed(high, 2)}]"
    return (
        f"{worse} is {times} times as far above its reference as {better}, "
        f"{p_value(row['ratio_p_holm'])}"
    )


def _lower(row: pd.Series) -> str:
    """The better arm first, with the probability that it has the lower error."""
    better, worse, (prob, low, high) = row["a"], row["b"], interval_of(row, "prob_a_lower")
    if prob < 0.5:
        better, worse, prob, low, high = worse, better, 1 - prob, 1 - high, 1 - low
    pairs = (
        f"{row['n_a']} shared points"
        if row["paired"]
        else f"random pairs (n={row['n_a']} and {row['n_b']})"
    )
    point, *ends = (fixed(100 * value, 0) for value in (prob, low, high))
    interval = f"{point}% [{', '.join(ends)}]"
    return f"{better} is lower than {worse} in {interval} of {pairs}, {p_value(row['prob_p_holm'])}"


def _shows_budget(study: Study) -> bool:
    return not {"tuning_budget", "tuning_crossings"}.isdisjoint((*study.tables, *study.figures))


def _budget_sentences(results: Results) -> list[str]:
    """At which k the best of k draws of an arm is shown to be lower; nothing if nothing is."""
    table = results.once(tuning_crossings)
    parts = [part for _, row in table.iterrows() for part in _shown_lower(row)]
    if not parts:
        return []
    if results.looks.rule != "fixed":
        return ["Bands of the best of k draws are for n fixed beforehand: nothing is claimed here."]
    return [
        f"Median {results.metric.label} of the best of k draws, chosen on minival: "
        f"{'; '.join(_listed('', parts))} (bands that hold for all k, arms and pairs)."
    ]


def _shown_lower(row: pd.Series) -> list[str]:
    sides = (("a", "b"), ("b", "a"))
    shown = [
        f"{row[better]} is lower than {row[worse]} for k = {_span(row, better)}"
        for better, worse in sides
        if not pd.isna(row[f"{better}_lower_from"])
    ]
    if len(shown) == 2 and not pd.isna(row["crossing"]):
        shown[-1] += f", so that they change places between (estimated at k = {row['crossing']})"
    return shown


def _span(row: pd.Series, arm: str) -> str:
    first, last = row[f"{arm}_lower_from"], row[f"{arm}_lower_to"]
    return f"{first}" if first == last else f"{first} to {last}"


# ---- what a reader must know


def caveats(results: Results) -> list[str]:
    """What a reader must know to interpret the numbers, one sentence each."""
    configs = [trial.config for trial in results.study.trials]
    splits = ", ".join(sorted({config.eval_split for config in configs}))
    sentences = [
        f"The reported metric is {metric_label(results.study)} of the last epoch, on the split: "
        f"{splits}. No epoch is selected: the minimum over epochs, "
        f"{'best_value'}, is only in the table of trials.",
        (
            f"Diverged and failed draws are included in all shares and medians: "
            f"{_worst(results.metric)} Missing draws have no outcome yet and are only counted."
        ),
        _seeds(results.study),
        *_references(results),
        _independence(results.study),
        (
            "All intervals and p are conditional on the held-out images: they generalize over "
            "training runs evaluated on this split, not over other images."
        ),
    ]
    if (results.trials["status"] == "missing").any():
        sentences.append(f"{PREFIX}.")
    if (num := len(results.study.pairs)) > 1:
        sentences.append(
            f"{num} pairs are compared: p_holm is corrected for their number, separately for each "
            "kind of comparison; p is not corrected."
        )
    if results.study.pairs:
        sentences.append(
            "Areas, ratios and absolute values are three questions, each with 5% of false claims: "
            "of studies without any difference, 8 to 9% claim something."
        )
    sentences.append(
        "Each interval is a 95% interval; they are not corrected for the number of arms and rows."
    )
    return sentences


def _worst(metric: Metric) -> str:
    if metric.is_bounded:
        return f"they count as {metric.text(metric.worst, 0)} {metric.label}."
    return (
        f"they count as an infinite {metric.label}, since it is unbounded. An arm with such a draw "
        "has no mean ratio to its reference."
    )


def _seeds(study: Study) -> str:
    seeds = sorted({trial.config.seed for trial in study.trials if trial.point is not None})
    how = seeding(study)
    if how == "one":
        return (
            f"All draws share seed {seeds[0]} (initial weights and order of samples): all "
            "intervals and p are conditional on it, and another seed may shift a whole arm."
        )
    if how in ("shared", "own"):
        shared = ", which the arms share at each point" if how == "shared" else ""
        return f"Each draw has its own seed{shared}, so seed noise is part of the spread."
    shown = ", ".join(map(str, seeds[:8])) + (
        f" and {len(seeds) - 8} more" if len(seeds) > 8 else ""
    )
    return f"Seeds of the draws: {shown or 'none'}. Each draw is one training with one seed."


def seeding(study: Study) -> str:
    """How draws were seeded: "one", "own", "shared" or "other".

    "one": a single seed for all; "own": each draw of an arm has its own; "shared": the same, but
    arms share it at each point.
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
        "which shifts all deltas of the arm, is unknown: shares, areas, ratios and bands are "
        "conditional on the reference, and forgiveness is not tested"
        if planned == {1}
        else (
            "is included in the intervals of shares, areas and ratios, in the bands, and in the "
            "comparisons of areas and ratios; the comparison of shares is conditional on the "
            "references"
        )
    )
    sentences = [
        (
            f"The reference of an arm is {runs} at a setting that was known to be good before the "
            f"study. Its noise {noise}."
        )
    ]
    bad = reference_problems(results)
    if bad:
        sentences.append(
            f"Diverged or failed: {', '.join(bad)}; a reference is the mean of the finished runs."
        )
    beaten = [
        f"{draws.num_better} of {draws.n} of {draws.arm}"
        for draws in arms
        if draws.n and draws.num_better
    ]
    if beaten:
        sentences.append(
            f"Draws with a lower {results.metric.label} than the reference: {', '.join(beaten)}. "
            "A reference that many draws beat is not optimal."
        )
    return sentences


def _independence(study: Study) -> str:
    given = {"one": "with the same seed", "other": "with the same seeds"}.get(
        seeding(study), "and other seeds"
    )
    if study.num_scrambles:
        return (
            f"The draws are {study.num_scrambles} independent scrambles of a Sobol sequence; "
            "intervals are based on the spread between scrambles, or on that of independent draws "
            f"if all scrambles agree. They generalize over scrambles {given}."
        )
    return (
        "Draws are independent; confidence intervals generalize over draws from the same ranges "
        f"of lr and wd, {given}."
    )


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty if nothing is."""
    arms = list(results.once(populations).values())
    later = sum(draws.not_counted for draws in arms)
    return still_missing(
        arms, f"{PREFIX}; {later} with an outcome are excluded." if later else f"{PREFIX}."
    )


def counts(results: Results) -> pd.DataFrame:
    """One row per arm: how its draws and its reference runs ended."""
    return counts_of(list(results.once(populations).values()))


def design_text(study: Study) -> str:
    """The design of the study in sentences."""
    draws = sum(trial.point is not None for trial in study.trials)
    how = (
        f"{study.num_scrambles} scrambles of a Sobol sequence per arm"
        if study.num_scrambles
        else "independent draws"
    )
    return (
        f"{len(study.arms)} arms, {draws} draws ({how}) and {len(study.trials) - draws} reference "
        "runs, which do not count as draws. All were fixed before the first training; no trial is "
        "stopped early or selected by its result. Parameters and multiply-adds are those of the "
        "arm's first trial, at its resolution."
    )


def summary(results: Results) -> Summary:
    """Counts, shares, area, ratio and median of each arm with interval ends, for MLflow."""
    table = (
        results.once(edf_summary).set_index("arm")[list(METRICS)].astype("Float64").astype(float)
    )
    numbers = {
        str(arm): {str(name): float(value) for name, value in row.dropna().items()}
        for arm, row in table.iterrows()
    }
    if _shows_budget(results.study):
        budget = results.once(tuning_budget)
        of_few = budget[budget["k"] == FEW].set_index("arm")["median"]
        for arm, value in of_few.items():
            numbers[str(arm)][f"best_of_{FEW}"] = float(value)
    return numbers


KIND = Kind(
    name="distribution",
    tables=registry.tables("distribution"),
    figures=registry.figures("distribution"),
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design_text=design_text,
    explain=explanation,
)
