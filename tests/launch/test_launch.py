"""Studies with the real Ray and MLflow: results, a second start, refusals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, TINY, Script, interrupt, load_script, small_disk, wait_for
from support.buckets import fresh, point_at
from support.tiny_study import assert_uninterrupted, reference_rows, study, without_times

from vitscale import main
from vitscale.record.outcome import Row
from vitscale.record.store import Store

NUM_EPOCHS = 3


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """A finished study with a trial that diverged and one that raised."""
    script = Script(tmp_path_factory.mktemp("ran"))
    result = script.run("--broken", "1", "--max-concurrent", "2")
    (script.folder / "out.txt").write_text(result.stdout)
    assert result.returncode == 1, result.stdout
    return script


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return reference_rows(study(), tmp_path_factory.mktemp("by_hand"))


def test_rows_through_ray_equal_those_of_the_trainer(
    ran: Script, by_hand: dict[str, list[Row]]
) -> None:
    store = ran.store()
    for trial_id, expected in by_hand.items():
        outcome = store.read(trial_id)
        facts = outcome.facts
        assert without_times(outcome.rows) == expected
        assert outcome.status == ("diverged" if expected[-1]["diverged"] else "finished")
        assert facts["machine"] and facts["commit"] and "torch" in facts["versions"]
    assert sum(rows[-1]["diverged"] for rows in by_hand.values()) == 1


def test_a_failed_trial_does_not_stop_others_and_is_named_with_its_log(ran: Script) -> None:
    out = (ran.folder / "out.txt").read_text()
    broken = study(broken=1).trials[-1]
    assert "6 finished, 1 diverged, 1 failed, 0 missing of 8" in out
    assert (
        f"failed  broken {broken.config.id}: ValueError: Expected more than 1 value per channel"
        in out
    )
    log = ran.store().trial(broken.config.id).path / "failure.log"
    assert str(log) in out
    assert "Traceback" in log.read_text()


def test_the_start_warns_of_doubts_before_training(ran: Script) -> None:
    start, _, _ = (ran.folder / "out.txt").read_text().partition("training ")
    (warning,) = [line for line in start.splitlines() if line.startswith("warning: ")]
    assert (
        "no reference run is planned" in warning and "patchify, conv, diverging, broken" in warning
    )


def test_output_has_few_lines(ran: Script) -> None:
    lines = (ran.folder / "out.txt").read_text().splitlines()
    assert len(lines) < 40
    assert not [
        line for line in lines if "INFO" in line or "(raylet)" in line or "Trial status" in line
    ]


def test_the_table_is_tidy(ran: Script) -> None:
    from vitscale.plan.fields import DEFAULTS

    table = pd.read_parquet(ran.folder / "runs/studies/tiny-demo/report/rows.parquet")
    finished = table[table["status"] == "finished"]
    assert len(finished) == 6 * NUM_EPOCHS
    assert not table.duplicated(["trial_id", "epoch"]).any()
    assert set(DEFAULTS) <= set(table.columns)
    assert (table[table["status"] == "diverged"]["val_error_pct"] == 100).all()


def test_a_second_start_with_more_draws_trains_only_the_new_ones_and_what_failed(
    ran: Script,
) -> None:
    before = {p: p.stat().st_mtime_ns for p in ran.folder.glob("runs/trials/*/rows.parquet")}
    result = ran.run("--broken", "1", "--num", "4", "--deterministic")
    assert result.returncode == 1, result.stdout
    assert "10 trials, 7 done, 3 to do" in result.stdout
    after = {p: p.stat().st_mtime_ns for p in ran.folder.glob("runs/trials/*/rows.parquet")}
    assert len(after) == 9
    assert {p: after[p] for p in before} == before
    repeatable = {p: ran.store().read(p.parent.name).facts.get("deterministic") for p in after}
    assert {p for p, said in repeatable.items() if said == "yes"} == after.keys() - before.keys()


def test_a_finished_study_is_redrawn_without_ray(ran: Script) -> None:
    log = ran.folder / "runs/studies/tiny-demo/ray.log"
    started = log.stat().st_mtime_ns
    result = ran.run()
    assert result.returncode == 0
    assert "7 trials, 7 done, 0 to do" in result.stdout
    assert "training" not in result.stdout
    assert log.stat().st_mtime_ns == started


@pytest.mark.slow
def test_interrupt_stops_cleanly_and_the_same_command_resumes(tmp_path: Path) -> None:
    """SIGTERM, then a complete run: the rows equal those of an uninterrupted run. SIGINT is sent to
    the study of the guide (test_guide.py).
    """
    script = Script(tmp_path, is_lean=True)
    options = {"num": 1, "epochs": 40, "only": "conv"}
    arguments = ("--num", "1", "--epochs", "40", "--only", "conv", "--checkpoint-every-s", "0.2")
    process = script.start(*arguments)
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 120, "a checkpoint")
    assert interrupt(process, signal.SIGTERM) == 130
    said = (tmp_path / "log.txt").read_text()
    assert "interrupted: the same command resumes" in said and "machines failed" not in said
    assert f"resumes: python {script.script} {' '.join(arguments)} " in said  # as it was typed
    assert not script.store().driver_is_alive("tiny-demo")
    result = script.run(*arguments)
    assert result.returncode == 0, result.stdout
    plan = study(**options)
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")


def test_a_second_driver_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path, is_lean=True)
    arguments = ("--num", "1", "--epochs", "20", "--only", "conv")
    process = script.start(*arguments)
    wait_for(lambda: script.store().driver_is_alive("tiny-demo"), 60, "the first driver")
    second = script.run(*arguments)
    assert second.returncode == 2
    assert re.fullmatch(
        r"tiny.py: error: one driver may run a study, but got .*pid.*\n", second.stdout
    )
    assert process.wait(200) == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a folder", "a bucket"])
def test_three_studies_share_trials_and_train_each_once(
    tmp_path: Path,
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They run at once on one store: each trial is claimed and committed once, and all complete."""
    root = str(tmp_path / "runs")
    if place == "a bucket":
        point_at(f"http://127.0.0.1:{request.getfixturevalue('server')}", monkeypatch)
        root = fresh()
    scripts = [Script(tmp_path, is_lean=True)]
    for name in ("twin", "third"):
        path = tmp_path / f"{name}.py"
        path.write_text(TINY.read_text().replace('name="tiny"', f'name="{name}"'))
        scripts.append(Script(tmp_path, path, is_lean=True))
    arguments = ("--num", "2", "--epochs", "20", "--max-concurrent", "1", "--store", root)
    processes = [script.start(*arguments) for script in scripts]
    store, ids = Store.at(root), {t.config.id for t in study(num=2, epochs=20).trials}
    claims: dict[str, set[str]] = {trial_id: set() for trial_id in ids}
    while any(process.poll() is None for process in processes):  # a trial takes over a second
        for trial_id in ids:
            claim, _ = store.trial(trial_id).look()
            claims[trial_id] |= {claim["token"]} if claim else set()
        time.sleep(0.05)
    said = (tmp_path / "log.txt").read_text()
    assert [process.wait(1) for process in processes] == [0, 0, 0], said
    assert all(len(tokens) == 1 for tokens in claims.values()), (claims, said)
    assert len({token.split("/")[0] for tokens in claims.values() for token in tokens}) > 1
    assert store.done_of(ids) == ids and len(ids) == 5
    assert not any(store.trial(trial_id).look()[0] for trial_id in ids)


