"""How often a training writes checkpoints: what they may cost of its time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import QUICK

from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.workdir import Workdir
from vitscale.train import loop
from vitscale.train.saver import Saver

COST_S = 0.05


def write_slowly(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
    time.sleep(COST_S)


def test_the_next_checkpoint_waits_until_the_last_one_was_its_share(tmp_path: Path) -> None:
    """Of a tenth: nine times as long as it took, at least."""
    with Saver(Workdir(tmp_path), torch.device("cpu"), 0.0, 0.1) as saver:
        for step in range(3):
            began = time.perf_counter()
            saver.save(write_slowly, step, lambda: {})
            ended = time.perf_counter()
            while not saver.is_due:
                time.sleep(0.001)
            cost_s, all_s = ended - began, time.perf_counter() - began
            assert cost_s >= COST_S and cost_s / all_s < 0.1
            assert all_s > 10 * COST_S


def test_checkpoints_take_a_hundredth_of_the_time_unless_more_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []

    class Recorded(Saver):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            shares.append(self.share)

    monkeypatch.setattr(loop, "Saver", Recorded)
    config = TrainConfig(**QUICK)
    for number, every_s in enumerate((Resources().checkpoint_every_s, 60.0, 4.9, 0.0)):
        (path := tmp_path / str(number)).mkdir()
        list(loop.train(config, path, checkpoint_every_s=every_s))
    (path := tmp_path / "default").mkdir()
    list(loop.train(config, path))
    assert shares == [0.01, 0.01, 0.05, 0.05, 0.01]
