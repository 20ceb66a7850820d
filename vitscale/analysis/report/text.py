"""Tables as a reader wants them: text with an estimate and its interval in one column, Markdown and
LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from vitscale.analysis.columns import interval_of
from vitscale.plan.escape import in_latex, in_markdown
from vitscale.plan.metrics import Metric, fixed

SHORT = {"edf": "EDF", "ema": "EMA", "lr": "lr", "wd": "wd", "vs": "against"}  # in a title
WIDE = 95  # characters of a row that are wider than a page
_BOX = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
CODE, _TYPEWRITER = re.compile("`([^`]*)`"), r"\\texttt{\1}"
# names of estimates that are pure numbers of about 1
PURE = re.compile("area|ratio|prob_|tau|pearson|spearman|correlation|share|slope|exponent")
# how rows were counted and computed: what a reader asks last
METHOD = ("method", "paired", "df", "planned", "finished", "failed", "missing", "not_counted")


class Sentence(str):
    """A sentence with the name of the table that has its numbers."""

    table: str


def about(table: str, sentences: Iterable[str]) -> list[str]:
    """Sentences of a headline whose numbers are in this table; those of another keep theirs."""
    made: list[str] = []
    for text in sentences:
        sentence = Sentence(text)
        sentence.table = getattr(text, "table", table)
        made.append(sentence)
    return made


def in_words(name: str) -> str:
    """The name of a table or figure as a title: "edf_panels_vs_best" is "EDF panels against
    best".
    """
    first, *others = name.split("_")
    return " ".join([SHORT.get(first, first.capitalize()), *(SHORT.get(w, w) for w in others)])


def p_value(p: float) -> str:
    """A p with three decimals, or how small it is."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def either(numbers: Iterable[int]) -> str:
    """Ascending, as alternatives: "2 or 3"."""
    return " or ".join(map(str, sorted(set(numbers))))


def in_reading_order(table: pd.DataFrame) -> pd.DataFrame:
    """The same columns: what a row is about, its n, its estimates, other numbers, the method last.

    The columns that identify a row come before its first count or estimate.
    """
    places = _places(list(map(str, table.columns)))
    return table.iloc[:, sorted(range(len(places)), key=places.__getitem__)]


def _places(names: Sequence[str]) -> list[int]:
    """Of each column: 0 for what a row is about, 1 for its n, 2 for estimates, 3 for other numbers,
    4 for the method.
    """
    places = [
        4 if _is_method(name) else 1 if _is_count(name) else 2 if _is_estimate(name, names) else 3
        for name in names
    ]
    about = next((i for i, place in enumerate(places) if place < 3), 0)
    places[:about] = [place if place == 4 else 0 for place in places[:about]]
    return places


def _is_count(name: str) -> bool:
    """Whether a column says how many runs an estimate is of, and how many diverged."""
    is_p = name.removesuffix("_holm").endswith("_p")
    return name in ("n", "diverged") or (name.startswith(("n_", "diverged_")) and not is_p)


def _is_estimate(name: str, names: Sequence[str]) -> bool:
    """Whether a column is an estimate, an end of its interval, or the p of a test."""
    base = name.removesuffix("_low").removesuffix("_high")
    return f"{base}_low" in names or name.removesuffix("_holm").endswith("_p")


def _is_method(name: str) -> bool:
    return name in METHOD or name.endswith(("_method", "_rule")) or name.startswith("interval_of")


