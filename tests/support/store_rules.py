"""The protocol of trials and studies: tests of a folder and of a bucket, each with its `store`."""

from __future__ import annotations

import os

import pytest
from support.refusals import refusing

from vitscale.record.outcome import Outcome, Status
from vitscale.record.rows import encode
from vitscale.record.store import Store
from vitscale.record.trial_files import ClaimedByOther
from vitscale.record.workdir import Fenced, Workdir

ROWS = (
    {"epoch": 1.0, "step": 5.0, "loss": 0.25},
    {"epoch": 2.0, "step": 10.0, "diverged_step": 9.0},
)
DONE = Outcome(Status.FINISHED, ROWS, {"commit": "abc"})


def finished(store: Store, trial_id: str = "t1") -> Workdir:
    workdir = store.claim(trial_id, {"lr": 0.1}, "study-a", 1)
    assert store.finish(workdir, DONE)
    return workdir


def check_claim_left_over(store: Store) -> None:
    """By a worker that was killed right after its commit; the next start looks at the states."""
    for trial_id in ("t1", "t2"):
        workdir = store.claim(trial_id, {}, "s", 1)
        if trial_id == "t1":
            assert workdir.create("rows.parquet", encode(trial_id, DONE))
    assert [store.holder(i) for i in ("t1", "t2", "t3")] == ["s", "s", ""]
    assert store.states(["t1", "t2", "t3"]).keys() == {"t1"}
    assert [store.holder(i) for i in ("t1", "t2", "t3")] == ["", "s", ""]
    assert store.read("t1") == DONE


def test_a_stale_worker_may_commit_nothing(store: Store) -> None:
    stale = store.claim("t1", {}, "study-a", 1)
    stale.write("checkpoint-1", b"old")
    new = store.claim("t1", {}, "study-a", 2)
    for commit in (
        lambda: stale.write("checkpoint-2", b"stale"),
        lambda: stale.create("x", b"stale"),
        lambda: store.finish(stale, DONE),
    ):
        with pytest.raises(Fenced):
            commit()
    assert not store.is_done("t1")
    assert new.names("checkpoint") == ["checkpoint-1"]
    assert new.names(".") == []  # nor leave a temporary file
    assert store.finish(new, DONE)


def test_a_trial_claimed_by_a_running_study_is_not_claimed(store: Store) -> None:
    with store.drive("study-a"):
        store.claim("t1", {}, "study-a", 1)
        with pytest.raises(ClaimedByOther, match="study-a"):
            store.claim("t1", {}, "study-b", 1)
    store.claim("t1", {}, "study-b", 1)  # its driver is gone


def test_an_older_attempt_may_not_take_a_trial_back(store: Store) -> None:
    store.claim("t1", {}, "study-a", 2)
    with pytest.raises(Fenced, match="attempt 2 has claimed t1"):
        store.claim("t1", {}, "study-a", 1)


def test_a_done_trial_keeps_only_its_final_checkpoint(store: Store) -> None:
    workdir = store.claim("t1", {}, "study-a", 1)
    for step in (1, 2):
        workdir.write(f"checkpoint-{step}", b"")
    store.finish(workdir, DONE)
    assert workdir.names("checkpoint") == ["checkpoint-2"]


def test_a_study_has_one_driver_and_counts_its_starts(store: Store) -> None:
    with store.drive("s") as first:
        with refusing("study='s'", os.getpid()), store.drive("s"):
            pass
        assert store.driver_is_alive("s")
        assert not store.driver_is_alive("other")
    assert not store.driver_is_alive("s")
    with store.drive("s") as second:
        assert (first, second) == (1, 2)


def test_failure_is_recorded_and_forgotten_when_the_trial_succeeds(store: Store) -> None:
    workdir = store.claim("t1", {}, "s", 1)
    store.fail(workdir, "OSError: disk", "Traceback\n  line")
    assert store.failure("t1") == "OSError: disk"
    assert b"Traceback\n  line" in store.trial("t1").read("failure.log")
    finished(store)
    assert store.failure("t1") == ""
