"""Figures as files."""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from vitscale.analysis.report.layout import DEFAULTS
from vitscale.analysis.report.tooltips import is_large, name_groups, with_titles

# nothing of the moment or the machine: the same figure has the same bytes
UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# text stays text, which can be selected, searched and edited; 42 embeds TrueType fonts
STYLE: dict[Any, Any] = {
    **DEFAULTS,
    "svg.hashsalt": "vitscale",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_UNSEEN = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


@matplotlib.rc_context(STYLE)
def as_files(figure: Figure, endings: Collection[str] = tuple(UNDATED)) -> dict[str, bytes]:
    """Ending of a file -> its content, of "png" (150 dpi), "svg" and "pdf": the same bytes from the
    same figure.

    The SVG says what a mark is where the figure does (hover.describe).
    """
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)  # with any engine, each file would be drawn twice
    for artist in figure.findobj(is_large):
        artist.set_rasterized(True)  # a vector file of all of them would open in no viewer
    groups = name_groups(figure)
    files = {ending: _as_file(figure, ending) for ending in UNDATED if ending in endings}
    if "svg" in files:
        files["svg"] = with_titles(files["svg"].decode(), groups).encode()
    return files


@matplotlib.rc_context(STYLE)
def as_png(figure: Figure) -> bytes:
    """A figure as it is in the PNG of `as_files`, which leaves it as it is."""
    return _as_file(figure, "png")


def inline(svg: str, name: str) -> str:
    """An SVG as a part of a page, with ids that no other figure of the page has."""
    drawing = _UNSEEN.sub("", svg[svg.index("<svg") :])
    for reference in ('id="', 'href="#', "url(#"):
        drawing = drawing.replace(reference, f"{reference}{name}-")
    return drawing


def _as_file(figure: Figure, ending: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=ending, dpi=150, metadata=UNDATED[ending])
    return content.getvalue()
