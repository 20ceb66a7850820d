"""The study of studies/tiny.py: its plan, and the rows of trainings that nothing disturbs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from conftest import TINY, load_script

from vitscale.plan.study import Study, to_json
from vitscale.record.outcome import Row
from vitscale.record.store import Store


def study(**options: int | str) -> Study:
    return load_script(TINY).study(**options)


def without_times(rows: Iterable[Row]) -> list[Row]:
    from vitscale.train.loop import TIMING

    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def reference_rows(plan: Study, folder: Path) -> dict[str, list[Row]]:
    """Trial id -> the rows of the trainer without Ray, uninterrupted, in this process.

    `folder` is made, with a folder for each trial.
    """
    import torch

    from vitscale.train.loop import train

    torch.set_num_threads(1)
    for trial in plan.trials:
        (folder / trial.config.id).mkdir(parents=True)
    return {
        t.config.id: without_times(list(train(t.config, folder / t.config.id))) for t in plan.trials
    }


def assert_uninterrupted(store: Store, plan: Study, folder: Path) -> None:
    """The rows of a plan in a store are those of uninterrupted trainings in a new folder."""
    expected = reference_rows(plan, folder)
    assert {i: without_times(store.read(i).rows) for i in expected} == expected


def put(store: Store, plan: Study, **more: object) -> None:
    """What the start of a study writes first."""
    text = json.dumps({"command": "by hand", **to_json(plan), **more})
    store.study(plan.slug).write("plan.json", text.encode())


def steps_saved(folder: Path) -> int:
    """The step of the newest checkpoint of any trial in a folder; 0 without one."""
    found = folder.glob("runs/trials/*/checkpoint-*")
    return max((int(path.name.split("-")[1]) for path in found), default=0)
