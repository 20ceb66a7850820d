"""The store: atomic, exclusive, fenced, and clear about what is damaged."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import small_disk
from support.refusals import refusing
from support.store_rules import (  # noqa: F401
    DONE,
    check_claim_left_over,
    finished,
    test_a_done_trial_keeps_only_its_final_checkpoint,
    test_a_stale_worker_may_commit_nothing,
    test_a_study_has_one_driver_and_counts_its_starts,
    test_a_trial_claimed_by_a_running_study_is_not_claimed,
    test_an_older_attempt_may_not_take_a_trial_back,
    test_failure_is_recorded_and_forgotten_when_the_trial_succeeds,
)
from support.users import as_user

from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged, Fenced, Workdir


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "runs")


def test_rows_and_facts_come_back_as_they_were(store: Store) -> None:
    finished(store)
    assert store.read("t1") == DONE
    # and any parquet reader sees them, absent values as nulls
    table = pq.read_table(store.root / "trials" / "t1" / "rows.parquet")
    assert table.column("diverged_step").to_pylist() == [None, 9.0]


def test_only_the_first_finish_counts(store: Store) -> None:
    unfenced = Workdir(finished(store).path)
    assert not store.finish(unfenced, Outcome(Status.DIVERGED, ({"epoch": 1.0, "step": 1.0},)))
    assert store.read("t1") == DONE


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ESTALE, "Stale file handle"), PermissionError(13, "denied"), MemoryError()],
    ids=["server of files", "permission", "memory"],
)
def test_what_cannot_be_read_now_is_not_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A start would set it aside, and train again what is there."""
    finished(store)

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("vitscale.record.workdir._open_regular", fail)
    with pytest.raises(type(error)) as raised:
        store.read("t1")
    assert raised.value is error


def test_what_is_left_of_a_claim_to_a_done_trial_is_removed(store: Store) -> None:
    check_claim_left_over(store)


def test_the_lock_of_a_killed_driver_is_released(store: Store) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with store.drive("s"):
            os.write(writer, b"locked")
            time.sleep(60)
        os._exit(1)
    assert os.read(reader, 6) == b"locked"
    assert store.driver_is_alive("s")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with store.drive("s") as attempt:
        assert attempt == 2


@pytest.mark.parametrize("damage", ["truncated", "empty", "no parquet", "no facts"])
def test_damaged_rows_are_named_and_moved_aside(store: Store, damage: str) -> None:
    finished(store)
    path = store.root / "trials" / "t1" / "rows.parquet"
    whole = path.read_bytes()
    if damage == "no facts":
        pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    else:
        path.write_bytes(
            {"truncated": whole[: len(whole) // 2], "empty": b"", "no parquet": b"rows" * 99}[
                damage
            ]
        )
    kept = path.read_bytes()
    with refusing(path, error=Damaged) as caught:
        store.read("t1")
    assert len(str(caught.value).splitlines()) == 1
    aside = store.set_aside("t1")
    assert store.trial("t1").read(aside) == kept
    assert not store.is_done("t1")


def test_links_to_nothing_or_to_themselves_hide_no_other_file(tmp_path: Path) -> None:
    folder = Workdir(tmp_path)
    folder.within("inner").write("kept", b"four")
    (tmp_path / "nothing").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "inner" / "kept")
    sizes = {name: state.num_bytes for name, state in folder.files().items()}
    assert sizes == {"inner/kept": 4, "linked": 4}


def test_a_store_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusing("store=", "file/runs"):
        Store.open(tmp_path / "file" / "runs")


def die_at(operation: int) -> None:
    """Kills this process at the operation-th system call that changes a directory or syncs."""
    count = 0

    def deadly(call):
        def wrapped(*arguments, **keywords):
            nonlocal count
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return wrapped

    for name in ("replace", "link", "fsync", "unlink", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))


def test_a_kill_between_any_two_file_operations_of_the_table_loses_nothing(tmp_path: Path) -> None:
    """A trial is claimed, written, finished; killed at any operation, a retry commits once."""
    operation = 0
    while True:
        operation += 1
        store = Store.open(tmp_path / f"runs{operation}")
        child = os.fork()
        if child == 0:
            die_at(operation)
            finished(store)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if store.is_done("t1"):  # done is done, and whole, even if the kill came after
            assert store.read("t1") == DONE
        else:
            finished(store)
            assert store.read("t1") == DONE
        assert sorted(p.name for p in store.trial("t1").path.glob("rows*")) == ["rows.parquet"]
        if not os.WIFSIGNALED(status):
            break
    assert operation > 8  # it did die at every earlier one


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """On a real disk of 256 kB: the write fails, old files survive, and freed space helps."""
    with small_disk(tmp_path / "small", "256k") as folder:
        workdir = Workdir(folder)
        workdir.write("kept", b"k" * 1000)
        workdir.write("ballast", b"b" * 150_000)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            workdir.write("kept", b"x" * 150_000)
        assert workdir.read("kept") == b"k" * 1000
        assert workdir.names() == ["ballast", "kept"]
        workdir.remove("ballast")
        workdir.write("kept", b"x" * 150_000)
        assert workdir.read("kept") == b"x" * 150_000


