"""Trainings by several processes, without Ray."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import SPAWNER
from support import team_worker
from support.tiny_study import without_times

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.train.loop import TIMING


def on_team(
    size: int,
    config: TrainConfig,
    folder: Path,
    epochs: int | None = None,
    told: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[list[Row]]:
    """The rows that each process of a gloo team yields.

    `told`: variables of team_worker.py. With an `environment`, the processes are new ones and have
    it.
    """
    folder.mkdir(exist_ok=True)
    meeting, rows = folder / f"meeting-{uuid.uuid4().hex}", folder / "rows"
    fields = json.dumps(config.non_default())
    arguments = [
        [str(x) for x in (rank, size, meeting, folder, fields, rows, *([epochs] if epochs else []))]
        for rank in range(size)
    ]
    if environment:
        command = [sys.executable, team_worker.__file__]
        everything = {**environment, **(told or {})}
        popens = [subprocess.Popen([*command, *a], env=everything) for a in arguments]
        assert [process.wait(180) for process in popens] == [0] * size
    else:
        members = [
            SPAWNER.Process(target=team_worker.main, args=a, kwargs=told or {}) for a in arguments
        ]
        for member in members:
            member.start()
        for member in members:
            member.join(180)
        assert [member.exitcode for member in members] == [0] * size
    return [json.loads(Path(f"{rows}-{rank}.json").read_text()) for rank in range(size)]


def timeless(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def assert_close(rows: list[Row], others: list[Row]) -> None:
    """Losses to fp32 tolerance; errors within one image of 400,
    which moves a calibration error by two at most.
    """
    assert len(rows) == len(others) > 0
    for row, other in zip(timeless(rows), timeless(others), strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            most = {"value": 0.26, "ece_pct": 0.51}
            tolerance: dict[str, Any] = next(
                ({"abs": most[end]} for end in most if name.endswith(end)), {"rel": 2e-4}
            )
            assert other[name] == pytest.approx(value, **tolerance), name


@functools.cache
def undisturbed(config: TrainConfig) -> list[dict[str, object]]:
    """Rows of a team of two."""
    with tempfile.TemporaryDirectory() as folder:
        return without_times(on_team(2, config, Path(folder))[0])
