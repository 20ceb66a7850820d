"""What MLflow has of a study: its runs, their metrics and how they ended."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from conftest import Script, kill_family

from vitscale.record.outcome import Row


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs_of(uri: str, role: str) -> dict[str, Any]:
    return runs_of_experiment(uri, "tiny-demo", role)


def runs_of_experiment(uri: str, name: str, role: str) -> dict[str, Any]:
    """Runs of a study's experiment by trial id ("" for the parent)."""
    mlflow = client(uri)
    experiment = mlflow.get_experiment_by_name(name)
    found = mlflow.search_runs(
        [experiment.experiment_id], f"tags.`vitscale.role` = '{role}'", max_results=1000
    )
    runs = {run.data.tags.get("vitscale.trial_id", ""): run for run in found}
    assert len(runs) == len(found), "two runs of one trial"
    return runs


def epochs(database: Path) -> int:
    """The trials of which MLflow's SQLite database shows an epoch.

    Read without MLflow, which would create the tables of a new one at the same time as the study.
    """
    query = (
        "SELECT COUNT(DISTINCT run_uuid) FROM tags JOIN latest_metrics USING (run_uuid) "
        "WHERE tags.key = 'vitscale.role' AND tags.value = 'trial' "
        "AND latest_metrics.key = 'train_loss'"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reading:
            return reading.execute(query).fetchone()[0]
    except sqlite3.OperationalError:  # not yet there, or without tables
        return 0


def history(uri: str, run_id: str, metric: str) -> list[tuple[int, int, float]]:
    return [(m.step, m.timestamp, m.value) for m in client(uri).get_metric_history(run_id, metric)]


def stop(process: subprocess.Popen[bytes]) -> None:
    kill_family(process.pid)
    process.wait()


def roles(uri: str, role: str, chosen: str = "") -> list[Any]:
    mlflow = client(uri)
    experiments = [e.experiment_id for e in mlflow.search_experiments()]
    return list(
        mlflow.search_runs(
            experiments, f"tags.`vitscale.role` = '{role}'{chosen}", max_results=5000
        )
    )


def mlflow_statuses(script: Script, slug: str) -> list[str]:
    """Of the runs of the study's trials."""
    mlflow = client(f"sqlite:///{script.folder}/mlflow.db")
    experiment = mlflow.get_experiment_by_name(slug)
    assert experiment is not None
    runs = mlflow.search_runs([experiment.experiment_id], max_results=1000)
    return [run.info.status for run in runs if run.data.tags["vitscale.role"] == "trial"]


def assert_shown(
    database: Path, expected: Mapping[str, Iterable[Row]], failed: Collection[str] = ()
) -> None:
    """MLflow has a run of the study that has ended, and one of each trial with its rows, once."""
    uri = f"sqlite:///{database}"
    children, parents = runs_of(uri, "trial"), runs_of(uri, "study")
    assert set(children) == {*expected, *failed} and len(parents) == 1
    (parent,) = parents.values()
    assert parent.info.status == ("FAILED" if failed else "FINISHED")
    for trial_id, run in children.items():
        assert run.info.status == ("FAILED" if trial_id in failed else "FINISHED")
        if trial_id in failed:
            continue
        # by step: their times are those of the workers' clocks
        values = sorted(history(uri, run.info.run_id, "val_ema_error_pct"))
        assert [(step, value) for step, _, value in values] == [
            (row["epoch"], row["val_ema_error_pct"]) for row in expected[trial_id]
        ]
    assert not steps_twice(database, [run.info.run_id for run in children.values()])


def steps_twice(database: Path, run_ids: list[str]) -> list[tuple[Any, ...]]:
    """(run, metric, step) of any metric that has two values at one step."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            "select run_uuid, key, step, count(*) from metrics group by 1, 2, 3 having count(*) > 1"
        ).fetchall()
    return [entry for entry in found if entry[0] in run_ids]
