"""Which learning rate and weight decay train each model well, with Lion, NAdamW and Muon?

The search of tune_lr_wd.py for three more optimizers: the same number of points, seeds, epochs and
the same sampler, in intervals as wide. Together they give studies/optimizers.py lr and wd at equal
cost for each optimizer. `vitscale adopt tune_optimizers-demo` writes the winners where it reads
them.

    python studies/tune_optimizers.py  # 192 trials on digits, about 16 minutes on 2 cores
    python studies/tune_optimizers.py --scale fashion  # 96 trials on Fashion-MNIST
    python studies/tune_optimizers.py --scale cifar  # 192 trials on CIFAR-10, for a GPU
"""

from typing import Any, Literal

try:
    from search_spaces.optimizers import FIELDS, SPACES, searched, winners_file
    from vitscale import Arm, Search, TrainConfig, main
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

# (fields of the trainings, beside the recipe; seeds), as of tune_lr_wd.py, which a test holds
TUNING: dict[str, tuple[dict[str, Any], int]] = {
    "demo": ({"epochs": 20, "eval_split": "minival"}, 2),
    "fashion": (
        {
            "epochs": 1,
            "warmup_epochs": 0.17,
            "ema_decay": 0.97,
            "eval_split": "minival",
            "minival_images": 10_000,
        },
        1,
    ),
    "cifar": ({"epochs": 15, "eval_split": "minival", "minival_images": 5_000}, 2),
}


def study(scale: Literal["demo", "fashion", "cifar"] = "demo", num: int = 16) -> Search:
    """`num` points for each model and optimizer."""
    space, (tuning, num_seeds) = SPACES[scale], TUNING[scale]
    base, spaces = TrainConfig(**{**space.RECIPE, **tuning}), searched(scale)
    cells = {f"{m} {label}": (m, label) for label in spaces for m in space.MODELS}
    return Search(
        name="tune_optimizers",
        scale=scale,
        question="Which lr and wd train each model well, with Lion, NAdamW and Muon?",
        source="ours; the protocol of Xiao et al. 2021, appendix E",
        arms={
            Arm(arm, {"model": m}): base.replace(**space.MODELS[m], **FIELDS[label])
            for arm, (m, label) in cells.items()
        },
        spaces={arm: spaces[label] for arm, (_, label) in cells.items()},
        num=num,
        seeds=tuple(range(num_seeds)),
        panels={
            label: tuple(arm for arm, (_, kind) in cells.items() if kind == label)
            for label in spaces
        },
        winners_file=winners_file(scale),
        notes=(
            "The best of many points is lucky, too: read its error as optimistic. Its errors "
            "are of minival alone."
        ),
    )


if __name__ == "__main__":
    main(study)
