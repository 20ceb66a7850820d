"""Does the better architecture depend on the recipe, or on the set on which it is tested?

Trains two architectures with two recipes, several seeds each, and shows each difference, their
interaction with an interval, and whether the winner changes. Design: H. Touvron's thesis, 2022,
section 6.3.4: ResNet-50 and DeiT-S under A2 and T2, as far as stated one run each. The thesis names
T2 and does not give it; at scale imagenet DeiT's own recipe replaces it. One cell is that of
seed_distribution.py: what both studies need is trained once. At scale imagenet the first seed is 0,
which the thesis has in all other experiments: its own printed runs.

    python studies/recipe_vs_architecture.py  # 80 trials on digits, about 6 minutes on 2 cores
    python studies/recipe_vs_architecture.py --scale imagenet --plan  # 20 trials of 300 epochs
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, touvron_thesis
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    cells: Mapping[tuple[str, str], Mapping[str, Any]]  # (architecture, recipe) -> fields
    num_seeds: int
    first_seed: int  # not 0 or 1 where a search chose lr and wd with these
    metric: str  # the recipes of the thesis average no weights
    notes: str


SCALES = {
    "demo": Scale(
        cells=demo.CELLS,
        num_seeds=20,
        first_seed=1000,
        metric="val_ema_error_pct",
        notes=demo.FOUND
        + "The recipes differ in optimizer, lr and wd alone. A cell that were tuned further might "
        "change the answer: that is the thesis' point. Models of 0.07 M parameters on 8x8 digits.",
    ),
    "cifar": Scale(
        cells=cifar.CELLS,
        num_seeds=5,
        first_seed=1000,
        metric="val_ema_error_pct",
        notes=cifar.FOUND
        + "The recipes differ in optimizer, lr and wd alone. One evaluation set only.",
    ),
    "imagenet": Scale(
        cells=touvron_thesis.CELLS,
        num_seeds=5,  # the thesis trains each cell once, "seed=0 in all other experiments"
        first_seed=0,
        metric="val_error_pct",
        notes=touvron_thesis.A2_CHOICES
        + "The thesis names a recipe T2 for DeiT-S and does not give it: the recipe of DeiT (Table "
        "3.9) stands in for it, with A2's batch of 2048 and its lr by its own rule.",
    ),
}


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None) -> Study:
    """`num` seeds per cell, which no search has used."""
    values = SCALES[scale]
    num = values.num_seeds if num is None else num
    configs = {
        Arm(f"{architecture} {recipe}", {"architecture": architecture, "recipe": recipe}): (
            TrainConfig(**fields)
        )
        for (architecture, recipe), fields in values.cells.items()
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
            Trial(arm, config.replace(seed=values.first_seed + i), i)
            for arm, config in configs.items()
            for i in range(num)
        ),
        metric=values.metric,
        figures=("recipe_interaction",),
        tables=("recipe_interaction", "published_recipe_interaction"),
        design="Each architecture with each recipe, at the same seeds in every cell.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
