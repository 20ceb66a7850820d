"""Rows and numbers as MLflow's metrics, in batches that a server accepts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitscale.plan.metrics import columns_of
from vitscale.record.outcome import Outcome, Row

if TYPE_CHECKING:
    from mlflow.entities import Metric

MAX_METRICS = 1000  # of a request: MLflow's limit
# epoch is the MLflow step, and how a trial ended a tag; a count of epochs or images is no curve
_NOT_METRICS = ("unix_s", "step", "epoch", "samples", "diverged")


def row_metrics(row: Row, first: str) -> list[Metric]:
    """The metrics of a row at MLflow step `epoch`, with the time of the row. `first` is the column
    that comes first if the row has it: Compare opens on what was logged first.
    """
    names = [name for name in (first, *row) if name in row and name not in _NOT_METRICS]
    return _metrics_at(row, {_key(name): name for name in names})


def evaluation_metrics(outcome: Outcome) -> list[Metric]:
    """The metrics of an evaluation after the training, at the step of the last epoch."""
    (row,), facts = outcome.rows, outcome.facts
    columns = columns_of(facts["split"]).items()
    names = {
        _key(f"evaluation/{facts['name']}/{column.weights}{column.metric.name}"): name
        for name, column in columns
        if name in row
    }
    return _metrics_at(row, names)


def _metrics_at(row: Row, names: Mapping[str, str]) -> list[Metric]:
    """The values of a row under other names (MLflow's name -> column)."""
    from mlflow.entities import Metric

    time_ms, step = int(row["unix_s"] * 1000), int(row["epoch"])
    return [Metric(key, row[name], time_ms, step) for key, name in names.items()]


def batches(groups: Iterable[list[Metric]]) -> Iterator[list[Metric]]:
    """Joins groups to batches of at most MAX_METRICS, without splitting a group.

    There is at least one batch, which may be empty.
    """
    batch: list[Metric] = []
    for group in groups:
        if len(batch) + len(group) > MAX_METRICS:
            yield batch
            batch = []
        batch = batch + group
    yield batch


def finite_metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """The finite numbers, under names that MLflow accepts; it stores infinity as 1.8e308, which
    breaks charts.
    """
    return {_key(name): float(value) for name, value in numbers.items() if math.isfinite(value)}


def end_ms(rows: Sequence[Row]) -> int:
    """End of a trial: the time of its last row, so that logging it again changes nothing. Without
    rows, now.
    """
    return int(rows[-1]["unix_s"] * 1000) if rows else int(time.time() * 1000)


def _key(name: str) -> str:
    """A name with only characters that MLflow allows: letters, digits, spaces and _-./:."""
    return "".join(c if c.isalnum() or c in "_-./: " else "_" for c in name)
