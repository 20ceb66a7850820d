"""The report of a study: figures, tables and one self-contained page, drawn anew at any time."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitscale.analysis import figures, repeats, search, shape_words, tables, throughput
from vitscale.analysis.files import replaced
from vitscale.analysis.headline import headline, reference_problems
from vitscale.analysis.layout import metric_label
from vitscale.analysis.page import TEMPLATE
from vitscale.analysis.population import STATUSES, Population, population
from vitscale.plan.study import Study, Trial

METRICS = (
    "n", "diverged", "failed", "missing", "not_counted", "num_beyond_10_points", "reference_error_pct",
    *(f"{name}{end}" for end in ("", "_low", "_high")
      for name in ("median_error_pct", "within_4_points_pct", "within_1.5_times_pct", "area", "error_ratio")),
)  # fmt: skip
PREFIX = (
    "Diverged trials end sooner than others, so all that have ended would hold too many: only the draws before the "
    "first missing one of their arm, in the order of the plan, are in a number or a curve"
)
BIASED = "Diverged trials end sooner than others, so shares of an unfinished study are biased."
PROVENANCE = {
    "commit": "Code",
    "versions": "Versions",
    "machine": "Machines",
}  # column -> its name in the report


def write_report(
    study: Study, outcomes: pd.DataFrame, rows: pd.DataFrame, folder: Path, facts: Mapping[str, str]
) -> Path:
    """Write the study's figures and tables and report.html into `folder`; returns the path of report.html.

    outcomes: a row per planned trial; rows: a row per trial and evaluation. `facts` are shown as they are,
    "command" as the way to run it again. Each file is replaced at once. Works on an unfinished study and says
    what is missing. Raises ValueError for a figure or table that does not exist.
    """
    refuse_unknown(study)
    own = _own_words(study)
    whole = repeats.is_repeats(study)  # their numbers are over all runs that finished
    arms = [] if own else [population(study, outcomes, arm, whole) for arm in study.arms]
    page = {
        "study": study, "facts": dict(facts), "headline": headline(study, outcomes),
        "unfinished": own.unfinished(study, outcomes) if own else _unfinished(arms, whole),
        "figures": [_figure(name, study, outcomes, rows, folder) for name in study.figures],
        "tables": [_table(name, study, outcomes, rows, folder) for name in study.tables],
        "design": tables.as_text(_design(study)), "design_words": _design_words(study),
        "populations": tables.as_text(own.counts(study, outcomes) if own else _populations(arms)),
        "honesty": honesty(study, outcomes),
    }  # fmt: skip
    return _write_text(folder / "report.html", _render(page))


def _own_words(study: Study) -> Any:
    """The module with the words of a search, of profiles or of an lr sweep; None for draws and repeats, told here."""
    if shape_words.chooses_lr(study):
        return shape_words
    return search if study.adaptive else throughput if study.measures else None


def refuse_unknown(study: Study) -> None:
    """Raise ValueError if the study names a figure or a table that does not exist, or that is not for such a study.

    Cheap, for before training.
    """
    for kind, names, known in (("figures", study.figures, figures.ALL), ("tables", study.tables, tables.ALL)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"{kind} of a study must be among ({', '.join(known)}), but got ({', '.join(unknown)})")
    search.refuse(study)


def summary_metrics(study: Study, outcomes: pd.DataFrame) -> dict[str, float]:
    """The numbers of the arms under `arm/name`, for whoever shows a study in a line; those that exist."""
    if own := _own_words(study):
        return own.summary(study, outcomes)
    if repeats.is_repeats(study):
        return _repeats_metrics(study, outcomes)
    table = tables.edf_summary(study, outcomes).set_index("arm")[list(METRICS)].astype("Float64").astype(float)
    return {f"{arm}/{name}": value for name in METRICS for arm, value in table[name].dropna().items()}


def _repeats_metrics(study: Study, outcomes: pd.DataFrame) -> dict[str, float]:
    """Counts, mean and sd of the arms of a study whose draws differ in their seed alone, without reference runs."""
    numbers: dict[str, float] = {}
    for arm in study.arms:
        runs = outcomes[(outcomes["arm"] == arm) & outcomes["point"].notna()]
        values, of = repeats.errors(runs), repeats.counts(runs)
        found: dict[str, float] = {"n": len(values), **{status: of[status] for status in STATUSES[1:]}}
        for name, interval in (("mean_error_pct", repeats.error_interval), ("sd_points", repeats.sd_interval)):
            found |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), interval(values), strict=True)}
        numbers |= {f"{arm}/{name}": float(value) for name, value in found.items() if not np.isnan(value)}
    return numbers


def honesty(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    if own := _own_words(study):
        return own.honesty(study, outcomes) + [_provenance(outcomes, *of) for of in PROVENANCE.items()]
    if repeats.is_repeats(study):
        return _honesty_of_repeats(study, outcomes)
    configs = [trial.config for trial in study.trials]
    splits = ", ".join(sorted({config.eval_split for config in configs}))
    sentences = [
        f"Reported is {metric_label(study)} of the last epoch on the split: {splits}. No epoch "
        "is selected: best_error_pct, the minimum over epochs, is in the table of trials and in no figure here.",
        "Diverged and failed draws stay in every share and median: they count as 100% error. Missing draws have "
        "no outcome yet and are in no number but their count.",
        _seeds(study), *_references(study, outcomes), _independence(study),
        "All intervals and p are conditional on the held-out images: they are about training on this held-out "
        "split, not about other images.",
    ]  # fmt: skip
    if (outcomes["status"] == "missing").any():
        sentences.append(f"{PREFIX}.")
    if len(study.pairs) > 1:
        sentences.append(
            f"{len(study.pairs)} pairs are compared: p_holm is corrected for that, over each kind of comparison "
            "separately, p is not."
        )
    sentences.append("Intervals are 95% each; those of different arms and rows are not corrected for their number.")
    return sentences + [_provenance(outcomes, column, title) for column, title in PROVENANCE.items()]


def _honesty_of_repeats(study: Study, outcomes: pd.DataFrame) -> list[str]:
    """The same for a study whose arms are single settings, trained with several seeds or once."""
    splits = ", ".join(sorted({trial.config.eval_split for trial in study.trials}))
    numbers = sorted({int(num) for num in outcomes.groupby("arm").size()})
    sentences = [
        f"Reported is {metric_label(study)} of the last epoch on the split: {splits}. No epoch is "
        "selected.",
        f"An arm is one setting, trained {_either(set(numbers))} times; its runs differ in their seed alone. Intervals "
        "are about other seeds, and rest on means over seeds being nearly normal; a single run has none.",
        "Means, spreads and differences are over the runs that finished, so they are conditional on finishing: a "
        "diverged run has no error that a mean could use. How many diverged stands beside every number.",
        "lr and wd of an arm are given: an arm whose lr is not its best is worse than it need be, in no interval.",
        "All intervals and p are conditional on the held-out images: they are about training on this held-out "
        "split, not about other images.",
    ]  # fmt: skip
    if (outcomes["status"] == "missing").any():
        sentences.append("Unfinished: missing runs are in no number but their count.")
    sentences.append(
        "Intervals are 95% each; those of different rows are not corrected for their number. p_holm is, p is not."
    )
    return sentences + [_provenance(outcomes, column, title) for column, title in PROVENANCE.items()]


def _seeds(study: Study) -> str:
    seeds = sorted({trial.config.seed for trial in study.trials if trial.point is not None})
    how = seeding(study)
    if how == "one":
        return (
            f"All draws share seed {seeds[0]} (initial weights and order of samples): every interval and p is "
            "conditional on it, and another seed may move an arm as a whole."
        )
    if how in ("shared", "own"):
        shared = ", shared by the arms at a point" if how == "shared" else ""
        return f"Each draw has a seed of its own{shared}, so seed noise is part of the spread."
    shown = ", ".join(map(str, seeds[:8])) + (f" and {len(seeds) - 8} more" if len(seeds) > 8 else "")
    return f"Seeds of the draws: {shown or 'none'}. Each draw is one training with one seed."


def seeding(study: Study) -> str:
    """How draws got their seeds: "one" for all; "own" for each of an arm, or so and "shared" by arms; or "other"."""
    draws = [trial for trial in study.trials if trial.point is not None]
    if len({trial.config.seed for trial in draws}) == 1:
        return "one"
    pairs = {(trial.point, trial.config.seed) for trial in draws}
    num = len({trial.point for trial in draws})
    if draws and len(pairs) == num == len({seed for _, seed in pairs}):
        return "shared" if len({trial.arm for trial in draws}) > 1 else "own"
    of_arm = {(trial.arm, trial.config.seed) for trial in draws}
    return "own" if draws and len(of_arm) == len(draws) else "other"


def _references(study: Study, outcomes: pd.DataFrame) -> list[str]:
    arms = [draws for draws in (population(study, outcomes, arm) for arm in study.arms)
            if sum(draws.reference_counts.values())]  # fmt: skip
    if not arms:
        return []
    planned = {sum(draws.reference_counts.values()) for draws in arms}
    runs = "ONE run" if planned == {1} else f"the mean of {_either(planned)} runs"
    noise = (
        "which shifts every delta of the arm, is unknown: shares, areas, ratios and bands are given the reference, and "
        "no test of forgiveness is made"
        if planned == {1}
        else "is in the intervals of shares, areas and ratios, in the bands, and in the comparisons of areas and "
        "ratios; the comparison of shares is given the references"
    )
    sentences = [f"The reference of an arm is {runs} at a setting found good beforehand. Its noise {noise}."]
    bad = reference_problems(study, outcomes)
    if bad:
        sentences.append(f"Diverged or failed: {', '.join(bad)}; a reference is the mean of those that finished.")
    beaten = [f"{draws.num_better} of {draws.n} of {draws.arm}" for draws in arms if draws.n and draws.num_better]
    if beaten:
        sentences.append(
            f"Draws with a lower error than the reference: {', '.join(beaten)}. A reference that many draws beat was "
            "not an optimum."
        )
    return sentences


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _independence(study: Study) -> str:
    given = {"one": "with the same seed", "other": "with the same seeds"}.get(seeding(study), "and other seeds")
    if study.num_scrambles:
        return (
            f"The draws are {study.num_scrambles} independent scrambles of a Sobol sequence; intervals rest on "
            "the spread between the scrambles, or on the interval of independent draws where all scrambles agree. They "
            f"are about other scrambles {given}."
        )
    return f"Draws are independent; intervals are about other draws from the same intervals of lr and wd, {given}."


def _provenance(outcomes: pd.DataFrame, column: str, title: str) -> str:
    known = outcomes[column].dropna() if column in outcomes else pd.Series(dtype=str)
    values = sorted({str(value) for value in known} - {""})
    return f"{title}: {'; '.join(values) or 'not recorded'}."


def _unfinished(arms: Sequence[Population], whole: bool) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    parts = [f"{draws.counts['missing']} of {draws.planned} draws of {draws.arm}"
             for draws in arms if draws.counts["missing"]]  # fmt: skip
    parts += [f"{draws.reference_counts['missing']} of {sum(draws.reference_counts.values())} reference runs of "
              f"{draws.arm}" for draws in arms if draws.reference_counts["missing"]]  # fmt: skip
    later = sum(draws.not_counted for draws in arms)
    counted = f"{PREFIX}; {later} with an outcome are not" if later else PREFIX
    return f"Still missing: {', '.join(parts)}. {BIASED if whole else f'{counted}.'}" if parts else ""


def _populations(arms: Sequence[Population]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"arm": draws.arm, "planned": draws.planned, **{status: draws.counts[status] for status in STATUSES},
          "not counted": draws.not_counted, "reference runs": draws.reference_said()} for draws in arms]
    )  # fmt: skip


def _design(study: Study) -> pd.DataFrame:
    """A row per arm: draws, intervals of lr and wd as drawn, epochs, and the model's size from its config."""
    if own := _own_words(study):
        return own.design(study)
    return pd.DataFrame([_design_row(study, arm) for arm in study.arms])


