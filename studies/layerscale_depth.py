"""Do learned gains let a deeper ViT train, and must each channel have its own?

Trains ViTs of several depths without gains, with another drop path, and with gains on their
residual branches: one for all channels (ReZero, SkipInit) or one for each (LayerScale), which start
at 0, at a small constant, or at random. After H. Touvron's thesis, 2022, Tables 3.11 and 3.12, and
section 3.5.3, where models are trained again with the gains of a first training, which stay as they
are. Each cell is one run there. Fixup and T-Fixup are left out: the text adapts them without saying
how.

    python studies/layerscale_depth.py  # 100 trials on digits, 30 of depth_vs_width: 6 minutes
    python studies/layerscale_depth.py --scale imagenet --plan  # 28, and 4 with kept gains
    python studies/layerscale_depth.py --scale imagenet --item drop_path --plan  # Figure 3.5
    python studies/layerscale_depth.py --scale fashion  # 72 on Fashion-MNIST: 90 minutes of 2 cores
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

try:
    from search_spaces import cifar, demo, fashion
    from search_spaces.gains import ADJUSTED, AGAIN, CELLS, ERRORS, KEPT, Cell, Fields, gains, name
    from search_spaces.recipes import DEPTH_BASELINE
    from search_spaces.space import at_optimum, check_item
    from search_spaces.touvron2022 import LAYERSCALE
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main, trials
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    cells: Mapping[Cell, Fields]
    pairs: tuple[tuple[Cell, Cell], ...]
    lrs: tuple[float, ...]  # (): that of the cell alone
    num_seeds: int
    first_seed: int
    margin: float | None
    notes: str
    again: tuple[int, ...] = ()  # depths at which LayerScale is trained again with its gains


def against(depth: int, *others: str) -> tuple[tuple[Cell, Cell], ...]:
    """LayerScale and each other method of a depth."""
    return tuple((("LayerScale", depth), (other, depth)) for other in others)


DEEP: dict[str, Fields] = {
    "plain": {},
    "drop path 0.1": {"drop_path": 0.1},
    **gains(LAYERSCALE),
    "LayerScale 0.1": {"layerscale": 0.1},
}
# the two pairs of depths ask whether more blocks help at all
SMALL_PAIRS = (
    *against(12, "plain", "scalar", "LayerScale from 0", "LayerScale at random"),
    (("scalar", 12), ("ReZero", 12)),
    (("drop path 0.1", 12), ("plain", 12)),
    (("plain", 12), ("plain", 4)),
    (("LayerScale", 12), ("LayerScale", 4)),
)


def at_depths(base: Fields, methods: Mapping[int, tuple[str, ...]]) -> dict[Cell, Fields]:
    return {
        (name, depth): {**base, "depth": depth, **DEEP[name]}
        for depth, names in methods.items()
        for name in names
    }


SMALL = {12: tuple(DEEP), 4: ("plain", "LayerScale")}
# patches of 7 pixels in place of 4, for an hour and a half of two cores in place of four
FASHION = {**at_optimum(fashion), "patch_size": 7, "ema_decay": 0.0, "wd": 0.1}
FASHION |= {"more_evals": "minival"}

SCALES = {
    "demo": Scale(
        cells=at_depths(demo.SHAPE_SIZES["S"], SMALL),
        pairs=SMALL_PAIRS,
        lrs=(8e-3, 1.6e-2),
        num_seeds=5,
        first_seed=1000,
        # LayerScale is worth about 30 points at 12 blocks in depth_vs_width. No text prints a
        # margin; a sixth of that would be a small part of it.
        margin=5.0,
        notes="With 5 seeds per arm, channel against scalar gains is expected to be undecided: "
        "written before any of these trainings. Models of 0.03 to 0.1 M parameters, trained for "
        "150 steps on 997 images of 8x8 digits: no evidence about the thesis's models on ImageNet. "
        "The grid has two lr, a factor of 2 apart, so that each arm is at its edge.",
    ),
    "cifar": Scale(
        cells=at_depths(cifar.SHAPE_SIZES["S"], SMALL),
        pairs=SMALL_PAIRS,
        lrs=(5e-4, 1e-3, 2e-3),
        num_seeds=5,
        first_seed=0,
        margin=1.0,
        notes="Widths, depths and lr were chosen before any training. One evaluation set only.",
    ),
    "fashion": Scale(
        cells=at_depths(FASHION, dict.fromkeys((4, 12, 24), ("plain", "LayerScale"))),
        pairs=(
            *(((scaling, 12), (scaling, 4)) for scaling in ("plain", "LayerScale")),
            *(((scaling, 24), (scaling, 12)) for scaling in ("plain", "LayerScale")),
            *against(12, "plain"),
            *against(24, "plain"),
        ),
        # the best of tune_lr_wd at 4 blocks with patches of 4 is 9.4e-3; deeper ones may need less
        lrs=(2e-3, 4e-3, 8e-3),
        num_seeds=4,
        first_seed=1000,
        margin=1.0,  # about a tenth of the error; no text prints a margin
        notes="Three epochs without augmentation: a short training, in which depth may cost more "
        "than it brings. Patches are of 7 pixels, 16 tokens. wd is one value for all arms.",
    ),
    "imagenet": Scale(
        cells=CELLS,
        pairs=tuple(
            pair
            for depth in DEPTH_BASELINE
            for pair in (
                *against(depth, ADJUSTED, "scalar", "LayerScale from 0", "LayerScale at random"),
                *against(depth, AGAIN),
                (("LayerScale from 0", depth), ("ReZero", depth)),
            )
        ),
        lrs=(),
        num_seeds=1,
        first_seed=0,
        margin=None,
        again=tuple(DEPTH_BASELINE),
        notes="DeiT-S, 300 epochs, in fp16. Drop path is printed for the baseline at 12 to 36 "
        "blocks. At 48 it has 0.3, the next step of the row, and methods with gains have the rule "
        "of section 3.5.2 for CaiT-S (0, 0.05, 0.1, 0.2), though the text adapts theirs one by "
        "one. Table 3.12 calls the baseline of 0.05 uniform one of 0.1, which is its progressive "
        "rate. 78.9% at 24 and 36 blocks is accuracy before the training failed; here such a run "
        "counts as diverged. The trainings with kept gains have the seed of the first, so the same "
        "other initial weights: the text says 'everything being identical otherwise'. One run per "
        "arm, as in the tables, shows no difference: --num adds seeds.",
    ),
}


RATES = (0.0, 0.05, 0.1, 0.2, 0.3)  # of drop path; the figure prints none


def by_drop_path(num: int) -> Study:
    """LayerScale at each depth with several drop paths."""
    arms = {
        Arm(f"{depth} blocks, drop path {rate:g}", {"depth": depth}): {
            **CELLS["LayerScale", depth],
            "drop_path": rate,
        }
        for depth in DEPTH_BASELINE
        for rate in RATES
    }
    return Study(
        kind="repeats",
        name="layerscale_depth_drop_path",
        scale="imagenet",
        question="Which drop path does a depth need?",
        source="H. Touvron's thesis, 2022, Figure 3.5",
        trials=trials(TrainConfig(), arms, [{"seed": seed} for seed in range(num)]),
        metric="val_error_pct",
        pairs=tuple(
            (f"{depth} blocks, drop path {rate:g}", f"{depth} blocks, drop path 0")
            for depth in DEPTH_BASELINE
            for rate in RATES[1:]
        ),
        axis="drop_path",
        figures=("arm_lines",),
        tables=("pair_differences", "arm_means"),
        design="All arms share their seeds.",
        notes="The figure's rates, depths and values are not printed: depths are those of Table "
        "3.11, rates are ours. 12, 18, 24 and 36 blocks at 0, 0.05, 0.1 and 0.2 are trainings of "
        "Table 3.12. One run per arm shows no difference: --num adds seeds.",
    )


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    item: Literal["gains", "drop_path"] = "gains",
) -> Study:
    """`num` seeds for each arm and lr; `item`: drop path by depth, at imagenet."""
    check_item(item, "gains", scale)
    if item == "drop_path":
        return by_drop_path(1 if num is None else num)
    values = SCALES[scale]
    seeds = [values.first_seed + i for i in range(values.num_seeds if num is None else num)]
    cells = (*values.cells, *((AGAIN, depth) for depth in values.again))
    arms = {cell: Arm(name(cell), {"method": cell[0], "depth": cell[1]}) for cell in cells}
    printed = ERRORS if scale == "imagenet" else {}
    plan: list[Trial] = []
    for cell, fields in values.cells.items():
        base = TrainConfig(**fields)
        lrs = values.lrs or (base.lr,)
        configs = [base.replace(lr=lr, seed=seed) for seed in seeds for lr in lrs]
        plan += [Trial(arms[cell], config, i) for i, config in enumerate(configs)]
        if cell[0] == "LayerScale" and cell[1] in values.again:
            plan += [
                Trial(arms[AGAIN, cell[1]], first.replace(init_from=first.id, **KEPT), i)
                for i, first in enumerate(configs)
            ]
    several = len({depth for _, depth in cells}) > 2  # depths, for a line
    at_best = ", and each is shown at its best lr by its mean error on minival"
    return Study(
        kind="shapes",
        name="layerscale_depth",
        scale=scale,
        question="Do learned gains let a deeper ViT train, and must each channel have its own?",
        source="H. Touvron's thesis, 2022, Tables 3.11 and 3.12",
        trials=interleaved(plan),
        metric="val_error_pct",
        margin=values.margin,
        pairs=tuple((name(a), name(b)) for a, b in values.pairs),
        axis="depth",
        printed={"val": printed} if printed else {},
        figures=("comparison_forest", *(("arm_lines",) if several else ())),
        tables=("pair_differences", "arm_means", *(("published_arms",) if printed else ())),
        design=f"All arms share their seeds{at_best if values.lrs else ''}.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
