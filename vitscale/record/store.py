"""The store: one directory a trial, shared by all studies; a trial is done when its rows.parquet exists.

    <root>/trials/<id>/config.json             the fields that differ from their defaults
                       claim.json              who trains it now
                       checkpoint-<step>-<digest>.pt
                       failure.log             the last exception, with its traceback
                       rows.parquet            written last, atomically and exclusively
    <root>/studies/<slug>/plan.json            what was asked
                          attempt              number of starts so far
                          driver.lock          held by the running driver
                          asked.json           of a search: the points it asked for, and what it stopped

Every write is a temporary file, fsync and rename, so a reader sees a whole file or none. Only this module touches the
files of a store, so that another filesystem can take the place of the local one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, float]

ROWS = "rows.parquet"
CLAIM = "claim.json"
FAILURE = "failure.log"
ASKED = "asked.json"


class Fenced(RuntimeError):
    """Another attempt has claimed the trial: this worker may commit nothing more."""


class Elsewhere(RuntimeError):
    """Another study that is running now trains this trial."""


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
        if self.token is not None and _read_json(self.path / CLAIM).get("token") != self.token:
            raise Fenced(f"another attempt has claimed {self.path}")


@dataclass(frozen=True)
class Store:
    """A folder of trials and studies. The constructor touches nothing; `open` does."""

    root: Path

    @classmethod
    def open(cls, root: str | Path) -> Store:
        """Makes the folders. Raises ValueError if the store cannot be written."""
        store = cls(Path(root).absolute())
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
        """Whether a trial has finished or diverged."""
        return os.path.exists(self.root / "trials" / trial_id / ROWS)

    def claim(self, trial_id: str, config: Mapping[str, Any], study: str, attempt: int) -> Workdir:
        """Makes this worker the only one that may write to the trial, until the next claim.

        Raises Elsewhere while the driver of another study lives and has claimed the trial, and Fenced if a later
        attempt of this study has.
        """
        workdir = self.trial(trial_id)
        workdir.path.mkdir(parents=True, exist_ok=True)
        holder = _read_json(workdir.path / CLAIM)
        if holder and holder["study"] == study and holder["attempt"] > attempt:
            raise Fenced(f"attempt {holder['attempt']} has claimed {trial_id}, this is attempt {attempt}")
        if holder and holder["study"] != study and self.driver_is_alive(holder["study"]):
            raise Elsewhere(f"study {holder['study']} trains {trial_id} now")
        for leftover in workdir.names("."):
            workdir.remove(leftover)  # temporary files of a killed worker
        token = f"{study}/{attempt}/{uuid.uuid4().hex}"
        claim = {"token": token, "study": study, "attempt": attempt, **_whoami()}
        workdir.write(CLAIM, json.dumps(claim).encode())
        if "config.json" not in workdir.names("config.json"):
            workdir.write("config.json", json.dumps(dict(config), indent=1, sort_keys=True).encode())
        workdir.remove(FAILURE)  # of an earlier try: from now on the trial is running
        return Workdir(workdir.path, token)

    def finish(self, workdir: Workdir, rows: Iterable[Row], facts: Mapping[str, str]) -> bool:
        """Commits the rows of a finished or diverged trial; False if another worker was first.

        `facts` (status, provenance) travel in the metadata of the parquet file, so that both are one commit.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = list(rows)
        columns = dict.fromkeys(name for row in rows for name in row)
        table = pa.table({name: pa.array([row.get(name) for row in rows], pa.float64()) for name in columns})
        sink = pa.BufferOutputStream()
        metadata = {f"vitscale.{key}": value for key, value in facts.items()}
        pq.write_table(table.replace_schema_metadata(metadata), sink)
        first = workdir.create(ROWS, sink.getvalue().to_pybytes())
        for name in workdir.names("checkpoint-")[:-1]:  # the last one holds the final weights
            workdir.remove(name)
        workdir.remove(CLAIM)
        return first

    def read_rows(self, trial_id: str) -> tuple[list[Row], dict[str, str]]:
        """(rows, facts) of a done trial; absent values are left out of a row. Raises Damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.root / "trials" / trial_id / ROWS
        try:
            table = pq.read_table(path, memory_map=False, use_threads=False)
            metadata = table.schema.metadata or {}
            prefix = b"vitscale."
            facts = {k[len(prefix) :].decode(): v.decode() for k, v in metadata.items() if k.startswith(prefix)}
            rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
            if not rows or "status" not in facts:
                raise KeyError("it has no row or no status")
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise Damaged(f"rows must be readable parquet, but got ({path}: {reason})") from error
        return rows, facts

    def outcome(self, trial_id: str) -> str:
        """finished or diverged, from the end of the file alone, which takes less than its rows. Raises Damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.root / "trials" / trial_id / ROWS
        try:
            return (pq.read_metadata(path).metadata or {})[b"vitscale.status"].decode()
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise Damaged(f"rows must be readable parquet, but got ({path}: {str(error).splitlines()[0]})") from error

    def holder(self, trial_id: str) -> str:
        """The study that has claimed a trial; empty if none has."""
        return str(_read_json(self.root / "trials" / trial_id / CLAIM).get("study", ""))

    def set_aside(self, trial_id: str) -> Path:
        """Moves a damaged rows.parquet out of the way, so that the trial is restored from its checkpoint."""
        path = self.root / "trials" / trial_id / ROWS
        aside = path.with_name(f"{ROWS}.damaged-{int(time.time())}")
        os.replace(path, aside)
        return aside

    def fail(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records an exception, its one line first, and lets go of the trial; the checkpoints stay."""
        workdir.path.mkdir(parents=True, exist_ok=True)
        workdir.write(FAILURE, f"{error}\n{json.dumps(_whoami())}\n\n{traceback}".encode())
        workdir.remove(CLAIM)

    def failure(self, trial_id: str) -> str:
        """The one line that a failed trial died of; empty if it has not failed."""
        return _read_text(self.failure_log(trial_id)).partition("\n")[0]

    def failure_log(self, trial_id: str) -> Path:
        return self.root / "trials" / trial_id / FAILURE

    # Studies

    def study(self, slug: str) -> Path:
        path = self.root / "studies" / slug
        path.mkdir(parents=True, exist_ok=True)
        return path

    def slugs(self) -> list[str]:
        """Studies that have a plan."""
        return sorted(path.parent.name for path in (self.root / "studies").glob("*/plan.json"))

    def plan(self, slug: str) -> dict[str, Any]:
        """The plan of a study's last start, as plain values. Raises Damaged."""
        return _read_json(self.root / "studies" / slug / "plan.json")

    def asked(self, slug: str) -> dict[str, Any]:
        """What a search asked for so far; empty for other studies. Raises Damaged."""
        return _read_json(self.root / "studies" / slug / ASKED)

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
            attempt = 1 + int(_read_text(folder / "attempt") or 0)
            Workdir(folder).write("attempt", str(attempt).encode())
            yield attempt

    def driver_is_alive(self, slug: str) -> bool:
        """Whether a driver of the study runs now: the kernel lets go of its lock when it dies."""
        try:
            with open(self.root / "studies" / slug / "driver.lock") as lock:
                return not _lock(lock.fileno(), shared=True)
        except FileNotFoundError:
            return False


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


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file."""
    text = _read_text(path)
    try:
        return json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise Damaged(f"a file of the store must be JSON, but got ({path}: {error})") from error


def _sync_directory(path: Path) -> None:
    """Makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
