"""Commands on studies, compared with sums by hand, scipy, exhaustive search and published hours."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, TINY, load_script
from rich.console import Console
from support.refusals import refusing

from search_spaces import xiao2021
from vitscale.__main__ import main
from vitscale.analysis.side_by_side import Side, arm_pairs, as_cells, side_by_side
from vitscale.cli import script as cli
from vitscale.cli.process import is_live
from vitscale.launch.driver import Driver
from vitscale.launch.preflight import Data
from vitscale.launch.process import SIGNALS
from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import training_flops
from vitscale.plan.metrics import ERROR
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.schedule import makespan, num_slots
from vitscale.plan.study import Study, to_json
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Row
from vitscale.record.overview import overview
from vitscale.record.store import Store
from vitscale.record.table import read_trials

# Xiao et al. 2021, Tables 1 and 2: minutes per epoch on 8 V100
EPOCH_MINUTES = {
    "ViT_P-1GF": 2.6,
    "ViT_P-4GF": 3.8,
    "ViT_P-18GF": 11.5,
    "ViT_C-1GF": 2.7,
    "ViT_C-4GF": 3.9,
    "ViT_C-18GF": 11.4,
    "RegNetY-1GF": 3.1,
    "RegNetY-4GF": 7.6,
    "RegNetY-16GF": 17.9,
}
Say = Callable[..., str]


def plan_of(num: int = 3, **changed: object) -> Study:
    return dataclasses.replace(load_script(TINY).study(num=num, broken=1), **changed)


def put(store: Store, study: Study) -> None:
    """Writes what the start of a study writes first."""
    store.study(study.slug).write(
        "plan.json", json.dumps({"command": "by hand", **to_json(study)}).encode()
    )


def train(store: Store, study: Study, trials: tuple[Trial, ...]) -> None:
    """Trains as a worker does, without Ray."""
    for trial in trials:
        list(
            train_trial(
                trial.config.id, trial.config.non_default(), store, study.slug, 1, Resources()
            )
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Three studies in one store.

    `tiny-demo` is complete, with a trial that diverged and one that raised. `longer-demo` has more
    draws and epochs, with one draw per arm trained. `other-demo` has another metric, none trained.
    """
    store = Store.open(tmp_path_factory.mktemp("store") / "runs")
    tiny = plan_of()
    drawn = [trial for trial in plan_of(4).trials if trial.arm.name in ("patchify", "conv")]
    longer = plan_of(
        name="longer",
        panels={},
        pairs=(),
        trials=tuple(
            dataclasses.replace(trial, config=trial.config.replace(epochs=4)) for trial in drawn
        ),
    )
    other = plan_of(name="other", metric="val_error_pct")
    for study, trials in ((tiny, tiny.trials), (longer, longer.trials[:2]), (other, ())):
        put(store, study)
        train(store, study, trials)
    return store


