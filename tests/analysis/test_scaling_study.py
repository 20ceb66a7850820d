"""A scaling study: from outcomes of a known law to tables, sentences, figures and refusals."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, load_script
from golden import capture
from support.refusals import refusing

from vitscale.__main__ import main
from vitscale.analysis.kinds import check, kind_of
from vitscale.analysis.report.report import caveats, headline, write_report
from vitscale.analysis.results import Results
from vitscale.analysis.scaling import tables
from vitscale.analysis.scaling.compute import scaling_crossing_at_cost, scaling_optimum
from vitscale.analysis.scaling.tables import (
    scaling_cells,
    scaling_crossing,
    scaling_fit,
    scaling_forecast,
    scaling_forecast_far,
    scaling_frontier,
)
from vitscale.launch.costs import with_costs
from vitscale.plan.cost import training_flops
from vitscale.plan.study import Study, to_json
from vitscale.plan.trial import Trial
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir


@pytest.fixture(autouse=True, scope="module")
def fewer_rounds() -> Iterator[None]:
    """Of the bootstrap: what is tested here does not depend on how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "NUM_ROUNDS", 200)
        yield


def script_study(**options: Any) -> Study:
    made: Study = load_script(ROOT / "studies" / "scaling.py").study(**options)
    return made


def study_of(trials: tuple[Trial, ...], *names: str) -> Study:
    return Study(
        kind="scaling",
        name="made",
        scale="demo",
        question="?",
        source="none",
        metric="val_error_pct",
        trials=trials,
        tables=names,
    )


def outcomes(study: Study, diverged_cell: str = "", seed: int = 0) -> pd.DataFrame:
    """Outcomes of a known law, of 4 + size and images terms, 20% less for ViT_C."""
    rng = np.random.default_rng(seed)
    rows = []
    for index, trial in enumerate(study.trials):
        c = trial.config
        params = study.cost(c).params
        error = 4 + 20 * (params / 1e4) ** -0.5 + 10 * (c.num_train / 250) ** -0.6
        error *= 0.8 if trial.arm.factors["family"] == "ViT_C" else 1.0
        error *= 1 + 0.1 * math.log(c.lr / 1.2e-2, 3) ** 2
        noise = np.exp(0.04 * rng.standard_normal(2))
        diverged = trial.arm.name == diverged_cell or (c.lr > 3e-2 and rng.random() < 0.2)
        values = [100.0, 100.0] if diverged else (error * noise).tolist()
        rows.append(
            {
                "arm": trial.arm.name,
                "point": trial.point,
                "trial_id": c.id,
                "status": "diverged" if diverged else "finished",
                "lr": c.lr,
                "seed": c.seed,
                "value": values[0],
                "minival_error_pct": values[1],
                "epochs": c.epochs,
                "row": index,
            }
        )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def results() -> Results:
    study = script_study(num=3)
    return Results(study, outcomes(study, "ViT_P width 24, 499 images"))


def test_cells_have_the_lr_and_the_errors_of_their_runs(results: Results) -> None:
    table = results.once(scaling_cells).set_index("cell")
    trials = results.trials
    name = "ViT_C width 32, 997 images"
    runs = trials[(trials["arm"] == name) & (trials["status"] == "finished")]
    by_lr = runs.groupby("lr")[["minival_error_pct", "value"]].mean()
    best = by_lr["minival_error_pct"].idxmin()
    assert table.loc[name, "lr"] == best
    assert table.loc[name, "val_mean"] == pytest.approx(by_lr.loc[best, "value"])
    row = table.loc[name]
    assert row["val_mean_low"] < row["val_mean"] < row["val_mean_high"]
    gone = table.loc["ViT_P width 24, 499 images"]
    assert (gone["n"], gone["diverged_in_all"], gone["ended"]) == (0, 9, 9)
    assert np.isnan(gone["val_mean"])
    assert table["diverged_in_all"].sum() == (trials["status"] == "diverged").sum()


