"""The MLflow database is in its store: stores never mix, and can be moved or copied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, empty_database, load_script

from vitscale.plan.study import Study
from vitscale.record.mlflow.place import (
    database_of,
    tracking_uri,
    without_user,
)
from vitscale.record.mlflow.view import View
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir


def study(**options: int) -> Study:
    return load_script(TINY).study(**options)


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def row(epoch: int, error: float) -> dict[str, float]:
    return {"epoch": epoch, "unix_s": 1e9 + epoch, "val_ema_error_pct": error}


def states(uri: str, store: Store) -> dict[str, tuple[str, float]]:
    """Trial id -> (status, final error) of all runs of trials with the store's tag."""
    mlflow = client(uri)
    chosen = f"tags.`vitscale.store` = '{store.identity()}' and tags.`vitscale.role` = 'trial'"
    runs = mlflow.search_runs([e.experiment_id for e in mlflow.search_experiments()], chosen)
    return {
        run.data.tags["vitscale.trial_id"]: (
            run.data.tags["vitscale.status"],
            run.data.metrics["final_error_pct"],
        )
        for run in runs
    }


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    """Two stores, each with an empty database."""
    made = []
    for name in ("one", "two"):
        made.append(Store.open(tmp_path / name))
        (tmp_path / name / "mlflow.db").write_bytes(empty_database())
    return made[0], made[1]


def test_the_database_is_in_the_store_unless_the_environment_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("runs", "odd #100%20 ?x=1 \u00e9"):
        assert database_of(tracking_uri(Store(tmp_path / name))) == tmp_path / name / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere:5000")
    assert tracking_uri(Store(tmp_path)) == "http://somewhere:5000"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    assert tracking_uri(Store(tmp_path / "runs")) == f"sqlite:///{tmp_path}/other.db"


def test_sqlalchemy_opens_the_right_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.engine import make_url

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("runs", "odd #100%20 ?x=1 \u00e9"):
        assert make_url(tracking_uri(Store(tmp_path / name))).database == str(
            tmp_path / name / "mlflow.db"
        )


def test_two_stores_on_one_server_keep_their_own_states(stores: tuple[Store, Store]) -> None:
    """The same study fails in one store and trains in the other: their pages are separate."""
    one, two = stores
    shared = f"sqlite:///{one.root}/mlflow.db"
    plan = study(num=1)
    trial_id = plan.trials[0].config.id
    trained, failed = View(plan, shared, one), View(plan, shared, two)
    trained.runs.show(trial_id, Outcome(Status.FINISHED, (row(1, 7.0),)))
    failed.runs.show(trial_id, Outcome(Status.FAILED).because("ValueError: no"))
    failed.end({"": Outcome(Status.FAILED)})
    trained.end({})
    assert states(shared, one) == {trial_id: ("finished", 7.0)}
    assert states(shared, two) == {trial_id: ("failed", 100.0)}
    again = [View(plan, shared, store) for store in (one, two)]
    assert [view.experiment.id for view in again] == [trained.experiment.id, failed.experiment.id]
    assert [client(shared).get_run(view.contents.parent_id).info.status for view in again] == [
        "FINISHED",
        "FAILED",
    ]
    assert trained.experiment.id != failed.experiment.id
    names = {client(shared).get_experiment(view.experiment.id).name for view in again}
    assert names == {"tiny-demo", f"tiny-demo-{two.identity()[:8]}"}


def test_what_an_earlier_version_has_shown_is_kept(stores: tuple[Store, Store]) -> None:
    """Experiments without a store's tag belong to the first store that uses them."""
    one, two = stores
    uri = f"sqlite:///{one.root}/mlflow.db"
    plan = study(num=1)
    old = client(uri).create_experiment("tiny-demo", tags={"vitscale.study": "tiny-demo"})
    assert View(plan, uri, one).experiment.id == old
    assert View(plan, uri, two).experiment.id != old
    assert View(plan, uri, one).experiment.id == old
    other = client(uri).create_experiment("tiny-else", tags={})  # not ours at all
    with_other = View(replace(plan, scale="else"), uri, one)
    assert with_other.experiment.id != other


