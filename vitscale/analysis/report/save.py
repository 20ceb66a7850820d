"""Figures as files."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from vitscale.analysis.report.layout import POINTS

# nothing of the moment or the machine: the same figure has the same bytes
UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# text stays text, which can be selected, searched and edited; 42 embeds TrueType fonts
STYLE: dict[Any, Any] = {"svg.hashsalt": "vitscale", "svg.fonttype": "none", "pdf.fonttype": 42}
_MARK = re.compile(r"<(use|path) ([^>]*)/>")
_NO_MARK = re.compile(r"(<defs>.*?</defs>)", re.DOTALL)
_UNSEEN = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


def as_files(figure: Figure) -> dict[str, bytes]:
    """Ending of a file -> its content, "png" (150 dpi), "svg" and "pdf": the same bytes from the
    same figure.

    The SVG says what a point is, where the figure does (layout.describe_points).
    """
    points = _named_points(figure)
    files = {ending: _as_file(figure, ending) for ending in UNDATED}
    files["svg"] = _with_titles(files["svg"].decode(), points).encode()
    return files


def inline(svg: str, name: str) -> str:
    """An SVG as a part of a page, with ids that no other figure of the page has."""
    drawing = _UNSEEN.sub("", svg[svg.index("<svg") :])
    for reference in ('id="', 'href="#', "url(#"):
        drawing = drawing.replace(reference, f"{reference}{name}-")
    return drawing


def _as_file(figure: Figure, ending: str) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(content, format=ending, dpi=150, metadata=UNDATED[ending])
    return content.getvalue()


def _named_points(figure: Figure) -> dict[str, Sequence[str]]:
    """The id of a group of points in the SVG -> what its points are."""
    described = figure.findobj(lambda artist: hasattr(artist, POINTS))
    points: dict[str, Sequence[str]] = {}
    for index, artist in enumerate(described):
        artist.set_gid(f"points-{index}")
        points[f"points-{index}"] = getattr(artist, POINTS)
    return points


def _with_titles(svg: str, points: Mapping[str, Sequence[str]]) -> str:
    """The drawing with a title for each mark of these groups; a group of which not all points were
    drawn gets none, so that no point has another's.
    """
    for name, texts in points.items():
        start = svg.find(f'<g id="{name}">')
        end = svg.find('<g id="', start + 1)
        if start < 0 or end < 0:
            continue
        parts = _NO_MARK.split(svg[start:end])  # definitions of marks are at odd places
        if sum(len(_MARK.findall(part)) for part in parts[::2]) == len(texts):
            titles = iter(texts)
            parts[::2] = [
                _MARK.sub(
                    lambda mark, titles=titles: (
                        f"<{mark[1]} {mark[2]}><title>{escape(next(titles))}</title></{mark[1]}>"
                    ),
                    part,
                )
                for part in parts[::2]
            ]
            svg = svg[:start] + "".join(parts) + svg[end:]
    return svg
