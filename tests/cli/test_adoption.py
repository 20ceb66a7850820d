"""Winners of a search: given to studies of one's own, adopted for
a scale where they fit, refused where they do not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, load_script
from support.refusals import refusing

import vitscale
from search_spaces import demo
from vitscale.cli import adoption
from vitscale.cli.adoption import check_adoptable
from vitscale.cli.project import load_script as load_project_script
from vitscale.launch.optuna_search import Rounds
from vitscale.plan.config import TrainConfig
from vitscale.plan.search import Search
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.table import read_trials


def tuned_search(**fields: Any) -> Search:
    """The demo's own search, of two points per arm and one seed, or what `fields` make of it."""
    whole = load_script(ROOT / "studies/tune_lr_wd.py").study("demo", num=2, num_seeds=1)
    return dataclasses.replace(whole, **fields)


def ended(search: Search, store: Store, until: int | None = None) -> Study:
    """The search with an outcome for the first `until`
    trials: the lower the lr, the lower the error.
    """
    rounds = Rounds(search, store)
    rounds.grow({})
    study = rounds.study()
    for trial in study.trials[:until]:
        error = 100 * min(1.0, trial.config.lr)
        row = {
            "epoch": 1.0,
            "train_s": 1.0,
            "unix_s": 0.0,
            search.metric: error,
            search.metric.replace("_ema", ""): error,
        }
        workdir = store.claim(trial.config.id, trial.config.non_default(), search.slug, 1)
        store.finish(workdir, Outcome(Status.FINISHED, (row,)))
    plan = {
        "command": "",
        "script": "tune_lr_wd.py",
        **json.loads(json.dumps(vitscale_json(study))),
    }
    store.study(search.slug).write("plan.json", json.dumps(plan).encode())
    read_trials(study, store)
    return study


def vitscale_json(study: Study) -> dict[str, object]:
    from vitscale.plan.study import to_json

    return to_json(study)


# ---- for a study of one's own