def test_garbage_collection_in_any_thread_does_not_kill_the_process_while_ray_shuts_down(
    tmp_path: Path,
) -> None:
    """Ray ends a process that drops an object reference meanwhile; gc runs in any thread."""
    code = """if True:
        import gc, sys, threading, time
        from pathlib import Path
        from vitscale.launch.cluster import cluster, ray
        from vitscale.launch.resources import Resources

        class Ring:
            pass

        def collect():
            time.sleep(0.03)
            while True:
                gc.isenabled() and gc.collect()
                time.sleep(0.0005)

        gc.set_threshold(10**9)
        with cluster(Resources(), lambda: open(sys.argv[1], "a")):
            for _ in range(3000):
                ring = Ring()
                ring.itself, ring.reference = ring, ray.put(1)
            del ring
            threading.Thread(target=collect, daemon=True).start()
        print("alive")
    """
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True
    )
    assert result.stdout == "alive\n", result.stderr


BAD_INPUT = [
    (["--num", "0"], "num >= 1 must hold, but got (num=0)"),
    (["--epochs", "-1"], "epochs >= 1 must hold, but got (epochs=-1)"),
    (["--scale", "moon"], "argument --scale: invalid choice: 'moon'"),
    (["--lr", "1"], "unrecognized arguments: --lr 1"),
    (["--cpus-per-trial", "0"], "cpus_per_trial >= 0.01 must hold, but got (cpus_per_trial=0.0)"),
    (["--cpus-per-trial", "999"], "a trial must fit on a node, but got (cpus_per_trial=999"),
    (
        ["--gpus-per-trial", "1", "--device", "cpu", "--cpus-per-trial", "1"],
        "a trial must fit on a node",
    ),
    (["--accelerator-type", "H100"], "gpus_per_trial > 0 must hold with an accelerator type"),
    (["--gpus-per-trial", "2"], "gpus_per_trial <= 1 must hold, for each worker trains on one GPU"),
    (
        ["--gpus-per-trial", "2", "--workers-per-trial", "2"],
        "(gpus_per_trial=2.0, workers_per_trial=2)",
    ),
    (
        ["--device", "cuda", "--gpus-per-trial", "0"],
        "gpus_per_trial > 0 must hold on the device cuda",
    ),
    (["--address", "127.0.0.1:1"], "a Ray cluster must answer at (address='127.0.0.1:1')"),
    (["--store", "/proc/nowhere"], "the store must be writable, but got (store='/proc/nowhere'"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_INPUT, ids=[" ".join(a) for a, _ in BAD_INPUT])
def test_bad_input_gets_one_line_and_a_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(load_script(TINY).study, arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    said = [text for text in err.splitlines() if "error:" in text]
    assert len(said) == 1 and line in said[0], err
    assert "error:" not in out and "Traceback" not in out + err


@pytest.mark.parametrize(
    ("fields", "line"),
    [("lrr=1.0", "did you mean 'lr'?"), ("wd=-0.1", "wd >= 0 must hold, but got (wd=-0.1)")],
)
def test_a_bad_field_in_a_script_gets_one_line(tmp_path: Path, fields: str, line: str) -> None:
    script = tmp_path / "bad.py"
    script.write_text(
        TINY.read_text().replace(
            "BASE.replace(epochs=epochs)", f"BASE.replace(epochs=epochs, {fields})"
        )
    )
    result = Script(tmp_path, script).run("--plan")
    assert result.returncode == 2
    assert line in result.stdout and len(result.stdout.splitlines()) == 1


def test_damaged_rows_are_restored_from_the_checkpoint(
    ran: Script, by_hand: dict[str, list[Row]]
) -> None:
    trial_id = next(iter(by_hand))
    path = ran.folder / "runs/trials" / trial_id / "rows.parquet"
    path.write_bytes(path.read_bytes()[:100])
    result = ran.run()
    assert result.returncode == 0, result.stdout
    assert f"rows must be readable parquet, but got ({path}" in result.stdout
    assert "7 trials, 6 done, 1 to do" in result.stdout
    assert without_times(ran.store().read(trial_id).rows) == by_hand[trial_id]
    assert len(list(path.parent.glob("rows.parquet.damaged-*"))) == 1


@pytest.mark.slow
def test_a_full_disk_fails_with_one_line_and_the_study_completes_after_space_is_freed(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "small", "600k") as folder:
        script = Script(tmp_path, is_lean=True)
        # leaves 80 KiB: enough to start, and too little for the checkpoint of 69 kB
        (folder / "ballast").write_bytes(b"b" * 130 * 4096)
        arguments = ("--num", "1", "--only", "conv", "--store", str(folder))
        result = script.run(*arguments, timeout=400)
        assert result.returncode == 1, result.stdout
        assert "No space left on device" in result.stdout
        assert "(tried again, 3 of 3)" in result.stdout  # after pauses
        (folder / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(folder)], check=True)
        result = script.run(*arguments)
        assert result.returncode == 0, result.stdout
        (trial,) = study(num=1, only="conv").trials
        assert Store(folder).is_done(trial.config.id)


@pytest.mark.slow
def test_on_a_terminal_there_is_a_live_view_without_output_of_ray(tmp_path: Path) -> None:
    """On a pseudo-terminal: a live table, the end printed below it, and Ray's output in a log."""
    import pexpect

    script = Script(tmp_path)
    command, *arguments = script.command("--num", "1", "--epochs", "20", "--broken", "1")
    child = pexpect.spawn(
        command,
        arguments,
        cwd=str(tmp_path),
        env={**script.environment, "TERM": "xterm"},
        dimensions=(40, 120),
        timeout=120,
        encoding="utf-8",
    )
    child.expect(r"\d/4 done, \d running, \d diverged, \d failed, ETA")
    child.expect(r"conv\s+\S+e-\d+\s+\S+e-\d+\s+\d+/20")  # arm, lr, wd, epoch of a running trial
    child.expect("2 finished, 1 diverged, 1 failed, 0 missing of 4")
    rest = child.read()
    child.close()
    assert child.exitstatus == 1
    assert "failed  broken" in rest
    for noise in ("INFO", "raylet", "Trial status", "Traceback", "closed file"):
        assert noise not in child.before + rest


def test_study_scripts_answer_help_and_plan_in_a_fresh_process() -> None:
    for script in sorted((ROOT / "studies").glob("*.py")):
        result = subprocess.run(
            [sys.executable, str(script), "--help"], capture_output=True, text=True
        )
        assert result.returncode == 0 and "--plan" in result.stdout
