"""Tables as a reader wants them: Markdown, and text with an
estimate and its interval in one column.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd


def p_value(p: float) -> str:
    """A p with three decimals, or how small it is."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def either(numbers: Iterable[int]) -> str:
    """Ascending, as alternatives: "2 or 3"."""
    return " or ".join(map(str, sorted(set(numbers))))


def to_markdown(table: pd.DataFrame) -> str:
    """A table as Markdown, each estimate together with its interval."""
    shown = as_text(table)
    if shown.empty:
        return "(no row)\n"
    cells = [list(shown.columns), *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(shown.columns), *lines[1:]]) + "\n"


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a reader wants it: strings, `x [low, high]`
    in one column, a dash for a missing number.
    """
    shown, decimals = {}, int(table.attrs.get("decimals", 1))
    for name in map(str, table.columns):
        base = name.removesuffix("_low").removesuffix("_high")
        if base != name and base in table.columns:
            continue
        cells = [_number(value, name, decimals) for value in table[name]]
        if f"{name}_low" in table.columns:
            ends = zip(table[f"{name}_low"], table[f"{name}_high"], strict=True)
            cells = [
                f"{cell} [{_number(low, name, decimals)}, {_number(high, name, decimals)}]"
                if cell != "–"
                else cell
                for cell, (low, high) in zip(cells, ends, strict=True)
            ]
        shown[_heading(name)] = cells
    return pd.DataFrame(shown, dtype=str)


def _heading(name: str) -> str:
    for suffix, unit in (("_pct", " (%)"), ("_points", " (points)"), ("_nats", " (nats)")):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ") + unit
    return name.replace("_", " ")


def _number(value: object, name: str, decimals: int = 1) -> str:
    """A cell: percent and points with so many decimals, p with
    three, other floats with three digits or more.
    """
    if value is pd.NA:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if not isinstance(value, (float, np.floating)):
        return str(value)
    if np.isnan(value):
        return "–"
    if name.removesuffix("_holm").endswith("_p"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if "_pct" in name or name.endswith("_points") or name.startswith("error_median"):
        return f"{value:.{decimals}f}"
    return f"{value:,.0f}" if abs(float(value)) >= 1000 else f"{value:.3g}"
