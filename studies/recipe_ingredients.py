"""Which ingredients of a recipe carry it?

A recipe names a dozen things at once. The demo changes eight of them in a screening design: 12
runs of Plackett and Burman 1946, in which any two levels of two ingredients meet equally often, so
that a main effect compares one half of all runs with the other half. Three columns are empty: what
they show is an interaction of ingredients, or chance.

    python studies/recipe_ingredients.py  # 72 trials on digits, 6 minutes on 2 cores
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

try:
    from search_spaces import cifar, demo
    from search_spaces.space import Space
    from vitscale import Arm, Study, TrainConfig, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

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
    *, smoothing: float, warmup_epochs: float, crop_padding: int
) -> dict[str, tuple[str, float]]:
    """Ingredient -> field and the value that the recipe of the scale does not have."""
    return {
        "mixup": ("mixup_alpha", 0.2),
        "CutMix": ("cutmix_alpha", 1.0),
        "smoothing": ("label_smoothing", smoothing),
        "drop path": ("drop_path", 0.1),
        "dropout": ("dropout", 0.1),
        "weight decay": ("wd", 0.0),
        "warm-up": ("warmup_epochs", warmup_epochs),
        "crop padding": ("crop_padding", crop_padding),
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
        ingredients(smoothing=0.1, warmup_epochs=1.0, crop_padding=1),
        demo.FOUND + WARNING + "Flips are left out: digits are not symmetric. The margin is a "
        "point, four of the 400 images of val. Models of 0.07 M parameters on 8x8 digits: no "
        "evidence about ImageNet.",
    ),
    "cifar": Screening(
        cifar,
        ingredients(smoothing=0.0, warmup_epochs=1.0, crop_padding=0),
        cifar.FOUND + WARNING,
        margin=0.5,
    ),
}


def screening(values: Screening) -> dict[Arm, dict[str, object]]:
    """The arms of the design; the first has the recipe of the scale."""
    lr, wd = values.space.OPTIMA["ViT_P", "adamw"]
    base = TrainConfig(
        **{
            **values.space.RECIPE,
            **values.space.HELD_OUT,
            **values.space.MODELS["ViT_P"],
            "optimizer": "adamw",
            "lr": lr,
            "wd": wd,
        }
    )
    arms: dict[Arm, dict[str, object]] = {}
    for number, row in enumerate(DESIGN, start=1):
        signs = dict(zip(values.changed, row, strict=False))
        fields = {
            field: other if signs[name] > 0 else getattr(base, field)
            for name, (field, other) in values.changed.items()
        }
        factors = {name: fields[field] for name, (field, _) in values.changed.items()}
        empty = {f"empty {i}": max(sign, 0) for i, sign in enumerate(row[len(signs) :], start=1)}
        arms[Arm(f"row {number}", {**factors, **empty})] = {**base.non_default(), **fields}
    return arms


def study(scale: Literal["demo", "cifar"] = "demo", num: int | None = None) -> Study:
    """`num` seeds for each row of the design."""
    values = SCALES[scale]
    num = values.num_seeds if num is None else num
    return Study(
        kind="repeats",
        name="recipe_ingredients",
        scale=scale,
        question="Which ingredients of a recipe move the error?",
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
