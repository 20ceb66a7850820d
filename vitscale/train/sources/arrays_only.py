"""Unpickles what holds numpy arrays and plain values alone:
a pickle may else run any code of its author.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np


class Forbidden(ValueError):
    """A pickle asks for something other than arrays; the message names it."""


def _as_bytes(text: str, encoding: str) -> bytes:
    """In what way Python 3 writes bytes for Python 2; the codec
    that is called for would be any of Python's.
    """
    if encoding not in ("latin1", "latin-1"):
        raise Forbidden(f"_codecs.encode to {encoding!r:.60}")
    return text.encode("latin1")


def _admitted() -> dict[tuple[str, str], Callable[..., Any]]:
    """What a pickle may call: array and dtype under the names that
    numpy gave them before and after its version 2.
    """
    core: Any = getattr(np, "_core" if hasattr(np, "_core") else "core")
    found: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _as_bytes,
    }
    for name in ("numpy.core", "numpy._core"):
        found[f"{name}.multiarray", "_reconstruct"] = core.multiarray._reconstruct
        found[f"{name}.multiarray", "scalar"] = core.multiarray.scalar
        found[f"{name}.numeric", "_frombuffer"] = core.numeric._frombuffer
    return found


class ArraysOnly(pickle.Unpickler):
    """Admits numpy's arrays, dtypes and numbers beside the values that need no import.

    Raises Forbidden.
    """

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """What a pickle calls by this name."""
        admitted = _admitted().get((module, name))
        if admitted is None:
            raise Forbidden(f"{module}.{name}"[:100])
        return admitted


def load_arrays(content: bytes) -> Any:
    """The arrays, containers and plain values of a pickle, text of Python 2 as latin-1.

    Raises Forbidden.
    """
    return ArraysOnly(io.BytesIO(content), encoding="latin1").load()