@pytest.fixture
def say(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """What `vitscale COMMAND ... --store STORE` prints on stdout."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["vitscale", *arguments, "--store", str(store.root)])
        main()
        return capsys.readouterr().out

    return run


def test_a_report_in_some_formats(store: Store, say: Say, tmp_path: Path) -> None:
    folder = store.report("tiny-demo").path
    say("report", "tiny-demo")
    for path in folder.iterdir():
        if path.suffix not in (".tex", ".csv"):
            path.write_bytes(b"kept")
    tables = {path: path.read_bytes() for path in folder.glob("*.tex")}
    for path in tables:
        path.write_bytes(b"old")
    said = say("report", "tiny-demo", "--format", "tex")
    assert said.splitlines()[-1] == f"report  {folder} (tex)"
    assert tables and all(path.read_bytes() == text for path, text in tables.items())
    others = [p for p in folder.iterdir() if p.suffix not in (".tex", ".csv") and p.is_file()]
    assert {p.read_bytes() for p in others} == {b"kept"}


@pytest.mark.parametrize(
    ("options", "law"),
    [
        (
            ["--format", "pfd"],
            "a format must be among (html, csv, md, tex, parquet, png, svg, pdf)",
        ),
        (["--format", "pdf,"], "a format must be among"),
        (["--format", "tex", "--json"], "--json must come without --format"),
    ],
)
def test_a_format_that_is_none_is_refused(
    options: list[str], law: str, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        say("report", "tiny-demo", *options)
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.err.count("\n") == 1 and law in said.err and not said.out


def test_a_report_that_cannot_be_drawn_names_its_traceback(store: Store, tmp_path: Path) -> None:
    """A file lies where a folder must be."""
    own = Store.open(shutil.copytree(store.root, tmp_path / "runs"))
    study, folder = plan_of(), own.study("tiny-demo")
    shutil.rmtree(folder.path / "report", ignore_errors=True)
    (folder.path / "report").write_bytes(b"")
    driver = Driver(study, own, Resources(), 1, threading.Event(), Data(""))
    report, lines, _ = driver._draw(read_trials(study, own))
    log = folder.path / "report-failure.log"
    assert report is None and lines[0].startswith("report  not drawn (")
    assert lines[1] == f"        log {log}"
    assert log.read_text().startswith("Traceback (most") and "write_report" in log.read_text()
    (folder.path / "report").unlink()
    report, _, _ = driver._draw(read_trials(study, own))
    assert report is not None and not log.exists()


def rows_of(store: Store, study: Study, arm: str) -> list[Row]:
    """Last rows of an arm's trials."""
    return [store.read(trial.config.id).rows[-1] for trial in study.trials if trial.arm.name == arm]


def errors_of(store: Store, study: Study, arm: str) -> np.ndarray:
    return np.array([row["val_ema_error_pct"] for row in rows_of(store, study, arm)])


# Schedules


def test_the_example_of_graham() -> None:
    """Graham 1969: longest first takes 11 on three machines, the optimum 9; 4/3 - 1/(3 * 3)."""
    assert makespan([3, 3, 3, 4, 4, 5, 5], 3) == (9.0, 11.0, 12.0)
    assert makespan([5, 5, 4, 4, 3, 3, 3], 3) == (9.0, 11.0, 11.0)
    assert makespan([1, 1, 2], 2) == (2.0, 2.0, 3.0)
    # by the pair that must share: an even share would be 3
    assert makespan([2, 2, 2], 2) == (4.0, 4.0, 4.0)
    assert makespan([1] * 8, 3) == (3.0, 3.0, 3.0)  # by the three that must share
    assert makespan([7, 1], 5) == (7.0, 7.0, 7.0)
    assert makespan([], 2) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_schedule_is_below_the_bound_and_longest_first_is_within_graham_s(slots: int) -> None:
    rng = np.random.default_rng(slots)
    for _ in range(30):
        hours = rng.exponential(size=6).round(3)
        places = itertools.product(range(slots), repeat=len(hours))
        best = min(
            max(hours[np.array(place) == slot].sum() for slot in range(slots)) for place in places
        )
        found = makespan(hours.tolist(), slots)
        assert found.lower_bound_h <= best + 1e-9
        assert best - 1e-9 <= found.longest_first_h <= (4 / 3 - 1 / (3 * slots)) * best + 1e-9
        assert best - 1e-9 <= found.plan_order_h <= (2 - 1 / slots) * best + 1e-9


def test_a_fraction_of_a_device_packs_trials() -> None:
    assert [num_slots(*size) for size in ((64, 8), (20, 8), (2, 0.25), (3, 0.3), (4, 1))] == [
        8,
        2,
        8,
        9,
        4,
    ]


# Plans


def made(name: str, arms: dict[str, list[dict]]) -> Study:
    """A study with the paper's recipe, one trial per set of fields."""
    base = TrainConfig().replace(**xiao2021.RECIPE)
    trials = [
        Trial(arm, base.replace(**fields), i)
        for arm, points in arms.items()
        for i, fields in enumerate(points)
    ]
    return Study(
        kind="distribution",
        name=name,
        scale="imagenet",
        question="How long?",
        source="Xiao et al. 2021",
        trials=tuple(trials),
    )


def planned(
    capsys: pytest.CaptureFixture[str], study: Study, folder: Path, *arguments: str
) -> dict:
    """The output of `--plan --json` of a script that defines this study."""

    def state(scale: str = "imagenet") -> Study:
        return study

    with pytest.raises(SystemExit) as ended:
        cli.main(state, ["--plan", "--json", "--store", str(folder), *arguments])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


TRAINED = 1_271_167 / 1_281_167  # 10,000 images are held out as minival


def test_the_edfs_of_the_paper_take_55_000_v100_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_script(ROOT / "studies" / "lr_wd_edf.py").study("imagenet")
    draws = dataclasses.replace(
        study, trials=tuple(trial for trial in study.trials if trial.point is not None)
    )
    plan = planned(capsys, draws, tmp_path, "--epoch-minutes", "xiao2021", "--devices", "512")
    hours = TRAINED * sum(EPOCH_MINUTES.values()) * 50 * 64 * 2 * 8 / 60
    assert plan["trials"] == plan["to_do"] == 1152
    assert plan["device_hours"] == plan["device_hours_to_do"] == pytest.approx(hours)
    assert round(plan["device_hours"], -3) == 55_000
    of_arm = {arm["arm"]: arm["device_hours"] for arm in plan["arms"]}
    assert of_arm["RegNetY-16GF SGD"] == pytest.approx(TRAINED * 17.9 * 50 * 64 * 8 / 60)
    assert plan["trials_at_once"] == 64
    span = plan["makespan_h"]
    assert hours / 512 <= span["lower_bound_h"] * (1 + 1e-9)
    assert (
        span["lower_bound_h"]
        <= span["longest_first_h"] * (1 + 1e-9)
        <= hours / 512 + 17.9 * 50 / 60
    )


def test_the_72_stability_runs_of_the_paper_take_12_900_v100_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = itertools.product((50, 100, 200, 400), ("adamw", "sgd"))
    runs = [{"epochs": epochs, "optimizer": optimizer} for epochs, optimizer in cells]
    arms = {name: [{**xiao2021.MODELS[name], **run} for run in runs] for name in EPOCH_MINUTES}
    plan = planned(capsys, made("stability", arms), tmp_path, "--epoch-minutes", "xiao2021")
    assert plan["trials"] == 72
    assert plan["device_hours"] == pytest.approx(12_900)
    assert plan["makespan_h"] is None


def test_printed_minutes_of_a_timm_model_are_those_of_its_measured_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"ResNet-50": [{**xiao2021.PEAK_MODELS["ResNet-50"], "epochs": 100}]}
    plan = planned(capsys, made("peak", arms), tmp_path, "--epoch-minutes", "xiao2021")
    assert plan["device_hours"] == pytest.approx(3.4 * 100 * 8 / 60)  # Table 2


