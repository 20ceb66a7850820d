"""Comparisons as values of the plan: pairs, factorials and equivalence, for arms of any kind."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.weightstats import ttost_ind
from support.refusals import refusing

from vitscale.analysis import estimates, power
from vitscale.analysis.comparisons import (
    factorial_effects,
    factorial_means,
    main_effects,
    pair_differences,
)
from vitscale.analysis.displays import forest, grid
from vitscale.analysis.kinds import check, kind_of
from vitscale.analysis.report.report import headline
from vitscale.analysis.results import Results
from vitscale.analysis.stats.correction import holm
from vitscale.plan.comparisons import main_effects as comparisons_of
from vitscale.plan.config import TrainConfig
from vitscale.plan.kinds import check_use
from vitscale.plan.questions import COMPARED
from vitscale.plan.study import Study, from_json, to_json
from vitscale.plan.trial import Arm, Trial

Error = Callable[[Arm, int], float | None]  # None: it diverged


def study_of(arms: dict[str, dict[str, Any]], num: int = 4, **fields: Any) -> Study:
    """Arms with factors, `num` seeds each."""
    trials = tuple(
        Trial(Arm(name, factors), TrainConfig(width=16 * (i + 1), seed=seed), seed)
        for i, (name, factors) in enumerate(arms.items())
        for seed in range(num)
    )
    given: dict[str, Any] = {"kind": "repeats", "tables": ("pair_differences",), **fields}
    return Study(name="made", scale="demo", question="?", source="ours", trials=trials, **given)


def results_of(study: Study, error: Error) -> Results:
    rows = []
    for trial in study.trials:
        value = error(trial.arm, trial.config.seed)
        rows.append(
            {
                "arm": trial.arm.name,
                "point": trial.point,
                "trial_id": trial.config.id,
                "status": "finished" if value is not None else "diverged",
                "value": 100.0 if value is None else value,
                "lr": trial.config.lr,
                "seed": trial.config.seed,
                "val_ema_error_pct": 100.0 if value is None else value,
            }
        )
    return Results(study, pd.DataFrame(rows).astype({"point": "Int64"}))


def noisy(seed: int = 0) -> Error:
    rng = np.random.default_rng(seed)
    return lambda arm, _: 20 + 4 * ("b" in arm.name) + float(rng.normal(0, 1))


# ---- pairs


def test_pairs_of_repeats_are_compared_and_corrected_over_all_rows() -> None:
    arms: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    study = study_of(arms, pairs=(("a", "b"), ("a", "c")))
    check_use(study)
    check(study)
    results = results_of(study, noisy(1))
    table = pair_differences(results)
    values = {arm: g["value"].to_numpy() for arm, g in results.trials.groupby("arm")}
    for row in table.itertuples():
        welch = scipy.stats.ttest_ind(values[row.a], values[row.b], equal_var=False)
        assert row.difference_p == pytest.approx(welch.pvalue)
        assert row.difference == pytest.approx(values[row.a].mean() - values[row.b].mean())
    assert table["difference_p_holm"].tolist() == pytest.approx(
        holm(table["difference_p"].tolist())
    )
    counted, one_by_one = headline(results)[1:]
    assert "lower in 1 and higher in 0 of 2 comparisons" in counted
    assert "a − b -" in one_by_one


def test_pairs_that_no_table_compares_are_refused() -> None:
    study = study_of({"a": {}, "b": {}}, pairs=(("a", "b"),), tables=("arm_means",))
    with refusing("kind='repeats'"):
        check_use(study)


# ---- equivalence


@pytest.mark.parametrize("margin", [0.5, 2.0])
def test_equivalence_is_the_two_one_sided_tests_of_statsmodels(margin: float) -> None:
    arms: dict[str, dict[str, Any]] = {"a": {}, "c": {}}
    study = study_of(arms, num=8, pairs=(("a", "c"),), margin=margin)
    results = results_of(study, noisy(3))
    (row,) = pair_differences(results).itertuples()
    samples = [results.trials.loc[results.trials["arm"] == arm, "value"] for arm in "ac"]
    expected = ttost_ind(*samples, -margin, margin, usevar="unequal")[0]
    assert row.difference_equivalent_p == pytest.approx(expected)
    assert row.verdict == ("equivalent" if expected < 0.05 else "undecided")


@pytest.mark.parametrize("sds", [(1.0, 1.0), (1.0, 3.0)])
def test_arms_that_differ_by_the_margin_are_called_equivalent_as_rarely_as_they_may(
    sds: tuple[float, float],
) -> None:
    rng, sims, margin, claims = np.random.default_rng(1), 3000, 3.0, 0
    for _ in range(sims):
        groups = [rng.normal(margin, sds[0], 5), rng.normal(0, sds[1], 5)]
        result = estimates.contrast(groups, [1, -1])
        claims += estimates.equivalence_p(result, margin, groups, [1, -1]) < 0.05
    assert claims / sims <= 0.05 + 3 * (0.05 * 0.95 / sims) ** 0.5
    assert claims / sims > 0.01


@pytest.mark.parametrize(("n", "margin"), [(5, 2.07), (10, 1.36), (15, 1.09), (18, 1.00)])
def test_the_smallest_margin_of_a_plan_is_decided_in_four_of_five_studies(
    n: int, margin: float
) -> None:
    """Of no true difference; `margin` is from another simulation, of 20,000 draws."""
    assert power.smallest_margin(n) == pytest.approx(margin, rel=0.02)
    rng, sims, claims = np.random.default_rng(2), 1500, 0
    for _ in range(sims):
        groups = list(rng.normal(0, 1, (2, n)))
        result = estimates.contrast(groups, [1, -1])
        claims += estimates.equivalence_p(result, margin, groups, [1, -1]) < 0.05
    assert abs(claims / sims - 0.8) <= 3 * (0.8 * 0.2 / sims) ** 0.5 + 0.01


def test_runs_without_a_spread_are_not_shown_to_be_equivalent() -> None:
    study = study_of({"a": {}, "c": {}}, num=3, pairs=(("a", "c"),), margin=1.0)
    (row,) = pair_differences(results_of(study, lambda *_: 7.0)).itertuples()
    assert np.isnan(row.difference_equivalent_p) and row.verdict == "undecided"
    half = results_of(study, lambda arm, seed: 7.0 if arm.name == "a" else 7 + 1e-3 * seed)
    (row,) = pair_differences(half).itertuples()
    assert row.difference_equivalent_p >= 0.1 and row.verdict == "undecided"


@pytest.mark.parametrize("margin", [0.0, -1.0, float("inf"), float("nan"), "1", True])
def test_a_margin_is_a_positive_number(margin: Any) -> None:
    with refusing(f"margin={margin!r}"):
        study_of({"a": {}, "b": {}}, pairs=(("a", "b"),), margin=margin)


# ---- factorials

STEMS, NORMS = ("P", "C"), ("LN", "BN")
LEVELS: dict[str, tuple[Any, ...]] = {"stem": STEMS, "norm": NORMS, "width": (1, 2, 3)}
CROSSED = {
    "-".join(map(str, key)): dict(zip(LEVELS, key, strict=True))
    for key in product(*LEVELS.values())
}
MADE = {"tables": ("factorial_effects", "factorial_means"), "figures": ("factorial_grid",)}


def test_effects_of_a_factorial_are_those_of_a_regression() -> None:
    """Least squares on effect codes, whose coefficients are those of the means of levels."""
    study = study_of(CROSSED, num=3, **MADE)
    rng = np.random.default_rng(4)
    results = results_of(
        study,
        lambda arm, _: (
            10.0
            + 2 * (arm.factors["stem"] == "C")
            + 3 * (arm.factors["stem"] == "C") * (arm.factors["width"] == 3)
            + float(rng.normal(0, 0.3))
        ),
    )
    table = factorial_effects(results)
    assert (table["kind"] == "main effect").sum() == 1 + 1 + 3
    assert (table["kind"] == "interaction").sum() == 1 + 3 + 3
    shown = set(table.loc[table["difference_p_holm"] < 0.05, "effect"])
    assert shown == {
        "stem: P − C",
        "width: 1 − 3",
        "width: 2 − 3",
        "stem: P − C, at width 1 − at 3",
        "stem: P − C, at width 2 − at 3",
    }
    factors = pd.DataFrame([study.arms[arm].factors for arm in results.trials["arm"]])
    code = {name: np.where(factors[name] == LEVELS[name][0], 1, -1) for name in ("stem", "norm")}
    x = np.column_stack([np.ones(len(factors)), code["stem"], code["norm"]])
    x = np.column_stack([x, code["stem"] * code["norm"]])
    fit = OLS(results.trials["value"].to_numpy(), x).fit().params
    differences = table.set_index("effect")["difference"]
    assert differences["stem: P − C"] == pytest.approx(2 * fit[1])
    assert differences["norm: LN − BN"] == pytest.approx(2 * fit[2])
    assert differences["stem: P − C, at norm LN − at BN"] == pytest.approx(4 * fit[3])
    assert factorial_means(results)["mean"].to_numpy() == pytest.approx(
        results.trials.groupby("arm", sort=False)["value"].mean().to_numpy()
    )


@pytest.mark.parametrize("without", ["P-LN-1", "C-BN-3"])
def test_an_incomplete_factorial_is_refused(without: str) -> None:
    arms = {name: factors for name, factors in CROSSED.items() if name != without}
    with refusing("11 arms, of 12 combinations"):
        study_of(arms, num=2, **MADE)


# ---- screening designs


def screened(num_factors: int, num: int, **fields: Any) -> Study:
    """Columns of 12 runs after Paley 1933: squares of the field of 11 elements, and their rest."""
    squares = {i * i % 11 for i in range(1, 11)}
    rows = [[1 if (j - i) % 11 in {0, *squares} else -1 for j in range(11)] for i in range(11)]
    rows = [[-1] * 11, *rows]
    assert np.array_equal(np.transpose(rows) @ np.array(rows), 12 * np.eye(11))
    arms = {
        f"run {i}": {
            f"{'empty ' if j >= num_factors else 'x'}{j}": level for j, level in enumerate(row)
        }
        for i, row in enumerate(rows)
    }
    return study_of(arms, num=num, tables=("main_effects",), **fields)


def test_main_effects_of_a_screening_design_are_those_of_a_regression() -> None:
    study = screened(8, num=3, figures=("comparison_forest",))
    rng = np.random.default_rng(5)
    results = results_of(study, lambda arm, _: 20 + 2 * arm.factors["x3"] + rng.normal(0, 0.5))
    table = main_effects(results)
    x = np.array([list(study.arms[arm].factors.values()) for arm in results.trials["arm"]])
    fit = OLS(results.trials["value"].to_numpy(), np.column_stack([np.ones(len(x)), x])).fit()
    assert table["difference"].to_numpy() == pytest.approx(2 * fit.params[1:])
    assert table["kind"].tolist() == ["main effect"] * 8 + ["empty column"] * 3
    for kind, rows in table.groupby("kind"):
        corrected = holm(rows["difference_p"].tolist())
        assert rows["difference_p_holm"].tolist() == pytest.approx(corrected), kind
    assert table.loc[table["difference_p_holm"] < 0.05, "effect"].tolist() == ["x3: 1 − -1"]
    said = headline(results)
    assert sum("of 8 comparisons" in line for line in said) == 1
    assert sum("of 3 comparisons" in line for line in said) == 1
    labels = forest.comparison_forest(results).axes[0].get_yticklabels()
    assert [text.get_text() for text in labels] == table["effect"].tolist()
    (power_of_main,) = power.sentences(study)
    assert power_of_main.startswith("main effect of a factor (3 seeds per cell, 8 comparisons")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([(0, 0), (0, 1), (1, 0), (1, 2)], "4 arms, b={0: 2, 1: 1, 2: 1}"),
        ([(0, 0), (0, 1), (0, 0), (1, 1)], "4 arms, a={0: 3, 1: 1}"),
        ([(0, 0), (0, 0), (1, 1), (1, 1)], "a, b={(0, 0): 2, (1, 1): 2}"),
        ([(0, 0), (0, 0)], "2 arms, no factor={}"),
    ],
)
def test_a_screening_design_is_balanced_and_orthogonal(
    arms: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        study_of(
            {str(i): {"a": a, "b": b} for i, (a, b) in enumerate(arms)}, tables=("main_effects",)
        )
    assert "of a screening design must" in str(error.value) and message in str(error.value)


@pytest.mark.parametrize("sds", [1.0, 3.0])
def test_a_screening_without_effects_shows_one_as_rarely_as_it_may(sds: float) -> None:
    """The share of studies of 12 arms and 6 seeds that show any of 8 main effects; sds from 1 to
    `sds` over the arms.
    """
    weights = np.array([list(one.weights.values()) for one in comparisons_of(screened(8, num=2))])
    rng, sims, claims = np.random.default_rng(6), 300, 0
    for _ in range(sims):
        runs = rng.normal(0, 1, (12, 6)) * np.linspace(1, sds, 12)[:, None]
        p = [estimates.contrast(list(runs), list(weight)).p for weight in weights[:8]]
        claims += min(holm(p)) < 0.05
    assert claims / sims <= 0.05 + 3 * (0.05 * 0.95 / sims) ** 0.5
    assert claims / sims > 0.01


# ---- what follows from the list


def test_a_plan_registers_what_it_will_test() -> None:
    study = study_of({"a": {}, "b": {}}, pairs=(("a", "b"),), margin=0.5)
    plan = json.loads(json.dumps(to_json(study)))
    assert plan["margin"] == 0.5
    assert plan["comparisons"] == {
        "pair_differences": [
            {"weights": {"a": 1, "b": -1}, "about": {"a": "a", "b": "b"}, "on": [], "family": ""}
        ]
    }
    assert from_json(plan) == study


def test_a_plan_says_which_difference_and_which_margin_it_can_decide() -> None:
    study = study_of(CROSSED, num=5, **MADE)
    main, interaction = power.sentences(study)
    assert main.startswith("main effect of a factor (5 seeds per cell, 5 comparisons, Holm)")
    assert interaction.startswith("interaction of two factors (5 seeds per cell, 7 comparisons")
    num, weights = COMPARED["factorial_effects"].families(study)["main effect", False]
    # the noise of two levels of three, each the mean of four cells
    assert num == 5 and sum(w * w for w in weights) == pytest.approx(2 / 4)
    assert f"a true difference of {power.smallest_mean(5, 5, weights):.1f} sd" in main
    assert f"a margin of {power.smallest_margin(5, 5, weights):.1f} sd" in main


@pytest.mark.parametrize("margin", [None, 1.5])
def test_figures_show_each_comparison_and_each_cell(margin: float | None) -> None:
    study = study_of(CROSSED, num=3, margin=margin, **MADE)
    results = results_of(
        study, lambda arm, seed: None if arm.name == "P-LN-1" and not seed else 9.0 + seed
    )
    drawn = forest.comparison_forest(results)
    labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
    assert labels == factorial_effects(results)["effect"].tolist()
    heat = grid.factorial_grid(results)
    texts = [text.get_text() for ax in heat.axes for text in ax.texts]
    assert len(texts) == 12 and sum("1 d" in text for text in texts) == 1
    assert kind_of(study).figures["factorial_grid"] is grid.factorial_grid


def test_shapes_with_pairs_and_one_lr_are_compared_like_repeats() -> None:
    study = study_of({"a": {"size": "S"}, "b": {"size": "B"}}, pairs=(("a", "b"),), kind="shapes")
    made = pair_differences(results_of(study, noisy()))
    same = dataclasses.replace(study, kind="repeats")
    pd.testing.assert_frame_equal(made, pair_differences(results_of(same, noisy())))
