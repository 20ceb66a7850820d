"""What users do to a running study, short of killing it: nothing is lost, and one line says why it
ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY, Script, load_script, wait_for, workers_of
from support.mlflow_runs import client, runs_of
from support.tiny_study import assert_uninterrupted

OPTIONS = {"num": 1, "epochs": 40, "only": "conv patchify"}
ARGUMENTS = ("--num", "1", "--epochs", "40", "--only", "conv patchify", "--checkpoint-every-s")
ARGUMENTS += ("0.3",)


def vitscale(script: Script, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitscale", *arguments]
    environment, folder = script.environment, script.folder
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("runs/trials/*/checkpoint*"))


def said(folder: Path) -> str:
    return (folder / "log.txt").read_text()


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A file or folder that nobody can write to, not even root; skips the test without mounts."""
    if subprocess.run(["mount", "--bind", str(path), str(path)]).returncode:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_commands_run_and_the_experiment_is_deleted_while_a_study_runs(tmp_path: Path) -> None:
    script = Script(tmp_path, is_lean=True)
    uri = script.environment["MLFLOW_TRACKING_URI"]
    process = script.start(*ARGUMENTS, "--epochs", "120")
    wait_for(lambda: checkpoints(tmp_path) and "trial" in roles(uri), 300, "a trial in MLflow")
    mlflow = client(uri)
    mlflow.delete_experiment(mlflow.get_experiment_by_name("tiny-demo").experiment_id)
    for arguments, status, line in (
        (["status"], 0, "tiny-demo"),
        (["plan", "tiny-demo"], 0, "total"),
        (["report", "tiny-demo", "--format", "csv"], 1, "of 2 draws"),
        (["sync"], 0, "tiny-demo"),
    ):
        done = vitscale(script, *arguments)
        assert process.poll() is None, said(tmp_path)
        assert done.returncode == status and "Traceback" not in done.stderr, done
        assert line.lower() in done.stdout.lower(), done
    assert process.wait(600) == 0, said(tmp_path)
    plan = load_script(TINY).study(**{**OPTIONS, "epochs": 120})
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")
    children = runs_of(uri, "trial")
    assert set(children) == {trial.config.id for trial in plan.trials}
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    assert [run.info.status for run in runs_of(uri, "study").values()] == ["FINISHED"]
    assert "Traceback" not in said(tmp_path) and " not up to date" not in said(tmp_path)


def roles(uri: str) -> set[str]:
    """The roles of the runs that MLflow shows."""
    mlflow = client(uri)
    experiments = [e.experiment_id for e in mlflow.search_experiments()]
    return {run.data.tags.get("vitscale.role", "") for run in mlflow.search_runs(experiments)}


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_many_interrupts_and_a_closed_output_stop_a_study_as_one_does(tmp_path: Path) -> None:
    """Ten SIGINTs of a terminal within a second, to all of its processes; then `study | head`."""
    script = Script(tmp_path, is_lean=True)
    arguments = (*ARGUMENTS, "--epochs", "100")  # still in training when it is told a second time
    with (tmp_path / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            script.command(*arguments),
            cwd=tmp_path,
            env=script.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_for(lambda: checkpoints(tmp_path), 300, "a checkpoint")
    for _ in range(10):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
    assert process.wait(120) == 130, said(tmp_path)
    assert said(tmp_path).count("interrupted") == 1 and "Traceback" not in said(tmp_path)
    assert runs_of(script.environment["MLFLOW_TRACKING_URI"], "study")[""].info.status == "KILLED"

    closed = subprocess.Popen(
        script.command(*arguments),
        cwd=tmp_path,
        env=script.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert closed.stdout and closed.stderr
    while "training" not in closed.stdout.readline():
        assert closed.poll() is None
    closed.stdout.close()
    assert closed.wait(120) == 130
    assert closed.stderr.read() == (
        "interrupted: nobody reads the output any more; the same command resumes\n"
    )

    plan = load_script(TINY).study(**{**OPTIONS, "epochs": 100})
    result = script.run(*arguments)
    assert result.returncode == 0 and "attempt 3" in result.stdout, result.stdout
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")


@pytest.mark.slow
def test_a_study_whose_output_cannot_be_written_goes_on(tmp_path: Path) -> None:
    """On a full disk, both streams; a killed worker makes the thread that takes events print."""
    script = Script(tmp_path, is_lean=True)
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            script.command(*ARGUMENTS),
            cwd=tmp_path,
            env=script.environment,
            stdout=full,
            stderr=full,
        )
    wait_for(lambda: checkpoints(tmp_path), 300, "a checkpoint")
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    assert process.wait(300) == 0
    result = script.run(*ARGUMENTS)
    assert result.returncode == 0 and "2 done, 0 to do" in result.stdout, result.stdout


@pytest.mark.parametrize("command", [["--plan"], ["fields"]], ids=str)
def test_a_command_whose_output_is_closed_ends_silently(command: list[str]) -> None:
    """As `| head -1` does, with the status of SIGPIPE."""
    start = [str(TINY)] if command == ["--plan"] else ["-m", "vitscale"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *start, *command], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_store_and_a_database_that_become_read_only_lose_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path, is_lean=True)
    with read_only(tmp_path / "mlflow.db"):
        process = script.start(*ARGUMENTS)
        wait_for(lambda: checkpoints(tmp_path), 300, "a checkpoint")
        with read_only(tmp_path / "runs"):
            assert process.wait(400) == 1, said(tmp_path)
            refused = script.run(*ARGUMENTS)
        assert refused.returncode == 2 and len(refused.stdout.splitlines()) == 1
        assert "the store must be writable, but got (store=" in refused.stdout
        text = said(tmp_path)
        assert "Read-only file system" in text and "Traceback" not in text
        assert "report  not drawn" in text and " 2 missing of 2" in text
        process = script.start(*ARGUMENTS)
        assert process.wait(400) == 3, said(tmp_path)
        assert " is not up to date (" in said(tmp_path) and "Traceback" not in said(tmp_path)
    result = script.run(*ARGUMENTS)
    assert result.returncode == 0 and "2 done, 0 to do" in result.stdout, result.stdout
    plan = load_script(TINY).study(**OPTIONS)
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")
    children = runs_of(script.environment["MLFLOW_TRACKING_URI"], "trial")
    assert set(children) == {trial.config.id for trial in plan.trials}
