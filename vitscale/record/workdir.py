"""The storage interface: a folder with a few operations. Only this module opens files of a store.

A store that is not on a file system is a subclass that replaces all of these operations, as
vitscale.record.bucket does. It must guarantee that a reader sees a whole file or none (`write`),
that exactly one of several creators of a file succeeds (`create`), and that a lock can be had again
after its process has ended (`hold`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, TextIO

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

CLAIM = "claim.json"
CHECKPOINT = "checkpoint-"
PINNED = "pinned-"  # and a step: the state of a trunk, from which other trials start
FINAL = "weights-"  # and the last step: the final weights of a parent
SLUG = re.compile(r"[\w-]+")


class Fenced(RuntimeError):
    """Another attempt has claimed the trial: this worker may not commit any more."""


class Left(RuntimeError):
    """A training was saved and left, since its process must end: neither a result nor a fault."""


class Damaged(ValueError):
    """A file of the store cannot be read; the message names it."""


class NoStart(Damaged):
    """What a trial starts from is lost, of its trunk, parent or teacher: no retry helps."""


class Held(RuntimeError):
    """Another process holds the lock; the message is the content of the lock file."""


class CheckpointName(NamedTuple):
    """What the file name of a checkpoint says; `of` reads back what `str` writes."""

    step: int  # completed optimizer steps
    digest: str  # of the content
    prefix: str = CHECKPOINT  # or PINNED, or FINAL

    def __str__(self) -> str:
        return f"{self.prefix}{self.step:09d}-{self.digest}.pt"

    @classmethod
    def parse(cls, name: str) -> CheckpointName | None:
        """None for the name of another file."""
        match = re.fullmatch(rf"({CHECKPOINT}|{PINNED}|{FINAL})(\d+)-(\w+)\.pt", name)
        return cls(int(match[2]), match[3], match[1]) if match else None


class FileState(NamedTuple):
    num_bytes: int
    changed_s: float  # unix time


@dataclass(frozen=True)
class Workdir:
    """A folder of a store, created by the first write.

    With a token, it is the folder of a claimed trial: writes raise Fenced once another worker has
    claimed the trial.
    """

    path: Path
    token: str | None = None
    at_once: ClassVar[int] = 1  # requests that together take less time than one after the other

    @property
    def name(self) -> str:
        return self.path.name

    # Whole files

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, or Damaged if it is not regular."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """A file, for reading parts of it. Raises as `read`: a pipe could block for ever."""
        return os.fdopen(_open_regular(self._at(name)), "rb")

    def write(self, name: str, content: bytes | Callable[[BinaryIO], object]) -> None:
        """Writes a whole file atomically and durably.

        `content` may be what writes to a file, so that large ones need not be in memory. Raises
        Fenced, or OSError if the file cannot be written.
        """
        with self._prepared(name, content) as temporary:
            self._check_claim()
            os.replace(temporary, self._at(name))
        _sync_directory(self._at())

    def create(self, name: str, content: bytes) -> bool:
        """Writes a whole file unless it exists; returns whether this call created it."""
        with self._prepared(name, content) as temporary:
            self._check_claim()
            try:
                os.link(temporary, self._at(name))
            except FileExistsError:
                return False
        _sync_directory(self._at())
        return True

    def version(self, name: str) -> Any:
        """Which version of a file is there, for `write_over`; None where files have none."""

    def write_over(self, name: str, content: bytes, version: Any) -> bool:
        """Writes a whole file in place of the version that was seen; whether it was still there.

        Where files cannot be replaced on a condition, it always is; see `still_holds`.
        """
        self.write(name, content)
        return True

    def rename(self, name: str, other: str) -> None:
        self._check_claim()
        os.replace(self._at(name), self._at(other))

    def remove(self, name: str) -> None:
        self._at(name).unlink(missing_ok=True)

    def discard(self, name: str) -> None:
        """Removes a folder with all that is in it, or a file; of a link the link alone."""
        path = self._at(name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def link(self, name: str, target: str) -> None:
        """A symbolic link, for people only: nothing in a store is found by one.

        `target` is relative to the link's folder. Raises OSError where there can be none.
        """
        path = self._at(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)

    def links(self) -> dict[str, str]:
        """Path below -> target, of all symbolic links."""
        targets: dict[str, str] = {}
        folders = [("", str(self._at()))]
        while folders:
            prefix, path = folders.pop()
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        targets[prefix + entry.name] = os.readlink(entry.path)
                    elif entry.is_dir():
                        folders.append((f"{prefix}{entry.name}/", entry.path))
        return targets

    def remove_link(self, name: str) -> None:
        """Removes a link, and its folder if that is then empty; leaves anything else."""
        path = self._at(name)
        if os.path.islink(path):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there are others in it
                path.parent.rmdir()

    # Claims

    def look(self) -> tuple[dict[str, Any], Any]:
        """The claim of a trial, as `claim_of`, and what `take` needs to know of it."""
        return claim_of(self), None

    def take(self, claim: dict[str, Any], seen: Any) -> Workdir | None:
        """The folder with a new claim in place of the one that was seen; None if that has changed.

        Where files cannot be replaced on a condition, the last of several takers has the claim.
        """
        self.write(CLAIM, json.dumps(claim).encode())
        return replace(self, token=claim["token"])

    def release(self) -> None:
        """Takes the claim away, while the trial has no outcome."""
        self.remove(CLAIM)

    def renewed(self) -> AbstractContextManager[None]:
        """Renews the claim of this worker for the time of a block, where claims are leases.

        On a file system, a claim counts for as long as the driver of its study runs.
        """
        return contextlib.nullcontext()

    def expire(self) -> bool:
        """Takes a claim away that this process has not seen renewed for a lease; whether it did."""
        return False

    # Listing

    def exists(self, name: str = "") -> bool:
        """Whether a file, or without a name the folder, exists; also true for a dangling link."""
        return os.path.lexists(self._at(name))

    def refused(self, *names: str) -> list[tuple[str, str]]:
        """(address, owner) of each of these entries that this user may not write; "": the folder.

        What does not exist is not refused.
        """
        there = {"", *(self.names() if any(names) else ())}
        paths = [self._at(name) for name in names if name in there]
        locked = [path for path in paths if not os.access(path, os.W_OK) and os.path.exists(path)]
        return [(str(path), _owner(Path(path))) for path in locked]

    def names(self, prefix: str = "") -> list[str]:
        """Sorted names in the folder that start with a prefix; empty if there is no folder."""
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self._at()) as entries,
        ):
            return sorted(entry.name for entry in entries if entry.name.startswith(prefix))
        return []

    def having(self, name: str) -> set[str]:
        """The subfolders that have a file of this name."""
        return set(self.states(name, self.names()))

    def having_any(self, prefix: str) -> set[str]:
        """The subfolders that have a file, or a folder, whose name starts with a prefix."""
        folders, top = set(), self._at()
        for folder in self.names():
            with contextlib.suppress(OSError):  # no folder
                if any(name.startswith(prefix) for name in os.listdir(f"{top}/{folder}")):
                    folders.add(folder)
        return folders

    def states(self, name: str, folders: Collection[str]) -> dict[str, FileState]:
        """Subfolder -> the state of its file of this name; without those that have none."""
        return self.states_of([name], folders)[0]

    def states_of(
        self, names: Sequence[str], folders: Collection[str]
    ) -> list[dict[str, FileState]]:
        """For each name what `states` gives, with one look at all."""
        states: list[dict[str, FileState]] = [{} for _ in names]
        top = self._at()
        for name, of_name in zip(names, states, strict=True):
            for folder in folders:
                with contextlib.suppress(OSError):  # as os.path.lexists
                    state = os.lstat(f"{top}/{folder}/{name}")
                    of_name[folder] = FileState(state.st_size, state.st_mtime)
        return states

    def files(self) -> dict[str, FileState]:
        """All files below the folder by relative path, without those that vanish meanwhile."""
        states: dict[str, FileState] = {}
        folders = [("", str(self._at()))]
        while folders:
            prefix, path = folders.pop()
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # also links to nothing, or to themselves
                        if entry.is_dir(follow_symlinks=False):
                            folders.append((f"{prefix}{entry.name}/", entry.path))
                        elif not entry.is_dir():
                            state = entry.stat()
                            size, changed_s = state.st_size, state.st_mtime
                            states[prefix + entry.name] = FileState(size, changed_s)
        return states

    def state(self, name: str) -> FileState:
        """Size and time of a file. Raises FileNotFoundError."""
        state = os.lstat(self._at(name))
        return FileState(state.st_size, state.st_mtime)

    def clock_ahead_s(self) -> float:
        """Seconds by which this machine's clock is ahead of the store's at least; negative: behind.

        Compares it with the time that the store gives to a file that is written for this. Stores
        that give whole seconds leave out the fraction; 0 where both clocks may agree. Raises
        OSError.
        """
        name, before_s = f".clock.{uuid.uuid4().hex[:8]}.tmp", time.time()
        try:
            self.write(name, b"")
            after_s, there_s = time.time(), self.state(name).changed_s
        finally:
            self.remove(name)
        return max(0.0, before_s - (there_s + 1)) + min(0.0, after_s - there_s)

    def impatient(self) -> Workdir:
        """The same folder, which raises an error in place of waiting for a server."""
        return self

    def within(self, name: str) -> Workdir:
        """A subfolder."""
        return Workdir(self.path / name)

    def address(self, name: str = "") -> str:
        """The location of a file, for messages."""
        return str(self.path / name)

    # Logs, locks and folders

    @contextlib.contextmanager
    def append(self, name: str) -> Iterator[TextIO]:
        """A log that can be read while it is written; buffered text is lost if the process dies."""
        self._at().mkdir(parents=True, exist_ok=True)
        with open(self._at(name), "a", buffering=1, encoding="utf-8") as file:
            yield file

    @contextlib.contextmanager
    def hold(self, name: str, content: str, patience_s: float = 1.0) -> Iterator[None]:
        """Holds a lock, which ends with this process, and writes `content` to it. Raises Held."""
        self._at().mkdir(parents=True, exist_ok=True)
        with open(self._at(name), "a+") as lock:
            if not _lock_patiently(lock.fileno(), patience_s):
                lock.seek(0)
                raise Held(lock.read())
            lock.truncate(0)
            lock.write(content)
            lock.flush()
            with _not_of_forks(lock.fileno()):
                yield

    @contextlib.contextmanager
    def share(self, name: str, patience_s: float = 1.0) -> Iterator[None]:
        """Holds a lock together with others that share it, and against who holds it alone.

        Raises Held.
        """
        self._at().mkdir(parents=True, exist_ok=True)
        with open(self._at(name), "a+") as lock:
            if not _lock_patiently(lock.fileno(), patience_s, shared=True):
                lock.seek(0)
                raise Held(lock.read())
            with _not_of_forks(lock.fileno()):
                yield

    def still_holds(self, name: str) -> bool:
        """Whether a lock that this process has taken is still its own; the kernel sees to that."""
        return True

    def is_held(self, name: str) -> bool:
        """Whether a live process holds a lock."""
        try:
            with self.open(name) as lock:
                return not _lock(lock.fileno(), shared=True)
        except (FileNotFoundError, Damaged):  # a lock is always a regular file
            return False

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """A local, read-only folder with the files, for libraries that need one."""
        yield self._at()

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[tuple[str, FileSystem | None]]:
        """A temporary folder that all nodes can write to, for libraries that need one, and the file
        system that it is in; None: that of the machine.
        """
        try:
            yield str(self._at(name)), None
        finally:
            shutil.rmtree(self._at(name), ignore_errors=True)

    # Implementation on a file system

    def _at(self, name: str = "") -> Path:
        return self.path / name

    @contextlib.contextmanager
    def _prepared(self, name: str, content: bytes | Callable[[BinaryIO], object]) -> Iterator[Path]:
        if self.token is None:  # else the claim has created it
            self._at().mkdir(parents=True, exist_ok=True)
        temporary = self._at(f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with open(temporary, "wb") as file:
                content(file) if callable(content) else file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _check_claim(self) -> None:
        if self.token is not None and claim_of(self).get("token") != self.token:
            raise Fenced(f"another attempt has claimed {self.path}")


def pinned(workdir: Workdir, step: int) -> str:
    """The file of a trunk's state at a step; empty if there is none."""
    return next(iter(workdir.names(f"{PINNED}{step:09d}-")), "")


