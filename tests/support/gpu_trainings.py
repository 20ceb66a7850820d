"""Trainings on a real GPU, each whole, again, interrupted and resumed, captured, and on the CPU:
DATA_ROOT OUT.json deterministic|free NAME...
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from nullcuda import configs

from vitscale.doctor import training
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.train import loop
from vitscale.train.deterministic import set_deterministic

CUT = 6  # the step, from 0, before which a training is interrupted: in its second epoch of four
WATCHED = range(5, 7)  # steps during which nothing may make the host wait


class Interrupted(Exception):
    """Away, in the middle of an epoch."""


class Steps:
    """What is called at each step: interrupts a training, or counts what makes the host wait."""

    def __init__(self, cut: int | None) -> None:
        self.cut, self.true = cut, loop.lr_at

    def __enter__(self) -> Steps:
        loop.lr_at = self  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        loop.lr_at = self.true
        torch.cuda.set_sync_debug_mode("default")

    def __call__(self, step: int, config: TrainConfig) -> float:
        if step == self.cut:
            raise Interrupted
        torch.cuda.set_sync_debug_mode("warn" if step in WATCHED else "default")
        return self.true(step, config)


def train(
    config: TrainConfig,
    root: Path,
    device: str,
    folder: Path,
    cut: int | None = None,
    capture: bool = False,
) -> tuple[list[Row], int]:
    """The rows, without times, and how often the host waited within steps of a GPU.

    Raises RuntimeError if something of a training is not captured that should be.
    """
    rows: list[Row] = []
    options: dict[str, Any] = {"data_root": root, "capture": capture}
    options["checkpoint_every_s"] = 1e9 if cut is None else 0.0
    with Steps(cut), warnings.catch_warnings(record=True) as said, suppress(Interrupted):
        warnings.simplefilter("always")
        rows.extend(training.complete(loop.train(config, folder, device, **options)))
    waits = [str(one.message) for one in said if "synchronizing" in str(one.message)]
    return [{k: v for k, v in row.items() if k not in loop.TIMING} for row in rows], len(waits)


def gap(expected: list[Row], others: list[Row]) -> float:
    """The largest relative difference of a loss; infinite with NaN."""
    of_expected, of_others = ([row["train_loss"] for row in rows] for rows in (expected, others))
    return training.gap(of_expected, of_others)


def tried(config: TrainConfig, root: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("whole", "again", "cut", "captured", "captured cut", "cpu"):
            (folder / part).mkdir()
        whole, waits = train(config, root, "cuda", folder / "whole")
        again, _ = train(config, root, "cuda", folder / "again")
        train(config, root, "cuda", folder / "cut", CUT)
        resumed, _ = train(config, root, "cuda", folder / "cut")
        captured, waits_captured = train(config, root, "cuda", folder / "captured", capture=True)
        train(config, root, "cuda", folder / "captured cut", CUT, capture=True)
        captured_cut, _ = train(config, root, "cuda", folder / "captured cut", capture=True)
        gc.collect()
        left = torch.cuda.memory_allocated()
        on_cpu, _ = train(config, root, "cpu", folder / "cpu")
    return {
        "loss": whole[-1]["train_loss"],
        "repeats": again == whole,
        "resumes": resumed == whole,
        "gap_again": gap(whole, again),
        "gap_resumed": gap(whole, resumed),
        "gap_cpu": gap(on_cpu, whole),
        "waits": waits + waits_captured,
        "captures": captured == whole,
        "captured_resumes": captured_cut == whole,
        "gap_captured": gap(whole, captured),
        "left_bytes": left,
    }


def main() -> None:
    data_root, out, how, *names = sys.argv[1:]
    set_deterministic(how == "deterministic")
    torch.set_num_threads(1)
    loop.CHECKPOINT_SHARE = float("inf")
    found = {name: tried(configs.RESUMED[name], Path(data_root)) for name in names}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
