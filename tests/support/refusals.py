"""Refusals by the values that they name, whatever the words of their law."""

from __future__ import annotations

import re
from typing import Any

import pytest


def refusing(*values: object, error: type[Exception] = ValueError) -> Any:
    """A block that is refused: after what must hold, the error names each of these values."""
    named = "".join(f"(?=.*{re.escape(str(value))})" for value in values)
    return pytest.raises(error, match=f"(?s)but got{named}")
