"""What a shared trunk saves, and how its errors differ from those of separate cosine trainings.

Trains a small ViT on digits for lengths 1, 2, 4 and 8: by a cosine decay, each from its initial
weights, and at a constant lr with cooldowns, each from the trunk of the longest. For each length
and schedule, the lr is chosen on minival by the mean over seeds; errors are those of val. Steps are
counted, CPU time is that of this process.

    python benchmarks/trunk.py train --seeds 0 1 --out rows.jsonl  # what is not in the file
    python benchmarks/trunk.py show --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import branch_steps, next_wave, on_trunks
from vitscale.plan.trial import Trial

SCHEDULES = ("cosine", "cooldown")
LENGTHS = (1, 2, 4, 8)
UNIT = 5  # epochs of length 1
LRS = (2e-3, 6e-3, 1.8e-2)
BASE = TrainConfig(
    width=32, depth=3, heads=4, mlp_ratio=3.0, wd=0.1, batch_size=64, warmup_epochs=1.0,
    more_evals="minival",
)  # fmt: skip
COOLDOWN: dict[str, Any] = {
    "decay": "cooldown", "cooldown_share": 0.1, "cooldown_shape": "1-sqrt"
}  # fmt: skip


def plan(schedule: str, seed: int, lr: float) -> tuple[Trial, ...]:
    """The lengths of one schedule, seed and lr, the longest first."""
    fields = COOLDOWN if schedule == "cooldown" else {}
    base = BASE.replace(seed=seed, lr=lr, **fields)
    lengths = [base.replace(epochs=UNIT * length) for length in LENGTHS[::-1]]
    return on_trunks(Trial(schedule, config) for config in lengths)


def trained(trials: tuple[Trial, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """A record of each trial; trunks come before what starts from them."""
    from vitscale.train.loop import train

    entries = [{"config": trial.config.non_default()} for trial in trials]
    todo = [trial.config for trial in trials]
    pins = branch_steps(entries, {config.id for config in todo})
    while todo:
        wave = next_wave(todo)
        for config in wave:
            began = time.process_time()
            trunk = folder / config.trunk if config.trunk else None
            *_, row = train(
                config, folder / config.id, trunk=trunk, pins=pins.get(config.id, ()), kept="rows"
            )
            yield {
                "schedule": trials[0].arm.name,
                "length": config.epochs // UNIT,
                "lr": config.lr,
                "seed": config.seed,
                "steps": config.num_own_steps,
                "cpu_s": time.process_time() - began,
                **{name: row.get(name) for name in ("diverged", "val_error_pct", "val_loss")},
                **{name: row.get(name) for name in ("minival_error_pct", "minival_loss")},
            }
        todo = [config for config in todo if config not in wave]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def train_all(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    done = {(row["schedule"], row["seed"], row["lr"]) for row in records(options.out)}
    for seed, lr, schedule in product(options.seeds, LRS, SCHEDULES):
        if (schedule, seed, lr) not in done:
            with tempfile.TemporaryDirectory() as folder:
                lines = [json.dumps(row) for row in trained(plan(schedule, seed, lr), Path(folder))]
            with open(options.out, "a") as out:
                out.write("\n".join([*lines, ""]))


def show(options: argparse.Namespace) -> None:
    """Prints cost, and errors at the lr that minival chose, with paired differences over seeds."""
    frame = pd.DataFrame(records(options.out))
    frame.loc[frame["diverged"] == 1, ["val_error_pct", "minival_error_pct"]] = 100.0
    cost = frame.groupby("schedule")[["steps", "cpu_s"]].sum()
    print(cost, cost.loc["cooldown"] / cost.loc["cosine"], sep="\n")
    means = frame.groupby(["schedule", "length", "lr"])["minival_error_pct"].mean()
    chosen = means.groupby(["schedule", "length"]).idxmin()
    for length in LENGTHS:
        errors = {}
        for schedule in SCHEDULES:
            at = frame.set_index(["schedule", "length", "lr"]).loc[[chosen[schedule, length]]]
            errors[schedule] = at.set_index("seed")["val_error_pct"].sort_index()
            print(
                f"length {length} {schedule:8} lr {chosen[schedule, length][2]:g}: "
                f"{errors[schedule].mean():.2f}%, sd over seeds {errors[schedule].std():.2f}, "
                f"n={len(errors[schedule])}"
            )
        gap = (errors["cooldown"] - errors["cosine"]).dropna()
        half = student.ppf(0.975, len(gap) - 1) * gap.std() / np.sqrt(len(gap))
        print(f"    cooldown - cosine: {gap.mean():+.2f} points ± {half:.2f} (95%, n={len(gap)})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "show"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    chosen_options = parser.parse_args()
    (train_all if chosen_options.what == "train" else show)(chosen_options)
