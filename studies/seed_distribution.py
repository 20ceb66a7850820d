"""How much does the error of one recipe vary with the seed alone, and what may then be called a
difference?

Trains one model with one recipe at 100 seeds, and at the seed before them, which stands apart: 0 at
scale imagenet, as in the thesis, else 1000, since lr and wd come from a search that used seeds 0
and 1. Only the last epoch counts. Shows mean, spread and extremes on each evaluation set, a
Gaussian fit, whether a seed that is good on one set is good on the other, whether the error on the
way foretells the final one, and how many seeds an arm needs to show a difference. Design: H.
Touvron's thesis, 2022, section 6.3.4, Figures 6.7 to 6.10 (ResNet-50, recipe A2).

    python studies/seed_distribution.py  # 101 trials on digits, about 7 minutes on 2 cores
    python studies/seed_distribution.py --num 200  # 100 seeds more; those that are done are kept
    python studies/seed_distribution.py --scale imagenet --plan  # the thesis' own 101 trials of 300
    epochs
"""

from typing import Literal

from search_spaces import cifar, demo, touvron_thesis
from vitscale import Study, TrainConfig, Trial, main, trials


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int = 100) -> Study:
    """`num` seeds, and the one before them apart."""
    space = {"demo": demo, "cifar": cifar, "imagenet": touvron_thesis}[scale]
    architecture, recipe = space.SEED_CELL
    arm, base = f"{architecture} {recipe}", TrainConfig(**space.CELLS[space.SEED_CELL])
    first = space.FIRST_SEED
    of_sets = ("seed_sets", "seed_correlation") if base.more_evals else ()
    return Study(
        kind="repeats",
        name="seed_distribution",
        scale=scale,
        question="How much does the error of one recipe vary with the seed alone?",
        source="H. Touvron's thesis, 2022, section 6.3.4, Figures 6.7 to 6.10",
        trials=(
            Trial(arm, base.replace(seed=first)),
            *trials(base, {arm: {}}, [{"seed": first + i} for i in range(1, num + 1)]),
        ),
        # those recipes average no weights
        metric="val_error_pct" if scale == "imagenet" else "val_ema_error_pct",
        figures=("seed_histogram", *of_sets[:1], "seed_curves", "seed_intermediate"),
        tables=(
            "seed_statistics",
            "seed_noise",
            *of_sets[1:],
            "seed_power",
            "seed_normality",
            "seed_epochs",
            "published_seed_statistics",
        ),
        design=(
            f"One setting, seeds {first + 1}, {first + 2}, and so on. Seed {first} is the "
            "reference run, which is no draw and in no mean."
        ),
        notes=space.SEED_NOTES,
    )


if __name__ == "__main__":
    main(study)
