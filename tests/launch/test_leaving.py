"""A worker that gets SIGTERM, as on a node that is taken away, saves what it has trained."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import TINY, Script, load_script, wait_for, workers_of
from support.tiny_study import reference_rows, steps_saved, without_times
from support.trainings import QUICK, rows_of

from vitscale.launch import graceful_exit
from vitscale.launch.graceful_exit import saved_at_exit
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row, Status
from vitscale.record.workdir import Left
from vitscale.train.loop import TIMING, train


def test_a_training_that_must_leave_is_saved_at_that_step(tmp_path: Path) -> None:
    """Without a checkpoint by the clock, nothing is trained twice."""
    config = TrainConfig(**{**QUICK, "epochs": 4}, ema_decay=0.5)
    assert config.steps_per_epoch == 3
    whole = rows_of(config, tmp_path / "whole")
    (path := tmp_path / "left").mkdir()
    for steps, evaluations in ((2, 0), (3, 1), (4, 1)):  # in all, of steps: 2, 5, 9
        # first before any step, and once in each evaluation, but the one after the last step
        asked = iter([False] * (steps + evaluations) + [True])
        with pytest.raises(Left, match="is saved"):
            list(train(config, path, checkpoint_every_s=1e9, is_leaving=asked.__next__))
    newest = max(path.glob("checkpoint-*"))
    assert int(newest.name.split("-")[1]) == 9
    rows = [{k: v for k, v in row.items() if k not in TIMING} for row in train(config, path)]
    assert rows == whole


def values(said: list[str]) -> Callable[[Callable[[], bool]], Iterator[int]]:
    """Work that says when it was saved."""

    def work(is_leaving: Callable[[], bool]) -> Iterator[int]:
        for value in range(10**6):
            if is_leaving():
                time.sleep(0.2)
                said.append("saved")
                return
            time.sleep(0.01)
            yield value

    return work


def those_that_hold() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "saving" and one.is_alive()]


@pytest.fixture
def end_main(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Ends what stands for the main thread, and waits until the work is over."""
    ended = threading.Event()
    main = threading.Thread(target=ended.wait, args=(60,), daemon=True)
    main.start()
    monkeypatch.setattr(graceful_exit.threading, "main_thread", lambda: main)

    def end() -> None:
        (hold,) = those_that_hold()
        assert not hold.daemon, "Python would not wait for it"
        ended.set()
        hold.join(20)
        assert not hold.is_alive()

    yield end
    ended.set()


def test_the_end_of_the_process_waits_for_the_work(end_main: Callable[[], None]) -> None:
    said: list[str] = []
    thread = threading.Thread(target=lambda: list(saved_at_exit(values(said))), daemon=True)
    thread.start()
    wait_for(those_that_hold, 10, "the work")
    end_main()
    assert said == ["saved"]


def test_work_whose_value_is_not_taken_is_saved_by_the_end_itself(
    end_main: Callable[[], None],
) -> None:
    taken, end = threading.Event(), threading.Event()
    said: list[str] = []

    def consume() -> None:
        for _ in saved_at_exit(values(said)):
            taken.set()
            end.wait(20)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    assert taken.wait(10)
    end_main()
    assert said == ["saved"]
    end.set()
    thread.join(0.5)
    assert thread.is_alive(), "it asks for no further value"


def test_work_that_is_over_keeps_no_process(end_main: Callable[[], None]) -> None:
    thread = threading.Thread(target=lambda: list(itertools.islice(saved_at_exit(values([])), 99)))
    thread.start()
    wait_for(those_that_hold, 10, "the work")
    thread.join(10)
    wait_for(lambda: not those_that_hold(), 10, "the end of what waits for it")


def test_a_training_that_has_ended_or_not_begun_saves_nothing_anew(tmp_path: Path) -> None:
    config = TrainConfig(**QUICK)
    (tmp_path / "none").mkdir()
    with pytest.raises(Left):
        list(train(config, tmp_path / "none", is_leaving=lambda: True))
    assert not list((tmp_path / "none").glob("checkpoint-*"))
    rows, seen = rows_of(config, tmp_path / "ended"), list[Row]()
    (path := tmp_path / "asked").mkdir()
    for row in train(config, path, is_leaving=lambda: len(seen) == len(rows)):
        seen.append(row)
    assert len(seen) == len(rows)


PROCESS = """
import os, signal, sys, threading, time
from vitscale.launch import graceful_exit

how, taken = sys.argv[1:]
graceful_exit.GRACE_S = 25.0 if how == "saves" else 0.2
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))

def work(is_leaving):
    while not is_leaving():
        time.sleep(0.01)
        yield
    os.write(1, b"begins\\n")
    time.sleep(1.0 if how == "saves" else 600)
    os.write(1, b"saved\\n")

def train():
    for _ in graceful_exit.saved_at_exit(work):
        if taken == "not taken":
            os.write(1, b"works\\n")
            threading.Event().wait()
        os.write(1, b"works\\n")

threading.Thread(target=train, daemon=True).start()
while True:
    threading.Event().wait(0.1)  # not signal.pause, which misses a signal just before it
"""


@pytest.mark.parametrize("taken", ["taken", "not taken"])
@pytest.mark.parametrize("how", ["saves", "never ends"])
def test_a_process_saves_at_a_second_sigterm_and_ends_in_any_case(how: str, taken: str) -> None:
    command = [sys.executable, "-c", PROCESS, how, taken]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    process.terminate()
    assert "begins\n" in iter(process.stdout.readline, "")
    process.terminate()
    rest = process.communicate(timeout=60)[0]
    if how == "saves":
        assert rest == "saved\n" and process.returncode == 3
    else:  # 1: by the watch
        assert "saved" not in rest
        assert process.returncode in (1, 3)


