"""A folder of a store in a bucket: the operations of Workdir on objects, with leases as locks.

A lock is an object that lists its holders. Each holder renews its entry (a count goes up) four
times in a lease. A process that wants the lock and sees an entry unchanged for a whole lease, on
its own monotonic clock, takes it away by a conditional write. So no clock is compared with another
one. A holder on this machine whose process has ended is taken as gone at once.

A claim is fenced by the server: each write of a claimed folder first replaces claim.json on the
condition that it is as this worker left it. Its worker renews it as a lease, and another study may
take it away once it has not changed for one.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TextIO

from vitscale.record.object_store import PROBE_PATIENCE_S, WRITABLE, Bucket, Tag
from vitscale.record.workdir import (
    CHECKPOINT,
    CLAIM,
    PINNED,
    Fenced,
    FileState,
    Held,
    Workdir,
    claim_in,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # check_lease refuses it


LEASE_S = _seconds(os.environ.get("VITSCALE_LEASE_S") or "60")
LOG_EVERY_S = 60.0  # a log is uploaded while it is written
LOG_BYTES = 2**22  # its end, as far as it is kept
POLL_S = 0.5
FEW = 1000  # files that are asked for one by one; a listing names a thousand, of all trials


def off(ahead_s: float) -> str:
    """How a clock differs from another one, before whose it is."""
    return f"{abs(ahead_s):.0f} s {'behind' if ahead_s < 0 else 'ahead of'}"


def check_lease() -> None:
    """Raises ValueError unless leases are long enough to be renewed, and end within an hour."""
    given = os.environ.get("VITSCALE_LEASE_S") or "60"
    if not 1 <= _seconds(given) <= 3600:
        raise ValueError(
            f"a lease must be of 1 to 3600 seconds, but got (VITSCALE_LEASE_S={given[:40]!r})"
        )


@dataclass
class Claimed:
    """The claim that this worker holds, and its version in the bucket."""

    claim: dict[str, Any]
    tag: Tag | None
    turn: threading.RLock = field(default_factory=threading.RLock)  # of writes and renewals

    def __reduce__(self) -> tuple[type[Claimed], tuple[dict[str, Any], Tag | None]]:
        """The workers of a team share a claim: each sees what another renewed, by its token."""
        return Claimed, (self.claim, self.tag)


@dataclass(frozen=True)
class BucketDir(Workdir):
    """A folder of a store in a bucket. `path` is its path in the store, of which no file exists."""

    at_once: ClassVar[int] = 32
    bucket: Bucket = field(kw_only=True)
    claimed: Claimed | None = field(default=None, kw_only=True, compare=False)

    # Whole files

    def read(self, name: str) -> bytes:
        if (entry := self.bucket.get(self._key(name))) is None:
            raise FileNotFoundError(self.address(name))
        return entry[0]

    def open(self, name: str) -> BinaryIO:
        return io.BytesIO(self.read(name))

    def write(self, name: str, content: bytes | Callable[[BinaryIO], object]) -> None:
        if callable(content):
            content(file := io.BytesIO())
            content = file.getvalue()
        self._check_claim()
        self.bucket.put(self._key(name), content)

    def create(self, name: str, content: bytes) -> bool:
        self._check_claim()
        return self.bucket.create(self._key(name), content) is not None

    def version(self, name: str) -> Tag | None:
        return self.bucket.tag(self._key(name))

    def write_over(self, name: str, content: bytes, version: Tag | None) -> bool:
        return self.bucket.write_over(self._key(name), content, version) is not None

    def rename(self, name: str, other: str) -> None:
        """Copies a file, or a folder, and then removes it: weights, then rows, then what else is
        there. A half of a trial is one without weights, or one that was not begun: the rows of a
        checkpoint that is left would be committed again.
        """
        self._check_claim()
        names = [name] if self.exists(name) else self._below(name)
        if not names:
            raise FileNotFoundError(self.address(name))
        for old in names:
            with contextlib.suppress(FileNotFoundError):  # another process is doing the same
                self.bucket.copy(self._key(old), self._key(other + old.removeprefix(name)))
        names.sort(key=_when_removed)
        self.bucket.delete(map(self._key, names))

    def remove(self, name: str) -> None:
        self.bucket.delete([self._key(name)])

    def discard(self, name: str) -> None:
        self.bucket.delete(map(self._key, [*self._below(name), *filter(None, [name])]))

    def link(self, name: str, target: str) -> None:
        raise OSError(f"a bucket has no links ({self.address(name)})")

    def links(self) -> dict[str, str]:
        return {}

    def remove_link(self, name: str) -> None:
        pass

    # Claims

    def look(self) -> tuple[dict[str, Any], Any]:
        entry = self.bucket.get(self._key(CLAIM))
        return (claim_in(entry[0]), entry[1]) if entry else ({}, None)

    def take(self, claim: dict[str, Any], seen: Any) -> BucketDir | None:
        claim = {**claim, "beat": 0, "lease_s": LEASE_S}
        tag = self.bucket.write_over(self._key(CLAIM), json.dumps(claim).encode(), seen)
        if tag is None:
            return None
        return replace(self, token=claim["token"], claimed=Claimed(claim, tag))

    def release(self) -> None:
        """Leaves an empty claim: an object cannot be deleted on the condition that it is ours."""
        with self.claimed.turn if self.claimed else contextlib.nullcontext():
            entry = self.bucket.get(self._key(CLAIM))
            if entry and (self.token is None or claim_in(entry[0]).get("token") == self.token):
                self.bucket.replace(self._key(CLAIM), b"{}", entry[1])

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        def renew() -> None:
            with contextlib.suppress(Fenced):  # the worker's next write raises it
                self._check_claim()

        with _repeated(renew, LEASE_S / 4):
            yield

    def expire(self) -> bool:
        claim, tag = self.look()
        if not claim:
            return False
        where, now = self.address(CLAIM), time.monotonic()
        if _claims.get(where, (None, now))[0] != tag:
            _claims[where] = tag, now
        lease_s = claim.get("lease_s")
        if now - _claims[where][1] <= (lease_s if isinstance(lease_s, float) else LEASE_S):
            return False
        return self.bucket.replace(self._key(CLAIM), b"{}", tag) is not None

    def _check_claim(self) -> None:
        """Renews the claim on the condition that it is ours. Raises Fenced."""
        if self.claimed is None:
            return
        with self.claimed.turn:
            while not self._renew_claim(self.claimed):
                pass

    def _renew_claim(self, held: Claimed) -> bool:
        """False if the claim has to be looked at again. Raises Fenced."""
        if held.tag is None:  # lost, or a renewal was interrupted after it was sent
            entry = self.bucket.get(self._key(CLAIM))
            claim = claim_in(entry[0]) if entry else {}
            if not entry or claim.get("token") != self.token:
                raise Fenced(f"another attempt has claimed {self.address()}")
            held.claim, held.tag = claim, entry[1]
        # each content is unique: a tag is often a digest of it, and no version may come back
        renewed = {**held.claim, "beat": held.claim["beat"] + 1, "by": uuid.uuid4().hex[:8]}
        tag, held.tag = held.tag, None
        held.tag = self.bucket.replace(self._key(CLAIM), json.dumps(renewed).encode(), tag)
        if held.tag is not None:
            held.claim = renewed
        return held.tag is not None

    # Listing

    def exists(self, name: str = "") -> bool:
        return self.bucket.exists(self._key(name)) if name else bool(self.names())

    def refused(self, *names: str) -> list[tuple[str, str]]:
        """None: nobody owns an object. Raises OSError if there are names, and no object may be
        written below this prefix, as where a policy permits a part of the bucket.
        """
        if names:
            key = self._key(f"{WRITABLE}{uuid.uuid4().hex}")
            self.bucket.create(key, b"")
            self.bucket.delete([key])
        return []

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.bucket.children(self._key()) if name.startswith(prefix)]

    def having(self, name: str) -> set[str]:
        paths = (path.split("/") for path in self.files())
        return {parts[0] for parts in paths if parts[1:] == [name]}

    def having_any(self, prefix: str) -> set[str]:
        paths = (path.split("/") for path in self.files())
        return {parts[0] for parts in paths if parts[1:] and parts[1].startswith(prefix)}

    def states_of(
        self, names: Sequence[str], folders: Collection[str]
    ) -> list[dict[str, FileState]]:
        if len(folders) * len(names) > FEW:
            files = self.files()
        else:
            paths = [f"{folder}/{name}" for folder in folders for name in names]
            with ThreadPoolExecutor(self.at_once) as pool:
                heads = list(pool.map(self.bucket.head, map(self._key, paths)))
            files = {
                path: FileState(entry.num_bytes, entry.changed_s)
                for path, entry in zip(paths, heads, strict=True)
                if entry is not None
            }
        return [
            {f: files[path] for f in folders if (path := f"{f}/{name}") in files} for name in names
        ]

    def files(self) -> dict[str, FileState]:
        start = len(self._key()) + 1 if self._key() else 0
        return {
            entry.key[start:]: FileState(entry.num_bytes, entry.changed_s)
            for entry in self.bucket.entries(self._key())
        }

    def state(self, name: str) -> FileState:
        if (head := self.bucket.head(self._key(name))) is None:
            raise FileNotFoundError(self.address(name))
        return FileState(head.num_bytes, head.changed_s)

    def impatient(self) -> BucketDir:
        return replace(self, bucket=replace(self.bucket, patience_s=PROBE_PATIENCE_S))

    def within(self, name: str) -> BucketDir:
        return BucketDir(self.path / name, bucket=self.bucket)

    def address(self, name: str = "") -> str:
        return "/".join(filter(None, (self.bucket.url, self._key(name))))

    # Logs, locks and folders

    @contextlib.contextmanager
    def append(self, name: str) -> Iterator[TextIO]:
        entry = self.bucket.get(self._key(name))
        with tempfile.NamedTemporaryFile("a+", buffering=1) as file:
            file.write(entry[0].decode(errors="replace") if entry else "")
            path, sent = Path(file.name), file.tell()

            def upload() -> None:
                nonlocal sent
                content = path.read_bytes()
                if len(content) != sent:
                    self.bucket.put(self._key(name), content[-LOG_BYTES:])
                    sent = len(content)

            with _repeated(upload, LOG_EVERY_S):
                yield file  # type: ignore[misc]
            file.flush()
            with contextlib.suppress(OSError):  # a log is worth no exception
                upload()

    @contextlib.contextmanager
    def hold(self, name: str, content: str, patience_s: float = 1.0) -> Iterator[None]:
        with self._lease(name, "alone", content, patience_s):
            yield

    @contextlib.contextmanager
    def share(self, name: str, patience_s: float = 1.0) -> Iterator[None]:
        with self._lease(name, "shared", "", patience_s):
            yield

    def still_holds(self, name: str) -> bool:
        """Whether nobody else can have taken a lock of this process. Raises OSError if the server
        must be asked and does not answer.
        """
        lease = _leases.get(self.address(name))
        return lease is not None and lease.is_valid()

    def is_held(self, name: str) -> bool:
        """Whether a lock has a holder that is not known to be gone.

        One that was killed on another machine is known to be gone once this process has seen its
        entry unchanged for a lease; then its entry is removed.
        """
        holders, _ = self._holders(name)

        def living(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [entry for entry in entries if _lives(self._key(name), entry)]

        live = living(holders)
        if len(live) < len(holders):
            with contextlib.suppress(OSError):  # reading may be all that is permitted
                self._change(name, living)
        return bool(live)

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="vitscale-") as folder:
            for name in self.files():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.read(name))
            yield Path(folder)

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[tuple[str, FileSystem | None]]:
        try:
            yield self.address(name).partition("://")[2], self.bucket.file_system()
        finally:
            with contextlib.suppress(OSError):
                self.discard(name)

    # Implementation

    def _key(self, name: str = "") -> str:
        return "/".join(part for part in (self.path.as_posix(), name) if part not in ("", "."))

    def _below(self, name: str) -> list[str]:
        return ["/".join(filter(None, (name, path))) for path in self.within(name).files()]

    @contextlib.contextmanager
    def _lease(self, name: str, mode: str, content: str, patience_s: float) -> Iterator[None]:
        entry = {
            "token": uuid.uuid4().hex,
            "mode": mode,
            "beat": 0,
            "lease_s": LEASE_S,
            "content": content,
            "machine": _machine(),
            "pid": os.getpid(),
            "born": _born(os.getpid()) or "",
        }
        self._acquire(name, entry, patience_s)
        lease = Lease(self.address(name), lambda: self._renew(name, entry))
        _leases[lease.address] = lease
        try:
            with _repeated(lease.renew, LEASE_S / 4):
                yield
        finally:
            lease.is_over = True
            _leases.pop(lease.address, None)
            with contextlib.suppress(OSError):  # then the lease runs out
                self._change(name, lambda now: [e for e in now if e["token"] != entry["token"]])

    def _acquire(self, name: str, entry: dict[str, Any], patience_s: float) -> None:
        """Adds an entry to a lock. Raises Held once patience is over and a holder is seen alive."""
        key, end, told = self._key(name), time.monotonic() + patience_s, False
        first: dict[str, int] = {}  # the count of each holder at the first look
        while True:
            holders, tag = self._holders(name)
            live = [other for other in holders if _lives(key, other)]
            against = [e for e in live if "alone" in (e["mode"], entry["mode"])]
            if not against:
                if self._put(name, [*live, entry], tag):
                    return
                continue  # another process was first: look again
            alive = [
                e
                for e in against
                if _is_here(e) or first.setdefault(e["token"], e["beat"]) != e["beat"]
            ]
            if alive and time.monotonic() >= end:
                raise Held(str(alive[0]["content"]))
            if not told and time.monotonic() >= end:
                told = True
                print(
                    f"waiting until it shows whether the holder of {self.address(name)} lives, for "
                    f"at most {against[0]['lease_s']:g} s: {against[0]['content']}",
                    file=sys.stderr,
                )
            time.sleep(min(POLL_S, LEASE_S / 20))

    def _renew(self, name: str, entry: dict[str, Any]) -> bool:
        """Whether the entry is still there; then its count has gone up."""
        token, is_there = entry["token"], False

        def change(now: list[dict[str, Any]]) -> list[dict[str, Any]]:
            nonlocal is_there
            is_there = any(e["token"] == token for e in now)
            return [{**e, "beat": e["beat"] + 1} if e["token"] == token else e for e in now]

        self._change(name, change)
        return is_there

    def _holders(self, name: str) -> tuple[list[dict[str, Any]], Tag | None]:
        """The entries of a lock, and its version; None without an object. Damaged: no entries."""
        if (reply := self.bucket.get(self._key(name))) is None:
            return [], None
        try:
            holders = [{**EMPTY, **entry} for entry in json.loads(reply[0])["holders"]]
        except (ValueError, TypeError, KeyError):
            holders = []
        return [entry for entry in holders if _is_entry(entry)], reply[1]

    def _put(self, name: str, holders: list[dict[str, Any]], tag: Tag | None) -> bool:
        # each content is unique: a tag is often a digest of it, and no version may come back
        content = json.dumps({"holders": holders, "version": uuid.uuid4().hex}).encode()
        return self.write_over(name, content, tag)

    def _change(
        self, name: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    ) -> None:
        """Applies a change to the entries of a lock, again if another process was first."""
        while True:
            holders, tag = self._holders(name)
            if (changed := change(holders)) == holders or self._put(name, changed, tag):
                return


class Lease:
    """A lock that this process has taken. `renew_entry`: whether its entry was still there."""

    def __init__(self, address: str, renew_entry: Callable[[], bool]) -> None:
        self.address, self.renew_entry = address, renew_entry
        self.turn, self.is_lost = threading.RLock(), False
        self.is_over = False  # given back, perhaps while a renewal is under way
        self.renewed_s = -math.inf  # before the last renewal was sent

    def renew(self) -> None:
        """Raises the count of the entry; stops this process if another one has taken the lock."""
        with self.turn:
            if self.is_lost:
                return
            sent_s = _elapsed_s()
            if self.renew_entry():
                self.renewed_s = sent_s
            elif not self.is_over:
                self.is_lost = True
                _stop(self.address)

    def is_valid(self) -> bool:
        """Whether nobody else can have taken it; asks the server once a lease has passed, as after
        this process was suspended.
        """
        if not self.is_lost and _elapsed_s() - self.renewed_s > LEASE_S:
            self.renew()
        return not self.is_lost


_leases: dict[str, Lease] = {}  # by the address of the lock


def _elapsed_s() -> float:
    """Seconds that have passed, those of a suspended machine included where they are counted."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