def test_winners_are_values_for_a_study_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arms need no names of models and optimizers, and the scale may be any."""
    search = tuned_search()
    arm = next(iter(search.configs))
    own = dataclasses.replace(
        search,
        name="tune_mine",
        scale="leaves",
        arms={"small": search.configs[arm]},
        spaces={"small": search.spaces[arm.name]},
        panels={},
    )
    store = Store.open(tmp_path / "runs")
    study = ended(own, store)
    best = min((trial.config for trial in study.trials), key=lambda config: config.lr)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITSCALE_STORE", raising=False)
    assert vitscale.winners("tune_mine-leaves") == {"small": {"lr": best.lr, "wd": best.wd}}
    with pytest.raises(ValueError, match=r"an arm of .*\(small\), but got \('smal'\); did you"):
        vitscale.winners("tune_mine-leaves")["smal"]
    assert vitscale.winners("tune_mine-leaves", store=str(store.root)) == vitscale.winners(
        "tune_mine-leaves"
    )


@pytest.mark.parametrize(
    ("slug", "law"),
    [
        ("tune_lr_wd-demo", r"a search must have ended, .*5 trials to do"),
        ("tune-x", "a study must be in the store"),
        ("tune_lr_wd-none", "a study must be in the store"),
    ],
)
def test_winners_of_what_has_not_ended_are_refused_in_a_line(
    slug: str, law: str, tmp_path: Path
) -> None:
    store = Store.open(tmp_path / "runs")
    ended(tuned_search(), store, until=3)
    with pytest.raises(ValueError, match=law) as caught:
        vitscale.winners(
            slug, store=str(store.root) if slug != "tune_lr_wd-none" else str(tmp_path / "none")
        )
    assert "\n" not in str(caught.value)


# ---- for the studies of a scale


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dataset": "fashion", "num_images": 500}, "dataset='fashion' instead of 'digits'"),
        ({"epochs": 3, "warmup_epochs": 1.0}, "epochs=3 instead of 20"),
        ({"width": 96}, "width=96 instead of 48"),
        ({"split_seed": 1}, "split_seed=1 instead of 0"),
        ({"subset_images": 500}, "subset_images=500 instead of 0"),
        ({"eval_split": "val"}, "eval_split='val' instead of 'minival'"),
    ],
)
def test_a_search_of_something_else_is_not_adopted(fields: dict[str, Any], says: str) -> None:
    search = tuned_search()
    study = search.stand_in()
    check_adoptable(study, search)
    if "num_images" in fields:
        fields = {**fields, "minival_images": 100}
    trials = tuple(dataclasses.replace(t, config=t.config.replace(**fields)) for t in study.trials)
    metric = "val_ema_error_pct" if "eval_split" in fields else study.metric
    with refusing(says, "winners('tune_lr_wd-demo')") as caught:
        check_adoptable(dataclasses.replace(study, trials=trials, metric=metric), search)
    assert "\n" not in str(caught.value)


def project(folder: Path) -> Path:
    """A project of the user's: the scripts and search spaces of the repository, to be written."""
    for name in ("studies", "search_spaces"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def adopt(folder: Path, store: Path) -> subprocess.CompletedProcess[str]:
    """`vitscale adopt` in a folder; `search_spaces` of the repository is on the path, as the last
    one, and must not be the one that counts.
    """
    command = [sys.executable, "-m", "vitscale", "adopt", "tune_lr_wd-demo", "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def refused(folder: Path, store: Path, law: str) -> None:
    """Adoption is refused in one line, and no file of the folder changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    result = adopt(folder, store)
    assert result.returncode == 2 and law in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def test_adoption_writes_into_the_project_in_which_it_is_run(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    study = ended(tuned_search(), Store.open(store))
    own = project(tmp_path / "own")
    written, ours = (root / "search_spaces/tuned/demo.json" for root in (own, ROOT))
    before, untouched = written.read_bytes(), ours.read_bytes()
    done = adopt(own, store)
    assert done.returncode == 0, done.stderr
    after = json.loads(written.read_text())
    old = json.loads(before)["winners"]["ViT_P AdamW"]["values"]["lr"]
    assert f"(before: lr {old:g}" in done.stdout and "git checkout" in done.stdout
    assert str(written) in done.stdout and ours.read_bytes() == untouched
    for arm, winner in after["winners"].items():
        assert winner["values"]["lr"] == min(t.config.lr for t in study.trials if t.arm.name == arm)
    told = {
        "dataset": "digits",
        "epochs": 20,
        "eval_split": "minival",
        "split_seed": 0,
        "width": 48,
    }
    assert told.items() <= after["trained"]["ViT_P AdamW"].items()


def test_winners_look_in_the_store_of_the_option_while_the_study_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITSCALE_STORE", str(tmp_path / "mine"))
    seen = []

    def study(num: int = 1) -> Study:
        seen.append(os.environ["VITSCALE_STORE"])
        raise ValueError("no study is needed")

    for arguments in ([], ["--store", str(tmp_path / "own")]):
        with pytest.raises(SystemExit):
            vitscale.main(study, ["--plan", *arguments])
        assert os.environ["VITSCALE_STORE"] == str(tmp_path / "mine")
    assert seen == [str(tmp_path / "mine"), str(tmp_path / "own")]


def test_a_script_that_runs_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "studies" / "runs.py"
    script.parent.mkdir()
    script.write_text("from vitscale import main\n\n\ndef study(): ...\n\n\nmain(study)\n")
    with refusing(script):
        load_project_script(script)


def test_a_folder_that_is_no_project_of_the_search_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    ended(tuned_search(), Store.open(store))
    refused(tmp_path, store, "`vitscale adopt` must be run in a project folder")
    refused(ROOT / "vitscale", store, "`vitscale adopt` must be run in a project folder")


def test_the_project_s_own_scale_is_what_a_search_must_have_trained(tmp_path: Path) -> None:
    """A project that was edited since then is compared, and not the files that it came from."""
    store = tmp_path / "runs"
    ended(tuned_search(), Store.open(store))
    own = project(tmp_path / "own")
    script = own / "studies/tune_lr_wd.py"
    script.write_text(script.read_text().replace('"epochs": 20', '"epochs": 6'))
    refused(own, store, "epochs=20 instead of 6")


def test_a_store_cannot_name_a_script_outside_of_the_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a store says is text: were it a path, `adopt` would run whatever file it names."""
    store = Store.open(tmp_path / "runs")
    ended(tuned_search(), store)
    own = project(tmp_path / "own")
    ran = own / "ran"
    (own / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(own)
    folder = store.study("tune_lr_wd-demo")
    plan = json.loads(folder.read("plan.json"))
    for name in ("../evil.py", str(own / "evil.py"), "", 7):
        folder.write("plan.json", json.dumps({**plan, "script": name}).encode())
        with refusing("folder=", "script="):
            adoption.adopt(str(store.root), "tune_lr_wd-demo")
    assert not ran.exists()


def test_what_is_no_search_is_called_so_wherever_it_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not sent to `vitscale.winners`, which refuses it, too."""
    store = Store.open(tmp_path / "runs")
    study = load_script(ROOT / "studies/training_length.py").study("demo")
    plan = {"command": "", "script": "training_length.py", **vitscale_json(study)}
    store.study(study.slug).write("plan.json", json.dumps(plan).encode())
    monkeypatch.chdir(tmp_path)
    with refusing(repr(study.slug)) as caught:
        adoption.adopt(str(store.root), study.slug)
    assert "vitscale.winners" not in str(caught.value)


def test_a_search_whose_winners_no_study_reads_is_not_adopted(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    ended(tuned_search(), Store.open(store))
    own = project(tmp_path / "own")
    script = own / "studies/tune_lr_wd.py"
    text = script.read_text()
    line = 'winners_file="search_spaces/tuned/demo.json"'
    assert text.count(line) == 1
    script.write_text(text.replace(line, 'winners_file=""'))
    refused(own, store, "a search must have a winners_file for other studies to read")


@pytest.mark.parametrize("name", ["/tmp/x.json", "../x.json", "a/../../x.json", "x.py"])
def test_a_winners_file_is_a_json_within_the_project(name: str) -> None:
    with refusing(f"winners_file={name!r}"):
        tuned_search(winners_file=name)


def test_an_adopted_file_records_what_its_winners_trained() -> None:
    """Fields, values and seeds give the ids of the trials that are named as theirs."""
    from search_spaces.winners import tuned

    found = tuned("demo")
    assert (
        found is not None
        and set(found["trained"]) == set(found["winners"])
        and len(found["winners"]) == 4
    )
    for arm, winner in found["winners"].items():
        base = TrainConfig(**found["trained"][arm])
        assert [
            base.replace(**winner["values"], seed=seed).id for seed in winner["seeds"]
        ] == winner["trial_ids"]
    assert {model for model, _ in demo.OPTIMA} == set(demo.MODELS)
