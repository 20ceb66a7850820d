"""How much does the error of one recipe vary with the seed alone, and how large must a detectable
difference be?

Trains one model with one recipe at 100 seeds, and at the seed before them as a reference run: 0 at
scale imagenet, as in the thesis, else 1000, since lr and wd come from a search that used seeds 0
and 1. Only the last epoch counts. Shows mean, spread and extremes on each evaluation set, a
Gaussian fit, whether a seed that is good on one set is good on the other, whether an intermediate
error predicts the final one, and how many seeds an arm needs to show a difference. Design: H.
Touvron's thesis, 2022, section 6.3.4, Figures 6.7 to 6.10 (ResNet-50, recipe A2).

    python studies/seed_distribution.py  # 101 trials on digits, about 7 minutes on 2 cores
    python studies/seed_distribution.py --num 200  # 100 seeds more; those that are done are kept
    python studies/seed_distribution.py --scale imagenet --plan  # the thesis' own 101 trials of 300
    epochs
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, touvron_thesis
    from vitscale import Study, TrainConfig, Trial, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    cells: Mapping[tuple[str, str], Mapping[str, Any]]  # those of recipe_vs_architecture
    cell: tuple[str, str]  # the one whose distribution over seeds is shown
    first_seed: int  # of the reference run
    metric: str  # the recipes of the thesis average no weights
    notes: str


SCALES = {
    "demo": Scale(
        cells=demo.CELLS,
        cell=("ViT_C", "AdamW"),
        first_seed=1000,
        metric="val_ema_error_pct",
        notes=(
            "One image is 0.25 points of val and 0.5 points of test, so errors take few values. A "
            "model of 0.07 M parameters, trained on 997 images of 8x8 pixels: the numbers say "
            "nothing about the spread of a network on ImageNet."
        ),
    ),
    "cifar": Scale(
        cells=cifar.CELLS,
        cell=("ViT_C", "AdamW"),
        first_seed=1000,
        metric="val_ema_error_pct",
        notes=cifar.FOUND + "One evaluation set only, so nothing is said about another one.",
    ),
    "imagenet": Scale(
        cells=touvron_thesis.CELLS,
        cell=("ResNet-50", "A2"),
        first_seed=0,
        metric="val_error_pct",
        notes=touvron_thesis.A2_CHOICES + "The thesis reports accuracies; here are errors.",
    ),
}


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int = 100) -> Study:
    """`num` seeds, and the one before them as a reference run."""
    values = SCALES[scale]
    architecture, recipe = values.cell
    arm, base = f"{architecture} {recipe}", TrainConfig(**values.cells[values.cell])
    first = values.first_seed
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
        metric=values.metric,
        figures=("seed_histogram", *of_sets[:1], "seed_curves", "seed_intermediate", "agreement"),
        tables=(
            "seed_statistics",
            "seed_noise",
            "seed_spread",
            "agreement",
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
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
