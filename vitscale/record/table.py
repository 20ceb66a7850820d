"""The tables of a study: one row per (trial, evaluation), and one row per trial."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from vitscale.plan.config import TrainConfig
from vitscale.plan.laws import FREE
from vitscale.plan.metrics import ERROR, Column, evaluation_columns
from vitscale.plan.parts import parts_of
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.index import Index
from vitscale.record.outcome import Outcome, Row, Rows, Status
from vitscale.record.provenance import EVAL_IMAGES, LEFT_OUT
from vitscale.record.store import Store
from vitscale.record.trial_files import FAILURE, FAULT, ROWS
from vitscale.record.workdir import Damaged

NEEDED = ("epoch", "unix_s")  # columns of every row, beside the metric of the study
PROVENANCE = ("commit", "versions", "machine", "device", "error", EVAL_IMAGES, LEFT_OUT)
MAX_NAMES = 3  # of trials in a message
PART = 100_000  # rows that get the fields of their configs at a time
AT_ONCE = 64  # trials whose rows become columns at a time: they are in the caches
ROW_COLUMNS = ["study", "arm", "point", "trial_id", "status"]


def read_trials(
    study: Study, store: Store, done: Mapping[str, Outcome] | None = None
) -> dict[str, Outcome]:
    """The outcome of every planned trial, from the store and the ledger of a search.

    Outcomes in `done` are not read again: a done trial does not change. A trial with a damaged
    file counts as missing, with a warning that names the file.
    """
    done = {**(done or {}), **stopped(study, store)}
    ids = [trial.config.id for trial in study.trials]
    index = Index(store, study.slug, [i for i in ids if i not in done])
    others = store.others_of([i for i in ids if i not in done and i not in index.done])
    read = {
        i: done.get(i)
        or store.outcome(
            i,
            lambda trial_id: read_done(trial_id, study, index),
            i in index.done,
            others.get(i, (FAILURE, FAULT)),
        )
        for i in ids
    }
    index.save()
    check_reported(study, read, store)
    return read


def read_done(trial_id: str, study: Study, index: Index) -> Outcome:
    """The outcome of a done trial.

    Raises Damaged, also for rows that are not of a trial of this study. Rows of an older version
    that lack only the study's metric pass; `check_reported` refuses them.
    """
    outcome = index.read(trial_id)
    needed, rows = [_oldest(study.column), *NEEDED], Rows.pack(outcome.rows)
    if absent := [name for name in needed if not rows.all_have(name)]:
        where = index.store.trial(trial_id).address(ROWS)
        raise Damaged(
            f"rows must have the columns ({', '.join(needed)}), but got ({where}: no {absent[0]})"
        )
    return outcome


def check_reported(study: Study, read: Mapping[str, Outcome], store: Store) -> None:
    """Raises ValueError if a version that did not report the study's metric trained some trials.

    Such trials are intact and other studies may need them, so they are not retrained automatically.
    Diverged trials are exempt: the last row of one has no loss.
    """
    lacking = [
        trial_id
        for trial_id, outcome in read.items()
        if outcome.status in (Status.FINISHED, Status.STOPPED)
        and not Rows.pack(outcome.rows).all_have(study.metric)
    ]
    if lacking:
        columns = evaluation_columns(study.trials[0].config.eval_split)
        rows = [row for trial_id in lacking for row in read[trial_id].rows]
        others = [name for name in columns if all(name in row for row in rows)]
        more = f" and {len(lacking) - MAX_NAMES} more" if len(lacking) > MAX_NAMES else ""
        raise ValueError(
            f"every finished trial must have the study's metric {study.metric} in its rows, but "
            f"got ({len(lacking)} of {len(read)} of an older version without it: "
            f"{', '.join(lacking[:MAX_NAMES])}{more}); use a metric that they have "
            f"({', '.join(others)}), a new --store, or delete their folders in "
            f"{store.root}/trials to retrain them"
        )


def _oldest(column: Column) -> str:
    """The column of the same evaluation, or profile, that every version reports."""
    return column._replace(metric=ERROR).name if column.split else column.name


def stopped(study: Study, store: Store) -> dict[str, Outcome]:
    """The trainings that a search stopped, with their rows up to then.

    They count as stopped even if another study trained them further.
    """
    rows_of = store.asked(study.slug).get("stopped", {}) if study.search else {}
    return {trial_id: Outcome(Status.STOPPED, tuple(rows)) for trial_id, rows in rows_of.items()}


def tidy(study: Study, read: Mapping[str, Outcome]) -> pd.DataFrame:
    """One row per (trial, evaluation): the ROW_COLUMNS and the metrics.

    The fields of the configs are in the table of `outcomes`; `with_fields` adds them.
    """
    return _tidy(study, read, [Rows.pack(read[trial.config.id].rows) for trial in study.trials])


def take_tidy(study: Study, read: dict[str, Outcome]) -> pd.DataFrame:
    """The table of `tidy`, for which rows are taken out of `read` on the way: two million rows in
    both would take 300 MB more.
    """
    of_trials = [Rows.pack(read[trial.config.id].rows) for trial in study.trials]
    for trial_id, outcome in read.items():
        read[trial_id] = replace(outcome, rows=())
    return _tidy(study, read, of_trials)


def _tidy(study: Study, read: Mapping[str, Outcome], of_trials: list[Rows]) -> pd.DataFrame:
    """The table of `tidy` from the rows of each planned trial, of which nothing is left."""
    nums = [len(rows) for rows in of_trials]
    shown = [trial for trial, num in zip(study.trials, nums, strict=True) if num]
    labels = _table(_labels(study, trial, read[trial.config.id]) for trial in shown)
    repeated = labels.index.repeat([num for num in nums if num])
    frame = _stacked(of_trials)
    for place, name in enumerate(labels):  # in place: a copy of two million rows is 300 MB
        frame.insert(place, name, labels[name].array.take(repeated))
    return _frame(frame, ROW_COLUMNS)


def _stacked(of_trials: list[Rows]) -> pd.DataFrame:
    """All rows below each other; NaN where a row lacks a column. Empties the list on the way."""
    of_trials.reverse()
    names = list(dict.fromkeys(name for rows in reversed(of_trials) for name in rows.names))
    place = {name: i for i, name in enumerate(names)}
    values = np.empty((len(names), sum(map(len, of_trials))))  # pandas needs no copy of it
    first = 0
    while of_trials:
        block = [of_trials.pop()]
        own = block[0].names
        while of_trials and of_trials[-1].names == own and len(block) < AT_ONCE:
            block.append(of_trials.pop())
        last = first + sum(map(len, block))
        content = np.frombuffer(b"".join(rows.values for rows in block), "<f8")
        if own == tuple(names):
            values[:, first:last] = content.reshape(last - first, len(own)).T
        else:
            values[:, first:last] = np.nan
            places = [place[name] for name in own]
            values[places, first:last] = content.reshape(last - first, len(own)).T
        for rows in block:
            for number, name in rows.absent:
                values[place[name], first + number] = np.nan
            first += len(rows)
    return pd.DataFrame(values.T, columns=names, copy=False)


def with_fields(study: Study, rows: pd.DataFrame, trials: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The table of `tidy` with the fields of the configs, from that of `outcomes`, after
    ROW_COLUMNS: in parts, since the 60 fields of two million rows would take 1 GB.
    """
    if rows.empty:
        yield rows
        return
    labels = [name for name in ROW_COLUMNS if name in rows]
    fields = [name for name in axes_of(study) if name in trials]
    of_trial = trials.drop_duplicates("trial_id").set_index("trial_id")[fields]
    others = [name for name in rows if name not in labels + fields]
    for first in range(0, len(rows), PART):
        part = rows.iloc[first : first + PART].reset_index(drop=True)
        own = of_trial.loc[part["trial_id"]].reset_index(drop=True)
        yield pd.concat([part[labels], own, part[others]], axis=1)


