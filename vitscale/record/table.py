"""The tables of a study: a row a (trial, evaluation), and a row a trial."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vitscale.plan.study import Study, Trial
from vitscale.record.rows import Outcome, Row
from vitscale.record.store import ROWS, Damaged, Store

NEEDED = ("epoch", "unix_s")  # columns of every row, beside the metric of the study
ROW_COLUMNS = ["study", "arm", "point", "trial_id", "status"]


def read_trials(study: Study, store: Store, known: Mapping[str, Outcome] | None = None) -> dict[str, Outcome]:
    """The outcome of every planned trial; facts["status"] is finished, diverged, failed, missing or, by ASHA, stopped.

    A missing trial that a machine failed has the reason in facts["error"].

    Those in `known` are not read again: what is done does not change. A trial with a damaged file counts as missing,
    with a warning that names it.
    """
    known = {**(known or {}), **stopped(study, store)}
    return {i: known.get(i) or _read_trial(i, study, store) for i in (trial.config.id for trial in study.trials)}


def read_done(trial_id: str, study: Study, store: Store) -> Outcome:
    """(rows, facts) of a done trial. Raises Damaged, also for rows of something other than the study's trials."""
    rows, facts = store.read_rows(trial_id)
    needed = [study.metric, *NEEDED]
    if absent := [name for name in needed if any(name not in row for row in rows)]:
        path = store.trial(trial_id).path / ROWS
        raise Damaged(f"rows must have the columns ({', '.join(needed)}), but got ({path}: no {absent[0]})")
    return rows, facts


def stopped(study: Study, store: Store) -> dict[str, Outcome]:
    """The trainings that a search stopped, with their rows until then: even if another study trained them further."""
    rows_of = store.asked(study.slug).get("stopped", {}) if study.adaptive else {}
    return {trial_id: (rows, {"status": "stopped"}) for trial_id, rows in rows_of.items()}


def _read_trial(trial_id: str, study: Study, store: Store) -> Outcome:
    try:
        if store.is_done(trial_id):
            return read_done(trial_id, study, store)
    except Damaged as damage:
        warnings.warn(str(damage), stacklevel=2)
    try:
        if error := store.failure(trial_id):
            return [], {"status": "failed", "error": error}
        if fault := store.fault(trial_id):
            return [], {"status": "missing", "error": fault}
    except (Damaged, OSError) as damage:
        warnings.warn(str(damage), stacklevel=2)
    return [], {"status": "missing"}


def tidy(study: Study, read: Mapping[str, Outcome]) -> pd.DataFrame:
    """A row for every (trial, evaluation): study, arm, point, trial_id, status, config columns, metrics."""
    records = []
    for trial in study.trials:
        rows, facts = read[trial.config.id]
        fixed = {**_labels(study, trial, facts), **trial.config.asdict()}
        records += [{**fixed, **row} for row in rows]
    return _frame(records, ROW_COLUMNS)


def outcomes(study: Study, read: Mapping[str, Outcome]) -> pd.DataFrame:
    """A row for every planned trial: labels, config columns, the metrics of its last row, provenance.

    `error_pct` is the study's metric at the end: 100 for a diverged or failed trial, NaN for a missing one.
    `best_error_pct` is the minimum over epochs, which a test set must not choose: context only. A profile has neither:
    its metrics are medians over its timed runs, and `images_per_s_runs` has the runs.
    """
    records = []
    for trial in study.trials:
        rows, facts = read[trial.config.id]
        last: dict[str, Any] = rows[-1] if rows else {}
        if study.measures:
            last = {**_medians(rows), f"{study.metric}_runs": [row[study.metric] for row in rows]}
        provenance = {name: facts.get(name, "") for name in ("commit", "versions", "machine", "device", "error")}
        records.append({**_labels(study, trial, facts), **_errors(study, rows, facts["status"]),
                        **trial.config.asdict(), **last, **provenance})  # fmt: skip
    frame = _frame(records, [*ROW_COLUMNS, "error_pct", "best_error_pct", "diverged_step", "train_s"])
    numbers = ["error_pct", "best_error_pct", "diverged_step", "train_s"]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _labels(study: Study, trial: Trial, facts: dict[str, str]) -> dict[str, Any]:
    return {"study": study.slug, "arm": trial.arm, "point": trial.point, "trial_id": trial.config.id,
            "status": facts["status"]}  # fmt: skip


def _medians(rows: list[Row]) -> Row:
    return {name: statistics.median(row[name] for row in rows) for name in (rows[0] if rows else ())}


def _errors(study: Study, rows: list[Row], status: str) -> dict[str, float]:
    if study.measures:
        return {}
    if status == "failed":
        return {"error_pct": 100.0, "best_error_pct": 100.0}
    if not rows:
        return {"error_pct": float("nan"), "best_error_pct": float("nan")}
    return {"error_pct": rows[-1][study.metric], "best_error_pct": min(row[study.metric] for row in rows)}


def _frame(records: list[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(records)
    for name in columns:
        if name not in frame:
            frame[name] = pd.Series([float("nan")] * len(frame), dtype="float64")
    frame["point"] = frame["point"].astype("Int64")
    return frame[[*columns, *(name for name in frame.columns if name not in columns)]]
