"""Trainings that are interrupted and resumed, one after another
as by a reused worker: DATA_ROOT OUT.json NAME... [deterministic | captured]
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path

import configs
import torch
from device import Counts, counts

from vitscale.plan.config import TrainConfig
from vitscale.train import captured, loop
from vitscale.train.deterministic import set_deterministic

CUT = 6  # the step, from 0, before which a training is interrupted: in its second epoch


class Interrupted(Exception):
    """Away, in the middle of an epoch."""


def resumed(
    config: TrainConfig, data_root: Path, num_loader_workers: int, capture: bool
) -> dict[str, float]:
    """Rows of an interrupted and of the resumed training, the steps of the latter, the waits and
    graphs of its last one, the memory it leaves. A captured one is longer: a process captures only
    after some steps.
    """
    if capture:
        config = config.replace(epochs=2 * config.epochs)
    steps: list[int] = []
    before: list[Counts] = []

    def at_a_step(step: int, config: TrainConfig, lr_at=loop.lr_at) -> float:
        if step == CUT and cut:
            raise Interrupted
        steps.append(step)
        before.append(counts())
        return lr_at(step, config)

    first, true, loop.lr_at, cut = [], loop.lr_at, at_a_step, True
    try:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in loop.train(
                    config,
                    Path(folder),
                    "cuda",
                    data_root=data_root,
                    checkpoint_every_s=0.0,
                    capture=capture,
                ):
                    first.append(row)
            except Interrupted:
                cut = False
            steps.clear(), before.clear()
            rows = list(
                loop.train(
                    config,
                    Path(folder),
                    "cuda",
                    data_root=data_root,
                    checkpoint_every_s=1e9,
                    num_loader_workers=num_loader_workers,
                    capture=capture,
                )
            )
    finally:
        loop.lr_at = true
    del row
    gc.collect()
    last = before[-1].since(before[-2])
    return {
        "rows_before": len(first),
        "rows": len(rows),
        "same": rows[: len(first)] == first,
        "resumed_at": steps[0],
        "steps": len(steps),
        "waits": last.waits,
        "graphs": last.graphs,
        "refused": before[-1].refused,
        "left_bytes": torch.cuda.memory_allocated(),
    }


def main() -> None:
    data_root, out, *names = sys.argv[1:]
    how = names.pop() if names[-1] in ("deterministic", "captured") else ""
    set_deterministic(how == "deterministic")
    captured.CHECKS_INPUTS = True
    torch.set_num_threads(1)
    loop.CHECKPOINT_SHARE = float("inf")
    found = {}
    for place, name in enumerate(names):
        found[name] = resumed(
            configs.RESUMED[name], Path(data_root), 2 * (place == 0), how == "captured"
        )
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
