"""How a trial ended: its status, its rows, and facts such as the commit that trained it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vitscale.plan.metrics import metric_of

Row = dict[str, float]


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

    def final(self, metric: str, worst: float | None = None) -> float:
        """A column in the last row; for a trial that diverged or failed `worst`, without it that of
        the metric (vitscale.plan.metrics). NaN where there is no result.
        """
        if self.status in (Status.DIVERGED, Status.FAILED):
            return metric_of(metric).worst if worst is None else worst
        return self.rows[-1][metric] if self.is_known and self.rows else float("nan")

    def best(self, metric: str, worst: float | None = None) -> float:
        """The best over epochs, which a test set must not choose; otherwise as `final`.

        The last row of a diverged trial has only some columns.
        """
        kind = metric_of(metric)
        worst = kind.worst if worst is None else worst
        if self.status is Status.FAILED:
            return worst
        if not self.is_known or not self.rows:
            return float("nan")
        values = [row[metric] for row in self.rows if metric in row]
        choose = min if kind.lower_is_better else max
        return choose(values, default=worst)

    def because(self, error: str) -> Outcome:
        """The same with a reason."""
        return replace(self, facts={**self.facts, "error": error})