def test_given_throughputs_and_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples / (images/s); minutes * epochs; the first rule that matches an arm counts."""
    study = plan_of()
    samples = 3 * (997 // 64) * 64  # of a trial: epochs, whole batches
    plan = planned(
        capsys, study, tmp_path, "--throughput", "con*=100", "200", "--devices-per-trial", "2"
    )
    assert plan["samples"] == samples * 7 + 3 * 997  # and one with batches of 1
    hours = {arm["arm"]: arm["device_hours"] for arm in plan["arms"]}
    assert hours["conv"] == pytest.approx(2 * 3 * samples / 100 / 3600)
    assert hours["diverging"] == pytest.approx(2 * samples / 200 / 3600)
    plan = planned(capsys, study, tmp_path, "--epoch-minutes", "2", "--devices", "3")
    assert plan["device_hours"] == pytest.approx(8 * 3 * 2 / 60)
    # three rounds of 0.1 h
    assert plan["makespan_h"] == pytest.approx({name: 0.3 for name in plan["makespan_h"]})
    assert json.loads(Path(plan["plan"]).read_text())["trials"] == to_json(study)["trials"]


def test_measured_hours_are_those_that_the_done_trials_took(store: Store, say: Say) -> None:
    """A done arm costs its measured time; an arm without one is estimated by multiply-adds."""
    study, plan = plan_of(), json.loads(say("plan", "tiny-demo", "--json", "--devices", "2"))
    seconds = {
        arm: sum(row["train_s"] for row in rows_of(store, study, arm))
        for arm in ("patchify", "conv")
    }
    flops = {
        arm: sum(training_flops(t.config) for t in study.trials if t.arm.name == arm)
        for arm in study.arms
    }
    rate = sum(seconds.values()) / (flops["patchify"] + flops["conv"])
    expected = {arm: seconds.get(arm, flops[arm] * rate) / 3600 for arm in study.arms}
    assert {arm["arm"]: arm["device_hours"] for arm in plan["arms"]} == pytest.approx(expected)
    assert (
        plan["device_hours_to_do"]
        == plan["makespan_h"]["lower_bound_h"]
        == pytest.approx(expected["broken"])
    )
    assert (plan["done"], plan["to_do"]) == (7, 1)
    assert "6 finished trials" in plan["time"]


def profiles(scale: str = "demo") -> Study:
    """Two models at three batch sizes, timed four times each."""
    base = ProfileConfig(profile="training", hardware="x", width=32, heads=2, timed_runs=4)
    trials = [
        Trial(f"depth {depth}", base.replace(depth=depth, batch_size=batch), i)
        for depth in (1, 2)
        for i, batch in enumerate((1, 2, 4))
    ]
    return Study(
        kind="profile",
        name="fast",
        scale=scale,
        question="How fast?",
        source="ours",
        trials=tuple(trials),
        metric="images_per_s",
    )


def test_a_plan_of_profiles_has_timed_runs_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters of a block of width D: 12 D^2 + 13 D.

    What is not known is null, and no column in the text.
    """
    study, store = profiles(), Store.open(tmp_path)
    plan = planned(capsys, study, tmp_path)
    assert [plan[name] for name in ("trials", "to_do", "timed_runs")] == [6, 6, 24]
    unknown = ("samples", "training_flops", "device_hours", "device_hours_to_do")
    assert all(plan[name] is None for name in (*unknown, "makespan_h", "time"))
    assert all(arm[name] is None for arm in plan["arms"] for name in (*unknown, "epochs"))
    first, second = plan["arms"]
    assert second["params"] - first["params"] == 12 * 32**2 + 13 * 32 and second["timed_runs"] == 12
    put(store, study)
    monkeypatch.setattr(sys, "argv", ["vitscale", "plan", study.slug, "--store", str(tmp_path)])
    main()
    text = capsys.readouterr().out
    assert (
        "epochs" not in text
        and "samples" not in text
        and "hours" not in text
        and "timed runs" in text
    )
    assert planned(capsys, plan_of(), tmp_path)["timed_runs"] is None