GARBAGE = [
    b"",
    b"garbage",
    b"[]",
    b"7",
    b"{}",
    b'{"study": "s"}',
    b'{"study": 3, "attempt": 1}',
    b"\xff\xfe",
    b'{"study": "../../x", "attempt": 9}',
    b'{"study": "s", "attempt": "9"}',
    b"[" * 10**5,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:30]))
def test_a_malformed_claim_has_no_effect(store: Store, garbage: bytes) -> None:
    stale = store.claim("t1", {}, "s", 1)
    (stale.path / "claim.json").write_bytes(garbage)
    assert store.holder("t1") == ""
    with pytest.raises(Fenced):  # who lost his claim may not write
        stale.write("checkpoint-1", b"")
    assert store.finish(store.claim("t1", {}, "s", 1), DONE)


@pytest.mark.parametrize("counter", [None, b"", b"1", b"garbage", b"-5", b"9" * 5000])
def test_an_attempt_is_later_than_every_claim_of_its_study(
    store: Store, counter: bytes | None
) -> None:
    """The counter may be lost, restored from an old copy, or damaged, while claims remain."""
    for trial_id, slug, attempt in (("t1", "s", 3), ("t2", "s", 2), ("t3", "other", 9)):
        store.claim(trial_id, {}, slug, attempt)
    (store.trial("t2").path / "claim.json").write_text("garbage")
    if counter is not None:
        store.study("s").write("attempt", counter)
    with store.drive("s") as attempt:
        assert attempt == 4
        assert store.finish(store.claim("t1", {}, "s", attempt), DONE)


def test_a_folder_of_another_machine_is_not_taken_for_the_store(
    store: Store, tmp_path: Path
) -> None:
    """Neither an empty folder, nor one with an older start of the same study."""
    with store.drive("s"):
        nonce = store.nonce("s")
        store.check_shared("s", nonce)
        for other in (Store(tmp_path / "nothing"), Store.open(tmp_path / "other")):
            with refusing(f"store={str(other.root)!r}", error=OSError):
                other.check_shared("s", nonce, patience_s=30)
        with other.drive("s"), refusing(f"store={str(other.root)!r}", error=OSError):
            other.check_shared("s", nonce)
    with store.drive("s"), refusing(f"store={str(store.root)!r}", error=OSError):
        store.check_shared("s", nonce)  # of an earlier start


def test_a_fault_of_a_machine_is_recorded_without_an_outcome(store: Store) -> None:
    store.lose(store.claim("t1", {}, "s", 1), "OSError: disk", "Traceback\n  line")
    assert (store.fault("t1"), store.failure("t1"), store.holder("t1")) == ("OSError: disk", "", "")
    assert b"Traceback\n  line" in store.trial("t1").read("fault.log")
    store.claim("t1", {}, "s", 1)
    assert store.fault("t1") == ""


PERMITTED = """
from vitscale.record.store import Store
store, trial_ids = Store(arguments[0]), arguments[1:]
store.check_permitted("a-demo")
store.check_trials_permitted(trial_ids)
with store.drive("a-demo") as attempt, store.planning():
    store.claim(trial_ids[0], {}, "a-demo", attempt)
    say("claimed")
"""


def test_what_another_user_made_is_refused_at_the_start(another_user: int) -> None:
    """One line names it, before a trial fails of it; members of a group may share a store."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are root's alone
        Path(folder).chmod(0o755)
        check_users_of_one_store(Path(folder) / "runs", another_user)


def check_users_of_one_store(root: Path, another_user: int) -> None:
    root.mkdir()
    group = 54_300
    os.chown(root, another_user, group)
    root.chmod(0o2775)
    make = "from vitscale.record.store import Store; Store.open(arguments[0])\n"
    assert as_user(another_user, group, make + PERMITTED, root, "0123456789ab") == "claimed"
    assert as_user(another_user + 1, group, PERMITTED, root, "0123456789ab") == "claimed"

    said = as_user(another_user + 2, group + 1, PERMITTED, root, "0123456789ab")
    assert said.startswith(
        f"ValueError: what a start writes must be writable by this user, but got ({str(root)!r}, "
        f"of user {another_user}, and "
    )
    of_trial = as_user(another_user + 2, group, PERMITTED, root, "ab" * 6)
    assert of_trial == "claimed"
    (root / "trials" / ("ab" * 6)).chmod(0o755)
    said = as_user(another_user, group, PERMITTED, root, "ab" * 6)
    assert f"{'ab' * 6}', of user {another_user + 2})" in said


def test_a_new_mlflow_database_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    from vitscale.record.mlflow.place import create_database

    before = os.umask(0o002)
    try:
        create_database(f"sqlite:///{tmp_path}/mlflow.db")
    finally:
        os.umask(before)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o664
