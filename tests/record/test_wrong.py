"""Which images the final weights got wrong, and what is kept of a trial: against predictions of
their own, and against the rows.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.final_weights import TINY, final_state, predicted
from support.refusals import refusing
from support.teams import on_team

from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.record.misclassified import Misclassified, decode, encode
from vitscale.record.outcome import Outcome
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged, Workdir
from vitscale.train.loop import SMALL_BYTES, last_state, train

torch.set_num_threads(1)


def trained(config: TrainConfig, folder: Path, **given: object) -> tuple[Store, Outcome]:
    store = Store.open(folder)
    resources = Resources(**given)  # type: ignore[arg-type]
    list(train_trial(config.id, config.non_default(), store, "study-a", 1, resources))
    return store, store.read(config.id)


@pytest.mark.parametrize("micro_batch", [0, 48])
def test_bits_are_those_of_the_final_models_and_count_to_the_errors(
    micro_batch: int, tmp_path: Path
) -> None:
    """Micro-batches of 48 leave incomplete last batches of 400 and 200 images."""
    store, outcome = trained(TINY, tmp_path, micro_batch=micro_batch)
    wrong = store.misclassified(TINY.id, outcome)
    assert wrong is not None and set(wrong.images) == {"val", "test"}
    state = final_state(store.trial(TINY.id))
    for split in ("val", "test"):
        for weights, part in (("", "model"), ("ema_", "ema")):
            bits = wrong.bits_of(split, weights)
            assert bits is not None
            np.testing.assert_array_equal(bits, predicted(TINY, state[part], split))
            error = outcome.rows[-1][f"{split}_{weights}error_pct"]
            assert 100.0 * int(bits.sum()) / len(bits) == error and 0 < error < 100
    assert not np.array_equal(wrong.bits["val_wrong"], wrong.bits["val_ema_wrong"])


def test_without_an_average_bits_of_averaged_weights_are_those_of_the_raw_ones(
    tmp_path: Path,
) -> None:
    config = TINY.replace(ema_decay=0.0, epochs=1, warmup_epochs=0.0)
    store, outcome = trained(config, tmp_path)
    wrong = store.misclassified(config.id, outcome)
    assert wrong is not None and set(wrong.bits) == {"val_wrong", "test_wrong"}
    assert wrong.bits_of("val", "ema_") is wrong.bits_of("val", "") is not None
    assert wrong.bits_of("minival", "") is None


@pytest.mark.parametrize("size", [2, 3])
def test_a_team_has_the_bits_of_all_its_images_in_their_order(size: int, tmp_path: Path) -> None:
    """3 processes have 134, 133 and 133 of 400 images."""
    on_team(size, TINY, tmp_path)
    state = final_state(Workdir(tmp_path))
    for split in ("val", "test"):
        for name, part in ((f"{split}_wrong", "model"), (f"{split}_ema_wrong", "ema")):
            expected = predicted(TINY, state[part], split)
            np.testing.assert_array_equal(state["wrong"][name].numpy(), expected)


def test_a_restored_trial_has_its_bits_again(tmp_path: Path) -> None:
    """Its rows were damaged; its last checkpoint has no weights and both rows and bits."""
    store, outcome = trained(TINY, tmp_path, keep_weights=False)
    before = store.misclassified(TINY.id, outcome)
    assert set(final_state(store.trial(TINY.id))).isdisjoint({"model", "ema", "optimizer"})
    store.set_aside(TINY.id)
    store, outcome = trained(TINY, tmp_path, keep_weights=False)
    after = store.misclassified(TINY.id, outcome)
    assert before is not None and after is not None and after.images == before.images
    assert {n: b.tolist() for n, b in after.bits.items()} == {
        n: b.tolist() for n, b in before.bits.items()
    }


def test_a_diverged_trial_has_neither_bits_nor_weights(tmp_path: Path) -> None:
    config = TINY.replace(optimizer="sgd", lr=1e9, momentum=0.99)
    store, outcome = trained(config, tmp_path, keep_weights=True)
    assert outcome.rows[-1]["diverged"] and store.misclassified(config.id, outcome) is None
    assert "model" not in final_state(store.trial(config.id))


def test_weights_are_kept_if_small_or_on_request() -> None:
    def kept(how: str, num_bytes: int) -> bool:
        row = {"diverged": 0.0}
        state = dict.fromkeys(("trial", "step", "images", "deterministic", "spent_s", "wrong"), 0)
        weights = {"w": torch.empty(num_bytes // 2, dtype=torch.uint8)}
        whole = {**state, "rows": [row], "model": weights, "ema": weights, "optimizer": {}}
        last = last_state(whole, how)  # type: ignore[arg-type]
        assert ("optimizer" in last) == (how == "all")
        return "model" in last and "ema" in last

    assert kept("all", SMALL_BYTES + 2) and kept("weights", SMALL_BYTES + 2)
    assert not kept("small", SMALL_BYTES + 2) and kept("small", SMALL_BYTES)
    assert not kept("rows", 2)


def test_an_ended_training_needs_nothing_but_the_rows_of_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    rows = list(train(TINY, tmp_path, kept="rows"))
    assert [*train(TINY, tmp_path, kept="rows")] == rows


def test_trials_of_older_versions_have_no_bits_and_read_as_before(tmp_path: Path) -> None:
    store, outcome = trained(TINY.replace(epochs=1, warmup_epochs=0.0), tmp_path)
    old = Outcome(outcome.status, outcome.rows, {"commit": "0123456789ab"})
    assert store.finish(store.claim("t1", {}, "study-a", 1), old)
    assert store.read("t1") == old and store.misclassified("t1", old) is None


def test_changed_bits_are_not_believed(tmp_path: Path) -> None:
    """Every byte of the file, in turn; and a file of another's bits under this one's name."""
    store, outcome = trained(TINY.replace(epochs=1, warmup_epochs=0.0), tmp_path)
    (path,) = store.trial(TINY.replace(epochs=1, warmup_epochs=0.0).id).path.glob("wrong-*")
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        with refusing(f"name={path.name!r}"):
            decode(path.name, bytes(flipped))
    path.write_bytes(content[:-1])
    with refusing(path, error=Damaged):
        store.misclassified(path.parent.name, outcome)
    path.unlink()
    with pytest.raises(Damaged):
        store.misclassified(path.parent.name, outcome)


@pytest.mark.parametrize(("share", "most"), [(0.5, 7_000), (0.2, 5_600), (0.02, 2_300)])
def test_a_bit_is_a_bit(share: float, most: int) -> None:
    """Bytes of 50,000 images at an error; sets of other sizes beside them come back whole."""
    rng = np.random.default_rng(0)
    bits = {"val_wrong": rng.random(50_000) < share}
    assert len(encode(Misclassified(bits, {"val": "0" * 16}))[1]) < most
    bits |= {"v2_wrong": rng.random(9_999) < share, "real_wrong": np.ones(3, bool)}
    back = decode(*encode(Misclassified(bits, {"val": "a", "v2": "b", "real": "c"})))
    assert json.loads(json.dumps(dict(back.images))) == {"val": "a", "v2": "b", "real": "c"}
    for name, wrong in bits.items():
        np.testing.assert_array_equal(back.bits[name], wrong)


def test_no_warning_comes_with_an_ended_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(TINY.replace(epochs=1, warmup_epochs=0.0), tmp_path)
