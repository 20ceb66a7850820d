"""The progress view on terminals of 60 and 100 columns, and on a dumb terminal."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from pathlib import Path

import pexpect
import pytest
from conftest import TINY, load_script

from vitscale.cli.display import table
from vitscale.launch.progress import Progress, epochs_behind
from vitscale.launch.resources import Event
from vitscale.plan.study import Study
from vitscale.record.outcome import Status
from vitscale.record.store import Store


def study() -> Study:
    return load_script(TINY).study(num=6, epochs=20)


def progress(store: Store | None = None) -> Progress:
    """Trials: one done, one running, one resuming at epoch 18, one of another study, others."""
    plan = study()
    ids = [trial.config.id for trial in plan.trials]
    made = Progress(plan, dict.fromkeys(ids, "missing"), store=store)
    made.update(Event(ids[0], Status.FINISHED))
    made.update(Event(ids[1], Status.RUNNING, ({"epoch": 5.0, "val_ema_error_pct": 29.04},)))
    made.update(Event(ids[2], Status.RUNNING))
    made.update(Event(ids[3], "elsewhere", facts={"study": "other-demo"}))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in which the third trial has a checkpoint of epoch 18."""
    store, config = Store.open(tmp_path / "runs"), study().trials[2].config
    workdir = store.claim(config.id, {}, "tiny-demo", 1)
    workdir.write(f"checkpoint-{18 * config.steps_per_epoch:09d}-abc.pt", b"")
    return store


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_table_fits_its_width_with_every_part_whole(store: Store, width: int) -> None:
    made = progress(store)
    lines = table(made, width).plain.splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert (
        "tiny-demo 1/13 done, 2 running, 0 diverged, 0 failed, 1 waiting for other-demo, ETA 0:0"
        in text
    )
    header = next(line for line in lines if line.startswith("arm"))
    row = next(line for line in lines if "29.0%" in line)
    for name, cell in (("lr", "e-0"), ("epoch", "5/20"), ("error", "29.0%")):
        start = header.index(name)
        assert cell in row[start : start + 9], (name, header, row)
    assert header.split() == ["arm", "lr", "wd", "epoch", "error"]
    assert sum("resumes at epoch 18" in line for line in lines) == 1 and "0/20" not in text
    assert "conv waits for other-demo" in lines


def test_long_names_are_cut_and_numbers_are_not() -> None:
    made = progress()
    made.trials = {
        i: type(t)("an arm with a name that is far too long for any terminal", t.config, t.point)
        for i, t in made.trials.items()
    }
    lines = table(made, 60).plain.splitlines()
    assert max(map(len, lines)) <= 60
    assert any("…" in line and line.endswith("29.0%") for line in lines)


def test_a_trial_that_resumes_shows_rows_once_they_are_new(store: Store) -> None:
    """The trainer yields the rows of the checkpoint again; they are not new."""
    made = progress(store)
    trial = made.study.trials[2]
    assert epochs_behind(trial, store) == 18 and epochs_behind(made.study.trials[1], store) == 0
    for epoch in (1.0, 18.0):
        made.update(
            Event(trial.config.id, Status.RUNNING, ({"epoch": epoch, "val_ema_error_pct": 78.2},))
        )
        assert "resumes at epoch 18" in table(made).plain and "78.2" not in table(made).plain
    made.update(
        Event(trial.config.id, Status.RUNNING, ({"epoch": 19.0, "val_ema_error_pct": 11.5},))
    )
    assert "resumes" not in table(made).plain and re.search(r"19/20 +11\.5%", table(made).plain)


def test_work_of_earlier_starts_is_excluded_from_the_rate(store: Store) -> None:
    """Half a trial per minute: the 18 of 20 epochs of an earlier start do not count in this one."""
    plan = study()
    ids = [trial.config.id for trial in plan.trials[1:3]]
    made = Progress(plan, {ids[0]: "missing", ids[1]: "missing"}, store=store)
    for trial_id in ids:
        made.update(Event(trial_id, Status.RUNNING))
    made.update(Event(ids[0], Status.RUNNING, ({"epoch": 10.0},)))
    made.started = time.monotonic() - 60
    assert made.eta_s() == pytest.approx(60 / 0.5 * (0.5 + 0.1), rel=0.05)


def test_starting_workers_are_shown_until_the_first_trial_runs() -> None:
    plan = study()
    made = Progress(plan, {trial.config.id: "missing" for trial in plan.trials})
    assert made.line().startswith("0/13 done, starting workers, ")
    made.update(Event(plan.trials[0].config.id, Status.RUNNING))
    assert made.line().startswith("0/13 done, 1 running, ")


SHOW = textwrap.dedent("""
    import sys, time
    sys.path[:0] = sys.argv[1:]
    from rich.console import Console
    from test_progress import progress
    from vitscale.cli import display as module
    module.LINE_EVERY_S = 0.3
    with module.Display(progress(), Console(file=sys.stdout, highlight=False, soft_wrap=True)):
        time.sleep(1.5)
    print("the end")
""")


def on_terminal(columns: int, term: str) -> str:
    """The output of a process on a pseudo-terminal."""
    import os

    environment = {**os.environ, "TERM": term}
    environment = {
        k: v
        for k, v in environment.items()
        if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "CI")
    }
    child = pexpect.spawn(
        sys.executable,
        ["-c", SHOW, *map(str, Path(__file__).parents[:2])],
        dimensions=(30, columns),
        env=environment,
        encoding="utf-8",
        timeout=120,
    )
    child.expect("the end")
    return child.before


@pytest.mark.parametrize("columns", [60, 100])
def test_on_a_terminal_the_table_is_drawn_in_lines_that_fit(columns: int) -> None:
    shown = on_terminal(columns, "xterm-256color")
    # before it is drawn again
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.split("\x1b[1A")[0])
    lines = [line for line in re.split(r"[\r\n]+", frame) if line]
    assert max(map(len, lines)) <= columns
    header = next(
        i for i, line in enumerate(lines) if line.split() == ["arm", "lr", "wd", "epoch", "error"]
    )
    assert set(lines[header - 1]) == {"━"} and "29.0%" in lines[header + 1]
    count = " ".join(" ".join(lines[: header - 1]).split())
    assert "1 waiting for other-demo, ETA 0:0" in count and "1/13 done, 2 running" in count


def test_a_dumb_terminal_gets_plain_lines() -> None:
    shown = on_terminal(100, "dumb")
    assert "\x1b" not in shown
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) >= 2 and {
        line.startswith("tiny-demo: 1/13 done, 2 running, ") for line in lines
    } == {True}
