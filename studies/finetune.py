"""Is it enough to fine-tune the attention?

Trains ViTs at a low resolution and fine-tunes each at a higher one: all weights, those of
attention, those of the MLPs (FFN), or the head alone. After Touvron et al. 2022, Table 5 and Figure
4, which has single runs on ImageNet and finds attention alone "within standard deviation" of all
weights. Here the children of one parent are compared with each other, and a margin that is stated
before any training says when two ways are equivalent.

    python studies/finetune.py  # 15 parents, 120 children and 15 others: 5 minutes on 2 cores
    python studies/finetune.py --scale fashion  # 20 parents, 80 children and 20 others: hours
    python studies/finetune.py --scale imagenet --plan  # 18 children at 384 pixels of 3 parents
    python studies/finetune.py --scale imagenet --item thesis_6_6 --plan  # 20 children, 6 others

`--item` is also thesis_3_8 or thesis_3_10, what another resolution brings in H. Touvron's thesis,
2022, or touvron_table6: children on six other sets of images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, fashion
    from search_spaces.recipes import A2_LAYERSCALE
    from search_spaces.resolutions import FINE_TUNING, LR, LR_SGD, TABLES, WD
    from search_spaces.space import at_optimum, check_item
    from search_spaces.vit import SHAPES
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main
    from vitscale.catalog.tables import printed_errors
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

PARTS = {"full": "all", "attn": "attn", "ffn": "ffn", "head": "head"}
OPTIMIZERS = {"AdamW": "adamw", "SGD": "sgd"}


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    parents: Mapping[str, Mapping[str, Any]]  # model -> fields
    child: Mapping[str, Any]  # fields that differ from those of the parent
    tuned: Mapping[tuple[str, str], float]  # (part, optimizer) -> lr
    wd: Mapping[str, float]  # by optimizer
    direct: Mapping[str, Any] | None  # fields of a training at the high resolution, without parent
    seeds: tuple[int, ...]
    margin: float
    notes: str
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def lrs(by_optimizer: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """(part, optimizer) -> lr, where one lr serves each part."""
    return {
        (part, optimizer): by_optimizer[optimizer]
        for part in ("full", "attn", "ffn")
        for optimizer in OPTIMIZERS
    }


FULL = demo.CELLS["ViT_P", "AdamW"]
CIFAR = cifar.CELLS["ViT_P", "AdamW"]
FASHION = at_optimum(fashion)
RESIZE = {"crop": "rrc", "crop_scale_min": 1.0}  # all crops are the image: a pure resize
PAD = {"crop": "pad", "crop_scale_min": TrainConfig().crop_scale_min, "ema_decay": 0.0}
SCALES = {
    "demo": Scale(
        # 4x4 pixels are 4 tokens, and 8x8 pixels 16
        parents={"ViT_P": {**FULL, **RESIZE, "more_evals": "", "resolution": 4}},
        child={**PAD, "resolution": 8, "epochs": 10, "warmup_epochs": 1.0, "more_evals": "test"},
        tuned=demo.FINETUNE_LR,
        wd={"AdamW": 0.1, "SGD": 0.0},
        direct=FULL,
        seeds=tuple(range(1000, 1015)),
        margin=1.0,
        notes="The lr of each way and optimizer is the best of four or five by its error on "
        "minival, of two parents with seeds 0 and 1, which are not among these. Models of 0.07 M "
        "parameters on 8x8 digits: no evidence about ImageNet. Runs that are trained at 8x8 from "
        "the start are those of recipe_vs_architecture, of 20 epochs.",
    ),
    "fashion": Scale(
        # 16x16 pixels are 16 tokens, and 28x28 pixels 49
        parents={"ViT_P": {**FASHION, **RESIZE, "resolution": 16}},
        child={**PAD, "resolution": 28, "epochs": 2, "warmup_epochs": 0.5},
        tuned=fashion.FINETUNE_LR,
        wd={"AdamW": 0.1},
        direct=FASHION,
        seeds=tuple(range(1000, 1020)),
        margin=0.5,
        notes="The lr of each way is the best of two to four by its error on minival, of two "
        "parents with seeds 0 and 1, which are not among these. Errors of those two differed by "
        "up to 0.8 points, and 20 parents decide no margin of tenths: it is half a point here. "
        "It was stated, with all else, before these trainings. Runs that are trained at 28x28 from "
        "the start have 3 epochs, as parents have, and children 2. All errors are those of the "
        "weights themselves, not of averages. Models of 0.1 M parameters: no evidence about "
        "ImageNet.",
    ),
    "cifar": Scale(
        parents={"ViT_P": {**CIFAR, **RESIZE, "resolution": 16, "crop_padding": 0}},
        child={
            **PAD,
            "resolution": 32,
            "crop_padding": CIFAR["crop_padding"],
            "epochs": 10,
            "warmup_epochs": 1.0,
        },
        tuned=lrs({"AdamW": 3e-4, "SGD": 3e-2}),
        wd={"AdamW": 0.1, "SGD": 0.0},
        direct=CIFAR,
        seeds=tuple(range(1000, 1010)),
        margin=0.3,
        notes="The lr are usual values: no search chose them. " + cifar.FOUND,
    ),
    "imagenet": Scale(
        parents={
            f"ViT-{size}": {**SHAPES[size], **A2_LAYERSCALE[size].fields}
            for size in ("S", "B", "L")
        },
        child={**FINE_TUNING, "resolution": 384, "more_evals": "v2"},
        tuned=lrs({"AdamW": LR, "SGD": LR_SGD}),
        wd={"AdamW": WD, "SGD": 0.0},
        direct=None,
        seeds=(0,),
        margin=0.1,
        notes="Table 5 does not state the lr. AdamW has that of the thesis, section 6.3.6, for a "
        "higher resolution (1e-5, wd 0.1, 20 epochs, batches of 512, no repeats); SGD has 1e-2 of "
        "the four values of Dosovitskiy et al. 2021, Table 4, without weight decay as there. The "
        "margin is the standard deviation of 0.1 points that the paper names. One run per arm, as "
        "in the paper, decides nothing: --num 18 does.",
        printed=printed_errors(
            "touvron2022_table5",
            lambda row: f"{row['model']} {row['part']} {row['optimizer']}",
            {"val": "val_top1_pct", "v2": "v2_top1_pct"},
        ),
    ),
}


def resolutions(name: str, num: int) -> Study:
    """Trainings, and fine-tunings at another resolution of these or of parents."""
    table = TABLES[name]
    plan: list[Trial] = []
    parents: dict[str, TrainConfig] = {}
    for arm, row in table.arms.items():
        for seed in range(num):
            config = TrainConfig(**row.first, seed=seed)
            if row.changes:
                parents[config.id] = config
                config = config.replace(**row.changes, init_from=config.id)
            plan.append(Trial(Arm(arm, {"model": row.model, "pixels": row.pixels}), config, seed))
    own = {trial.config.id for trial in plan}
    several = len({row.pixels for row in table.arms.values()}) > 1
    return Study(
        kind="repeats",
        name=f"finetune_{name}",
        scale="imagenet",
        question=table.question,
        source=table.source,
        parents=tuple(parent for id_, parent in parents.items() if id_ not in own),
        trials=interleaved(plan),
        metric="val_error_pct",
        panels=table.panels,
        pairs=table.pairs,
        axis="pixels" if several else "",
        figures=("comparison_forest", *("arm_lines",) * several),
        tables=("pair_differences", "arm_means", "published_arms"),
        printed=table.printed,
        design="A child starts from the final weights of its parent; positions of another "
        "resolution are resized.",
        notes=table.notes,
    )


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    item: Literal[
        "touvron_table5", "touvron_table6", "thesis_3_8", "thesis_3_10", "thesis_6_6"
    ] = "touvron_table5",
) -> Study:
    """`num` parents of each model, with other seeds; each has a child of every arm. `item`: another
    table, at imagenet."""
    check_item(item, "touvron_table5", scale)
    if item in TABLES:
        return resolutions(item, 1 if num is None else num)
    values = SCALES[scale]
    first, most = values.seeds[0], len(values.seeds) if num is None else num
    seeds = range(first, first + most)
    parents = {
        (model, seed): TrainConfig(**fields, seed=seed)
        for model, fields in values.parents.items()
        for seed in seeds
    }
    several = len(values.parents) > 1
    arms: dict[Arm, dict[int, TrainConfig]] = {}
    pairs: list[tuple[str, str]] = []
    for model in values.parents:
        names = {}
        for (part, optimizer), lr in values.tuned.items():
            name = f"{model} {part} {optimizer}" if several else f"{part} {optimizer}"
            names[part, optimizer] = name
            factors = {"model": model, "part": part, "optimizer": optimizer}
            arms[Arm(name, factors)] = {
                seed: parents[model, seed].replace(
                    **values.child,
                    optimizer=OPTIMIZERS[optimizer],
                    lr=lr,
                    wd=values.wd[optimizer],
                    init_from=parents[model, seed].id,
                    trainable=PARTS[part],
                )
                for seed in seeds
            }
        pairs += [
            (names[a, optimizer], names[b, optimizer])
            for optimizer in OPTIMIZERS
            for a, b in (("attn", "full"), ("ffn", "full"), ("attn", "ffn"), ("head", "full"))
            if {(a, optimizer), (b, optimizer)} <= names.keys()
        ]
    if values.direct is not None:
        direct = Arm("direct", {"model": "ViT_P", "part": "none", "optimizer": "AdamW"})
        arms[direct] = {seed: TrainConfig(**values.direct, seed=seed) for seed in seeds}
        pairs.append(("full AdamW", "direct"))
    return Study(
        kind="repeats",
        name="finetune",
        scale=scale,
        question="Is it enough to fine-tune the attention?",
        source="Touvron et al. 2022, Table 5",
        parents=tuple(parents.values()),
        trials=interleaved(
            Trial(arm, config, seed - first)
            for arm, of_arm in arms.items()
            for seed, config in of_arm.items()
        ),
        metric="val_error_pct",
        margin=values.margin,
        pairs=tuple(pairs),
        figures=("comparison_forest",),
        tables=(
            "pair_differences",
            "arm_means",
            *(("published_arms",) if values.printed else ()),
            "published_finetuning",
        ),
        printed=values.printed,
        design="Each parent has one child of every arm, which starts from its final weights with "
        "its seed; positions are resized (bicubic), and the head is kept.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
