"""Trials on several workers, through the real Ray Tune and Ray
Train: data-parallel, killed, and with a bad config.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import Script, wait_for
from test_launch import reference_rows, study, without_times
from test_parallel import assert_close, on_team

pytestmark = pytest.mark.slow
TEAM = ("--workers-per-trial", "2", "--cpus-per-trial", "1", "--checkpoint-every-s", "0.3")


def assert_as_by_hand(script: Script, folder: Path, **options: int) -> None:
    """Each trial of the study has the rows of one process, to fp32 tolerance."""
    plan = study(**options)
    for trial in plan.trials:
        (folder / trial.config.id).mkdir(parents=True)
    for trial_id, expected in reference_rows(plan, folder).items():
        outcome = script.store().read(trial_id)
        if expected[-1]["diverged"]:
            assert (
                outcome.status == "diverged"
                and outcome.rows[-1]["diverged_step"] == expected[-1]["diverged_step"]
            )
        else:
            assert_close(list(outcome.rows), expected)
            assert outcome.facts["workers"] == "2"


def test_a_study_on_teams_of_two(tmp_path: Path) -> None:
    script = Script(tmp_path)
    result = script.run("--num", "1", "--broken", "1", *TEAM, timeout=500)
    assert result.returncode == 1, result.stdout
    assert "training 1 at a time" in result.stdout
    assert "2 finished, 1 diverged, 1 failed, 0 missing of 4" in result.stdout
    assert ": ValueError: a part of a batch must hold two images" in result.stdout
    assert_as_by_hand(script, tmp_path / "by_hand", num=1)
    assert not list(tmp_path.glob("runs/trials/*/ray-train"))


def team_workers(driver: int) -> list[psutil.Process]:
    """By the title that Ray gives to the process of an actor."""
    family = psutil.Process(driver).children(recursive=True)
    return [p for p in family if p.is_running() and "RayTrainWorker" in " ".join(p.cmdline())]


def test_a_killed_worker_is_tried_again_from_the_checkpoint(tmp_path: Path) -> None:
    """Bit for bit the rows of a team that nothing disturbed."""
    script = Script(tmp_path)
    arguments = ("--num", "1", "--epochs", "20", *TEAM)
    process = script.start(*arguments)
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 200, "a checkpoint")
    first, second = team_workers(process.pid)
    second.kill()
    assert process.wait(500) == 0, (tmp_path / "log.txt").read_text()
    assert not first.is_running()
    for trial in study(num=1, epochs=20).trials:
        rows = script.store().read(trial.config.id).rows
        assert without_times(rows) == without_times(
            on_team(2, trial.config, tmp_path / trial.config.id)[0]
        )


def test_more_workers_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    result = Script(tmp_path).run("--workers-per-trial", "64")
    assert result.returncode == 2
    assert "a trial must fit on a node" in result.stdout and "workers_per_trial=64" in result.stdout
