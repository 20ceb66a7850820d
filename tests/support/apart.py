"""Processes whose time of day is another one, as on a machine with a wrong clock."""

from __future__ import annotations

import subprocess
from pathlib import Path

CLOCKS_S = (-86400, -600, 600, 86400)
APART_CLOCK = Path(__file__).with_name("apart_clock.c")


def apart_clock(folder: Path) -> Path | None:
    """The library that sets the clock of a process apart; None without a compiler."""
    library = folder / "apart_clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(APART_CLOCK), "-ldl"]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        return None
    return library


def apart_by(library: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is ahead by so much, and that is not refused."""
    shift = {"LD_PRELOAD": str(library), "CLOCK_APART_S": str(seconds)}
    return {**shift, "VITSCALE_ANY_CLOCK": "1"}
