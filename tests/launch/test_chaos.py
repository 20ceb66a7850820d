"""Random kills of driver, worker or both: no row is lost, duplicated or changed by a bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from conftest import TINY, Script, kill_family, load_script, wait_for, workers_of
from support.mlflow_runs import history, runs_of
from support.tiny_study import reference_rows, without_times

pytestmark = [pytest.mark.slow, pytest.mark.random]
NUM_KILLS = int(os.environ.get("VITSCALE_TEST_KILLS", "6"))  # 24 in `make chaos`
EPOCHS = 60


@pytest.mark.timeout(300 + 75 * NUM_KILLS)
def test_a_study_survives_kills_at_random_instants(tmp_path: Path) -> None:
    """At least NUM_KILLS kills while trials were to do, some of each kind; then one start to the
    end, held against uninterrupted trainings.

    The kinds take turns in random order. The seed fixes who is killed and when: half the times
    are seconds after the start, the others after the first worker is seen, so that no machine is
    so slow that it is killed in its start alone. Where in the work that falls, the machine decides.
    When a study is complete before the kills are, it is extended, which must work at any time, too.
    """
    rng = random.Random(20261121)
    script, num = Script(tmp_path, is_lean=True), 2

    def at_work() -> bool:
        """Waits for a worker; False if the study has ended instead."""
        wait_for(lambda: workers_of(process.pid) or process.poll() is not None, 120, "a worker")
        return process.poll() is None

    kills = dict.fromkeys(("driver", "worker", "everything", "driver, at once again"), 0)
    turns: list[str] = []
    while sum(kills.values()) < NUM_KILLS or not all(kills.values()):
        arguments = ("--num", str(num), "--epochs", str(EPOCHS), "--checkpoint-every-s", "0.3")
        arguments += ("--max-concurrent", "2")
        log = tmp_path / "log.txt"
        before = len(log.read_text()) if log.exists() else 0
        process = script.start(*arguments)
        turns = turns or rng.sample(list(kills), len(kills))
        target = turns.pop()
        if target == "worker":  # the driver lives on; so several in one life
            for _ in range(3):
                if at_work():
                    time.sleep(rng.uniform(0, 6))
                if workers := workers_of(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(workers), signal.SIGKILL)
                        kills[target] += 1
            time.sleep(rng.uniform(0, 3))
        elif rng.random() < 0.5:
            time.sleep(rng.uniform(0, 11))
        elif at_work():
            time.sleep(rng.uniform(0, 8))
        if process.poll() is not None:
            said = log.read_text()[before:]
            # Ray gives a node 30 s to begin, which a busy machine may exceed
            if process.returncode != 1 or "The current node timed out during startup" not in said:
                assert process.returncode == 0, said
                num += 2
            continue
        if target == "everything":
            kill_family(process.pid)
        else:
            process.kill()  # its workers live on for seconds, into the next start
        process.wait()
        if target != "worker":
            kills[target] += 1
        if target == "driver":
            time.sleep(rng.uniform(0, 4))

    result = script.run("--num", str(num), *arguments[2:])
    assert result.returncode == 0, result.stdout

    plan = load_script(TINY).study(num=num, epochs=EPOCHS)
    expected = reference_rows(plan, tmp_path / "by_hand")
    store = script.store()
    assert {p.name for p in (tmp_path / "runs/trials").iterdir()} == set(expected)
    assert {i: without_times(store.read(i).rows) for i in expected} == expected

    uri = script.environment["MLFLOW_TRACKING_URI"]
    children = runs_of(uri, "trial")
    assert set(children) == set(expected)
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    for trial_id, run in children.items():
        shown = [
            (step, value) for step, _, value in history(uri, run.info.run_id, "val_ema_error_pct")
        ]
        assert shown == [(row["epoch"], row["val_ema_error_pct"]) for row in expected[trial_id]]
    assert len(runs_of(uri, "study")) == 1
