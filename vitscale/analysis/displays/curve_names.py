"""Names that stand beside curves in place of a legend. Nothing is computed here but places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

SIZE = 8.5  # of text, in points
LINE = 1.25 * SIZE / 72  # inches from one line of text to the next
STEP = 0.06  # inches between the points of a curve that are tried, and that are kept clear
GAP = 0.06  # inches between a curve and its name
FAR = 0.5  # inches from other curves beyond which a place is not better
# of a name beside a point of its curve: where its lower left corner is, in widths, heights and gaps
SIDES = ((0, -1, 1, -1), (-1, 0, -1, 1), (0, -0.5, 1, 0), (-1, -0.5, -1, 0))
CORNERS = ((1, 0), (0, 1), (1, 1), (0, 0))  # the lower right one first: curves rise


def write_names(
    ax: Axes,
    names: Sequence[str],
    curves: Sequence[np.ndarray],
    colors: Sequence[str],
    remark: str = "",
) -> None:
    """Writes each name beside its curve, and a remark in a corner, where they cover no curve and no
    other text if there is such a place.

    `curves` are (n, 2) corners in data coordinates. Call it once limits and layout are final.
    """
    size = np.array(ax.bbox.size) / ax.figure.dpi  # inches
    paths = [_path(ax, curve, size) for curve in curves]
    every = np.concatenate([np.empty((0, 2)), *paths])
    taken: list[np.ndarray] = []  # (4,) each: left, bottom, right, top
    if remark:
        room = size - _extent(remark) - 2 * GAP
        corners = GAP + np.array(CORNERS) * room
        taken.append(_best(corners, remark, size, every, np.empty((0, 2)), taken))
        _text(ax, remark, taken[-1], size, "#333333")
    for own, (name, path) in enumerate(zip(names, paths, strict=True)):
        others = np.concatenate([np.empty((0, 2)), *(p for i, p in enumerate(paths) if i != own)])
        sides, extent = np.array(SIDES), _extent(name)
        offsets = sides[:, :2] * extent + sides[:, 2:] * GAP
        places = (path[:, None, :] + offsets).reshape(-1, 2)
        taken.append(_best(places, name, size, every, others, taken))
        _text(ax, name, taken[-1], size, colors[own])


def _path(ax: Axes, curve: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(m, 2) points along the visible part of a curve, in inches from the lower left corner."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    corners = (curve - [left, bottom]) / [right - left, top - bottom] * size
    corners[:, 0] = corners[:, 0].clip(0, size[0])
    lengths = np.hypot(*np.diff(corners, axis=0).T)
    parts = zip(corners[:-1], corners[1:], lengths, strict=True)
    return np.concatenate([np.linspace(a, b, 2 + int(length / STEP)) for a, b, length in parts])


def _extent(text: str) -> np.ndarray:
    """(2,) width and height in inches."""
    lines, font = text.split("\n"), FontProperties(size=SIZE)
    measure = TextToPath().get_text_width_height_descent
    wide = 1.05 * max(measure(line, font, False)[0] for line in lines)  # hinting may add 4%
    return np.array([wide / 72, LINE * len(lines)])


def _best(
    places: np.ndarray,
    text: str,
    size: np.ndarray,
    every: np.ndarray,
    others: np.ndarray,
    taken: Sequence[np.ndarray],
) -> np.ndarray:
    """(4,) the box of a text at the best of (m, 2) lower left corners."""
    low, high = places, places + _extent(text)
    outside = (np.maximum(-low, high - size).max(axis=1) > -0.02).astype(float)
    covered = (_apart(low, high, every) < 0.6 * GAP).sum(axis=1)
    crossed = sum(((low < box[2:]) & (high > box[:2])).all(axis=1).astype(float) for box in taken)
    apart = _apart(low, high, others).min(axis=1, initial=FAR)
    best = int(np.argmax(apart - 10 * covered - 1e3 * crossed - 1e4 * outside))
    return np.concatenate([low[best], high[best]])


def _apart(low: np.ndarray, high: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(m, n) distances from (m, 2) boxes to (n, 2) points."""
    beside = np.maximum(low[:, None] - points, points - high[:, None]).clip(min=0)
    return np.hypot(beside[..., 0], beside[..., 1])


def _text(ax: Axes, text: str, box: np.ndarray, size: np.ndarray, color: str) -> None:
    left, top = box[[0, 3]] / size
    ax.text(
        left,
        top,
        text,
        transform=ax.transAxes,
        va="top",
        color=color,
        fontsize=SIZE,
        linespacing=LINE * 72 / SIZE,
        bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.8},
        zorder=6,
        parse_math=False,
    )
