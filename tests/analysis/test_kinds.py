"""Kinds of studies: what each needs of its arms, a kind of a user's own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, Script
from support.mlflow_runs import client
from support.refusals import refusing

from vitscale.analysis.arm_means import arm_means
from vitscale.analysis.kinds import add_question, kind_of
from vitscale.analysis.names import check_known_names
from vitscale.analysis.results import Results
from vitscale.analysis.stats.correction import holm
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import SearchInfo, Study, from_json, to_json
from vitscale.plan.trial import Arm, Trial
from vitscale.record.outcome import Outcome
from vitscale.record.table import outcomes

STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("[a-z]*.py"))
OWN = ROOT / "tests" / "studies" / "own_kind.py"
FIXED: dict[str, Any] = {"name": "made", "scale": "demo", "question": "?", "source": "none"}


PLAN = """
import atexit, runpy, sys
heavy = ("pandas", "matplotlib", "torch", "ray", "mlflow")
atexit.register(lambda: print("loaded:", [name for name in heavy if name in sys.modules]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


WITH_TIMM = {"optimizers", "tune_optimizers"}  # timm, which has their optimizers, needs torch


@pytest.mark.parametrize("study", STUDIES)
def test_a_plan_loads_nothing_heavy(study: str, tmp_path: Path) -> None:
    loaded = ["torch"] if study in WITH_TIMM else []
    command = [sys.executable, "-c", PLAN, f"studies/{study}.py", "--plan", "--store"]
    made = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0 and made.stdout.endswith(f"loaded: {loaded}\n"), made.stdout[-500:]


def arms(**settings: dict[str, Any]) -> tuple[Trial, ...]:
    return tuple(
        Trial(arm, TrainConfig(**fields, seed=seed), seed)
        for arm, fields in settings.items()
        for seed in range(2)
    )


def made_of(trials: tuple[Trial, ...], **factors: dict[str, Any]) -> tuple[Trial, ...]:
    """The trials, with factors of their arms."""
    return tuple(dataclasses.replace(t, arm=Arm(t.arm.name, factors[t.arm.name])) for t in trials)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {
                "kind": "repeats",
                "trials": (Trial("a", TrainConfig(), 0), Trial("a", TrainConfig(lr=0.1), 1)),
            },
            "the trials of an arm must differ only in seed in a study of kind repeats",
        ),
        (
            {
                "kind": "repeats",
                "trials": arms(a={"depth": 2}, b={"depth": 3}),
                "tables": ("stability_cells",),
            },
            (
                "arms must differ in model, optimizer and epochs, in their configs or in their "
                "factors, to avoid pooling"
            ),
        ),
        (
            {
                "kind": "repeats",
                "trials": arms(a={}, b={"depth": 3}),
                "tables": ("recipe_interaction",),
            },
            (
                "the factors of each arm of a study with these tables must name architecture and "
                "recipe"
            ),
        ),
        (
            {"kind": "shapes", "trials": arms(a={}, b={"depth": 3}), "tables": ("shape_cells",)},
            "the factors of each arm of a study with these tables must name size",
        ),
        (
            {
                "kind": "shapes",
                "trials": made_of(arms(a={}, b={"wd": 0.2}), a={"size": "S"}, b={"size": "S"}),
                "tables": ("shape_cells",),
            },
            "arms must differ in size, drop path rule, depth, branches, LayerScale and epochs",
        ),
        (
            {
                "kind": "shapes",
                "trials": made_of(arms(a={}), a={"size": "S"}),
                "figures": ("branches",),
            },
            "the figures branches, widths, depths must have a panel of their name",
        ),
        (
            {"kind": "profile", "trials": arms(a={})},
            "a study must have profiles if and only if it is of kind profile",
        ),
        (
            {"kind": "search", "trials": arms(a={})},
            "exactly the studies of kind search must have a SearchInfo",
        ),
        (
            {
                "kind": "search",
                "search": SearchInfo(sampler="tpe", per_round=4),
                "trials": arms(
                    a={
                        "decay": "constant",
                        "trunk": "0123456789ab",
                        "trunk_step": 1,
                        "ema_decay": 0.0,
                    }
                ),
            },
            "the trials of a search must start from initial weights",
        ),
        ({"kind": "Of mine", "trials": arms(a={})}, "the kind of a study must match"),
    ],
)
def test_arms_that_would_be_pooled_or_lack_what_their_kind_needs_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Study(**{**FIXED, **fields})


