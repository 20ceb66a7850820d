"""The store: one directory per trial, shared by all studies; a trial is done once its rows.parquet
exists.

    <root> is a folder, or a bucket and a prefix (vitscale.record.bucket)

    <root>/store-id                            a random name; identifies it on a shared MLflow
           planning.lock                       shared by starts, held by `vitscale clean`
           trials/<id>.set-aside-<time>/       a trial that was trained again by other code
                  <id>.deleted-<random>/       what `vitscale clean` was about to remove
           trials/<id>/config.json             the fields that differ from their defaults
                       claim.json              the worker that trains it now
                       checkpoint-<step>-<digest>.pt
                       pinned-<step>-<digest>.pt  from which other trials start
                       failure.log             why the config failed, with the traceback
                       fault.log               the last fault of a machine: not a result
                       wrong-<digest>.parquet  which images the final weights got wrong
                       rows.parquet            written last, atomically and exclusively
                       evaluation-<id>.parquet  of an evaluation after the training, as rows.parquet
                       predictions-<id>.parquet  its predictions, on request
    <root>/studies/<slug>/plan.json            the plan of the last start
                          attempt              number of starts so far
                          nonce                of this start; a node without it sees another store
                          driver.lock          held by the running driver
                          trials/<arm>/<point> links to its trials, for people
                          looks/               which rows each report saw, see look_ledger.py
                          outcomes.parquet     a copy of outcomes (vitscale.record.index)
                          asked.json           of a search: points it asked for, and what it stopped

Every file is written whole or not at all. This module says which files there are and what they
mean; how they are read and written is the affair of vitscale.record.workdir alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitscale.plan.paths import check_printable, given, path_of
from vitscale.record.bucket import BucketDir, check_lease
from vitscale.record.misclassified import WRONG, Misclassified
from vitscale.record.misclassified import decode as decode_misclassified
from vitscale.record.object_store import WRITABLE, Bucket, Unavailable, checked_url
from vitscale.record.outcome import Outcome, Status
from vitscale.record.rows import decode, decode_facts, encode
from vitscale.record.workdir import (
    CHECKPOINT,
    CLAIM,
    SLUG,
    Damaged,
    Fenced,
    FileState,
    Held,
    Workdir,
    claim_of,
    read_json,
    read_text,
)

ROWS = "rows.parquet"
EVALUATION = "evaluation-"
PREDICTIONS = "predictions-"
PLAN = "plan.json"
FAILURE = "failure.log"
FAULT = "fault.log"
ASKED = "asked.json"
IDENTITY = "store-id"
NONCE = "nonce"
LOCK = "driver.lock"
PLANNING = "planning.lock"
PLANNING_PATIENCE_S, CLEANING_PATIENCE_S = 60.0, 10.0
SET_ASIDE, DELETED = ".set-aside-", ".deleted-"  # between a trial's id and a time or random digits
# s3://bucket, which as a path would become a folder named "s3:"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
TRIAL_ID = re.compile(r"[0-9a-f]{12}")  # of vitscale.plan.config


class NotShared(OSError):
    """This machine sees another store than the driver, or none."""


class Overtaken(ValueError):
    """Another start of the study has taken over while this process stood still."""


class ClaimedByOther(RuntimeError):
    """Another study that is running now trains this trial."""

    def __init__(self, study: str, trial_id: str) -> None:
        super().__init__(f"study {study} trains {trial_id} now")
        self.study = study


@dataclass(frozen=True)
class Store:
    """A folder of trials and studies. The constructor creates nothing; `open` and `make` do."""

    root: Path | str  # str: the address of a bucket and a prefix in it
    is_impatient: bool = field(default=False, compare=False)

    @classmethod
    def at(cls, root: str | Path) -> Store:
        """The store in a folder or in a bucket (s3://bucket/prefix); creates nothing. An empty one
        is that of VITSCALE_STORE, or runs.

        Raises ValueError for an address that names neither, and for an impossible lease.
        """
        place = check_printable(given(str(root), "VITSCALE_STORE", "runs"))
        if SCHEME.match(place):
            check_lease()
            return cls(checked_url(place))
        return cls(path_of(place))

    @classmethod
    def open(cls, root: str | Path) -> Store:
        """The store, with its folders created. Raises ValueError if it cannot be written."""
        store = cls.at(root)
        store.make()
        return store

    def make(self) -> None:
        """Creates the folders that are missing. Raises ValueError if they cannot be written."""
        if isinstance(self.root, str):
            try:
                return Bucket(self.root).probe()
            except OSError as error:
                raise ValueError(str(error)) from error
        try:
            for folder in (self.trials, self.studies):
                # as trials are committed: needs hard links
                folder.create(".writable", b"")
                folder.remove(".writable")
        except OSError as error:
            raise ValueError(
                f"the store must be writable, but got (store={str(self.root)!r}: {error})"
            ) from error

    def check_permitted(self, slug: str) -> None:
        """Raises ValueError, or OSError for a bucket, if this user may not write what a start of
        the study would write beside trials, such as what another user has made.
        """
        of_study = ("", LOCK, "ray.log", "looks", "report", "trials")
        _refuse([*self.folder.refused("", PLANNING), *self.study(slug).refused(*of_study)])

    def check_trials_writable(self) -> None:
        """Raises OSError unless this process can create a file beside the trials."""
        name = f"{WRITABLE}{uuid.uuid4().hex}"
        self.trials.create(name, b"")
        self.trials.remove(name)

    def check_trials_permitted(self, trial_ids: Iterable[str]) -> None:
        """Raises as `check_permitted` if this user may not write in the folders of some trials."""
        _refuse(self.trials.refused(*trial_ids))

    @property
    def in_bucket(self) -> bool:
        return isinstance(self.root, str)

    @property
    def folder(self) -> Workdir:
        """The root folder."""
        if isinstance(self.root, str):
            folder = BucketDir(Path(), bucket=Bucket(self.root))
            return folder.impatient() if self.is_impatient else folder
        return Workdir(self.root)

    def impatient(self) -> Store:
        """The same store, which raises an error in place of waiting for a server."""
        return replace(self, is_impatient=True)

    def beside(self, name: str) -> Path:
        """A local path for a library's own database, which is not a file of the store.

        For a store in a bucket it is below $XDG_CACHE_HOME, default ~/.cache.
        """
        if isinstance(self.root, Path):
            return self.root / name
        cache = path_of(given("", "XDG_CACHE_HOME", "~/.cache"))
        folder = cache / "vitscale" / re.sub(r"[^\w.-]+", "_", self.root)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"XDG_CACHE_HOME must be a folder in which {name} can be written, but got "
                f"({folder}: {error.strerror}); or name a server in MLFLOW_TRACKING_URI"
            ) from error
        return folder / name

    # Trials

    @property
    def trials(self) -> Workdir:
        return self.folder.within("trials")

    def trial(self, trial_id: str) -> Workdir:
        return self.trials.within(trial_id)

    def trial_ids(self) -> list[str]:
        """Trials that have a folder, sorted."""
        return [name for name in self.trials.names() if TRIAL_ID.fullmatch(name)]

    def is_done(self, trial_id: str) -> bool:
        """Whether a trial has finished or diverged; true for a dangling link, which is damaged."""
        return self.trial(trial_id).exists(ROWS)

    def done_of(self, trial_ids: Collection[str]) -> set[str]:
        """Those of some trials that are done."""
        return set(self.trials.states(ROWS, trial_ids))

    def claim(self, trial_id: str, config: Mapping[str, Any], study: str, attempt: int) -> Workdir:
        """Makes this worker the only one that may write to the trial, until the next claim.

        Raises ClaimedByOther if another study with a live driver has claimed the trial, and Fenced
        if a later attempt of this study has.
        """
        folder, workdir = self.trial(trial_id), None
        token = f"{study}/{attempt}/{uuid.uuid4().hex}"
        claim = {"token": token, "study": study, "attempt": attempt, **_whoami()}
        while workdir is None:
            holder, seen = folder.look()
            if holder and holder["study"] == study and holder["attempt"] > attempt:
                raise Fenced(
                    f"attempt {holder['attempt']} has claimed {trial_id}, this is attempt {attempt}"
                )
            if holder and holder["study"] != study and self.driver_is_alive(holder["study"]):
                raise ClaimedByOther(holder["study"], trial_id)
            workdir = folder.take(claim, seen)
        there = folder.names()
        for name in there:
            # of a killed worker; the last two are of an earlier attempt: from now on the trial runs
            if (name.startswith(".") and name.endswith(".tmp")) or name in (FAILURE, FAULT):
                folder.remove(name)
        if "config.json" not in there:
            folder.write("config.json", json.dumps(dict(config), indent=1, sort_keys=True).encode())
        return workdir

    def finish(
        self, workdir: Workdir, outcome: Outcome, beside: Mapping[str, bytes] | None = None
    ) -> bool:
        """Commits a finished or diverged trial; False if another worker was first.

        Status and facts travel in the metadata of the parquet file, so that both are one commit;
        the file is sealed (vitscale.record.rows). `beside`: files that are named by their content
        and referred to by facts; they are written first.
        """
        for name, content in (beside or {}).items():
            workdir.write(name, content)
        first = workdir.create(ROWS, encode(workdir.name, outcome))
        for name in workdir.names(CHECKPOINT)[:-1]:  # the last one may hold the final weights
            workdir.remove(name)
        workdir.remove(CLAIM)
        return first

    def states(self, trial_ids: Collection[str]) -> dict[str, FileState]:
        """The state of the rows of each done trial.

        Removes what is left of claims to them, by workers that were killed right after the commit,
        where this user may: they harm nobody.
        """
        rows, claims = self.trials.states_of((ROWS, CLAIM), trial_ids)
        for trial_id in rows.keys() & claims.keys():
            with contextlib.suppress(OSError):
                self.trial(trial_id).remove(CLAIM)
        return rows

    def read(self, trial_id: str) -> Outcome:
        """The outcome of a done trial. Raises Damaged, or Unavailable for a bucket."""
        with _naming(self.trial(trial_id).address(ROWS)):
            return decode(self.trial(trial_id).read(ROWS), trial_id)

    def peek(self, trial_id: str) -> Outcome:
        """The outcome of a done trial without its rows, which is faster to read. Raises Damaged."""
        with _naming(self.trial(trial_id).address(ROWS)), self.trial(trial_id).open(ROWS) as file:
            return decode_facts(file, trial_id)

    def misclassified(self, trial_id: str, outcome: Outcome) -> Misclassified | None:
        """The images that the final weights of a done trial misclassify. Raises Damaged.

        None for a trial that diverged, or that was trained by an older version.
        """
        name, workdir = outcome.facts.get(WRONG, ""), self.trial(trial_id)
        if not name:
            return None
        with _naming(workdir.address(name), "wrong images"):
            return decode_misclassified(name, workdir.read(name))

    # Evaluations after training

    def evaluated(self) -> set[str]:
        """The trials that have an evaluation after their training."""
        return self.trials.having_any(EVALUATION)

    def evaluations(self, trial_id: str) -> dict[str, Outcome]:
        """The evaluations of a trial by their ids, with one row each.

        A damaged file is ignored, with a warning that names it.
        """
        found, workdir = {}, self.trial(trial_id)
        for name in workdir.names(EVALUATION):
            try:
                with _naming(workdir.address(name)):
                    found[name.removeprefix(EVALUATION).removesuffix(".parquet")] = decode(
                        workdir.read(name), trial_id
                    )
            except Damaged as damage:
                warnings.warn(str(damage), stacklevel=2)
        return found

    def add_evaluation(
        self, trial_id: str, evaluation_id: str, outcome: Outcome, beside: Mapping[str, bytes]
    ) -> None:
        """Commits a sealed evaluation in place of an earlier one. `beside` as in `finish`."""
        workdir = self.trial(trial_id)
        for name, content in beside.items():
            workdir.write(name, content)
        workdir.write(f"{EVALUATION}{evaluation_id}.parquet", encode(trial_id, outcome))

    def outcome(
        self,
        trial_id: str,
        read: Callable[[str], Outcome] | None = None,
        done: bool | None = None,
        others: Collection[str] = (FAILURE, FAULT),
    ) -> Outcome:
        """How a trial ended: decided by rows.parquet, else failure.log, else fault.log.

        `read` reads a done trial (default: `Store.read`). `done`: what is known of that. `others`:
        which of the other files it may have, since in a bucket each look takes a request. A damaged
        file is ignored, with a warning that names it. Raises Unavailable for a bucket.
        """
        try:
            if done or (done is None and self.is_done(trial_id)):
                return (read or self.read)(trial_id)
        except Unavailable:
            raise
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        try:
            if FAILURE in others and (error := self.failure(trial_id)):
                return Outcome(Status.FAILED, facts={"error": error})
            if FAULT in others and (fault := self.fault(trial_id)):
                return Outcome(Status.MISSING, facts={"error": fault})
        except Unavailable:
            raise
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        return Outcome(Status.MISSING)

    def others_of(self, trial_ids: Collection[str]) -> dict[str, list[str]]:
        """Trial -> which it has of the files that `outcome` reads beside rows, by one look."""
        names = (FAILURE, FAULT)
        found = self.trials.states_of(names, trial_ids)
        return {
            i: [name for name, states in zip(names, found, strict=True) if i in states]
            for i in trial_ids
        }

    def holder(self, trial_id: str) -> str:
        """The study that has claimed a trial; empty if none has."""
        return str(claim_of(self.trial(trial_id)).get("study", ""))

    def check_claim(self, trial_id: str) -> None:
        """Raises Damaged for a malformed claim; such a claim has no effect, but is reported."""
        claim, where = read_json(self.trial(trial_id), CLAIM), self.trial(trial_id).address(CLAIM)
        study, attempt = claim.get("study"), claim.get("attempt")
        if claim and not (
            isinstance(study, str) and SLUG.fullmatch(study) and isinstance(attempt, int)
        ):
            raise Damaged(
                f"a claim must name a study and its attempt, but got ({where}: {study!r:.60}, "
                f"{attempt!r:.60})"
            )

    def set_aside(self, trial_id: str) -> str:
        """Renames a damaged rows.parquet, so that the trial resumes; returns the new name."""
        aside = f"{ROWS}.damaged-{int(time.time())}"
        self.trial(trial_id).rename(ROWS, aside)
        return aside

    def set_trial_aside(self, trial_id: str, stamp: str) -> bool:
        """Moves a whole trial out of the way, so that it is trained again; False if it has gone."""
        return self._move_trial(trial_id, f"{trial_id}{SET_ASIDE}{stamp}")

    def mark_deleted(self, trial_id: str) -> str:
        """Takes a trial out of the store in one step; the name of what `trials` must discard.

        Empty if it has gone. A process killed in between leaves a folder that is not a trial.
        """
        name = f"{trial_id}{DELETED}{uuid.uuid4().hex[:8]}"
        return name if self._move_trial(trial_id, name) else ""

    def _move_trial(self, trial_id: str, name: str) -> bool:
        try:
            self.trials.rename(trial_id, name)
        except FileNotFoundError:
            return False
        return True

    def fail(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records why a trial failed, its one line first, and releases it; keeps checkpoints."""
        self._end(workdir, FAILURE, error, traceback)

    def lose(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records a fault of the machine and releases the trial, which stays without an outcome."""
        self._end(workdir, FAULT, error, traceback)

    def _end(self, workdir: Workdir, name: str, error: str, traceback: str) -> None:
        claim = workdir.look()[0]
        who = json.dumps({**_whoami(), "start": [claim.get("study"), claim.get("attempt")]})
        workdir.write(name, f"{error}\n{who}\n\n{traceback}".encode())
        workdir.release()

    def failure(self, trial_id: str) -> str:
        """Why a trial failed, in one line; empty if it has not failed."""
        return read_text(self.trial(trial_id), FAILURE, errors="replace").partition("\n")[0]

    def fault(self, trial_id: str, start: tuple[str, int] | None = None) -> str:
        """The last fault of a machine in one line; empty if none since the trial's last start, or
        if it was not in this one (study, number).
        """
        text = read_text(self.trial(trial_id), FAULT, errors="replace")
        line, who, *_ = [*text.split("\n", 2), "", ""]
        if start is not None:
            try:
                return line if json.loads(who)["start"] == [*start] else ""
            except (ValueError, TypeError, KeyError, RecursionError):  # an older one, or damaged
                return ""
        return line

    # Studies

    def identity(self) -> str:
        """A random name that identifies this store at any location; created at first use."""
        if not self.folder.exists(IDENTITY):
            self.folder.create(IDENTITY, uuid.uuid4().hex.encode())
        return read_text(self.folder, IDENTITY).strip()

    @property
    def studies(self) -> Workdir:
        return self.folder.within("studies")

    def study(self, slug: str) -> Workdir:
        return self.studies.within(slug)

    def report(self, slug: str) -> Workdir:
        """The tables, figures and page of a study."""
        return self.study(slug).within("report")

    def slugs(self) -> list[str]:
        """The studies that have a plan, by slug."""
        return [slug for slug in self.studies.names() if self.study(slug).exists(PLAN)]

    def plan(self, slug: str) -> dict[str, Any]:
        """The plan of a study's last start, as plain values; empty if there is none.

        Its configs, which may be of another version, are not checked. Raises Damaged.
        """
        folder = self.study(slug)
        plan = read_json(folder, PLAN)
        if not plan and not folder.exists(PLAN):
            return {}
        if reason := _not_the_plan(plan, slug):
            where = folder.address(PLAN)
            raise Damaged(
                f"a plan must be as the start of its study wrote it, but got ({where}: {reason})"
            )
        return plan

    def asked(self, slug: str) -> dict[str, Any]:
        """The points and stops of a search so far; empty for other studies. Raises Damaged."""
        asked, where = read_json(self.study(slug), ASKED), self.study(slug).address(ASKED)
        for name in ("points", "stopped"):
            found = asked.get(name, {})
            if not isinstance(found, dict) or not all(
                isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
                for value in found.values()
            ):
                raise Damaged(
                    f"the record of a search must be as it was written, but got ({where}: {name})"
                )
        return asked

    @contextlib.contextmanager
    def drive(self, slug: str) -> Iterator[int]:
        """Holds the study's lock and yields the number of this attempt.

        Raises ValueError if the study has a running driver, and Overtaken.
        """
        folder = self.study(slug)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(folder.hold(LOCK, json.dumps(_whoami())))
            except Held as held:
                raise ValueError(
                    f"one driver may run a study, but got (study={slug!r}, running: {held})"
                ) from held
            attempt = 0

            def number() -> bytes:
                nonlocal attempt
                before = self.num_starts(slug)
                if not before or isinstance(self.root, Path):  # in a bucket, it takes requests
                    before = max(before, *self._attempts(slug))
                attempt = 1 + before
                return str(attempt).encode()

            self.write_driving(slug, "attempt", number)
            self.write_driving(slug, NONCE, lambda: uuid.uuid4().hex.encode())
            yield attempt

    def write_driving(self, slug: str, name: str, make: Callable[[], bytes | None]) -> None:
        """Writes a file of a study that this process drives; `make`, which may read what is there,
        gives its content, or None to leave it. Raises Overtaken, and never overwrites what another
        start has written after it took over.

        The version is asked for first, and then whether the study is still ours: what a later start
        has written by then is seen as such, and what it writes afterwards is another version, if
        its content is its own: a tag is often a digest.
        """
        folder = self.study(slug)
        while True:
            version, content = folder.version(name), make()
            self.check_drives(slug)
            if content is None or folder.write_over(name, content, version):
                return

    def check_drives(self, slug: str) -> None:
        """Raises Overtaken if another start may have taken over the study that this one drives."""
        if not self.still_drives(slug):
            raise Overtaken("another start of the study has taken it over")

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Held from a start's look at what is done until its plan names that: no trial is deleted
        in between. Starts share it. Raises ValueError if trials are being deleted all the time.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.folder.share(PLANNING, PLANNING_PATIENCE_S))
            except Held as held:
                raise ValueError(
                    "a study may start once trials are deleted, but got "
                    f"(store={str(self.root)!r}, deleting: {held})"
                ) from held
            yield

    @contextlib.contextmanager
    def cleaning(self) -> Iterator[None]:
        """Held while trials that no plan names are taken out of the store: no study can begin to
        rely on one. Raises ValueError while a study starts.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(
                    self.folder.hold(PLANNING, json.dumps(_whoami()), CLEANING_PATIENCE_S)
                )
            except Held as held:
                raise ValueError(
                    "no study may start while trials are deleted, but got "
                    f"(store={str(self.root)!r}: one starts now, or another clean runs); try again"
                ) from held
            yield

    def check_cleaning(self) -> None:
        """Raises ValueError if a study may have started since `cleaning`, as in a bucket while this
        process stood still.
        """
        if not self.folder.still_holds(PLANNING):
            raise ValueError(
                "no study may start while trials are deleted, but got "
                f"(store={str(self.root)!r}: one may have started); try again"
            )

    def still_plans(self) -> bool:
        """Whether no trial can have been deleted since `planning`."""
        return self.folder.still_holds(PLANNING)

    def check_planning(self) -> None:
        """Raises ValueError if trials may have been deleted since `planning`, as in a bucket while
        this process stood still.
        """
        if not self.still_plans():
            raise ValueError(
                "no trial may be deleted while a study starts, but got "
                f"(store={str(self.root)!r}: this process did not run for a while); try again"
            )

    def nonce(self, slug: str) -> str:
        """The nonce that the study's running driver wrote to the store; empty without one."""
        return read_text(self.study(slug), NONCE, errors="replace")

    def check_shared(self, slug: str, nonce: str, patience_s: float = 0.0) -> None:
        """Raises NotShared unless this machine sees the driver's nonce, so that both share a store.

        Some network file systems show new files late: if the study exists, checks again for up to
        `patience_s` seconds.
        """
        end = time.monotonic() + patience_s
        while self.nonce(slug) != nonce:
            if time.monotonic() >= end or not self.study(slug).exists():
                raise NotShared(
                    "the store must be one folder that all nodes see, but got "
                    f"(store={str(self.root)!r}, which is another one on {socket.gethostname()})"
                )
            time.sleep(1)

    def clock_ahead_s(self, slug: str) -> float:
        """As Workdir.clock_ahead_s, of the driver or a worker of a study; 0 if it cannot write."""
        try:
            return self.study(slug).clock_ahead_s()
        except OSError:
            return 0.0

    def _attempts(self, slug: str) -> list[int]:
        """Attempts of a study in claims, which can exceed its counter: that may be lost."""
        claims = (claim_of(self.trial(trial_id)) for trial_id in self.trials.having(CLAIM))
        return [0, *(claim["attempt"] for claim in claims if claim.get("study") == slug)]

    def num_starts(self, slug: str) -> int:
        """How often a study was started."""
        return _number(self.study(slug), "attempt")

    def running_holder(self, trial_id: str) -> str:
        """The study that has claimed a trial and runs now; empty if there is none."""
        holder = self.holder(trial_id)
        return holder if holder and self.driver_is_alive(holder) else ""

    def still_drives(self, slug: str) -> bool:
        """Whether no other start can have taken over the study that this process drives."""
        return self.study(slug).still_holds(LOCK)

    def driver_is_alive(self, slug: str) -> bool:
        """Whether a driver of the study is running."""
        return self.study(slug).is_held(LOCK)


@contextlib.contextmanager
def _naming(address: str, what: str = "rows") -> Iterator[None]:
    """Raises Damaged, with the address, for any exception that a damaged file causes.

    Not for one of the machine, such as a server of files that does not answer, a permission or too
    little memory: what was read would be trained again. pyarrow's own errors have no errno.
    """
    try:
        yield
    except (Unavailable, MemoryError):  # pyarrow's is one, too
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in (None, errno.EIO, errno.ENOENT):
            raise
        reason = (str(error) or repr(error)).splitlines()[0]
        raise Damaged(f"{what} must be readable parquet, but got ({address}: {reason})") from error


def _refuse(refused: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError naming the first of some (address, owner) that may not be written."""
    if refused:
        (address, owner), more = refused[0], len(refused) - 1
        raise ValueError(
            "what a start writes must be writable by this user, but got "
            f"({address!r}, of {owner}{f', and {more} more' if more else ''})"
        )


def _whoami() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _number(workdir: Workdir, name: str) -> int:
    """The number in a file; 0 if there is no file, or no number in it."""
    try:
        text = workdir.read(name).strip()
    except (FileNotFoundError, Damaged):
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _not_the_plan(plan: Mapping[str, Any], slug: str) -> str:
    """Why an object is not the plan of a study; empty if it is.

    The ids of trials become paths, so they are checked.
    """
    trials = plan.get("trials")
    if f"{plan.get('name')}-{plan.get('scale')}" != slug:
        return f"of a study {plan.get('name')!r:.60} at scale {plan.get('scale')!r:.60}"
    if (
        not isinstance(trials, list)
        or not trials
        or not all(isinstance(trial, dict) for trial in trials)
    ):
        return "no list of trials"
    ids = [trial.get("id") for trial in trials]
    wrong = [name for name in ids if not isinstance(name, str) or not TRIAL_ID.fullmatch(name)]
    return f"a trial's id {wrong[0]!r:.60}" if wrong else ""
