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

from collections.abc import Hashable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.columns import ends, named
from vitscale.analysis.comparisons import ALPHA, Layout, table_of, verdicts, with_p
from vitscale.analysis.estimates import Contrast, contrast
from vitscale.analysis.results import Results


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
            "the factors of the arms must name architecture and recipe, but got "
            f"({', '.join(absent)})"
        )
    groups = table.groupby(["architecture", "recipe"], sort=False)
    return {(str(architecture), str(recipe)): runs for (architecture, recipe), runs in groups}


LAYOUT = Layout(
    ("kind", "effect", "a", "b", "recipe"), "difference", evaluation="first", has_df=True
)


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
    return table_of(results, "recipe_interaction", LAYOUT)


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
            **named(
                "mean", estimates.value_interval(estimates.errors(runs, column), results.metric)
            ),
        }
        for (architecture, recipe), runs in results.once(cells).items()
        for name, column in estimates.evaluations(results.study).items()
    ]
    return pd.DataFrame(rows)


def winners(table: pd.DataFrame) -> pd.DataFrame:
    """The simple effects of recipe_interaction with `winner`: the
    architecture shown to be better, or "".
    """
    simple = table[table["kind"] == "simple"]
    shown = (simple["difference_p_holm"] < ALPHA).to_numpy()
    better = np.where(simple["difference"] < 0, simple["a"], simple["b"])
    return simple.assign(winner=np.where(shown, better, ""))


RANKS = ["evaluation", "a", "b", "pairs", "same", "reversed", "open", *ends("tau")]


def rank_agreement(results: Results) -> pd.DataFrame:
    """One row per evaluation set and two recipes: how far their rankings of the architectures
    agree, as Kendall's tau of the means (pairs in the same order minus pairs in the other one, as a
    share of all pairs; tied means count as neither).

    The interval has every tau that the shown differences leave possible: a pair counts where both
    its simple effects in recipe_interaction are shown (p after Holm below 5%), and may be in either
    order otherwise. It covers at least 95%, for all rows together, also where architectures are
    equal. `same` and `reversed` are pairs that are shown so, `open` the others.
    """
    rows = []
    for name, on_set in winners(results.once(recipe_interaction)).groupby("evaluation", sort=False):
        by_recipe = dict(list(on_set.groupby("recipe", sort=False)))
        for first, other in combinations(by_recipe, 2):
            both = by_recipe[first].merge(by_recipe[other], on=["a", "b"], suffixes=("", "_b"))
            order = np.sign(both["difference"]) * np.sign(both["difference_b"])
            shown = order[(both["winner"] != "") & (both["winner_b"] != "")]
            num, left = len(order), len(order) - len(shown)
            same, reverse = int((shown > 0).sum()), int((shown < 0).sum())
            ends = (order.sum(skipna=False), same - reverse - left, same - reverse + left)
            taus = (float(end) / num for end in ends)
            rows.append((name, first, other, num, same, reverse, left, *taus))
    return pd.DataFrame(rows, columns=RANKS)


def tau_in_words(row: Mapping[Hashable, Any]) -> str:
    """Tau of a row of rank_agreement, with its interval and recipes."""
    point = "–" if np.isnan(row["tau"]) else f"{row['tau']:.2f}"
    ends = f"[{row['tau_low']:.2f}, {row['tau_high']:.2f}]"
    return f"tau of {row['a']} and {row['b']} {point} {ends}"


def rank_sentences(results: Results) -> list[str]:
    """Tau of each two recipes on each set, and whether their rankings are shown to differ."""
    return [
        f"Rankings on {row['evaluation']}: {tau_in_words(row)}, "
        f"{'the rankings differ' if row['tau_high'] < 1 else 'no difference shown'} ({row['same']} "
        f"of {row['pairs']} pairs shown in the same order, {row['reversed']} reversed)."
        for row in results.once(rank_agreement).to_dict("records")
    ]


def sentences(results: Results) -> list[str]:
    """The better architecture under each recipe on each set, whether the winner changes, and the
    interactions.
    """
    table = results.once(recipe_interaction)
    simple, crossed = winners(table), table[table["kind"] == "interaction"]
    better = [
        (f"{row['winner'] or 'no difference shown'} under {row['recipe']} on {row['evaluation']}")
        for _, row in simple.iterrows()
    ]
    changes = (simple[simple["winner"] != ""].groupby(["a", "b"])["winner"].nunique() > 1).any()
    verdict = "so the winner changes" if changes else "no change of winner is shown"
    if len(simple[["a", "b"]].drop_duplicates()) > 1:
        what = "Two architectures under a recipe", "Interactions of recipe and architecture"
        counted = zip((simple, crossed), what, strict=True)
        return [
            *(line for entry in counted for line in verdicts(results, *entry)),
            f"{verdict[0].upper()}{verdict[1:]}.",
        ]
    parts = [
        f"{with_p(row, results.metric)} on {row['evaluation']}" for _, row in crossed.iterrows()
    ]
    return [
        f"Lower {results.metric.label} (p after Holm below 5%): {'; '.join(better)}; {verdict}.",
        f"Interaction of recipe and architecture: {'; '.join(parts)} (p after Holm).",
    ]


ANSWERS = {"recipe_interaction": sentences, "rank_agreement": rank_sentences}