def axes_of(study: Study) -> list[str]:
    """The fields of the configs, and the arguments of their parts."""
    configs = {  # a training of each choice of parts: the same text may be that of other arguments
        (trial.config.own, *parts_of(trial.config).values()): trial.config
        for trial in reversed(study.trials)
    }
    return list(dict.fromkeys(name for config in configs.values() for name in config.axes()))


def outcomes(study: Study, read: Mapping[str, Outcome]) -> pd.DataFrame:
    """One row per planned trial: labels, fields of the config, metrics of its last row, provenance.

    `value` is the final value of the study's metric, whichever it is: the worst value for a
    diverged or failed trial, NaN for a missing one. `best_value` is the best over epochs, as
    context only: it must not be chosen on a test set. The files of a report name both columns by
    the metric (Metric.column). A profile has neither: its metrics are medians over its timed runs,
    and `images_per_s_runs` lists the runs.
    """
    ended = [read[trial.config.id] for trial in study.trials]
    labels = _table(_labels(study, *pair) for pair in zip(study.trials, ended, strict=True))
    errors, last = _errors(study.column, ended), _last(study.column, ended)
    fields = _fields([trial.config for trial in study.trials])
    facts = pd.DataFrame({name: [o.facts.get(name, "") for o in ended] for name in PROVENANCE})
    own_columns = {*labels, *errors, *fields, *facts}  # a foreign file may have any column
    last = last[[name for name in last if name not in own_columns]]
    frame = pd.concat([labels, errors, fields, last, facts], axis=1)
    numbers = ["value", "best_value", "diverged_step", "train_s"]
    return _frame(frame, [*ROW_COLUMNS, *numbers]).astype(dict.fromkeys(numbers, "float64"))


