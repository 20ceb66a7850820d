"""With a fixed budget of blocks: how many in a row, how many side by side, and how wide?

Trains ViTs of equal cost whose pairs of attention and MLP stand one after another or in 2 to 4
parallel branches, at several widths and depths, with and without LayerScale, and more blocks
against a wider model of the same cost. Each shape has an lr of its own, chosen on images that are
not reported. Design: Touvron et al. 2022, Figures 1 to 3, Tables 2 and 3, where each of 30 shapes
is trained once at one lr (B12x1 five times: 34 trials). The paper does not say which drop path its
deep models have: 19 of the shapes are trained with a second one.

    python studies/depth_vs_width.py  # 135 trials on digits, about 9 minutes on 2 cores
    python studies/depth_vs_width.py --num 10  # 10 seeds; those that are done are kept
    python studies/depth_vs_width.py --scale cifar  # 315 trials on CIFAR-10, hours of a GPU
    python studies/depth_vs_width.py --scale imagenet --plan  # the paper's own 34 trials, and 19
    with another drop path
"""

from typing import Literal

from search_spaces import cifar, demo, touvron2022
from vitscale import Arm, Study, TrainConfig, Trial, cross, grid, interleaved, main, trials


def study(scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None) -> Study:
    """`num` seeds for each shape and lr."""
    space = {"demo": demo, "cifar": cifar, "imagenet": touvron2022}[scale]
    num = space.NUM_SHAPE_SEEDS if num is None else num
    shapes = list(dict.fromkeys(shape for panel in space.SHAPE_PANELS.values() for shape in panel))
    lrs, swept = (grid(lr=space.SHAPE_LRS), ("lr_sweep",)) if space.SHAPE_LRS else ([{}], ())
    plan: list[Trial] = []
    for shape in shapes:
        base = TrainConfig(**{**space.SHAPE_SIZES[shape.size], **shape.fields})
        seeds = [
            space.FIRST_SHAPE_SEED + i for i in range(max(num, space.MORE_SEEDS.get(shape, 0)))
        ]
        plan += trials(base, {Arm(shape.name, shape.factors): {}}, cross(grid(seed=seeds), lrs))
    return Study(
        kind="shapes",
        name="depth_vs_width",
        scale=scale,
        question=(
            "With a fixed budget of blocks: how many in a row, how many side by side, and how wide?"
        ),
        source="Touvron et al. 2022, Figures 1 to 3, Tables 2 and 3",
        trials=interleaved(plan),
        metric="val_error_pct",  # the paper averages no weights
        panels={
            title: tuple(shape.name for shape in panel)
            for title, panel in space.SHAPE_PANELS.items()
        },
        pairs=tuple((deep.name, wide.name) for deep, wide in space.SHAPE_PAIRS),
        figures=(
            *(name for name in ("branches", "widths", "depths") if name in space.SHAPE_PANELS),
            *swept,
        ),
        tables=(
            "shape_cells",
            "branch_differences",
            "layerscale_and_epochs",
            "blocks_or_width",
            *swept,
            "published_depth_vs_width",
        ),
        design=space.SHAPE_DESIGN,
        notes=space.SHAPE_NOTES,
    )


if __name__ == "__main__":
    main(study)
