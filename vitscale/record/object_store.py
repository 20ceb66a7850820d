"""Objects of a bucket: get, put, create, replace, list and delete, on S3, GCS or Azure (obstore).

`create` and `replace` are conditional: exactly one of several callers wins, and the server decides
who. A reply may be lost after the server has done what was asked; then the object is read back, and
a token in its metadata, of each conditional write its own, says whether this call won. Contents do
not say that: two workers may write the same rows. Every exception is an OSError, of one line and
without credentials.
"""

from __future__ import annotations

import datetime
import functools
import math
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

T = TypeVar("T")
Tag = dict[str, str]  # of one version of an object
SCHEMES = ("s3", "gs", "az", "memory")  # memory: of one process, for tests
PATIENCE_S = 120.0  # for a server that fails or does not answer
PROBE_PATIENCE_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
STALL_S = 60  # without a byte of an answer
WORD_AFTER_S = 5.0  # of waiting
TOKEN = "token"  # in the metadata of an object; Azure allows no hyphen in such names
LAW = "the store's server must do what is asked"


_say: list[Callable[[str], object]] = []


def say_when_waiting(say: Callable[[str], object]) -> None:
    """`say` gets a line when a server has not answered for WORD_AFTER_S, once in this process."""
    _say[:] = [say]


class Unavailable(OSError):
    """The server does not do what is asked: this says nothing about the objects."""


class NoBucket(Unavailable):
    """The bucket does not exist, or its server cannot be used."""


class Refused(Unavailable, PermissionError):
    """Credentials are absent, expired or not enough."""


class Unanswered(Unavailable, ConnectionError):
    """The server failed or gave no answer; it may do better at another try."""


class Entry(NamedTuple):
    key: str
    num_bytes: int
    changed_s: float  # unix time, by the server's clock


def checked_url(url: str) -> str:
    """The address of a store in a bucket, without a slash at its end. Raises ValueError."""
    try:
        parts = urlsplit(url)
        secret = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        parts, secret = urlsplit(""), ""
    if secret:  # not shown: it may be a password
        raise ValueError(
            "a store's address must be scheme://bucket/prefix and no more, but got one with a "
            "user, a query or a fragment; credentials come from the environment"
        )
    if parts.scheme not in SCHEMES or not parts.netloc or "//" in parts.path:
        raise ValueError(
            "a store must be a folder, local or on a shared disk, or s3://bucket/prefix, "
            f"gs://bucket/prefix or az://container/prefix, but got (store={url!r})"
        )
    return url.rstrip("/")


