"""What a report says of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from vitscale.analysis import registry
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.report.text import about
from vitscale.analysis.results import Results
from vitscale.analysis.search.files import files
from vitscale.analysis.search.tables import (
    STATES,
    WINNER,
    is_adaptive,
    points,
    procedure,
    spaces,
    why_no_importance,
    winners,
)
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

WHY = (
    "its points are biased toward low values, so shares and comparisons of them are not those of "
    "the space; and trainings that are stopped early by rank have no final value, which their rank "
    "need not predict (Touvron 2022, Figure 6.10)"
)


def headline(results: Results) -> list[str]:
    """How far the search is, then the best point of each arm."""
    return [progress(results), *about("search_best", answer(results))]


def counts(results: Results) -> pd.DataFrame:
    """One row per arm: numbers of points by state, and of trainings that diverged or failed."""
    proposals, rows = results.once(points), []
    for arm in results.study.arms:
        state, status = (
            frame.loc[frame["arm"] == arm, name]
            for frame, name in ((proposals, "state"), (results.trials, "status"))
        )
        rows.append(
            {
                "arm": arm,
                "points asked": len(state),
                **{name: int((state == name).sum()) for name in STATES},
                "trainings": len(status),
                "diverged trainings": int((status == "diverged").sum()),
                "failed trainings": int((status == "failed").sum()),
            }
        )
    return pd.DataFrame(rows)


def summary(results: Results) -> Summary:
    """Counts of each arm, and value and coordinates of its best point so far."""
    numbers: Summary = {}
    for row in results.once(counts).to_dict("records"):
        numbers_of_arm = {
            "num_points": row["complete"],
            "stopped": row["stopped"],
            "running": row["running"],
            "diverged": row["diverged trainings"],
            "failed": row["failed trainings"],
        }
        numbers[row["arm"]] = {name: float(value) for name, value in numbers_of_arm.items()}
    for arm, best in results.once(winners).items():
        places = {
            name: value for name, value in best["values"].items() if isinstance(value, (int, float))
        }
        numbers_of_arm = {
            "best_of_n": best["value"],
            **{f"best_{name}": value for name, value in places.items()},
        }
        numbers[arm] |= {name: float(value) for name, value in numbers_of_arm.items()}
    return numbers


def design_text(study: Study) -> str:
    """The space, the sampler and the number of points, in sentences."""
    num = len({(trial.arm.name, trial.point) for trial in study.trials})
    how = (
        "Points are proposed in rounds, from the results of earlier ones, so they depend on each "
        "other and are not a sample of the space"
        if is_adaptive(study)
        else "Points are a random sample of the space, and the winner is the best of them; a study "
        "of kind distribution describes such a sample"
    )
    return (
        f"A search ({procedure(study)}): {len(study.arms)} arms, {num} points, {len(study.trials)} "
        f"trainings so far. {how}: no share, no interval over points and no comparison of arms is "
        "computed from them."
    )


def design(study: Study) -> pd.DataFrame:
    """One row per arm and axis: the space that is searched, and the fields shared by all points."""
    rows = []
    for arm in study.arms:
        of_arm = [trial for trial in study.trials if trial.arm.name == arm]
        first = of_arm[0].config
        for name, axis in spaces(study, arm).items():
            rows.append(
                {
                    "arm": arm,
                    "axis": name,
                    "space": _described(axis),
                    "points": len({trial.point for trial in of_arm}),
                    "seeds": ", ".join(map(str, sorted({trial.config.seed for trial in of_arm}))),
                    "optimizer": first.optimizer,
                    "epochs": first.epochs,
                    "dataset": first.dataset,
                }
            )
    return pd.DataFrame(rows)


def _described(axis: Any) -> str:
    if hasattr(axis, "choices"):
        return ", ".join(map(str, axis.choices))
    return f"{axis.low:g} to {axis.high:g}{', log' if axis.log else ''}"


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    missing = int((results.trials["status"] == "missing").sum())
    return (
        f"{missing} of {len(results.trials)} trainings asked for have no outcome yet."
        if missing
        else ""
    )


def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number of a search, a sentence each."""
    splits = ", ".join(sorted({trial.config.eval_split for trial in results.study.trials}))
    seeds = {tuple(row) for row in results.once(points)["seeds"]}
    shown = " or ".join(", ".join(map(str, of_point)) for of_point in sorted(seeds))
    sentences = [
        f"The value of a point is its {results.metric.label} at the last epoch on the split: "
        f"{splits}, the mean "
        f"over the seeds {shown}. No epoch is selected. The points are chosen by this split, so "
        "its values are optimistic: only images that the search did not see, such as those of "
        "val, show how good a point is.",
        (
            f"The winner is the {WINNER}. Its {results.metric.label} is the lowest of many noisy "
            "ones, so it is "
            "optimistic, and the best of more points is lower by chance alone: arms with different "
            "numbers of points cannot be compared by it."
        ),
        (
            "A diverged or failed training counts as "
            f"{results.metric.text(results.metric.worst, 0)} "
            f"{results.metric.label}, a value like any other; a point "
            "of which a training is missing or was stopped early has no value and cannot win."
        ),
        "There is no interval over points, since they depend on each other.",
    ]
    if num := (results.trials["status"] == "stopped").sum():
        sentences.append(
            f"{num} trainings were stopped early because others were ahead at that epoch. Early "
            "ranks need not be final ones (Touvron 2022, Figure 6.10): a good point may be among "
            "them."
        )
    if "search_importance" in results.study.tables:
        whys = {arm: why_no_importance(results, arm) for arm in results.study.arms}
        sentences += [
            f"No importance of the axes of {arm}: {why}." for arm, why in whys.items() if why
        ]
    return sentences


