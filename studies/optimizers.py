"""How forgiving are AdamW, SGD, Lion, NAdamW and Muon, for a ViT with a patchify stem (ViT_P) and
one with a convolutional stem (ViT_C)?

The study of lr_wd_edf.py with three more optimizers: draws of (lr, wd) around good values, and the
share of draws whose error is within e points of that of reference runs at values found beforehand.
Every optimizer had the same search (tune_lr_wd.py, tune_optimizers.py) and has intervals as wide,
1/8 to 4 times its own good value, so what is compared is the shape of its valley and not where it
lies. The good value is that of both models, and the trials with AdamW and SGD are those of
lr_wd_edf.py; on Fashion-MNIST each model has its own.

    python studies/optimizers.py  # 180 trials on digits, of which 72 are those of `make demo`
    python studies/optimizers.py --scale fashion  # 200 trials on Fashion-MNIST: 4 hours of 2 cores
    python studies/optimizers.py --scale cifar --plan  # 400 trials on CIFAR-10, for a GPU
"""

from typing import Literal, NamedTuple

try:
    from search_spaces.optimizers import FIELDS, SPACES, tuned_values
    from search_spaces.winners import good_values
    from search_spaces.xiao2021 import around
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main, sample, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


class Scale(NamedTuple):
    num_draws: int  # (lr, wd) pairs for each model and optimizer
    num_references: int
    notes: str
    by_arm: bool = False  # draws around the winner of each arm


SCALES = {
    "demo": Scale(
        14,
        4,
        "Models of 0.07 M parameters on 8x8 digits, and 400 images of val: no evidence about other "
        "models. Muon and Lion have all values but lr and wd from their papers or timm.",
    ),
    "fashion": Scale(
        16,
        4,
        "Models of 0.1 M parameters, three epochs without augmentation: a short training. A "
        "winner is the best of 16 points, with one seed and one epoch each. Muon and Lion have all "
        "values but lr and wd from their papers or timm.",
        by_arm=True,
    ),
    "cifar": Scale(
        32,
        8,
        "Not trained here. Draws that beat the reference say how far from an optimum it is. Muon "
        "and Lion have all values but lr and wd from their papers or timm.",
    ),
}


SHARED = (
    "lr and wd are log-uniform from 1/8 of a good value to 4 times it, the geometric mean of the "
    "two models' winners with the optimizer. Draw i has seed i; both models share draws and seeds. "
)
BY_ARM = (
    "lr and wd are log-uniform from 1/8 of the winner of their own arm to 4 times it. Draw i has "
    "seed i and lies at the same quantiles of both models' intervals. "
)


def study(scale: Literal["demo", "fashion", "cifar"] = "demo", num: int | None = None) -> Study:
    """`num` draws for each model and optimizer, of which both models share seeds and quantiles."""
    space, values = SPACES[scale], SCALES[scale]
    num = values.num_draws if num is None else num
    good, origin = tuned_values(scale)
    base = TrainConfig(**space.RECIPE, **space.HELD_OUT)
    plan: list[Trial] = []
    for stream, (label, fields) in enumerate(FIELDS.items()):
        for model, shape in space.MODELS.items():
            centre = good[model, label] if values.by_arm else good_values(good, label)
            drawn = sample(around(*centre), num=num, seed=stream)
            points = [{**point, "seed": i} for i, point in enumerate(drawn)]
            arm = Arm(f"{model} {label}", {"model": model, "optimizer": label})
            config = base.replace(**fields, **shape)
            plan += trials(config.replace(more_evals="minival"), {arm: {}}, points)
            lr, wd = good[model, label]
            plan += [
                Trial(arm, config.replace(lr=lr, wd=wd, seed=1000 + i))
                for i in range(values.num_references)
            ]
    return Study(
        kind="distribution",
        name="optimizers",
        scale=scale,
        question="How forgiving are AdamW, SGD, Lion, NAdamW and Muon?",
        source="ours; the design of Xiao et al. 2021, Figures 4 and 5",
        trials=interleaved(plan),
        panels={model: tuple(f"{model} {label}" for label in FIELDS) for model in space.MODELS},
        # each against AdamW: what people would replace
        pairs=tuple(
            (f"{model} {label}", f"{model} AdamW")
            for model in space.MODELS
            for label in FIELDS
            if label != "AdamW"
        ),
        figures=("edf_panels", "lr_wd_scatter", "edf_panels_vs_best"),
        tables=("edf_summary", "arm_comparison", "good_range"),
        design=(
            f"{BY_ARM if values.by_arm else SHARED}The reference runs are at the winner of their "
            f"own arm, with seeds from 1000 on. {origin}"
        ),
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