def step_saved(workdir: Workdir) -> int:
    """Completed optimizer steps at the newest checkpoint, from its file name; 0 without one."""
    names = workdir.names(CHECKPOINT)
    newest = CheckpointName.parse(names[-1]) if names else None
    return newest.step if newest else 0


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a user that this machine does not know
        return f"user {path.stat().st_uid}"


def claim_of(workdir: Workdir) -> dict[str, Any]:
    """The claim of a trial; empty if there is none or it is malformed, and so has no effect."""
    try:
        return claim_in(workdir.read(CLAIM))
    except (OSError, Damaged):
        return {}


def claim_in(content: bytes) -> dict[str, Any]:
    """The claim in a file; empty if it is malformed."""
    try:
        claim = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    whole = (
        isinstance(claim, dict)
        and isinstance(claim.get("study"), str)
        and isinstance(claim.get("attempt"), int)
    )
    return claim if whole and SLUG.fullmatch(claim["study"]) else {}


def read_text(workdir: Workdir, name: str, errors: str = "strict") -> str:
    """The text of a file; empty if there is no file.

    Raises Damaged if it is not text, where `errors` is as in bytes.decode.
    """
    try:
        return workdir.read(name).decode(errors=errors)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        where = workdir.address(name)
        raise Damaged(
            f"a file of the store must be text in UTF-8, but got ({where}: {error.reason})"
        ) from error


