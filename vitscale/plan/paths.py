"""Paths that the user gives, by options and in the environment."""

from __future__ import annotations

import os
from pathlib import Path


def given(text: str, variable: str, default: str = "") -> str:
    """An option, else a variable of the environment, else a default; an empty one is as unset."""
    return next((t for t in (text, os.environ.get(variable, "")) if t.strip()), default)


def check_printable(text: str) -> str:
    """The same text. Raises ValueError for control characters, such as the carriage return at the
    end of a line from Windows, which would be part of a name.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"a path must have no control characters, but got ({text!r})")
    return text


def path_of(text: str | os.PathLike[str]) -> Path:
    """An absolute path; ~ is the home, also where no shell has replaced it. Raises ValueError."""
    path = Path(check_printable(os.fspath(text)))
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"the home in a path must be known, but got ({str(path)!r})") from error


def data_root(text: str = "") -> str:
    """The absolute path of an option, else of VITSCALE_DATA; empty if neither is given."""
    root = given(text, "VITSCALE_DATA")
    return str(path_of(root)) if root else ""