def test_the_law_is_the_one_that_made_the_errors_and_diverged_cells_are_not_in_it(
    results: Results,
) -> None:
    table = results.once(scaling_fit)
    both = table[(table["axes"] == "size and images") & table["has_floor"]].set_index("family")
    assert both.loc["ViT_P", "n_cells"] == 14 and both.loc["ViT_P", "diverged_cells"] == 1
    assert both.loc["ViT_C", "n_cells"] == 15 and both.loc["ViT_C", "diverged_cells"] == 0
    for family in ("ViT_P", "ViT_C"):
        row = both.loc[family]
        assert row["size_exponent_low"] < 0.5 < row["size_exponent_high"]
        assert row["images_exponent_low"] < 0.6 < row["images_exponent_high"]
        assert row["misfit_p"] > 0.001
        assert 0.9 < row["held_out_ratio"] < 1.1
    assert (table.groupby(["family", "axes"])["nearer"].sum() <= 1).all()


def test_forecasts_are_of_the_largest_size_without_it_and_stay_within_four_times(
    results: Results,
) -> None:
    table = results.once(scaling_forecast)
    held = table[table["kind"] == "held out"]
    assert len(held) == 6 and held["target"].str.contains("width 72").all()
    assert (held["inside"] == "yes").sum() >= 5
    assert (held["predicted_low"] < held["predicted_high"]).all()
    beyond = table[table["kind"] == "extrapolation"]
    assert beyond["times"].tolist() == [2.0, 4.0] * 2 and (beyond["inside"] == "").all()
    far = results.once(scaling_forecast_far)
    assert far["times"].tolist() == [16.0] * 2 and (far["kind"] == "far extrapolation").all()


def test_nothing_is_extrapolated_from_a_size_that_is_not_trained(results: Results) -> None:
    """Before the largest size is trained, 4 times is 4 times the largest that is in the law."""
    trials = results.trials.copy()
    trials.loc[trials["arm"].str.contains("width 72"), "status"] = "missing"
    before = Results(results.study, trials)
    cells = before.once(scaling_cells)
    trained = cells[cells["n"] > 0].groupby("family")["params_m"].max()
    for table in (before.once(scaling_forecast), before.once(scaling_forecast_far)):
        beyond = table[table["kind"] != "held out"]
        assert len(beyond) and (beyond["images"] == 997).all()
        base = beyond["family"].map(trained)
        assert beyond["params_m"].to_numpy() == pytest.approx(beyond["times"] * base)
    assert any("not scored" in line and "predicted: " in line for line in headline(before))


def test_a_forecast_of_a_cell_that_diverged_did_not_hold(results: Results) -> None:
    trials = results.trials.copy()
    name = "ViT_P width 72, 499 images"
    trials.loc[trials["arm"] == name, ["status", "value"]] = "diverged", 100.0
    made = Results(results.study, trials)
    held = made.once(scaling_forecast).set_index("target")
    assert held.loc[name, "inside"] == "no" and np.isnan(held.loc[name, "measured"])
    (line,) = [s for s in headline(made) if "largest size of ViT_P" in s]
    assert "of 3 inside" in line and "(1 diverged, counted as outside)" in line


def test_families_are_compared_at_images_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """ViT_C has 20% less error everywhere; without its cells of 997 images, it would be worse."""
    script = load_script(ROOT / "studies" / "scaling.py")
    four = replace(script.SCALES["demo"], images=(128, 250, 499, 997))
    monkeypatch.setitem(script.SCALES, "demo", four)
    study = script.study(num=3)
    trials = outcomes(study)
    gone = trials["arm"].str.startswith("ViT_C") & trials["arm"].str.contains("997 images")
    trials.loc[gone, ["status", "value"]] = "diverged", 100.0
    row = Results(study, trials).once(scaling_crossing).iloc[0]
    for end, name in (("least", "least_params_m"), ("greatest", "greatest_params_m")):
        size = row[name]
        error = 4 + 20 * (100 * size) ** -0.5 + 10 * (499 / 250) ** -0.6
        low, high = (row[f"difference_at_{end}_{side}"] for side in ("low", "high"))
        assert low < 0.2 * error < high and low > 0


