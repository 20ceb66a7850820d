"""Kinds of studies: what each needs of its arms, a kind of a user's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT, Script
from test_mlflow import client

from vitscale.analysis.kinds import KINDS, kind_of
from vitscale.analysis.names import NAMES
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Arm, SearchInfo, Study, Trial

STUDIES = sorted(
    path.stem for path in (ROOT / "studies").glob("[a-z]*.py") if path.stem != "tune_lr_wd"
)
OWN = Path(__file__).parent / "studies" / "own_kind.py"
FIXED: dict[str, Any] = {"name": "made", "scale": "demo", "question": "?", "source": "none"}


def test_every_kind_lists_its_names_for_a_quick_plan() -> None:
    assert set(NAMES) == set(KINDS) - {"search"}  # whose law asks for more than names


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


def test_kind_is_required() -> None:
    with pytest.raises(ValueError, match="without kind"):
        Study(**FIXED, trials=arms(a={}))
    assert "kind" in {field.name for field in dataclasses.fields(Study)}
