"""Printed tables of the papers, as the files of `published/`: numbers as printed."""

from __future__ import annotations

import csv
from pathlib import Path

FOLDER = Path(__file__).parent / "published"


def table_path(name: str) -> Path:
    """The file of a table by name: "xiao2021_table2", "thesis_seed_statistics", ..."""
    return FOLDER / f"{name}.csv"


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of a table, column -> text, which keeps the last printed digit."""
    with table_path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
