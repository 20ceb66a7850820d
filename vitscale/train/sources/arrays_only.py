"""Unpickles only NumPy arrays and plain values, since a pickle could run arbitrary code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np


class Forbidden(ValueError):
    """A pickle needs something other than arrays; the message names it."""


def _as_bytes(text: str, encoding: str) -> bytes:
    """Decodes bytes that Python 3 has pickled for Python 2.

    Only latin1, since a pickle could name any codec of Python.
    """
    if encoding not in ("latin1", "latin-1"):
        raise Forbidden(f"_codecs.encode to {encoding!r:.60}")
    return text.encode("latin1")


def _admitted() -> dict[tuple[str, str], Callable[..., Any]]:
    """The callables that a pickle may use, by (module, name).

    These are arrays and dtypes, under the names of NumPy 1 and NumPy 2.
    """
    core: Any = getattr(np, "_core" if hasattr(np, "_core") else "core")
    admitted: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _as_bytes,
    }
    for name in ("numpy.core", "numpy._core"):
        admitted[f"{name}.multiarray", "_reconstruct"] = core.multiarray._reconstruct
        admitted[f"{name}.multiarray", "scalar"] = core.multiarray.scalar
        admitted[f"{name}.numeric", "_frombuffer"] = core.numeric._frombuffer
    return admitted


class ArraysOnly(pickle.Unpickler):
    """An unpickler that admits only NumPy's arrays, dtypes and scalars.

    Values that need no import are admitted, too. Raises Forbidden.
    """

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """The callable of this name. Raises Forbidden if it is not admitted."""
        function = _admitted().get((module, name))
        if function is None:
            raise Forbidden(f"{module}.{name}"[:100])
        return function


def load_arrays(content: bytes) -> Any:
    """The arrays, containers and plain values of a pickle; text of Python 2 is read as latin-1.

    Raises Forbidden.
    """
    return ArraysOnly(io.BytesIO(content), encoding="latin1").load()
