"""How a trial ended: its status, its rows, and facts such as the commit that trained it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

Row = dict[str, float]
# what a training without a result counts as: the error of a model that is always wrong, percent
WORST = 100.0


class Status(StrEnum):
    """Where a trial is, in the order in which counts are shown."""

    FINISHED = "finished"
    RUNNING = "running"
    DIVERGED = "diverged"  # the loss became non-finite: a result
    STOPPED = "stopped"  # by a search with ASHA, before the end
    FAILED = "failed"  # an exception that its config caused: a result, too
    MISSING = "missing"  # never started, interrupted, or failed by a machine


DONE = (Status.FINISHED, Status.DIVERGED)  # these have a file of rows
ENDINGS = tuple(status for status in Status if status is not Status.RUNNING)
# of trials that were fixed beforehand
FIXED = tuple(status for status in ENDINGS if status is not Status.STOPPED)


@dataclass(frozen=True)
class Outcome:
    """What is known of a trial: rows in order of epochs, and
    facts (provenance, or the error that ended it).
    """

    status: Status
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row], facts: Mapping[str, str]) -> Outcome:
        """Of a training or a profile that has come to its
        end: the last row says whether it diverged.
        """
        rows = tuple(rows)
        return cls(Status.DIVERGED if rows[-1].get("diverged") else Status.FINISHED, rows, facts)

    @property
    def is_known(self) -> bool:
        """Whether the trial has ended, by its own result."""
        return self.status not in (Status.RUNNING, Status.MISSING)

    @property
    def error(self) -> str:
        """What a trial failed of, or how a machine failed it, in one line; empty if nothing did."""
        return self.facts.get("error", "")

    def final(self, metric: str, worst: float = WORST) -> float:
        """A metric in the last row; `worst` for a trial that
        diverged or failed, NaN where there is no result.
        """
        if self.status in (Status.DIVERGED, Status.FAILED):
            return worst
        return self.rows[-1][metric] if self.is_known and self.rows else float("nan")

    def best(self, metric: str, worst: float = WORST) -> float:
        """The minimum over epochs, which a test set must not choose; otherwise as `final`."""
        if self.status is Status.FAILED:
            return worst
        return (
            min((row[metric] for row in self.rows), default=float("nan"))
            if self.is_known
            else float("nan")
        )

    def because(self, error: str) -> Outcome:
        """The same with a reason."""
        return replace(self, facts={**self.facts, "error": error})