def _design_row(study: Study, arm: str) -> dict[str, object]:
    trials = [trial for trial in study.trials if trial.arm == arm]
    drawn = [trial.config for trial in trials if trial.point is not None]
    size = study.cost(trials[0].config)
    return {
        "arm": arm,
        "draws": len(drawn),
        "reference runs": len(trials) - len(drawn),
        "optimizer": _all(trials, "optimizer"),
        "lr drawn (min-max)": _span([config.lr for config in drawn]),
        "wd drawn (min-max)": _span([config.wd for config in drawn]),
        **{name: _all(trials, name) for name in ("epochs", "dataset", "model")},
        "parameters": f"{size.params:,}",
        "multiply-adds": f"{size.flops:,}",
    }


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "–"


def _all(trials: Sequence[Trial], name: str) -> str:
    values = sorted({getattr(trial.config, name) for trial in trials})
    return ", ".join(map(str, values)) if len(values) <= 4 else f"{values[0]} to {values[-1]}"


def _design_words(study: Study) -> str:
    if own := _own_words(study):
        return own.design_words(study)
    draws = sum(trial.point is not None for trial in study.trials)
    if repeats.is_repeats(study):
        return (
            f"{len(study.arms)} arms, {draws} draws that differ from others of their arm in the seed alone, and "
            f"{len(study.trials) - draws} reference runs apart. All were fixed before the first training; none is "
            "stopped early or chosen by its result. Parameters and multiply-adds are those of the arm's first trial."
        )
    how = f"{study.num_scrambles} scrambles of a Sobol sequence an arm" if study.num_scrambles else "independent draws"
    return (
        f"{len(study.arms)} arms, {draws} draws ({how}) and {len(study.trials) - draws} reference runs, "
        "which are no draws. All were fixed before the first training; none is stopped early or chosen by its result. "
        "Parameters and multiply-adds are those of the arm's first trial, at its resolution."
    )


