"""How does error fall with model size and training images, when every cell has an lr of its own?

Trains two families of ViTs, with and without an early convolution, at several sizes on nested
subsets of the images, each cell at several lr and seeds. The lr of a cell is chosen on minival. A
law is fitted to the cells, its forecast of the largest size is scored, and the two families are
compared: where do they cross? Question and ratios of subsets: Dosovitskiy et al. 2021, Figures 4
and 5, Table 6, which tune no lr of pre-training per cell and fit no law.

    python studies/scaling.py  # 180 trials on digits, about 8 minutes on 2 cores
    python studies/scaling.py --num 5  # 5 seeds; those that are done are kept
    python studies/scaling.py --subsets epochs  # subsets train for as many epochs, so fewer steps
    python studies/scaling.py --schedule cooldown  # lengths share a trunk at a constant lr
    python studies/scaling.py --budget 2.6e12 --plan  # the sizes that these multiply-adds pay for
    python studies/scaling.py --scale fashion --subsets epochs  # 180 trials on Fashion-MNIST
    python studies/scaling.py --scale imagenet --plan  # the paper's ratios on ImageNet: 72 trials
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

try:
    from search_spaces import cifar, vit
    from vitscale import Arm, Study, TrainConfig, Trial, cross, grid, interleaved, main, trials
    from vitscale.launch.costs import with_costs
    from vitscale.plan.cost import own_training_flops
    from vitscale.plan.parents import on_trunks
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

# Hägele et al. 2024 cool down over a fifth or a tenth of a training, by 1 minus the root
COOLDOWN = {"decay": "cooldown", "cooldown_share": 0.1, "cooldown_shape": "1-sqrt"}
COOLDOWN_DESIGN = (
    " The lr is constant up to the last tenth of each length, in which it cools down; lengths on "
    "the whole set start from the longest one."
)
TABLES = (
    "scaling_cells",
    "scaling_fit",
    "scaling_forecast",
    "scaling_frontier",
    "scaling_optimum",
    "scaling_crossing",
    "scaling_crossing_at_cost",
)


@dataclass(frozen=True)
class Scale:
    """What this study needs to know of a scale."""

    base: Mapping[str, Any]  # recipe: fields that all cells share
    models: Mapping[str, Mapping[str, Mapping[str, Any]]]  # family -> size -> fields
    images: tuple[int, ...]  # ascending; the last is the whole training set
    lengths: tuple[int, ...]  # epochs on the whole training set; shorter ones on it alone
    lrs: tuple[float, ...]  # times the lr of the fields, if these have one
    num_seeds: int
    notes: str
    first_seed: int = 1000  # no pilot and no search used these


def families(
    widths: tuple[int, ...],
    channels: int,
    depth: int,
    stem: tuple[float, ...],
    strides: str,
    lr_times_width: float | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """ViT_P and ViT_C of these widths, heads of `channels`. ViT_C has one block less and
    a stem of about its cost (Xiao et al. 2021, section 3), channels as multiples of the width.
    With `lr_times_width`, the middle of the grid of lr is in inverse proportion to the width (the
    rule of Yang et al. 2022 for Adam)."""
    sizes: dict[str, dict[str, dict[str, Any]]] = {"ViT_P": {}, "ViT_C": {}}
    for width in widths:
        fields = {"width": width, "heads": width // channels, "mlp_ratio": 3.0, "depth": depth}
        if lr_times_width:
            fields["lr"] = lr_times_width / width
        convs = "-".join(str(round(width * factor)) for factor in stem)
        sizes["ViT_P"][f"width {width}"] = fields
        sizes["ViT_C"][f"width {width}"] = {
            **fields,
            "depth": depth - 1,
            "stem": "conv",
            "stem_channels": convs,
            "stem_strides": strides,
        }
    return sizes


# Dosovitskiy et al. 2021, Figure 4: sizes without the hybrids; b/32 is B/32 at half of all hidden
# sizes. lr of Table 3 for JFT, by model; heads of b are not printed.
B32, L32, L16 = (
    {**vit.SHAPES["B"], "patch_size": 32, "lr": 8e-4},
    {**vit.SHAPES["L"], "patch_size": 32, "lr": 6e-4},
    {**vit.SHAPES["L"], "lr": 4e-4},
)
IMAGENET_MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "ViT-b/32": {"b/32": {**B32, "width": 384, "heads": 6}},
    "ViT-B/32": {"B/32": B32},
    "ViT-L/32": {"L/32": L32},
    "ViT-L/16": {"L/16": L16},
    "R50x1": {"R50x1": {"model": "timm:resnetv2_50x1_bit", "lr": 1e-3}},
    "R152x2": {"R152x2": {"model": "timm:resnetv2_152x2_bit", "lr": 6e-4}},
}

SCALES = {
    "demo": Scale(
        base={"dataset": "digits", "batch_size": 64, "warmup_epochs": 2.0, "wd": 0.1,
              "more_evals": "minival"},
        models=families((16, 24, 32, 48, 72), 8, 3, (0.75, 1.5), "1-2"),
        images=(250, 499, 997),
        lengths=(10,),
        lrs=(4e-3, 1.2e-2, 3.6e-2),
        num_seeds=2,
        notes=(
            "Models of 0.01 to 0.2 M parameters on at most 997 images of 8x8 digits, and 400 "
            "images to report on: this shows how laws are fitted, forecast and scored. Its "
            "exponents say nothing about larger models or other data. The grid has three lr, a "
            "factor of 3 apart."
        ),
    ),
    "fashion": Scale(
        base={"dataset": "fashion_mnist", "resolution": 28, "patch_size": 4,
              "minival_images": 10_000, "batch_size": 128, "warmup_epochs": 0.25, "wd": 0.1,
              "more_evals": "minival"},
        models=families((36, 48, 72, 96, 120), 12, 4, (0.5, 1.0), "2-2", lr_times_width=0.4),
        images=(6_250, 16_667, 50_000),
        lengths=(1,),
        lrs=(1 / 3, 1.0, 3.0),
        num_seeds=2,
        notes=(
            "Models of 0.05 to 0.6 M parameters on Fashion-MNIST, one epoch of at most 50,000 "
            "images: what two cores train in about two hours if subsets train for as many epochs, "
            "and in three and a half if for as many steps. The grid of lr goes down with the "
            "width: in an earlier study of widths 16 to 64 at one grid (up to 0.018), 20 of 24 "
            "cells of widths 16 to 32 chose its upper end and 1 of 8 of width 64. All of it was "
            "chosen before these trainings. minival is 10,000 images of the training set, val the "
            "published test set: images from the same source, so no shift is between them."
        ),
    ),
    "cifar": Scale(
        base={**cifar.RECIPE, "patch_size": 4, "ema_decay": 0.0, "wd": 0.1, "minival_images": 5_000,
              "more_evals": "minival"},
        models=families((96, 128, 192, 256, 384), 32, 6, (0.25, 0.5, 1.0), "1-2-2"),
        images=(5_000, 15_000, 45_000),
        lengths=(7, 15, 30),
        lrs=(5e-4, 1e-3, 2e-3),
        num_seeds=3,
        notes=(
            "Widths, lr and lengths were chosen before any training, and no search confirmed them. "
            "Not trained here."
        ),
    ),
    "imagenet": Scale(
        base={"dataset": "imagenet", "resolution": 224, "channels": 3, "num_classes": 1000,
              "crop": "rrc", "flip_prob": 0.5, "minival_images": 10_000, "more_evals": "minival",
              "optimizer": "adamw", "wd": 0.1, "batch_size": 4096, "decay": "linear",
              "warmup_epochs": 9.0, "precision": "bf16"},
        models=IMAGENET_MODELS,
        images=(38_000, 127_000, 381_000, 1_271_167),
        lengths=(90,),
        lrs=(0.5, 1.0, 2.0),
        num_seeds=1,
        first_seed=0,
        notes=(
            "Dosovitskiy et al. 2021 train on 9, 30, 90 and 300 million images of JFT-300M, which "
            "is not public: ImageNet-1k at the same ratios stands in for it, so these are other "
            "errors at other sizes. Theirs are 24 trainings at one lr each; here each cell has "
            "three around theirs, chosen on minival. They train all subsets with the same settings "
            "(section 4.3; Table 3: weight decay 0.1, 10,000 steps of warm-up, 7 epochs of "
            "JFT-300M). Here weight decay 0.1 is decoupled, which they do not state; the warm-up, "
            "a tenth of the steps, and the length, 90 epochs, are not theirs. "
            "Their early stopping and their 5-shot probe are not here."
        ),
    ),
}  # fmt: skip


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    subsets: Literal["steps", "epochs"] = "steps",
    schedule: Literal["decay", "cooldown"] = "decay",
    budget: float = 0.0,
    far: bool = False,
) -> Study:
    """`num` seeds for each cell and lr. `subsets` train for as many steps or epochs as the whole
    set. `schedule`: each length decays as its scale says, or cools down from a constant lr, so that
    lengths share a trunk. `budget`: multiply-adds of all trainings together, which leaves out the
    largest sizes; 0: no limit. `far`: forecasts beyond 4 times the largest size, marked."""
    values = SCALES[scale] if schedule == "decay" else cooling_down(SCALES[scale])
    num = values.num_seeds if num is None else num
    seeds = grid(seed=[values.first_seed + i for i in range(num)])
    plan: list[Trial] = []
    for family, sizes in values.models.items():
        for size, fields in sizes.items():
            for config, name in cells(values, fields, subsets):
                arm = Arm(
                    f"{family} {size}, {name}" if len(sizes) > 1 else f"{family}, {name}",
                    {"family": family, "size": size},
                )
                lrs = [lr * fields["lr"] if "lr" in fields else lr for lr in values.lrs]
                plan += trials(config, {arm: {}}, cross(seeds, grid(lr=lrs)))
    plan = list(on_trunks(plan))  # none without a cooldown
    whole = Study(
        kind="scaling",
        name="scaling",
        scale=scale,
        question=(
            "How does error fall with model size and training images, when every cell has an lr of "
            "its own?"
        ),
        source="Dosovitskiy et al. 2021, Figures 4 and 5, Table 6; the laws are ours",
        trials=interleaved(plan),
        metric="val_error_pct",
        figures=("error_by_scale", "error_by_compute"),
        tables=(*TABLES, "scaling_forecast_far") if far else TABLES,
        design=(
            "Every model on every subset for as many "
            f"{subsets} as on the whole set, each at every lr of its grid with the same seeds; "
            "the shorter lengths on the whole set alone. Subsets are nested, with the same share "
            "of each class." + COOLDOWN_DESIGN * (schedule == "cooldown")
        ),
        notes=values.notes,
    )
    # a law of size needs three, and one more that is held out
    has_sizes = any(len(sizes) > 1 for sizes in values.models.values())
    return affordable(whole, budget, least=4 if has_sizes else 1) if budget else whole


def cooling_down(values: Scale) -> Scale:
    """The scale with a cooldown over a tenth of each length; half of the length as well if there
    is one alone, or twice it if that is one epoch. The warm-up, which all lengths share, takes at
    most a quarter of the shortest.
    """
    lengths, longest = values.lengths, values.lengths[-1]
    if len(lengths) == 1:
        lengths = (longest // 2, longest) if longest > 1 else (longest, 2 * longest)
    warmup = min(values.base.get("warmup_epochs", TrainConfig.warmup_epochs), lengths[0] / 4)
    base = {**values.base, **COOLDOWN, "warmup_epochs": warmup}
    return replace(values, base=base, lengths=lengths)


def cells(values: Scale, fields: Mapping[str, Any], subsets: str) -> list[tuple[TrainConfig, str]]:
    """(config, name) of each cell of a model: subsets at the greatest length, the whole set at
    every length."""
    *shorter, longest = values.lengths
    whole = TrainConfig(**{**values.base, **fields, "epochs": longest})
    sizes = [
        (_subset(whole, images, subsets), f"{images:,} images") for images in values.images[:-1]
    ]
    sizes.append((whole, f"{whole.num_train:,} images"))
    for epochs in shorter:
        of_all = epochs / longest if whole.decay != "cooldown" else 1  # a trunk has one warm-up
        shorter_one = whole.replace(epochs=epochs, warmup_epochs=whole.warmup_epochs * of_all)
        sizes.append((shorter_one, f"{epochs} of {longest} epochs"))
    return sizes


def _subset(whole: TrainConfig, images: int, subsets: str) -> TrainConfig:
    """The config on a subset, for as many epochs, or for about as many steps, with about as many
    evaluations: at `imagenet`, 3,100 epochs of 38,000 images are as many steps as 90 of all.
    """
    subset = whole.replace(subset_images=images)
    if subsets == "epochs":
        return subset
    epochs = round(whole.num_steps / subset.steps_per_epoch)
    return subset.replace(
        epochs=epochs,
        warmup_epochs=whole.warmup_epochs * epochs / whole.epochs,
        eval_every=round(epochs / whole.epochs),
    )


def affordable(study: Study, budget: float, least: int) -> Study:
    """The study of the smallest sizes that `budget` multiply-adds pay for, all cells of each.

    Raises ValueError if it pays for fewer than `least` sizes.
    """
    costs: dict[object, float] = {}
    measured = with_costs(study).measured
    for trial in study.trials:
        size = trial.arm.factors["size"]
        costs[size] = costs.get(size, 0.0) + own_training_flops(trial.config, measured)
    order = sorted(costs, key=costs.__getitem__)
    totals = list(accumulate(costs[size] for size in order))
    kept = [size for size, total in zip(order, totals, strict=True) if total <= budget]
    if len(kept) < least:
        raise ValueError(
            f"a budget must pay for {least} sizes or more, {totals[least - 1]:.3g} multiply-adds "
            f"for the smallest, but got (budget={budget:g}, which pays for {len(kept)})"
        )
    paid = tuple(trial for trial in study.trials if trial.arm.factors["size"] in kept)
    return replace(study, trials=paid)


if __name__ == "__main__":
    main(study)
