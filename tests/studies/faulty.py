"""Trainings of one epoch that end as their seed says, see
tests/launch/test_faults.py; seed 0 has no fault.
"""

from typing import Literal

from vitscale import Study, TrainConfig, main, trials

BASE = TrainConfig(
    width=16, heads=2, depth=1, batch_size=64, warmup_epochs=0.0, ema_decay=0.9, crop_padding=1
)


def study(scale: Literal["demo"] = "demo", num: int = 8, epochs: int = 1) -> Study:
    points = [{"lr": 1e-3, "seed": seed} for seed in range(num)]
    plan = trials(BASE.replace(epochs=epochs), {"one": {}}, points)
    return Study(
        kind="distribution",
        name="faulty",
        scale=scale,
        question="What of a failure of the machine?",
        source="none",
        trials=plan,
        figures=("learning_curves",),
        tables=("edf_summary",),
    )


if __name__ == "__main__":
    main(study)
