"""How a trial ended: its status, its rows, and facts such as the commit that trained it."""

from __future__ import annotations

import operator
import statistics
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import SupportsIndex, assert_never, overload

from vitscale.plan.metrics import Column

Row = dict[str, float]


class Status(StrEnum):
    """The state of a trial; members are in the order in which counts are shown."""

    FINISHED = "finished"
    RUNNING = "running"
    DIVERGED = "diverged"  # the loss became non-finite: a result
    STOPPED = "stopped"  # by a search with ASHA, before the end
    FAILED = "failed"  # an exception that its config caused: also a result
    MISSING = "missing"  # never started, interrupted, or failed by a machine


DONE = (Status.FINISHED, Status.DIVERGED)  # these have a rows.parquet
ENDINGS = tuple(status for status in Status if status is not Status.RUNNING)
# the possible ends of trials that were fixed beforehand
FIXED = tuple(status for status in ENDINGS if status is not Status.STOPPED)


def interned(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts in one copy of each text: most facts of a trial are those of others."""
    return {sys.intern(name): sys.intern(text) for name, text in facts.items()}


class Rows(Sequence[Row]):
    """Rows as the bytes of one float64 array, (rows, names): dictionaries of two million rows would
    take 2 GB. Each row that is asked for is a new dictionary.
    """

    __slots__ = ("absent", "names", "values")

    def __init__(
        self,
        names: tuple[str, ...],
        values: bytes | memoryview,
        absent: Iterable[tuple[int, str]] = (),
    ) -> None:
        """`absent`: (place of a row, a name) for each name that a row lacks. A view of bytes that
        are in memory anyway saves their copy.
        """
        self.names, self.values, self.absent = names, values, tuple(absent)

    @classmethod
    def pack(cls, rows: Sequence[Row]) -> Rows:
        """The same rows; the rows themselves if they are such an array."""
        if isinstance(rows, cls):
            return rows
        names = tuple(rows[0]) if rows else ()
        if all(tuple(row) == names for row in rows):  # a tenth of the time of what follows
            pack = struct.Struct(f"<{len(names) * len(rows)}d").pack
            return cls(names, pack(*(value for row in rows for value in row.values())))
        names = tuple(dict.fromkeys(name for row in rows for name in row))
        absent = [(i, name) for i, row in enumerate(rows) for name in names if name not in row]
        pack = struct.Struct(f"<{len(names)}d").pack
        values = b"".join(pack(*(row.get(name, 0.0) for name in names)) for row in rows)
        return cls(names, values, absent)

    def column(self, name: str) -> list[float]:
        """The values of the rows that have one."""
        if name not in self.names:
            return []
        import numpy as np

        place, num = self.names.index(name), len(self.names)
        values: list[float] = np.frombuffer(self.values, "<f8")[place::num].tolist()
        lacking = {i for i, absent in self.absent if absent == name}
        return [value for i, value in enumerate(values) if i not in lacking] if lacking else values

    def value(self, place: int, name: str) -> float:
        """One value of a row, without a dictionary of the others; negative places from the end.

        Raises KeyError where the row has none.
        """
        row = range(len(self))[place]
        if name not in self.names or (row, name) in self.absent:
            raise KeyError(name)
        column = self.names.index(name)
        (number,) = struct.unpack_from("<d", self.values, 8 * (len(self.names) * row + column))
        return float(number)

    def last(self) -> Rows:
        """The last row alone."""
        place = len(self) - 1
        values = memoryview(self.values)[8 * len(self.names) * place :]
        return Rows(self.names, values, ((0, name) for i, name in self.absent if i == place))

    def all_have(self, name: str) -> bool:
        """Whether each row has a value of this name; True if there is no row."""
        if name in self.names:
            return all(name != absent for _, absent in self.absent)
        return not self

    def __len__(self) -> int:
        return len(self.values) // (8 * len(self.names)) if self.names else 0

    @overload
    def __getitem__(self, place: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(len(self))[place])
        i = range(len(self))[operator.index(place)]  # raises IndexError, counts from the end
        num = len(self.names)
        values = struct.unpack_from(f"<{num}d", self.values, 8 * num * i)
        row = dict(zip(self.names, values, strict=True))
        for number, name in self.absent:
            if number == i:
                del row[name]
        return row

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(tuple(self))


def value_at(rows: Sequence[Row], place: int, name: str) -> float:
    """One value of a row. Raises KeyError where the row has none."""
    return rows.value(place, name) if isinstance(rows, Rows) else rows[place][name]


@dataclass(frozen=True)
class Outcome:
    """Status, rows by epoch, and facts of a trial: provenance, or the error that ended it."""

    status: Status
    rows: Sequence[Row] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], facts: Mapping[str, str]) -> Outcome:
        """The outcome of a completed trial; its last row shows whether it diverged."""
        rows = tuple(rows)
        return cls(Status.DIVERGED if rows[-1].get("diverged") else Status.FINISHED, rows, facts)

    @property
    def is_known(self) -> bool:
        """Whether the trial has ended with a result of its own."""
        return self.status not in (Status.RUNNING, Status.MISSING)

    @property
    def error(self) -> str:
        """Why the config failed, or the last fault of a machine, in one line; else empty."""
        return self.facts.get("error", "")

    def final(self, column: Column) -> float:
        """The column's value after the last epoch, or median over timed runs; NaN without a result.

        For a diverged or failed trial the worst value of the metric (vitscale.plan.metrics).
        """
        if self.status in (Status.DIVERGED, Status.FAILED):
            return column.metric.worst
        if not self.is_known or not self.rows:
            return float("nan")
        match column.metric.result:
            case "final":
                return value_at(self.rows, -1, column.name)
            case "median":
                return statistics.median(row[column.name] for row in self.rows)
            case never:
                assert_never(never)

    def best(self, column: Column) -> float:
        """The best value over epochs, which must not be chosen on a test set; else as `final`.

        The last row of a diverged trial has only some of the columns.
        """
        metric = column.metric
        if self.status is Status.FAILED:
            return metric.worst
        if not self.is_known or not self.rows:
            return float("nan")
        values = Rows.pack(self.rows).column(column.name)
        choose = min if metric.lower_is_better else max
        return choose(values, default=metric.worst)

    def because(self, error: str) -> Outcome:
        """The outcome with `error` as its reason."""
        return replace(self, facts={**self.facts, "error": error})
