"""Output of commands: aligned columns, short numbers, or one JSON document and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any


def columns(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells as lines; the first `left` columns are left-aligned, others right-aligned."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def si(number: float) -> str:
    """A number with three digits and an SI prefix: 72.5 k, 4.83 M, 17.6 G."""
    exponent = min(3, int(math.log10(number) // 3)) if number >= 1 else 0
    return f"{number / 1000**exponent:.3g} {('', 'k', 'M', 'G')[exponent]}".strip()


def one_line(message: object, max_length: int = 1000) -> str:
    """The message on one line, truncated to `max_length` characters."""
    line = " ".join(str(message).split())
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."


def hours(number: float) -> str:
    """Whole hours from 100 on, with a thousands separator; else three digits: 55,040 or 0.0123."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def print_json(document: Any) -> None:
    """Prints one JSON document; NaN and infinities, which JSON lacks, become null."""
    print(json.dumps(_plain(document), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
