"""Which learning rate and weight decay train each model well?

A search, and no distribution: Optuna proposes points round by round, from the errors of earlier
ones on minival, from which no study takes its results. A point is trained with several seeds at a
short schedule; a diverged training counts as 100%. What is asked next follows from what came out,
whatever was killed in between. `vitscale adopt tune_lr_wd-demo` makes the winners those that the
other studies use at that scale; at scale imagenet they use the published optima (Xiao et al. 2021,
Table 4), which were found at 50 epochs by a search of unstated size. The best of many points is
lucky, too.

    python studies/tune_lr_wd.py  # 64 points, 128 trials on digits, about 9 minutes on 2 cores
    python studies/tune_lr_wd.py --num 24  # 8 points per arm more
    python studies/tune_lr_wd.py --sampler gp  # a Gaussian process instead of TPE: another study
    python studies/tune_lr_wd.py --asha --num-seeds 1  # stop what is behind at a ninth or a third
    of the schedule
"""

from typing import Literal

from search_spaces import cifar, demo, xiao2021
from vitscale import Arm, Search, TrainConfig, main

LABELS = {"adamw": "AdamW", "sgd": "SGD"}


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int = 16,
    num_seeds: int | None = None,
    sampler: Literal["tpe", "gp"] = "tpe",
    asha: bool = False,
) -> Search:
    """`num` points for each model and optimizer, each trained with seeds 0 to `num_seeds` - 1."""
    space = {"demo": demo, "cifar": cifar, "imagenet": xiao2021}[scale]
    num_seeds = space.NUM_TUNING_SEEDS if num_seeds is None else num_seeds
    base = TrainConfig(**{**space.RECIPE, **space.TUNING})
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
            arm: space.TUNING_SPACES["RegNetY" if "RegNetY" in m else "ViT", o]
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
        # at scale imagenet the studies use published optima
        winners_file="" if scale == "imagenet" else f"search_spaces/tuned/{scale}.json",
        notes=(
            "The best of many points is lucky, too: read its error as optimistic. Its errors "
            "are of minival alone."
        ),
    )


if __name__ == "__main__":
    main(study)
