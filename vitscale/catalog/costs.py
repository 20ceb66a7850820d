"""Printed costs of models: rows of the table "complexity", and how each model is built here."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from vitscale.catalog.tables import table_rows


class PublishedModel(NamedTuple):
    """A row of a paper's table.

    Numbers are kept as printed, since their last digit matters; "" if not printed.
    """

    source: str  # authors, year, table
    name: str  # as printed
    params_m: str  # millions
    flops_g: str  # billions of multiply-adds
    acts_m: str  # millions of output elements
    fields: dict[str, Any]  # of TrainConfig
    reason: str  # why ours deviates; "" where it does not
    epochs: str = ""  # of JFT-300M, that `exaflops` are of
    exaflops: str = ""  # of the whole pre-training, a multiply-add counted as two operations


def published_models() -> list[PublishedModel]:
    """All rows, by table."""
    return [
        PublishedModel(
            row["source"],
            row["name"],
            row["params_m"],
            row["flops_g"],
            row["acts_m"],
            {
                **IMAGENET,
                "model": row["model"],
                "resolution": int(row["resolution"]),
                **json.loads(row["fields"]),
            },
            row["reason"],
            row["epochs"] or "",
            row["exaflops"] or "",
        )
        for row in table_rows("complexity")
    ]


JFT_IMAGES = 303_000_000  # Dosovitskiy et al. 2021, section 4.1


def exaflops(flops: int, epochs: int) -> float:
    """10^18 operations of a pre-training on JFT-300M, of a model with these multiply-adds: forward
    once and backward twice, two operations per multiply-add. Table 6 of Dosovitskiy et al. 2021
    does not say how it counts; this gives its prints for ViTs.
    """
    return 3 * 2 * flops * JFT_IMAGES * epochs / 1e18


IMAGENET: dict[str, Any] = {"dataset": "imagenet", "channels": 3, "num_classes": 1000}


def agrees(printed: str, ours: float, rel: float = 0.0) -> bool:
    """Whether a number equals the printed one to its last digit, or within a fraction `rel` of
    it.
    """
    half_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(float(printed) - ours) <= max(half_digit, rel * float(printed)) * (1 + 1e-9)
