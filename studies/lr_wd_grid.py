"""Which learning rate and weight decay train the demo's models well?

A grid of lr and wd for ViT_P and ViT_C with AdamW and SGD, three seeds a point, scored on minival, which no other study
reports. The winners stand in search_spaces/demo.py with the rule that chose them; the intervals of lr_wd_edf.py lie
around them. The best point of many is chosen from noise too, and its error is optimistic.

    python studies/lr_wd_grid.py  # 252 trials on digits, about 14 minutes on 2 cores
"""

from typing import Literal

from search_spaces import demo
from vitscale import Study, TrainConfig, cross, grid, main, trials

GRIDS = {
    "AdamW": grid(lr=[1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2], wd=[0.01, 0.1, 1.0]),
    "SGD": grid(lr=[0.0125, 0.025, 0.05, 0.1, 0.2, 0.4], wd=[1e-5, 1e-4, 1e-3, 1e-2]),
}


def study(scale: Literal["demo"] = "demo") -> Study:
    base = TrainConfig(**demo.RECIPE, eval_split="minival")  # type: ignore[arg-type]
    plan = tuple(
        trial
        for label, points in GRIDS.items()
        for trial in trials(
            base.replace(optimizer=label.lower()),
            {f"{model} {label}": fields for model, fields in demo.MODELS.items()},
            cross(points, grid(seed=[0, 1, 2])),
        )
    )
    return Study(
        name="lr_wd_grid",
        scale=scale,
        question="Which lr and wd train the demo's models well?",
        source="the rule of Xiao et al. 2021, appendix E: find good values first, then sample around them",
        trials=plan,
        metric="minival_ema_error_pct",
        panels={label: tuple(f"{model} {label}" for model in demo.MODELS) for label in GRIDS},
        figures=("lr_wd_scatter", "learning_curves"),
        tables=("best_points", "good_range"),
        notes="The best of 18 or 24 points is the luckiest, too: read its error as optimistic.",
    )


if __name__ == "__main__":
    main(study)
