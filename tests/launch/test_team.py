"""Trials on several workers, through the real Ray Tune and Ray
Train: data-parallel, killed, and with a bad config.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import psutil
import pytest
from conftest import Script, wait_for, workers_of
from support.buckets import wait_for_checkpoint
from support.mlflow_runs import epochs
from support.scripts import SEARCH
from support.teams import assert_close, undisturbed
from support.tiny_study import reference_rows, steps_saved, study, without_times

from vitscale.record.store import Store

pytestmark = pytest.mark.slow
TEAM = ("--workers-per-trial", "2", "--cpus-per-trial", "1", "--checkpoint-every-s", "0.3")


def actors(driver: int, title: str) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in workers_of(driver, f"ray::{title}")]


def team_workers(driver: int) -> list[psutil.Process]:
    return actors(driver, "RayTrainWorker")


def test_a_study_on_teams_of_two_one_of_which_loses_a_worker(tmp_path: Path) -> None:
    """The killed one is tried again from its checkpoint. Its rows are bit for bit those of a team
    that nothing disturbed, and to fp32 tolerance those of one process.
    """
    script, options = Script(tmp_path, is_lean=True), {"num": 1, "epochs": 20, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--broken", "1", *TEAM)
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 200, "a checkpoint")
    first, second = team_workers(process.pid)
    second.kill()
    assert process.wait(500) == 1, (tmp_path / "log.txt").read_text()
    assert not first.is_running()
    assert "a worker of the team was lost: " in (tmp_path / "log.txt").read_text()
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
    assert without_times(finished.rows) == undisturbed(conv)
    # later rows of teams are those of a process in test_parallel.py, for fewer steps
    assert_close(list(finished.rows[:3]), expected[conv.id][:3])


@pytest.mark.parametrize(
    "told",
    [
        "the study",
        *(pytest.param(n, marks=pytest.mark.chaos) for n in ("one worker", "its leader", "all")),
    ],
)
def test_a_team_that_is_told_to_end_saves(tmp_path: Path, told: str) -> None:
    """By SIGTERM to one worker, to the process that has started them, to all of these and those of
    Ray Train, or by Ctrl-C, without a checkpoint by the clock; its rows are those of a team that
    nothing disturbed.
    """
    script, options = Script(tmp_path, is_lean=True), {"num": 1, "epochs": 80, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, *TEAM[:-1], "1e6")
    wait_for(lambda: epochs(tmp_path / "mlflow.db"), 200, "an epoch")
    workers, leaders = team_workers(process.pid), actors(process.pid, "ImplicitFunc")
    controllers = actors(process.pid, "TrainController")
    meeting = actors(process.pid, "SynchronizationActor")
    assert (len(workers), len(leaders), len(controllers), len(meeting)) == (2, 1, 1, 1)
    if told == "the study":
        process.send_signal(signal.SIGINT)
    receivers = {
        "one worker": workers[1:],
        "its leader": leaders,
        "all": controllers + meeting + leaders + workers,
    }
    for receiver in receivers.get(told, []):
        receiver.terminate()
    assert not psutil.wait_procs(workers, 60)[1], "the workers end"
    assert not psutil.wait_procs(controllers, 30)[1], "so does their controller"
    (conv,) = (trial.config for trial in study(**options).trials)
    assert 0 < steps_saved(tmp_path) < conv.num_steps
    if told == "the study":
        assert process.wait(60) == 130, (tmp_path / "log.txt").read_text()
        process = script.start(*given, *TEAM)
    assert process.wait(500) == 0, (tmp_path / "log.txt").read_text()
    assert " failed, " not in (tmp_path / "log.txt").read_text().replace("0 failed, ", "")
    assert without_times(script.store().read(conv.id).rows) == undisturbed(conv)


@pytest.mark.chaos
@pytest.mark.parametrize("killed", ["ImplicitFunc", "ImplicitFunc at the start", "TrainController"])
def test_a_team_is_tried_again_if_a_process_that_does_not_train_is_killed(
    tmp_path: Path, killed: str
) -> None:
    """Its leader, or Ray Train's controller. The next team soon gets all cores of the machine from
    the killed one, though no dashboard says that they are free.
    """
    script, options = Script(tmp_path, is_lean=True), {"num": 1, "epochs": 50, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    cores = str((os.cpu_count() or 2) // 2)
    process = script.start(*given, *TEAM, "--cpus-per-trial", cores)
    if killed.endswith("start"):
        wait_for(lambda: actors(process.pid, "TrainController"), 200, "a controller")
    else:
        wait_for(lambda: steps_saved(tmp_path), 200, "a checkpoint")
    (found,) = actors(process.pid, killed.split()[0])
    found.kill()
    assert process.wait(300) == 0, (tmp_path / "log.txt").read_text()
    assert "tried again, 1 of 3" in (tmp_path / "log.txt").read_text()
    (conv,) = (trial.config for trial in study(**options).trials)
    assert without_times(script.store().read(conv.id).rows) == undisturbed(conv)


DIES = """
import importlib.machinery, os, signal, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "vitscale.launch.ray_team":
            return None
        spec = super().find_spec(name, path, target)
        whole = spec.loader.exec_module
        def exec_module(module):
            whole(module)
            hold = module.hold_sigterm
            def die_once():
                with open("/proc/self/cmdline") as title:
                    if "execute" in title.read():  # in a worker
                        try:
                            os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
                        except FileExistsError:
                            pass
                        else:
                            os.kill(os.getpid(), signal.SIGKILL)
                hold()
            for name in ("__module__", "__name__", "__qualname__"):  # to be pickled by its name
                setattr(die_once, name, getattr(hold, name))
            module.hold_sigterm = die_once
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.chaos
def test_a_team_is_tried_again_if_a_worker_dies_while_it_begins(tmp_path: Path) -> None:
    """After Ray Train has set up torch in it, and before it trains: the other worker must not keep
    its cores, which are all that the machine has.
    """
    hook, flag = tmp_path / "hook", tmp_path / "died"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(DIES.format(flag=str(flag)))
    script, options = Script(tmp_path, is_lean=True), {"num": 1, "epochs": 5, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    cores = str((os.cpu_count() or 2) // 2)
    path = f"{hook}:{os.environ.get('PYTHONPATH', '')}"
    result = script.run(*given, *TEAM, "--cpus-per-trial", cores, timeout=200, PYTHONPATH=path)
    assert result.returncode == 0, result.stdout
    reason = "a worker of the team was lost: WorkerGroupStartupFailedError: At least one of the"
    assert flag.exists() and f"tried again, 1 of 3): OSError: {reason}" in result.stdout
    (conv,) = (trial.config for trial in study(**options).trials)
    assert without_times(script.store().read(conv.id).rows) == undisturbed(conv)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_team_that_loses_a_worker_trains_into_a_bucket(
    tmp_path: Path,
    direct: None,
) -> None:
    """Its workers share the claim; what Ray Train wrote for itself is gone afterwards."""
    url = "s3://studies/teams"
    store, script = Store.open(url), Script(tmp_path, is_lean=True)
    options = {"num": 1, "epochs": 20}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--only", "conv", "--store", url, *TEAM)
    wait_for_checkpoint(store, script, process)
    team_workers(process.pid)[1].kill()
    assert process.wait(500) == 0, (tmp_path / "log.txt").read_text()

    (conv,) = (trial.config for trial in study(**options, only="conv").trials)
    finished = store.read(conv.id)
    assert finished.facts["workers"] == "2" and finished.facts["attempt"] == "1"
    assert without_times(finished.rows) == undisturbed(conv)
    assert not [name for name in store.trials.files() if "ray-train" in name]
    assert not store.trials.having("claim.json")


def test_more_workers_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    result = Script(tmp_path, is_lean=True).run("--workers-per-trial", "64")
    assert result.returncode == 2
    assert "a trial must fit on a node" in result.stdout and "workers_per_trial=64" in result.stdout


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_teams_that_a_search_stops_make_place_for_the_next_ones(tmp_path: Path) -> None:
    """Their leaders wait for workers, and cannot be given another trial."""
    script = Script(tmp_path, SEARCH, is_lean=True)
    points = ("--asha", "--num-seeds", "1", "--num", "3", "--per-round", "3", "--epochs", "27")
    result = script.run(*points, *TEAM, timeout=500)
    assert result.returncode == 0, result.stdout
    table = pd.read_parquet(tmp_path / "runs/studies/tiny_search-demo/report/trials.parquet")
    found = set(table["status"])
    assert len(table) == 6 and found == {"stopped", "finished"}, table["status"]