def test_the_frontier_falls_with_compute_and_the_better_family_never_crosses(
    results: Results,
) -> None:
    frontier = results.once(scaling_frontier)
    for _, rows in frontier.groupby("family"):
        assert rows["training_flops"].is_monotonic_increasing
        assert rows["best_value"].is_monotonic_decreasing
        assert (rows["best_value_low"] <= rows["best_value_high"]).all()
    row = results.once(scaling_crossing).iloc[0]
    assert np.isnan(row["crossing_params_m"]) and row["share_crossing"] < 0.05
    assert row["difference_at_least_low"] > 0  # ViT_P minus ViT_C
    assert any("none within the range" in line for line in headline(results))


def test_no_size_is_best_where_none_is_between_others(results: Results) -> None:
    """The demo has one length: what a budget affords most of is always the largest size."""
    table = results.once(scaling_optimum)
    assert (table["by"] == "cells").all() and len(table) == 10
    assert (table["optimum"] == "none within the range").all()
    assert table["optimal_params_m"].isna().all() and (table["share_inside"] < 0.5).all()
    at_cost = results.once(scaling_crossing_at_cost).iloc[0]
    assert np.isnan(at_cost["crossing_flops"]) and at_cost["share_crossing"] < 0.05
    lines = headline(results)
    assert sum("none within the range at any of 5 budgets" in line for line in lines) == 2
    (line,) = [line for line in lines if "at equal training compute" in line]
    assert "none, ViT_C is lower at both ends" in line


def test_equal_families_are_never_said_to_cross() -> None:
    """Laws of two equal families cross somewhere in the range in most studies."""
    crossed = stated = 0
    for seed in range(8):
        study = script_study(num=2)
        trials = outcomes(study, seed=seed)
        conv = trials["arm"].str.startswith("ViT_C")
        trials.loc[conv, ["value", "minival_error_pct"]] /= 0.8
        made = Results(study, trials)
        row = made.once(scaling_crossing).iloc[0]
        crossed += row["share_crossing"] > 0.5
        stated += np.isfinite(row["crossing_params_m"])
    assert crossed >= 2 and stated == 0


def test_an_error_of_0_is_in_the_means_and_in_no_law() -> None:
    study = script_study(num=2)
    trials = outcomes(study)
    arms = trials.groupby("arm", sort=False)
    zero, part = "ViT_C width 32, 250 images", "ViT_C width 32, 997 images"
    trials.loc[arms.get_group(zero).index, ["value", "minival_error_pct"]] = 0.0
    trials.loc[arms.get_group(part).index, "value"] = [0.0, 2.5] * 3
    made = Results(study, trials)
    cells = made.once(scaling_cells).set_index("cell")["val_mean"]
    assert (cells[zero], cells[part]) == (0.0, 1.25)
    table = made.once(scaling_fit)
    both = table[(table["axes"] == "size and images") & table["has_floor"]].set_index("family")
    assert both.loc["ViT_C", "n_cells"] == 14
    assert any("1 of 30 cells have an error of 0" in line for line in headline(made))
    trials[["value", "minival_error_pct"]] = 0.0
    nothing = Results(study, trials)
    assert nothing.once(scaling_fit).empty and not any("nan" in s for s in headline(nothing))