@pytest.mark.parametrize(
    "options", [["--devices", "2"], ["--throughput", "9"], ["--epoch-minutes", "2"]]
)
def test_times_of_profiles_cannot_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(profiles, ["--plan", "--store", str(tmp_path), *options])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "must not be given for profiles, which measure the speed, but got" in said


def test_plan_of_a_script_is_its_own(tmp_path: Path) -> None:
    arguments = ["--num", "2", "--throughput", "500", "--devices", "2", "--store", str(tmp_path)]
    commands = [
        [sys.executable, "-m", "vitscale", "plan", str(TINY)],
        [sys.executable, str(TINY), "--plan"],
    ]
    first, second = (
        subprocess.run([*command, *arguments], capture_output=True, text=True)
        for command in commands
    )
    assert first.returncode == second.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "to do on 2 devices, 1 per trial, 2 trials at once" in first.stdout


BAD_PLANS = [
    (["--devices", "0", "--throughput", "9"], "devices >= 1 must hold, but got (devices=0)"),
    (
        ["--devices", "2"],
        "throughput or epoch_minutes must be given until a trial is done, but got (devices=2)",
    ),
    (
        ["--throughput", "9", "--epoch-minutes", "2"],
        "--epoch-minutes: not allowed with argument --throughput",
    ),
    (
        ["--throughput", "fast"],
        "throughput must be a number > 0, or ARM=NUMBER, but got (throughput='fast')",
    ),
    (["--throughput", "nan"], "throughput must be a number > 0"),
    (
        ["--epoch-minutes", "conv=2"],
        "epoch_minutes must be given for every arm, but got none (arm='patchify')",
    ),
    (
        ["--throughput", "x=2", "3"],
        "ARM of throughput must match an arm of the study, but got ('x=2'",
    ),
    (
        ["--epoch-minutes", "xiao2021"],
        "an arm must have a published epoch time, but got none (arm='patchify')",
    ),
    (
        ["--throughput", "9", "--devices-per-trial", "1.5"],
        "devices_per_trial must be a whole number or a fraction of 1",
    ),
    (
        ["--throughput", "9", "--devices-per-trial", "8", "--devices", "4"],
        "devices_per_trial <= devices must hold",
    ),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_PLANS, ids=[" ".join(a) for a, _ in BAD_PLANS])
def test_bad_options_of_a_plan_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(load_script(TINY).study, ["--plan", "--store", str(tmp_path), *arguments])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert line in said.err and said.err.count("\n") == 1


def test_a_plan_that_shares_no_trial_with_the_last_one_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, store = load_script(TINY).study, Store.open(tmp_path)
    put(store, study(epochs=8))
    for arguments, line in (
        (["--epochs", "6"], "no trial is one of the last plan of tiny-demo: epochs 6 instead of 8"),
        (["--epochs", "8", "--num", "4"], ""),
    ):
        with pytest.raises(SystemExit):
            cli.main(study, ["--plan", "--store", str(tmp_path), *arguments])
        said = [one for one in capsys.readouterr().out.splitlines() if one.startswith("no trial")]
        assert said == [line] * bool(line)


def test_options_of_a_plan_need_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(load_script(TINY).study, ["--json", "--store", str(tmp_path)])
    assert ended.value.code == 2
    assert "--json must come with --plan, but got (json=True)\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statsu", "status"),
        ("status --jsno", "--json"),
        ("run lr_wd_edff", "lr_wd_edf"),
        ("completion bsh", "bash"),
        ("status --zzzzzz", ""),
        ("compare a b --metric c", ""),  # --verify is an option of another command
    ],
)
def test_a_refused_word_names_what_it_resembles(typed: str, meant: str) -> None:
    command = [sys.executable, "-m", "vitscale", *typed.split()]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 2 and said.stderr.count("\n") == 1
    assert said.stderr.endswith(f"; did you mean {meant!r}?\n") == bool(meant)


