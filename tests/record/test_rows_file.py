"""The file of a done trial: no bit of a row or a fact changes
unseen, and no other trial's file is believed.
"""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.refusals import refusing

from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged
from vitscale.train import checkpoint
from vitscale.train.data import fingerprint
from vitscale.train.sources import load_split

FACTS = {"attempt": "1", "device": "cpu", "commit": "0123456789ab", "data_digest": "fedcba98"}


def some_rows(num: int = 10) -> list[Row]:
    rng = np.random.default_rng(0)
    names = (
        "lr_now",
        "train_loss",
        "val_loss",
        "val_error_pct",
        "val_ema_error_pct",
        "train_s",
        "unix_s",
    )
    return [
        {
            "epoch": float(i),
            "diverged": 0.0,
            **dict(zip(names, rng.random(7).tolist(), strict=True)),
        }
        for i in range(1, num + 1)
    ]


DONE = Outcome(Status.FINISHED, tuple(some_rows()), FACTS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "runs")
    store.finish(store.claim("t1", {}, "study-a", 1), DONE)
    return store


def read_after(store: Store, content: bytes) -> Outcome | None:
    """What the file says with this content; None if it is refused."""
    (store.trial("t1").path / "rows.parquet").write_bytes(content)
    try:
        return store.read("t1")
    except Damaged:
        return None


def test_no_flipped_bit_changes_a_row_or_a_fact_unseen(store: Store) -> None:
    """600 at random, and those before the metadata, whose length may shrink."""
    whole = store.trial("t1").read("rows.parquet")
    pairs_at = whole.index(b"vitscale.")
    bits = [
        *np.random.default_rng(1).choice(8 * len(whole), 600, replace=False),
        *range(8 * (pairs_at - 8), 8 * (pairs_at + 8)),
    ]
    found = Counter()
    for bit in map(int, bits):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        read = read_after(store, bytes(flipped))
        found["caught" if read is None else "same" if read == DONE else "other"] += 1
    assert found["other"] == 0
    # a statistic of a column, say, is nothing that we read
    assert found["caught"] > 200 and found["same"] > 50


def test_reading_leaves_no_garbage(store: Store) -> None:
    """Else a file that was read would stay in memory until Python looks for garbage."""
    store.read("t1")  # imports
    store.peek("t1")
    gc.collect()
    gc.disable()
    try:
        store.read("t1")
        store.peek("t1")
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_rows_of_another_trial_are_refused(store: Store) -> None:
    shutil.copytree(store.trial("t1").path, store.trial("t2").path)
    for read in (store.read, store.peek):
        with refusing("t2/rows.parquet", "trial='t1'", error=Damaged):
            read("t2")


def unsealed(store: Store, facts: dict[str, str]) -> None:
    """Writes t1's file without a seal."""
    table = pq.read_table(store.trial("t1").path / "rows.parquet")
    metadata = {f"vitscale.{key}": value for key, value in facts.items()}
    pq.write_table(table.replace_schema_metadata(metadata), store.trial("t1").path / "rows.parquet")


def test_a_file_without_a_seal_is_refused(store: Store) -> None:
    unsealed(store, {"status": "finished", **FACTS})
    for read in (store.read, store.peek):
        with refusing("t1/rows.parquet", "trial=None", error=Damaged):
            read("t1")


@pytest.mark.parametrize("status", ["", "stopped", "finishe\u00e4"])
def test_an_unknown_status_is_named_with_its_file(store: Store, status: str) -> None:
    unsealed(store, {**FACTS, "status": status})
    for read in (store.read, store.peek):
        with refusing("t1/rows.parquet", f"status={status!r}", error=Damaged):
            read("t1")


def test_columns_of_text_are_refused(store: Store) -> None:
    path = store.trial("t1").path / "rows.parquet"
    table = pa.table({"epoch": [1.0], "val_error_pct": ["x"]})
    pq.write_table(table.replace_schema_metadata({"vitscale.status": "finished"}), path)
    with refusing("val_error_pct", error=Damaged):
        store.read("t1")


def test_a_training_notes_which_images_it_saw(tmp_path: Path) -> None:
    """The fingerprint that its checkpoint has, be it trained
    in one go or found whole by the next attempt.
    """
    store = Store.open(tmp_path)
    config = TrainConfig(
        width=8, depth=1, heads=2, patch_size=4, batch_size=498, epochs=1, warmup_epochs=0.0
    )
    *_, event = train_trial(config.id, config.non_default(), store, "study-a", 1, Resources())
    state = checkpoint.load(store.trial(config.id), torch.device("cpu"))
    assert state is not None
    noted = store.read(config.id).facts["data_digest"]
    assert (
        noted
        == event.facts["data_digest"]
        == state["images"]["train"]
        == fingerprint(load_split(config, "train", None))
    )
    store.set_aside(config.id)
    list(train_trial(config.id, config.non_default(), store, "study-a", 2, Resources()))
    assert store.read(config.id).facts["data_digest"] == noted
