"""What there is in a store: for each study, how many trials ended how, the size on disk and the last sign of life."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from pathlib import Path
from typing import NamedTuple

from vitscale.record.store import Damaged, Store

PLAN = "plan.json"


class TrialState(NamedTuple):
    """One trial as its files tell it."""

    status: str  # finished, diverged, stopped, running, failed, missing
    num_bytes: int
    changed_s: float  # unix time of its newest file; 0 without a file


COUNTS = ("finished", "running", "diverged", "stopped", "failed", "missing")


class StudyState(NamedTuple):
    """One study: every planned trial is counted once, under running or how it ended, or as missing."""

    study: str
    planned: int
    finished: int
    running: int  # claimed by a study whose driver lives
    diverged: int
    stopped: int  # by a search with ASHA, before the end
    failed: int
    missing: int  # never started, or interrupted
    num_bytes: int  # of its own files and all its trials, also of those that other studies share
    changed_s: float  # unix time: the newest file of its trials, or its last start
    driver_alive: bool


def overview(store: Store) -> list[StudyState]:
    """The studies of a store that were started, by name. Raises ValueError if there is none, or a plan is damaged.

    Rows that cannot be read count as missing, with a warning that names them.
    """
    alive = {slug: store.driver_is_alive(slug) for slug in store.slugs()}
    if not alive:
        raise ValueError(f"a study must be in the store, but got none (store={str(store.root)!r})")
    known: dict[str, TrialState] = {}
    return [_study_state(store, slug, alive, known) for slug in alive]


def num_bytes(store: Store) -> int:
    """Size of all files of a store, each once, also of trials that no study plans any more."""
    return sum(stat.st_size for stat in _files(store.root).values())


def _study_state(store: Store, slug: str, alive: dict[str, bool], known: dict[str, TrialState]) -> StudyState:
    """Adds what it reads to `known`: studies share trials."""
    trials, stopped = [], store.asked(slug).get("stopped", {})
    for trial_id in _planned(store, slug):
        if trial_id not in known:
            known[trial_id] = _trial_state(store, trial_id, alive)
        trials.append(known[trial_id]._replace(status="stopped") if trial_id in stopped else known[trial_id])
    folder = store.root / "studies" / slug
    own_bytes = sum(stat.st_size for stat in _files(folder).values())
    counts = {name: sum(trial.status == name for trial in trials) for name in COUNTS}
    return StudyState(
        slug, len(trials), **counts, num_bytes=own_bytes + sum(trial.num_bytes for trial in trials),
        changed_s=max([(folder / PLAN).stat().st_mtime, *(trial.changed_s for trial in trials)]),
        driver_alive=alive[slug],
    )  # fmt: skip


def _planned(store: Store, slug: str) -> list[str]:
    """Ids of the planned trials; the configs are not looked at, so that a plan of another version can be told too."""
    path = store.root / "studies" / slug / PLAN
    try:
        return [trial["id"] for trial in json.loads(path.read_text())["trials"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise Damaged(f"a plan must be JSON with its trials, but got ({path}: {error!r})") from error


def _trial_state(store: Store, trial_id: str, alive: dict[str, bool]) -> TrialState:
    files = _files(store.trial(trial_id).path)
    return TrialState(
        _status(store, trial_id, alive),
        sum(stat.st_size for stat in files.values()),
        max((stat.st_mtime for stat in files.values()), default=0.0),
    )


def _files(folder: Path) -> dict[str, os.stat_result]:
    """All files below a folder by their path in it; without those that vanish meanwhile, as checkpoints do."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[os.path.relpath(os.path.join(path, name), folder)] = os.stat(os.path.join(path, name))
    return found


def _status(store: Store, trial_id: str, alive: dict[str, bool]) -> str:
    try:
        if store.is_done(trial_id):
            return store.outcome(trial_id)
    except Damaged as damage:
        warnings.warn(str(damage), stacklevel=2)
    if alive.get(store.holder(trial_id), False):
        return "running"
    return "failed" if store.failure(trial_id) else "missing"
