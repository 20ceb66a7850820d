"""A study about the loss through Ray and MLflow, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, Script

LOSS = ROOT / "tests" / "studies" / "about_loss.py"


def test_a_study_about_the_loss_runs_reports_and_shows_in_mlflow(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    result = Script(tmp_path, LOSS).run()
    assert result.returncode == 0, result.stdout
    assert "Absolute loss" in result.stdout and "0.5 nats" in result.stdout
    report = tmp_path / "runs" / "studies" / "about_loss-demo" / "report"
    trials = pd.read_parquet(report / "trials.parquet").set_index("trial_id")
    table = pd.read_parquet(report / "edf_summary.parquet").set_index("arm")
    assert (trials["value"] == trials["val_ema_loss"]).all() and len(trials) == 12
    store = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = store.get_experiment_by_name("about_loss-demo")
    assert experiment is not None
    runs = store.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'trial'")
    shown = {r.data.tags["vitscale.trial_id"]: r.data.metrics["final_loss"] for r in runs}
    assert shown == pytest.approx(trials["value"].to_dict())
    arms = store.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'arm'")
    medians = {r.data.tags["vitscale.arm"]: r.data.metrics["median"] for r in arms}
    assert medians == pytest.approx(table["median"].to_dict())
    views = " ".join(value for name, value in experiment.tags.items() if "ViewState" in name)
    assert "final_loss" in views and "error_pct" not in views
