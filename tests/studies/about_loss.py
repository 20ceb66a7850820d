"""Two arms of four draws and a reference run, of which the question is the loss."""

from typing import Literal

from vitscale import Study, TrainConfig, main, sample, trials
from vitscale.plan.trial import Trial

BASE = TrainConfig(
    width=16, heads=2, depth=1, batch_size=200, epochs=2, warmup_epochs=0.0, ema_decay=0.5
)
ARMS = {"patch 4": {"patch_size": 4}, "patch 2": {"patch_size": 2}}


def study(scale: Literal["demo"] = "demo", num: int = 4) -> Study:
    from optuna.distributions import FloatDistribution

    space = {
        "lr": FloatDistribution(1e-3, 1e-2, log=True),
        "wd": FloatDistribution(1e-2, 1.0, log=True),
    }
    references = [
        Trial(arm, BASE.replace(lr=5e-3, wd=0.1, seed=seed, **fields))
        for arm, fields in ARMS.items()
        for seed in (1, 2)
    ]
    return Study(
        kind="distribution",
        name="about_loss",
        scale=scale,
        question="Which patch size loses less?",
        source="none",
        trials=(*trials(BASE, ARMS, sample(space, num=num)), *references),
        pairs=(("patch 4", "patch 2"),),
        metric="val_ema_loss",
        figures=("edf_panels", "lr_wd_scatter"),
        tables=("edf_summary", "arm_comparison"),
    )


if __name__ == "__main__":
    main(study)
