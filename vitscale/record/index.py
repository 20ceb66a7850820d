"""The outcomes of a study's done trials in one file, so that they are read at once.

    <root>/studies/<slug>/outcomes.parquet   trial, size and time of its rows.parquet, its outcome

It is a copy, never the truth: an entry counts only while rows.parquet has the size and the time
that it had when it was read, and the file may be deleted at any time. The rows of a trial are the
names of their columns and the bytes of a float64 array, so that they come back by the bit. Each
column has a checksum, so that those which are not needed are not read.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from vitscale.record.outcome import Outcome, Rows, Status, interned
from vitscale.record.store import Store
from vitscale.record.trial_files import ROWS
from vitscale.record.workdir import Damaged, FileState

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

INDEX = "outcomes.parquet"
FEWEST = 50  # new outcomes for which it is written again; fewer are read one by one
PART = 4_096  # trials in a part of the file, which is read at once
AHEAD = 512  # trials that are read at a time
STATE = ("trial", "num_bytes", "changed_s", "status")
COLUMNS = (*STATE, "facts", "layout", "values")


class Index:
    """The done trials among some, read for one study."""

    def __init__(
        self,
        store: Store,
        slug: str,
        trial_ids: Collection[str],
        states: Mapping[str, FileState] | None = None,
        *,
        with_rows: bool = True,
    ) -> None:
        """`states`: those of rows.parquet, if they are known. Without rows, only `peek` works."""
        self.store, self.folder = store, store.study(slug)
        self.states = store.trials.states(ROWS, trial_ids) if states is None else states
        self.done = frozenset(self.states)
        # a restart asks for none at its end
        self.copy = self._load(COLUMNS if with_rows else STATE) if trial_ids else _none(COLUMNS)
        asked = set(trial_ids)
        self.texts: list[list[str]] = [[], [], []]  # status, facts and layout of each trial
        self.values: list[memoryview] = []  # the bytes of its rows, where they are in the copy
        if with_rows:
            self._look_at(self.copy)
        self.entries: dict[str, int] = {}  # trial -> its place in the copy
        self.others: list[int] = []  # places of trials that were not asked for
        columns = (self.copy[name].to_pylist() for name in STATE[:3])
        for place, (trial_id, num_bytes, changed_s) in enumerate(zip(*columns, strict=True)):
            if trial_id not in asked:
                self.others.append(place)
            elif self.states.get(trial_id) == (num_bytes, changed_s):
                self.entries[trial_id] = place
        self.with_rows = with_rows
        self.num_new = 0  # trials that the file lacks
        self.unread = dict.fromkeys(i for i in self.states if i not in self.entries)
        self.ahead: dict[str, Outcome | Damaged] = {}  # read, and not asked for yet

    def read(self, trial_id: str) -> Outcome:
        """As Store.read."""
        if trial_id not in self.entries and trial_id not in self.ahead:
            self._read_ahead(trial_id)
        if (place := self.entries.get(trial_id)) is not None:
            status, facts, layout = (texts[place] for texts in self.texts)
            names, absent = _layout(layout)
            return Outcome(Status(status), Rows(names, self.values[place], absent), _facts(facts))
        outcome = self.ahead.pop(trial_id)
        if isinstance(outcome, Damaged):
            raise outcome
        return outcome

    def _look_at(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Notes what the copy, or a part that is added to it, holds of each trial."""
        for texts, name in zip(self.texts, COLUMNS[3:6], strict=True):
            texts += _shared(columns[name])
        for chunk in columns["values"].chunks:
            content, ends = _content(chunk)
            self.values += [content[a:b] for a, b in itertools.pairwise(ends.tolist())]

    def _read_ahead(self, trial_id: str) -> None:
        """Reads a trial and those that follow it, and adds them to the copy: as outcomes of their
        own, 100,000 would take 1 GB more.
        """
        self.unread.pop(trial_id, None)
        num = self.store.trials.at_once
        ids = [trial_id, *itertools.islice(self.unread, AHEAD)]

        def read(i: str) -> Outcome | Damaged:
            try:
                return self.store.read(i)
            except Damaged as damage:
                return damage

        if num > 1:
            with ThreadPoolExecutor(num) as pool:
                outcomes = list(pool.map(read, ids))
        else:
            outcomes = list(map(read, ids))
        new: list[dict[str, Any]] = []
        for i, outcome in zip(ids, outcomes, strict=True):
            self.unread.pop(i, None)
            if isinstance(outcome, Damaged) or i not in self.states or not self.with_rows:
                self.ahead[i] = outcome
            else:
                self.entries[i] = len(self.values) + len(new)
                new.append(_entry(i, self.states[i], outcome))
        if new:
            part = {name: _array(name, new) for name in COLUMNS}
            self.copy = {name: _joined(self.copy[name], part[name]) for name in COLUMNS}
            self._look_at(part)
            self.num_new += len(new)

    def peek(self, trial_id: str) -> Outcome:
        """As Store.peek, and without facts if it is in the copy."""
        if (place := self.entries.get(trial_id)) is not None:
            return Outcome(Status(self.copy["status"][place].as_py()))
        if self.store.trials.at_once > 1:
            return replace(self.read(trial_id), rows=())
        return self.store.peek(trial_id)

    def save(self) -> None:
        """Writes the file if enough trials were read that it lacks.

        It keeps its entries of trials that were not asked for, as of earlier plans. A store that
        cannot be written keeps its old file.
        """
        if self.num_new < FEWEST:
            return
        kept, columns = sorted([*self.others, *self.entries.values()]), self.copy
        if len(kept) < len(self.values):  # without entries of trials that were trained again
            columns = {name: column.take(kept) for name, column in columns.items()}
        with contextlib.suppress(OSError):
            self.folder.write(INDEX, lambda file: _encode(columns, file))

    def _load(self, names: Collection[str]) -> dict[str, pa.ChunkedArray]:
        """These columns of the file; empty ones if it is damaged or absent."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        none, columns = _none(names), {}
        try:
            with self.folder.open(INDEX) as opened, pq.ParquetFile(opened) as file:
                metadata = file.schema_arrow.metadata or {}
                for name in names:
                    column = columns[name] = _column(file, name)
                    digest = metadata.get(f"sha256 {name}".encode())
                    if column.type != none[name].type or digest != _digest(column):
                        return none
        except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException):  # Damaged, too
            return none
        return columns


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    """A column, read part by part: at once, its bytes would be in memory three times."""
    import pyarrow as pa

    parts = [file.read_row_group(i, [name])[name] for i in range(file.num_row_groups)]
    kind = file.schema_arrow.field(name).type
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], kind)


def _entry(trial_id: str, state: FileState, outcome: Outcome) -> dict[str, Any]:
    rows = Rows.pack(outcome.rows)
    return {
        "trial": trial_id,
        "num_bytes": state.num_bytes,
        "changed_s": state.changed_s,
        "status": outcome.status.value,
        "facts": json.dumps(dict(outcome.facts)),
        "layout": json.dumps([rows.names, rows.absent]),
        "values": bytes(rows.values),
    }


@functools.cache
def _layout(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...]]:
    names, absent = json.loads(text)
    return tuple(names), tuple((i, name) for i, name in absent)


@functools.lru_cache(10_000)
def _facts(text: str) -> Mapping[str, str]:
    """The facts of a trial, which are those of many others."""
    return interned(json.loads(text))


def _none(names: Iterable[str]) -> dict[str, pa.ChunkedArray]:
    import pyarrow as pa

    return {name: pa.chunked_array([], _kind(name)) for name in names}


def _array(name: str, entries: Iterable[Mapping[str, Any]]) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([pa.array([entry[name] for entry in entries], _kind(name))])


def _joined(*columns: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array(chunks, columns[0].type)


def _shared(column: pa.ChunkedArray) -> list[str]:
    """The texts of a column, equal ones in one copy."""
    texts: list[str] = []
    for chunk in column.chunks:
        coded = chunk.dictionary_encode()
        words = [sys.intern(word) for word in coded.dictionary.to_pylist()]
        texts += [words[place] for place in coded.indices.to_pylist()]
    return texts


def _kind(name: str) -> pa.DataType:
    import pyarrow as pa

    kinds = {"num_bytes": pa.int64(), "changed_s": pa.float64(), "values": pa.large_binary()}
    return kinds.get(name, pa.large_string())


def _encode(columns: Mapping[str, pa.ChunkedArray], file: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    digests = {f"sha256 {name}": _digest(column) for name, column in columns.items()}
    table = pa.table(dict(columns)).replace_schema_metadata(digests)
    repeated = ["status", "layout"]
    pq.write_table(table, file, PART, compression="zstd", use_dictionary=repeated)


def _digest(column: pa.ChunkedArray) -> bytes:
    """A digest of a column without nulls, which depends on every bit of a value."""
    import numpy as np
    import pyarrow as pa

    digest = hashlib.sha256(str(column.null_count).encode())
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        parts = [_content(chunk) for chunk in column.chunks]
        for _, ends in parts:
            digest.update(np.diff(ends).tobytes())
        for content, ends in parts:
            digest.update(content[ends[0] : ends[-1]])
    else:
        for chunk in column.chunks:
            digest.update(chunk.to_numpy().tobytes())
    return digest.hexdigest().encode()


def _content(column: pa.Array) -> tuple[memoryview, np.ndarray]:
    """The bytes of a column of texts, and (n + 1,) where each begins and the last ends."""
    import numpy as np

    _, places, content = column.buffers()
    ends = np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1]
    return memoryview(content or b""), ends
