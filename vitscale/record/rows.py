"""The file of a done trial: rows as parquet; facts (status, provenance) and a seal as metadata.

The seal is the id of the trial, a sha256 of the rows, and a sha256 of all facts including those
two. The pages have checksums as well. So every flipped bit that changes a row or a fact is
detected, and another trial's file is not mistaken for this one's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from vitscale.record.outcome import DONE, Outcome, Row, Rows, Status, interned

PREFIX = "vitscale."
# facts about the file itself, which callers do not see
SEAL = ("trial", "rows_sha256", "facts_sha256")


def encode(trial_id: str, outcome: Outcome) -> bytes:
    """The content of the file; missing values of a row become nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict.fromkeys(name for row in outcome.rows for name in row)
    table = pa.table(
        {name: pa.array([row.get(name) for row in outcome.rows], pa.float64()) for name in columns}
    )
    facts = {"status": outcome.status.value, **outcome.facts}
    sealed = {"trial": trial_id, "rows_sha256": _digest(_rows_of(table)), **facts}
    sealed = {"facts_sha256": _digest(sealed), **sealed}
    sink = pa.BufferOutputStream()
    metadata = {f"{PREFIX}{key}": value for key, value in sealed.items()}
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def decode(content: bytes, trial_id: str) -> Outcome:
    """The outcome in a file's content.

    Raises ValueError, or an exception of pyarrow, if it is damaged or of another trial.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    facts = _facts_of(file.metadata, trial_id)
    rows = _rows_of(file.read(use_threads=False))
    if facts["rows_sha256"] != _digest(rows):
        raise ValueError("its rows do not match their checksum")
    return _outcome(rows, facts)


def decode_facts(file: BinaryIO, trial_id: str) -> Outcome:
    """The outcome without its rows: reads only the metadata at the end of the file.

    Raises as `decode` does.
    """
    import pyarrow.parquet as pq

    return _outcome((), _facts_of(pq.read_metadata(file), trial_id))


def _rows_of(table: Any) -> list[Row]:
    """The rows of a table; nulls are left out of a row."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in table.to_pylist()
    ]


def _facts_of(metadata: Any, trial_id: str) -> dict[str, str]:
    """Facts and seal in the metadata, verified against each other. Raises ValueError."""
    if not metadata.num_rows or not metadata.num_row_groups:
        raise ValueError("it has no row")
    # not metadata.schema, which refers back to it: 50 KB a file, until Python looks for garbage
    first = metadata.row_group(0)
    if wrong := [
        column.path_in_schema
        for column in map(first.column, range(first.num_columns))
        if column.physical_type != "DOUBLE"
    ]:
        raise ValueError(f"a column must be of float64, but got ({wrong[0]!r:.60})")
    prefix, raw = PREFIX.encode(), metadata.metadata or {}
    facts = {
        key.removeprefix(prefix).decode(): raw[key].decode()
        for key in raw
        if key.startswith(prefix)
    }
    if facts.get("status") not in DONE:
        raise ValueError(
            f"status in ({', '.join(DONE)}) must hold, but got (status={facts.get('status')!r:.60})"
        )
    if absent := [name for name in SEAL if name not in facts]:
        raise ValueError(f"a seal must have ({', '.join(SEAL)}), but got ({absent[0]}=None)")
    if facts["facts_sha256"] != _digest({k: v for k, v in facts.items() if k != "facts_sha256"}):
        raise ValueError(
            f"facts must match their checksum, but got (facts_sha256={facts['facts_sha256']!r:.80})"
        )
    if facts["trial"] != trial_id:
        raise ValueError(f"trial == {trial_id!r} must hold, but got (trial={facts['trial']!r:.60})")
    return facts


def _outcome(rows: Iterable[Row], facts: Mapping[str, str]) -> Outcome:
    """The outcome of facts, without those about the file itself."""
    own = {name: value for name, value in facts.items() if name not in (*SEAL, "status")}
    return Outcome(Status(facts["status"]), Rows.pack(tuple(rows)), interned(own))


def _digest(content: Any) -> str:
    """A digest of plain values that depends on every bit of a number; NaN equals NaN."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
