"""Which ingredients of a recipe carry it?

A recipe names a dozen things at once. The demo changes seven of them in a screening design: 12
runs of Plackett and Burman 1946, in which any two levels of two ingredients meet equally often, so
that a main effect compares one half of all runs with the other half. Four columns are empty: what
they show is an interaction of ingredients, or chance.

At imagenet the 60 trainings of tables that change a part of a recipe: H. Touvron's thesis, 2022,
Tables 3.8, 6.2, 6.3, 6.4 and section 6.2.3; Xiao et al. 2021, section 5.4 and Table 5. `--item`
makes a study of one of them, or of Figure 10 of Xiao et al., from the same trials. Of Touvron et
al. 2022 it makes the baselines of Table 1, and sets them against DeiT's recipe (Table 8).

    python studies/recipe_ingredients.py  # 72 trials on digits, 5 minutes on 2 cores
    python studies/recipe_ingredients.py --scale imagenet --plan  # the 60 trials of the tables
    python studies/recipe_ingredients.py --scale imagenet --item xiao_decay --plan  # 2 of them
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

try:
    from search_spaces import cifar, demo
    from search_spaces.ingredients import ARMS, ITEMS, TABLES
    from search_spaces.space import Space, at_optimum, check_item
    from vitscale import Arm, Study, TrainConfig, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

QUESTION = "Which ingredients of a recipe move the error?"

# Plackett and Burman 1946, the design of 12 runs: the rotations of this row, and a row of -1.
ROW = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)
DESIGN = ((-1,) * 11, *(ROW[-i:] + ROW[:-i] for i in range(11)))


@dataclass(frozen=True)
class Screening:
    """A screening design around ViT_P with AdamW, at the lr and wd of a search."""

    space: Space
    changed: Mapping[str, tuple[str, float]]  # ingredient -> field and its other value
    notes: str
    num_seeds: int = 6
    first_seed: int = 1000
    margin: float = 1.0


def ingredients(
    *, cutmix: float, smoothing: float, warmup_epochs: float
) -> dict[str, tuple[str, float]]:
    """Ingredient -> field and the value that the recipe of the scale does not have."""
    return {
        "mixup": ("mixup_alpha", 0.2),
        "CutMix": ("cutmix_alpha", cutmix),
        "smoothing": ("label_smoothing", smoothing),
        "drop path": ("drop_path", 0.1),
        "dropout": ("dropout", 0.1),
        "weight decay": ("wd", 0.0),
        "warm-up": ("warmup_epochs", warmup_epochs),
    }


WARNING = (
    "lr and wd were found, or chosen, for the first arm, which has none of the changes: an "
    "ingredient that needs another lr is judged at this one. A main effect is an average over the "
    "other ingredients, and an interaction of two of them adds a third of itself to the effects of "
    "the others. "
)
SCALES = {
    "demo": Screening(
        demo,
        ingredients(cutmix=0.2, smoothing=0.1, warmup_epochs=1.0),
        demo.FOUND + WARNING + "This is a second design. A first one of 72 trainings, with crop "
        "padding of a pixel and CutMix at 1, showed effects of 53 and 13 points of these two, and "
        "interactions of that size hid the others. Flips are left out: digits are not symmetric. "
        "The margin is a point, four of the 400 images of val. Models of 0.07 M parameters on 8x8 "
        "digits: no evidence about ImageNet.",
        first_seed=2000,  # those from 1000 on are of the first design
    ),
    "cifar": Screening(
        cifar,
        # the recipe has crop padding: images of 32 pixels leave room to shift
        {
            **ingredients(cutmix=1.0, smoothing=0.0, warmup_epochs=1.0),
            "crop padding": ("crop_padding", 0),
        },
        cifar.FOUND + WARNING,
        margin=0.5,
    ),
}


def screening(values: Screening) -> dict[Arm, dict[str, object]]:
    """The arms of the design; the first has the recipe of the scale."""
    base = at_optimum(values.space)
    own = TrainConfig(**base).asdict()
    arms: dict[Arm, dict[str, object]] = {}
    for number, row in enumerate(DESIGN, start=1):
        signs = dict(zip(values.changed, row, strict=False))
        fields = {
            field: other if signs[name] > 0 else own[field]
            for name, (field, other) in values.changed.items()
        }
        factors = {name: fields[field] for name, (field, _) in values.changed.items()}
        empty = {f"empty {i}": max(sign, 0) for i, sign in enumerate(row[len(signs) :], start=1)}
        arms[Arm(f"row {number}", {**factors, **empty})] = {**base, **fields}
    return arms


IMAGENET_NOTES = (
    "One run per arm, as in the tables, shows no difference: --num adds seeds. The thesis says of "
    "two rows of Table 3.8, without erasing and without drop path, that the model did not train "
    "well (top-1 accuracy of 4.3 and 3.4%): such a run has a finite loss, and counts as finished. "
    "Values that the texts leave open are marked in search_spaces/ingredients.py and "
    "search_spaces/recipes.py: the lr of SGD, the rate of dropout, the decay of averaged weights, "
    "smoothing and lr with cross entropy, recipe and length of ResNet-50. The recipe changes as a "
    "whole where a row of Table 6.4 has 3-Augment, as in the thesis: mixup, jitter, crop of the "
    "evaluation, drop path of ViT-S and its lr, too. The row with EMA of Table 3.8, and row 6 of "
    "Table 5 without it, are the other error of the first arm's run. Fine-tuning at 384 pixels is "
    "finetune --item thesis_3_8."
)


def printed(name: str, num: int) -> Study:
    """The arms of an item, or of all tables, at seeds from 0 on."""
    item = ITEMS[name] if name != "all" else TABLES
    length = name == "xiao_figure_10"
    models = {arm: arm.rsplit(" ", 2)[0] if length else arm for arm in item.arms}
    return Study(
        kind="repeats",
        name="recipe_ingredients" if name == "all" else f"recipe_ingredients_{name}",
        scale="imagenet",
        question="Does their recipe converge faster than that of DeiT?" if length else QUESTION,
        source=item.title,
        trials=trials(
            TrainConfig(),
            {Arm(arm, {"model": models[arm]}): ARMS[arm] for arm in item.arms},
            [{"seed": seed} for seed in range(num)],
        ),
        metric=item.metric,
        panels=item.panels,
        pairs=item.pairs,
        figures=(*("training_length",) * length, "comparison_forest"),
        tables=(
            *("training_length", "training_length_interaction") * length,
            "pair_differences",
            "arm_means",
            *("published_arms",) * bool(item.printed),
        ),
        printed=item.printed,
        design="Each arm as printed, compared with the arm that it changes.",
        notes=IMAGENET_NOTES,
    )


ItemName = Literal[
    "all", "thesis_3_8", "thesis_6_2", "thesis_6_3", "thesis_6_4", "thesis_src", "xiao_decay",
    "xiao_table_5", "xiao_figure_10", "touvron_table_1", "touvron_table_8",
]  # fmt: skip


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    item: ItemName = "all",
) -> Study:
    """`num` seeds for each arm; at imagenet the arms of all tables, or of one item."""
    if scale == "imagenet":
        return printed(item, 1 if num is None else num)
    check_item(item, "all", scale)
    values = SCALES[scale]
    num = values.num_seeds if num is None else num
    return Study(
        kind="repeats",
        name="recipe_ingredients",
        scale=scale,
        question=QUESTION,
        source="H. Touvron's thesis, 2022, Table 3.8; screening design ours",
        trials=trials(
            TrainConfig(),
            screening(values),
            [{"seed": values.first_seed + i} for i in range(num)],
        ),
        margin=values.margin,
        figures=("comparison_forest",),
        tables=("main_effects", "arm_means"),
        design="Plackett and Burman's design of 12 runs, all with the same seeds.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
