"""Deterministic algorithms: what they change, and what becomes of an operation that has none."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NARROW
from support.refusals import refusing

from vitscale.launch.faults import not_deterministic, one_line, verdict
from vitscale.launch.resources import Resources
from vitscale.record.outcome import Row
from vitscale.train.deterministic import WORKSPACE, is_deterministic, set_deterministic
from vitscale.train.loop import TIMING, Trained, train

torch.set_num_threads(1)
CONV = NARROW.replace(
    batch_size=498,
    mixup_alpha=0.8,
    crop_padding=1,
)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(WORKSPACE, raising=False)
    yield
    set_deterministic(False)
    assert not is_deterministic() and not torch.backends.cudnn.deterministic


def ended(training: Generator[Row, None, Trained]) -> tuple[list[Row], Trained]:
    """The rows of a training without their times, and what it leaves beside them."""
    rows: list[Row] = []
    while True:
        try:
            row = next(training)
        except StopIteration as end:
            return rows, end.value
        rows.append({name: value for name, value in row.items() if name not in TIMING})


def test_a_cpu_gives_the_same_rows_and_says_how_they_were_computed(tmp_path: Path) -> None:
    rows, trained = ended(train(CONV, tmp_path / "any"))
    set_deterministic(True)
    assert is_deterministic()
    same, restricted = ended(train(CONV, tmp_path / "deterministic"))
    assert same == rows and restricted.wrong.keys() == trained.wrong.keys()
    assert restricted.deterministic and not trained.deterministic


def test_a_training_is_deterministic_if_all_its_parts_are(tmp_path: Path) -> None:
    """Not one that was begun without, nor one that only replays the rows of such a one."""
    begun: dict[str, Any] = {"device_name": "cpu", "checkpoint_every_s": 0.0}
    first = train(CONV.replace(epochs=3), tmp_path / "mixed", **begun)
    next(first), next(first)
    first.close()
    set_deterministic(True)
    for _ in range(2):
        rows, trained = ended(train(CONV.replace(epochs=3), tmp_path / "mixed"))
        assert len(rows) == 3 and not trained.deterministic


def test_cublas_must_have_a_fixed_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with refusing("=':0:0'", error=OSError):
        set_deterministic(True)
    assert not is_deterministic()
    monkeypatch.setenv(WORKSPACE, ":16:8")
    set_deterministic(True)


def test_an_operation_without_a_deterministic_algorithm_is_named_and_no_result() -> None:
    """The message is torch's own. Without the option, the same error is like any other."""
    set_deterministic(True)
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    line = one_line(caught.value)
    assert verdict(caught.value, line, line, Resources(deterministic=True)) == "refused"
    assert verdict(caught.value, line, line, Resources()) == "config"
    assert not_deterministic(CONV, line) == (
        "an operation must have a deterministic algorithm with --deterministic, but got "
        "(operation=put_, model='vit'); train all trials of the study without it"
    )
