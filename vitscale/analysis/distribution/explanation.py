"""What an error distribution function is, in a sentence and a small picture."""

from __future__ import annotations

from vitscale.analysis.kind import Explanation
from vitscale.analysis.report.layout import COLORS
from vitscale.plan.study import Study

EDFS = frozenset({"edf_panels", "edf_panels_vs_best"})
# two curves, the upper one of the arm that forgives more
PICTURE = f"""<svg viewBox="0 0 150 86" width="150" height="86" role="img"
 aria-label="Two step curves that rise from left to right; the upper one is more forgiving">
<g fill="none" stroke-width="1" stroke="#888"><path d="M18 6V64H146"/></g>
<g fill="none" stroke-width="2.2">
<path stroke="{COLORS[0]}" d="M18 56H26V44H34V32H46V22H64V14H98V10H146"/>
<path stroke="{COLORS[1]}" stroke-dasharray="5 2" d="M18 62H38V56H58V48H78V40H100V33H124V27H146"/>
</g>
<g font-size="9" font-family="sans-serif" fill="#555"><text x="60" y="79">value x</text>
<text x="4" y="62" transform="rotate(-90 10 62)">share of draws</text></g></svg>"""


def explanation(study: Study) -> Explanation | None:
    """Of a study that draws an error distribution function."""
    if EDFS.isdisjoint(study.figures):
        return None
    unit = study.column.metric.difference_unit
    return Explanation(
        "An error distribution function (EDF) shows for each x the share of draws that end at most "
        f"x {unit} above the reference of their arm. A curve further up and to the left is that of "
        "an arm which forgives a poor choice of hyperparameters more. On an axis without a "
        "reference, it is the share of draws with a value of at most x, which says how low values "
        "are and nothing about forgiveness.",
        PICTURE,
    )
