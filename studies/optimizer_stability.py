"""How much worse does SGD train a ViT than AdamW, at any length of training, and does an early
convolution help?

Trains each model with both optimizers at four lengths, each with a full schedule, at
lr and wd that were found once for the model and the optimizer, and shows the gap error(SGD) -
error(AdamW). Several seeds give intervals; what diverged is shown as diverged. Design: Xiao et al.
2021, Figure 3 (seed 0 alone). In the paper a run that diverged has the error of the best shorter
schedule, with a dashed line: `--diverged copied` draws it so, from the same trials.

    python studies/optimizer_stability.py  # 80 trials on digits, about 10 minutes on 2 cores
    python studies/optimizer_stability.py --num 10  # 10 seeds; those that are done are kept
    python studies/optimizer_stability.py --scale imagenet --plan  # the paper's 72 trials, about
    12,800 V100-hours
"""

from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, xiao2021
    from search_spaces.space import Space
    from search_spaces.winners import LABELS
    from vitscale import Arm, Study, TrainConfig, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    space: Space  # models, recipe and optima
    lengths: tuple[int, ...]  # epochs, each a full schedule; training_length has the same
    num_seeds: int
    first_seed: int  # not 0 or 1 where a search chose lr and wd with these
    notes: str


# Lengths: three doublings, as in Figure 3. The optima of the demo were found at 20 epochs, and 5
# epochs of warm-up are half of its shortest schedule, but a tenth of the paper's.
SCALES = {
    "demo": Scale(demo, (10, 20, 40, 80), 5, 1000, demo.STABILITY_NOTES),
    "cifar": Scale(cifar, (15, 30, 60, 120), 5, 1000, cifar.STABILITY_NOTES),
    "imagenet": Scale(xiao2021, (50, 100, 200, 400), 1, 0, xiao2021.STABILITY_NOTES),
}


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    diverged: Literal["shown", "copied"] = "shown",
) -> Study:
    """`num` seeds per cell, which no search has used."""
    values = SCALES[scale]
    space = values.space
    num = values.num_seeds if num is None else num
    arms: dict[Arm, dict[str, Any]] = {}
    panels: dict[str, tuple[str, ...]] = {}
    for size, models in space.PANELS.items():
        cells = [(m, o, epochs) for m in models for o in LABELS for epochs in values.lengths]
        names = [f"{m} {LABELS[o]} {epochs} epochs" for m, o, epochs in cells]
        panels[size] = tuple(names)
        for name, (model, optimizer, epochs) in zip(names, cells, strict=True):
            lr, wd = space.OPTIMA[model, optimizer]
            fields = {"epochs": epochs, "optimizer": optimizer, "lr": lr, "wd": wd}
            arms[Arm(name, {"model": model})] = {**space.MODELS[model], **fields}
    end = "_copied" if diverged == "copied" else ""
    return Study(
        kind="repeats",
        name="optimizer_stability",
        scale=scale,
        question=(
            "How much worse does SGD train a ViT than AdamW, at any length, and does an early "
            "convolution help?"
        ),
        source="Xiao et al. 2021, Figure 3",
        trials=trials(
            TrainConfig(**space.RECIPE, **space.HELD_OUT),
            arms,
            [{"seed": values.first_seed + i} for i in range(num)],
        ),
        panels=panels,
        figures=(f"optimizer_stability{end}",),
        tables=(f"optimizer_gap{end}", "optimizer_gap_interaction", "stability_cells"),
        design=(
            "Every model with both optimizers at every length, a full schedule each. All "
            "cells share their seeds."
        ),
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