EMPTY: dict[str, Any] = {
    "token": "",
    "mode": "alone",
    "beat": 0,
    "lease_s": LEASE_S,
    "content": "",
    "machine": "",
    "pid": 0,
    "born": "",
}
_claims: dict[str, tuple[Any, float]] = {}  # claim -> (version, when this process first saw it)
# (key of a lock, token of an entry) -> (its count, when this process saw that first), by the
# monotonic clock
_seen: dict[tuple[str, str], tuple[int, float]] = {}


def _lives(key: str, entry: dict[str, Any]) -> bool:
    """False once an entry is known to be without its process."""
    place = (key, entry["token"])
    if _seen.get(place, (None,))[0] != entry["beat"]:
        _seen[place] = (entry["beat"], time.monotonic())
    if entry["born"] and _is_here(entry) and (born := _born(entry["pid"])) is not None:
        return born == entry["born"]
    return time.monotonic() - _seen[place][1] <= entry["lease_s"]


def _is_here(entry: dict[str, Any]) -> bool:
    """Whether the holder's process would be seen from this one, if it ran."""
    return bool(entry["machine"]) and entry["machine"] == _machine()


@functools.cache
def _machine() -> str:
    """This boot of this machine, and the set of processes that are visible; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {socket.gethostname()}"
    except OSError:
        return ""


def _born(pid: int) -> str | None:
    """When a process was started, in ticks since the boot; empty if it has ended, None if this
    user may not know (proc mounted with hidepid).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:  # it is another user's
            pass
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _is_entry(entry: Mapping[str, Any]) -> bool:
    """Whether what a lock holds can be an entry, and not what somebody else wrote."""
    of_types = all(
        type(entry[name]) is type(like) for name, like in EMPTY.items() if name != "lease_s"
    )
    lasts = type(entry["lease_s"]) in (int, float) and entry["lease_s"] >= 0
    return of_types and lasts and 0 <= entry["pid"] < 2**31


def _when_removed(name: str) -> int:
    if name.rpartition("/")[2].startswith((CHECKPOINT, PINNED)):
        return 0
    return 1 if name.endswith("rows.parquet") else 2


@contextlib.contextmanager
def _repeated(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Runs an action again and again in a thread; its OSErrors wait for the next time."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(OSError):
                action()

    thread = threading.Thread(target=repeat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(every_s)


def _stop(address: str) -> None:
    """Ends this process gracefully: another one has taken over what it was doing."""
    print(
        f"the lease of {address} was lost to another process, which did not see it renewed",
        file=sys.stderr,
    )
    os.kill(os.getpid(), signal.SIGTERM)
