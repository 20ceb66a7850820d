"""Does one recipe rank architectures as another does, and on a second set as on the first?

At scale imagenet: one recipe, that of DeiT III, for the architectures of H. Touvron's thesis, 2022,
Table 6.13, on the three sets of that table. The demo and fashion train four architectures under two
recipes, and ask how far their rankings agree (Kendall's tau), which one recipe cannot tell.

    python studies/architectures.py  # 72 trials on digits, 36 of recipe_vs_architecture: 6 minutes
    python studies/architectures.py --scale imagenet --plan  # the 11 trials of Table 6.13
    python studies/architectures.py --scale imagenet --item thesis_cait --plan  # 39 of Table 3.15

`--item` is also thesis_resmlp, and at cifar thesis_scratch: trainings of that thesis's chapters 3
and 4, some of them with a teacher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, families, fashion
    from search_spaces.lineage import configs_of
    from search_spaces.recipes import DEIT3
    from search_spaces.space import Space
    from search_spaces.vit import SHAPES
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main
    from vitscale.catalog.tables import printed_errors
    from vitscale.plan.laws import VIT_ONLY
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    cells: Mapping[tuple[str, str], Mapping[str, Any]]  # (architecture, recipe) -> fields
    num_seeds: int
    first_seed: int
    metric: str
    notes: str
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()


def two_recipes(space: Space, evals: str, notes: str) -> Scale:
    """ViT_P, ViT_C and two variants of ViT_P, with AdamW and with SGD."""
    vit = space.MODELS["ViT_P"]
    blocks = {"depth": 1, "branches": vit["depth"]}
    architectures = {
        "ViT_C": space.MODELS["ViT_C"],
        "ViT_P": vit,
        "parallel": {**vit, **blocks},
        "average": {**vit, "pool": "avg"},
    }
    cells = {}
    for label, optimizer in (("AdamW", "adamw"), ("SGD", "sgd")):
        for name, model in architectures.items():
            lr, wd = space.OPTIMA["ViT_C" if name == "ViT_C" else "ViT_P", optimizer]
            fields = {"optimizer": optimizer, "lr": lr, "wd": wd}
            fields |= {"more_evals": evals} if evals else {}
            cells[name, label] = {**space.RECIPE, **space.HELD_OUT, **model, **fields}
    return Scale(
        cells=cells,
        num_seeds=9,
        first_seed=1000,
        metric="val_ema_error_pct",
        notes=notes + "'parallel' has the blocks of ViT_P side by side in one block, and 'average' "
        "the mean of its tokens in place of a class token. Both have the lr and wd of ViT_P, which "
        "no search chose for them: a ranking is one under these recipes.",
    )


# timm's names, and the drop path of which size of ViT an architecture gets: by its name
TABLE_6_13 = {
    "PiT-S": "pit_s_224",
    "PiT-B": "pit_b_224",
    "TNT-S": "tnt_s_legacy_patch16_224",
    "TNT-B": "tnt_b_patch16_224",
    "ConViT-S": "convit_small",
    "ConViT-B": "convit_base",
    "Swin-S": "swin_small_patch4_window7_224",
    "Swin-B": "swin_base_patch4_window7_224",
    "CaiT-B12": "cait_s24_224",
}
# CaiT-B12 is no model of timm: 12 blocks before the 2 of the class token, a width of 768 and heads
# of 48 channels as in all CaiT, and the LayerScale of the recipe.
CAIT_B12 = "depth=12,embed_dim=768,init_values=0.0001,num_heads=16"


def table_6_13() -> Scale:
    """Table 6.13: DeiT III for 400 epochs."""
    cells: dict[tuple[str, str], dict[str, Any]] = {
        (f"ViT-{size}", "DeiT III"): {**SHAPES[size], **DEIT3[size].fields} for size in "SB"
    }
    for name, model in TABLE_6_13.items():
        size = "S" if name.endswith("S") else "B"
        recipe = {k: v for k, v in DEIT3[size].fields.items() if k not in VIT_ONLY}
        args = {"timm_args": CAIT_B12} if name == "CaiT-B12" else {}
        cells[name, "DeiT III"] = {**recipe, "model": f"timm:{model}", **args}
    return Scale(
        cells={key: {**fields, "more_evals": "v2,real"} for key, fields in cells.items()},
        num_seeds=1,
        first_seed=0,
        metric="val_error_pct",
        notes="Drop path is not stated for other architectures: 0 for S and 0.1 for B, as for ViT "
        "in Table 6.14, in all their blocks. PiT, TNT, ConViT and Swin have no LayerScale, which "
        "the recipe has; CaiT has its own, of 1e-4. Their initial weights are timm's, and so is "
        "which of their tokens have no weight decay. The 12 + 2 blocks, 768 channels and 16 heads "
        "of CaiT-B12 are not printed: they follow from its name and the other CaiT, with the "
        "multiply-adds of the table and 0.8 M parameters more. One run per arm, as in the table, "
        "shows no difference of two architectures: --num adds seeds.",
        printed=printed_errors(
            "thesis_table6_13",
            lambda row: row["model"],
            {name: f"{name}_top1_pct" for name in ("val", "v2", "real")},
        ),
        pairs=tuple((name, "ViT-S" if name.endswith("S") else "ViT-B") for name in TABLE_6_13),
    )


# Five architectures under three recipes with 5 seeds cost as much, and decide a difference of 4.5
# standard deviations of a run; four under two recipes with 9 seeds decide 2.2.
SCALES = {
    "demo": two_recipes(
        demo,
        "test",
        demo.FOUND + "Models of 0.07 M parameters on 8x8 digits: no evidence about ImageNet. ",
    ),
    "cifar": two_recipes(cifar, "", cifar.FOUND),
    "fashion": two_recipes(fashion, "", fashion.FOUND + "Three epochs. "),
    "imagenet": table_6_13(),
}


def of_family(name: str, num: int) -> Study:
    """Trainings of chapters 3 and 4; a student learns from the teacher of its seed."""
    table = families.TABLES[name]
    sets = ("sets_regression",) if table.scale == "imagenet" else ()
    return Study(
        kind="repeats",
        name=f"architectures_{name}",
        scale=table.scale,
        question=table.question,
        source=table.source,
        trials=interleaved(
            Trial(Arm(arm), config, seed)
            for (arm, seed), config in configs_of(table.cells, range(num), TrainConfig).items()
        ),
        metric="val_error_pct",
        pairs=table.pairs,
        printed=table.printed,
        figures=("comparison_forest", *sets),
        tables=("pair_differences", "arm_means", *sets, "published_arms"),
        design="All arms share their seeds.",
        notes=table.notes,
    )


def study(
    scale: Literal["demo", "cifar", "fashion", "imagenet"] = "demo",
    num: int | None = None,
    item: Literal["recipes", "thesis_cait", "thesis_resmlp", "thesis_scratch"] = "recipes",
) -> Study:
    """`num` seeds per arm, which no search has used. `item`: other tables of the thesis."""
    if item in families.TABLES:
        if scale != families.TABLES[item].scale:
            raise ValueError(
                f"scale == {families.TABLES[item].scale!r} for this item must hold, but got "
                f"(item={item!r}, scale={scale!r})"
            )
        return of_family(item, 1 if num is None else num)
    values = SCALES[scale]
    num = values.num_seeds if num is None else num
    recipes = {recipe for _, recipe in values.cells}
    arms = {
        Arm(
            f"{architecture} {recipe}" if len(recipes) > 1 else architecture,
            {"architecture": architecture, "recipe": recipe},
        ): TrainConfig(**fields)
        for (architecture, recipe), fields in values.cells.items()
    }
    sets = ("sets_regression",) if any("more_evals" in c for c in values.cells.values()) else ()
    ranked = ("rank_agreement", "recipe_interaction") if len(recipes) > 1 else ()
    return Study(
        kind="repeats",
        name="architectures",
        scale=scale,
        question="Does one recipe rank architectures as another does, and on a second set as on "
        "the first?",
        source="H. Touvron's thesis, 2022, Table 6.13 and Figure 6.11",
        trials=interleaved(
            Trial(arm, config.replace(seed=values.first_seed + i), i)
            for arm, config in arms.items()
            for i in range(num)
        ),
        metric=values.metric,
        pairs=values.pairs,
        printed=values.printed,
        figures=("recipe_interaction",) if ranked else ("sets_regression",),
        tables=(
            *ranked,
            *(("pair_differences",) if values.pairs else ()),
            "recipe_cells",
            *sets,
            *(("published_arms",) if values.printed else ()),
        ),
        design="Each architecture with each recipe, at the same seeds in every cell.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
