"""The studies of a store: trials by status, size on disk, and last activity."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from vitscale.plan.parents import branch_steps
from vitscale.record.index import Index
from vitscale.record.look_ledger import FOLDER, OPEN, read_ledger
from vitscale.record.outcome import DONE, Status
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN
from vitscale.record.trial_files import ROWS
from vitscale.record.workdir import CHECKPOINT, CLAIM, PINNED, Damaged, FileState

T = TypeVar("T")


class TrialState(NamedTuple):
    """One trial as its files tell it."""

    status: Status
    num_bytes: int
    # of it in checkpoints: of a done trial, its final weights, and what others start from
    checkpoint_bytes: int
    changed_s: float  # unix time of its newest file; 0 without a file


class StudyState(NamedTuple):
    """Progress of one study; every planned trial is counted under exactly one status."""

    study: str
    planned: int
    finished: int
    running: int  # claimed by a study whose driver lives
    diverged: int
    stopped: int  # by a search with ASHA, before the end
    failed: int
    missing: int  # never started, or interrupted
    num_bytes: int  # of its own files and all its trials, including those that other studies share
    checkpoint_bytes: int  # thereof in checkpoints: for done trials, their final weights
    changed_s: float  # unix time: the newest file of its trials, or its last start
    driver_alive: bool
    trunks: tuple[str, ...] = ()  # trials from which others start
    looks: tuple[int, ...] = ()  # of each report with a p: the most draws or seeds of an arm
    final_num: int | str | None = None  # as --final-num declared it


def overview(store: Store) -> tuple[list[StudyState], int]:
    """The started studies of a store, sorted by name, and the bytes of all of its files, including
    trials that no study plans any more. Raises ValueError if there is none.

    A study whose plan cannot be read is left out, and a trial with a damaged file counts as
    missing; each has a warning that names the file.
    """
    slugs = store.slugs()
    if not slugs:
        raise ValueError(f"a study must be in the store, but got none (store={str(store.root)!r})")
    alive = {slug: _or_warn(False, store.driver_is_alive, slug) for slug in slugs}
    by_id: dict[str, TrialState] = {}
    files = store.folder.files()  # once: a bucket lists a thousand at a time
    of_trials, of_studies = by_folder(files, "trials/"), by_folder(files, "studies/")
    states = [
        _or_warn(None, _study_state, store, slug, alive, by_id, of_trials, of_studies.get(slug, {}))
        for slug in slugs
    ]
    num_bytes = sum(file.num_bytes for file in files.values())
    return [state for state in states if state is not None], num_bytes


def _or_warn(default: T, ask: Callable[..., T], *arguments: Any) -> T:
    """The value of a function; the default, with a warning, if a file cannot be read."""
    try:
        return ask(*arguments)
    except (Damaged, OSError) as damage:
        warnings.warn(str(damage), stacklevel=2)
        return default


def _study_state(
    store: Store,
    slug: str,
    alive: dict[str, bool],
    by_id: dict[str, TrialState],
    all_files: dict[str, dict[str, FileState]],
    files: Mapping[str, FileState],
) -> StudyState | None:
    """The state of one study; adds the trials it reads to `by_id`, since studies share trials."""
    trials, stopped = [], store.asked(slug).get("stopped", {})
    plan = store.plan(slug)
    entries = plan["trials"]
    ids = [entry["id"] for entry in entries]
    states = {i: all_files[i][ROWS] for i in ids if ROWS in all_files.get(i, {})}
    index = Index(store, slug, ids, states, with_rows=False)
    for trial_id in ids:
        if trial_id not in by_id:
            by_id[trial_id] = _trial_state(index, trial_id, alive, all_files.get(trial_id, {}))
        trials.append(
            by_id[trial_id]._replace(status=Status.STOPPED)
            if trial_id in stopped
            else by_id[trial_id]
        )
    # parents are no trials, but their weights are the study's
    parents = [all_files.get(entry["id"], {}) for entry in plan.get("parents", ())]
    own = files.get(PLAN, FileState(0, 0.0))  # deleted since
    own_bytes = _size(files)
    counts = {status.value: sum(trial.status is status for trial in trials) for status in Status}
    looks, final_num = _looks(store, slug, files)
    return StudyState(
        slug,
        len(trials),
        **counts,
        num_bytes=own_bytes + sum(trial.num_bytes for trial in trials) + sum(map(_size, parents)),
        checkpoint_bytes=sum(trial.checkpoint_bytes for trial in trials)
        + sum(map(_checkpoint_size, parents)),
        changed_s=max([own.changed_s, *(trial.changed_s for trial in trials)]),
        driver_alive=alive[slug],
        trunks=tuple(branch_steps(entries, ids)),
        looks=looks,
        final_num=final_num,
    )


def _looks(
    store: Store, slug: str, files: Mapping[str, FileState]
) -> tuple[tuple[int, ...], int | str | None]:
    """(size of each look with a p, final size); only a study with a file of the ledger is asked."""
    if not any(name.startswith(f"{FOLDER}/") for name in files):
        return (), None
    ledger = read_ledger(store, slug)
    final = ledger.final
    sizes = [
        max(look.seen.values(), default=0) for look in ledger.looks if any(look.tested.values())
    ]
    return tuple(sizes), (OPEN if final.is_open else final.num) if final else None


def by_folder(files: Mapping[str, FileState], below: str = "") -> dict[str, dict[str, FileState]]:
    """Name of each folder, of those below a path, -> its files by their path in it."""
    states_of: dict[str, dict[str, FileState]] = {}
    for path, state in files.items():
        folder, _, name = path.removeprefix(below).partition("/")
        if name and path.startswith(below):
            states_of.setdefault(folder, {})[name] = state
    return states_of


def _trial_state(
    index: Index, trial_id: str, alive: dict[str, bool], files: Mapping[str, FileState]
) -> TrialState:
    return TrialState(
        _status(index, trial_id, alive, files),
        _size(files),
        _checkpoint_size(files),
        max((file.changed_s for file in files.values()), default=0.0),
    )


def _size(files: Mapping[str, FileState]) -> int:
    return sum(file.num_bytes for file in files.values())


def _checkpoint_size(files: Mapping[str, FileState]) -> int:
    kept = (CHECKPOINT, PINNED)
    return sum(file.num_bytes for name, file in files.items() if name.startswith(kept))


def _status(
    index: Index, trial_id: str, alive: dict[str, bool], files: Mapping[str, FileState]
) -> Status:
    store = index.store
    if store.in_bucket:  # the listing is all there is; each further look is a request
        outcome = store.outcome(trial_id, index.peek, ROWS in files, files)
        may_run = CLAIM in files
    else:
        outcome = store.outcome(trial_id, index.peek, True if ROWS in files else None)
        may_run = True
    is_open = may_run and outcome.status not in DONE
    if is_open and alive.get(_or_warn("", _holder, store, trial_id), False):
        return Status.RUNNING
    return outcome.status


def _holder(store: Store, trial_id: str) -> str:
    store.check_claim(trial_id)
    return store.holder(trial_id)
