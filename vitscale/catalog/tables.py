"""Printed tables of the papers, as the files of `published/`: numbers as printed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

FOLDER = Path(__file__).parent / "published"


def table_path(name: str) -> Path:
    """The file of a table by name: "xiao2021_table2", "thesis_seed_statistics", ..."""
    return FOLDER / f"{name}.csv"


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of a table, column -> text, which keeps the last printed digit."""
    with table_path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def printed_errors(
    name: str, arm: Callable[[Mapping[str, str]], str], sets: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Evaluation set -> arm -> top-1 error in percent, for `Study.printed`.

    `arm` names the arm of a row, "" for none; `sets` are the columns of top-1 accuracies by set, as
    {"v2": "v2_top1_pct"}. A cell that is empty in print is left out.
    """
    rows = [(arm(row), row) for row in table_rows(name)]
    return {
        name_of_set: {
            of_arm: float(100 - Decimal(row[column]))
            for of_arm, row in rows
            if of_arm and row[column]
        }
        for name_of_set, column in sets.items()
    }