NOTICE = """
import os, signal, sys, threading, time
from vitscale.launch import graceful_exit

how = sys.argv[1]
graceful_exit.GRACE_S, graceful_exit.ASK_EVERY_S = 25.0 if how != "never ends" else 0.2, 0.05
graceful_exit.LINGER_S = 2.0 if how == "is asked" else 600.0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
notice, wanted, over = graceful_exit.Notice(), threading.Event(), threading.Event()
notice.hold_sigterm()
notice.give_when(wanted.is_set)

def train():
    with notice.work():
        while not notice.is_given():
            time.sleep(0.01)
        os.write(1, b"begins\\n")
        time.sleep(1.0 if how != "never ends" else 600)
    os.write(1, b"saved\\n")
    over.set()

threading.Thread(target=train, daemon=True).start()
os.write(1, b"works\\n")
if how == "is asked":
    wanted.set()
while not over.is_set():
    time.sleep(0.05)
os.write(1, b"alive\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["is told", "is asked", "never ends"])
def test_a_process_with_notice_lives_until_its_work_is_saved_and_not_longer(how: str) -> None:
    command = [sys.executable, "-c", NOTICE, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    if how != "is asked":
        process.terminate()
    assert process.stdout.readline() == "begins\n"
    if how == "never ends":
        assert process.communicate(timeout=60)[0] == "" and process.returncode == 3
        return
    if how != "is asked":
        process.terminate()  # while it saves
    assert process.stdout.readline() == "saved\n"
    assert process.stdout.readline() == "alive\n" and process.poll() is None
    if how != "is asked":  # then it ends by itself
        process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 3


BURST = """
import os, signal, sys, threading, time
from vitscale.launch import graceful_exit

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
notice = graceful_exit.Notice()
notice.hold_sigterm()

def burst():
    for _ in range(2000):
        os.kill(os.getpid(), signal.SIGTERM)

with notice.work():
    threads = [threading.Thread(target=burst) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.01)
assert notice.is_given()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_burst_of_sigterms_leaves_a_process_that_can_be_ended() -> None:
    """A handler is interrupted by the next signal; one that takes a lock would wait for itself."""
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", BURST], timeout=60).returncode == 3


LOADERS = """
import signal, sys, threading
from vitscale.launch.run_claimed import train_claimed
from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Store

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
store = Store.open(sys.argv[1])
config = TrainConfig(width=16, heads=2, depth=1, batch_size=64, epochs=1000)
claimed = store.claim(config.id, config.non_default(), "own", 1)
resources = Resources(cpus_per_trial=1, num_loader_workers=1, checkpoint_every_s=1e6)

def train():
    for event in train_claimed(config, claimed, store, 1, resources):
        print(len(event.rows), flush=True)

threading.Thread(target=train, daemon=True).start()
while True:
    threading.Event().wait(0.1)  # not signal.pause, which misses a signal just before it
"""


def test_a_training_with_loader_processes_is_saved(tmp_path: Path) -> None:
    """Python ends them as it ends itself, but after this."""
    command = [sys.executable, "-c", LOADERS, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "0\n" in iter(process.stdout.readline, "")
    assert next(line for line in process.stdout if line != "0\n")
    process.terminate()
    process.communicate(timeout=60)
    assert len(list(tmp_path.glob("trials/*/checkpoint-*"))) == 1


def test_in_the_main_thread_an_exception_is_enough() -> None:
    work, before = saved_at_exit(values([])), threading.active_count()
    assert next(work) == 0 and threading.active_count() == before


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_worker_that_is_told_to_end_saves_and_a_trial_that_gets_on_may_be_told_often(
    tmp_path: Path,
) -> None:
    """Soon after a checkpoint by the clock, and more often than a trial is tried again that does
    not get on, without a row in between: rows as of an uninterrupted run.
    """
    from vitscale.launch.tune import MAX_RETRIES

    own, epochs = tmp_path / "own.py", 250
    own.write_text(
        TINY.read_text().replace("ema_decay=0.9,", f"ema_decay=0.9, eval_every={epochs},")
    )
    script, times = Script(tmp_path, own, is_lean=True), MAX_RETRIES + 2
    options = {"num": 1, "epochs": epochs, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--checkpoint-every-s", "1")
    last = 0  # step
    for _ in range(times):
        wait_for(lambda: steps_saved(tmp_path) > last, 120, "a checkpoint by the clock")  # noqa: B023
        by_the_clock = steps_saved(tmp_path)
        time.sleep(0.5)
        for pid in workers_of(process.pid):
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not workers_of(process.pid), 60, "the end of the worker")
        last = steps_saved(tmp_path)
        assert last > by_the_clock
    assert process.wait(300) == 0, (tmp_path / "log.txt").read_text()
    assert (tmp_path / "log.txt").read_text().count("(tried again, 1 of 3)") == times
    plan = load_script(own).study(**options)
    assert last < plan.trials[0].config.num_steps
    expected = reference_rows(plan, tmp_path / "by_hand")
    read = {i: script.store().read(i) for i in expected}
    assert {outcome.status for outcome in read.values()} == {Status.FINISHED}
    assert {i: without_times(outcome.rows) for i, outcome in read.items()} == expected
    assert {len(rows) for rows in expected.values()} == {1}
