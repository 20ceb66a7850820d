"""Trials on several workers, through the real Ray Tune and Ray
Train: data-parallel, killed, and with a bad config.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from conftest import Script, wait_for, workers_of
from test_bucket import direct, server, wait_for_checkpoint  # noqa: F401
from test_launch import reference_rows, study, without_times
from test_leaving import steps_saved
from test_parallel import assert_close, on_team

from vitscale.record.store import Store

pytestmark = pytest.mark.slow
TEAM = ("--workers-per-trial", "2", "--cpus-per-trial", "1", "--checkpoint-every-s", "0.3")


def team_workers(driver: int) -> list[psutil.Process]:
    """By the title that Ray gives to the process of an actor."""
    family = psutil.Process(driver).children(recursive=True)
    return [p for p in family if p.is_running() and "RayTrainWorker" in " ".join(p.cmdline())]


def test_a_study_on_teams_of_two_one_of_which_loses_a_worker(tmp_path: Path) -> None:
    """The killed one is tried again from its checkpoint. Its rows are bit for bit those of a team
    that nothing disturbed, and to fp32 tolerance those of one process.
    """
    script, options = Script(tmp_path), {"num": 1, "epochs": 20, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--broken", "1", *TEAM)
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 200, "a checkpoint")
    first, second = team_workers(process.pid)
    second.kill()
    assert process.wait(500) == 1, (tmp_path / "log.txt").read_text()
    assert not first.is_running()
    out = (tmp_path / "log.txt").read_text()
    assert "training 1 at a time" in out
    assert "1 finished, 0 diverged, 1 failed, 0 missing of 2" in out
    assert ": ValueError: a part of a batch must hold two images" in out
    assert not list(tmp_path.glob("runs/trials/*/ray-train"))

    plan = study(**options)
    expected = reference_rows(plan, tmp_path / "by_hand")
    (conv,) = (trial.config for trial in plan.trials)
    finished = script.store().read(conv.id)
    assert finished.facts["workers"] == "2" and len(finished.rows) == 20
    assert without_times(finished.rows) == without_times(on_team(2, conv, tmp_path / conv.id)[0])
    # later rows of teams are those of a process in test_parallel.py, for fewer steps
    assert_close(list(finished.rows[:3]), expected[conv.id][:3])


@pytest.mark.parametrize("told", ["one worker", "the trial", "the study"])
def test_a_team_that_is_told_to_end_saves(tmp_path: Path, told: str) -> None:
    """By SIGTERM to one worker, or to both and the process that has started them, or by Ctrl-C,
    soon after a checkpoint by the clock; its rows are those of a team that nothing disturbed.
    """
    script, options = Script(tmp_path), {"num": 1, "epochs": 150, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, *TEAM[:-1], "1.5")
    wait_for(lambda: steps_saved(tmp_path), 200, "a checkpoint by the clock")
    by_the_clock = steps_saved(tmp_path)
    time.sleep(1)
    workers = team_workers(process.pid)
    trial, pids = workers_of(process.pid), [worker.pid for worker in workers]
    assert len(pids) == 2 and len(trial) == 1
    if told == "the study":
        process.send_signal(signal.SIGINT)
    for pid in {"one worker": pids[1:], "the trial": trial + pids, "the study": []}[told]:
        os.kill(pid, signal.SIGTERM)
    assert not psutil.wait_procs(workers, 60)[1], "the workers end"
    (conv,) = (trial.config for trial in study(**options).trials)
    saved = steps_saved(tmp_path)
    assert by_the_clock < saved < conv.num_steps
    if told == "the study":
        assert process.wait(60) == 130, (tmp_path / "log.txt").read_text()
        process = script.start(*given, *TEAM)
    assert process.wait(500) == 0, (tmp_path / "log.txt").read_text()
    assert " failed, " not in (tmp_path / "log.txt").read_text().replace("0 failed, ", "")
    rows = script.store().read(conv.id).rows
    assert without_times(rows) == without_times(on_team(2, conv, tmp_path / conv.id)[0])


@pytest.mark.timeout(900)
def test_a_team_that_loses_a_worker_trains_into_a_bucket(
    tmp_path: Path,
    direct: None,  # noqa: F811
) -> None:
    """Its workers share the claim; what Ray Train wrote for itself is gone afterwards."""
    url = "s3://studies/teams"
    store, script, options = Store.open(url), Script(tmp_path), {"num": 1, "epochs": 20}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--only", "conv", "--store", url, *TEAM)
    wait_for_checkpoint(store, script, process)
    team_workers(process.pid)[1].kill()
    assert process.wait(500) == 0, (tmp_path / "log.txt").read_text()

    (conv,) = (trial.config for trial in study(**options, only="conv").trials)
    finished = store.read(conv.id)
    assert finished.facts["workers"] == "2" and finished.facts["attempt"] == "1"
    assert without_times(finished.rows) == without_times(on_team(2, conv, tmp_path / conv.id)[0])
    assert not [name for name in store.trials.files() if "ray-train" in name]
    assert not store.trials.having("claim.json")


def test_more_workers_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    result = Script(tmp_path).run("--workers-per-trial", "64")
    assert result.returncode == 2
    assert "a trial must fit on a node" in result.stdout and "workers_per_trial=64" in result.stdout
