"""Gains on residual branches, one for all channels (ReZero, SkipInit) or one for each (LayerScale):
H. Touvron's thesis, 2022, Tables 3.11 and 3.12, and section 3.5.3.
"""

from collections.abc import Mapping
from typing import Any

from search_spaces.recipes import DEPTH_BASELINE, DEPTH_LAYERSCALE
from search_spaces.vit import SHAPES
from vitscale.catalog.tables import printed_errors

Fields = Mapping[str, Any]
Cell = tuple[str, int]  # method and depth

ADJUSTED = "plain, drop path adjusted"
# section 3.5.3: trained again, with the gains of a LayerScale training, which stay as they are
AGAIN = "gains kept"
KEPT = {"init_parts": "layerscale", "frozen": "layerscale"}
_ZERO = {"layerscale": 1.0, "gain_init": "zero"}
_IN_PRINT = {  # method, where ours has another name
    "baseline": "plain, drop path 0.05",
    "baseline adjusted": ADJUSTED,
    "LayerScale zero": "LayerScale from 0",
    "LayerScale uniform": "LayerScale at random",
}


def gains(eps: float) -> dict[str, Fields]:
    """Method -> fields; gains start at eps, or as the name says."""
    return {
        "ReZero": {"branch_gain": "scalar", **_ZERO},
        "scalar": {"branch_gain": "scalar", "layerscale": eps},
        "LayerScale": {"layerscale": eps},
        "LayerScale from 0": _ZERO,
        "LayerScale at random": {"layerscale": eps, "gain_init": "uniform"},
    }


def name(cell: Cell) -> str:
    return f"{cell[1]} blocks, {cell[0]}"


def _tables_3_11_and_3_12() -> dict[Cell, Fields]:
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


def _arm(row: Mapping[str, str]) -> str:
    cell = _IN_PRINT.get(row["method"], row["method"]), int(row["depth"])
    # a cell that failed before the end is no result
    return name(cell) if row["failed"] == "0" and (cell in CELLS or cell[0] == AGAIN) else ""


CELLS = _tables_3_11_and_3_12()
ERRORS = {  # arm -> error on val
    arm: error
    for table in ("thesis_table3_11", "thesis_table3_12", "thesis_layerscale_retraining")
    for arm, error in printed_errors(table, _arm, {"val": "top1_pct"})["val"].items()
}
