"""Which learning rate and weight decay train each model well?

A search, not a distribution: Optuna proposes points round by round, from the errors of earlier
ones on minival, from which no study takes its results. A point is trained with several seeds at a
short schedule; a diverged training counts as 100%. The next points depend only on results,
also after interruptions. `vitscale adopt tune_lr_wd-demo` makes the winners those that the
other studies use at that scale; at scale imagenet they use the published optima (Xiao et al. 2021,
Table 4), which were found at 50 epochs by a search of unstated size. The best of many points is
lucky, too.

    python studies/tune_lr_wd.py  # 64 points, 128 trials on digits, about 9 minutes on 2 cores
    python studies/tune_lr_wd.py --num 24  # 8 points per arm more
    python studies/tune_lr_wd.py --sampler gp  # a Gaussian process instead of TPE: another study
    python studies/tune_lr_wd.py --asha --num-seeds 1  # stop what is behind at a ninth or a third
    of the schedule
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, fashion, xiao2021
    from search_spaces.space import Space
    from search_spaces.winners import LABELS
    from search_spaces.xiao2021 import interval
    from vitscale import Arm, Search, TrainConfig, main
    from vitscale.plan.design import SearchSpace
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    space: Space  # models and recipe
    tuning: Mapping[str, Any]  # fields of the search's trainings, beside the recipe
    intervals: Mapping[tuple[str, str], SearchSpace]  # (family, optimizer) -> lr and wd
    num_seeds: int
    winners_file: str


SCALES = {
    # Wide: a first search, in narrower intervals, had two of its winners at their ends.
    "demo": Scale(
        space=demo,
        tuning={"epochs": 20, "eval_split": "minival"},  # of 200 images
        intervals={
            ("ViT", "adamw"): interval((2.5e-4, 3.2e-2), (0.01, 1.0)),
            ("ViT", "sgd"): interval((0.01, 0.5), (1e-6, 1e-2)),
        },
        num_seeds=2,
        winners_file="search_spaces/tuned/demo.json",
    ),
    # At a third of the studies' length, warm-up and average; intervals chosen before any training.
    "fashion": Scale(
        space=fashion,
        tuning={
            "epochs": 1,
            "warmup_epochs": 0.17,
            "ema_decay": 0.97,
            "eval_split": "minival",
            "minival_images": 10_000,
        },
        intervals={
            ("ViT", "adamw"): interval((2.5e-4, 3.2e-2), (0.01, 1.0)),
            ("ViT", "sgd"): interval((0.01, 1.0), (1e-5, 1e-2)),
        },
        num_seeds=1,  # of 10,000 images, not 200
        winners_file="search_spaces/tuned/fashion.json",
    ),
    # At the shortest schedule of training_length; intervals chosen before any training, which hold
    # the values that the studies have until there is a winner.
    "cifar": Scale(
        space=cifar,
        tuning={"epochs": 15, "eval_split": "minival", "minival_images": 5_000},
        intervals={
            ("ViT", "adamw"): interval((1e-4, 1e-2), (0.01, 1.0)),
            ("ViT", "sgd"): interval((0.01, 1.0), (1e-5, 1e-2)),
        },
        num_seeds=2,
        winners_file="search_spaces/tuned/cifar.json",
    ),
    # A search of our own (the paper's is not described) in the intervals of Table 4, at the
    # schedule of its optima. No study reads its winners: they use the published optima.
    "imagenet": Scale(
        space=xiao2021,
        tuning={"epochs": 50, "eval_split": "minival", "minival_images": 10_000},
        intervals=xiao2021.INTERVALS,
        num_seeds=1,
        winners_file="",
    ),
}


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo",
    num: int = 16,
    num_seeds: int | None = None,
    sampler: Literal["tpe", "gp", "random"] = "tpe",
    asha: bool = False,
) -> Search:
    """`num` points for each model and optimizer, each trained with seeds 0 to `num_seeds` - 1."""
    values = SCALES[scale]
    space = values.space
    num_seeds = values.num_seeds if num_seeds is None else num_seeds
    base = TrainConfig(**{**space.RECIPE, **values.tuning})
    cells = {
        f"{m} {LABELS[o]}": (m, o)
        for models in space.PANELS.values()
        for o in LABELS
        for m in models
    }
    return Search(
        name="tune_lr_wd" + ("_gp" if sampler == "gp" else "") + ("_asha" if asha else ""),
        scale=scale,
        question="Which lr and wd train each model well, with AdamW and with SGD?",
        source=(
            "Xiao et al. 2021, appendix E: one pair for each model and optimizer, found at a "
            "short schedule"
        ),
        arms={
            Arm(arm, {"model": m}): base.replace(**space.MODELS[m], optimizer=o)
            for arm, (m, o) in cells.items()
        },
        spaces={
            arm: values.intervals["RegNetY" if "RegNetY" in m else "ViT", o]
            for arm, (m, o) in cells.items()
        },
        num=num,
        seeds=tuple(range(num_seeds)),
        sampler=sampler,
        asha=asha,
        panels={
            label: tuple(arm for arm, (_, o) in cells.items() if o == name)
            for name, label in LABELS.items()
        },
        winners_file=values.winners_file,
        notes=(
            "The best of many points is lucky, too: read its error as optimistic. Its errors "
            "are of minival alone."
        ),
    )


if __name__ == "__main__":
    main(study)
