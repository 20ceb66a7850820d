"""What models cost in print: rows of the table "complexity", and how we build each model."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from vitscale.catalog.tables import table_rows


class PublishedModel(NamedTuple):
    """A row of a paper's table.

    Numbers are kept as printed, since their last digit matters; "" is not printed.
    """

    source: str  # authors, year, table
    name: str  # as printed
    params_m: str  # millions
    flops_g: str  # billions of multiply-adds
    acts_m: str  # millions of output elements
    fields: dict[str, Any]  # of TrainConfig
    reason: str  # why ours deviates; "" where it does not


def published_models() -> list[PublishedModel]:
    """All rows, by table."""
    return [
        PublishedModel(
            row["source"], row["name"], row["params_m"], row["flops_g"], row["acts_m"],
            {**IMAGENET, "model": row["model"], "resolution": int(row["resolution"]),
             **json.loads(row["fields"])},
            row["reason"],
        )
        for row in table_rows("complexity")
    ]  # fmt: skip


IMAGENET: dict[str, Any] = {"dataset": "imagenet", "channels": 3, "num_classes": 1000}


def agrees(printed: str, ours: float, rel: float = 0.0) -> bool:
    """Whether a number is the printed one up to its last digit, or up to a share `rel` of it."""
    half_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(float(printed) - ours) <= max(half_digit, rel * float(printed)) * (1 + 1e-9)
