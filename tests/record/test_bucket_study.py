"""A study in a bucket, killed, and continued where nobody sees whether its driver runs."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import TINY, Driver, Script, kill_family, load_script, wait_for
from support.buckets import SCHEME, SECRET, wait_for_checkpoint
from support.faulty_proxy import Proxy
from support.mlflow_runs import runs_of
from support.tiny_study import assert_uninterrupted

from vitscale.record import bucket, object_store
from vitscale.record.store import Store

# a machine of another name, which cannot tell whether a process of this one runs
ELSEWHERE = [
    "unshare",
    "--user",
    "--map-root-user",
    "--uts",
    "sh",
    "-c",
    'hostname away; exec "$@"',
]
ONLY = "conv diverging"
ARGUMENTS = ("--num", "1", "--epochs", "25", "--only", ONLY, "--checkpoint-every-s", "0.3")


def run_elsewhere(
    script: Script, arguments: tuple[str, ...], lease_s: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ELSEWHERE, "sh", *script.command(*arguments)],
        cwd=script.folder,
        env=script.environment | {"VITSCALE_LEASE_S": f"{lease_s}"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def stop_outside_of_writing(process: Driver, database: Path) -> None:
    """SIGSTOP at an instant at which the process holds no lock of MLflow's SQLite database.

    A lock that it holds keeps every other writer out until SIGCONT.
    """

    def has_stopped_without_a_lock() -> bool:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 10, "T")
        with contextlib.closing(sqlite3.connect(database, timeout=0.5)) as writer:
            try:
                writer.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                return False
        return True

    wait_for(has_stopped_without_a_lock, 60, "a driver that holds no lock of MLflow's database")


@pytest.mark.timeout(900)
def test_a_study_in_a_bucket_is_killed_and_gives_the_rows_of_a_folder(
    tmp_path: Path,
    direct: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"{SCHEME}://studies/killed"
    store, script = Store.open(url), Script(tmp_path, is_lean=True)
    arguments = (*ARGUMENTS, "--store", url)
    process = script.start(*arguments)
    wait_for_checkpoint(store, script, process)
    kill_family(process.pid)
    process.wait()
    assert not all(map(store.is_done, store.trial_ids()))
    assert store.trials.having("claim.json")  # so it was in the middle of a trial

    plan = load_script(TINY).study(num=1, epochs=25, only=ONLY)
    monkeypatch.setattr(bucket, "LEASE_S", 6.0)
    with store.drive("other-demo"):  # lives, but its worker does not
        config = plan.trials[-1].config
        store.claim(config.id, config.non_default(), "other-demo", 1)
        result = run_elsewhere(script, arguments, lease_s=6)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "waiting until it shows whether the holder" in said and "attempt 2" in said
    assert f"report  {url}/studies/tiny-demo/report/report.html" in said

    assert_uninterrupted(store, plan, tmp_path / "by_hand")
    report = store.report("tiny-demo").names()
    assert {"report.html", "trials.parquet", "edf_panels.png"} <= set(report)
    assert not store.driver_is_alive("tiny-demo") and not store.trials.having("claim.json")
    assert not (tmp_path / "runs").exists()

    again = script.run(*arguments)
    assert again.returncode == 0 and "2 done, 0 to do" in again.stdout, again.stdout
    status = subprocess.run(
        [sys.executable, "-m", "vitscale", "status", "--store", url],
        env=script.environment,
        capture_output=True,
        text=True,
    )
    assert "tiny-demo" in status.stdout, status.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_comes_back_after_another_has_taken_over_writes_nothing(
    tmp_path: Path,
    direct: None,
) -> None:
    """It stands still while another machine ends the study; its own workers train on meanwhile."""
    url = f"{SCHEME}://studies/zombie"
    store, script, log = Store.open(url), Script(tmp_path), tmp_path / "log.txt"
    arguments = (*ARGUMENTS, "--store", url)
    first = script.start(*arguments, VITSCALE_LEASE_S="3")
    wait_for_checkpoint(store, script, first)
    stop_outside_of_writing(first, tmp_path / "mlflow.db")
    second = run_elsewhere(script, arguments, lease_s=3)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "attempt 2" in second.stdout

    def written() -> dict[str, object]:
        names = ("plan.json", "attempt", "nonce", "report/report.html", "report/trials.parquet")
        return {name: store.study("tiny-demo").version(name) for name in names}

    def shown() -> dict[str, object]:
        runs = runs_of(script.environment["MLFLOW_TRACKING_URI"], "trial")
        return {name: (run.info.run_id, run.info.end_time) for name, run in runs.items()}

    before, runs = written(), shown()
    assert all(before.values()) and len(runs) == 2
    first.send_signal(signal.SIGCONT)
    assert first.wait(200) == 130, log.read_text()
    said = log.read_text()
    assert said.rstrip().endswith("interrupted: another start of the study has taken it over")
    assert "report  " not in said and "Traceback" not in said
    assert (written(), shown()) == (before, runs)
    plan = load_script(TINY).study(num=1, epochs=25, only=ONLY)
    assert_uninterrupted(store, plan, tmp_path / "by_hand")


FAULTS = {
    "507 InsufficientStorage": "the bucket must have room",
    "403 AccessDenied": "the credentials must be valid and permit reading and writing",
    "403 RequestTimeTooSkewed": "the clock of this machine must be as the server's",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[pytest.mark.chaos] if "Denied" not in f else []) for f in FAULTS],
)
def test_a_bucket_that_refuses_during_training_loses_nothing(
    tmp_path: Path,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """Full, without permission, or to a clock that differs by more than the server accepts."""
    monkeypatch.setenv("VITSCALE_LEASE_S", "6")
    url = f"{SCHEME}://studies/{fault[:3]}{fault[-4:]}"
    store, script = Store.open(url), Script(tmp_path, is_lean=True)
    arguments = ("--num", "1", "--epochs", "30", "--only", "conv", "--checkpoint-every-s", "0.3")
    process = script.start(*arguments, "--store", url)
    wait_for_checkpoint(store, script, process)
    refuses = ("PUT",) if fault.startswith("507") else ("PUT", "GET", "HEAD", "DELETE")
    proxy.fault = lambda method, path: fault if method in refuses else ""
    status, said = process.wait(400), (tmp_path / "log.txt").read_text()
    assert status == 1, said  # 2 would say that the start was refused
    assert FAULTS[fault] in said and "Traceback" not in said and SECRET not in said
    assert not list(store.trials.having("rows.parquet")) if fault.startswith("507") else True
    proxy.fault = lambda method, path: ""
    again = script.run(*arguments, "--store", url)
    assert again.returncode == 0, again.stdout
    plan = load_script(TINY).study(num=1, epochs=30, only="conv")
    assert_uninterrupted(store, plan, tmp_path / "by_hand")
    object_store._client.cache_clear()
