"""Does the better architecture depend on the recipe or on the test set? (H. Touvron's thesis, 2022,
section 6.3.4)

A difference of differences other than 0 shows only that the recipe matters more to one
architecture. The winner changes if the simple effects have opposite signs and each is significant
by itself (Gail & Simon 1985): a stronger claim, with its own rule here.

Assumptions: runs of different cells are independent, runs of one cell differ only in their seed,
and means over seeds are nearly normal. Variances may differ. Cells that share seeds share the order
of samples: Welch's interval ignores this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from vitscale.analysis.repeats import estimates
from vitscale.analysis.repeats.estimates import Contrast, contrast
from vitscale.analysis.results import Results
from vitscale.plan.metrics import Metric

ALPHA = 0.05
COLUMNS = (
    "evaluation",
    "kind",
    "effect",
    "a",
    "b",
    "recipe",
    "n",
    "not_finished",
    "difference_points",
    "difference_points_low",
    "difference_points_high",
    "difference_p",
    "df",
    "method",
)
Cells = Mapping[tuple[str, str], pd.DataFrame]  # (architecture, recipe) -> runs


def interaction(
    a1_r1: np.ndarray,
    a2_r1: np.ndarray,
    a1_r2: np.ndarray,
    a2_r2: np.ndarray,
    *,
    sd: float | None = None,
    confidence: float = 0.95,
) -> Contrast:
    """(a1 - a2 under r1) - (a1 - a2 under r2), errors of independent runs, by Welch and
    Satterthwaite.

    `sd`: a standard deviation of all four cells that is known from elsewhere, for cells of a single
    run.
    """
    spread = None if sd is None else [sd] * 4
    return contrast([a1_r1, a2_r1, a1_r2, a2_r2], [1, -1, -1, 1], sd=spread, confidence=confidence)


def cells(results: Results) -> dict[tuple[str, str], pd.DataFrame]:
    """Every planned run by architecture and recipe.

    Raises ValueError if the arms' factors do not name both.
    """
    table = estimates.labelled(results.study, results.trials)
    absent = [name for name in ("architecture", "recipe") if name not in table]
    if absent:
        raise ValueError(
            "the factors of the arms must name architecture and recipe, but lack "
            f"({', '.join(absent)})"
        )
    groups = table.groupby(["architecture", "recipe"], sort=False)
    return {(str(architecture), str(recipe)): runs for (architecture, recipe), runs in groups}


def recipe_interaction(results: Results) -> pd.DataFrame:
    """One row per evaluation set and effect on the metric: simple effects of the architecture under
    each recipe, their difference (the interaction), and per recipe the change of the simple effect
    from one set to the next.

    a and b are the architectures, in the order of the difference; `recipe` is that of a simple
    effect, and the first one of an interaction. A negative simple effect favours a. Over finished
    runs; Welch's t with Satterthwaite's df. `difference_p_holm` is corrected within each kind of
    effect, over all its rows. An interaction is not a change of winner: for that, two simple
    effects of opposite sign must both be shown.
    """
    groups, columns = results.once(cells), estimates.evaluations(results.study)
    rows = [
        row
        for pair in _squares(groups)
        for name, column in columns.items()
        for row in _effects(groups, *pair, name, column)
    ]
    rows += [
        row
        for pair in _squares(groups)
        for sets in combinations(columns, 2)
        for row in _across_sets(groups, *pair, sets, columns)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates(
        ["evaluation", "effect"], ignore_index=True
    )
    tests = list(table[["evaluation", "effect"]].itertuples(index=False, name=None))
    corrected = table.groupby("kind", sort=False)["difference_p"].transform(
        lambda p: results.corrected(
            "difference_p", [tests[i] for i in p.index], p.tolist(), family=str(p.name)
        )
    )
    table.insert(list(table.columns).index("difference_p") + 1, "difference_p_holm", corrected)
    return table


def recipe_cells(results: Results) -> pd.DataFrame:
    """One row per architecture, recipe and evaluation set: mean over finished seeds with Student's
    95% interval, and numbers of runs by status.
    """
    rows = [
        {
            "architecture": architecture,
            "recipe": recipe,
            "evaluation": name,
            **estimates.counts(runs),
            **_mean(estimates.errors(runs, column), results.metric),
        }
        for (architecture, recipe), runs in results.once(cells).items()
        for name, column in estimates.evaluations(results.study).items()
    ]
    return pd.DataFrame(rows)


def _mean(values: np.ndarray, metric: Metric) -> dict[str, float]:
    names = ("mean_error_pct", "mean_error_pct_low", "mean_error_pct_high")
    return dict(zip(names, estimates.value_interval(values, metric), strict=True))


def winners(table: pd.DataFrame) -> pd.DataFrame:
    """The simple effects of recipe_interaction with `winner`: the
    architecture shown to be better, or "".
    """
    simple = table[table["kind"] == "simple"]
    shown = (simple["difference_p_holm"] < ALPHA).to_numpy()
    better = np.where(simple["difference_points"] < 0, simple["a"], simple["b"])
    return simple.assign(winner=np.where(shown, better, ""))


def _squares(groups: Cells) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each pair of architectures and pair of recipes for which all four cells are planned."""
    architectures, recipes = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    for pair in combinations(architectures, 2):
        for recipe_pair in combinations(recipes, 2):
            if all(
                (architecture, recipe) in groups for architecture in pair for recipe in recipe_pair
            ):
                yield pair, recipe_pair


