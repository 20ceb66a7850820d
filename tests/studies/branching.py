"""Lengths that share a trunk, of a model small enough to be killed many times."""

from typing import Literal

from vitscale import Study, TrainConfig, Trial, main
from vitscale.plan.parents import on_trunks

BASE = TrainConfig(
    width=16,
    heads=2,
    depth=1,
    batch_size=16,
    warmup_epochs=1.0,
    decay="cooldown",
    cooldown_share=0.5,
    ema_decay=0.9,
    crop_padding=1,
    lr=3e-3,
)


def study(scale: Literal["demo"] = "demo", seed: int = 0, lr: float = 3e-3) -> Study:
    """8 and 4 epochs of 62 steps: the shorter one starts from the longer one after 124 steps."""
    base = BASE.replace(seed=seed, lr=lr)
    lengths = {f"{epochs} epochs": base.replace(epochs=epochs) for epochs in (4, 8)}
    return Study(
        kind="repeats",
        name="branching",
        scale=scale,
        question="Does a trunk survive being killed?",
        source="none",
        trials=on_trunks(Trial(arm, config, 0) for arm, config in lengths.items()),
        metric="val_error_pct",
        figures=("learning_curves",),
        tables=("seed_statistics",),
    )


if __name__ == "__main__":
    main(study)
