"""How a trial ended: its status, its rows, and facts such as the commit that trained it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

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


@dataclass(frozen=True)
class Outcome:
    """Status, rows by epoch, and facts of a trial: provenance, or the error that ended it."""

    status: Status
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row], facts: Mapping[str, str]) -> Outcome:
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
                return self.rows[-1][column.name]
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
        values = [row[column.name] for row in self.rows if column.name in row]
        choose = min if metric.lower_is_better else max
        return choose(values, default=metric.worst)

    def because(self, error: str) -> Outcome:
        """The outcome with `error` as its reason."""
        return replace(self, facts={**self.facts, "error": error})
