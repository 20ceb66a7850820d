"""How much worse does SGD train a ViT than AdamW, at any length of training, and does an early
convolution help?

Trains each model with both optimizers at four lengths, every length a full schedule of its own, at
lr and wd that were found once for the model and the optimizer, and shows the gap error(SGD) -
error(AdamW). Several seeds give intervals; what diverged is shown as diverged. Design: Xiao et al.
2021, Figure 3 (seed 0 alone). In the paper a run that diverged has the error of the best shorter
schedule, with a dashed line: `--diverged copied` draws it so, from the same trials.

    python studies/optimizer_stability.py  # 80 trials on digits, about 10 minutes on 2 cores
    python studies/optimizer_stability.py --num 10  # 10 seeds; those that are done are kept
    python studies/optimizer_stability.py --scale imagenet --plan  # the paper's 72 trials, about
    12,900 V100-hours
"""

from typing import Any, Literal

from search_spaces import cifar, demo, xiao2021
from vitscale import Arm, Study, TrainConfig, main, trials

LABELS = {"adamw": "AdamW", "sgd": "SGD"}


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    diverged: Literal["shown", "copied"] = "shown",
) -> Study:
    """`num` seeds per cell, which no search has used."""
    space = {"demo": demo, "cifar": cifar, "imagenet": xiao2021}[scale]
    num = space.NUM_STABILITY_SEEDS if num is None else num
    arms: dict[Arm, dict[str, Any]] = {}
    panels: dict[str, tuple[str, ...]] = {}
    for size, models in space.PANELS.items():
        cells = [(m, o, epochs) for m in models for o in LABELS for epochs in space.LENGTHS]
        names = [f"{m} {LABELS[o]} {epochs} epochs" for m, o, epochs in cells]
        panels[size] = tuple(names)
        for name, (model, optimizer, epochs) in zip(names, cells, strict=True):
            lr, wd = space.OPTIMA[model, optimizer]
            values = {"epochs": epochs, "optimizer": optimizer, "lr": lr, "wd": wd}
            arms[Arm(name, {"model": model})] = {**space.MODELS[model], **values}
    end = "_copied" if diverged == "copied" else ""
    return Study(
        kind="repeats",
        name="optimizer_stability",
        scale=scale,
        question=(
            "How much worse does SGD train a ViT than AdamW, at any length, and does an early "
            "convolution help?"
        ),
        source="Xiao et al. 2021, Figure 3",
        trials=trials(
            TrainConfig(**space.RECIPE), arms, [{"seed": space.FIRST_SEED + i} for i in range(num)]
        ),
        panels=panels,
        figures=(f"optimizer_stability{end}",),
        tables=(f"optimizer_gap{end}", "optimizer_gap_interaction", "stability_cells"),
        design=(
            "Every model with both optimizers at every length, a full schedule each. All "
            "cells share their seeds."
        ),
        notes=space.STABILITY_NOTES,
    )


if __name__ == "__main__":
    main(study)
