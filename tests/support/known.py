"""All figures and tables of the kinds of vitscale, by name."""

from __future__ import annotations

from vitscale.analysis.kind import Draw, Table
from vitscale.analysis.kinds import ROOMS

TABLES: dict[str, Table] = {name: make for room in ROOMS for name, make in room.KIND.tables.items()}
FIGURES: dict[str, Draw] = {
    name: draw for room in ROOMS for name, draw in room.KIND.figures.items()
}