def test_bash_completes_commands_options_and_studies(tmp_path: Path) -> None:
    (tmp_path / "runs/studies/tiny-demo").mkdir(parents=True)
    tool = f"{sys.executable} -m vitscale"
    asked = {"sta": "status", "report --fo": "--format", "report ti": "tiny-demo"}
    asked |= {"new mine --kind re": "repeats", "run lr": "lr_wd_edf", "run ti": ""}
    asked |= {"plan lr_w": "lr_wd_edf", "run lr_wd_edf --final": "--final-num"}
    lines = [f'eval "$({tool} completion bash)"']
    for typed in asked:
        words = typed.split()
        lines.append(f"COMP_WORDS=(vitscale {typed}); COMP_CWORD={len(words)}; _vitscale")
        lines.append('echo "${COMPREPLY[*]}"')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.check_output(
        ["bash", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, text=True
    )
    assert said.splitlines() == list(asked.values())


# Status


def test_status_counts_trials_bytes_and_times(store: Store, say: Say) -> None:
    told = json.loads(say("status", "--json"))
    studies = {study["study"]: study for study in told["studies"]}
    names = ("planned", "finished", "running", "diverged", "failed", "missing", "driver_alive")
    assert {slug: [study[name] for name in names] for slug, study in studies.items()} == {
        "tiny-demo": [8, 6, 0, 1, 1, 0, False],
        "longer-demo": [8, 2, 0, 0, 0, 6, False],
        "other-demo": [8, 6, 0, 1, 1, 0, False],  # its trials are those of tiny
    }
    folders = [store.trial(trial.config.id).path for trial in plan_of().trials]
    files = [path for folder in folders for path in folder.iterdir()]
    own = [path for path in (store.root / "studies/tiny-demo").rglob("*") if path.is_file()]
    assert studies["tiny-demo"]["num_bytes"] == sum(path.stat().st_size for path in [*files, *own])
    newest = max(
        path.stat().st_mtime for path in [*files, store.root / "studies/tiny-demo/plan.json"]
    )
    assert studies["tiny-demo"]["changed_s"] == newest
    shared = sum(path.stat().st_size for path in files)
    assert told["num_bytes"] == sum(study["num_bytes"] for study in studies.values()) - shared
    lines = [line.split()[:7] for line in say("status").splitlines()]
    assert ["longer-demo", "8", "2", "0", "0", "0", "6"] in lines


def test_a_trial_claimed_by_a_live_driver_is_running(tmp_path: Path) -> None:
    store, study = Store.open(tmp_path), plan_of()
    put(store, study)
    config = study.trials[0].config
    with store.drive(study.slug) as attempt:
        store.claim(config.id, config.non_default(), study.slug, attempt)
        ((state,), _) = overview(store)
        assert (state.running, state.missing, state.driver_alive) == (1, 7, True)
    ((state,), _) = overview(store)  # the driver is gone, its claim is left
    assert (state.running, state.missing, state.driver_alive) == (0, 8, False)


def test_damaged_rows_are_missing_and_a_damaged_plan_is_named(tmp_path: Path) -> None:
    store, study = Store.open(tmp_path), plan_of()
    put(store, study)
    folder = store.trial(study.trials[0].config.id).path
    folder.mkdir()
    (folder / "rows.parquet").write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match=f"rows must be readable parquet, but got .{folder}"):
        ((state,), _) = overview(store)
    assert (state.missing, state.num_bytes > 4) == (8, True)
    store.study(study.slug).write("plan.json", b"{")
    with pytest.warns(UserWarning, match="a file of the store must be JSON, but got .*plan.json"):
        assert overview(store)[0] == []


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vitscale", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"vitscale {declared}\n"


def test_sources_that_are_not_installed_have_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a node to which `ray job submit` ships them."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    monkeypatch.setattr(sys, "argv", ["vitscale", "complexity", "--json"])
    main()
    assert json.loads(capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["vitscale", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    assert capsys.readouterr().out == "vitscale (not installed)\n"


def test_complexity_says_what_predicts_minutes_per_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vitscale", "complexity", "--runtime"])
    main()
    told = capsys.readouterr().out
    assert "acts_m    r = 0.93 [0.85, 0.97], Figure 9 prints 0.93\n" in told
    monkeypatch.setattr(sys, "argv", ["vitscale", "complexity", "--runtime", "--json"])
    main()
    rows = json.loads(capsys.readouterr().out)
    assert [row["cost"] for row in rows] == ["params_m", "flops_g", "acts_m"]
    assert rows[2]["acts_minus_r"] is None


def test_status_and_help_load_nothing_heavy(store: Store) -> None:
    code = """if True:
        import sys
        from vitscale.__main__ import main
        sys.argv[0] = "vitscale"
        try:
            main()
        except SystemExit:
            pass
        print(*{name.split(".")[0] for name in sys.modules})
    """
    heavy = {
        "torch",
        "torchvision",
        "timm",
        "ray",
        "mlflow",
        "pandas",
        "matplotlib",
        "sklearn",
        "scipy",
    }
    for arguments in (["--help"], ["status", "--store", str(store.root)]):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True
        )
        *printed, loaded = result.stdout.splitlines()
        assert len(printed) > 3 and "vitscale" in loaded.split(), result.stderr
        assert not heavy & set(loaded.split())


# Streams, signals and settings of the process


def test_any_streams_will_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "α").symlink_to(store.root)
    command = f"PYTHONIOENCODING=latin-1 {sys.executable} -m vitscale status --store"
    for rest, status, num_lines in (
        ("α >out", 0, 0),
        ("α >&-", 0, 0),
        ("α <&- >&- 2>&-", 0, 0),
        ("none 2>&-", 2, 0),
        ("α >/dev/full", 2, 1),
    ):
        ended = subprocess.run(
            f"{command} {rest}", shell=True, cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == status and ended.stderr.count("\n") == num_lines, rest
    assert f"store {tmp_path}/\\u03b1: " in (tmp_path / "out").read_text()


def test_a_closed_stream_gets_the_file_descriptor_of_no_other_file(tmp_path: Path) -> None:
    code = """if True:
        import os
        from vitscale.cli.process import prepare_streams
        prepare_streams()
        assert {os.fstat(i).st_rdev for i in range(3)} == {os.stat(os.devnull).st_rdev}
        print("lost")
    """
    ended = subprocess.run(f"{sys.executable} -c '{code}' <&- >&- 2>&-", shell=True)
    assert ended.returncode == 0


def test_lines_are_drawn_over_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    ours, theirs = pty.openpty()
    with open(ours, "rb"), open(theirs, "w") as terminal:
        assert is_live(Console(file=terminal))
        monkeypatch.setenv("TERM", "dumb")
        assert not is_live(Console(file=terminal))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("JPY_PARENT_PID", "1")  # as `!vitscale` of a notebook has it
        assert not is_live(Console(file=terminal))
    assert not is_live(Console(file=io.StringIO()))


def test_an_unknown_backend_of_a_notebook_is_hidden_and_put_back() -> None:
    code = """if True:
        import os
        from vitscale.cli.script import refusals
        with refusals("test"):
            import matplotlib
        assert os.environ["MPLBACKEND"] == "module://matplotlib_inline.nowhere"
        os.environ["MPLBACKEND"] = "nowhere"
        with refusals("test"):
            assert os.environ["MPLBACKEND"] == "nowhere"  # since matplotlib is loaded
    """
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.nowhere"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_main_runs_in_a_thread_and_puts_the_handlers_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(name) for name in SIGNALS]
    ended: list[object] = []

    def plan() -> None:
        try:
            cli.main(load_script(TINY).study, ["--plan", "--store", str(tmp_path / "runs")])
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=plan)
    thread.start()
    thread.join()
    plan()
    assert [getattr(error, "code", error) for error in ended] == [0, 0]
    assert [signal.getsignal(name) for name in SIGNALS] == before