@dataclass(frozen=True)
class Bucket:
    """A bucket and a prefix, by its URL; keys are relative to the prefix."""

    url: str
    patience_s: float = PATIENCE_S

    def get(self, key: str) -> tuple[bytes, Tag] | None:
        """Content and tag of an object; None if there is none."""

        def read() -> tuple[bytes, Tag]:
            reply = _obstore().get(self._client(), key)
            return bytes(reply.bytes()), _tag(dict(reply.meta))

        return self._patiently(lambda: self._if_there(read))

    def head(self, key: str) -> Entry | None:
        """Size and time of an object; None if there is none."""
        meta = self._head(key)
        return meta and Entry(key, meta["size"], _whole_s(meta))

    def tag(self, key: str) -> Tag | None:
        """The version of an object, for `replace`; None if there is none."""
        meta = self._head(key)
        return meta and _tag(dict(meta))

    def exists(self, key: str) -> bool:
        return self.head(key) is not None

    def put(self, key: str, content: bytes) -> None:
        """Writes an object, whether it exists or not; the last writer wins."""
        self._patiently(lambda: _obstore().put(self._client(), key, content))

    def create(self, key: str, content: bytes) -> Tag | None:
        """Writes an object unless it exists: its tag, or None if another was first."""
        return self._conditionally(key, content, "create")

    def replace(self, key: str, content: bytes, tag: Tag) -> Tag | None:
        """Writes an object if it is still the version of `tag`: the new tag, or None."""
        return self._conditionally(key, content, tag)

    def write_over(self, key: str, content: bytes, seen: Tag | None) -> Tag | None:
        """Writes an object if it is still the version that was seen, or still absent (None): the
        new tag, or None.
        """
        if seen is None:
            return self.create(key, content)
        return self.replace(key, content, seen)

    def entries(self, folder: str = "") -> list[Entry]:
        """All objects below a folder (list)."""

        def read() -> list[Entry]:
            pages = _obstore().list(self._client(), folder or None)
            return [
                Entry(reply["path"], reply["size"], _whole_s(reply))
                for page in pages
                for reply in page
            ]

        return self._patiently(read)

    def children(self, folder: str = "") -> list[str]:
        """Sorted names of the objects and subfolders directly in a folder."""
        listing = self._patiently(
            lambda: _obstore().list_with_delimiter(self._client(), folder or None)
        )
        paths = [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
        return sorted(path.rpartition("/")[2] for path in paths)

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; it does not matter whether they exist."""
        for key in keys:
            self._patiently(functools.partial(self._delete, key))

    def _delete(self, key: str) -> None:
        self._if_there(lambda: _obstore().delete(self._client(), key))

    def copy(self, key: str, other: str) -> None:
        """Copies an object on the server. Raises FileNotFoundError."""

        def ask() -> bool:
            _obstore().copy(self._client(), key, other)
            return True

        if self._patiently(lambda: self._if_there(ask)) is None:
            raise FileNotFoundError(f"{self.url}/{key}")

    def probe(self) -> None:
        """Raises OSError unless the server does all that a store needs, conditions included.

        Some servers accept `If-None-Match` and `If-Match` and ignore them: every claim would
        succeed, and two workers would train and commit the same trial.
        """
        own, key = replace(self, patience_s=PROBE_PATIENCE_S), f"{WRITABLE}{uuid.uuid4().hex}"
        first, second, third = (f"{key} {n}".encode() for n in range(3))
        try:
            tag = own.create(key, first)
            if tag is None:
                raise NoBucket(
                    "a server must create an object that is not there, but got a refusal "
                    f"(store={self.url!r}, object={key!r})"
                )
            refused = {"If-None-Match": own.create(key, second)}
            if not refused["If-None-Match"]:
                newer = own.replace(key, second, tag)
                refused["If-Match"] = own.replace(key, third, tag)
                last = own.get(key)
                if newer is None or last is None or (not refused["If-Match"] and last[0] != second):
                    raise NoBucket(
                        "a server must return what was written last, but got another content "
                        f"(store={self.url!r})"
                    )
                # by the tags of a GET and of a HEAD
                for content, now in ((third, last[1]), (first, None)):
                    now = now or own.tag(key) or {}
                    if not refused["If-Match"] and own.replace(key, content, now) is None:
                        raise NoBucket(
                            "a server must replace the version that it has returned, but got a "
                            f"refusal (store={self.url!r}, etag={now.get('e_tag')!r})"
                        )
            ignored = ", ".join(name for name, won in refused.items() if won)
            if ignored:
                raise NoBucket(
                    "a server must refuse to overwrite when asked to (conditional writes), but got "
                    f"(store={self.url!r}, ignored: {ignored})"
                )
        finally:
            own.delete([key])

    def file_system(self) -> FileSystem:
        """The server's buckets as pyarrow sees them, for libraries that write there themselves:
        without the patience and the one-line errors of the methods above. Can be pickled.
        """
        from obstore.fsspec import FsspecStore
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        scheme: Any = self.url.partition(":")[0]
        return PyFileSystem(FSSpecHandler(FsspecStore(scheme, **_options())))

    # Implementation

    def _client(self) -> Any:
        return _client(self.url)

    def _head(self, key: str) -> Any:
        return self._patiently(lambda: self._if_there(lambda: _obstore().head(self._client(), key)))

    def _conditionally(self, key: str, content: bytes, mode: Any) -> Tag | None:
        unsure = False  # whether the server may have done it at an earlier try
        token = uuid.uuid4().hex  # of this write: another one may have the same content

        def ask() -> Tag | None:
            nonlocal unsure
            obstore = _obstore()
            refusals = obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError
            try:
                made = obstore.put(
                    self._client(),
                    key,
                    content,
                    mode=mode,
                    use_multipart=False,
                    attributes={TOKEN: token},
                )
                return _tag(dict(made))
            except refusals as refusal:
                # 409: two conditional writes met in the server, which did neither of them
                if _code(refusal) == "ConditionalRequestConflict":
                    raise Unanswered(f"{LAW}, but got (store={self.url!r}: 409)") from refusal
                # obstore itself tries again after some errors, so this reply may be the second
                written = self._written(key)
                return written[1] if written and written[0] == token else None
            except Exception:
                unsure = True
                raise

        tag = self._patiently(ask, lambda: self._settled(key, token, mode) if unsure else None)
        return tag or None

    def _settled(self, key: str, token: str, mode: Any) -> Tag | None:
        """What came of a conditional write without a reply: the tag, {} if lost, None if open."""
        written = self._written(key)
        if written and written[0] == token:
            return written[1]
        unchanged = (
            written is None if mode == "create" else written is not None and written[1] == mode
        )
        return None if unchanged else {}

    def _written(self, key: str) -> tuple[str, Tag] | None:
        """The token of the write that made an object, and its tag; None if there is no object."""

        def read() -> tuple[str, Tag]:
            reply = _obstore().get(self._client(), key)
            return str(reply.attributes.get(TOKEN, "")), _tag(dict(reply.meta))

        return self._patiently(lambda: self._if_there(read))

    def _if_there(self, ask: Callable[[], T]) -> T | None:
        """What a request gives; None if there is no such object. Raises NoBucket."""
        try:
            return ask()
        except FileNotFoundError as missing:  # also obstore's NotFoundError
            if _code(missing) in ("NoSuchBucket", "ContainerNotFound"):
                raise
            return None

    def _patiently(self, ask: Callable[[], T], settled: Callable[[], T | None] = lambda: None) -> T:
        """Asks until the server answers or patience ends. `settled`: what an earlier try did."""
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except Exception as error:
                failure = self._failure(error)
                waited_s = time.monotonic() - began
                if not isinstance(failure, Unanswered) or waited_s >= self.patience_s:
                    raise failure from None  # its text may hold credentials
            if waited_s >= WORD_AFTER_S and _say:
                _say.pop()(f"waiting for the store, at most {self.patience_s:.0f} s: {failure}")
            time.sleep(random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if (done := settled()) is not None:
                return done

    def _failure(self, error: Exception) -> Unavailable:
        """An exception of one line; Unanswered if it is worth another try."""
        if isinstance(error, Unavailable):
            return error  # of a request within a request
        text, code, status = str(error), _code(error), _status(error)
        got = f"(store={self.url!r}: {code or status or _kind(text)})"
        if status == 501 or code == "NotImplemented":
            return NoBucket(
                "a server must have all that a store needs, conditional writes included, but got "
                f"{got}"
            )
        if any(sign in text for sign in ELSEWHERE):
            return NoBucket(
                "a bucket must be in the region that AWS_REGION names (us-east-1 without it), but "
                f"got (store={self.url!r}, AWS_REGION={os.environ.get('AWS_REGION', '')!r})"
            )
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return NoBucket(f"a bucket must exist, but got {got}")
        if any(part in text for part in ("169.254.169.254", "metadata.google", "MissingAccount")):
            names = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
            name = names.get(self.url.partition(":")[0], "AZURE_STORAGE_ACCOUNT_NAME")
            return Refused(
                f"credentials must be in the environment ({name}, ...) or of the machine's role, "
                f"but got none (store={self.url!r})"
            )
        if any(sign in text for sign in ("OpenCredentials", "DecodeCredentials")):
            return Refused(
                "the credentials must be a file, or a key, as Google writes it, but got none that "
                f"can be read (store={self.url!r})"
            )
        if any(sign in text for sign in OTHER_CLOCK):
            return Refused(f"the clock of this machine must be as the server's, but got {got}")
        if status == 507 or code in FULL:
            return Unavailable(f"the bucket must have room, but got {got}")
        if status in (401, 403) or code in EXPIRED or (status == 400 and "token request" in text):
            return Refused(
                f"the credentials must be valid and permit reading and writing, but got {got}"
            )
        # obstore asks for the rest of a reply that broke off; of an object that has changed since,
        # there may be none (412, 416). Refused conditions of ours do not come here.
        again = (0, 408, 409, 412, 416, 429)
        retry = isinstance(error, ConnectionError) or status in again or status >= 500
        return (Unanswered if retry else Unavailable)(f"{LAW}, but got {got}")


# of a bucket in another region
ELSEWHERE = (
    "PermanentRedirect",
    "Received redirect without LOCATION",
    "AuthorizationHeaderMalformed",
)
WRITABLE = ".writable-"  # begins the name of an object that tries whether objects can be written
FULL = (
    "InsufficientStorage",
    "QuotaExceeded",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
)
# by over 15 minutes: at Amazon and Google, and in the details of Azure's AuthenticationFailed
OTHER_CLOCK = ("RequestTimeTooSkewed", "Request date header too old")
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")


def _code(error: Exception) -> str:
    """The server's name for an error, such as AccessDenied; empty if it gave none."""
    match = re.search(r"<Code>(\w{1,60})</Code>", str(error))
    return match[1] if match else ""


def _status(error: Exception) -> int:
    """The HTTP status of a refusal; 0 without an answer."""
    match = re.search(r"status code: (\d{3})", str(error))
    return int(match[1]) if match else 0


def _kind(text: str) -> str:
    """Why there was no answer."""
    for kind in ("kind: Connect", "kind: Timeout"):
        if kind in text:
            return {"kind: Connect": "no connection", "kind: Timeout": "no answer in time"}[kind]
    return "the connection failed"


def _whole_s(entry: Any) -> float:
    """When an object changed; the answer to a HEAD has no fractions, that to a listing may."""
    return float(math.floor(entry["last_modified"].timestamp()))


def _tag(meta: dict[str, Any]) -> Tag:
    """A missing version must be left out: obstore refuses None."""
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


def _obstore() -> Any:
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise NoBucket(
            "a store in a bucket needs obstore, but got no such package; install vitscale[bucket]"
        ) from error
    return obstore


@functools.cache
def _client(url: str) -> Any:
    """The client of this process. Its settings and credentials come from the environment."""
    from obstore.store import MemoryStore, from_url

    if url.startswith("memory:"):
        return MemoryStore()
    return from_url(url, **_options())


def _options() -> dict[str, Any]:
    named = re.compile("ENDPOINT|GOOGLE_BASE_URL")
    endpoints = [value for name, value in os.environ.items() if named.search(name)]
    return {
        "client_options": {
            # of a request with all that is sent: a checkpoint of some GB over a slow network, which
            # is not continued where it ends
            "timeout": "3600s",
            "read_timeout": f"{STALL_S}s",
            "connect_timeout": "5s",
            # an endpoint without encryption must be asked for, and then is meant
            "allow_http": any(value.startswith("http://") for value in endpoints),
        },
        "retry_config": {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=20)},
    }
