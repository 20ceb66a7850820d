"""The copy of all outcomes of a study: equal by the bit, and never believed against the store."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vitscale.record import index as module
from vitscale.record.index import INDEX, Index
from vitscale.record.outcome import Outcome, Rows, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged

IDS = [f"{n:012x}" for n in range(60)]
SLUG = "s-demo"


@pytest.fixture
def store(store_in_bucket: Store) -> Store:
    return store_in_bucket


def outcome(number: int) -> Outcome:
    status = Status.DIVERGED if number % 7 == 0 else Status.FINISHED
    rows = (
        {"epoch": 1.0, "step": 3.0, "loss": 0.1 + number / 3},
        {"epoch": 2.0, "loss": math.inf if number % 7 == 0 else 1e-310, "other": -0.0},
    )
    return Outcome(status, rows, {"commit": "ü", "number": str(number)})


def fill(store: Store) -> Store:
    for number, trial_id in enumerate(IDS):
        assert store.finish(store.claim(trial_id, {}, SLUG, 1), outcome(number))
    return store


def read_all(store: Store) -> tuple[list[Outcome], int, Index]:
    """Outcomes of all trials, and how many came from the copy."""
    index = Index(store, SLUG, IDS)
    num_known = len(index.entries)
    read = [index.read(trial_id) for trial_id in IDS if trial_id in index.done]
    index.save()
    return read, num_known, index


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return fill(Store.open(tmp_path / "runs"))


def check_copy(filled: Store) -> None:
    once, before, _ = read_all(filled)
    again, known, index = read_all(filled)
    assert (before, known) == (0, len(IDS))
    assert repr(again) == repr(once) == repr([outcome(n) for n in range(len(IDS))])
    assert [index.peek(i) for i in IDS] == [Outcome(one.status) for one in once]
    states = Index(filled, SLUG, IDS, with_rows=False)
    assert set(states.entries) == set(IDS)
    assert [states.peek(i) for i in IDS] == [Outcome(one.status) for one in once]


def test_outcomes_come_back_by_the_bit(local: Store) -> None:
    check_copy(local)


def test_so_they_do_from_a_bucket(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_copy(fill(store))
    monkeypatch.setattr("vitscale.record.bucket.FEW", 10)  # by a listing
    assert read_all(store)[1] == len(IDS)


def test_a_copy_is_not_believed_against_the_store(local: Store) -> None:
    read_all(local)
    rows = local.root / "trials" / IDS[5] / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:-1])
    local.set_aside(IDS[6])
    (local.root / "trials" / IDS[7] / "rows.parquet").unlink()
    index = Index(local, SLUG, IDS)
    assert index.done == {*IDS} - {IDS[6], IDS[7]} and IDS[5] not in index.entries
    with pytest.raises(Damaged):
        index.read(IDS[5])
    os.utime(local.root / "trials" / IDS[8] / "rows.parquet")
    assert IDS[8] not in Index(local, SLUG, IDS).entries


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def test_no_flipped_bit_changes_an_outcome(local: Store) -> None:
    read_all(local)
    folder, expected = local.study(SLUG), [outcome(n) for n in range(len(IDS))]
    content, numbers = folder.read(INDEX), []
    for place in range(0, len(content), len(content) // 50):
        folder.write(INDEX, content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        index = Index(local, SLUG, IDS)
        numbers.append(len(index.entries))
        read = [index.read(trial_id) for trial_id in IDS] if index.entries else expected
        assert repr(read) == repr(expected), place
    assert 0 in numbers


@pytest.mark.parametrize("damage", [cut, lambda content: b"", lambda content: b"PAR1" * 9])
def test_a_damaged_copy_is_no_copy(local: Store, damage: Callable[[bytes], bytes]) -> None:
    read_all(local)
    folder = local.study(SLUG)
    folder.write(INDEX, damage(folder.read(INDEX)))
    read, known, _ = read_all(local)
    assert known == 0 and repr(read) == repr([outcome(n) for n in range(len(IDS))])
    assert read_all(local)[1] == len(IDS)  # written again


def test_a_store_that_cannot_be_written_is_read(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr("vitscale.record.workdir.Workdir.write", refuse)
    assert len(read_all(local)[0]) == len(IDS)


def test_what_is_not_asked_for_stays_in_the_copy(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a start reads only the trials that were not done at its beginning."""
    monkeypatch.setattr(module, "FEWEST", 1)
    for part in (IDS[:40], IDS[40:]):
        index = Index(local, SLUG, part)
        assert not index.entries
        for trial_id in part:
            index.read(trial_id)
        index.save()
    assert set(Index(local, SLUG, IDS).entries) == set(IDS)


def test_few_new_outcomes_are_read_one_by_one(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST", len(IDS) + 1)
    read_all(local)
    assert not local.study(SLUG).exists(INDEX)


def test_rows_of_the_copy_are_in_memory_once(local: Store) -> None:
    """Each trial's are a view of the copy, which may be gone by then."""
    read_all(local)
    read, known, index = read_all(local)
    views = [one.rows.values for one in read if isinstance(one.rows, Rows)]
    assert len(views) == known == len(IDS)
    assert all(isinstance(view, memoryview) for view in views)
    assert len({id(view.obj) for view in views if isinstance(view, memoryview)}) == 1
    del index
    gc.collect()
    assert repr(read) == repr([outcome(n) for n in range(len(IDS))])


def test_what_the_copy_lacks_is_read_in_parts_and_added_to_it(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another order than it was found, with a damaged trial in the middle of a part."""
    monkeypatch.setattr(module, "AHEAD", 6)
    rows = local.root / "trials" / IDS[10] / "rows.parquet"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-1])
    index = Index(local, SLUG, IDS)
    for number in (20, 3, 59, *range(60)):
        if number == 10:
            with pytest.raises(Damaged):
                index.read(IDS[number])
        else:
            read = index.read(IDS[number])
            assert repr(read) == repr(outcome(number))
            assert isinstance(read.rows, Rows) and isinstance(read.rows.values, memoryview)
    index.save()
    rows.write_bytes(whole)
    os.utime(local.root / "trials" / IDS[8] / "rows.parquet")  # as if it were trained again
    monkeypatch.setattr(module, "FEWEST", 1)
    for num_known in (len(IDS) - 2, len(IDS)):
        again, known, index = read_all(local)
        assert known == num_known and len(Index(local, SLUG, IDS).values) == len(IDS)
        assert repr(again) == repr([outcome(n) for n in range(len(IDS))])