# Report


def test_report_of_an_unfinished_study(store: Store, say: Say) -> None:
    printed = say("report", "longer-demo")
    assert "Of 8 draws: 2 finished, 0 diverged, 0 failed, 6 missing." in printed
    report = Path(printed.split()[-1])
    assert "Still missing: 3 of 4 draws of patchify, 3 of 4 draws of conv" in report.read_text()
    assert all(
        (report.parent / f"{name}.png").stat().st_size > 10_000 for name in plan_of().figures
    )
    table = pd.read_parquet(report.parent / "trials.parquet")
    assert dict(table["status"].value_counts()) == {"missing": 6, "finished": 2}
    document = json.loads(say("report", "longer-demo", "--json"))
    assert (
        set(document["tables"]) == set(plan_of().tables) and "2 finished" in document["headline"][0]
    )
    for row in document["tables"]["edf_summary"]:
        assert (row["planned"], row["n"], row["missing"], row["reference"]) == (
            4,
            1,
            3,
            None,
        )


# Comparison


def test_two_arms_of_a_study_in_pairs(store: Store, say: Say) -> None:
    study = plan_of()
    (told,) = json.loads(say("compare", "tiny-demo:patchify", "tiny-demo:conv", "--json"))[
        "compared"
    ]
    a, b = (errors_of(store, study, arm) for arm in ("patchify", "conv"))
    difference = told["difference"]
    assert difference["paired_by"] == ["lr", "wd"] and difference["num_pairs"] == 3
    names = ("mean", "mean_low", "mean_high", "median")
    assert [difference[name] for name in names] == [
        pytest.approx((a - b).mean()),
        None,
        None,
        np.median(a - b),
    ]
    assert told["a"]["median"] == np.median(a) and told["b"]["mean"] == pytest.approx(b.mean())
    assert {name: values["b"] for name, values in told["fields"].items()} == {
        "stem": ["conv"],
        "stem_channels": ["8-16"],
        "stem_strides": ["1-2"],
    }
    assert told["shared_trials"] == 0


def test_two_studies_arm_by_arm(store: Store, say: Say) -> None:
    """A longer design extends a shorter one: draws are paired, although epochs differ."""
    told = json.loads(say("compare", "tiny-demo", "longer-demo", "--json"))
    assert told["alone"] == ["tiny-demo:diverging", "tiny-demo:broken"]
    for comparison, arm in zip(told["compared"], ("patchify", "conv"), strict=True):
        assert comparison["fields"]["epochs"] == {"a": [3], "b": [4]}
        assert {side: comparison[side]["arm"] for side in "ab"} == {"a": arm, "b": arm}
        assert [comparison[side]["planned"] for side in "ab"] == [3, 4]
        assert (comparison["difference"]["paired_by"], comparison["difference"]["num_pairs"]) == (
            ["lr", "wd"],
            1,
        )
        assert comparison["difference"]["mean_low"] is None  # of one pair
    text = say("compare", "tiny-demo", "longer-demo")
    assert "in one study only: tiny-demo:broken" in text
    assert text.count("1 pair of equal lr, wd") == 2


