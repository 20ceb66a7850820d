"""Does the better architecture depend on the recipe, or on the set on which it is tested?

Trains two architectures with two recipes, several seeds each, and shows each difference, their
interaction with an interval, and whether the winner changes. Design: H. Touvron's thesis, 2022,
section 6.3.4: ResNet-50 and DeiT-S under A2 and T2, one run each. The thesis names T2 and does not
give it; at scale imagenet DeiT's own recipe stands in for it. One cell is that of
seed_distribution.py: what both studies need is trained once. At scale imagenet the first seed is 0,
which the thesis has in all other experiments: its own printed runs.

    python studies/recipe_vs_architecture.py  # 80 trials on digits, about 6 minutes on 2 cores
    python studies/recipe_vs_architecture.py --scale imagenet --plan  # 20 trials of 300 epochs
"""

from typing import Literal

from search_spaces import cifar, demo, touvron_thesis
from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None) -> Study:
    """`num` seeds per cell, which no search has used."""
    space = {"demo": demo, "cifar": cifar, "imagenet": touvron_thesis}[scale]
    num = space.NUM_CELL_SEEDS if num is None else num
    configs = {
        Arm(f"{architecture} {recipe}", {"architecture": architecture, "recipe": recipe}): (
            TrainConfig(**fields)
        )
        for (architecture, recipe), fields in space.CELLS.items()
    }
    return Study(
        kind="repeats",
        name="recipe_vs_architecture",
        scale=scale,
        question=(
            "Does the better architecture depend on the recipe, or on the set on which it is "
            "tested?"
        ),
        source="H. Touvron's thesis, 2022, section 6.3.4",
        trials=interleaved(
            Trial(arm, config.replace(seed=space.FIRST_SEED + i), i)
            for arm, config in configs.items()
            for i in range(num)
        ),
        # those recipes average no weights
        metric="val_error_pct" if scale == "imagenet" else "val_ema_error_pct",
        figures=("recipe_interaction",),
        tables=("recipe_interaction", "published_recipe_interaction"),
        design="Each architecture with each recipe, at the same seeds in every cell.",
        notes=space.CELL_NOTES,
    )


if __name__ == "__main__":
    main(study)
