"""`vitscale show`, `status --orphans`, `clean`, the links of a study, and trials of other code."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY, Script, load_script
from support.mlflow_runs import runs_of_experiment
from support.tiny_study import put

from vitscale.cli.script import main
from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.study import Study, to_json
from vitscale.record.cleanup import Waste, clean, survey
from vitscale.record.rows import encode
from vitscale.record.store import Store
from vitscale.record.trial_links import link_paths, update_links

OTHER_CODE = ("0123456789ab", "fedcba987654+changes")


def study(num: int = 2, **changed: object) -> Study:
    return dataclasses.replace(load_script(TINY).study(num=num, epochs=2), **changed)


def train(store: Store, plan: Study, ids: set[str] | None = None) -> None:
    for config in (trial.config for trial in plan.trials):
        if ids is None or config.id in ids:
            fields = config.non_default()
            list(train_trial(config.id, fields, store, plan.slug, 1, Resources()))


def vitscale(store: Store, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitscale", *arguments, "--store", str(store.root)]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=200
    )


def ids_of(plan: Study) -> set[str]:
    return {trial.config.id for trial in plan.trials}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("trained") / "runs")
    train(store, study(2))
    return store


@pytest.fixture
def store(trained: Store, tmp_path: Path) -> Store:
    """Two draws an arm and one that diverges are trained; one draw an arm is planned."""
    store = Store.open(shutil.copytree(trained.root, tmp_path / "runs"))
    put(store, study(1), earlier=sorted(ids_of(study(2)) - ids_of(study(1))))
    return store


def test_orphans_are_what_no_plan_names_and_clean_deletes_them_alone(store: Store) -> None:
    gone = ids_of(study(2)) - ids_of(study(1))
    document = json.loads(vitscale(store, "status", "--orphans", "--json").stdout)
    assert {orphan["trial_id"] for orphan in document["orphans"]} == gone
    for orphan in document["orphans"]:
        folder = store.root / "trials" / orphan["trial_id"]
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        assert (orphan["num_bytes"], orphan["status"]) == (sum(sizes), "finished")
        assert orphan["config"] == json.loads((folder / "config.json").read_text())
        assert orphan["earlier"] == ["tiny-demo"]
    said = vitscale(store, "status", "--orphans").stdout
    assert all(trial_id in said for trial_id in gone) and "0 min" in said

    refused = vitscale(store, "clean")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "--yes must be given where no terminal can be asked" in refused.stderr
    assert set(store.trial_ids()) == ids_of(study(2))

    done = vitscale(store, "clean", "--yes")
    assert done.returncode == 0 and "deleted 2 trials (" in done.stdout, done.stderr
    assert {path.name for path in (store.root / "trials").iterdir()} == ids_of(study(1))
    assert all(store.is_done(trial_id) for trial_id in ids_of(study(1)))
    assert "nothing to delete" in vitscale(store, "clean", "--yes").stdout
    assert "every trial" in vitscale(store, "status", "--orphans").stdout


def ask(store: Store, answer: bytes) -> tuple[int, str]:
    """Runs `vitscale clean` on a terminal and answers its question."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vitscale", "clean", "--store", str(store.root)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            said += part
            if b"[y/N] " in part:
                os.write(ours, answer)
    os.close(ours)
    return process.wait(60), said.decode()


def test_on_a_terminal_clean_asks(store: Store) -> None:
    status, said = ask(store, b"\n")
    assert (status, "nothing deleted" in said) == (1, True)
    assert set(store.trial_ids()) == ids_of(study(2))
    status, said = ask(store, b"y\n")
    assert status == 0 and "deleted 2 trials" in said
    assert set(store.trial_ids()) == ids_of(study(1))


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_with_a_plan_that_cannot_be_read_nothing_is_deleted(store: Store, how: str) -> None:
    put(store, study(1, name="other"))
    other = store.study("other-demo")
    if how == "damaged":
        other.write("plan.json", b"{")
    else:
        with store.drive("other-demo"):
            store.report("other-demo").write("report.html", b"")
        other.remove("plan.json")
    for command in (["status", "--orphans"], ["clean", "--yes"]):
        refused = vitscale(store, *command)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert "other-demo" in refused.stderr and "plan" in refused.stderr
    assert set(store.trial_ids()) == ids_of(study(2))


