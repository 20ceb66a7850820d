"""Columns of tables: an estimate with its interval is three, x, x_low and x_high."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd


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


def row_of(table: pd.DataFrame, **labels: object) -> pd.Series:
    """The only row with these labels."""
    (place,) = np.flatnonzero((table[list(labels)] == list(labels.values())).all(axis=1))
    return table.iloc[place]


def two_decimals(table: pd.DataFrame) -> pd.DataFrame:
    """Shows percentages and points of this table with two decimals: seeds differ in the second."""
    table.attrs["decimals"] = 2
    return table
