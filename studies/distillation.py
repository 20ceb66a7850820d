"""What does a ViT learn from a teacher: its probabilities, its class, or its class by a token?

Trains teachers with convolutions, and ViTs without a teacher (none), with its probabilities (soft),
with its class (hard), and with its class by a distillation token (token). After H. Touvron's
thesis, 2022, Table 3.3, which has single runs on ImageNet. In the demo each student has a teacher
of its own, so that runs are independent, and a margin is stated before any training. Images are
mixed: a teacher that is right about all training images would only repeat the labels.

    python studies/distillation.py  # 70 trials on digits, 14 of them teachers: 5 minutes on 2 cores
    python studies/distillation.py --scale imagenet --plan  # 12 students of one teacher
    python studies/distillation.py --scale imagenet --item thesis_3_2 --plan  # 5 of 5 teachers
    python studies/distillation.py --scale imagenet --item thesis_figure_3_2 --plan  # 4 lengths
"""

from collections.abc import Mapping
from typing import Any, Literal

try:
    from search_spaces import cifar, demo
    from search_spaces.distillation import ITEMS, WAYS, Item
    from search_spaces.lineage import Cell, configs_of
    from search_spaces.recipes import DEIT
    from search_spaces.space import check_item
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

Cells = Mapping[tuple[str, str], Mapping[str, Any]]  # (model, optimizer) -> fields
PAIRS = (
    ("soft", "none"), ("hard", "none"), ("hard", "soft"), ("token", "hard"), ("token", "teacher"),
)  # fmt: skip


def of_cells(cells: Cells, num_seeds: int, margin: float, notes: str) -> Item:
    """ViT_P as the student of ViT_C, both with mixup and CutMix as in DeiT."""
    changed = {name: DEIT.fields[name] for name in ("mixup_alpha", "cutmix_alpha")}
    changed |= {"ema_decay": 0.0, "more_evals": ""}  # what teaches is no average of weights
    student = {**cells["ViT_P", "AdamW"], **changed}
    return Item(
        cells={
            "teacher": Cell({**cells["ViT_C", "AdamW"], **changed}),
            "none": Cell(student),
            **{way: Cell({**student, "distill": way}, "teacher") for way in WAYS},
        },
        pairs=PAIRS,
        num_seeds=num_seeds,
        first_seed=1000,
        margin=margin,
        notes=notes + "mixup 0.8 and CutMix 1 are those of DeiT; lr and wd were found or chosen "
        "without them and without a teacher. A prediction of 'token' is the mean of the softmax "
        "outputs of both heads.",
    )


SCALES = {
    # 14 seeds are 5 minutes. No paper prints a margin; 1 point is 4 of 400 images.
    "demo": of_cells(
        demo.CELLS,
        14,
        1.0,
        demo.FOUND + "Models of 0.07 M parameters on 8x8 digits: no evidence about ImageNet. ",
    ),
    "cifar": of_cells(cifar.CELLS, 10, 0.3, cifar.FOUND),
}


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    item: Literal["thesis_3_3", "thesis_3_2", "thesis_figure_3_2"] = "thesis_3_3",
) -> Study:
    """`num` seeds per arm; `item`: a table or figure, at imagenet."""
    check_item(item, "thesis_3_3", scale)
    values = ITEMS[item] if scale == "imagenet" else SCALES[scale]
    seeds = range(values.first_seed, values.first_seed + (values.num_seeds if num is None else num))
    configs = configs_of(values.cells, seeds, TrainConfig)
    return Study(
        kind="repeats",
        name="distillation" if item == "thesis_3_3" else f"distillation_{item}",
        scale=scale,
        question=values.question,
        source=values.source,
        parents=tuple(config for (arm, _), config in configs.items() if arm in values.parents),
        trials=interleaved(
            Trial(
                Arm(arm, {"model": values.cells[arm].model or arm}),
                config,
                seed - values.first_seed,
            )
            for (arm, seed), config in configs.items()
            if arm not in values.parents
        ),
        metric="val_error_pct",
        margin=values.margin,
        panels=values.panels,
        pairs=values.pairs,
        axis="epochs" if values.lengths else "",
        figures=(*("arm_lines",) * values.lengths, "comparison_forest"),
        tables=(
            *("training_length", "training_length_interaction") * values.lengths,
            "pair_differences",
            "arm_means",
            *("published_arms",) * bool(values.printed),
        ),
        printed=values.printed,
        design="The teacher of a student is the run of its arm with the same seed, trained first.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
