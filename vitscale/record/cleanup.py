"""What a store holds that nobody needs: trials that no plan names, and files left by processes that
were killed. `vitscale status --orphans` shows them, `vitscale clean` removes them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from vitscale.plan.parents import AT_END, branch_steps, entries
from vitscale.record.object_store import WRITABLE
from vitscale.record.outcome import Status
from vitscale.record.overview import by_folder
from vitscale.record.store import Store
from vitscale.record.trial_files import DELETED, SET_ASIDE, TRIAL_ID
from vitscale.record.trial_info import earlier_studies
from vitscale.record.workdir import CHECKPOINT, FINAL, PINNED, Damaged, FileState, read_json

# A process writes to its scratch file all the time
UNTOUCHED_S = 3600.0
DOCTOR = ".doctor-"  # begins the folder of a check of `vitscale doctor`
TEAM_NOTES = "ray-train"  # of launch/ray_team.py

DAMAGED = (
    "rows.parquet.damaged-",
    *(f"damaged-{kind}" for kind in (CHECKPOINT, PINNED, FINAL)),
)

# scratch: of a process that was killed; damaged: set aside, and the trial has been restored since;
# deleted: `clean` was killed; set aside: trained again by other code; of a trunk: a state from
# which no planned trial starts
LeftoverKind = Literal["scratch", "damaged", "deleted", "set aside", "of a trunk"]


class Orphan(NamedTuple):
    """A trial that no plan names."""

    trial_id: str
    config: Mapping[str, Any]  # the fields that differ from their defaults
    status: Status
    earlier: tuple[str, ...]  # studies of which an earlier plan had it
    holder: str  # the running study that has claimed it, which keeps it; empty: none
    num_bytes: int
    changed_s: float  # unix time of its newest file; 0 without a file


class Leftover(NamedTuple):
    """A file or folder that does not belong to any trial or study."""

    path: str  # in the store
    kind: LeftoverKind
    num_bytes: int
    changed_s: float


class Waste(NamedTuple):
    orphans: tuple[Orphan, ...]
    leftovers: tuple[Leftover, ...]

    @property
    def num_bytes(self) -> int:
        trials = sum(orphan.num_bytes for orphan in self.orphans)
        return trials + sum(leftover.num_bytes for leftover in self.leftovers)


def read_plans(store: Store) -> dict[str, dict[str, Any]]:
    """Study -> its plan. Raises ValueError if any cannot be read: its trials are not known then."""
    try:
        plans = {slug: store.plan(slug) for slug in store.slugs()}
    except (Damaged, OSError) as damage:
        raise ValueError(
            f"every plan must be readable to tell which trials no plan names, but got: {damage}"
        ) from damage
    for slug in store.studies.names():
        if slug not in plans and {"attempt", "report"} <= set(store.study(slug).names()):
            raise ValueError(
                "every study that was started must have its plan to tell which trials no plan "
                f"names, but got none ({store.study(slug).address()}); start the study again, or "
                "remove this folder"
            )
    return plans


def survey(store: Store) -> Waste:
    """What there is; scratch files once nobody has written to them for an hour.

    Raises ValueError as `read_plans`.
    """
    plans = read_plans(store)
    files = by_folder(store.trials.files())
    orphans = tuple(
        _orphan(store, trial_id, plans, files.get(trial_id, {}))
        for trial_id in _unplanned(store, plans)
    )
    orphan_ids, needed = {orphan.trial_id for orphan in orphans}, _needed(store, plans)
    leftovers = tuple(_leftovers(store, files, orphan_ids, needed))
    if any(item.kind == "scratch" for item in leftovers):
        now_s = _now_s(store)
        leftovers = tuple(
            item
            for item in leftovers
            if item.kind != "scratch" or now_s - item.changed_s > UNTOUCHED_S
        )
    return Waste(orphans, leftovers)


def _now_s(store: Store) -> float:
    """The time by the store's clock, which wrote those of its files; by this machine's where
    nothing can be written, and so nothing be removed.
    """
    now_s = time.time()
    try:
        return now_s - store.studies.clock_ahead_s()
    except OSError:
        return now_s


def clean(store: Store, waste: Waste) -> Waste:
    """Removes of `waste` what still is, and says what that was.

    No study can start meanwhile (see Store.cleaning). A trial goes in one step, by a rename;
    deleting its files comes after. Raises ValueError as `read_plans`, or while a study starts;
    OSError if the disk refuses.
    """
    with store.cleaning():
        plans = read_plans(store)
        free = {i for i in _unplanned(store, plans) if not store.running_holder(i)}
        orphans = tuple(orphan for orphan in waste.orphans if orphan.trial_id in free)
        names = []
        for orphan in orphans:
            store.check_cleaning()
            if name := store.mark_deleted(orphan.trial_id):
                names.append(name)
        needed = _needed(store, plans)
        leftovers = tuple(item for item in waste.leftovers if not item.path.startswith(needed))
        for item in leftovers:
            if item.kind == "of a trunk":  # a study that starts later may plan to start from it
                store.folder.discard(item.path)
    for name in names:
        store.trials.discard(name)
    for item in leftovers:
        store.folder.discard(item.path)
    return Waste(orphans, leftovers)


def _needed(store: Store, plans: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """How the paths of all states begin from which planned trials start."""
    planned = [entry for plan in plans.values() for entry in entries(plan)]
    return tuple(
        f"trials/{trial}/" + (FINAL if step == AT_END else f"{PINNED}{step:09d}-")
        for trial, steps in branch_steps(planned, store.trial_ids()).items()
        for step in steps
    )


def _unplanned(store: Store, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    every = [entry for plan in plans.values() for entry in entries(plan)]
    planned = {entry["id"] for entry in every} | {*branch_steps(every, store.trial_ids())}
    return [trial_id for trial_id in store.trial_ids() if trial_id not in planned]


def _orphan(
    store: Store,
    trial_id: str,
    plans: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, FileState],
) -> Orphan:
    holder = store.running_holder(trial_id)
    try:
        config = read_json(store.trial(trial_id), "config.json")
    except (Damaged, OSError):
        config = {}
    return Orphan(
        trial_id,
        config,
        Status.RUNNING if holder else store.outcome(trial_id, store.peek).status,
        earlier_studies(plans, trial_id),
        holder,
        *_size(files),
    )


def _size(files: Mapping[str, FileState]) -> tuple[int, float]:
    """(bytes, when the newest changed)."""
    states = files.values()
    return sum(s.num_bytes for s in states), max((s.changed_s for s in states), default=0.0)


def _leftovers(
    store: Store,
    files: Mapping[str, Mapping[str, FileState]],
    orphans: Collection[str],
    needed: tuple[str, ...],
) -> Iterator[Leftover]:
    for name in store.trials.names():
        kind = _kind_of_folder(name)
        if kind:
            yield Leftover(f"trials/{name}", kind, *_size(files.get(name, {})))
        elif name.startswith(WRITABLE):
            yield Leftover(f"trials/{name}", "scratch", *store.trials.state(name))
        elif TRIAL_ID.fullmatch(name) and name not in orphans:
            yield from _of_trial(store, name, files.get(name, {}), needed)
    for name in store.folder.names():
        if name.startswith((DOCTOR, WRITABLE)):
            size = _size(store.folder.within(name).files()) if name.startswith(DOCTOR) else None
            yield Leftover(name, "scratch", *(size or store.folder.state(name)))
    for path, state in store.studies.files().items():
        if _is_scratch(path):
            yield Leftover(f"studies/{path}", "scratch", *state)


def _kind_of_folder(name: str) -> LeftoverKind | None:
    if TRIAL_ID.fullmatch(name[:12]) and name[12:].startswith(DELETED):
        return "deleted"
    if TRIAL_ID.fullmatch(name[:12]) and name[12:].startswith(SET_ASIDE):
        return "set aside"
    return None


def _of_trial(
    store: Store, trial_id: str, files: Mapping[str, FileState], needed: tuple[str, ...]
) -> Iterator[Leftover]:
    done = store.is_done(trial_id)
    for name, state in files.items():
        path = f"trials/{trial_id}/{name}"
        if _is_scratch(name):
            yield Leftover(path, "scratch", *state)
        elif done and name.startswith(DAMAGED):
            yield Leftover(path, "damaged", *state)
        elif done and name.startswith((PINNED, FINAL)) and not path.startswith(needed):
            yield Leftover(path, "of a trunk", *state)
    notes = {name: state for name, state in files.items() if name.startswith(f"{TEAM_NOTES}/")}
    if notes and not store.running_holder(trial_id):
        yield Leftover(f"trials/{trial_id}/{TEAM_NOTES}", "scratch", *_size(notes))


def _is_scratch(path: str) -> bool:
    """Whether a path is of a file that is written whole or not at all (Workdir.write)."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp") and not path.startswith(TEAM_NOTES)