def test_what_a_living_driver_has_claimed_is_kept(store: Store) -> None:
    orphan, other = sorted(ids_of(study(2)) - ids_of(study(1)))
    with store.drive("tiny-demo") as attempt:
        store.claim(orphan, {}, "tiny-demo", attempt)
        said = vitscale(store, "status", "--orphans").stdout
        (line,) = (line for line in said.splitlines() if orphan in line)
        assert "running in tiny-demo" in line
        assert vitscale(store, "clean", "--yes").returncode == 0
        assert store.is_done(orphan) and not store.trial(other).exists()
    assert vitscale(store, "clean", "--yes").returncode == 0  # the driver is gone
    assert not store.trial(orphan).exists()


def test_no_trial_goes_while_a_study_starts_and_none_that_it_has_planned_since(
    store: Store,
) -> None:
    waste = survey(store)
    with store.planning(), store.planning():  # starts share it
        assert "no study may start while trials" in vitscale(store, "clean", "--yes").stderr
    put(store, study(2))  # between the question and the answer
    assert clean(store, waste) == Waste((), ())
    assert set(store.trial_ids()) == ids_of(study(2))


def test_a_start_waits_until_clean_has_taken_its_trials_out(store: Store) -> None:
    code = (
        "import sys; from vitscale.record.store import Store\n"
        "with Store.at(sys.argv[1]).planning(): print('planned')"
    )
    with store.cleaning():
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(store.root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(2)
        assert process.poll() is None
    assert process.communicate(timeout=60)[0] == "planned\n"


def test_a_clean_that_is_killed_leaves_no_half_trial(store: Store) -> None:
    """Killed when the first file of a trial is deleted: the trial is whole, or no trial."""
    code = (
        "import os, shutil, signal, sys\n"
        "def kill(path): os.unlink(path / 'rows.parquet'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.rmtree = kill\n"
        "from vitscale.__main__ import main\n"
        "sys.argv[0] = 'vitscale'; main()"
    )
    command = [sys.executable, "-c", code, "clean", "--yes", "--store", str(store.root)]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    assert set(store.trial_ids()) == ids_of(study(1))
    left = survey(store)
    assert [item.kind for item in left.leftovers] == ["deleted", "deleted"] and not left.orphans
    assert vitscale(store, "clean", "--yes").returncode == 0
    assert {path.name for path in (store.root / "trials").iterdir()} == ids_of(study(1))


def test_scratch_and_damaged_files_go_but_not_what_is_being_written(store: Store) -> None:
    planned = sorted(ids_of(study(1)))
    folder = store.root / "trials" / planned[0]
    gone = [folder / ".rows.parquet.0a1b2c3d.tmp", folder / "rows.parquet.damaged-1700000000"]
    fresh = folder / ".checkpoint-1.pt.0a1b2c3d.tmp"
    mine = folder / "notes.txt"
    unrestored = store.root / "trials" / planned[1] / "rows.parquet.damaged-1700000000"
    (store.root / "trials" / planned[1] / "rows.parquet").unlink()
    for path in (*gone, fresh, mine, unrestored):
        path.write_bytes(b"abc")
    for path in (*gone, mine, unrestored):
        os.utime(path, (1e9, 1e9))
    assert vitscale(store, "clean", "--yes").returncode == 0
    assert not any(path.exists() for path in gone)
    assert fresh.exists() and mine.exists() and unrestored.exists()


# One trial


def test_show_finds_a_trial_by_prefix_and_by_place(store: Store) -> None:
    trial = next(trial for trial in study(1).trials if trial.arm.name == "conv")
    trial_id = trial.config.id
    by_id = vitscale(store, "show", trial_id[:6], "--json")
    assert by_id.returncode == 0, by_id.stderr
    (told,) = json.loads(by_id.stdout)["trials"]
    for place in ("tiny-demo:conv", "tiny-demo:conv:0", "tiny-demo:conv:000"):
        assert json.loads(vitscale(store, "show", place, "--json").stdout)["trials"] == [told]
    row = store.read(trial_id).rows[-1]
    folder = store.root / "trials" / trial_id
    assert (told["trial_id"], told["status"]) == (trial_id, "finished")
    assert told["config"] == trial.config.non_default()
    assert told["last_row"] == row
    assert [(p["study"], p["arm"], p["point"]) for p in told["planned_by"]] == [
        ("tiny-demo", "conv", 0)
    ]
    assert {file["path"] for file in told["files"]} == {str(path) for path in folder.iterdir()}
    assert told["provenance"]["commit"] == store.read(trial_id).facts["commit"]
    assert (folder / told["checkpoint"]["file"]).exists()
    text = vitscale(store, "show", trial_id).stdout
    assert f"{trial_id}  finished" in text and f"lr = {trial.config.lr}" in text
    assert "tiny-demo: conv, 000" in text and str(folder / "rows.parquet") in text


def test_show_of_an_arm_lists_its_trials_and_of_none_says_which_there_are(store: Store) -> None:
    put(store, study(2))
    ids = [trial.config.id for trial in study(2).trials if trial.arm.name == "conv"]
    lines = vitscale(store, "show", "tiny-demo:conv").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        [trial_id, f"{i:03d}", "finished"] for i, trial_id in enumerate(ids)
    ]
    for name, law in (
        ("", "unique prefix"),
        ("zzz", "unique prefix"),
        ("tiny-demo", "its arms are: patchify, conv, diverging"),
        ("tiny-demo:no", "an arm must be among (patchify, conv, diverging)"),
        ("tiny-demo:conv:7", "a point of conv must be among (000, 001)"),
        ("no:conv", "a study must be in the store"),
    ):
        refused = vitscale(store, "show", name)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert law in refused.stderr


