"""The folders of a store, in a directory or in a bucket."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from vitscale.plan.paths import check_printable, given, path_of
from vitscale.record.bucket import BucketDir, check_lease
from vitscale.record.object_store import Bucket, checked_url
from vitscale.record.workdir import Held, Workdir, read_text

IDENTITY = "store-id"
LOCK = "driver.lock"
# s3://bucket, which as a path would become a folder named "s3:"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True)
class StoreFolder:
    """The constructor creates nothing; `open` and `make` do."""

    root: Path | str  # str: the address of a bucket and a prefix in it
    is_impatient: bool = field(default=False, compare=False)

    @classmethod
    def at(cls, root: str | Path) -> Self:
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
    def open(cls, root: str | Path) -> Self:
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

    def impatient(self) -> Self:
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

    @property
    def trials(self) -> Workdir:
        return self.folder.within("trials")

    def trial(self, trial_id: str) -> Workdir:
        return self.trials.within(trial_id)

    @property
    def parts(self) -> Workdir:
        """The sources of parts, by digest."""
        return self.folder.within("parts")

    @property
    def studies(self) -> Workdir:
        return self.folder.within("studies")

    def study(self, slug: str) -> Workdir:
        return self.studies.within(slug)

    def report(self, slug: str) -> Workdir:
        """The tables, figures and page of a study."""
        return self.study(slug).within("report")

    def identity(self) -> str:
        """A random name that identifies this store at any location; created at first use."""
        if not self.folder.exists(IDENTITY):
            self.folder.create(IDENTITY, uuid.uuid4().hex.encode())
        return read_text(self.folder, IDENTITY).strip()

    def driver_is_alive(self, slug: str) -> bool:
        """Whether a driver of the study is running."""
        return self.study(slug).is_held(LOCK)


@contextlib.contextmanager
def lock_or_refuse(
    lock: AbstractContextManager[object], refusal: Callable[[Held], str]
) -> Iterator[None]:
    """Holds a lock; raises ValueError with the refusal if other processes hold it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except Held as held:
            raise ValueError(refusal(held)) from held
        yield


def whoami() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
