"""An estimate with its interval as three columns: x, x_low and x_high."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def ends(name: str) -> tuple[str, str, str]:
    """The columns of an estimate of this name."""
    return name, f"{name}_low", f"{name}_high"


def named(name: str, values: Iterable[float]) -> dict[str, float]:
    """An estimate and the ends of its interval, by column."""
    return dict(zip(ends(name), map(float, values), strict=True))


def interval_of(row: Any, name: str) -> tuple[Any, Any, Any]:
    """An estimate and the ends of its interval, of a row; of a table, three columns."""
    point, low, high = (row[column] for column in ends(name))
    return point, low, high
