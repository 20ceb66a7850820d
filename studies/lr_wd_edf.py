"""How forgiving are learning rate and weight decay, and does an early convolution make a ViT more
so?

Draws (lr, wd) pairs around good values, trains a ViT with a patchify stem (ViT_P) and one with a
convolutional stem (ViT_C) at each, with AdamW and with SGD, and shows the error distribution
functions: the share of draws whose error is within e points of that of the reference runs, at
values found good beforehand. Up and to the left is more forgiving. The reference runs have seeds
that the search for these values did not use; their noise is in every comparison, which therefore
needs two of an arm at least. Design: Xiao et al. 2021, Figures 4 and 5 (64 draws, 50 epochs, three
complexities, RegNetY beside the ViTs).

    python studies/lr_wd_edf.py  # 96 trials on digits, about 7 minutes on 2 cores
    python studies/lr_wd_edf.py --num 32  # 64 draws more; those that are done are kept
    python studies/lr_wd_edf.py --scale cifar  # 160 trials of 30 epochs on CIFAR-10, hours of a GPU
    python studies/lr_wd_edf.py --scale imagenet --plan  # the paper's own: 1,170 trials, about
    55,900 V100-hours python studies/lr_wd_edf.py --scale imagenet --num-references 3 --plan  # 36
    runs more, for tests of forgiveness
"""

from itertools import combinations
from typing import Literal

from search_spaces import cifar, demo, xiao2021
from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main, sample, sobol, trials


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    num_scrambles: int = 0,
    num_references: int | None = None,
) -> Study:
    """`num` i.i.d. draws per arm, or as many in
    `num_scrambles` independent scrambled Sobol sequences.
    """
    space = {"demo": demo, "cifar": cifar, "imagenet": xiao2021}[scale]
    base = TrainConfig(**space.RECIPE)
    num = space.NUM_DRAWS if num is None else num
    num_references = space.NUM_REFERENCES if num_references is None else num_references
    if num_references < 1:
        raise ValueError(
            f"num_references >= 1 must hold, but got (num_references={num_references})"
        )
    reference_seeds = range(space.FIRST_REFERENCE_SEED, space.FIRST_REFERENCE_SEED + num_references)
    plan: list[Trial] = []
    panels: dict[str, tuple[str, ...]] = {}
    for stream, (label, optimizer) in enumerate([("AdamW", "adamw"), ("SGD", "sgd")]):
        for size, models in space.PANELS.items():
            arms = {model: Arm(f"{model} {label}", {"model": model}) for model in models}
            panels[f"{label} {size}".strip()] = tuple(arm.name for arm in arms.values())
            for model, arm in arms.items():
                interval = space.INTERVALS["RegNetY" if "RegNetY" in model else "ViT", optimizer]
                if num_scrambles:
                    drawn = sobol(interval, num=num, num_scrambles=num_scrambles, seed=stream)
                else:
                    drawn = sample(interval, num=num, seed=stream)
                # noise is part of the spread
                points = [{**point, "seed": i} for i, point in enumerate(drawn)]
                fields = {"optimizer": optimizer, **space.MODELS[model]}
                plan += trials(base, {arm: fields}, points)
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
        figures=("edf_panels", "lr_wd_scatter", "learning_curves", "edf_panels_vs_best"),
        tables=("edf_summary", "arm_comparison", "good_range"),
        design=space.DESIGN,
        notes=space.NOTES,
    )


if __name__ == "__main__":
    main(study)