def to_latex(table: pd.DataFrame, name: str, caption: str, metric: Metric | None = None) -> str:
    """A table as LaTeX with rules of booktabs, no wider than the text, each estimate together with
    its interval.

    The first paragraph of the caption is the table's, the others are comments. Of a table with
    estimates it holds these and what they are of, for a page has no room for more; a comment names
    the columns that only the other files have.
    """
    places = _places(list(map(str, table.columns)))
    most = 2 if 2 in places else 4
    shown = as_text(table.loc[:, [place <= most for place in places]], metric)
    left_out = [name for name in as_text(table, metric).columns if name not in shown.columns]
    widths = [max(map(len, [column, *shown[column]])) + 2 for column in shown]
    first, *others = caption.split("\n")
    style = shown.style.format(_latex_cell).format_index(_latex_cell, axis="columns")
    made = style.hide(axis="index").to_latex(
        column_format="".join("r" if all(map(_is_number, shown[c])) else "l" for c in shown) or "l",
        hrules=True,
        position_float="centering",
        caption=CODE.sub(_TYPEWRITER, in_latex(first)),
        label=f"tab:{name}",
    )
    if is_wide := sum(widths) > WIDE:
        made = made.replace(r"\begin{tabular}", rf"{_BOX}\begin{{tabular}}")
        made = made.replace(r"\end{tabular}", r"\end{tabular}}")
    comments = [
        rf"\usepackage[T1]{{fontenc}}, \usepackage{{booktabs{',graphicx' * is_wide}}}",
        *others,
        *([f"in {name}.csv only: {', '.join(left_out)}"] if left_out else []),
    ]
    return "".join(f"% {line}\n" for line in comments) + made


def _latex_cell(text: object) -> str:
    """A cell; one that begins as an option of the \\\\ before it would is kept apart from it."""
    return "{}" * str(text).startswith(("[", "*")) + in_latex(str(text))


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in ("-", "–", "<")


def to_markdown(table: pd.DataFrame, metric: Metric | None = None) -> str:
    """A table as Markdown, each estimate together with its interval."""
    shown = as_text(table, metric)
    if shown.empty:
        return "(no row)\n"
    cells = [list(shown.columns), *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(map(in_markdown, row)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(shown.columns), *lines[1:]]) + "\n"


def as_text(table: pd.DataFrame, metric: Metric | None = None) -> pd.DataFrame:
    """The table as a reader wants it: strings, `x [low, high]`
    in one column, a dash for a missing number. `metric` is that of columns such as `mean`.
    """
    shown = {}
    for name in map(str, table.columns):
        base = name.removesuffix("_low").removesuffix("_high")
        if base != name and base in table.columns:
            continue
        unit = _unit(name, metric)
        places = int(table.attrs.get("decimals", 1)) if unit in ("%", "points") else None
        if f"{name}_low" in table.columns and not unit and PURE.search(name):
            places = 2  # as in sentences and figures
        cells = [_number(value, name, places) for value in table[name]]
        if f"{name}_low" in table.columns:
            ends = zip(table[f"{name}_low"], table[f"{name}_high"], strict=True)
            cells = [
                f"{cell} [{_number(low, name, places)}, {_number(high, name, places)}]"
                if cell != "–"
                else cell
                for cell, (low, high) in zip(cells, ends, strict=True)
            ]
        heading = name.removesuffix("_pct").removesuffix("_points").replace("_", " ")
        shown[f"{heading} ({unit})" if unit else heading] = cells
    return pd.DataFrame(shown, dtype=str)


def _unit(name: str, metric: Metric | None) -> str:
    """The unit of a column, that it names itself or that is the metric's; "" for none."""
    named = {"_pct": "%", "_points": "points"}
    own = next((unit for suffix, unit in named.items() if name.endswith(suffix)), "")
    return own or (metric.unit_of(name) if metric else "")


def _number(value: object, name: str, decimals: int | None) -> str:
    """A cell: p with three decimals, other floats with `decimals` or with three digits or more."""
    if value is pd.NA:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if not isinstance(value, (float, np.floating)):
        return str(value)
    if np.isnan(value):
        return "–"
    if name.removesuffix("_holm").endswith("_p"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if decimals is not None:
        return fixed(float(value), decimals)
    return f"{value:,.0f}" if abs(float(value)) >= 1000 else f"{value:.3g}"


def with_ends(
    row: pd.Series, name: str, number: Callable[[float], str], unit: str = "", after: str = ""
) -> str:
    """A number with its interval, if it has one; `after`: a unit behind both."""
    value, low, high = interval_of(row, name)
    if np.isnan([low, high]).any():
        return f"{number(value)}{unit}{after} (no interval)"
    return f"{number(value)}{unit} [{number(low)}, {number(high)}]{after}"