def _figure(name: str, study: Study, outcomes: pd.DataFrame, rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    draw = figures.ALL[name]
    _, svg = figures.save(draw(study, outcomes, rows), folder / name)
    return {"svg": base64.b64encode(svg.read_bytes()).decode(), "caption": f"{name}. {_doc(draw)}"}


def _table(name: str, study: Study, outcomes: pd.DataFrame, rows: pd.DataFrame, folder: Path) -> dict[str, Any]:
    table = tables.make(name, study, outcomes, rows)
    _write_table(table, folder / name)
    _write_text(folder / f"{name}.md", tables.to_markdown(table))
    return {"name": name, "caption": _doc(tables.ALL[name]), "cells": tables.as_text(table)}


def _doc(function: Callable[..., Any]) -> str:
    """The docstring on one line: a caption that cannot drift from the code."""
    return " ".join((function.__doc__ or "").split())


def _write_table(table: pd.DataFrame, stem: Path) -> None:
    with replaced(stem.with_name(f"{stem.name}.csv")) as unfinished:
        table.to_csv(unfinished, index=False)
    with replaced(stem.with_name(f"{stem.name}.parquet")) as unfinished:
        table.to_parquet(unfinished, index=False)


def _write_text(path: Path, text: str) -> Path:
    with replaced(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def _render(page: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE).render(**page)