@pytest.mark.parametrize("text", [" http://host:5000 ", "HTTP://host:5000\r", "Http://host:5000"])
def test_an_address_is_read_without_spaces_and_in_any_case(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", text)
    assert tracking_uri(Store(tmp_path)) == "http://host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "SQLite:///~/Other.db")
    assert database_of(tracking_uri(Store(tmp_path))) == Path.home() / "Other.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", " ")
    assert database_of(tracking_uri(Store(tmp_path))) == tmp_path / "mlflow.db"


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_reports_follow_a_store_that_is_moved_or_copied(
    stores: tuple[Store, Store], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a folder whose name means something else as a URI: nothing is written outside of it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking._tracking_service import utils

    old, plan = stores[0], study(num=1)
    (tmp_path / "report").mkdir()
    report = tmp_path / "report" / "report.html"
    report.write_text("before")
    View(plan, f"sqlite:///{old.root}/mlflow.db", old).summarize(
        {"conv": {"n": 1.0}}, Workdir(report.parent)
    )
    (tmp_path / "folder").mkdir()
    place = tmp_path / "folder" / "job%2Fx 50% #1?y=é"
    shutil.move(old.root, place) if how == "moved" else shutil.copytree(old.root, place)
    report.write_text("after")
    there = {path for path in tmp_path.rglob("*") if not path.is_relative_to(place)}
    utils._artifact_repos_cache.clear()  # the next start is another process
    new = Store(place)
    assert new.identity()  # travels with the store
    uri = tracking_uri(new)
    view = View(plan, uri, new)
    found = client(uri).download_artifacts(view.contents.parent_id, "report.html")
    assert Path(found).read_text() == "before"
    assert client(uri).get_run(view.contents.parent_id).info.artifact_uri.startswith(place.as_uri())
    view.summarize({"conv": {"n": 1.0}}, Workdir(report.parent))
    assert [path.read_text() for path in place.glob("mlruns/**/report.html")] == ["after"]
    outside = {path for path in tmp_path.rglob("*") if not path.is_relative_to(place)}
    assert outside == there
    originals = [path.read_text() for path in tmp_path.glob("one/mlruns/**/report.html")]
    assert originals == ([] if how == "moved" else ["before"])


def test_places_that_a_server_decides_on_are_left_alone(stores: tuple[Store, Store]) -> None:
    """The database of a store can also be served: reports sent there are the server's."""
    one, plan = stores[0], study(num=1)
    uri, place = f"sqlite:///{one.root}/mlflow.db", "mlflow-artifacts:/5"
    tags = {"vitscale.study": "other-demo"}
    served = client(uri).create_experiment("other-demo", artifact_location=place, tags=tags)
    run = client(uri).create_run(served)
    View(plan, uri, one)
    assert client(uri).get_experiment(served).artifact_location == place
    assert client(uri).get_run(run.info.run_id).info.artifact_uri == run.info.artifact_uri
    assert run.info.artifact_uri.startswith(f"{place}/")


def test_ui_without_a_database_says_where_it_looks(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "vitscale", "ui", "--store", "elsewhere"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode != 0 and f"{tmp_path}/elsewhere/mlflow.db" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@host:5000/a", "http://host:5000/a"),
        (
            "a request to https://me:p@ss@host/api/2.0 failed",
            "a request to https://host/api/2.0 failed",
        ),
        ("postgresql://me@host/runs", "postgresql://host/runs"),
        # all of which SQLAlchemy reads
        ("at (postgresql://me:aB/3x+Q=@host:5432/runs)", "at (postgresql://host:5432/runs)"),
        ("mysql+pymysql://host/runs?user=me&password=p", "mysql+pymysql://host/runs?..."),
        ("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dp failed", "mssql+pyodbc:///?... failed"),
        (
            "http://host:5000/a@b and sqlite:////runs/x@y.db",
            "http://host:5000/a@b and sqlite:////runs/x@y.db",
        ),
    ],
)
def test_users_and_passwords_are_cut_from_uris(text: str, shown: str) -> None:
    assert without_user(text) == shown


def test_no_command_prints_the_password_of_a_server(tmp_path: Path) -> None:
    """The server does not answer, so that MLflow's own message, which has the URI, is printed."""
    Store.open(tmp_path / "runs")
    environment = {
        "MLFLOW_TRACKING_URI": "http://me:secret@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "vitscale", "ui", "--store", "runs"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode != 0
    assert "(http://127.0.0.1:9): " in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
