"""How much worse is a short training than a long one, and does an early convolution make up for it?

The error at each length above that at the model's longest, with the optimizer that suits the
family: AdamW for ViTs, SGD for RegNetY. Every length is a full schedule. Design: Xiao et
al. 2021, Figure 2 (seed 0 alone). All trials are trials of optimizer_stability.py: in a store that
has those, this one trains nothing and only reports.

    python studies/training_length.py  # 40 trials on digits, all of optimizer_stability
    python studies/training_length.py --scale imagenet --plan  # the paper's 36 trials, about 6,400
    V100-hours
"""

from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, xiao2021
    from search_spaces.space import Space, family
    from vitscale import Arm, Study, TrainConfig, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    space: Space  # models, recipe and optima
    lengths: tuple[int, ...]  # epochs, each a full schedule; those of optimizer_stability
    num_seeds: int
    first_seed: int  # as of optimizer_stability
    notes: str


SCALES = {
    "demo": Scale(demo, (10, 20, 40, 80), 5, 1000, demo.STABILITY_NOTES),
    "cifar": Scale(cifar, (15, 30, 60, 120), 5, 1000, cifar.STABILITY_NOTES),
    "imagenet": Scale(xiao2021, (50, 100, 200, 400), 1, 0, xiao2021.STABILITY_NOTES),
}


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None) -> Study:
    """`num` seeds per cell, which no search has used."""
    values = SCALES[scale]
    space = values.space
    num = values.num_seeds if num is None else num
    arms: dict[Arm, dict[str, Any]] = {}
    panels: dict[str, tuple[str, ...]] = {}
    for size, models in space.PANELS.items():
        panels[size] = tuple(
            f"{model} {epochs} epochs" for model in models for epochs in values.lengths
        )
        for model in models:
            fields = space.MODELS[model]
            optimizer = "sgd" if family(fields) == "RegNetY" else "adamw"  # Figure 2
            lr, wd = space.OPTIMA[model, optimizer]
            fields = {**fields, "optimizer": optimizer, "lr": lr, "wd": wd}
            arms |= {
                Arm(f"{model} {epochs} epochs", {"model": model}): {**fields, "epochs": epochs}
                for epochs in values.lengths
            }
    return Study(
        kind="repeats",
        name="training_length",
        scale=scale,
        question=(
            "How much worse is a short training than a long one, and does an early "
            "convolution make up for it?"
        ),
        source="Xiao et al. 2021, Figure 2",
        trials=trials(
            TrainConfig(**space.RECIPE, **space.HELD_OUT),
            arms,
            [{"seed": values.first_seed + i} for i in range(num)],
        ),
        panels=panels,
        figures=("training_length",),
        tables=(
            "training_length",
            "training_length_interaction",
            "stability_cells",
            "published_training_length",
        ),
        design=(
            "Every model with one optimizer at every length, a full schedule each. All cells "
            "share their seeds."
        ),
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