def test_size_and_length_that_a_budget_is_best_spent_on() -> None:
    """Of errors with a term of the samples, at scale cifar; and families that cross at a cost."""
    study = script_study(scale="cifar")
    trials = outcomes(study)
    configs = {t.config.id: (study.cost(t.config).params, t.config, t.arm) for t in study.trials}
    for index, row in trials[trials["status"] == "finished"].iterrows():
        params, config, arm = configs[row["trial_id"]]
        error = 2 + 12 * (params / 1e6) ** -0.5 + 8 * (config.num_samples / 2e6) ** -0.5
        if arm.factors["family"] == "ViT_C":
            error = 4 + 8 * (params / 1e6) ** -0.5 + 8 * (config.num_samples / 2e6) ** -0.5
        noise = row["value"] / row["minival_error_pct"]  # of the same lr: its sd is 0.06
        trials.loc[index, ["value", "minival_error_pct"]] = error * np.array([noise**0.2, 1])
    made = Results(study, trials)
    table = made.once(scaling_optimum)
    assert (table["by"] == "law").all()
    inside = table[(table["family"] == "ViT_P") & (table["optimum"] == "")]
    assert len(inside) >= 1
    for _, row in inside.iterrows():
        assert (
            row["optimal_params_m_low"] <= row["optimal_params_m"] <= row["optimal_params_m_high"]
        )
        assert row["optimal_samples_low"] <= row["optimal_samples"] <= row["optimal_samples_high"]
    assert inside["optimal_params_m"].is_monotonic_increasing
    # 12 s - 8 s = 2 where s is the size's term: (params / 1e6)^-0.5 = 0.5, at 4 M parameters
    size = made.once(scaling_crossing).iloc[0]
    assert size["crossing_params_m"] == pytest.approx(4, rel=0.15)
    cost = made.once(scaling_crossing_at_cost).iloc[0]
    near = [
        training_flops(c) / 1e12
        for params, c, _ in configs.values()
        if c.num_train == 45_000 and c.epochs == 30 and 3e6 < params < 5e6
    ]
    assert 0.6 * min(near) < cost["crossing_flops"] / 1e12 < 1.6 * max(near)
    assert cost["crossing_flops_low"] < cost["crossing_flops"] < cost["crossing_flops_high"]
    assert any("Compute-optimal size of ViT_P at" in line for line in headline(made))


def test_sentences_name_what_diverged_and_what_is_missing(results: Results) -> None:
    words = (
        "1 of 30 cells diverged, as no lr of theirs has as many finished as diverged runs (ViT_P"
    )
    assert any(words in s for s in headline(results))
    study = results.study
    trials = results.trials.copy()
    name = "ViT_C width 16, 250 images"
    trials.loc[trials["arm"] == name, "status"] = "missing"
    missing = Results(study, trials)
    assert any(
        f"a cell must have a finished trial to be in a law, but got none for 1 of 30 ({name})" in s
        for s in headline(missing)
    )
    assert any("Unfinished" in line for line in caveats(missing))
    others = trials.copy()
    rows = others.index[others["arm"] == name]
    others.loc[rows, "status"] = "failed"
    of_name = "ViT_P width 16, 250 images"
    rows = others.index[others["arm"] == of_name]
    others.loc[rows, "status"] = ["diverged", *["missing"] * (len(rows) - 1)]
    lines = headline(Results(study, others))
    assert any(f"All runs of 1 of 30 cells failed ({name})" in s for s in lines)
    assert any("1 of 30 cells have no lr yet" in s and of_name in s for s in lines)
    few = trials.copy()
    few.loc[~few["arm"].str.contains("width 16"), "status"] = "missing"
    assert any("No law of ViT_P" in line for line in headline(Results(study, few)))
    write_all(Results(study, few.assign(status="missing")))


def test_a_forecast_is_the_same_before_and_after_its_cells_are_trained(results: Results) -> None:
    after = results.once(scaling_forecast).query("kind == 'held out'")
    hidden = results.trials["arm"].isin(after["target"])
    before = Results(
        results.study,
        results.trials.assign(
            status=results.trials["status"].mask(hidden, "missing"),
            value=results.trials["value"].mask(hidden),
            minival_error_pct=results.trials["minival_error_pct"].mask(hidden),
        ),
    )
    forecast = before.once(scaling_forecast).query("kind == 'held out'")
    assert forecast["measured"].isna().all() and after["n"].max() == 3
    columns = ["target", *(f"predicted{end}" for end in ("", "_low", "_high"))]
    as_many = after["n"].to_numpy() == 3  # a run that diverged is one that the mean lacks
    assert as_many.sum() >= 4
    pd.testing.assert_frame_equal(
        forecast.loc[as_many, columns], after.loc[as_many, columns], check_exact=True
    )


