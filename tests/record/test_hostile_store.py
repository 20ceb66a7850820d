"""Damaged and hostile files of single trials and studies: each
is named in one line, and none stops the others.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import empty_database
from support.refusals import refusing

from vitscale.__main__ import main
from vitscale.launch.driver import Driver
from vitscale.launch.preflight import Data
from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study, to_json
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Outcome, Status
from vitscale.record.rows import encode
from vitscale.record.store import Store

FACTS = {"attempt": "1"}


def study_of(name: str, num: int, seed: int) -> Study:
    """A study without figures: short trials that differ in their seeds."""
    base = TrainConfig(
        width=8, depth=1, heads=2, patch_size=4, batch_size=498, epochs=2, warmup_epochs=0.0
    )
    trials = tuple(Trial("ViT", base.replace(seed=seed + i), i) for i in range(num))
    return Study(
        kind="distribution",
        name=name,
        scale="demo",
        question="Does it read?",
        source="ours",
        trials=trials,
    )


def rows_of(trial: Trial) -> list[dict[str, float]]:
    both = {
        "diverged": 0.0,
        "samples": 498.0,
        "lr_now": 1e-3,
        "train_loss": 1.0,
        "train_s": 2.0,
        "eval_s": 1.0,
    }
    errors = {f"val_{kind}": 30.0 for kind in ("error_pct", "ema_error_pct", "loss", "ema_loss")}
    return [{"epoch": i, "step": i, "unix_s": 1.7e9, **both, **errors} for i in (1.0, 2.0)]


def table(columns: dict[str, list[object]], status: bytes = b"finished") -> Callable[[Path], None]:
    """Writes a file without a seal."""
    made = pa.table(columns).replace_schema_metadata({b"vitscale.status": status})
    return lambda folder: pq.write_table(made, folder / "rows.parquet")


def sealed(**row: float) -> Callable[[Path], None]:
    """Writes a file with one row and a valid seal."""
    outcome = Outcome(Status.FINISHED, (row,))
    return lambda folder: (
        (folder / "rows.parquet").write_bytes(encode(folder.name, outcome)) and None
    )


def content(name: str, text: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(text) and None


def loop(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(name)

    return make


def pipe(name: str) -> Callable[[Path], None]:
    """Whoever opens it to read waits for a writer."""

    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


class Fault(NamedTuple):
    file: str  # that must be named
    make: Callable[[Path], None]  # in the folder of a trial that has no file yet
    has_rows: bool = True


TRIAL_FAULTS = {
    "another error's column": Fault("rows.parquet", sealed(epoch=1.0, diverged=0.0, val_loss=1.0)),
    "no epoch": Fault("rows.parquet", sealed(val_ema_error_pct=1.0, diverged=0.0)),
    "no time": Fault("rows.parquet", sealed(epoch=1.0, val_ema_error_pct=1.0)),
    "a column of text": Fault("rows.parquet", table({"epoch": [1.0], "val_ema_error_pct": ["x"]})),
    "no row": Fault("rows.parquet", table({"epoch": []})),
    "unknown status": Fault("rows.parquet", table({"epoch": [1.0]}, b"great")),
    "metadata not in UTF-8": Fault("rows.parquet", table({"epoch": [1.0]}, b"\xff\xfe")),
    "no parquet": Fault("rows.parquet", content("rows.parquet", b"PAR1" * 9)),
    "rows are a loop": Fault("rows.parquet", loop("rows.parquet")),
    "rows are a pipe": Fault("rows.parquet", pipe("rows.parquet")),
    "rows are a folder": Fault("rows.parquet", lambda folder: (folder / "rows.parquet").mkdir()),
    "claim not JSON": Fault("claim.json", content("claim.json", b"{"), False),
    "claim of another shape": Fault("claim.json", content("claim.json", b"[]"), False),
    "claim not in UTF-8": Fault("claim.json", content("claim.json", b"\xff"), False),
    "claim of a path": Fault(
        "claim.json", content("claim.json", b'{"study": "../..", "attempt": 1}'), False
    ),
    "claim is a loop": Fault("claim.json", loop("claim.json"), False),
    "claim is a pipe": Fault("claim.json", pipe("claim.json"), False),
    "failure is a loop": Fault("failure.log", loop("failure.log"), False),
}


def plan_with(**changed: object) -> Callable[[Path], None]:
    """The plan of a study of the folder's name, but for some
    fields; "trials" may be of one trial's fields.
    """

    def make(folder: Path) -> None:
        plan = to_json(
            dataclasses.replace(
                study_of("junk", 1, seed=900), name=folder.name.removesuffix("-demo")
            )
        )
        of_trial = changed.get("of_trial", {})
        plan["trials"] = [{**plan["trials"][0], **of_trial}]
        plan.update({k: v for k, v in changed.items() if k != "of_trial"})
        (folder / "plan.json").write_text(json.dumps(plan))

    return make


def without(field: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        plan_with()(folder)
        plan = json.loads((folder / "plan.json").read_text())
        del plan["trials"][0][field]
        (folder / "plan.json").write_text(json.dumps(plan))

    return make


PLAN_FAULTS = {
    "not_json": content("plan.json", b"{"),
    "empty": content("plan.json", b""),
    "not_utf8": content("plan.json", b'{"name": "\xff"}'),
    "no_fields": content("plan.json", b"{}"),
    "a_list": content("plan.json", b"[]"),
    "nested": content("plan.json", b"[" * 10**5),
    "nested_object": content("plan.json", b'{"trials":' * 10**5),
    "long_number": content("plan.json", b'{"trials": ' + b"9" * 5000 + b"}"),
    "trials_a_number": plan_with(trials=5),
    "trials_of_numbers": plan_with(trials=[5]),
    "id_a_number": plan_with(of_trial={"id": 5}),
    "id_a_path": plan_with(of_trial={"id": "/etc"}),
    "id_upwards": plan_with(of_trial={"id": "../../../../../etc"}),
    "another_study": plan_with(name="good"),
    "a_loop": loop("plan.json"),
    "a_folder": lambda folder: (folder / "plan.json").mkdir(),
    "a_pipe": pipe("plan.json"),
}
STUDY_FAULTS = {  # whose trials have ids, so that `status` can tell what became of them
    "id_of_another": plan_with(of_trial={"id": "0123456789ab"}),
    "large_point": plan_with(of_trial={"point": 10**40}),
    "arm_a_list": plan_with(of_trial={"arm": []}),
    "no_arm": without("arm"),
    "no_config": without("config"),
    "config_a_number": plan_with(of_trial={"config": 5}),
    "unknown_field": plan_with(of_trial={"config": {"nothing": 1}}),
    "panels_a_list": plan_with(panels=["x"]),
    "metric_a_number": plan_with(metric=7),
}
TRIALS = study_of("bad", len(TRIAL_FAULTS) + 2, seed=100).trials  # the last two are whole


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """All faults at once: a good study, one whose trials are
    damaged in all ways, and a study for each bad plan.
    """
    store = Store.open(tmp_path_factory.mktemp("hostile") / "runs")
    good, bad = (
        study_of("good", 2, seed=0),
        dataclasses.replace(study_of("bad", 1, seed=100), trials=TRIALS),
    )
    for study in (good, bad):
        store.study(study.slug).write(
            "plan.json", json.dumps({"command": "x", **to_json(study)}).encode()
        )
    for trial in (*good.trials, *TRIALS[-2:]):
        store.finish(
            store.claim(trial.config.id, {}, "good-demo", 1),
            Outcome(Status.FINISHED, tuple(rows_of(trial)), FACTS),
        )
    store.trial(TRIALS[-1].config.id).write("failure.log", b"\xff\xfe of an earlier try")
    for trial, fault in zip(TRIALS, TRIAL_FAULTS.values(), strict=False):
        store.trial(trial.config.id).path.mkdir()
        fault.make(store.trial(trial.config.id).path)
    for name, make in {**PLAN_FAULTS, **STUDY_FAULTS}.items():
        folder = store.study(f"{name}-demo").path
        folder.mkdir()
        make(folder)
    (store.root / "studies" / "round").symlink_to("round")
    (store.root / "studies" / "note.txt").write_text("no study")
    (store.root / "trials" / "note.txt").write_text("no trial")
    return store


class Said(NamedTuple):
    out: str
    told: list[str]  # warnings, and the line of a refusal
    code: object


Run = Callable[..., Said]


@pytest.fixture
def run(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    """What `vitscale COMMAND ...` says on this store; no
    warning has several lines, only SystemExit ends it.
    """

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["vitscale", *arguments, "--store", str(store.root)])
        code: object = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        said = capsys.readouterr()
        told = [str(warning.message) for warning in caught] + said.err.splitlines()
        assert not [line for line in told if "\n" in line or "Traceback" in line]
        return Said(said.out, told, code)

    return call


def named(said: Said, path: Path) -> list[str]:
    return [line for line in said.told if str(path) in line]


def test_status_tells_of_every_study_that_has_a_plan(store: Store, run: Run) -> None:
    said = run("status")
    assert said.code == 0
    lines = {line.split()[0]: line.split()[1:7] for line in said.out.splitlines() if line}
    assert lines["good-demo"] == ["2", "2", "0", "0", "0", "0"]
    unseen = 3  # a lack of columns shows when rows are read
    assert lines["bad-demo"][:3] == [str(len(TRIALS)), str(2 + unseen), "0"]
    assert {f"{name}-demo" for name in STUDY_FAULTS} < set(lines)
    assert not {f"{name}-demo" for name in PLAN_FAULTS} & set(lines)
    for name in PLAN_FAULTS:
        assert len(named(said, store.root / "studies" / f"{name}-demo" / "plan.json")) == 1
    for trial, (name, fault) in zip(TRIALS, TRIAL_FAULTS.items(), strict=False):
        of_file = named(said, store.trial(trial.config.id).path / fault.file)
        assert len(of_file) == 1 or name in ("another error's column", "no epoch", "no time"), name
    assert json.loads(run("status", "--json").out)["studies"]


def test_a_report_of_other_trials_names_each(store: Store, run: Run) -> None:
    said = run("report", "bad-demo")
    assert said.code == 0 and "report" in said.out
    for trial, (name, fault) in zip(TRIALS, TRIAL_FAULTS.items(), strict=False):
        if fault.file != "claim.json":  # which bears on no result
            assert len(named(said, store.trial(trial.config.id).path / fault.file)) == 1, name
    assert run("report", "good-demo") == Said(run("report", "good-demo").out, [], 0)


@pytest.mark.parametrize("name", [*PLAN_FAULTS, *STUDY_FAULTS])
@pytest.mark.parametrize("command", [["report"], ["plan"], ["adopt"]], ids=" ".join)
def test_a_bad_plan_is_refused_in_one_line_with_its_file(
    store: Store, run: Run, name: str, command: list[str]
) -> None:
    said = run(*command, f"{name}-demo")
    assert said.code == 2 and said.out == ""
    path = store.root / "studies" / f"{name}-demo" / "plan.json"
    assert said.told == named(said, path) and len(said.told) == 1
    assert not list((store.root / "studies").glob(f"{name}-demo/report"))


def test_a_trial_is_shown_beside_any_bad_plan(store: Store, run: Run) -> None:
    said = run("show", "good-demo:ViT:0")
    assert said.code == 0 and "good-demo" in said.out
    for name in ("no_arm", "arm_a_list", "config_a_number", *PLAN_FAULTS):
        assert len(named(said, store.root / "studies" / f"{name}-demo" / "plan.json")) == 1, name
    for name in STUDY_FAULTS:
        assert run("show", f"{name}-demo:ViT").code in (0, 2)


def test_a_plan_of_another_version_says_what_it_lacks(store: Store, run: Run) -> None:
    (line,) = run("report", "no_arm-demo").told
    assert "no 'arm'; the study's script writes it again" in line and "KeyError" not in line


def test_sync_shows_what_can_be_shown(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mlflow.db").write_bytes(empty_database())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    said = run("sync")
    shown = dict(re.findall(r"^(\S+-demo): (\d+ of \d+) trials shown at", said.out, re.MULTILINE))
    assert shown == {"good-demo": "2 of 2", "bad-demo": f"2 of {len(TRIALS)}"}
    assert said.code == 2 and f"{len(PLAN_FAULTS) + len(STUDY_FAULTS)} not shown" in said.told[-1]
    for name in {*PLAN_FAULTS, *STUDY_FAULTS}:
        assert len(named(said, store.root / "studies" / f"{name}-demo" / "plan.json")) == 1, name


def test_the_next_start_sets_aside_whatever_cannot_be_read(store: Store) -> None:
    """The last test: it moves the rows."""
    bad = dataclasses.replace(study_of("bad", 1, seed=100), trials=TRIALS)
    known = Driver(bad, store, Resources(), 1, threading.Event(), Data(""))._read_done()
    assert set(known) == {trial.config.id for trial in TRIALS[-2:]}
    for trial, fault in zip(TRIALS, TRIAL_FAULTS.values(), strict=False):
        assert not store.is_done(trial.config.id)
        aside = list(store.trial(trial.config.id).path.glob("rows.parquet.damaged-*"))
        assert len(aside) == fault.has_rows or os.path.lexists(
            store.trial(trial.config.id).path / fault.file
        )


@pytest.mark.parametrize(
    "root", ["s3:///runs", "gs:/bucket", "file:///tmp/runs", "hdfs://host:9000/runs"]
)
def test_a_store_with_a_scheme_is_refused_before_a_folder_is_made(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with refusing(f"store='{root}'"):
        Store.open(root)
    for command in (["status"], ["report", "x"], ["sync"], ["plan", "x"]):
        monkeypatch.setattr(sys, "argv", ["vitscale", *command, "--store", root])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
