"""vitscale.run: a study from Python, in the kernel of a notebook."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, empty_database, wait_for
from support.refusals import refusing

import vitscale
from vitscale import Search, Study, TrainConfig, grid, run, trials
from vitscale.launch import process
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store

STUDY = """
from vitscale import Study, TrainConfig, grid, load, run, trials

base = TrainConfig(width=16, heads=2, depth=1, epochs=2, warmup_epochs=1.0)
arms = {"AdamW": {"lr": 0.003}, "SGD": {"optimizer": "sgd", "lr": 0.1}}


def study(num: int = 3) -> Study:
    return Study(
        kind="repeats",
        name="of_a_notebook",
        scale="digits",
        question="AdamW or SGD?",
        source="ours",
        trials=trials(base, arms, grid(seed=range(num))),
        metric="val_error_pct",
        pairs=(("AdamW", "SGD"),),
        tables=("seed_statistics", "pair_differences"),
        figures=("learning_curves",),
    )
"""


def defined() -> Any:
    names: dict[str, Any] = {"__name__": __name__}
    exec(STUDY, names)
    return names["study"]


def finish(store: Store, trial: Trial, workdir: Any) -> None:
    """Gives a trial rows that no training made."""
    error = 10.0 + trial.config.seed + 5 * (trial.arm.name == "SGD")
    rows = [
        dict.fromkeys(trial.config.columns, error) | {"epoch": epoch, "train_s": 1.0, "unix_s": 1e9}
        for epoch in (1, 2)
    ]
    store.finish(workdir, Outcome(Status.FINISHED, tuple(rows), {"commit": "abc"}))


def test_a_notebook_runs_a_study_is_interrupted_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another study holds four of six trials, for which the notebook waits: nothing is trained."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    (tmp_path / "mlflow.db").write_bytes(empty_database())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    call = "results = run(study, num=3, max_concurrent=2)\nresults"
    cells = [
        f"{STUDY}\nimport os, signal\nprint(os.getpid(), signal.getsignal(signal.SIGINT))",
        call,
        "load('of_a_notebook-digits').trials['status'].value_counts().to_dict()",
        call,
        "results.figures['learning_curves']",
        "results.tables['pair_differences'][['a', 'b', 'difference']].to_dict('records')",
        "print(signal.getsignal(signal.SIGINT))",
    ]
    notebook = new_notebook(cells=[new_code_cell(text) for text in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=200, allow_errors=True, resources=place)

    def execute(number: int) -> list[Any]:
        return client.execute_cell(notebook.cells[number], number)["outputs"]

    plan, store = defined()().trials, Store.open(tmp_path / "runs")
    with client.setup_kernel(), store.drive("other-demo") as attempt:
        kernel, handler = execute(0)[0]["text"].split(maxsplit=1)
        held = [
            (trial, store.claim(trial.config.id, trial.config.non_default(), "other-demo", attempt))
            for trial in plan
        ]
        for trial, workdir in held[:2]:
            finish(store, trial, workdir)
        waits = threading.Thread(target=interrupt, args=(notebook.cells[1], int(kernel)))
        waits.start()
        stopped = execute(1)
        waits.join()
        counts = execute(2)
        for trial, workdir in held[2:]:
            finish(store, trial, workdir)
        ended, figure, table, last = (execute(number) for number in range(3, 7))
    assert stopped[-1]["ename"] == "KeyboardInterrupt", stopped
    assert "the same call resumes, and load('of_a_notebook-digits') has" in stopped[-1]["evalue"]
    said = text_of(stopped)
    assert "6 trials, 2 done, 4 to do" in said and "2 finished, 0 diverged" in said
    assert (
        "a study that will grow must say so before its first report, by final_num=N or 'open'"
        in said
    )
    assert "the same command resumes: run(study, num=3, max_concurrent=2)  # in Python" in said
    (bar,) = [output for output in stopped if output["output_type"] == "display_data"]
    assert "2/6 done" in bar["data"]["text/plain"] and "waiting for other-demo" in str(bar), bar
    assert counts[0]["data"]["text/plain"] == "{'missing': 4, 'finished': 2}"
    assert "6 trials, 6 done, 0 to do" in text_of(ended), ended
    assert "must say so" not in text_of(ended)  # that report was the first
    shown = ended[-1]["data"]["text/html"]
    assert "AdamW or SGD?" in shown and "6 finished" in shown and "data:image/png" in shown
    (link,) = re.findall('href="(.*?)"', shown)
    assert "AdamW or SGD?" in (tmp_path / link).read_text()
    assert "image/png" in figure[0]["data"]
    (row,) = json.loads(table[0]["data"]["text/plain"].replace("'", '"'))
    assert (row["a"], row["b"]) == ("AdamW", "SGD") and np.isclose(row["difference"], -5.0)
    assert last[0]["text"].strip() == handler.strip()


def interrupt(cell: Any, kernel: int) -> None:
    """What Jupyter does, once the cell shows what the study waits for: a signal to the kernel's
    process group.
    """
    wait_for(lambda: "waiting for other-demo" in str(cell["outputs"]), 100, "the progress")
    os.killpg(os.getpgid(kernel), signal.SIGINT)


def test_a_second_interrupt_raises_in_a_process_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "STORM_S", 0.0)
    stop = threading.Event()
    with process.keep_handlers():
        process.handle_signals(stop, goes_on=True)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt, match="at once: the same call resumes"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def text_of(outputs: list[Any]) -> str:
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ({"stor": "x"}, r"among \(num, plan, .*but got \(stor='x'\); did you mean 'store'\?$"),
        ({"sampler": "tpe"}, r"an option of run must be among .*\(sampler='tpe'\)"),
        ({"cpus_per_trial": "x"}, "argument cpus_per_trial: invalid float value: 'x'"),
        ({"compiled": 1}, r"compiled must be of type bool, but got \(compiled=1\)"),
        ({"max_concurrent": -1}, "max_concurrent >= 0 must hold"),
        ({"num": 3, "final_num": 2}, r"the trials of a study must be among those of its final"),
        ({"report": True}, "a report must have at least one done trial"),
        ({"throughput": 5.0}, "throughput must come with plan"),
    ],
)
def test_bad_options_are_refused_in_one_line_and_nothing_is_made(
    options: dict[str, Any], law: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=law) as refusal:
        run(defined(), **{"store": tmp_path / "runs", **options})
    assert "\n" not in str(refusal.value) and not (tmp_path / "runs").exists()


def test_what_is_no_study_is_refused() -> None:
    with refusing("(3)"):
        run(3)  # type: ignore[arg-type]
    with refusing("(3)"):
        run(lambda: 3)  # type: ignore[arg-type,return-value]


def test_a_plan_prints_and_returns_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"store": tmp_path / "runs", "plan": True}
    results = run(defined()(num=2), **given, throughput=["SGD=100", "200"], keep_weights=False)
    out = capsys.readouterr().out
    assert "not kept without --keep-weights" in out and "images/s as given" in out
    assert list(results.trials["status"]) == ["missing"] * 4
    assert "4 missing" in results._repr_html_() and "<img" not in results._repr_html_()
    # as the command line does, from the same function
    with pytest.raises(SystemExit):
        vitscale.main(defined(), ["--num", "2", "--store", str(tmp_path / "runs"), "--plan"])
    again = capsys.readouterr().out
    for arm in ("AdamW", "SGD"):  # but for the device-hours
        (row, same) = (line for line in (out + again).splitlines() if line.startswith(arm))
        assert row.split()[:-1] == same.split()


def test_a_search_is_planned_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from optuna.distributions import FloatDistribution

    search = Search(
        name="s",
        scale="digits",
        question="Which lr?",
        source="ours",
        arms={"a": TrainConfig(eval_split="minival")},
        spaces={"a": {"lr": FloatDistribution(1e-4, 1e-2, log=True)}},
        num=3,
        metric="minival_error_pct",
    )
    assert len(run(search, store=tmp_path / "runs", plan=True).trials) == 3
    assert "random stand-ins" in capsys.readouterr().out


def test_the_parts_of_a_study_come_from_the_package() -> None:
    assert {run, grid, trials, Study} <= {getattr(vitscale, name) for name in vitscale.__all__}
