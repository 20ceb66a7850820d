"""Studies of arms that share points, with made-up outcomes and rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from optuna.distributions import FloatDistribution

from vitscale.plan.config import TrainConfig
from vitscale.plan.design import sample, sobol
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

SPACE = {
    "lr": FloatDistribution(1e-4, 1e-2, log=True),
    "wd": FloatDistribution(0.01, 1.0, log=True),
}


def make_study(
    num: int = 16,
    arms: tuple[str, ...] = ("a", "b"),
    num_scrambles: int = 0,
    num_references: int = 1,
    own_seeds: bool = False,
    **fields: object,
) -> Study:
    """Arms that share `num` points and have reference runs."""
    points = (
        sobol(SPACE, num=num, num_scrambles=num_scrambles)
        if num_scrambles
        else sample(SPACE, num=num)
    )
    trials = []
    for index, arm in enumerate(arms):
        base = TrainConfig(depth=2 + index, epochs=6)
        trials += [Trial(arm, base.replace(seed=seed)) for seed in range(num_references)]
        trials += [
            Trial(arm, base.replace(**point, seed=i * own_seeds), i)
            for i, point in enumerate(points)
        ]
    settings: dict = {
        "kind": "distribution",
        "name": "made",
        "scale": "demo",
        "question": "Is a < b & c?",
        "source": "Nobody 2021",
    }
    return Study(trials=tuple(trials), num_scrambles=num_scrambles, **{**settings, **fields})


def make_outcomes(
    study: Study, errors: dict[str, object], status: dict | None = None, reference: float = 10.0
):
    """Outcomes with the given errors of each arm's draws; `status`: (arm, point) to what is not
    finished.

    A reference run has the error `reference` + its seed, and the key (arm, "seed 1") or (arm, None)
    for all.
    """
    rows = []
    for trial in study.trials:
        config, point = trial.config, trial.point
        state = (status or {}).get((trial.arm.name, point), "finished")
        if point is None:
            state = (status or {}).get((trial.arm.name, f"seed {config.seed}"), state)
        error = (
            reference + config.seed
            if point is None
            else float(np.asarray(errors[trial.arm.name])[point])
        )
        error = {"finished": error, "missing": np.nan}.get(state, 100.0)
        labels = {"arm": trial.arm.name, "point": point, "trial_id": config.id, "status": state}
        provenance = {"commit": "abc", "versions": "numpy", "machine": "here"}
        rows.append({**labels, "value": error, **config.asdict(), **provenance})
    return pd.DataFrame(rows).astype({"point": "Int64"})


def random_errors(study: Study, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    num = max(trial.point or 0 for trial in study.trials) + 1
    return {arm: 9 + rng.exponential(3, num) for arm in study.arms}


def make_rows(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per epoch of each trial with an outcome; a
    diverged one ends at epoch 3 with a row of 100.
    """
    rows = []
    for _, trial in outcomes[outcomes["status"] != "missing"].iterrows():
        last = 3 if trial["status"] == "diverged" else 6
        for epoch in range(1, last + 1):
            ended = trial["status"] == "diverged" and epoch == last
            error = 100.0 if ended else 90 / epoch
            rows.append(
                {
                    **trial[["arm", "point", "trial_id", "status"]],
                    "epoch": float(epoch),
                    "diverged": float(ended),
                    study.metric: error,
                }
            )
    columns = ["arm", "point", "trial_id", "status", "epoch", "diverged", study.metric]
    return pd.DataFrame(rows, columns=columns).astype({"point": "Int64"})