def _errors(column: Column, ended: Sequence[Outcome]) -> pd.DataFrame:
    """One row per trial: its final and its best value; neither for profiles."""
    if column.metric.result == "median":
        return pd.DataFrame(index=range(len(ended)))
    errors = {
        "value": [outcome.final(column) for outcome in ended],
        "best_value": [outcome.best(column) for outcome in ended],
    }
    return pd.DataFrame(errors)


def _last(column: Column, ended: Sequence[Outcome]) -> pd.DataFrame:
    """One row per trial: the metrics of its last row, or medians and all runs of a profile."""
    if column.metric.result == "median":
        name = column.name
        return _table(
            {**_medians(outcome.rows), f"{name}_runs": [row[name] for row in outcome.rows]}
            for outcome in ended
        )
    rows = [Rows.pack(outcome.rows) for outcome in ended]
    there = [i for i, of_trial in enumerate(rows) if len(of_trial)]
    last = _stacked([rows[i].last() for i in there])
    last.index = pd.Index(there, dtype="int64")
    return last.reindex(range(len(ended)))


def _fields(configs: Sequence[TrainConfig]) -> pd.DataFrame:
    """One row per config: its fields. Those that many configs share are looked at once."""
    alike: dict[str, int] = {}  # all fields but those of FREE -> a row of `shared`
    rows = [alike.setdefault(config.others or config.id, len(alike)) for config in configs]
    first = dict(zip(reversed(rows), reversed(configs), strict=True))
    shared = _table(first[row].axes() for row in range(len(alike)))
    fields = shared.take(rows).reset_index(drop=True)
    return fields.assign(**{name: [getattr(config, name) for config in configs] for name in FREE})


def _table(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table of records, of which only the values are kept; NaN where one lacks a column."""
    columns: dict[str, list[Any]] = {}
    num = 0
    for names, alike in itertools.groupby(records, tuple):
        values = list(zip(*(tuple(record.values()) for record in alike), strict=True))
        for name, some in zip(names, values, strict=True):
            column = columns.setdefault(name, [])
            column += [float("nan")] * (num - len(column))
            column += some
        num += len(values[0])
    for column in columns.values():
        column += [float("nan")] * (num - len(column))
    return pd.DataFrame(columns)


def _labels(study: Study, trial: Trial, outcome: Outcome) -> dict[str, Any]:
    return {
        "study": study.slug,
        "arm": trial.arm.name,
        "point": trial.point,
        "trial_id": trial.config.id,
        "status": outcome.status.value,
    }


def _medians(rows: Sequence[Row]) -> Row:
    return {
        name: statistics.median(row[name] for row in rows) for name in (rows[0] if rows else ())
    }


def _frame(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The frame with these columns first, of NaN if it lacks them."""
    for name in columns:
        if name not in frame:
            frame[name] = pd.Series([float("nan")] * len(frame), dtype="float64")
    frame["point"] = frame["point"].astype("Int64")
    if list(frame.columns[: len(columns)]) == list(columns):
        return frame
    return frame[[*columns, *(name for name in frame.columns if name not in columns)]]
