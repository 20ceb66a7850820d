"""The columns that the evaluations of a training give to its rows."""

from __future__ import annotations

# 100 in the row of a diverged training, which has none of the others
ERRORS = ("error_pct", "top5_error_pct")
QUANTITIES = ("loss", "error_pct", "top5_error_pct", "ece_pct")
# raw and averaged; without an average the columns of the latter repeat those of the former
WEIGHTS = ("", "ema_")


def column(split: str, weights: str, quantity: str) -> str:
    """The name of a column: "val_error_pct", "val_ema_loss"."""
    return f"{split}_{weights}{quantity}"


def evaluation_columns(split: str) -> tuple[str, ...]:
    """The columns of one evaluation set in the row of each epoch; `vitscale.train.loop.evaluate`
    defines them.

    Rows of trials that were trained before a quantity was there lack its columns.
    """
    return tuple(column(split, weights, quantity) for weights in WEIGHTS for quantity in QUANTITIES)


def error_columns(split: str) -> tuple[str, ...]:
    """Those of `evaluation_columns` that are errors in percent,
    and are in the row of a diverged training too.
    """
    return tuple(column(split, weights, quantity) for weights in WEIGHTS for quantity in ERRORS)