def progress(results: Results) -> str:
    """How far a search is, a sentence."""
    proposals, status = results.once(points), results.trials["status"]
    words = {"running": "without an outcome"}  # nothing may run any more
    num_by_state = ", ".join(
        f"{(proposals['state'] == name).sum()} {words.get(name, name)}" for name in STATES
    )
    num_by_status = ", ".join(f"{(status == name).sum()} {name}" for name in ("diverged", "failed"))
    trainings = f"of their {len(status)} trainings {num_by_status}"
    return f"Of {len(proposals)} points asked: {num_by_state}; {trainings}."


def answer(results: Results) -> list[str]:
    """The best point of each arm, a sentence each."""
    winner_of_arm = results.once(winners)
    return [
        _answer(arm, winner_of_arm[arm], results.metric)
        if arm in winner_of_arm
        else f"{arm}: no complete point yet."
        for arm in results.study.arms
    ]


def _answer(arm: str, best: Mapping[str, Any], metric: Metric) -> str:
    where = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in best["values"].items()
    )
    seeds = (
        f"mean of {best['num_seeds']} seeds, sd {metric.number(best['sd'], 2)}"
        if best["num_seeds"] > 1
        else "one seed"
    )
    second = best["runner_up"]
    above = metric.number(second["difference"], 2) if second else ""
    near = f"; the next point is {above} {metric.difference_unit} above" if second else ""
    edge = "; ".join(
        f"{name} is at the {end} end of its axis" for name, end in best["at_edge"].items()
    )
    return (
        f"{arm}, lowest {metric.label} of {best['num_points']} points (best of many, so "
        "optimistic): "
        f"{metric.text(best['value'], 2)} ({seeds}) at "
        f"{where}{near}{f'; {edge}: the space may be too narrow' if edge else ''}."
    )


KIND = Kind(
    name="search",
    tables=registry.tables("search"),
    figures=registry.figures("search"),
    because=WHY,
    incomparable=f"arms compared must not be of a search: {WHY}",
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design=design,
    design_text=design_text,
    files=files,
    uncorrected="winners and of what a search found",
)
