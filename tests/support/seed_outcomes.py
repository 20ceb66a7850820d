"""A study of one arm over seeds, with made-up outcomes and rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.catalog.datasets import DATASETS
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

EPOCHS = 12
SEEDS = {
    "figures": ("seed_histogram", "seed_sets", "seed_curves", "seed_intermediate", "agreement"),
    "tables": (
        "seed_statistics",
        "seed_normality",
        "seed_noise",
        "seed_spread",
        "agreement",
        "seed_correlation",
        "seed_power",
        "seed_epochs",
        "published_seed_statistics",
    ),
}


def make_study(num: int = 30, more: str = "test", **fields: object) -> Study:
    """One arm: seeds 1 to `num` are draws, seed 0 is the reference run."""
    base = TrainConfig(epochs=EPOCHS, more_evals=more)
    trials = tuple(Trial("a", base.replace(seed=i), i - 1 if i else None) for i in range(num + 1))
    settings: dict = {
        "kind": "repeats",
        "name": "made",
        "scale": "demo",
        "question": "Which?",
        "source": "Nobody 2022",
        **SEEDS,
    }
    return Study(**{**settings, "trials": trials, **fields})


def make_tables(
    study: Study, status: dict | None = None, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Outcomes and rows: errors on each set walk to a final one
    that is a whole number of images; `status` by seed.
    """
    rng = np.random.default_rng(seed)
    done, rows = [], []
    for trial in study.trials:
        state = (status or {}).get(trial.config.seed, "finished")
        labels = {
            "arm": trial.arm.name,
            "point": trial.point,
            "trial_id": trial.config.id,
            "status": state,
            "commit": "abc",
        }
        images = {name: DATASETS["digits"].evals[name] for name in trial.config.evals}
        curves = {
            f"{name}_ema_error_pct": 100
            * np.round(num * (0.05 + 0.5 / np.arange(1, EPOCHS + 1) + rng.normal(0, 0.01, EPOCHS)))
            / num
            for name, num in images.items()
        }
        if state == "missing":
            done.append({**labels, "value": np.nan, **trial.config.asdict()})
            continue
        last = {name: 100.0 if state == "diverged" else curve[-1] for name, curve in curves.items()}
        done.append({**labels, "value": last[study.metric], **trial.config.asdict(), **last})
        rows += [
            {
                **labels,
                "epoch": i + 1.0,
                "diverged": 0.0,
                **{name: curve[i] for name, curve in curves.items()},
            }
            for i in range(EPOCHS)
        ]
    columns = ["arm", "point", "trial_id", "status", "epoch"]
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    return pd.DataFrame(done).astype({"point": "Int64"}), frame.astype({"point": "Int64"})
