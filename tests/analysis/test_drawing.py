"""Figures draw what tables hold: no figures.py computes an estimate."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from vitscale import analysis

FILES = sorted(Path(analysis.__file__).parent.glob("*/figures.py"))
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
    *("members", "copied_from", "planned_optimizer", "share", "spaces", "ranked"),
    *("axes", "contour_axes", "info", "procedure", "is_numeric", "reported"),
    # printed numbers, which are no results; what draws them is drawn by published/figures.py
    *("published_errors", "published_gains", "is_imagenet", "length_deltas", "optimizer_errors"),
    *("optimizer_gaps", "shares_within_4_points", "note", "draw_published_edf"),
    *("draw_published_training_length", "draw_published_optimizer_stability"),
    *("draw_published_seed_histogram", "draw_published_seed_sets", "draw_published_seed_curves"),
    "draw_published_recipe_interaction",
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
    rooms = tuple(f"vitscale.analysis.{path.parent.name}" for path in FILES)
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(rooms)
        for alias in node.names
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


def faults(source: str) -> list[str]:
    """What of a figures.py computes an estimate, as far as its names tell."""
    tree = ast.parse(source)
    return [
        *(f"{line}: {name}()" for name, line in calls(tree) if name in ESTIMATORS),
        *(f"{line}: {name}() of a room" for name, line in room_calls(tree) if name not in FACTS),
        *(
            f"import of {name}"
            for name in imported(tree)
            if name.split(".")[0] in STATISTICS or name.startswith("vitscale.analysis.stats")
        ),
    ]


def test_each_room_has_its_figures() -> None:
    assert {path.parent.name for path in FILES} == {
        *("distribution", "repeats", "shapes", "scaling", "profile", "search", "published")
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_figures_compute_no_estimate(path: Path) -> None:
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "y = np.median(x)",
        "y = values.mean()",
        "low, high = np.percentile(x, [2.5, 97.5])",
        "import scipy.stats",
        "from vitscale.analysis.stats.intervals import wilson",
        "from vitscale.analysis.repeats import estimates\ny = estimates.error_interval(x)",
        "from vitscale.analysis.profile.tables import change\ny = change(a, b)",
    ],
)
def test_an_estimate_in_a_figure_is_found(line: str) -> None:
    assert len(faults(line)) == 1