def read_json(workdir: Workdir, name: str) -> dict[str, Any]:
    """The object in a file; empty if there is no file. Raises Damaged."""
    text, where = read_text(workdir, name), workdir.address(name)
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is also a ValueError
        raise Damaged(f"a file of the store must be JSON, but got ({where}: {error})") from error
    if not isinstance(content, dict):
        raise Damaged(
            f"a file of the store must be a JSON object, but got ({where}: a "
            f"{type(content).__name__})"
        )
    return content


def _lock(descriptor: int, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_patiently(descriptor: int, patience_s: float, shared: bool = False) -> bool:
    """Tries until the time is over: another process may only be asking whether a driver lives."""
    end = time.monotonic() + patience_s
    while not _lock(descriptor, shared):
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
    return True


_locks: set[int] = set()  # descriptors


@contextlib.contextmanager
def _not_of_forks(descriptor: int) -> Iterator[None]:
    """A lock of this process alone: else a fork that outlives it would hold it on."""
    _locks.add(descriptor)
    try:
        yield
    finally:
        _locks.discard(descriptor)


def _let_go() -> None:
    """Closes the locks of the parent in a fork; their numbers stay taken, since files have them."""
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor in _locks:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)


def _open_regular(path: Path) -> int:
    """A descriptor for reading. Raises Damaged if it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Damaged(
                f"a file of the store must be a regular file, but got ({path}: {error.strerror})"
            ) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"a file of the store must be a regular file, but got ({path}: another kind)")
    return descriptor


def _sync_directory(path: Path) -> None:
    """Makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
