"""The store: one directory a trial, shared by all studies; a trial is done when its rows.parquet exists.

    <root>/store-id                            a random name, by which a shared MLflow server tells stores apart
           trials/<id>/config.json             the fields that differ from their defaults
                       claim.json              who trains it now
                       checkpoint-<step>-<digest>.pt
                       failure.log             what the config failed of, with its traceback
                       fault.log               how a machine failed it last, with the traceback: no result
                       rows.parquet            written last, atomically and exclusively
    <root>/studies/<slug>/plan.json            what was asked
                          attempt              number of starts so far
                          nonce                of the running start: a node that does not find it sees another store
                          driver.lock          held by the running driver
                          asked.json           of a search: the points it asked for, and what it stopped

Every write is a temporary file, fsync and rename, so a reader sees a whole file or none. Only this module touches the
files of a store, so that another filesystem can take the place of the local one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import stat
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscale.record.outcome import Outcome, Status
from vitscale.record.rows import decode, decode_facts, encode

ROWS = "rows.parquet"
PLAN = "plan.json"
CLAIM = "claim.json"
FAILURE = "failure.log"
FAULT = "fault.log"
ASKED = "asked.json"
IDENTITY = "store-id"
NONCE = "nonce"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # s3://bucket; as a path it would become a folder named "s3:"
SLUG = re.compile(r"[\w-]+")
TRIAL_ID = re.compile(r"[0-9a-f]{12}")  # of vitscale.plan.config


class Fenced(RuntimeError):
    """Another attempt has claimed the trial: this worker may commit nothing more."""


class Elsewhere(RuntimeError):
    """Another study that is running now trains this trial."""

    def __init__(self, study: str, trial_id: str) -> None:
        super().__init__(f"study {study} trains {trial_id} now")
        self.study = study


class Damaged(ValueError):
    """A file of the store cannot be read; the message names it."""


@dataclass(frozen=True)
class Workdir:
    """The directory of one trial. With a token, a write is refused once another worker has claimed the trial."""

    path: Path
    token: str | None = None

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file atomically. Raises Fenced, or OSError if the disk refuses."""
        with self._prepared(name, content) as temporary:
            self._refuse_if_fenced()
            os.replace(temporary, self.path / name)
        _sync_directory(self.path)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a whole file unless it exists; says whether this call was the one that did."""
        with self._prepared(name, content) as temporary:
            self._refuse_if_fenced()
            try:
                os.link(temporary, self.path / name)
            except FileExistsError:
                return False
        _sync_directory(self.path)
        return True

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def names(self, prefix: str = "") -> list[str]:
        """Sorted names of the files that begin with a prefix."""
        return sorted(entry.name for entry in os.scandir(self.path) if entry.name.startswith(prefix))

    def rename(self, name: str, other: str) -> None:
        self._refuse_if_fenced()
        os.replace(self.path / name, self.path / other)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _prepared(self, name: str, content: bytes) -> Iterator[Path]:
        temporary = self.path / f".{name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _refuse_if_fenced(self) -> None:
        if self.token is not None and _claim(self.path).get("token") != self.token:
            raise Fenced(f"another attempt has claimed {self.path}")


@dataclass(frozen=True)
class Store:
    """A folder of trials and studies. The constructor touches nothing; `open` does."""

    root: Path

    @classmethod
    def at(cls, root: str | Path) -> Store:
        """The store in a folder, of which nothing is made. Raises ValueError for an address with a scheme."""
        if SCHEME.match(str(root)):
            raise ValueError(f"a store must be a folder, local or on a shared disk, but got (store={str(root)!r})")
        return cls(Path(root).absolute())

    @classmethod
    def open(cls, root: str | Path) -> Store:
        """Makes the folders. Raises ValueError if the store cannot be written, or is no path."""
        store = cls.at(root)
        try:
            for folder in ("trials", "studies"):
                (store.root / folder).mkdir(parents=True, exist_ok=True)
            probe = Workdir(store.root)
            probe.remove(".writable")
            probe.create(".writable", b"")  # the way in which trials are finished: needs hard links
        except OSError as error:
            raise ValueError(f"the store must be writable, but got (store={str(store.root)!r}: {error})") from error
        return store

    # Trials

    def trial(self, trial_id: str) -> Workdir:
        return Workdir(self.root / "trials" / trial_id)

    def is_done(self, trial_id: str) -> bool:
        """Whether a trial has finished or diverged; also by a link to nothing, which reading finds damaged."""
        return os.path.lexists(self.root / "trials" / trial_id / ROWS)

    def claim(self, trial_id: str, config: Mapping[str, Any], study: str, attempt: int) -> Workdir:
        """Makes this worker the only one that may write to the trial, until the next claim.

        Raises Elsewhere while the driver of another study lives and has claimed the trial, and Fenced if a later
        attempt of this study has.
        """
        workdir = self.trial(trial_id)
        workdir.path.mkdir(parents=True, exist_ok=True)
        holder = _claim(workdir.path)
        if holder and holder["study"] == study and holder["attempt"] > attempt:
            raise Fenced(f"attempt {holder['attempt']} has claimed {trial_id}, this is attempt {attempt}")
        if holder and holder["study"] != study and self.driver_is_alive(holder["study"]):
            raise Elsewhere(holder["study"], trial_id)
        for leftover in workdir.names("."):
            if leftover.endswith(".tmp"):  # of a killed worker
                workdir.remove(leftover)
        token = f"{study}/{attempt}/{uuid.uuid4().hex}"
        claim = {"token": token, "study": study, "attempt": attempt, **_whoami()}
        workdir.write(CLAIM, json.dumps(claim).encode())
        if "config.json" not in workdir.names("config.json"):
            workdir.write("config.json", json.dumps(dict(config), indent=1, sort_keys=True).encode())
        for ended in (FAILURE, FAULT):  # of an earlier try: from now on the trial is running
            workdir.remove(ended)
        return Workdir(workdir.path, token)

    def finish(self, workdir: Workdir, outcome: Outcome) -> bool:
        """Commits a finished or diverged trial; False if another worker was first.

        Status and facts travel in the metadata of the parquet file, so that both are one commit; the file
        is sealed, see vitscale.record.rows.
        """
        first = workdir.create(ROWS, encode(workdir.path.name, outcome))
        for name in workdir.names("checkpoint-")[:-1]:  # the last one holds the final weights
            workdir.remove(name)
        workdir.remove(CLAIM)
        return first

    def read(self, trial_id: str) -> Outcome:
        """A done trial; absent values are left out of a row. Raises Damaged."""
        path = self.root / "trials" / trial_id / ROWS
        with _naming(path):
            return decode(_read_bytes(path), trial_id)

    def peek(self, trial_id: str) -> Outcome:
        """A done trial without its rows, from the end of the file alone, which takes less. Raises Damaged."""
        path = self.root / "trials" / trial_id / ROWS
        with _naming(path), open(_open_regular(path), "rb") as file:
            return decode_facts(file, trial_id)

    def outcome(self, trial_id: str, read: Callable[[str], Outcome] | None = None) -> Outcome:
        """How a trial ended, as its files decide in this order: its rows, what it failed of, how a machine failed it.

        `read` reads a done trial (default: `read` of the store). A damaged file counts for nothing, with a warning
        that names it.
        """
        try:
            if self.is_done(trial_id):
                return (read or self.read)(trial_id)
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        try:
            if error := self.failure(trial_id):
                return Outcome(Status.FAILED, facts={"error": error})
            if fault := self.fault(trial_id):
                return Outcome(Status.MISSING, facts={"error": fault})
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        return Outcome(Status.MISSING)

    def holder(self, trial_id: str) -> str:
        """The study that has claimed a trial; empty if none has."""
        return str(_claim(self.root / "trials" / trial_id).get("study", ""))

    def refuse_damaged_claim(self, trial_id: str) -> None:
        """Raises Damaged for a claim that no worker left. It claims nothing, but who looks at the store is told."""
        path = self.root / "trials" / trial_id / CLAIM
        claim = _read_json(path)
        study, attempt = claim.get("study"), claim.get("attempt")
        if claim and not (isinstance(study, str) and SLUG.fullmatch(study) and isinstance(attempt, int)):
            raise Damaged(
                f"a claim must name a study and its attempt, but got ({path}: {study!r:.60}, {attempt!r:.60})"
            )

    def set_aside(self, trial_id: str) -> Path:
        """Moves a damaged rows.parquet out of the way, so that the trial is restored from its checkpoint."""
        path = self.root / "trials" / trial_id / ROWS
        aside = path.with_name(f"{ROWS}.damaged-{int(time.time())}")
        os.replace(path, aside)
        return aside

    def fail(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records what a trial failed of, its one line first, and lets go of the trial; the checkpoints stay."""
        self._end(workdir, FAILURE, error, traceback)

    def lose(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Notes how a machine failed a trial, which stays without an outcome, and lets go of it."""
        self._end(workdir, FAULT, error, traceback)

    def _end(self, workdir: Workdir, name: str, error: str, traceback: str) -> None:
        workdir.path.mkdir(parents=True, exist_ok=True)
        workdir.write(name, f"{error}\n{json.dumps(_whoami())}\n\n{traceback}".encode())
        workdir.remove(CLAIM)

    def failure(self, trial_id: str) -> str:
        """The one line that a failed trial died of; empty if it has not failed."""
        return _read_text(self.failure_log(trial_id), errors="replace").partition("\n")[0]

    def failure_log(self, trial_id: str) -> Path:
        return self.root / "trials" / trial_id / FAILURE

    def fault(self, trial_id: str) -> str:
        """The one line in which a machine failed a trial last; empty if none has since it was last begun."""
        return _read_text(self.fault_log(trial_id), errors="replace").partition("\n")[0]

    def fault_log(self, trial_id: str) -> Path:
        return self.root / "trials" / trial_id / FAULT

    # Studies

    def identity(self) -> str:
        """A random name that tells this store from others, wherever it lies; made when it is first asked for."""
        if not (self.root / IDENTITY).exists():
            Workdir(self.root).create(IDENTITY, uuid.uuid4().hex.encode())
        return _read_text(self.root / IDENTITY).strip()

    def study(self, slug: str) -> Path:
        path = self.root / "studies" / slug
        path.mkdir(parents=True, exist_ok=True)
        return path

    def slugs(self) -> list[str]:
        """Studies that have a plan."""
        return sorted(path.parent.name for path in (self.root / "studies").glob(f"*/{PLAN}"))

    def plan(self, slug: str) -> dict[str, Any]:
        """The plan of a study's last start, as plain values; empty if there is none. Raises Damaged.

        Its configs may be of another version and are not looked at.
        """
        path = self.root / "studies" / slug / PLAN
        plan = _read_json(path)
        if not plan and not path.exists():
            return {}
        if reason := _not_the_plan(plan, slug):
            raise Damaged(f"a plan must be as the start of its study wrote it, but got ({path}: {reason})")
        return plan

    def asked(self, slug: str) -> dict[str, Any]:
        """What a search asked for so far; empty for other studies. Raises Damaged."""
        path = self.root / "studies" / slug / ASKED
        asked = _read_json(path)
        for name, kind in (("points", list), ("stopped", list)):
            found = asked.get(name, {})
            if not isinstance(found, dict) or not all(isinstance(value, kind) for value in found.values()):
                raise Damaged(f"what a search asked for must be as it wrote it, but got ({path}: {name})")
        return asked

    @contextlib.contextmanager
    def drive(self, slug: str) -> Iterator[int]:
        """Holds the study's lock and yields the number of this attempt. Raises ValueError if a driver lives."""
        folder = self.study(slug)
        with open(folder / "driver.lock", "a+") as lock:
            if not _lock_patiently(lock.fileno()):
                lock.seek(0)
                raise ValueError(f"one driver may run a study, but got (study={slug!r}, running: {lock.read()})")
            lock.truncate(0)
            lock.write(json.dumps(_whoami()))
            lock.flush()
            attempt = 1 + max(_number(folder / "attempt"), *self._attempts(slug))
            Workdir(folder).write("attempt", str(attempt).encode())
            Workdir(folder).write(NONCE, uuid.uuid4().hex.encode())
            yield attempt

    def nonce(self, slug: str) -> str:
        """What the running start of a study wrote into the store; empty if there is none."""
        return _read_text(self.root / "studies" / slug / NONCE, errors="replace")

    def refuse_unshared(self, slug: str, nonce: str, patience_s: float = 0.0) -> None:
        """Raises OSError if this machine does not see what the driver wrote: then its store is another one.

        Some network file systems show news late: asks again until `patience_s` are over, if there is such a study.
        """
        end = time.monotonic() + patience_s
        while self.nonce(slug) != nonce:
            if time.monotonic() >= end or not (self.root / "studies" / slug).is_dir():
                raise OSError(
                    "the store must be one folder that all nodes see, but got "
                    f"(store={str(self.root)!r}, which is another one on {socket.gethostname()})"
                )
            time.sleep(1)

    def _attempts(self, slug: str) -> list[int]:
        """Attempts of a study that have a claim: they may be later than its counter, which can be lost or restored."""
        claims = (_claim(Path(entry.path)) for entry in os.scandir(self.root / "trials"))
        return [0, *(claim["attempt"] for claim in claims if claim.get("study") == slug)]

    def driver_is_alive(self, slug: str) -> bool:
        """Whether a driver of the study runs now: the kernel lets go of its lock when it dies."""
        try:
            with open(_open_regular(self.root / "studies" / slug / "driver.lock")) as lock:
                return not _lock(lock.fileno(), shared=True)
        except (FileNotFoundError, Damaged):  # no driver makes anything but a file
            return False


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises Damaged with the path for whatever reading rows raises: a damaged file may make pyarrow raise anything."""
    try:
        yield
    except Exception as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise Damaged(f"rows must be readable parquet, but got ({path}: {reason})") from error


def _lock(descriptor: int, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_patiently(descriptor: int, tries: int = 5) -> bool:
    """Tries for a second: another process may only be asking whether a driver lives."""
    for _ in range(tries):
        if _lock(descriptor):
            return True
        time.sleep(0.2)
    return False


def _whoami() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def _open_regular(path: Path) -> int:
    """A descriptor of a file to read. Raises Damaged if it is none: a pipe would be waited for, a device has no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Damaged(f"a file of the store must be a file, but got ({path}: {error.strerror})") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"a file of the store must be a file, but got ({path}: another kind)")
    return descriptor


