"""The color of each arm in MLflow, the same as that of its curve in the figures."""

from __future__ import annotations

from vitscale.plan.study import Study

_LIGHTER = 0.45  # share of white


def arm_colors(study: Study) -> dict[str, str]:
    """Maps each arm to "#rrggbb".

    MLflow has no panels: where arms of different panels share a color, the later ones are lighter.
    """
    from vitscale.analysis.report.layout import COLORS
    from vitscale.analysis.results import panels

    chosen: dict[str, str] = {}
    for arms in panels(study).values():
        for place, arm in enumerate(arms):
            color = COLORS[place % len(COLORS)]
            for _ in range(2):
                color = _lighter(color) if color in chosen.values() else color
            chosen.setdefault(arm, color)
    return chosen


def _lighter(color: str) -> str:
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + _LIGHTER * (255 - part)):02X}" for part in parts)
