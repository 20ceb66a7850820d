"""The outcomes of a study's done trials in one file, so that they are read at once.

    <root>/studies/<slug>/outcomes.parquet   trial, size and time of its rows.parquet, its outcome

It is a copy, never the truth: an entry counts only while rows.parquet has the size and the time
that it had when it was read, and the file may be deleted at any time. The rows of a trial are the
names of their columns and the bytes of a float64 array, so that they come back by the bit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from vitscale.record.outcome import Outcome, Rows, Status
from vitscale.record.store import ROWS, Store
from vitscale.record.workdir import Damaged, FileState

INDEX = "outcomes.parquet"
FEWEST = 50  # new outcomes for which it is written again; fewer are read one by one
AHEAD = 512  # trials that are read ahead where several requests run at once
COLUMNS = ("trial", "num_bytes", "changed_s", "status", "facts", "layout", "values")


class Index:
    """The done trials among some, read for one study."""

    def __init__(
        self,
        store: Store,
        slug: str,
        trial_ids: Collection[str],
        states: Mapping[str, FileState] | None = None,
    ) -> None:
        """`states`: those of rows.parquet, if they are known."""
        self.store, self.folder = store, store.study(slug)
        self.states = store.trials.states(ROWS, trial_ids) if states is None else states
        asked, loaded = set(trial_ids), self._load() if trial_ids else []
        self.entries = {
            entry["trial"]: entry
            for entry in loaded
            if self.states.get(entry["trial"]) == (entry["num_bytes"], entry["changed_s"])
        }
        self.others = [entry for entry in loaded if entry["trial"] not in asked]
        self.new: dict[str, dict[str, Any]] = {}
        self.unread = dict.fromkeys(i for i in self.states if i not in self.entries)
        self.ahead: dict[str, Outcome | Damaged] = {}  # read, and not asked for yet

    @property
    def done(self) -> set[str]:
        return set(self.states)

    def read(self, trial_id: str) -> Outcome:
        """As Store.read."""
        if entry := self.entries.get(trial_id):
            return Outcome(Status(entry["status"]), _rows(entry), _facts(entry))
        if trial_id not in self.ahead:
            self._read_ahead(trial_id)
        outcome = self.ahead.pop(trial_id)
        if isinstance(outcome, Damaged):
            raise outcome
        if state := self.states.get(trial_id):
            self.new[trial_id] = _entry(trial_id, state, outcome)
        return outcome

    def _read_ahead(self, trial_id: str) -> None:
        """Reads a trial, and where requests take long, those that follow it as well."""
        self.unread.pop(trial_id, None)
        num = self.store.trials.at_once
        following = itertools.islice(self.unread, AHEAD if num > 1 else 0)
        ids = [trial_id, *following]

        def read(one: str) -> Outcome | Damaged:
            try:
                return self.store.read(one)
            except Damaged as damage:
                return damage

        if num > 1:
            with ThreadPoolExecutor(num) as pool:
                found = list(pool.map(read, ids))
        else:
            found = list(map(read, ids))
        self.ahead |= zip(ids, found, strict=True)
        for one in ids:
            self.unread.pop(one, None)

    def peek(self, trial_id: str) -> Outcome:
        """As Store.peek: without the rows."""
        if entry := self.entries.get(trial_id):
            return Outcome(Status(entry["status"]), (), _facts(entry))
        if self.store.trials.at_once > 1:
            return replace(self.read(trial_id), rows=())
        return self.store.peek(trial_id)

    def save(self) -> None:
        """Writes the file if enough trials were read that it lacks.

        It keeps its entries of trials that were not asked for, as of earlier plans. A store that
        cannot be written keeps its old file.
        """
        if len(self.new) < FEWEST:
            return
        entries = [*self.others, *{**self.entries, **self.new}.values()]
        with contextlib.suppress(OSError):
            self.folder.write(INDEX, _encode(entries))

    def _load(self) -> list[dict[str, Any]]:
        """The entries of the file; none if it is damaged or absent."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(io.BytesIO(self.folder.read(INDEX)))
            entries = table.to_pylist() if set(table.column_names) == set(COLUMNS) else []
        except (OSError, ValueError, MemoryError, pa.ArrowException):  # Damaged is a ValueError
            return []
        digest = (table.schema.metadata or {}).get(b"sha256")
        return entries if digest == _digest(entries).encode() else []


def _entry(trial_id: str, state: FileState, outcome: Outcome) -> dict[str, Any]:
    rows = Rows.of(outcome.rows)
    return {
        "trial": trial_id,
        "num_bytes": state.num_bytes,
        "changed_s": state.changed_s,
        "status": outcome.status.value,
        "facts": json.dumps(dict(outcome.facts)),
        "layout": json.dumps([rows.names, rows.absent]),
        "values": rows.values,
    }


def _rows(entry: Mapping[str, Any]) -> Rows:
    names, absent = _layout(entry["layout"])
    return Rows(names, entry["values"], absent)


@functools.cache
def _layout(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...]]:
    names, absent = json.loads(text)
    return tuple(names), tuple((i, name) for i, name in absent)


def _facts(entry: Mapping[str, Any]) -> dict[str, str]:
    """The facts; most of them are those of other trials, of which one copy is kept."""
    return {sys.intern(name): sys.intern(of) for name, of in json.loads(entry["facts"]).items()}


def _encode(entries: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    table = pa.table({name: [entry[name] for entry in entries] for name in COLUMNS})
    sealed = table.replace_schema_metadata({"sha256": _digest(entries)})
    pq.write_table(sealed, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _digest(entries: list[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(repr([entry[name] for name in COLUMNS]).encode())
    return digest.hexdigest()
