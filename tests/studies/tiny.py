"""A study small enough to be killed many times: one block, a
few seconds per trial, one arm that diverges.
"""

from typing import Literal

from vitscale import Study, TrainConfig, main, sample, trials

BASE = TrainConfig(
    width=16, heads=2, depth=1, batch_size=64, warmup_epochs=1.0, ema_decay=0.9, crop_padding=1
)


def study(scale: Literal["demo"] = "demo", num: int = 3, epochs: int = 3, broken: int = 0) -> Study:
    """`broken` adds a trial that raises: BatchNorm has no
    statistics of a batch of one image of one patch.
    """
    from optuna.distributions import FloatDistribution

    space = {
        "lr": FloatDistribution(1e-3, 1e-2, log=True),
        "wd": FloatDistribution(1e-2, 1.0, log=True),
    }
    arms = {
        "patchify": {},
        "conv": {"stem": "conv", "stem_channels": "8-16", "stem_strides": "1-2"},
        "diverging": {"optimizer": "sgd", "momentum": 0.99, "depth": 2},
    }
    points = sample(space, num=num)
    plan = trials(
        BASE.replace(epochs=epochs), {"patchify": arms["patchify"], "conv": arms["conv"]}, points
    )
    wild = [{"lr": 1e6 * (1 + p["lr"]), "wd": p["wd"]} for p in points[:1]]
    plan += trials(BASE.replace(epochs=epochs), {"diverging": arms["diverging"]}, wild)
    if broken:
        base = BASE.replace(batch_size=1, epochs=epochs)
        plan += trials(base, {"broken": {"stem": "patchify_bn", "patch_size": 8}}, points[:1])
    return Study(
        kind="distribution",
        name="tiny",
        scale=scale,
        question="Does a study survive being killed?",
        source="none",
        trials=plan,
        panels={"AdamW": ("patchify", "conv")},
        pairs=(("patchify", "conv"),),
        figures=("edf_panels", "lr_wd_scatter", "learning_curves"),
        tables=("edf_summary", "arm_comparison", "good_range"),
    )


if __name__ == "__main__":
    main(study)