def test_a_diverged_arm_counts_at_100_and_has_no_mean(say: Say) -> None:
    (told,) = json.loads(say("compare", "tiny-demo:patchify", "tiny-demo:diverging", "--json"))[
        "compared"
    ]
    assert (told["b"]["n"], told["b"]["diverged"], told["b"]["median"]) == (1, 1, 100.0)
    assert told["b"]["mean"] is None and told["difference"]["mean"] is None
    assert told["difference"]["paired_by"] is None and told["difference"]["num_pairs"] == 0
    assert told["fields"]["optimizer"] == {"a": ["adamw"], "b": ["sgd"]}


def repeats(
    seeds_b: range, error: Callable[[str, int], float], num_scrambles: int = 0
) -> tuple[Side, Side]:
    """Two arms of different lr, eight seeds each; error(arm, seed) in percent, 100 if diverged."""
    base = TrainConfig()
    trials = [Trial("A", base.replace(lr=1e-3, seed=i), i) for i in range(8)]
    trials += [Trial("B", base.replace(lr=2e-3, seed=seed), i) for i, seed in enumerate(seeds_b)]
    study = Study(
        kind="distribution",
        name="made",
        scale="demo",
        question="?",
        source="ours",
        trials=tuple(trials),
        num_scrambles=num_scrambles,
    )
    table = pd.DataFrame(
        [
            {
                "arm": t.arm.name,
                "point": t.point,
                "trial_id": t.config.id,
                **t.config.asdict(),
                "value": error(t.arm.name, t.config.seed),
            }
            for t in trials
        ]
    )
    table["status"] = np.where(table["value"] == 100, "diverged", "finished")
    return Side(study, table, "A"), Side(study, table, "B")


def noise(arm: str, seed: int) -> float:
    return float(20 + 5 * (arm == "B") + np.random.default_rng([seed, arm == "B"]).normal())


def test_repeats_are_paired_by_seed_and_else_compared_by_welch() -> None:
    a, b = (np.array([noise(arm, seed) for seed in range(8)]) for arm in "AB")
    told = side_by_side(*repeats(range(8), noise))["difference"]
    test = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert told["paired_by"] == ["seed"] and told["num_pairs"] == 8
    assert (told["mean_low"], told["mean_high"]) == pytest.approx(tuple(test))
    ends = np.sort(a - b)[[0, 7]]  # the order statistics that hold the median of 8 with 1 - 2/256
    assert (told["median_low"], told["median_high"]) == pytest.approx(tuple(ends))
    other = np.array([noise("B", seed) for seed in range(50, 58)])
    told = side_by_side(*repeats(range(50, 58), noise))["difference"]
    test = scipy.stats.ttest_ind(a, other, equal_var=False).confidence_interval(0.95)
    assert told["paired_by"] is None
    assert (told["mean_low"], told["mean_high"]) == pytest.approx(tuple(test))
    assert told["median"] == pytest.approx(np.median(a) - np.median(other))
    assert told["median_low"] < told["median"] < told["median_high"] < 0


def test_a_diverged_partner_is_in_the_median_and_in_no_mean() -> None:
    def error(arm: str, seed: int) -> float:
        return 100.0 if (arm, seed) in (("B", 3), ("B", 4)) else noise(arm, seed)

    told = side_by_side(*repeats(range(8), error))
    kept = [noise("A", seed) - noise("B", seed) for seed in range(8) if seed not in (3, 4)]
    assert (told["difference"]["num_pairs"], told["difference"]["num_finished_pairs"]) == (8, 6)
    assert told["difference"]["mean"] == pytest.approx(np.mean(kept))
    paired = [error("A", seed) - error("B", seed) for seed in range(8)]
    assert told["difference"]["median"] == pytest.approx(np.median(paired))
    assert told["b"]["diverged"] == 2 and told["b"]["n"] == 8


def test_a_sobol_design_has_no_interval_of_independent_draws() -> None:
    told = side_by_side(*repeats(range(8), noise, num_scrambles=4))
    assert np.isnan(told["difference"]["mean_low"]) and np.isnan(told["a"]["mean_high"])
    assert np.isfinite(told["difference"]["median_low"])


