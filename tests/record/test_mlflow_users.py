"""Two users of one MLflow server (deploy/mlflow/serve.sh), who may not see each other's studies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, TINY, Script, free_port, kill_family, load_script, wait_for_mlflow
from support.refusals import refusing

from vitscale.record.mlflow.client import client_of
from vitscale.record.mlflow.experiment import study_pages
from vitscale.record.mlflow.place import experiment_prefix
from vitscale.record.mlflow.view import View
from vitscale.record.store import Store

ADMIN, PASSWORD = "admin", "correct-horse-battery"
USERS = ("alice", "bob")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    port, folder = free_port(), tmp_path_factory.mktemp("mlflow")
    process = subprocess.Popen(
        ["bash", str(ROOT / "deploy/mlflow/serve.sh"), str(folder)],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
            "DEFAULT_PERMISSION": "NO_PERMISSIONS",
            "PORT": str(port),
            "WORKERS": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    try:
        wait_for_mlflow(port)
        shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert "mlflow server" in shown and f"{folder}/mlflow.db" not in shown  # has passwords
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_family(process.pid)
        process.wait()


@pytest.fixture
def known_users(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    from mlflow import MlflowException
    from mlflow.server.auth.client import AuthServiceClient

    log_in(monkeypatch, ADMIN, PASSWORD)
    for user in USERS:
        try:
            AuthServiceClient(server).create_user(user, f"{user}-{PASSWORD}")
        except MlflowException as error:  # of the test before
            assert "RESOURCE_ALREADY_EXISTS" in str(error) or "500" in str(error), error
    return server


def log_in(monkeypatch: pytest.MonkeyPatch, user: str, password: str = "") -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password or f"{user}-{PASSWORD}")


def name_of(view: View) -> str:
    return str(view.client.get_experiment(view.experiment.id).name)


@pytest.mark.slow
def test_each_user_has_an_experiment_that_the_other_may_not_see(
    known_users: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual name is of whoever came first; a prefix keeps all of a user's together."""
    study = load_script(TINY).study()
    stores = {user: Store.open(tmp_path / user) for user in USERS}
    views = {}
    for user, store in stores.items():
        log_in(monkeypatch, user)
        views[user] = View(study, known_users, store)
        views[user].save()
    id_of_bob = stores["bob"].identity()[:8]
    assert name_of(views["bob"]) == f"{study.slug}-{id_of_bob}"
    assert [e.name for e in client_of(known_users).search_experiments()] == [
        f"{study.slug}-{id_of_bob}"
    ]

    # a prefix is for what is made from then on
    monkeypatch.setenv("VITSCALE_EXPERIMENT_PREFIX", "bob/")
    for reread in (False, True):
        again = View(study, known_users, stores["bob"], reread=reread)
        assert again.experiment.id == views["bob"].experiment.id
    second = Store.open(tmp_path / "second")
    assert name_of(View(study, known_users, second)) == f"bob/{study.slug}"
    assert list(study_pages(known_users, second, known_users)) == [study.slug]

    # a store whose cache names an experiment of another user
    log_in(monkeypatch, "bob")
    of_alice = View(study, known_users, stores["alice"])
    assert of_alice.experiment.id != views["alice"].experiment.id

    log_in(monkeypatch, "alice")
    assert name_of(View(study, known_users, stores["alice"])) == study.slug


@pytest.mark.slow
def test_a_wrong_password_is_said_before_the_first_trial_ends(
    known_users: str, tmp_path: Path
) -> None:
    """Training goes on, exit status 3, and the password is never printed."""
    script = Script(tmp_path, is_lean=True)
    secret = "not-the-password"
    result = script.run(
        "--num",
        "1",
        MLFLOW_TRACKING_URI=known_users,
        MLFLOW_TRACKING_USERNAME="alice",
        MLFLOW_TRACKING_PASSWORD=secret,
    )
    assert result.returncode == 3, result.stdout
    lines = result.stdout.splitlines()
    (warning,) = (i for i, line in enumerate(lines) if line.startswith("warning: mlflow "))
    assert "UNAUTHENTICATED" in lines[warning] or "401" in lines[warning]
    ended = next(i for i, line in enumerate(lines) if "finished, " in line)
    assert warning < ended and secret not in result.stdout


@pytest.mark.parametrize("prefix", ["a\nb", "x" * 101])
def test_an_impossible_prefix_is_refused(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITSCALE_EXPERIMENT_PREFIX", prefix)
    with refusing(f"VITSCALE_EXPERIMENT_PREFIX={prefix!r}"):
        experiment_prefix()
