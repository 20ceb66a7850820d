"""What a process gets from its surroundings: its streams, and where matplotlib draws windows."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

BACKEND = "MPLBACKEND"


def prepare_streams() -> None:
    """Lets the standard streams take any text: a closed one becomes the null device, and characters
    that an encoding lacks are escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _null(number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _null(number: int) -> TextIO:
    """The null device, also as this file descriptor if it is free: else the next file that is
    opened would get it, and what a library prints to it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(null, number)
    return os.fdopen(null, "w" if number else "r")


def tell(line: str, stream: TextIO) -> None:
    """Prints a line, unless nobody reads the stream any more."""
    with contextlib.suppress(OSError):
        print(line, file=stream, flush=True)


def is_live(console: Console) -> bool:
    """Whether lines may be drawn over. FORCE_COLOR makes rich believe that of a file, too; and `!`
    in a notebook has a terminal, of which the notebook shows every control character.
    """
    return console.is_interactive and console.file.isatty() and "JPY_PARENT_PID" not in os.environ


@contextlib.contextmanager
def without_backend() -> Iterator[None]:
    """Hides MPLBACKEND while matplotlib may be imported: the import fails if this environment lacks
    the backend, as in `!python study.py` of a notebook. No figure needs one.
    """
    given = None if "matplotlib" in sys.modules else os.environ.pop(BACKEND, None)
    try:
        yield
    finally:
        if given is not None:  # a notebook goes on, and may show figures of its own
            os.environ[BACKEND] = given
            if matplotlib := sys.modules.get("matplotlib"):
                with contextlib.suppress(ValueError):
                    matplotlib.rcParams["backend"] = given
