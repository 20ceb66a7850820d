"""The file of a done trial: its rows as parquet and, in the metadata, facts (status, provenance)
and a seal.

The seal is the id of the trial, a sha256 of the rows, and one of all facts together with those two.
The pages have checksums besides. So a flipped bit is seen wherever it changes a row or a fact, and
another trial's file is not taken for this one's. Files of versions that wrote no seal still read,
but cannot show either: such a file is believed if it is parquet at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from vitscale.record.outcome import DONE, Outcome, Row, Status

PREFIX = "vitscale."
# facts of the file itself, which callers do not see
SEAL = ("trial", "rows_sha256", "facts_sha256")


def encode(trial_id: str, outcome: Outcome) -> bytes:
    """The content of the file; a value that a row lacks is a null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict.fromkeys(name for row in outcome.rows for name in row)
    table = pa.table(
        {name: pa.array([row.get(name) for row in outcome.rows], pa.float64()) for name in columns}
    )
    facts = {"status": outcome.status.value, **outcome.facts}
    sealed = {"trial": trial_id, "rows_sha256": _digest(_rows_of(table)), **facts}
    # The seal goes first: metadata that a flipped bit cuts short then keep a part of it, and are no
    # older version's.
    sealed = {"facts_sha256": _digest(sealed), **sealed}
    sink = pa.BufferOutputStream()
    metadata = {f"{PREFIX}{key}": value for key, value in sealed.items()}
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def decode(content: bytes, trial_id: str) -> Outcome:
    """The outcome in a file's content.

    Raises ValueError, or what pyarrow does, if it is damaged or another's.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    facts = _facts_of(file.metadata, trial_id)
    rows = _rows_of(file.read(use_threads=False))
    if "rows_sha256" in facts and facts["rows_sha256"] != _digest(rows):
        raise ValueError("its rows are not those that were written")
    return _outcome(rows, facts)


def decode_facts(file: BinaryIO, trial_id: str) -> Outcome:
    """The outcome without its rows, from the end of a file, which takes less than its rows.

    Raises as `decode` does.
    """
    import pyarrow.parquet as pq

    return _outcome((), _facts_of(pq.read_metadata(file), trial_id))


def _rows_of(table: Any) -> list[Row]:
    """Absent values are left out of a row."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in table.to_pylist()
    ]


def _facts_of(metadata: Any, trial_id: str) -> dict[str, str]:
    """Facts and seal, as the seal has them, of a file with rows of numbers."""
    schema = metadata.schema
    if alien := [
        column.path
        for column in map(schema.column, range(len(schema)))
        if column.physical_type != "DOUBLE"
    ]:
        raise ValueError(f"a column must be of float64, but got ({alien[0]!r:.60})")
    if not metadata.num_rows:
        raise ValueError("it has no row")
    prefix, found = PREFIX.encode(), metadata.metadata or {}
    facts = {
        key.removeprefix(prefix).decode(): found[key].decode()
        for key in found
        if key.startswith(prefix)
    }
    sealed = {name: facts[name] for name in SEAL if name in facts}
    if sealed and len(sealed) < len(SEAL):
        raise ValueError(f"its seal is broken: it has {', '.join(sealed)} alone")
    if sealed and sealed["facts_sha256"] != _digest(
        {k: v for k, v in facts.items() if k != "facts_sha256"}
    ):
        raise ValueError("its facts are not those that were written")
    if sealed and sealed["trial"] != trial_id:
        raise ValueError(f"it is of another trial, {sealed['trial']!r:.60}")
    if facts.get("status") not in DONE:
        raise ValueError(
            f"status in ({', '.join(DONE)}) must hold, but got ({facts.get('status')!r:.60})"
        )
    return facts


def _outcome(rows: Iterable[Row], facts: Mapping[str, str]) -> Outcome:
    """Without what is of the file itself."""
    own = {name: value for name, value in facts.items() if name not in (*SEAL, "status")}
    return Outcome(Status(facts["status"]), tuple(rows), own)


def _digest(content: Any) -> str:
    """Of plain values: equal for equal ones, to the last bit of a number; NaN equals NaN."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