def test_a_mean_over_other_lr_has_no_interval() -> None:
    """Errors over draws of lr have a long tail: Student's interval of 8 would cover 80 to 87%."""
    a, _ = repeats(range(8), noise)
    drawn = tuple(
        dataclasses.replace(t, config=t.config.replace(lr=t.config.lr * 3**t.config.seed))
        for t in a.study.trials
    )
    study = dataclasses.replace(a.study, trials=drawn)
    table = a.outcomes.assign(
        lr=[t.config.lr for t in drawn], trial_id=[t.config.id for t in drawn]
    )
    told = side_by_side(Side(study, table, "A"), Side(study, table, "B"))
    assert np.isfinite(told["a"]["mean"]) and np.isfinite(told["a"]["median_low"])
    assert np.isnan([told["a"]["mean_low"], told["difference"]["mean_high"]]).all()
    errors = table[table["arm"] == "A"]["value"]  # no interval, but a spread
    assert told["a"]["sd"] == pytest.approx(errors.std())
    (shown,) = (row for row in as_cells(told, ERROR) if row[0] == "sd error of finished (points)")
    assert shown[1] == f"{errors.std():.1f}" and shown[3] == ""


def test_cells_show_both_sides_of_each_field() -> None:
    cells = {
        row[0]: row[1:] for row in as_cells(side_by_side(*repeats(range(8, 16), noise)), ERROR)
    }
    assert cells[""] == ["made-demo:A", "made-demo:B", "difference"]
    assert cells["lr"] == ["0.001", "0.002", ""]
    assert cells["seed"] == ["0 to 7 (8 values)", "8 to 15 (8 values)", ""]
    assert cells["n"] == ["8", "8", "unpaired"]


def test_arms_without_a_common_name_must_be_named() -> None:
    a, b = repeats(range(8), noise)
    one = dataclasses.replace(a.study, trials=tuple(t for t in a.study.trials if t.arm.name == "B"))
    assert arm_pairs(a.study, a.study) == [("A", "A"), ("B", "B")]
    assert arm_pairs(a.study, one) == [("B", "B")]
    assert arm_pairs(a.study, one, arm_a="A") == [("A", "B")]  # the only one that can be meant
    assert arm_pairs(a.study, b.study, "A", "B") == [("A", "B")]
    alien = made("alien", {"C": [{}], "D": [{"seed": 1}]})
    with refusing("made-demo: A, B", "alien-imagenet: C, D"):
        arm_pairs(a.study, alien)


def test_errors_on_other_images_are_not_compared() -> None:
    a, b = repeats(range(8), noise)
    trials = tuple(
        dataclasses.replace(t, config=t.config.replace(dataset="cifar10", channels=3))
        for t in b.study.trials
    )
    cifar = Side(
        dataclasses.replace(b.study, trials=trials), b.outcomes.assign(dataset="cifar10"), "B"
    )
    with refusing("made-demo:A: digits", "made-demo:B: cifar10"):
        side_by_side(a, cifar)


def test_profiles_are_not_compared_by_an_error_that_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(Store.open(tmp_path), profiles())
    arms = ["fast-demo:depth 1", "fast-demo:depth 2"]
    monkeypatch.setattr(sys, "argv", ["vitscale", "compare", *arms, "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err or str(ended.value.code)
    assert "arms compared must be trainings and not profiles, but got (fast-demo:depth 1)" in told
    assert told.rstrip("\n").count("\n") == 0


BAD_COMMANDS = [
    (
        ["compare", "tiny-demo", "other-demo"],
        "one metric, but got ('val_ema_error_pct', 'val_error_pct')",
    ),
    (
        ["compare", "tiny-demo", "nothing"],
        "a study must be in the store, but got ('nothing'; the store has: longer-demo",
    ),
    (
        ["compare", "tiny-demo:x", "tiny-demo"],
        "an arm must be of tiny-demo, but got ('x'; there are: patchify, conv",
    ),
    (
        ["compare", "tiny-demo:patchfy", "tiny-demo"],
        "broken); did you mean 'patchify'?",
    ),
    (
        ["compare", "tiny-demo:", "tiny-demo"],
        "an arm must be of tiny-demo, but got (''; there are:",
    ),
    (
        ["report", "nothing"],
        "a study must be in the store, but got ('nothing'; the store has: longer-demo",
    ),
    (
        ["plan", "nothing"],
        "a study must be in the store, but got ('nothing'; the store has: longer-demo",
    ),
    (["plan", "nothing.py"], "the study script must exist, but got ('nothing.py')"),
    (["plan", "tiny-demo", "--devices", "0"], "devices >= 1 must hold, but got (devices=0)"),
    (["report"], "the following arguments are required: STUDY"),
]


@pytest.mark.parametrize(
    ("arguments", "line"), BAD_COMMANDS, ids=[" ".join(a) for a, _ in BAD_COMMANDS]
)
def test_bad_input_gets_one_line(
    say: Say, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        say(*arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2 and line in said.err and said.err.count("\n") == 1
    assert ended.value.code not in (0, None) and said.out == ""


@pytest.mark.parametrize(
    "command", [["status"], ["report", "x"], ["compare", "x", "y"], ["plan", "x"]]
)
def test_an_empty_store_is_reported_and_nothing_is_created(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["vitscale", *command, "--store", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "a study must be in the store, but got none" in said and "--store" in said
    assert not list(tmp_path.iterdir())
