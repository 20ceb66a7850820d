"""What questions on optimizers and lengths of training share (Xiao et al. 2021, Figures 3 and 2).

A cell is a model, an optimizer and a number of epochs. Each cell is one arm with a full schedule,
trained with one or several seeds. The arms' factors name the model; optimizer and epochs are those
of the config.

Assumptions: runs of a cell differ only in their seed, and means over seeds are nearly normal. Means
are over finished runs, so they are conditional on finishing. Tables also state how many runs
diverged, and compare arms with such runs as the worst (divergence.py). lr and wd are fixed: whether
other values would close a gap is another question.
"""

from __future__ import annotations

from typing import cast

import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.columns import named
from vitscale.analysis.comparisons import ALPHA, Layout, estimate
from vitscale.analysis.report.text import p_value
from vitscale.analysis.results import Results, panels
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study

MAX_GROUPS = 6  # with a sentence of their own; more are told by their extremes
Cell = tuple[str, str, int]  # model, optimizer, epochs
INTERACTION = Layout(("a", "b", "epochs"), "interaction")
Groups = dict[Cell, pd.DataFrame]
# label, marker of Xiao et al. 2021, Figure 3
OPTIMIZERS = {"adamw": ("AdamW", "^"), "sgd": ("SGD", "v")}


def cells(results: Results) -> dict[Cell, pd.DataFrame]:
    """Every planned run by model, optimizer and epochs, in the order of the plan; shorter schedules
    first.
    """
    table = estimates.labelled(results.study, results.trials).astype(
        {"model": str, "optimizer": str, "epochs": int}
    )
    by_cell = {
        cast(Cell, key): runs
        for key, runs in table.groupby(["model", "optimizer", "epochs"], sort=False)
    }
    return dict(sorted(by_cell.items(), key=lambda item: item[0][2]))


def stability_cells(results: Results) -> pd.DataFrame:
    """One row per model, optimizer and number of epochs: how its runs ended, and the mean of
    the metric over those that finished.

    Student's interval over seeds, from the spread of this cell alone; none for a single run.
    """
    rows = []
    for (model, optimizer, epochs), runs in results.once(cells).items():
        values = estimates.errors(runs)
        rows.append(
            {
                "model": model,
                "optimizer": optimizer,
                "epochs": epochs,
                "planned": len(runs),
                **estimates.counts(runs),
                **named("mean", estimates.value_interval(values, results.metric)),
                "sd": estimates.sd_interval(values)[0],
            }
        )
    return pd.DataFrame(rows)


def members(study: Study, groups: dict[Cell, pd.DataFrame]) -> dict[str, list[str]]:
    """Title of a panel -> its models, in the order of its arms."""
    model_of = {
        str(arm): model for (model, _, _), runs in groups.items() for arm in runs["arm"].unique()
    }
    return {
        title: list(dict.fromkeys(model_of[arm] for arm in arms))
        for title, arms in panels(study).items()
    }


def lengths_of(groups: Groups, key: tuple[str, str]) -> list[Cell]:
    return [cell for cell in groups if cell[:2] == key]


def population(groups: Groups, key: tuple[str, str]) -> str:
    """The population of a curve, all its lengths together."""
    lengths = lengths_of(groups, key)
    return (
        f"{estimates.describe(pd.concat([groups[cell] for cell in lengths]))}, over "
        f"{len(lengths)} lengths"
    )


def rank_sentences(table: pd.DataFrame, a: str, b: str) -> list[str]:
    """Pairs of arms with unfinished runs, compared with those runs as the worst and by their
    number.
    """
    some = table[table["diverged_p"].notna()]
    if some.empty:
        return []
    more, worse = (
        some["diverged_p_holm"] < ALPHA,
        (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] > 0.5),
    )
    better = (some["rank_p_holm"] < ALPHA) & (some["prob_worse"] < 0.5)
    return [
        f"Runs diverged or failed in {len(some)} pairs, and are the worst in this comparison: {a} "
        f"ranks behind {b} in {worse.sum()} and ahead in {better.sum()} of them; that the numbers "
        f"of such runs differ is shown in {more.sum()} (Mann and Whitney's, Fisher's exact test; "
        "p after Holm below 5%)."
    ]


def between_models(table: pd.DataFrame, what: str, metric: Metric) -> list[str]:
    """How often models are shown to differ in an effect;
    with the numbers for a single pair of models.
    """
    if table.empty:
        return []
    shown, tested = table["interaction_p_holm"] < ALPHA, int(table["interaction_p"].notna().sum())
    pairs = list(table.groupby(["a", "b"], sort=False))
    first = (
        f"{what}, compared between models: the difference is shown in {shown.sum()} of "
        f"{len(table)} comparisons (p after Holm below 5%), no interval in {len(table) - tested}."
    )
    if len(pairs) > MAX_GROUPS:
        return [first]
    return [
        first,
        *(
            f"{a} minus {b}: "
            f"{'; '.join(_one_interaction(row, metric) for _, row in rows.iterrows())}."
            for (a, b), rows in pairs
        ),
    ]


def _one_interaction(row: pd.Series, metric: Metric) -> str:
    text = f"{row['epochs']} epochs {estimate(row, 'interaction', metric)}"
    is_tested = pd.notna(row["interaction_p"])
    return f"{text}, {p_value(row['interaction_p_holm'])}" if is_tested else text


def by_model(table: pd.DataFrame, name: str, what: str, metric: Metric) -> list[str]:
    """One sentence per model with the difference at each length."""
    groups = list(table.groupby("model", sort=False))
    if len(groups) > MAX_GROUPS:
        return []
    said = []
    for model, rows in groups:
        own = [
            f"{row['epochs']} epochs {estimate(row, name, metric)}" for _, row in rows.iterrows()
        ]
        said.append(f"{model}, {what}: {'; '.join(own)}.")
    return said
