"""Figures as files."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure

UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def as_files(figure: Figure) -> dict[str, bytes]:
    """Ending of a file -> its content, "png" (150 dpi) and
    "svg": the same bytes from the same figure.
    """
    return {ending: _as_file(figure, ending) for ending in UNDATED}


def _as_file(figure: Figure, ending: str) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vitscale"}):
        figure.savefig(content, format=ending, dpi=150, metadata=UNDATED[ending])
    return content.getvalue()