def _read_bytes(path: Path) -> bytes:
    with open(_open_regular(path), "rb") as file:
        return file.read()


def _read_text(path: Path, errors: str = "strict") -> str:
    """The text of a file; empty if there is none. Raises Damaged if it is none, with `errors` as of bytes.decode."""
    try:
        return _read_bytes(path).decode(errors=errors)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise Damaged(f"a file of the store must be text in UTF-8, but got ({path}: {error.reason})") from error


def _number(path: Path) -> int:
    """The number in a file; 0 if there is none, or no number in it."""
    text = path.read_bytes().strip() if path.is_file() else b""
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _claim(folder: Path) -> dict[str, Any]:
    """Who claims a trial; empty if nobody does, or if the file is none that a claim leaves: that claims nothing."""
    try:
        claim = json.loads(_read_bytes(folder / CLAIM))
    except (OSError, ValueError, RecursionError):
        return {}
    whole = isinstance(claim, dict) and isinstance(claim.get("study"), str) and isinstance(claim.get("attempt"), int)
    return claim if whole and SLUG.fullmatch(claim["study"]) else {}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file. Raises Damaged."""
    text = _read_text(path)
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError, too
        raise Damaged(f"a file of the store must be JSON, but got ({path}: {error})") from error
    if not isinstance(content, dict):
        raise Damaged(f"a file of the store must be a JSON object, but got ({path}: a {type(content).__name__})")
    return content


def _not_the_plan(plan: Mapping[str, Any], slug: str) -> str:
    """Why an object is not the plan of a study; empty if it is. Trials' ids become paths, so they must be ids."""
    trials = plan.get("trials")
    if f"{plan.get('name')}-{plan.get('scale')}" != slug:
        return f"of a study {plan.get('name')!r:.60} at scale {plan.get('scale')!r:.60}"
    if not isinstance(trials, list) or not trials or not all(isinstance(trial, dict) for trial in trials):
        return "no list of trials"
    ids = [trial.get("id") for trial in trials]
    wrong = [name for name in ids if not isinstance(name, str) or not TRIAL_ID.fullmatch(name)]
    return f"a trial's id {wrong[0]!r:.60}" if wrong else ""


def _sync_directory(path: Path) -> None:
    """Makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
