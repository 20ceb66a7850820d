"""Touvron et al. 2022, Three things everyone should know about Vision Transformers: shapes of
section 3 and recipe.

Shapes are named as in the paper: B18x2 has the width of ViT-B and 18 blocks with 2 parallel
branches of attention and MLP each, so 36 pairs, with as many parameters and multiply-adds as the
sequential B36x1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

from search_spaces.recipes import A2, DEPTH_BASELINE
from search_spaces.vit import SHAPES
from vitscale.catalog.shapes import shape_name
from vitscale.catalog.tables import printed_errors

# for all models in the thesis, section 6.2.1, and in the authors' code; this text has no value
LAYERSCALE = 1e-4


class Shape(NamedTuple):
    """A ViT by size (width and heads), blocks, branches per block, and how it is trained."""

    size: str
    depth: int
    branches: int = 1
    layerscale: bool = False
    epochs: int = 0  # 0: those of the recipe
    ladder: bool = False  # drop path rises with the blocks in sequence; else it is that of the size

    @property
    def pairs(self) -> int:
        """Number of attentions with their MLPs, which determines the cost at one size."""
        return self.depth * self.branches

    @property
    def name(self) -> str:
        trained = " LS" * self.layerscale + (f" {self.epochs} epochs" if self.epochs else "")
        return shape_name(self.size, self.depth, self.branches) + trained + " ladder" * self.ladder

    @property
    def factors(self) -> dict[str, str | int]:
        """Factors of its arm. Shapes are compared within a size and a rule for drop path."""
        return {
            "size": self.size,
            "drop_path_by": "depth" if self.ladder else "size",
            "pairs": self.pairs,
        }

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of TrainConfig, in addition to those of the size."""
        epochs = {"epochs": self.epochs} if self.epochs else {}
        drop_path = {"drop_path": ladder_rate(self)} if self.ladder else {}
        return {
            "depth": self.depth,
            "branches": self.branches,
            "layerscale": LAYERSCALE * self.layerscale,
            **epochs,
            **drop_path,
        }


def ladder_rate(shape: Shape) -> float:
    """Drop path of a shape by its blocks in sequence: the rate of its size, plus the rise from the
    size's own depth.

    Section 2.2 adjusts the rate "per model following" the LayerScale paper, and prints it for Ti,
    S, B of 12 blocks and L of 24. That paper is section 3.5 of the thesis: without LayerScale its
    Table 3.11 has 0.05, 0.10, 0.20, 0.25 at 12, 18, 24, 36 blocks of DeiT-S; the line between them,
    and no change beyond, are ours. With LayerScale it has 0.1 for each 12 blocks (section 3.5.2,
    and CaiT of Table 3.16). Other widths have a constant more or less there, which is the rate of
    the size here. ViT-Ti has none (section 2.2).
    """
    rate, own = float(A2[shape.size].fields["drop_path"]), int(SHAPES[shape.size]["depth"])  # type: ignore[call-overload]
    if not rate:
        return 0.0
    rise = (
        0.1 * (shape.depth - own) / 12
        if shape.layerscale
        else _table_3_11(shape.depth) - _table_3_11(own)
    )
    return round(max(0.0, rate + rise) + 1e-9, 2)


def _table_3_11(blocks: int) -> float:
    """Drop path of DeiT-S without LayerScale at a number of blocks."""
    rates = {depth: float(recipe.fields["drop_path"]) for depth, recipe in DEPTH_BASELINE.items()}
    depths = sorted(rates)
    blocks = min(max(blocks, depths[0]), depths[-1])
    below = max(depth for depth in depths if depth <= blocks)
    above = min(depth for depth in depths if depth >= blocks)
    share = (blocks - below) / (above - below) if above > below else 0.0
    return rates[below] + share * (rates[above] - rates[below])