def write_all(results: Results) -> None:
    kind = kind_of(results.study)
    for make in kind.tables.values():
        results.once(make)
    for draw in kind.figures.values():
        if draw.__name__ != "learning_curves":
            draw(results)


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"scale": "demo"}, ["250 images", "499 images", "997 images"]),
        (
            {"scale": "fashion", "subsets": "epochs"},
            ["6,250 images", "16,667 images", "50,000 images"],
        ),
        (
            {"scale": "fashion", "schedule": "cooldown"},
            [
                "6,250 images",
                "16,667 images",
                "50,000 images",
                "50,000 images, 1 epoch",
            ],
        ),
    ],
)
def test_a_curve_is_named_by_its_images_and_by_epochs_where_others_have_more(
    options: dict[str, Any], labels: list[str]
) -> None:
    study = script_study(**options)
    figure = kind_of(study).figures["error_by_scale"](Results(study, outcomes(study)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels


def test_single_runs_have_a_law_and_no_interval() -> None:
    study = script_study(num=1)
    table = Results(study, outcomes(study)).once(scaling_fit)
    assert table["size_exponent"].notna().all() and table["size_exponent_low"].isna().all()


def test_a_report_is_written(results: Results, tmp_path: Path) -> None:
    page = write_report(results, Workdir(tmp_path), {})
    assert (
        "Crossing of ViT_P and ViT_C" in page
        and (tmp_path / "error_by_scale.png").stat().st_size > 10_000
    )


def test_a_report_of_two_thousand_trials_takes_less_than_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many cells, since these are what a law is fitted to: 110, with 18 runs each."""
    monkeypatch.setattr(tables, "NUM_ROUNDS", 1000)
    script = load_script(ROOT / "studies" / "scaling.py")
    widths = (16, 24, 32, 40, 48, 56, 64, 72, 96, 120, 144)
    models = script.families(widths, 8, 3, (0.75, 1.5), "1-2")
    many = replace(script.SCALES["demo"], models=models, images=(128, 192, 250, 499, 997))
    monkeypatch.setitem(script.SCALES, "demo", many)
    study = script.study(num=6)
    assert len(study.trials) == 1980 and len(study.arms) == 110
    made = Results(study, outcomes(study))
    began = time.process_time()
    write_all(made)
    assert time.process_time() - began < 60


# ---- refusals of a plan


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (
            lambda t: t.arm.factors["size"] in ("width 16", "width 24"),
            r"a scaling law must have at least 4 values of size, one of which is held out, but got",
        ),
        (
            lambda t: t.config.subset_images != 499,
            r"a scaling law must have at least 3 values of images, but got \(family='ViT_P', ",
        ),
        (
            lambda t: t.arm.factors["size"] not in ("width 48",) or t.config.subset_images,
            "",
        ),
    ],
)
def test_a_law_of_too_few_values_is_refused(keep: Any, message: str) -> None:
    study = script_study()
    trials = tuple(t for t in study.trials if keep(t))
    study_of(trials, "scaling_cells")
    if message:
        with pytest.raises(ValueError, match=message):
            study_of(trials, "scaling_fit")
    else:
        study_of(trials, "scaling_fit")


def test_a_forecast_beyond_four_times_needs_far() -> None:
    study = script_study()
    trials = tuple(
        Trial(t.arm, t.config.replace(width=256, heads=8), t.point)
        if (t.arm.factors["family"], t.config.width) == ("ViT_P", 72)
        else t
        for t in study.trials
    )
    with refusing("size=", "next="):
        study_of(trials, "scaling_forecast")
    check(study_of(trials, "scaling_forecast", "scaling_forecast_far"))


def test_a_subset_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"minival_images \+ subset_images <= 997 training images"):
        script_study().trials[0].config.replace(subset_images=998)


@pytest.mark.parametrize("scale", ["demo", "fashion", "cifar"])
def test_subsets_train_for_as_many_steps_or_epochs_as_the_whole_set(scale: str) -> None:
    steps = script_study(scale=scale)
    longest = max(t.config.num_steps for t in steps.trials)
    for trial in steps.trials:
        if trial.config.subset_images:
            assert trial.config.num_steps == pytest.approx(longest, rel=0.03)
    epochs = script_study(scale=scale, subsets="epochs")
    assert {t.config.epochs for t in epochs.trials} == {
        t.config.epochs for t in steps.trials if not t.config.subset_images
    }


def test_a_budget_keeps_the_sizes_that_it_pays_for() -> None:
    whole = script_study()
    budget = 0.6 * sum(training_flops(t.config) for t in whole.trials)
    study = script_study(budget=budget)
    assert sum(training_flops(t.config) for t in study.trials) <= budget
    assert {t.arm.factors["size"] for t in study.trials} == {
        f"width {width}" for width in (16, 24, 32, 48)
    }
    for least, num in ((0.3 * budget, 2), (1.0, 0)):
        with refusing("budget=", f"which pays for {num}"):
            script_study(budget=least)
    documented = re.findall(r"--budget (\S+)", (ROOT / "studies/scaling.py").read_text())
    assert documented and all(script_study(budget=float(one)).trials for one in documented)


def test_a_budget_of_models_without_a_closed_form() -> None:
    """At imagenet, where the costs of timm's models are measured on the built model."""
    whole = with_costs(script_study(scale="imagenet"))
    costs: dict[object, float] = {}
    for trial in whole.trials:
        size = trial.arm.factors["size"]
        costs[size] = costs.get(size, 0.0) + training_flops(trial.config, whole.measured)
    study = script_study(scale="imagenet", budget=1.001 * sum(costs.values()) - max(costs.values()))
    left = {trial.arm.factors["size"] for trial in study.trials}
    assert costs.keys() - left == {max(costs, key=costs.__getitem__)}


@pytest.mark.parametrize(("scale", "lengths"), [("demo", 2), ("fashion", 2), ("cifar", 3)])
def test_lengths_that_cool_down_share_a_trunk_per_model_lr_and_seed(
    scale: str, lengths: int
) -> None:
    """Each costs its cooldown, a tenth of it, for itself; other schedules have no trunk."""
    study = script_study(scale=scale, schedule="cooldown")
    configs = {trial.config.id: trial.config for trial in study.trials}
    branches = [config for config in configs.values() if config.trunk]
    for config in branches:
        trunk = configs[config.trunk]
        assert not trunk.subset_images and trunk.epochs > config.epochs
        assert (trunk.width, trunk.stem, trunk.lr, trunk.seed) == (
            config.width,
            config.stem,
            config.lr,
            config.seed,
        )
        assert config.num_own_steps == round(config.num_steps / 10)
    trunks = {config.trunk for config in branches}
    assert len(branches) == (lengths - 1) * len(trunks)
    assert len(trunks) == len([c for c in configs.values() if not c.subset_images]) / lengths
    assert script_study(scale=scale) == script_study(scale=scale, schedule="decay")
    assert not any(trial.config.trunk for trial in script_study(scale=scale).trials)


def test_a_report_without_a_cell_says_so_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell of which nothing is done, or all has failed: one line on stderr, status 1; the report
    is written. With an outcome of each cell, status 0.
    """
    plan, read, _ = capture.load("scaling-demo")
    store, cell = Store.open(tmp_path), plan.trials[0].arm.name
    configs = {trial.config.id: trial for trial in plan.trials}
    held = [i for i, trial in configs.items() if trial.arm.name == cell]
    for trial_id, outcome in read.items():
        if trial_id not in held:
            config = configs[trial_id].config
            store.finish(store.claim(trial_id, config.non_default(), plan.slug, 1), outcome)
    store.study(plan.slug).write("plan.json", json.dumps({"command": "", **to_json(plan)}).encode())

    def report(*options: str) -> tuple[object, str]:
        monkeypatch.setattr(
            sys, "argv", ["vitscale", "report", plan.slug, "--store", str(tmp_path), *options]
        )
        status: object = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        assert "report  " in said.out or json.loads(said.out)["headline"]
        assert (store.report(plan.slug).path / "report.html").exists()
        return status, said.err

    line = (
        "vitscale: error: an arm must have a finished or diverged trial to be in a law, but got "
        f"none for 1 of 30 ({cell})\n"
    )
    assert report() == report("--json") == (1, line)
    for trial_id in held:
        config = configs[trial_id].config
        store.fail(store.claim(trial_id, config.non_default(), plan.slug, 1), "ValueError: x", "")
    assert report() == (1, line)
    store.finish(
        store.claim(held[0], configs[held[0]].config.non_default(), plan.slug, 1), read[held[0]]
    )
    assert report() == (0, "")
