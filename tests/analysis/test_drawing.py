"""Figures draw what tables hold: nothing that draws computes an estimate."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from vitscale import analysis
from vitscale.plan.questions import QUESTIONS

ROOM = Path(analysis.__file__).parent
FILES = sorted(
    [*ROOM.glob("*/*figures.py"), *ROOM.glob("questions/*.py"), *ROOM.glob("displays/*.py")]
)
DRAWS = ("Axes", "Figure", "Line")  # in the signature of what draws
# of numpy and of pandas alike
ESTIMATORS = {
    *("mean", "median", "average", "std", "var", "sem", "quantile", "percentile", "cov"),
    *("nanmean", "nanmedian", "nanstd", "nanvar", "nanquantile", "nanpercentile"),
    *("corr", "corrcoef", "polyfit", "lstsq", "histogram", "agg", "aggregate"),
    *("rolling", "ewm", "interp", "random", "default_rng"),
}
STATISTICS = ("scipy", "statsmodels", "sklearn", "statistics", "random")
# What figures may ask a room for without Results.once: runs as they ended, labels, plans.
FACTS = {
    *("describe", "errors", "evaluations", "finished", "counts", "draws_of", "curves"),
    "value_limits",
    *("members", "copied_from", "share", "spaces", "ranked", "why_no_importance"),
    *("population", "lengths_of", "Layout"),
    *("axes", "contour_axes", "info", "procedure", "is_adaptive", "is_numeric", "reported"),
    # printed numbers, which are no results; what draws them is drawn by published/figures.py
    *("shape_errors", "published_gains", "is_imagenet", "length_deltas", "optimizer_errors"),
    *("optimizer_gaps", "shares_within_4_points", "note", "draw_published_edf"),
    *("draw_published_training_length", "draw_published_optimizer_stability"),
    *("draw_published_seed_histogram", "draw_published_seed_sets", "draw_published_seed_curves"),
    *("draw_published_recipe_interaction", "draw_printed_pairs", "draw_printed_line"),
    *("printed_note", "tau_in_words", "seed_ranges", "draw_optimizers"),
}


def calls(tree: ast.AST) -> list[tuple[str, int]]:
    """(last name, line) of each call."""
    return [
        (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    ]


def imported(tree: ast.AST) -> list[str]:
    """Full names of modules, and of what is taken from them."""
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    return names + [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def of_rooms(tree: ast.AST) -> set[str]:
    """Local names of what is imported from the rooms of analysis: modules and functions."""
    shared = ("estimates", "divergence", "cells", "comparisons", "arm_means")
    names = {path.parent.name for path in FILES} - {"displays"} | {*shared}
    rooms = tuple(f"vitscale.analysis.{name}" for name in names)
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}".startswith(rooms) and not alias.name.isupper()
    }


def room_calls(tree: ast.AST) -> list[tuple[str, int]]:
    """(name, line) of each call of a function of a room."""
    rooms, found = of_rooms(tree), []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in rooms:
                found.append((name, node.lineno))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=room), attr=name)) if room in rooms:
                found.append((name, node.lineno))
    return found


def lines_that_draw(tree: ast.Module) -> set[int]:
    """The lines of functions that draw, and those outside of any function."""
    others = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            signature = f"{ast.unparse(node.args)} {node.returns and ast.unparse(node.returns)}"
            if not any(name in signature for name in DRAWS):
                others |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return {*range(1, 10_000)} - others


def faults(source: str, whole: bool = True) -> list[str]:
    """What of a file of figures computes an estimate, as far as its names tell."""
    tree = ast.parse(source)
    drawing = {*range(1, 10_000)} if whole else lines_that_draw(tree)
    found = [(line, name) for name, line in calls(tree) if name in ESTIMATORS]
    found += [(line, f"room's {name}") for name, line in room_calls(tree) if name not in FACTS]
    return [
        *(f"{line}: {name}()" for line, name in found if line in drawing),
        *(
            f"import of {name}"
            for name in imported(tree)
            if whole
            and (name.split(".")[0] in STATISTICS or name.startswith("vitscale.analysis.stats"))
        ),
    ]


def test_figures_are_where_this_looks() -> None:
    drawn = {question.drawn or question.module for question in QUESTIONS if question.figures}
    assert {f"{path.parent.name}.{path.stem}" for path in FILES} >= drawn


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_figures_compute_no_estimate(path: Path) -> None:
    assert faults(path.read_text(), whole=path.name == "figures.py") == []


@pytest.mark.parametrize(
    "line",
    [
        "y = np.median(x)",
        "y = values.mean()",
        "low, high = np.percentile(x, [2.5, 97.5])",
        "import scipy.stats",
        "from vitscale.analysis.stats.intervals import wilson",
        "from vitscale.analysis.questions import recipes\ny = recipes.interaction(x)",
        "from vitscale.analysis import estimates\ny = estimates.error_interval(x)",
        "from vitscale.analysis.estimates import sd_interval\ny = sd_interval(x)",
        "from vitscale.analysis.profile.tables import change\ny = change(a, b)",
    ],
)
def test_an_estimate_in_a_figure_is_found(line: str) -> None:
    assert len(faults(line)) == 1


def test_of_a_question_what_draws_is_looked_at_and_tables_are_not() -> None:
    source = (
        "def table(results):\n    return x.mean()\n\ndef draw(ax: Axes):\n    ax.plot(x.mean())"
    )
    assert faults(source, whole=False) == ["5: mean()"]
