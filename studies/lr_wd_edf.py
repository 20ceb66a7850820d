"""How forgiving are learning rate and weight decay, and does an early convolution make a ViT more
so?

Draws (lr, wd) pairs around good values, trains a ViT with a patchify stem (ViT_P) and one with a
convolutional stem (ViT_C) at each, with AdamW and with SGD, and shows the error distribution
functions: the share of draws whose error is within e points of that of the reference runs, at
values found good beforehand. Up and to the left is more forgiving. The reference runs have seeds
that the search for these values did not use; their noise is in every comparison, which therefore
needs two of an arm at least. Design: Xiao et al. 2021, Figures 4 and 5 (64 draws, 50 epochs, three
complexities, RegNetY beside the ViTs).

    python studies/lr_wd_edf.py  # 72 trials on digits, about 6 minutes on 2 cores
    python studies/lr_wd_edf.py --num 32  # 72 draws more; those that are done are kept
    python studies/lr_wd_edf.py --scale fashion  # 80 trials on Fashion-MNIST, hours of 2 cores
    python studies/lr_wd_edf.py --scale cifar  # 160 trials of 30 epochs on CIFAR-10, hours of a GPU
    python studies/lr_wd_edf.py --scale imagenet --plan  # the paper's own: 1,170 trials, about
    55,500 V100-hours
    python studies/lr_wd_edf.py --scale imagenet --num-references 3 --plan  # 36 runs more, for
    tests of forgiveness
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

try:
    from search_spaces import cifar, demo, fashion, xiao2021
    from search_spaces.space import Space, family
    from search_spaces.winners import LABELS
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main, sample, sobol, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    space: Space  # models, recipe, intervals and optima
    num_draws: int  # (lr, wd) pairs for each model and optimizer
    num_references: int  # runs at the optimum of an arm: their noise is in every comparison
    first_reference_seed: int  # not 0 or 1 where a search chose lr and wd with these
    design: str
    notes: str


def around_winners(origin: str) -> str:
    """The design where the good value of an interval is the mean of two models'; `found`: how."""
    return (
        "lr and wd are log-uniform from 1/8 of a good value to 4 times it, the geometric mean "
        "of the two models'. Draw i has seed i (initial weights, order of samples, "
        "augmentation); both models share draws and seeds. The reference runs are at the good "
        "value of their own arm, with seeds from 1000 on, which neither a search nor a draw "
        "used. " + origin
    )


SCALES = {
    "demo": Scale(
        space=demo,
        num_draws=14,
        num_references=4,  # four of the five seeds of optimizer_stability: the same trials
        first_reference_seed=1000,
        design=(
            "lr and wd are log-uniform from 1/8 of a good value to 4 times it: around "
            + " and ".join(
                f"lr {lr:g} and wd {wd:g} ({LABELS[name]})" for name, (lr, wd) in demo.GOOD.items()
            )
            + ", the geometric means of what was found for the two models. Draw i has seed i "
            "(initial weights, order of samples); both models share draws and seeds. The "
            "reference runs are at their own arm's winner, with seeds from 1000 on, which neither "
            "the search nor a draw used. " + demo.FOUND
        ),
        notes=(
            "Models of 0.07 M parameters on 8x8 digits: this shows that the method works and how "
            "such curves are read. It is no evidence about the paper's models on ImageNet, and "
            "with 14 draws per arm the bands are wide."
        ),
    ),
    "fashion": Scale(
        space=fashion,
        num_draws=16,
        num_references=4,  # a quarter of the draws
        first_reference_seed=1000,
        design=around_winners(fashion.FOUND),
        notes=(
            "Models of 0.1 M parameters, 3 epochs of 50,000 images of Fashion-MNIST; val is its "
            "published test set of 10,000 images, minival 10,000 images of the training set: "
            "images from the same source, so no shift is between them. It is no evidence about the "
            "paper's models on ImageNet, and with 16 draws per arm the bands are wide."
        ),
    ),
    "cifar": Scale(
        space=cifar,
        num_draws=32,
        num_references=8,  # a quarter of the draws
        first_reference_seed=1000,
        design=around_winners(cifar.FOUND),
        notes=cifar.FOUND
        + "Draws that beat the reference say how far from an optimum it is. CIFAR-10 is no "
        "ImageNet.",
    ),
    "imagenet": Scale(
        space=xiao2021,
        num_draws=64,
        num_references=1,  # as in the paper; its noise is then unknown, and no test possible
        first_reference_seed=0,  # of cells of Figure 3 at 50 epochs, too
        design=(
            "lr and wd are log-uniform in the intervals of Table 4, one for each family and "
            "optimizer. Draw i has seed i; models of a family share draws and seeds. The reference "
            "run of an arm is at its optimum of Table 4, seed 0; further ones have the next seeds."
        ),
        notes=xiao2021.NOTES,
    ),
}


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    num_scrambles: int = 0,
    num_references: int | None = None,
) -> Study:
    """`num` i.i.d. draws per arm, or as many in
    `num_scrambles` independent scrambled Sobol sequences.
    """
    values = SCALES[scale]
    space = values.space
    base = TrainConfig(**space.RECIPE, **space.HELD_OUT)
    num = values.num_draws if num is None else num
    num_references = values.num_references if num_references is None else num_references
    if num_references < 1:
        raise ValueError(
            f"num_references >= 1 must hold, but got (num_references={num_references})"
        )
    first = values.first_reference_seed
    reference_seeds = range(first, first + num_references)
    plan: list[Trial] = []
    panels: dict[str, tuple[str, ...]] = {}
    for stream, (optimizer, label) in enumerate(LABELS.items()):
        for size, models in space.PANELS.items():
            arms = {model: Arm(f"{model} {label}", {"model": model}) for model in models}
            panels[f"{label} {size}".strip()] = tuple(arm.name for arm in arms.values())
            for model, arm in arms.items():
                interval = space.INTERVALS[family(space.MODELS[model]), optimizer]
                if num_scrambles:
                    drawn = sobol(interval, num=num, num_scrambles=num_scrambles, seed=stream)
                else:
                    drawn = sample(interval, num=num, seed=stream)
                # noise is part of the spread
                points = [{**point, "seed": i} for i, point in enumerate(drawn)]
                fields = {"optimizer": optimizer, **space.MODELS[model]}
                # the best of k draws is chosen on minival and reported on val; references, which
                # nothing chooses, are the same trials as in optimizer_stability
                plan += trials(base.replace(more_evals="minival"), {arm: fields}, points)
                lr, wd = space.OPTIMA[model, optimizer]
                references = [
                    base.replace(**fields, lr=lr, wd=wd, seed=seed) for seed in reference_seeds
                ]
                plan += [Trial(arm, config) for config in references]
    return Study(
        kind="distribution",
        name="lr_wd_edf_sobol" if num_scrambles else "lr_wd_edf",
        scale=scale,
        question="How forgiving are lr and wd, and does an early convolution make a ViT more so?",
        source="Xiao et al. 2021, Figures 4 and 5",
        trials=interleaved(plan),
        num_scrambles=num_scrambles,
        panels=panels,
        pairs=tuple(pair for arms in panels.values() for pair in combinations(arms, 2)),
        figures=(
            "edf_panels",
            "tuning_budget",
            "lr_wd_scatter",
            "learning_curves",
            "edf_panels_vs_best",
        ),
        tables=(
            "edf_summary",
            "arm_comparison",
            "tuning_budget",
            "tuning_crossings",
            "good_range",
        ),
        design=values.design,
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