def with_ladder(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The shapes whose rate the ladder changes, with that rate. For the others, the arm of the
    size serves both readings.
    """
    changed = (shape._replace(ladder=True) for shape in shapes)
    return tuple(
        s for s in dict.fromkeys(changed) if ladder_rate(s) != A2[s.size].fields["drop_path"]
    )


def split(
    size: str, pairs: int, max_branches: int = 2, layerscale: bool = False
) -> tuple[Shape, ...]:
    """The shapes with this number of pairs, in 1 to `max_branches` branches."""
    return tuple(Shape(size, pairs // p, p, layerscale) for p in range(1, max_branches + 1))


def trained(shapes: tuple[Shape, ...], longer: int) -> tuple[Shape, ...]:
    """Each shape for the epochs of the recipe and for `longer`, without and with LayerScale."""
    return tuple(
        shape._replace(epochs=epochs, layerscale=layerscale)
        for shape, epochs, layerscale in product(shapes, (0, longer), (False, True))
    )


# Figures 1, 2 and 3, Tables 2 and 3. The blocks of Figure 3 are a third party's OCR of its axis.
# L24x1 and L12x2 of Figure 2 have LayerScale, for 300 epochs: Table 1 has 84.0% for L24x1 after
# 400, Table 3 has 83.4%. B36x1 and B18x2 of Table 3 are those of Table 2 with LayerScale after 300.
SHAPE_PANELS: dict[str, tuple[Shape, ...]] = {
    "branches": (*split("S", 36, 4), *split("S", 60, 4), *split("B", 36, 4)),
    "widths": (
        *split("Ti", 24),
        *split("S", 24),
        *split("B", 24),
        *split("L", 24, layerscale=True),
    ),
    "depths": tuple(s for size, pairs in product("S", (24, 36, 48, 60)) for s in split(size, pairs))
    + tuple(s for size, pairs in product("B", (12, 24, 36)) for s in split(size, pairs)),
    "LayerScale and epochs": trained(split("B", 36), longer=400),
    "blocks or width": (
        *split("S", 48),
        Shape("B", 12),
        *split("B", 36, layerscale=True),
        Shape("L", 24, 1, True),
    ),
}
LADDER = "drop path by depth"
SHAPE_PANELS[LADDER] = with_ladder(
    shape for panel in list(SHAPE_PANELS.values()) for shape in panel
)
# Table 3: more blocks, and a wider model of about the same cost.
SHAPE_PAIRS: tuple[tuple[Shape, Shape], ...] = (
    *((deep, Shape("B", 12)) for deep in split("S", 48)),
    *((deep, Shape("L", 24, 1, True)) for deep in split("B", 36, layerscale=True)),
)
SHAPE_PAIRS += tuple(
    (laddered, wide) for deep, wide in SHAPE_PAIRS for laddered in with_ladder([deep])
)

# A2 as the text changes it. It gives lr and drop rate for each size; deeper models have both
# readings.
SHAPE_SIZES: dict[str, dict[str, object]] = {
    size: {**A2[size].fields, **SHAPES[size], "more_evals": "v2"} for size in ("Ti", "S", "B", "L")
}

# Table 7, left: stems of a ViT-B of 12 blocks, and 13 blocks, which cost what convolutions do. The
# local transformer is not defined in the text.
STEMS: dict[str, dict[str, object]] = {
    "linear B12": {},
    "linear B13": {"depth": 13},
    "linear BN": {"stem": "patchify_bn"},
    "linear GELU": {"stem": "patchify_gelu"},
    "linear BN GELU": {"stem": "patchify_bn_gelu"},
    "Graham BN": {"stem": "graham"},
    "Graham LN": {"stem": "graham", "stem_norm": "ln"},
    "hMLP BN": {"stem": "hmlp"},
    "hMLP LN": {"stem": "hmlp", "stem_norm": "ln"},
}
STEM_SEEDS = dict.fromkeys(("linear B12", "linear B13", "hMLP BN", "hMLP LN"), 5)  # others: 1


def _stem(row: Mapping[str, str]) -> str:
    """The arm of a row of Table 7; "" for the local transformer."""
    match row["stem"]:
        case "linear":
            after = [row[name] for name in ("norm", "activation") if row[name]]
            return " ".join(["linear", *(after or [row["model"].removeprefix("ViT-")])])
        case "conv":
            return f"Graham {row['norm']}"
        case "hMLP":
            return f"hMLP {row['norm']}"
        case _:
            return ""


STEM_ERRORS = printed_errors(
    "touvron2022_table7", _stem, {name: f"{name}_top1_pct" for name in ("val", "v2")}
)
STEM_SD = 0.12  # points on val: the largest standard deviation of Table 7