# Links


def entry(arm: str, trial_id: str, point: int | None = 0, **config: object) -> dict[str, object]:
    return {"id": trial_id, "arm": arm, "point": point, "config": config}


def test_names_of_links_are_safe_and_tell_all_trials_apart() -> None:
    arms = ["a/b", "a:b", "..", ".hidden", "ViT_C 1GF", "vit_c 1gf", "ä" * 200, "ä" * 199 + "b"]
    trials = [entry(arm, f"{i:012x}") for i, arm in enumerate(arms)]
    trials += [entry("r", f"{i:012x}", None, seed=980 + i) for i in range(20, 22)]
    trials += [entry("twice", f"{i:012x}", 3) for i in range(30, 32)]
    paths = link_paths(trials)
    assert len({path.casefold() for path in paths.values()}) == len(trials)
    for path in paths.values():
        arm, name = path.split("/")
        assert not arm.startswith(".") and len(arm.encode()) < 255 and name
    assert paths[f"{20:012x}"] == "r/reference seed 1000"
    assert paths[f"{30:012x}"].startswith("twice/003 ")


def test_links_follow_the_plan_and_spare_what_is_no_link(store: Store) -> None:
    folder = store.root / "studies" / "tiny-demo" / "trials"
    update_links(store, "tiny-demo", to_json(study(2))["trials"])
    for trial in study(2).trials:
        rows = folder / trial.arm.name / f"{trial.point:03d}" / "rows.parquet"
        assert rows.resolve() == store.trial(trial.config.id).path / "rows.parquet"
        assert rows.exists()
    (folder / "mine.txt").write_text("mine")
    renamed = [
        entry("new name", trial.config.id, trial.point)
        for trial in study(2).trials
        if trial.arm.name == "conv"
    ]
    update_links(store, "tiny-demo", renamed)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert found == {"mine.txt", "new name", "new name/000", "new name/001"}
    assert len(store.trial_ids()) == len(ids_of(study(2)))


def test_links_that_are_right_are_looked_at_once_and_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = to_json(study(2))["trials"]
    update_links(store, "tiny-demo", entries)
    links, read, see = store.study("tiny-demo").within("trials").links(), [], os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: read.append(path) or see(path))
    for name in ("symlink", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, None)  # any call fails
    update_links(store, "tiny-demo", entries)
    assert len(read) == len(links) == len(entries)


def test_where_links_are_impossible_nothing_else_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links on this file system")

    monkeypatch.setattr(os, "symlink", refuse)
    update_links(store, "tiny-demo", to_json(study(2))["trials"])
    assert len(store.trial_ids()) == len(ids_of(study(2)))


# Through a start


def recode(store: Store, trial_id: str, commit: str) -> None:
    """Lets a trial be one that another commit trained."""
    outcome = store.read(trial_id)
    facts = {**outcome.facts, "commit": commit, "sources": f"of {commit}"}
    content = encode(trial_id, dataclasses.replace(outcome, facts=facts))
    store.trial(trial_id).write("rows.parquet", content)


