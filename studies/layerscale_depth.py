"""Do learned gains let a deeper ViT train, and must each channel have its own?

Trains ViTs of several depths without gains, with another drop path, and with gains on their
residual branches: one for all channels (ReZero, SkipInit) or one for each (LayerScale), which start
at 0, at a small constant, or at random. After H. Touvron's thesis, 2022, Tables 3.11 and 3.12, and
section 3.5.3, where models are trained again with the gains of a first training, which stay as they
are. Each cell is one run there. Fixup and T-Fixup are left out: the text adapts them without saying
how.

    python studies/layerscale_depth.py  # 100 trials on digits, 30 of depth_vs_width: 6 minutes
    python studies/layerscale_depth.py --scale imagenet --plan  # 28, and 4 with kept gains
    python studies/layerscale_depth.py --scale fashion  # 72 on Fashion-MNIST: 90 minutes of 2 cores
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, fashion
    from search_spaces.recipes import DEPTH_BASELINE, DEPTH_LAYERSCALE
    from search_spaces.touvron2022 import LAYERSCALE
    from search_spaces.vit import SHAPES
    from vitscale import Arm, Study, TrainConfig, Trial, interleaved, main
    from vitscale.catalog.tables import printed_errors
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

Fields = Mapping[str, Any]
Cell = tuple[str, int]  # method and depth
AGAIN = "gains kept"  # trained again, with the gains of a LayerScale training
KEPT = {"init_parts": "layerscale", "frozen": "layerscale"}
ADJUSTED = "plain, drop path adjusted"
PRINTED = ("thesis_table3_11", "thesis_table3_12", "thesis_layerscale_retraining")
IN_PRINT = {  # method, where ours has another name
    "baseline": "plain, drop path 0.05",
    "baseline adjusted": ADJUSTED,
    "LayerScale zero": "LayerScale from 0",
    "LayerScale uniform": "LayerScale at random",
}
ZERO = {"layerscale": 1.0, "gain_init": "zero"}


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


def gains(eps: float) -> dict[str, Fields]:
    """Method -> fields; gains start at eps, or as the name says."""
    return {
        "ReZero": {"branch_gain": "scalar", **ZERO},
        "scalar": {"branch_gain": "scalar", "layerscale": eps},
        "LayerScale": {"layerscale": eps},
        "LayerScale from 0": ZERO,
        "LayerScale at random": {"layerscale": eps, "gain_init": "uniform"},
    }


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
FASHION = {**fashion.RECIPE, **fashion.HELD_OUT, **fashion.MODELS["ViT_P"], "patch_size": 7}
FASHION |= {"ema_decay": 0.0, "wd": 0.1, "more_evals": "minival"}
DEPTHS = tuple(DEPTH_BASELINE)


def tables_3_11_and_3_12() -> dict[Cell, Fields]:
    """The columns without T-Fixup and Fixup at four depths, and the baseline at 48 blocks."""
    cells: dict[Cell, Fields] = {}
    for depth, recipe in DEPTH_BASELINE.items():
        shape = {**SHAPES["S"], "depth": depth, "precision": "fp16"}
        cells[ADJUSTED, depth] = {**recipe.fields, **shape}
        if depth != 12:  # where 0.05 is the adjusted rate
            cells["plain, drop path 0.05", depth] = {**recipe.fields, **shape, "drop_path": 0.05}
        scaled = {**DEPTH_LAYERSCALE[depth].fields, **shape}
        for method, fields in gains(float(scaled["layerscale"])).items():
            cells[method, depth] = {**scaled, **fields}
    cells[ADJUSTED, 48] = {**cells[ADJUSTED, 36], "depth": 48, "drop_path": 0.3}
    return cells


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
            *(((of, 12), (of, 4)) for of in ("plain", "LayerScale")),
            *(((of, 24), (of, 12)) for of in ("plain", "LayerScale")),
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
        cells=tables_3_11_and_3_12(),
        pairs=tuple(
            pair
            for depth in DEPTHS
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
        again=DEPTHS,
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


def study(
    scale: Literal["demo", "fashion", "cifar", "imagenet"] = "demo", num: int | None = None
) -> Study:
    """`num` seeds for each arm and lr."""
    values = SCALES[scale]
    seeds = [values.first_seed + i for i in range(values.num_seeds if num is None else num)]
    cells = (*values.cells, *((AGAIN, depth) for depth in values.again))
    arms = {
        (method, depth): Arm(f"{depth} blocks, {method}", {"method": method, "depth": depth})
        for method, depth in cells
    }
    names = {cell: arm.name for cell, arm in arms.items()}
    printed: dict[str, float] = {}
    for table in PRINTED if scale == "imagenet" else ():
        # a cell that failed before the end is no result
        printed |= printed_errors(
            table,
            lambda row: (
                names.get((IN_PRINT.get(row["method"], row["method"]), int(row["depth"])), "")
                if row["failed"] == "0"
                else ""
            ),
            {"val": "top1_pct"},
        )["val"]
    trials: list[Trial] = []
    for cell, fields in values.cells.items():
        base = TrainConfig(**fields)
        lrs = values.lrs or (base.lr,)
        configs = [base.replace(lr=lr, seed=seed) for seed in seeds for lr in lrs]
        trials += [Trial(arms[cell], config, i) for i, config in enumerate(configs)]
        if cell[0] == "LayerScale" and cell[1] in values.again:
            trials += [
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
        trials=interleaved(trials),
        metric="val_error_pct",
        margin=values.margin,
        pairs=tuple((names[a], names[b]) for a, b in values.pairs),
        axis="depth",
        printed={"val": printed} if printed else {},
        figures=("comparison_forest", *(("arm_lines",) if several else ())),
        tables=("pair_differences", "arm_means", *(("published_arms",) if printed else ())),
        design=f"All arms share their seeds{at_best if values.lrs else ''}.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
