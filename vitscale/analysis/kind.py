"""A kind of study: its tables, figures and sentences.

The folders beside this file are kinds; KINDS lists them. A kind is a value, so a study script can
define its own and register it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.provenance import EVAL_IMAGES, LEFT_OUT, counted, hardware, mixed_images

T = TypeVar("T")
Table = Callable[[Results], pd.DataFrame]
Draw = Callable[[Results], Figure]
Summary = dict[str, dict[str, float]]  # arm -> name of a number -> value, those that exist
MAX_ARMS = 6  # that a sentence counts one by one
# column -> its name in the report
PROVENANCE = {"commit": "Code", "versions": "Versions", "machine": "Machines"}


def named(functions: Sequence[Callable[[Results], T]]) -> dict[str, Callable[[Results], T]]:
    """The functions by name, as in a study's `tables` and `figures`."""
    return {f.__name__: f for f in functions}


def check_nothing(study: Study) -> None:
    """Accepts any arms, factors and panels."""


def progress(results: Results) -> list[str]:
    """How many trials ended with each status, in one sentence."""
    return [f"Of {len(results.trials)} trials: {_counted(results.trials)}."]


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty if nothing is."""
    num = int((results.trials["status"] == "missing").sum())
    return f"{num} of {len(results.trials)} trials have no outcome yet." if num else ""


def counts(results: Results) -> pd.DataFrame:
    """One row per arm: how many of its trials ended with each status."""
    statuses = [
        (arm, results.trials.loc[results.trials["arm"] == arm, "status"])
        for arm in results.study.arms
    ]
    return pd.DataFrame(
        [
            {
                "arm": arm,
                "planned": len(ended),
                **{status: int((ended == status).sum()) for status in STATUSES},
            }
            for arm, ended in statuses
        ]
    )


def design(study: Study) -> pd.DataFrame:
    """One row per arm: draws, sampled ranges of lr and wd, epochs, and model size."""
    return pd.DataFrame([_design_row(study, arm) for arm in study.arms])


def design_text(study: Study) -> str:
    """The design of the study in sentences."""
    return (
        f"{len(study.arms)} arms, {len(study.trials)} trials, all fixed before the first "
        "training. Parameters and multiply-adds are those of the arm's first trial."
    )


def no_sentences(results: Results) -> list[str]:
    return []


def no_numbers(results: Results) -> Summary:
    return {}


class Explanation(NamedTuple):
    """What a kind's figure is, for a reader who sees one for the first time."""

    sentence: str
    svg: str  # a small picture; it is put into the page as it is


def no_files(results: Results) -> dict[str, bytes]:
    return {}


def no_explanation(study: Study) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a kind of study reports; fields that are not given have common defaults.

    Tables compute the estimates from the results, each in one place: a column `x` with `x_low` and
    `x_high` is an estimate with its 95% interval. Figures plot tables, sentences state them.
    `check` raises ValueError for a study that cannot be analysed, before anything is trained.
    """

    name: str  # Study.kind
    tables: Mapping[str, Table]
    figures: Mapping[str, Draw]
    because: str = ""  # why it has no other tables and figures
    check: Callable[[Study], None] = check_nothing
    headline: Callable[[Results], list[str]] = progress  # how much is done, then the answers
    # what a reader must know before believing a number
    caveats: Callable[[Results], list[str]] = no_sentences
    summary: Callable[[Results], Summary] = no_numbers  # for MLflow and `vitscale status`
    unfinished: Callable[[Results], str] = unfinished
    counts: Callable[[Results], pd.DataFrame] = counts
    uncorrected: str = ""  # estimates that rest on no p, and so are as for one look at the study
    incomparable: str = (
        ""  # the law by which its arms are not compared side by side; "" if they are
    )
    explain: Callable[[Study], Explanation | None] = no_explanation
    design: Callable[[Study], pd.DataFrame] = design
    design_text: Callable[[Study], str] = design_text
    files: Callable[[Results], Mapping[str, bytes]] = no_files  # name -> content, beside the report


def provenance(results: Results) -> list[str]:
    """Code, versions and machines of the trials, a sentence each; another if hardware differs."""
    said = [_provenance(results.trials, column, title) for column, title in PROVENANCE.items()]
    if LEFT_OUT in results.trials and results.trials[LEFT_OUT].any():
        said.append(_provenance(results.trials, LEFT_OUT, "Files left out of the images"))
    return [*said, *mixed_hardware(results)]


# fields that determine the images of an evaluation set
OF_IMAGES = ("dataset", "channels", "minival_images", "minival_rule", "split_seed")


def mixed_evaluations(trials: pd.DataFrame) -> list[str]:
    """A sentence for each evaluation set of which trials saw different images under one name."""
    if EVAL_IMAGES not in trials:
        return []
    names = [name for name in OF_IMAGES if name in trials]
    groups = [group for _, group in trials.groupby(names)] if names else [trials]
    return [said for group in groups if (said := mixed_images(group[EVAL_IMAGES].fillna("")))]


def mixed_hardware(results: Results) -> list[str]:
    """A sentence if the trials of a study of errors did not all run on one kind of device."""
    trials = results.trials
    if results.study.measures or not {"machine", "device"} <= set(trials):
        return []  # profiles name their hardware, by which they are compared
    pairs = zip(trials["machine"].fillna(""), trials["device"].fillna(""), strict=True)
    kinds = pd.Series([hardware(*pair) for pair in pairs], index=trials.index)
    named = kinds[kinds != ""]
    if named.nunique() < 2:
        return []
    where = [(arm, named[trials["arm"] == arm]) for arm in results.study.arms]
    if len(where) > MAX_ARMS:
        where = [("all arms", named)]
    counts = "; ".join(f"{arm}: {_by_kind(of_arm)}" for arm, of_arm in where if len(of_arm))
    gpus = trials["device"].fillna("").str.startswith("cuda").any()
    return [
        f"Trials ran on different hardware ({counts}). Between kinds of it, results differ by "
        "rounding, as between seeds, and times cannot be compared"
        f"{'; --accelerator-type keeps a study on one kind of GPU' * bool(gpus)}."
    ]


def _by_kind(kinds: pd.Series) -> str:
    return ", ".join(f"{num} on {kind}" for kind, num in Counter(kinds).most_common())


def _provenance(outcomes: pd.DataFrame, column: str, title: str) -> str:
    texts = outcomes[column].dropna() if column in outcomes else pd.Series(dtype=str)
    values = sorted({str(value) for value in texts} - {""})
    if column == "commit" and len(values) > 1:  # by how many trials each is what a reader asks
        return f"{title}: {counted(str(value) for value in texts if value)}."
    return f"{title}: {'; '.join(values) or 'not recorded'}."


def _counted(trials: pd.DataFrame) -> str:
    return ", ".join(f"{(trials['status'] == status).sum()} {status}" for status in STATUSES)


def _design_row(study: Study, arm: str) -> dict[str, object]:
    trials = [trial for trial in study.trials if trial.arm.name == arm]
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
