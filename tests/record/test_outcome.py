"""How a trial ended: one order in which its files decide, and what each ending counts as."""

from __future__ import annotations

import itertools
import math
import operator
import pickle
from pathlib import Path

import pytest

from vitscale.plan.metrics import columns_of
from vitscale.record.outcome import DONE, ENDINGS, FIXED, Outcome, Row, Rows, Status, value_at
from vitscale.record.store import Store
from vitscale.record.trial_files import ROWS

COLUMN = columns_of("val")["val_error_pct"]
ROW = {"epoch": 1.0, "val_error_pct": 30.0}
LAST = {"epoch": 2.0, "val_error_pct": 40.0}


def test_the_last_row_says_whether_a_training_diverged() -> None:
    assert Outcome.from_rows([ROW, {**LAST, "diverged": 0.0}], {}).status == "finished"
    assert Outcome.from_rows([ROW, {**LAST, "diverged": 1.0}], {}).status == "diverged"
    assert Outcome.from_rows([ROW], {}).status == "finished"  # a profile's rows say nothing of it


@pytest.mark.parametrize(
    ("status", "final", "best"),
    [
        ("finished", 40.0, 30.0),
        ("stopped", 40.0, 30.0),
        ("diverged", 100.0, 30.0),
        ("failed", 100.0, 100.0),
    ],
)
def test_what_a_result_counts_as(status: str, final: float, best: float) -> None:
    outcome = Outcome(Status(status), (ROW, LAST))
    assert (outcome.final(COLUMN), outcome.best(COLUMN)) == (final, best)


@pytest.mark.parametrize("status", ["missing", "running"])
def test_what_has_no_result_has_no_number(status: str) -> None:
    outcome = Outcome(Status(status), (ROW, LAST))
    assert not outcome.is_known and math.isnan(outcome.final(COLUMN))
    assert math.isnan(outcome.best(COLUMN))


def test_the_lists_of_statuses_are_one_list() -> None:
    assert tuple(Status) == ("finished", "running", "diverged", "stopped", "failed", "missing")
    assert ENDINGS == ("finished", "diverged", "stopped", "failed", "missing")
    assert FIXED == ("finished", "diverged", "failed", "missing") and DONE == (
        "finished",
        "diverged",
    )


def test_rows_decide_before_a_failure_and_a_failure_before_a_fault(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    workdir = store.claim("t", {}, "s", 1)
    assert store.outcome("t") == Outcome(Status.MISSING)
    store.lose(workdir, "OSError: no disk", "")
    assert store.outcome("t") == Outcome(Status.MISSING).because("OSError: no disk")
    store.fail(workdir.__class__(workdir.path), "ValueError: no", "")
    assert store.outcome("t") == Outcome(Status.FAILED).because("ValueError: no")
    done = Outcome(Status.DIVERGED, (LAST,), {"commit": "abc"})
    store.finish(workdir.__class__(workdir.path), done)
    assert store.outcome("t") == done
    assert store.outcome("t", store.peek) == Outcome(Status.DIVERGED, facts={"commit": "abc"})
    (store.trial("t").path / ROWS).write_bytes(b"half")
    with pytest.warns(UserWarning, match="rows must be readable parquet"):
        assert store.outcome("t").status == "failed"


@pytest.mark.parametrize(
    ("name", "worst"),
    [("val_ema_loss", math.inf), ("val_top5_error_pct", 100.0), ("val_ece_pct", 100.0)],
)
def test_a_diverged_or_failed_trial_takes_the_worst_of_its_metric(name: str, worst: float) -> None:
    """The last row of a diverged trial has no loss and no calibration error."""
    rows, column = (
        ({"epoch": 1.0, name: 2.0}, {"epoch": 2.0, "diverged": 1.0}),
        columns_of("val")[name],
    )
    assert Outcome(Status.DIVERGED, rows).final(column) == worst
    assert Outcome(Status.DIVERGED, rows).best(column) == 2.0
    assert Outcome(Status.DIVERGED, rows[1:]).best(column) == worst
    assert Outcome(Status.FAILED).final(column) == Outcome(Status.FAILED).best(column) == worst


# ---- rows as one array

AS_DICTS: tuple[Row, ...] = (
    {"epoch": 1.0, "loss": 0.1, "error": 5e-324},
    {"loss": math.inf, "epoch": 2.0},  # as the last row of a diverged trial
    {"epoch": 3.0, "late": -0.0},
)


def test_an_array_has_the_rows_that_it_was_made_of() -> None:
    rows = Rows.pack(AS_DICTS)
    assert rows == AS_DICTS == tuple(rows) and len(rows) == 3
    assert AS_DICTS.__eq__(rows) is NotImplemented and operator.eq(AS_DICTS, rows)
    assert [str(row["late"]) for row in rows if "late" in row] == ["-0.0"]
    assert (rows[-1], rows[1:], rows[5:]) == (AS_DICTS[-1], AS_DICTS[1:], ())
    assert rows.index(AS_DICTS[1]) == 1 and Rows.pack(rows) is rows
    for place in (3, -4):
        with pytest.raises(IndexError):
            rows[place]
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert rows != AS_DICTS[:2] and rows != 3


def test_columns_of_an_array_are_those_of_its_rows() -> None:
    rows = Rows.pack(AS_DICTS)
    for name in ("epoch", "loss", "error", "late", "never"):
        assert rows.column(name) == [row[name] for row in AS_DICTS if name in row]
        assert rows.all_have(name) == all(name in row for row in AS_DICTS)
        for place, row in itertools.product(range(-3, 3), (rows, AS_DICTS)):
            if name in AS_DICTS[place]:
                assert repr(value_at(row, place, name)) == repr(AS_DICTS[place][name])
            else:
                with pytest.raises(KeyError):
                    value_at(row, place, name)


def test_no_rows_are_no_array() -> None:
    none = Rows.pack(())
    assert (len(none), bool(none), tuple(none), none.column("epoch")) == (0, False, (), [])
    assert none.all_have("epoch")
