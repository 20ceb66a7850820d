"""Optimizer and training-length stability, and recipe against
architecture: simulation, scipy, printed tables.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import WITHOUT_PDF
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW
from support import known
from support.refusals import refusing

from vitscale.analysis import estimates
from vitscale.analysis.published import tables as published
from vitscale.analysis.questions import optimizer_gap as gap
from vitscale.analysis.questions import optimizer_gap_copied as gap_copied
from vitscale.analysis.questions import recipes, sets, stability
from vitscale.analysis.questions import training_length as length
from vitscale.analysis.report.report import caveats, headline, summary, write_report
from vitscale.analysis.results import Results
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study, from_json, to_json
from vitscale.plan.trial import Arm, Trial
from vitscale.record.workdir import Workdir

LENGTHS = (4, 8, 16)
STABILITY = {
    "figures": ("optimizer_stability", "optimizer_stability_copied", "training_length"),
    "tables": (
        "optimizer_gap",
        "optimizer_gap_copied",
        "training_length",
        "stability_cells",
        "published_training_length",
    ),
}


def make_study(
    num: int = 4, models: tuple[str, ...] = ("P", "C"), own_seeds: bool = False, **fields: object
) -> Study:
    """Models with two optimizers at three lengths, `num`
    seeds each; `own_seeds`: SGD has other ones.
    """
    trials = []
    for depth, model in enumerate(models, start=2):
        for optimizer in ("adamw", "sgd"):
            for epochs in LENGTHS:
                arm = Arm(f"{model} {optimizer} {epochs}", {"model": model})
                config = TrainConfig(
                    depth=depth, optimizer=optimizer, epochs=epochs, warmup_epochs=1.0
                )
                first = 100 * (own_seeds and optimizer == "sgd")
                trials += [Trial(arm, config.replace(seed=first + i), i) for i in range(num)]
    settings: dict = {
        "kind": "repeats",
        "name": "made",
        "scale": "demo",
        "question": "Which?",
        "source": "Nobody 2021",
        **STABILITY,
    }
    return Study(**{**settings, "trials": tuple(trials), **fields})


def make_outcomes(study: Study, error, status: dict | None = None) -> pd.DataFrame:
    """Outcomes of a study; error(arm, seed) in percent on each
    set; `status`: (arm, seed) to what is not finished.
    """
    rows = []
    for trial in study.trials:
        config = trial.config
        state = (status or {}).get((trial.arm.name, config.seed), "finished")
        value = {"finished": error(trial.arm.name, config.seed), "missing": np.nan}.get(
            state, 100.0
        )
        values = dict(zip(config.evals, np.broadcast_to(value, len(config.evals)), strict=True))
        labels = {
            "arm": trial.arm.name,
            "point": trial.point,
            "trial_id": config.id,
            "status": state,
        }
        sets = {f"{name}_ema_error_pct": x for name, x in values.items()}
        rows.append(
            {
                **labels,
                "value": values[config.eval_split],
                **config.asdict(),
                **sets,
                "commit": "abc",
            }
        )
    return pd.DataFrame(rows).astype({"point": "Int64"})


def drawn(seed: int = 0):
    """error(arm, seed): random, around 10 and more for SGD and for short schedules."""
    rng = np.random.default_rng(seed)
    return lambda arm, _: 10 + 3 * ("sgd" in arm) + 16 / int(arm.split()[-1]) + rng.normal(0, 0.5)


NO_ROWS = pd.DataFrame(columns=["arm", "point", "trial_id", "status", "epoch"])


# ---- contrasts


def test_contrast_of_two_groups_is_welchs_test_of_scipy_and_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 9, 5), rng.normal(0, 1, 9)
    ours, other = estimates.contrast([a, b], [1, -1]), scipy.stats.ttest_ind(a, b, equal_var=False)
    assert (ours.p, ours.df) == pytest.approx((other.pvalue, other.df))
    ends = CompareMeans(DescrStatsW(a), DescrStatsW(b)).tconfint_diff(usevar="unequal")
    assert (ours.low, ours.high) == pytest.approx(ends)


def test_contrast_of_one_group_is_the_paired_test_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, (2, 6))
    ours, other = estimates.contrast([a - b], [1]), scipy.stats.ttest_rel(a, b)
    assert (ours.p, ours.low, ours.high) == pytest.approx(
        (other.pvalue, *other.confidence_interval(0.95))
    )


def test_interaction_is_that_of_a_regression_with_unequal_variances():
    groups = [np.random.default_rng(i).normal(i, 1 + i, 6) for i in range(4)]
    a, r = np.repeat([1, -1, 1, -1], 6), np.repeat([1, 1, -1, -1], 6)
    fit = OLS(np.concatenate(groups), np.column_stack([np.ones(24), a, r, a * r])).fit(
        cov_type="HC2"
    )
    ours = recipes.interaction(*groups)
    assert ours.estimate == pytest.approx(4 * fit.params[3])
    assert ours.error == pytest.approx(4 * fit.bse[3])  # HC2 is s**2 / n of each cell


def test_welch_satterthwaite_interval_of_an_interaction_covers():
    rng = np.random.default_rng(0)
    sds, sizes, truth = (0.2, 1.0, 0.5, 0.2), (5, 5, 5, 5), 1 - 2 - 3 + 5
    samples = [
        [rng.normal(mean, sd, n) for mean, sd, n in zip((1, 2, 3, 5), sds, sizes, strict=True)]
        for _ in range(2000)
    ]
    found = [recipes.interaction(*groups) for groups in samples]
    assert np.mean([x.estimate for x in found]) == pytest.approx(truth, abs=0.05)
    assert 0.935 < np.mean([x.low <= truth <= x.high for x in found]) < 0.97


def test_single_runs_and_equal_errors_have_no_interval_and_are_no_proof():
    single = estimates.contrast([np.array([3.0]), np.array([1.0, 2.0])], [1, -1])
    equal = estimates.contrast([np.array([3.0, 3.0]), np.array([1.0, 1.0])], [1, -1])
    assert (single.estimate, single.method) == (1.5, "single run: no interval")
    assert (equal.estimate, equal.method) == (2.0, "equal errors: no interval")
    assert np.isnan([single.low, single.p, equal.high, equal.p]).all()
    assert np.isnan(estimates.contrast([np.empty(0), np.array([1.0, 2.0])], [1, -1]).estimate)


def test_intervals_of_mean_and_sd_agree_with_scipy_and_cover():
    samples = np.random.default_rng(0).normal(5, 2, (3000, 7))
    means, sds = (
        np.array([f(x) for x in samples]) for f in (estimates.mean_interval, estimates.sd_interval)
    )
    other = scipy.stats.ttest_1samp(samples[0], 0).confidence_interval(0.95)
    assert means[0, 1:] == pytest.approx(other)
    variance = 6 * samples[0].var(ddof=1) / scipy.stats.chi2.ppf([0.975, 0.025], 6)
    assert sds[0] == pytest.approx([samples[0].std(ddof=1), *np.sqrt(variance)])
    for found, truth in ((means, 5), (sds, 2)):
        assert 0.94 < np.mean((found[:, 1] <= truth) & (truth <= found[:, 2])) < 0.96


# ---- optimizer gap


def test_gap_is_welchs_whether_seeds_are_shared_or_not():
    for own in (False, True):
        study = make_study(5, own_seeds=own)
        outcomes = make_outcomes(study, drawn())
        row = gap.optimizer_gap(Results(study, outcomes)).iloc[1]
        a, b = (
            outcomes.loc[outcomes["arm"] == f"P {optimizer} 8", "value"]
            for optimizer in ("sgd", "adamw")
        )
        test = scipy.stats.ttest_ind(a, b, equal_var=False)
        assert (row["model"], row["epochs"], row["n_sgd"], row["gap_method"]) == (
            "P",
            8,
            5,
            "Welch's t",
        )
        assert row["gap"] == pytest.approx(a.mean() - b.mean())
        assert row["gap_p"] == pytest.approx(test.pvalue)
        assert tuple(row[["gap_low", "gap_high"]]) == pytest.approx(
            tuple(test.confidence_interval(0.95))
        )


def test_gaps_are_corrected_for_their_number():
    study = make_study(5)
    table = gap.optimizer_gap(Results(study, make_outcomes(study, drawn())))
    assert len(table) == 6
    assert np.allclose(table["gap_p_holm"], multipletests(table["gap_p"], method="holm")[1])


def test_a_diverged_run_is_in_no_mean_and_the_worst_in_ranks():
    study = make_study(4)
    outcomes = make_outcomes(
        study, lambda arm, seed: 20 + seed**2 * ("sgd" in arm), {("P sgd 8", 3): "diverged"}
    )
    row = gap.optimizer_gap(Results(study, outcomes)).iloc[1]
    assert (row["n_sgd"], row["n_adamw"], row["diverged_sgd"], row["diverged_adamw"]) == (
        3,
        4,
        1,
        0,
    )
    # with the label 100 it would be above 20
    assert row["gap"] == pytest.approx((0 + 1 + 4) / 3)
    assert row["prob_worse"] == pytest.approx((1 * 0.5 + 3) / 4) and row["diverged_p"] == 1.0


def test_an_arm_that_always_diverges_is_shown_to_be_worse_though_it_has_no_mean():
    """Five of five against none of five: 2 of 252 ways to
    deal ten runs out, by ranks and by counts.
    """
    study = make_study(5, models=("P",))
    outcomes = make_outcomes(study, drawn(), {("P sgd 8", seed): "diverged" for seed in range(5)})
    table = gap.optimizer_gap(Results(study, outcomes)).set_index("epochs")
    assert np.isnan(table.loc[8, "gap_p"])
    assert table.loc[8, ["prob_worse", "rank_p", "diverged_p"]].tolist() == pytest.approx(
        [1.0, 2 / 252, 2 / 252]
    )
    # nothing to compare where none diverged
    assert table["diverged_p"].isna().tolist() == [True, False, True]
    assert table.loc[8, "diverged_p_holm"] == pytest.approx(2 / 252)
    said = " ".join(
        headline(Results(dataclasses.replace(study, tables=("optimizer_gap",)), outcomes))
    )
    assert "SGD ranks behind AdamW in 1 and ahead in 0" in said and "differ is shown in 1" in said


def test_copied_errors_have_a_gap_without_interval_and_p():
    study = make_study(4, models=("P",))
    outcomes = make_outcomes(study, drawn(), {("P sgd 16", seed): "diverged" for seed in range(4)})
    row = gap_copied.optimizer_gap_copied(Results(study, outcomes)).iloc[2]
    assert row["copied"] == "sgd from 8 epochs" and np.isfinite(row["gap"])
    assert row[["gap_low", "gap_high", "gap_p", "gap_p_holm"]].isna().all()
    assert row["gap_method"] == "copied from shorter runs: no interval"


# ---- what one model loses more than another


def test_interaction_is_the_difference_of_two_gaps():
    study = make_study(6)
    outcomes = make_outcomes(study, drawn())
    results = Results(study, outcomes)
    table, gaps = gap.optimizer_gap_interaction(results), gap.optimizer_gap(results)
    series = gaps.set_index(["model", "epochs"])["gap"]
    assert table[["a", "b"]].drop_duplicates().to_numpy().tolist() == [["P", "C"]]
    assert table["interaction"].tolist() == pytest.approx(
        [series["P", e] - series["C", e] for e in LENGTHS]
    )
    assert np.allclose(
        table["interaction_p_holm"], multipletests(table["interaction_p"], method="holm")[1]
    )
    groups = [
        outcomes.loc[outcomes["arm"] == f"{m} {o} 8", "value"]
        for m in "PC"
        for o in ("sgd", "adamw")
    ]
    parts = np.array([group.var(ddof=1) / 6 for group in groups])
    t, df = (
        table["interaction"][1] / np.sqrt(parts.sum()),
        parts.sum() ** 2 / (parts**2 / 5).sum(),
    )
    assert table["interaction_p"][1] == pytest.approx(2 * scipy.stats.t.sf(abs(t), df))
    lengths = length.training_length_interaction(Results(study, outcomes))
    delta = length.training_length(Results(study, outcomes)).set_index(["model", "epochs"])["delta"]
    assert lengths["epochs"].tolist() == list(LENGTHS[:-1])
    assert lengths["interaction"].tolist() == pytest.approx(
        [delta["P", e] - delta["C", e] for e in LENGTHS[:-1]]
    )
    said = headline(
        Results(dataclasses.replace(study, tables=("optimizer_gap_interaction",)), outcomes)
    )
    assert (
        said[-1].startswith("P minus C: 4 epochs")
        and f"{table['interaction'][0]:.1f} [" in said[-1]
    )


def test_a_cell_that_diverged_has_no_gap_unless_the_papers_rule_is_asked_for():
    study = make_study(2)
    errors = {4: 30.0, 8: 25.0, 16: 90.0}
    status = {(f"P sgd {epochs}", seed): "diverged" for epochs in (16,) for seed in (0, 1)}
    outcomes = make_outcomes(
        study,
        lambda arm, seed: (errors[int(arm.split()[-1])] if "sgd" in arm else 20.0) + seed / 10,
        status,
    )
    shown, copied = (
        gap.optimizer_gap(Results(study, outcomes)),
        gap_copied.optimizer_gap_copied(Results(study, outcomes)),
    )
    assert shown["gap"].isna().tolist() == [False, False, True, False, False, False]
    assert shown["gap_method"][2] == "P sgd 16: n=0, 2 diverged"
    assert copied["gap"][2] == pytest.approx(5.0)  # of 8 epochs, the best shorter one
    assert copied["copied"].tolist() == ["–", "–", "sgd from 8 epochs", "–", "–", "–"]
    assert copied["diverged_sgd"].tolist() == [0, 0, 2, 0, 0, 0]


def test_the_papers_rule_copies_no_longer_schedule_and_no_failed_or_unfinished_cell():
    study = make_study(2, models=("P",))
    for state in ("diverged", "failed", "missing"):
        status = {(f"P sgd {epochs}", seed): state for epochs in (4, 8) for seed in (0, 1)}
        status["P sgd 8", 0] = "diverged"
        groups = stability.cells(Results(study, make_outcomes(study, drawn(), status)))
        for epochs in (4, 8, 16):
            assert gap_copied.copied_from(groups, ("P", "sgd", epochs)) == ("P", "sgd", epochs)


def test_single_runs_give_gaps_without_intervals_or_p():
    study = make_study(1)
    table = gap.optimizer_gap(Results(study, make_outcomes(study, drawn())))
    assert table["gap"].notna().all()
    assert table[["gap_low", "gap_high", "gap_p", "gap_p_holm"]].isna().all(axis=None)


# ---- training length


def test_training_length_is_measured_from_the_longest_schedule_of_the_first_optimizer():
    study = make_study(3)
    outcomes = make_outcomes(
        study,
        lambda arm, seed: (
            10 + 64 / int(arm.split()[-1]) + (arm.startswith("P") == ("sgd" in arm)) + seed**2
        ),
    )
    table = length.training_length(Results(study, outcomes))
    assert table[["model", "optimizer", "epochs", "longest_epochs"]].to_numpy().tolist() == [
        ["P", "adamw", 4, 16],
        ["P", "adamw", 8, 16],
        ["C", "adamw", 4, 16],
        ["C", "adamw", 8, 16],
    ]
    assert set(table["optimizer_rule"]) == {"the first of the plan"}
    assert table["delta"].tolist() == pytest.approx([12.0, 4.0, 12.0, 4.0])


def test_an_optimizer_without_rival_is_taken_as_it_is():
    config = TrainConfig(optimizer="sgd", warmup_epochs=1.0)
    trials = tuple(
        Trial(f"P sgd {e}", config.replace(epochs=e, seed=s), s) for e in LENGTHS for s in (0, 1)
    )
    study = make_study(trials=trials)
    table = length.training_length(Results(study, make_outcomes(study, drawn())))
    assert table[
        ["model", "optimizer", "optimizer_rule", "n"]
    ].drop_duplicates().to_numpy().tolist() == [["vit", "sgd", "the only one", 2]]
    assert gap.optimizer_gap(Results(study, make_outcomes(study, drawn()))).empty


def test_without_a_finished_longest_schedule_there_is_no_delta():
    study = make_study(2, models=("P",))
    status = {
        (f"P {optimizer} 16", seed): "diverged" for optimizer in ("sgd", "adamw") for seed in (0, 1)
    }
    table = length.training_length(Results(study, make_outcomes(study, drawn(), status)))
    assert table["delta"].isna().all()
    assert set(table["optimizer_rule"]) == {"the first of the plan"}
    assert set(table["delta_method"]) == {"P adamw 16: n=0, 2 diverged"}


def test_published_deltas_are_those_of_table_2():
    table = published.published_training_length(Results(make_study(), NO_ROWS)).set_index("model")
    deltas = table[["delta_100_points", "delta_200_points"]]
    assert deltas.loc["ViT_P-1GF"].tolist() == [5.5, 2.0]  # 33.2, 29.7 and 27.7
    assert deltas.loc["ViT_C-1GF"].tolist() == [3.9, 1.4]  # 28.6, 26.1 and 24.7
    assert len(table) == 23 and table["error_400_epochs_pct"].min() == 15.9


# ---- recipe and architecture


def make_square(num: int = 5, more: str = "test") -> Study:
    trials = []
    for depth, architecture in ((2, "A"), (3, "B")):
        for recipe, lr in (("x", 1e-3), ("y", 2e-3)):
            arm = Arm(f"{architecture} {recipe}", {"architecture": architecture, "recipe": recipe})
            config = TrainConfig(depth=depth, lr=lr, more_evals=more)
            trials += [Trial(arm, config.replace(seed=i), i) for i in range(num)]
    return make_study(
        trials=tuple(trials),
        tables=("recipe_interaction",),
        figures=("recipe_interaction",),
    )


def make_grid(num: int = 5) -> Study:
    """Four architectures under two recipes."""
    trials = []
    for depth, architecture in enumerate("ABCD", 1):
        for recipe, lr in (("x", 1e-3), ("y", 2e-3)):
            arm = Arm(f"{architecture} {recipe}", {"architecture": architecture, "recipe": recipe})
            config = TrainConfig(depth=depth, lr=lr, more_evals="test")
            trials += [Trial(arm, config.replace(seed=i), i) for i in range(num)]
    tables = ("recipe_interaction", "rank_agreement", "sets_regression")
    return make_study(trials=tuple(trials), tables=tables, figures=("sets_regression",))


def grid_results(means: dict[str, float], sd: float, rng: np.random.Generator) -> Results:
    """Errors of the second set are 3 + 1.5 times those of the first."""
    study = make_grid()

    def errors(arm: str, _: int) -> np.ndarray:
        error = means[arm] + rng.normal(0, sd)
        return np.array([error, 3 + 1.5 * error])

    return Results(study, make_outcomes(study, errors))


def test_tau_is_kendalls_and_its_interval_follows_from_what_is_shown():
    means = dict(zip(make_grid().arms, (10, 11, 12, 10, 14, 14, 16, 16), strict=True))
    results = grid_results(means, 0.01, np.random.default_rng(0))  # y swaps A and B
    table = recipes.rank_agreement(results)
    assert table["evaluation"].tolist() == ["val", "test"]
    x, y = ([means[f"{a} {recipe}"] for a in "ABCD"] for recipe in "xy")
    assert table["tau"].tolist() == pytest.approx([scipy.stats.kendalltau(x, y).statistic] * 2)
    assert table[["tau_low", "tau_high"]].to_numpy().tolist() == [[pytest.approx(4 / 6)] * 2] * 2
    assert table[["same", "reversed", "open"]].to_numpy().tolist() == [[5, 1, 0]] * 2
    assert all("the rankings differ" in said for said in recipes.rank_sentences(results))
    noise = recipes.rank_agreement(grid_results(means, 20, np.random.default_rng(0)))
    assert noise[["tau_low", "tau_high", "open"]].to_numpy().tolist() == [[-1, 1, 6]] * 2


def test_the_line_over_arms_is_that_of_statsmodels():
    means = dict(zip(make_grid().arms, range(10, 18), strict=True))
    results = grid_results(means, 0.5, np.random.default_rng(0))
    results.trials["test_ema_error_pct"] += np.random.default_rng(1).normal(0, 0.5, 40)
    table = results.once(sets.sets_regression)
    of_arms = results.trials.groupby("arm", sort=False)
    x, y = (of_arms[f"{name}_ema_error_pct"].mean().to_numpy() for name in ("val", "test"))
    fit = OLS(y, np.column_stack([np.ones(8), x])).fit()
    assert table["residual"].tolist() == pytest.approx(fit.resid.tolist())
    row, ends = table.iloc[0], fit.conf_int()
    assert [row["intercept"], row["slope"]] == pytest.approx(fit.params.tolist())
    assert [row["intercept_low"], row["intercept_high"]] == pytest.approx(ends[0].tolist())
    assert [row["slope_low"], row["slope_high"]] == pytest.approx(ends[1].tolist())
    assert "over 8 arms: slope" in sets.sentences(results)[0]
    ax = known.FIGURES["sets_regression"](results).axes[0]
    assert np.asarray(ax.collections[0].get_offsets()).tolist() == pytest.approx(
        np.column_stack([x, y])
    )


def test_three_arms_have_no_line():
    study = make_square()
    status = {("B y", seed): "diverged" for seed in range(5)}
    outcomes = make_outcomes(study, square_errors(CROSSED), status)
    results = Results(study, outcomes)
    table = results.once(sets.sets_regression)
    assert len(table) == 3 and table[["slope", "residual"]].isna().all(axis=None)
    assert sets.sentences(results) == ["test against val over 3 arms: no line."]


def square_errors(means: dict[str, tuple[float, float]], seed: int = 0):
    rng = np.random.default_rng(seed)
    return lambda arm, _: np.add(means[arm], rng.normal(0, 0.1, 2))


CROSSED = {"A x": (10, 20), "B x": (12, 20), "A y": (12, 21), "B y": (10, 20)}


def test_recipe_interaction_gives_simple_effects_and_their_difference_for_each_set():
    study = make_square()
    outcomes = make_outcomes(study, square_errors(CROSSED))
    table = recipes.recipe_interaction(Results(study, outcomes))
    means = outcomes.groupby("arm")[["val_ema_error_pct", "test_ema_error_pct"]].mean()
    for name, rows in table[table["kind"] != "test set"].groupby("evaluation"):
        mean = means[f"{name}_ema_error_pct"]
        simple = mean["A x"] - mean["B x"], mean["A y"] - mean["B y"]
        assert rows["difference"].tolist() == pytest.approx([*simple, simple[0] - simple[1]])
    across = table[table["kind"] == "test set"]
    truth = [-2 - 0, 2 - 1]  # A - B on val, less that on test, under x and y
    assert across["difference"].tolist() == pytest.approx(truth, abs=0.3)
    for _, rows in table.groupby("kind"):
        assert np.allclose(
            rows["difference_p_holm"], multipletests(rows["difference_p"], method="holm")[1]
        )


def test_a_change_of_winner_is_said_only_if_both_effects_are_shown():
    study = make_square()
    said = headline(Results(study, make_outcomes(study, square_errors(CROSSED))))
    assert said[0] == "Of 20 runs: 20 finished, 0 diverged, 0 failed, 0 missing."
    assert "A under x on val; B under y on val;" in said[1] and said[1].endswith(
        "so the winner changes."
    )
    # an interaction, no change
    parallel = {"A x": (10, 20), "B x": (12, 22), "A y": (11, 21), "B y": (19, 29)}
    said = headline(Results(study, make_outcomes(study, square_errors(parallel))))
    assert said[1].endswith("no change of winner is shown.") and "p < 0.001 on val" in said[2]


def test_published_differences_have_the_z_that_the_sd_over_seeds_gives():
    table = published.published_recipe_interaction(Results(make_square(), NO_ROWS)).set_index(
        ["evaluation", "effect"]
    )
    z = table["z"].abs().round(1)
    a2, t2 = (f"ResNet-50 − DeiT-S under {recipe}" for recipe in ("A2", "T2"))
    assert (z["val", a2], z["v2", a2], z["val", t2]) == (2.1, 0.6, 8.5)
    # of errors: 79.9 - 79.6, 67.9 - 68.1 and 79.2 - 80.4 in accuracy
    difference = table["difference_points"].round(6)
    assert (difference["val", a2], difference["v2", a2], difference["val", t2]) == (-0.3, 0.2, 1.2)
    assert table["difference_points"]["val", "interaction"] == pytest.approx(-1.5)


def test_arms_without_architecture_and_recipe_are_refused():
    with refusing("architecture", "recipe"):
        recipes.cells(Results(make_study(), make_outcomes(make_study(), drawn())))


# ---- study, figures, report


def test_factors_survive_json_and_must_be_those_of_the_arm_in_every_trial():
    study = make_study()
    plan = json.loads(json.dumps(to_json(study)))
    assert from_json(plan) == study
    assert plan["factors"]["P sgd 4"] == dict(study.arms["P sgd 4"].factors) == {"model": "P"}
    del plan["factors"]
    with refusing("'P adamw 4', 'C adamw 4'"):
        from_json(plan)
    first, *others = study.trials
    for arm, values in (
        (Arm(first.arm.name, {"model": "C"}), ["{'model': 'C'}", "{'model': 'P'}"]),
        (Arm("other", {"width": 3}), ["('model',)", "('width',)"]),
    ):
        with refusing(*values):
            make_study(trials=(Trial(arm, first.config, 0), *others))


def test_stability_figure_draws_means_and_breaks_where_all_diverged():
    study = make_study(3, models=("P",))
    status = {**{("P sgd 16", seed): "diverged" for seed in range(3)}, ("P sgd 8", 0): "diverged"}
    outcomes = make_outcomes(study, drawn(), status)
    (ax,) = known.FIGURES["optimizer_stability"](Results(study, outcomes, NO_ROWS)).axes
    (down,) = [line for line in ax.lines if line.get_marker() == "v" and len(line.get_xdata()) == 3]
    done = outcomes[(outcomes["status"] == "finished") & (outcomes["optimizer"] == "sgd")]
    means = done.groupby("epochs")["value"].mean()
    assert np.allclose(down.get_ydata(), [means[4], means[8], np.nan], equal_nan=True)
    assert np.allclose(2 ** down.get_xdata(), LENGTHS, rtol=0.05)
    assert [text.get_text() for text in ax.texts] == ["1/3", "3/3"]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == [
        "P AdamW\nn=9, 0 diverged, over 3 lengths",
        "P SGD\nn=5, 4 diverged, over 3 lengths",
    ]
    assert not [line for line in ax.lines if line.get_linestyle() == "--"]


def test_copied_figure_repeats_the_best_shorter_schedule_hollow_and_dashed():
    study = make_study(2, models=("P",))
    status = {("P sgd 16", seed): "diverged" for seed in range(2)}
    outcomes = make_outcomes(study, drawn(), status)
    (ax,) = known.FIGURES["optimizer_stability_copied"](Results(study, outcomes, NO_ROWS)).axes
    (hollow,) = [
        line for line in ax.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    ]
    (dashed,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    copied = outcomes.loc[outcomes["arm"] == "P sgd 8", "value"].mean()
    assert hollow.get_ydata().tolist() == pytest.approx([copied])
    assert dashed.get_ydata().tolist() == pytest.approx([copied, copied])


STATES = {
    "done": {},
    "not begun": {
        (f"{m} {o} {e}", s): "missing"
        for m in "PC"
        for o in ("sgd", "adamw")
        for e in LENGTHS
        for s in range(2)
    },
    "all diverged": {
        (f"{m} {o} {e}", s): "diverged"
        for m in "PC"
        for o in ("sgd", "adamw")
        for e in LENGTHS
        for s in range(2)
    },
}


@pytest.mark.parametrize("state", STATES)
def test_report_of_a_stability_study_at_any_stage(tmp_path, state):
    study = make_study(2)
    outcomes = make_outcomes(study, drawn(), STATES[state])
    page = write_report(Results(study, outcomes, NO_ROWS), Workdir(tmp_path), {}, WITHOUT_PDF)
    assert "Draws are independent" not in page and "conditional on finishing" in page
    for name in study.tables:
        assert (tmp_path / f"{name}.md").read_text().count("\n") == len(
            pd.read_csv(tmp_path / f"{name}.csv")
        ) + 2
    assert sum(map(len, summary(Results(study, outcomes)).values())) == 12 * (
        10 if state == "done" else 4
    )


def test_report_of_an_unfinished_square(tmp_path):
    study = make_square(2)
    status = {("A x", 0): "missing", ("A x", 1): "missing", ("B y", 0): "diverged"}
    outcomes = make_outcomes(study, square_errors(CROSSED), status)
    assert write_report(Results(study, outcomes, NO_ROWS), Workdir(tmp_path), {}, WITHOUT_PDF)
    table = known.TABLES["recipe_interaction"](Results(study, outcomes, NO_ROWS))
    assert table["not_finished"].tolist() == [2, 1, 3, 2, 1, 3, 2, 1]
    assert "Unfinished" in " ".join(caveats(Results(study, outcomes)))