def _effects(
    groups: Cells, pair: tuple[str, str], recipes: tuple[str, str], name: str, column: str
) -> list[dict[str, object]]:
    runs = [groups[architecture, recipe] for recipe in recipes for architecture in pair]
    values = [estimates.errors(of_cell, column) for of_cell in runs]
    minus = f"{pair[0]} − {pair[1]}"
    simple = [
        _row(
            name,
            "simple",
            f"{minus} under {recipe}",
            (*pair, recipe),
            runs[i : i + 2],
            contrast(values[i : i + 2], [1, -1]),
        )
        for recipe, i in zip(recipes, (0, 2), strict=True)
    ]
    effect = f"({minus}) under {recipes[0]} − under {recipes[1]}"
    labels = (*pair, recipes[0])
    return [*simple, _row(name, "interaction", effect, labels, runs, interaction(*values))]


def _across_sets(
    groups: Cells,
    pair: tuple[str, str],
    recipes: tuple[str, str],
    sets: tuple[str, str],
    columns: Mapping[str, str],
) -> list[dict[str, object]]:
    """The same runs on two sets: the difference within each run, contrasted between the
    architectures.
    """
    rows = []
    for recipe in recipes:
        runs = [groups[architecture, recipe] for architecture in pair]
        values = [
            estimates.errors(cell, columns[sets[0]]) - estimates.errors(cell, columns[sets[1]])
            for cell in runs
        ]
        effect = f"({pair[0]} − {pair[1]}) on {sets[0]} − on {sets[1]}, under {recipe}"
        sets_label, labels = f"{sets[0]} and {sets[1]}", (*pair, recipe)
        rows.append(_row(sets_label, "test set", effect, labels, runs, contrast(values, [1, -1])))
    return rows


def _row(
    name: str,
    kind: str,
    effect: str,
    labels: tuple[str, str, str],
    runs: Sequence[pd.DataFrame],
    result: Contrast,
) -> dict[str, object]:
    """A row of recipe_interaction; `labels` are (a, b, recipe)."""
    sizes = ", ".join(str(len(estimates.errors(of_cell))) for of_cell in runs)
    num_unfinished = sum(len(of_cell) for of_cell in runs) - sum(
        len(estimates.errors(of_cell)) for of_cell in runs
    )
    values = (
        name,
        kind,
        effect,
        *labels,
        sizes,
        num_unfinished,
        *result[:4],
        result.df,
        result.method,
    )
    return dict(zip(COLUMNS, values, strict=True))
