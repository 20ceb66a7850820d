"""How much worse is a short training than a long one, and does an early convolution make up for it?

The error at each length above that at the model's longest, with the optimizer that suits the
family: AdamW for ViTs, SGD for RegNetY. Every length is a full schedule of its own. Design: Xiao et
al. 2021, Figure 2 (seed 0 alone). All trials are trials of optimizer_stability.py: in a store that
has those, this one trains nothing and only draws.

    python studies/training_length.py  # 40 trials on digits, all of optimizer_stability
    python studies/training_length.py --scale imagenet --plan  # the paper's 36 trials, about 6,450
    V100-hours
"""

from typing import Any, Literal

from search_spaces import cifar, demo, xiao2021
from vitscale import Arm, Study, TrainConfig, main, trials


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None) -> Study:
    """`num` seeds per cell, which no search has used."""
    space = {"demo": demo, "cifar": cifar, "imagenet": xiao2021}[scale]
    num = space.NUM_STABILITY_SEEDS if num is None else num
    arms: dict[Arm, dict[str, Any]] = {}
    panels: dict[str, tuple[str, ...]] = {}
    for size, models in space.PANELS.items():
        panels[size] = tuple(
            f"{model} {epochs} epochs" for model in models for epochs in space.LENGTHS
        )
        for model in models:
            optimizer = space.BEST_OPTIMIZER[model]
            lr, wd = space.OPTIMA[model, optimizer]
            fields = {**space.MODELS[model], "optimizer": optimizer, "lr": lr, "wd": wd}
            arms |= {
                Arm(f"{model} {epochs} epochs", {"model": model}): {**fields, "epochs": epochs}
                for epochs in space.LENGTHS
            }
    return Study(
        kind="repeats",
        name="training_length",
        scale=scale,
        question=(
            "How much worse is a short training than a long one, and does an early "
            "convolution make up for it?"
        ),
        source="Xiao et al. 2021, Figure 2",
        trials=trials(
            TrainConfig(**space.RECIPE), arms, [{"seed": space.FIRST_SEED + i} for i in range(num)]
        ),
        panels=panels,
        figures=("training_length",),
        tables=(
            "training_length",
            "training_length_interaction",
            "stability_cells",
            "published_training_length",
        ),
        design=(
            "Every model with one optimizer at every length, a full schedule each. All cells "
            "share their seeds."
        ),
        notes=space.STABILITY_NOTES,
    )


if __name__ == "__main__":
    main(study)
