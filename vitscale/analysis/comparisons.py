"""Tables of comparisons of arms, each at its own lr: a row per comparison of the plan and
evaluation set, with the difference of means, its interval, p, and p after Holm's correction.

What is compared, and what is corrected together, is in vitscale/plan/comparisons.py. Differences
are over the runs that finished, by Welch's t with Satterthwaite's df; numbers of diverged runs have
columns of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from vitscale.analysis import divergence, estimates
from vitscale.analysis.cells import Cell, cells
from vitscale.analysis.columns import interval_of, named
from vitscale.analysis.estimates import Contrast, contrast
from vitscale.analysis.report.text import p_value
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import Comparison, factorial, is_paired, varied
from vitscale.plan.metrics import Metric
from vitscale.plan.questions import COMPARED
from vitscale.plan.study import Study

ALPHA = 0.05
MAX_ROWS = 10  # of a table that sentences give one by one
VERDICTS = ("shown", "equivalent", "undecided")
RANKS = ("prob_worse", "rank_p", "diverged_p")  # of the first of two arms, of divergence.py


@dataclass(frozen=True)
class Layout:
    """The columns of a table of comparisons.

    `keys` name the comparisons, where there is none to read them from. `value` begins the names of
    the columns of the difference. `suffixes` are of the columns of two arms; without, the numbers
    of runs of all arms are in one column.
    """

    keys: tuple[str, ...]
    value: str
    suffixes: tuple[str, str] | None = None
    evaluation: Literal["none", "first", "last"] = "none"
    has_lr: bool = False
    has_ranks: bool = False
    has_df: bool = False


@dataclass(frozen=True)
class Row:
    """A comparison on one set, or between two; `runs` are those that it is made of, of each arm."""

    comparison: Comparison
    on: tuple[str, ...]
    cells: tuple[Cell, ...]
    runs: tuple[pd.DataFrame, ...]
    result: Contrast
    equivalent_p: float = np.nan  # of a difference beyond the study's margin

    @property
    def evaluation(self) -> str:
        return " and ".join(self.on)

    @property
    def key(self) -> tuple[object, ...]:
        """What identifies the test."""
        return *self.comparison.about.values(), self.evaluation


def compared(results: Results, name: str) -> list[Row]:
    """The comparisons of a table of the plan, in its order."""
    study, table, by_arm = results.study, COMPARED[name], results.once(cells)
    columns = estimates.evaluations(study)
    if table.sets == "metric":
        columns = {study.column.split: "value"}
    return [
        _row(study, row, on, tuple(by_arm[arm] for arm in row.weights), columns)
        for row in table.make(study)
        for on in table.on(study, row)
    ]


def _row(
    study: Study,
    comparison: Comparison,
    on: tuple[str, ...],
    cells: tuple[Cell, ...],
    columns: Mapping[str, str],
) -> Row:
    runs = tuple(cell.runs for cell in cells)
    names, weights = [columns[name] for name in on], list(comparison.weights.values())
    paired = is_paired(study, comparison.weights)
    runs = _of_common_parents(runs) if paired else runs
    values = _values(runs, names)
    of_parents = estimates.means_of_parents if paired else estimates.by_parent
    values = [of_parents(r, x) for r, x in zip(runs, values, strict=True)]
    if paired:
        groups, of_groups = [np.dot(weights, values)], [1.0]
        result = contrast(groups, of_groups)
        if result.method == "t":
            result = result._replace(method="paired t by parent")
    else:
        groups, of_groups = values, weights
        result = difference(runs, comparison, values)
    p = np.nan
    if study.margin is not None:
        p = estimates.equivalence_p(result, study.margin, groups, of_groups)
    return Row(comparison, on, cells, runs, result, p)


def _of_common_parents(runs: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, ...]:
    """Of each arm the finished runs whose parent has one in each arm."""
    done = [estimates.finished(frame) for frame in runs]
    common = set.intersection(*(set(frame["init_from"]) for frame in done))
    return tuple(frame[frame["init_from"].isin(common)] for frame in done)


def _values(runs: Sequence[pd.DataFrame], columns: Sequence[str]) -> list[np.ndarray]:
    """Of each arm the values of a column, or the differences of two within each run."""
    values = [estimates.errors(r, columns[0]) for r in runs]
    for name in columns[1:]:
        values = [x - estimates.errors(r, name) for x, r in zip(values, runs, strict=True)]
    return values


def difference(
    runs: Sequence[pd.DataFrame], comparison: Comparison, values: Sequence[np.ndarray]
) -> Contrast:
    """The weighted sum of the means of each arm's values, by Welch's t, also of shared seeds.

    A seed gives two arms the same order of samples, and the same initial weights if they are of one
    model. Pairs have half the degrees of freedom: where that correlates nothing their interval is
    wider by 24% at 3 seeds and by 12% at 5, and they lose both runs of a seed that diverged in one.
    Where it correlates, Welch's interval is too wide and holds its level.

    Without a run that finished in each arm, the method says how those of the others ended.
    """
    result = contrast(values, list(comparison.weights.values()))
    if not np.isnan(result.estimate):
        return result
    without = [
        f"{arm}: {estimates.describe(arm_runs)}"
        for arm, arm_runs, x in zip(comparison.weights, runs, values, strict=True)
        if not len(x)
    ]
    return result._replace(method="; ".join(without))


def table_of(
    results: Results, name: str, layout: Layout, change: Callable[[Row], Row] = lambda row: row
) -> pd.DataFrame:
    """The table of a name of COMPARED. `change` may replace the runs of a row."""
    rows = [change(row) for row in compared(results, name)]
    keys = list(rows[0].comparison.about) if rows else list(layout.keys)
    made = [_cells_of(row, layout) for row in rows]
    columns = [*keys, *(made[0] if made else _cells_of(_none(), layout))]
    if layout.evaluation != "none":
        columns.insert(0 if layout.evaluation == "first" else len(keys), "evaluation")
    table = pd.DataFrame(
        [
            {**row.comparison.about, "evaluation": row.evaluation, **numbers}
            for row, numbers in zip(rows, made, strict=True)
        ],
        columns=columns,
    )
    for p in [f"{layout.value}_p", *(RANKS[1:] if layout.has_ranks else ())]:
        corrected = _corrected(results, name, rows, p, table[p].to_numpy(dtype=float))
        table.insert(list(table.columns).index(p) + 1, f"{p}_holm", corrected)
    return table if results.study.margin is None else _judged(results, name, layout, rows, table)


def _judged(
    results: Results, name: str, layout: Layout, rows: Sequence[Row], table: pd.DataFrame
) -> pd.DataFrame:
    """The table with p of a difference beyond the margin, and the verdict.

    "shown": p of no difference is below 5% after Holm; "equivalent": not shown, and p of a
    difference beyond the margin is; "undecided" otherwise.
    """
    column = f"{layout.value}_equivalent_p"
    p = np.array([row.equivalent_p for row in rows])
    corrected = _corrected(results, name, rows, column, p)
    shown, same = table[f"{layout.value}_p_holm"] < ALPHA, corrected < ALPHA
    verdict = np.where(shown, VERDICTS[0], np.where(same, VERDICTS[1], VERDICTS[2]))
    return table.assign(**{column: p, f"{column}_holm": corrected, "verdict": verdict})


def _cells_of(row: Row, layout: Layout) -> dict[str, object]:
    """The numbers of a row, in the order of the columns."""
    value, result = layout.value, row.result
    sizes = [len(estimates.finished(arm_runs)) for arm_runs in row.runs]
    if layout.suffixes:
        lost = [estimates.counts(cell.runs)["diverged"] for cell in row.cells]
        numbers: dict[str, Sequence[object]] = {"n": sizes, "diverged": lost}
        if layout.has_lr:
            numbers = {"lr": [cell.lr for cell in row.cells], **numbers}
        counts = {
            f"{what}{end}": of_arms[i] if of_arms else None
            for what, of_arms in numbers.items()
            for i, end in enumerate(layout.suffixes)
        }
    else:
        counts = {
            "n": ", ".join(map(str, sizes)),
            "not_finished": sum(len(cell.runs) for cell in row.cells) - sum(sizes),
        }
    ranks: dict[str, object] = dict.fromkeys(RANKS) if layout.has_ranks else {}
    if ranks and row.cells:
        a, b = row.cells
        ranks = dict(zip(RANKS, divergence.endings(a.runs, b.runs), strict=True))
    method = "method" if layout.evaluation != "none" else f"{value}_method"
    return {
        **counts,
        **named(value, (result.estimate, result.low, result.high)),
        f"{value}_p": result.p,
        **({"df": result.df} if layout.has_df else {}),
        method: result.method,
        **ranks,
    }


def _corrected(
    results: Results, name: str, rows: Sequence[Row], column: str, p: np.ndarray
) -> np.ndarray:
    """(n,) p corrected within each family; of diverged_p over the rows in which a run diverged."""
    made = np.full(len(rows), np.nan)
    families = [row.comparison.family for row in rows]
    for family in dict.fromkeys(families):
        index = [
            i
            for i, other in enumerate(families)
            if other == family and not (column == "diverged_p" and np.isnan(p[i]))
        ]
        tests = [rows[i].key for i in index]
        label = f"{name} {family}".rstrip()
        made[index] = results.corrected(column, tests, p[index].tolist(), family=label)
    return made


def _none() -> Row:
    """For the columns of a table without rows."""
    empty = pd.DataFrame({"status": pd.Series(dtype=str)})
    return Row(Comparison({}, {}), (), (), (empty, empty), Contrast())


# ---- tables of arms of any kind

PAIRS = Layout(("a", "b"), "difference", ("_a", "_b"), evaluation="last", has_lr=True)
EFFECTS = Layout(("kind", "effect"), "difference", evaluation="last")


def pair_differences(results: Results) -> pd.DataFrame:
    """One row per pair of the study and evaluation set: mean of arm a minus mean of arm b.

    Negative favours a. Each arm at its own lr, over the runs that finished, by Welch's t; p is
    corrected over all rows. With a `margin` of the study also p of a difference beyond it, by two
    one-sided tests, and a verdict: shown, equivalent or undecided.
    """
    return table_of(results, "pair_differences", PAIRS)


def factorial_effects(results: Results) -> pd.DataFrame:
    """One row per effect of the arms' factors and evaluation set: main effects, as the mean at one
    level minus that at another, and interactions of two factors; each averaged over the levels of
    the others.

    The arms are every combination of the levels. Statistics as in pair_differences; main effects
    and interactions are corrected apart.
    """
    return table_of(results, "factorial_effects", EFFECTS)


def main_effects(results: Results) -> pd.DataFrame:
    """One row per factor of a screening design and evaluation set: the mean at one level minus that
    at the level of the first arm, each over half of the arms.

    Statistics as in pair_differences. Factors named "empty ..." stand for nothing and are corrected
    apart: what they show is an interaction of others, or chance. Unless the design is a full
    factorial, an interaction of two factors is part of the effects of others.
    """
    return table_of(results, "main_effects", EFFECTS)


def factorial_means(results: Results) -> pd.DataFrame:
    """One row per arm of a factorial: the levels of its factors, how many runs finished and
    diverged, and the mean of the metric with its 95% interval.
    """
    study, by_arm = results.study, results.once(cells)
    rows = []
    for key, arm in factorial(study).items():
        counts = estimates.counts(by_arm[arm].runs)
        rows.append(
            {
                **dict(zip(varied(study), key, strict=True)),
                "n": counts["finished"],
                "diverged": counts["diverged"],
                **named("mean", by_arm[arm].interval("value", results.metric)),
            }
        )
    return pd.DataFrame(rows)


def sentences(results: Results, table: Callable[[Results], pd.DataFrame], what: str) -> list[str]:
    """How often a difference is shown, for each evaluation set, and the rows where they are few."""
    said, made = [], results.once(table)
    keys = [name for name in ("kind", "evaluation") if name in made]
    for (*kind, _), rows in made.groupby(keys, sort=False):
        said += verdicts(results, rows, " ".join([what, *(f"({name})" for name in kind)]))
        if len(rows) <= MAX_ROWS:
            said.append(f"{'; '.join(_said(row, results.metric) for _, row in rows.iterrows())}.")
    return said


def verdicts(results: Results, table: pd.DataFrame, what: str) -> list[str]:
    """How often a difference is shown in a table of comparisons, for each evaluation set."""
    margin, metric, said = results.study.margin, results.metric, []
    for on, rows in table.groupby("evaluation", sort=False):
        shown, tested = rows["difference_p_holm"] < ALPHA, int(rows["difference_p"].notna().sum())
        lower, same = int((shown & (rows["difference"] < 0)).sum()), 0
        within = "no difference shown"
        if margin is not None:
            same = int((rows["verdict"] == VERDICTS[1]).sum())
            within = f"equivalent within {metric.apart(margin)} in {same}, undecided"
        said.append(
            f"{what}, {metric.label} on {on}: lower in {lower} and higher in {shown.sum() - lower} "
            f"of {len(rows)} comparisons (p after Holm below 5%), {within} in "
            f"{tested - int(shown.sum()) - same}, no interval in {len(rows) - tested}."
        )
    return said


def estimate(row: pd.Series, name: str, metric: Metric, sign: str = "") -> str:
    """A difference and its interval, in the unit of differences, which the text does not name."""
    point, low, high = interval_of(row, name)
    if pd.isna(point):
        return f"none ({row.get(f'{name}_method', row.get('method'))})"
    ends = f"[{metric.number(low)}, {metric.number(high)}]" if pd.notna(low) else "(no interval)"
    return f"{metric.number(point, sign=sign)} {ends}"


def _said(row: pd.Series, metric: Metric) -> str:
    what = row["effect"] if "effect" in row else f"{row['a']} − {row['b']}"
    return f"{what} {with_p(row, metric, '+')}{', ' + row['verdict'] if 'verdict' in row else ''}"


def with_p(row: pd.Series, metric: Metric, sign: str = "") -> str:
    """A difference with its interval, unit and corrected p."""
    text = estimate(row, "difference", metric, sign)
    if pd.isna(row["difference_low"]):
        return text
    return f"{text} {metric.difference_unit}, {p_value(row['difference_p_holm'])}"


ANSWERS: dict[str, Callable[[Results], list[str]]] = {  # table -> its answer
    "pair_differences": functools.partial(
        sentences, table=pair_differences, what="Pairs of arms, a − b"
    ),
    "factorial_effects": functools.partial(
        sentences, table=factorial_effects, what="Effects of the factors"
    ),
    "main_effects": functools.partial(sentences, table=main_effects, what="Effects of the factors"),
}