def test_factors_tell_arms_apart_that_would_be_pooled() -> None:
    given: dict[str, Any] = {
        "kind": "repeats",
        "trials": arms(a={"depth": 2}, b={"depth": 3}),
        "tables": ("stability_cells",),
    }
    given["trials"] = made_of(given["trials"], a={"model": "a"}, b={"model": "b"})
    study = Study(**{**FIXED, **given})
    assert tuple(study.arms) == ("a", "b")


def test_a_kind_that_nothing_defines_is_refused_in_one_line() -> None:
    study = Study(**FIXED, kind="unheard_of", trials=arms(a={}))
    with pytest.raises(
        ValueError, match=r"must be among \(distribution, .*or be registered by the script"
    ) as error:
        kind_of(study)
    assert "\n" not in str(error.value)

    misspelt = Study(**FIXED, kind="distributions", trials=arms(a={}))
    with pytest.raises(ValueError, match=r"kind='distributions'\); did you mean 'distribution'\?$"):
        kind_of(misspelt)


def test_a_kind_of_ones_own_plans_runs_reports_and_shows_in_mlflow(tmp_path: Path) -> None:
    """Without an edit in vitscale/: a table, a figure, a
    sentence, numbers of its arms in MLflow.
    """
    script = Script(tmp_path, OWN, is_lean=True)
    planned = script.run("--plan")
    assert planned.returncode == 0 and "own_kind-demo" in planned.stdout, planned.stdout
    result = script.run()
    assert result.returncode == 0, result.stdout
    report = tmp_path / "runs" / "studies" / "own_kind-demo" / "report"
    table = pd.read_parquet(report / "epoch_cost.parquet")
    assert (
        table["arm"].tolist() == ["width 8", "width 64"] and (table["seconds_per_epoch"] > 0).all()
    )
    # by their times, which a busy machine may reverse
    dearest = table.loc[table["seconds_per_epoch"].idxmax(), "arm"]
    assert f"The dearest arm is {dearest}." in result.stdout
    assert (report / "cost_by_width.png").stat().st_size > 1000 and "Seconds per epoch of" in (
        report / "report.html"
    ).read_text()
    store = client(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = store.get_experiment_by_name("own_kind-demo")
    of_arms = store.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'arm'")
    shown = {
        run.data.tags["vitscale.arm"]: run.data.metrics["seconds_per_epoch"] for run in of_arms
    }
    assert shown == dict(zip(table["arm"], table["seconds_per_epoch"], strict=True))
    again = script.run("--report")
    assert again.returncode == 0 and f"The dearest arm is {dearest}." in again.stdout


def test_a_question_of_ones_own_is_registered_corrected_counted_and_answered(
    tmp_path: Path,
) -> None:
    """From a study script: a comparison of arms of a standing kind, with a table and a figure."""
    script = Script(tmp_path, OWN.with_name("own_question.py"), is_lean=True)
    planned = script.run("--plan")
    assert planned.returncode == 0, planned.stdout
    said = "gain over the first arm (3 seeds per cell, 2 comparisons, Holm)"
    assert said in planned.stdout, planned.stdout
    result = script.run()
    assert result.returncode == 0, result.stdout
    folder = tmp_path / "runs" / "studies" / "own_question-demo"
    table = pd.read_parquet(folder / "report" / "gain.parquet")
    values = pd.read_parquet(folder / "report" / "trials.parquet").groupby("arm")["value"]
    samples = {arm: numbers.to_numpy() for arm, numbers in values}
    tests = [
        scipy.stats.ttest_ind(samples[a], samples["depth 1"], equal_var=False) for a in table["a"]
    ]
    assert table["a"].tolist() == ["depth 2", "depth 3"]
    assert table["difference_p"].tolist() == pytest.approx([test.pvalue for test in tests])
    assert table["difference_p_holm"].tolist() == pytest.approx(holm(table["difference_p"]))
    assert "Arms against the first, error on val: lower in " in result.stdout
    assert (folder / "report" / "gains.png").stat().st_size > 1000
    registered = json.loads((folder / "plan.json").read_text())["comparisons"]["gain"]
    assert [one["weights"] for one in registered] == [
        {"depth 2": 1, "depth 1": -1},
        {"depth 3": 1, "depth 1": -1},
    ]


def test_a_question_with_a_name_that_is_taken_is_refused() -> None:
    with refusing("arm_means"):
        add_question("repeats", tables=[arm_means])
    with pytest.raises(ValueError, match=r"among .*kind='none'"):
        add_question("none")


def test_kind_is_required() -> None:
    with refusing("without kind"):
        Study(**FIXED, trials=arms(a={}))
    assert "kind" in {field.name for field in dataclasses.fields(Study)}


# ---- trials without a point, and pairs


def plain(kind: str, **more: Any) -> Study:
    """Two arms with two seeds each, of which no trial has a point."""
    trials = tuple(Trial(t.arm, t.config) for t in arms(a={}, b={"depth": 3}))
    return Study(kind=kind, trials=trials, metric="val_error_pct", **FIXED, **more)


def test_plain_trials_of_repeats_count() -> None:
    study = plain("repeats")
    assert [trial.point for trial in study.trials] == [0, 1, 0, 1]
    assert [trial.config.id for trial in study.trials] == [
        trial.config.id for trial in arms(a={}, b={"depth": 3})
    ]
    read = {
        trial.config.id: Outcome.from_rows([{"epoch": 1, "val_error_pct": 10.0 + i}], {})
        for i, trial in enumerate(study.trials)
    }
    results = Results(study, outcomes(study, read))
    table = results.once(arm_means)
    assert table["n"].tolist() == [2, 2] and table["mean"].tolist() == [10.5, 12.5]
    assert "0 separate reference runs" in kind_of(study).design_text(study)
    with_point = dataclasses.replace(study.trials[0], point=0)
    mixed = dataclasses.replace(
        study, trials=(with_point, Trial("a", TrainConfig(seed=7)), *study.trials[2:])
    )
    assert [trial.point for trial in mixed.trials] == [0, None, 0, 1]  # a keeps its reference


def test_an_arm_of_a_distribution_without_draws_is_refused_but_a_stored_one_is_loaded() -> None:
    study = plain("distribution")
    with refusing("arm='a'") as refused:
        check_known_names(study)
    assert "(arm='a': reference runs alone)" in str(refused.value)
    assert from_json(to_json(study)).trials == study.trials


def test_pairs_that_a_kind_would_ignore_are_refused() -> None:
    for study in (plain("repeats", pairs=(("a", "b"),)), shapes_with_pairs()):
        with refusing("kind=", "pairs=") as refused:
            check_known_names(study)
        assert f"kind={study.kind!r}, pairs=(('a', 'b'),)" in str(refused.value)
        assert from_json(to_json(study)).pairs == (("a", "b"),)
    check_known_names(shapes_with_pairs(tables=("blocks_or_width",)))


@pytest.mark.parametrize(
    ("fields", "law"),
    [
        ({"pairs": (("a", "b"), ("b", "a")), "tables": ("pair_differences",)}, "times=2"),
        ({"margin": 1.0, "tables": ("arm_means",)}, "margin=1"),
    ],
)
def test_a_pair_named_twice_and_an_idle_margin_are_refused(
    fields: dict[str, Any], law: str
) -> None:
    study = plain("repeats", **fields)
    with refusing(law):
        check_known_names(study)
    assert from_json(to_json(study)) == study


def shapes_with_pairs(**more: Any) -> Study:
    trials = made_of(arms(a={}, b={"depth": 3}), a={"size": "S"}, b={"size": "S"})
    fields: dict[str, Any] = {**FIXED, **more, "metric": "val_error_pct"}
    return Study(kind="shapes", trials=trials, pairs=(("a", "b"),), **fields)