@pytest.mark.slow
def test_a_start_says_which_code_trained_and_trains_again_when_asked(tmp_path: Path) -> None:
    script = Script(tmp_path, is_lean=True)
    options = ("--num", "1", "--epochs", "2")
    first = script.run(*options)
    assert first.returncode == 0, first.stdout
    store = script.store()
    links = store.root / "studies" / "tiny-demo" / "trials"
    ids = [trial.config.id for trial in study(1).trials]
    linked = sorted(str(path.relative_to(links)) for path in links.glob("*/*"))
    assert linked == ["conv/000", "diverging/000", "patchify/000"]
    for trial_id, commit in zip(ids, OTHER_CODE, strict=False):
        recode(store, trial_id, commit)
    said = "1 by 0123456789ab, 1 by fedcba987654 with uncommitted changes"
    again = script.run(*options)
    assert "2 of 3 done trials were trained by other code than this (" in again.stdout
    assert f"{said}; they are kept (--retrain-other-code" in again.stdout
    report = vitscale(store, "report", "tiny-demo").stdout
    lines = [line for line in report.splitlines() if "trained by different code" in line]
    assert len(lines) == 1 and "1 by 0123456789ab" in lines[0]

    before = {i: (store.trial(i).path / "rows.parquet").read_bytes() for i in ids}
    uri = script.environment["MLFLOW_TRACKING_URI"]
    old_runs = runs_of_experiment(uri, "tiny-demo", "trial")
    retrained = script.run(*options, "--retrain-other-code")
    assert retrained.returncode == 0 and f"{said}; moved to {store.root}" in retrained.stdout
    for trial_id in ids[:2]:
        assert store.read(trial_id).facts["commit"] not in OTHER_CODE
        (aside,) = (store.root / "trials").glob(f"{trial_id}.set-aside-*")
        assert (aside / "rows.parquet").read_bytes() == before[trial_id]
    assert (store.trial(ids[2]).path / "rows.parquet").read_bytes() == before[ids[2]]
    new_runs = runs_of_experiment(uri, "tiny-demo", "trial")
    same = [i for i in ids if old_runs[i].info.run_id == new_runs[i].info.run_id]
    assert same == ids[2:]  # the others show the rows of the new training
    for trial_id in ids:
        began = store.read(trial_id).rows[0]["unix_s"]
        assert float(new_runs[trial_id].data.tags["vitscale.began_s"]) == began
    assert vitscale(store, "clean", "--yes").returncode == 0
    assert len(list((store.root / "trials").glob("*.set-aside-*"))) == 2
    assert vitscale(store, "clean", "--yes", "--set-aside").returncode == 0
    assert {path.name for path in (store.root / "trials").iterdir()} == set(ids)


@pytest.mark.parametrize("option", ["--plan", "--report"])
def test_retraining_is_refused_where_nothing_is_trained(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            load_script(TINY).study,
            [option, "--retrain-other-code", "--store", str(tmp_path / "s")],
        )
    assert ended.value.code == 2 and f"must come without {option}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_renamed_arm_has_its_new_name_in_mlflow_also_where_nothing_was_trained_since(
    tmp_path: Path,
) -> None:
    """One trial is done, one was interrupted before its first row when the arm was renamed."""
    from vitscale.record.mlflow.view import View, synchronize
    from vitscale.record.outcome import Outcome, Status

    script = Script(tmp_path, is_lean=True)
    uri, store, old = script.environment["MLFLOW_TRACKING_URI"], script.store(), study(1)
    train(store, old, {old.trials[0].config.id})
    done = store.read(old.trials[0].config.id)
    view = View(old, uri, store)
    view.runs.show(old.trials[0].config.id, done)
    view.runs.show(old.trials[1].config.id, Outcome(Status.RUNNING))
    view.runs.interrupt()
    view.summarize({name: {"n": 1.0} for name in old.arms}, None)
    view.save()
    renamed = tuple(dataclasses.replace(trial, arm=f"new {trial.arm.name}") for trial in old.trials)
    new = dataclasses.replace(old, trials=renamed, panels={}, pairs=())
    put(store, new)
    synced = subprocess.run(
        [sys.executable, "-m", "vitscale", "sync", "--store", str(store.root)],
        env=script.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert synced.returncode == 0, synced.stderr
    trials = runs_of_experiment(uri, "tiny-demo", "trial")
    assert len(trials) == 2
    for run in trials.values():
        arm = run.data.tags["vitscale.arm"]
        assert arm in new.arms and run.data.params["arm"] == arm
        assert run.data.tags["mlflow.runName"].startswith(arm)
    again = View(new, uri, store, reread=True)
    assert synchronize(again, {}) == 0
    role = "tags.`vitscale.role` = 'arm'"
    planned = again.experiment.runs(f"{role} and tags.`vitscale.planned` = 'true'")
    assert {run.data.tags["vitscale.arm"] for run in planned} <= set(new.arms)
