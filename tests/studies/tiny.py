"""A study small enough to be killed many times: one block, a
few seconds per trial, one arm that diverges, one figure.
"""

from typing import Literal

from vitscale import Study, TrainConfig, main, sample, trials

BASE = TrainConfig(
    width=16, heads=2, depth=1, batch_size=64, warmup_epochs=1.0, ema_decay=0.9, crop_padding=1
)


def study(
    scale: Literal["demo"] = "demo", num: int = 3, epochs: int = 3, broken: int = 0, only: str = ""
) -> Study:
    """`broken` adds a trial that raises: BatchNorm has no statistics of a batch of one image of one
    patch. `only` leaves out the other arms of patchify and conv, or diverging, such as "conv" or
    "conv diverging".
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
    asked = {name: fields for name, fields in arms.items() if not only or name in only.split()}
    diverging = {name: asked.pop(name) for name in ("diverging",) if name in asked}
    plan = trials(BASE.replace(epochs=epochs), asked, points)
    wild = [{"lr": 1e6 * (1 + p["lr"]), "wd": p["wd"]} for p in points[:1]]
    plan += trials(BASE.replace(epochs=epochs), diverging, wild)
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
        panels={"AdamW": tuple(asked)} if asked else {},
        pairs=(("patchify", "conv"),) if len(asked) == 2 else (),
        figures=("edf_panels",),
        tables=("edf_summary", "arm_comparison", "good_range"),
    )


if __name__ == "__main__":
    main(study)
