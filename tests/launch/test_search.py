"""Searches: rounds that follow from outcomes alone, refusals,
and the same through Ray, killed and started again.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from conftest import ROOT, Script, kill_family, wait_for
from support.mlflow_runs import mlflow_statuses, runs_of_experiment
from support.refusals import refusing
from support.scripts import SEARCH, make_search, shortened

from search_spaces.winners import good_values, in_words, optima
from vitscale.analysis.results import Results
from vitscale.analysis.search.files import search_result
from vitscale.analysis.search.words import design_text
from vitscale.launch.optuna_search import Rounds, Rungs, check_ended
from vitscale.launch.resources import Event, Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.plan.search import Search
from vitscale.plan.study import from_json, to_json
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.table import outcomes, read_trials


def train_all(search: Search, store: Store, only: slice = slice(None)) -> None:
    """Trains what the search has asked for and is missing, without Ray."""
    todo = [t for t in Rounds(search, store).study().trials if not store.is_done(t.config.id)]
    for trial in todo[only]:
        fields = trial.config.non_default()
        events = list(
            train_trial(trial.config.id, fields, store, search.slug, 1, Resources(cpus_per_trial=1))
        )
        assert events[-1].status == "finished"


def grow(search: Search, store: Store) -> bool:
    rounds = Rounds(search, store)
    asked = any(rounds.points.values())
    return rounds.grow(read_trials(rounds.study(), store) if asked else {})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, Store]:
    """A search in one go: 2 rounds of 2 points for each of 2 arms, of 1 epoch."""
    search, store = make_search(epochs=1), Store.open(tmp_path_factory.mktemp("search") / "runs")
    while grow(search, store):
        train_all(search, store)
    return search, store


# ---- rounds


def test_an_interrupted_search_asks_the_same_points(
    searched: tuple[Search, Store], tmp_path: Path
) -> None:
    search, store = searched
    other = Store.open(tmp_path / "runs")
    # stops in the middle of rounds, trains in another order
    for part in (slice(0, 3), slice(2, 5), slice(None)) * 2:
        grow(search, other)
        train_all(search, other, part)
    assert not grow(search, other)
    assert other.asked(search.slug)["points"] == store.asked(search.slug)["points"]
    study = Rounds(search, store).study()
    assert len(study.trials) == 2 * 4 * 2
    for trial in study.trials:
        assert (
            other.read(trial.config.id).rows[-1]["minival_ema_error_pct"]
            == (store.read(trial.config.id).rows[-1]["minival_ema_error_pct"])
        )


def test_nothing_is_asked_before_the_round_has_its_outcomes(tmp_path: Path) -> None:
    search, store = make_search(epochs=1), Store.open(tmp_path / "runs")
    assert grow(search, store)
    before = store.asked(search.slug)["points"]
    assert not grow(search, store)
    train_all(search, store, slice(0, 1))
    assert not grow(search, store)
    assert store.asked(search.slug)["points"] == before


def test_later_rounds_follow_from_the_outcomes_of_earlier_ones(
    searched: tuple[Search, Store], tmp_path: Path
) -> None:
    """The same first round with other errors is followed by another second one."""
    search, store = searched
    other = Store.open(tmp_path / "runs")
    grow(search, other)
    first = Rounds(search, other).study()
    for trial in first.trials:
        outcome = store.read(trial.config.id)
        turned = tuple(
            {**row, "minival_ema_error_pct": 100 - row["minival_ema_error_pct"]}
            for row in outcome.rows
        )
        other.finish(
            other.claim(trial.config.id, trial.config.non_default(), search.slug, 1),
            replace(outcome, rows=turned),
        )
    assert grow(search, other)
    mine, theirs = (s.asked(search.slug)["points"]["P AdamW"] for s in (other, store))
    assert mine[:2] == theirs[:2] and mine[2:] != theirs[2:]


def test_more_points_extend_a_search_and_nothing_else_may_change(
    searched: tuple[Search, Store],
) -> None:
    search, store = searched
    longer = Rounds(make_search(epochs=1, num=6), store)
    assert longer.points == store.asked(search.slug)["points"]
    shorter = Rounds(make_search(epochs=1, num=3), store).study()
    assert len(shorter.trials) == 2 * 3 * 2
    for fields, told in (
        ({"per_round": 3}, "per_round was 2, is 3"),
        ({"num_seeds": 1}, "seeds"),
        ({"sampler": "gp"}, "sampler"),
        ({}, "arms"),
    ):
        with refusing(told):
            Rounds(make_search(**{"epochs": 1 if fields else 2, **fields}), store)


def test_points_that_give_no_config_are_never_recorded(tmp_path: Path) -> None:
    """Of widths and heads a third fit; every proposal that is kept does, and so does every
    stand-in; the plan of a search that has begun has its points, and stand-ins only of others. A
    space in which one of 20 fits is refused with a law.
    """
    space: dict[str, Any] = {
        "width": optuna.distributions.IntDistribution(16, 64, step=4),
        "heads": optuna.distributions.CategoricalDistribution([2, 4, 8]),
    }
    search = Search(
        name="fits",
        scale="demo",
        question="?",
        source="ours",
        arms={"a": TrainConfig(eval_split="minival")},
        spaces={"a": space},
        num=12,
        per_round=12,
        sampler_seed=17,
        metric="minival_error_pct",
    )
    store = Store.open(tmp_path)
    assert len(search.stand_in().trials) == 12
    with store.drive(search.slug):
        assert Rounds(search, store).grow({})
    points = store.asked(search.slug)["points"]["a"]
    assert len(points) == 12 and all(p["width"] % p["heads"] == 0 for p in points)
    plan = Rounds(dataclasses.replace(search, num=16), store).plan()
    shapes = [(trial.config.width, trial.config.heads) for trial in plan.trials]
    assert shapes[:12] == [(p["width"], p["heads"]) for p in points] and len(set(shapes)) == 16
    never = dataclasses.replace(
        search, spaces={"a": {"width": optuna.distributions.IntDistribution(17, 63, step=2)}}
    )
    with refusing("0 of 240", "arm='a'", "heads=4"):
        never.stand_in()


def test_a_gaussian_process_proposes_too(searched: tuple[Search, Store], tmp_path: Path) -> None:
    search, other = make_search(epochs=1, sampler="gp"), Store(tmp_path / "runs")
    shutil.copytree(searched[1].root / "trials", other.root / "trials")
    Store.open(other.root)
    while grow(search, other):
        train_all(search, other)
    (low, high), points = (1e-4, 3e-2), other.asked(search.slug)["points"]["C AdamW"]
    assert len(points) == 4 and all(low <= point["lr"] <= high for point in points)


def test_random_points_follow_from_no_outcome(tmp_path: Path) -> None:
    proposed = []
    for slope in (1000, -1000):
        search, store = make_search(epochs=1, sampler="random"), Store.open(tmp_path / str(slope))
        while grow(search, store):
            for trial in Rounds(search, store).study().trials:
                if not store.is_done(trial.config.id):
                    row = dict.fromkeys(trial.config.columns, 50.0 + slope * trial.config.lr)
                    row |= {"epoch": 1, "train_s": 1.0, "unix_s": 1e9}
                    fields = trial.config.non_default()
                    workdir = store.claim(trial.config.id, fields, search.slug, 1)
                    store.finish(workdir, Outcome(Status.FINISHED, (row,), {}))
        proposed.append(store.asked(search.slug)["points"])
    assert proposed[0] == proposed[1] and len(proposed[0]["C AdamW"]) == 4
    assert search.info.describe().startswith("random points, 2 points at a time")
    assert "Points are a random sample of the space" in design_text(Rounds(search, store).study())


def test_a_round_with_a_failed_trial_waits_for_the_next_try(tmp_path: Path) -> None:
    search, store = make_search(epochs=1), Store.open(tmp_path / "runs")
    grow(search, store)
    first = Rounds(search, store).study().trials[0].config
    store.fail(store.trial(first.id), "OSError: no space", "")
    train_all(search, store, slice(1, None))
    assert not grow(search, store)
    train_all(search, store)
    assert grow(search, store)


def test_how_far_a_search_goes_changes_no_round(
    searched: tuple[Search, Store], tmp_path: Path
) -> None:
    """Three points, then four: the same as four at once, though the second round is of two."""
    other = Store.open(tmp_path / "runs")
    shutil.copytree(searched[1].root / "trials", other.root / "trials", dirs_exist_ok=True)
    for num in (3, 4):
        search = make_search(epochs=1, num=num)
        while grow(search, other):
            train_all(search, other)
    assert other.asked(search.slug)["points"] == searched[1].asked(search.slug)["points"]


def test_proposals_are_new_and_a_small_space_ends(tmp_path: Path) -> None:
    search = make_search(epochs=1, num_seeds=1, num=8, per_round=4)
    small = {"width": optuna.distributions.CategoricalDistribution((16, 32, 48))}
    search = dataclasses.replace(search, spaces=dict.fromkeys(search.spaces, small))
    store = Store.open(tmp_path / "runs")
    assert grow(search, store)
    points = store.asked(search.slug)["points"]["P AdamW"]
    assert sorted(point["width"] for point in points) == [16, 32, 48]
    train_all(search, store)
    assert not grow(search, store)
    check_ended(Rounds(search, store).study(), store)


# ---- laws


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"num": 0}, "num=0"),
        ({"per_round": 0}, "per_round=0"),
        ({"num_seeds": 0}, "seeds=()"),
        ({"sampler": "grid"}, "sampler='grid'"),
        ({"asha": True}, "num_seeds=2, asha=True"),
    ],
)
def test_a_search_refuses(fields: dict[str, Any], value: str) -> None:
    with refusing(value):
        make_search(**fields)


def test_a_search_is_not_scored_on_what_studies_report() -> None:
    with refusing("metric='val_ema_error_pct'"):
        dataclasses.replace(make_search(), metric="val_ema_error_pct")


def test_a_search_has_no_distribution(searched: tuple[Search, Store]) -> None:
    from vitscale.analysis.kinds import check

    study = Rounds(*searched).study()
    check(study)
    for fields in ({"figures": ("edf_panels",)}, {"tables": ("good_range",)}):
        with pytest.raises(ValueError, match="search") as caught:
            check(dataclasses.replace(study, **fields))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", [("--asha",), ("--sampler", "tpe")])
@pytest.mark.parametrize(
    "name", ["lr_wd_edf", "seed_distribution", "optimizer_stability", "depth_vs_width"]
)
def test_a_study_refuses_what_is_adaptive_with_the_reason(
    name: str, option: tuple[str, ...], tmp_path: Path
) -> None:
    result = Script(tmp_path, ROOT / "studies" / f"{name}.py").run(*option, "--plan")
    assert result.returncode == 2
    (line,) = result.stdout.splitlines()
    assert "must be fixed beforehand" in line and "invalid" in line and option[0].strip("-") in line


def test_the_study_of_a_search_goes_through_json(searched: tuple[Search, Store]) -> None:
    study = Rounds(*searched).study()
    again = from_json(json.loads(json.dumps(to_json(study))))
    assert again == study and again.search and again.search.spaces["P AdamW"].keys() == {"lr", "wd"}


# ---- ASHA


def test_asha_stops_what_is_first_pruned_a_rung(searched: tuple[Search, Store]) -> None:
    """9 epochs: rungs at epochs 1, 3; of the trainings at a rung
    only the best third goes on (Li et al. 2020).
    """
    _, store = searched
    search = make_search(epochs=9, num_seeds=1, num=6, asha=True)
    points = {arm: [{"lr": 1e-3 * (i + 1), "wd": 0.1} for i in range(6)] for arm in search.spaces}
    study = search.study(points)
    ids = [trial.config.id for trial in study.trials if trial.arm.name == "P AdamW"]
    rungs = Rungs(search, study, store, {})

    def rows(*errors: float) -> tuple[dict[str, float], ...]:
        return tuple(
            {"epoch": i + 1.0, "minival_ema_error_pct": error} for i, error in enumerate(errors)
        )

    # the first at a rung has nobody to be behind
    assert rungs.first_pruned(ids[0], rows(50.0)) is None
    for trial_id, error in zip(ids[1:4], (60.0, 70.0, 55.0), strict=True):
        assert rungs.first_pruned(trial_id, rows(error)) == {
            "epoch": 1.0,
            "minival_ema_error_pct": error,
        }
    assert rungs.first_pruned(ids[4], rows(40.0)) is None
    assert rungs.first_pruned(ids[4], rows(40.0)) is None  # told again: nothing new
    assert rungs.first_pruned(ids[4], rows(40.0, 39.0, 38.0)) is None
    # the last epoch is no rung
    assert rungs.first_pruned(ids[4], rows(40.0, 39.0, 38.0, *[38.0] * 5, 99.0)) is None
    assert rungs.first_pruned(ids[0], rows(50.0, 49.0, 48.0)) == {
        "epoch": 3.0,
        "minival_ema_error_pct": 48.0,
    }
    again = Rungs(
        search, study, store, {ids[1]: list(rows(60.0)), ids[0]: list(rows(50.0, 49.0, 48.0))}
    )
    assert again.first_pruned(ids[5], rows(65.0)) is not None  # rungs are rebuilt from the ledger


def test_what_was_stopped_stays_stopped(searched: tuple[Search, Store], tmp_path: Path) -> None:
    search, store = (
        make_search(epochs=9, num_seeds=1, num=4, per_round=4, asha=True),
        Store.open(tmp_path / "runs"),
    )
    grow(search, store)
    rounds = Rounds(search, store)
    ids = [trial.config.id for trial in rounds.study().trials if trial.arm.name == "P AdamW"]

    def news(trial_id: str, error: float) -> Event:
        return Event(trial_id, Status.RUNNING, ({"epoch": 1.0, "minival_ema_error_pct": error},))

    assert [
        rounds.should_stop(news(i, error))
        for i, error in zip(ids, (40.0, 50.0, 60.0, 30.0), strict=True)
    ] == [
        False,
        True,
        True,
        False,
    ]
    read = read_trials(Rounds(search, store).study(), store)
    assert [read[i].status for i in ids] == ["missing", "stopped", "stopped", "missing"]
    table = outcomes(Rounds(search, store).study(), read).set_index("trial_id")
    assert table.loc[ids[1], "value"] == 50.0 and table.loc[ids[1], "epoch"] == 1.0


def test_asha_judges_the_trials_of_later_rounds(tmp_path: Path) -> None:
    search, store = (
        make_search(epochs=9, num_seeds=1, num=4, asha=True),
        Store.open(tmp_path / "runs"),
    )
    grow(search, store)
    rounds = Rounds(search, store)
    for trial in rounds.study().trials:
        rows = tuple(
            {"epoch": epoch, "minival_ema_error_pct": 40.0, "unix_s": 0.0}
            for epoch in (1.0, 3.0, 9.0)
        )
        rounds.should_stop(Event(trial.config.id, Status.FINISHED, rows))
        workdir = store.claim(trial.config.id, trial.config.non_default(), search.slug, 1)
        store.finish(workdir, Outcome(Status.FINISHED, tuple(rows)))
    assert rounds.grow(read_trials(rounds.study(), store))
    new = next(trial.config.id for trial in rounds.study().trials if trial.point == 2)
    assert rounds.should_stop(
        Event(new, Status.RUNNING, ({"epoch": 1.0, "minival_ema_error_pct": 80.0},))
    )


# ---- winners


def test_winners_are_data_that_studies_can_read(searched: tuple[Search, Store]) -> None:
    search, store = searched
    study = Rounds(search, store).study()
    table = outcomes(study, read_trials(study, store))
    result = json.loads(json.dumps(search_result(Results(study, table))))
    assert result["search"] == "tiny_search-demo" and result["epochs"] == 1 and result["machines"]
    best = table.groupby(["arm", "lr", "wd"])["value"].mean()
    for arm, key in (("P AdamW", ("P", "adamw")), ("C AdamW", ("C", "adamw"))):
        lr, wd = optima(result)[key]
        assert (
            best[arm, lr, wd] == best[arm].min() == pytest.approx(result["winners"][arm]["value"])
        )
    assert "4 points for each model and optimizer, 2 seeds each, 1 epochs" in in_words(result)
    check_ended(study, store)


def test_good_values_are_geometric_means_to_two_digits() -> None:
    winners = {("P", "adamw"): (1e-3, 0.1), ("C", "adamw"): (4e-3, 0.4), ("P", "sgd"): (0.1, 1e-4)}
    assert good_values(winners, "adamw") == (0.002, 0.2)
    assert good_values(winners, "sgd") == (0.1, 1e-4)


def test_an_unfinished_search_has_no_winner(tmp_path: Path) -> None:
    search, store = make_search(epochs=1), Store.open(tmp_path / "runs")
    grow(search, store)
    with refusing(search.slug, "2 of 4 points asked, 8 trials to do"):
        check_ended(Rounds(search, store).study(), store)


# ---- through Ray


def plan_of(script: Script, slug: str = "tiny_search-demo") -> dict[str, Any]:
    return json.loads((script.folder / "runs/studies" / slug / "plan.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_survives_kills(tmp_path: Path) -> None:
    """Killed three times and finished, it has asked and found what an uninterrupted one does.

    Killed at random moments after so many trials have ended, so on a machine of any speed.
    """
    rng, arguments = (
        random.Random(20261121),
        ("--num", "4", "--epochs", "6", "--checkpoint-every-s", "0.3", "--max-concurrent", "2"),
    )
    places = [tmp_path / name for name in ("killed", "whole")]
    for place in places:
        place.mkdir()
    killed, whole = scripts = [Script(place, SEARCH, is_lean=True) for place in places]

    def ended() -> int:
        return len(list(places[0].glob("runs/trials/*/rows.parquet")))

    for least, whole_family in ((1, False), (5, True), (9, False)):  # of 16 trials
        process = killed.start(*arguments)
        wait_for(lambda: ended() >= least, 300, f"{least} ended trials")  # noqa: B023
        time.sleep(rng.uniform(0, 1))
        assert process.poll() is None, (places[0] / "log.txt").read_text()
        kill_family(process.pid) if whole_family else process.kill()
        process.wait()
    for script in scripts:
        # one at a time here and two before: what is asked does not depend on it
        result = script.run(*arguments, "--max-concurrent", "1")
        assert result.returncode == 0, result.stdout
    a, b = (script.store().asked("tiny_search-demo") for script in scripts)
    assert a == b and [len(points) for points in a["points"].values()] == [4, 4]
    tables = [
        pd.read_parquet(place / "runs/studies/tiny_search-demo/report/trials.parquet")
        for place in places
    ]
    assert len(tables[0]) == 2 * 4 * 2 and set(tables[0]["status"]) == {"finished"}
    columns = ["trial_id", "lr", "wd", "seed", "value", "epoch"]
    pd.testing.assert_frame_equal(*(table[columns] for table in tables))
    assert plan_of(killed)["trials"] == plan_of(whole)["trials"]
    children = runs_of_experiment(f"sqlite:///{places[0]}/mlflow.db", "tiny_search-demo", "trial")
    assert set(children) == set(tables[0]["trial_id"])
    opens_in_optuna(places[0], tables[0])


def opens_in_optuna(place: Path, table: pd.DataFrame) -> None:
    """Optuna, in a process of its own, finds each arm with its values."""
    uri = f"sqlite:///{place}/runs/studies/tiny_search-demo/report/optuna.db"
    code = (
        "import json, sys, optuna\n"
        "studies = {s: optuna.load_study(study_name=s, storage=sys.argv[1])"
        " for s in optuna.get_all_study_names(sys.argv[1])}\n"
        "print(json.dumps({n: [t.value for t in s.trials] for n, s in studies.items()}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, uri], capture_output=True, text=True, check=True
    ).stdout
    means = table.groupby(["arm", "point"])["value"].mean()
    values = json.loads(out.splitlines()[-1])
    assert len(values) == 2
    for name, shown in values.items():
        (arm,) = (arm for arm in ("P AdamW", "C AdamW") if arm in name)
        assert shown == pytest.approx(means[arm].tolist())


def adopted(place: Path, copy: Path, table: pd.DataFrame) -> None:
    """`vitscale adopt` writes the winners where the studies of a project read them."""
    shutil.copytree(ROOT / "search_spaces", copy / "search_spaces")
    shutil.copytree(ROOT / "studies", copy / "studies")
    script = copy / "studies/tune_lr_wd.py"
    shorter = '"epochs": 2, "warmup_epochs": 1.0'  # as the search was
    script.write_text(script.read_text().replace('"epochs": 20', shorter))
    store = str(place / "runs")
    command = [sys.executable, "-m", "vitscale", "adopt", "tune_lr_wd-demo", "--store", store]
    result = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    written = json.loads((copy / "search_spaces/tuned/demo.json").read_text())
    means = table.groupby(["arm", "lr", "wd"])["value"].mean()
    for arm, winner in written["winners"].items():
        assert means[(arm, *winner["values"].values())] == means[arm].min()


@pytest.mark.slow
def test_the_search_of_the_demo_runs_shortened(tmp_path: Path) -> None:
    shorter = {"epochs": 2, "warmup_epochs": 1.0, "eval_split": "minival"}
    script = shortened(tmp_path, "tune_lr_wd", tuning=shorter)
    result = script.run("--num", "5", "--num-seeds", "1")
    assert result.returncode == 0 and "20 finished" in result.stdout, result.stdout
    report = tmp_path / "runs/studies/tune_lr_wd-demo/report"
    for name in ("search_history", "search_slices", "search_contour"):
        assert (report / f"{name}.png").stat().st_size > 10_000
    table = pd.read_parquet(report / "trials.parquet")
    best = pd.read_csv(report / "search_best.csv").set_index(["arm", "rank"])["mean"]
    for arm, errors in table.groupby("arm")["value"]:
        assert best[arm, 1] == errors.min()
    assert mlflow_statuses(script, "tune_lr_wd-demo") == ["FINISHED"] * 20
    adopted(tmp_path, tmp_path / "copy", table)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_with_asha_stops_trainings_and_remembers(tmp_path: Path) -> None:
    script = Script(tmp_path, SEARCH, is_lean=True)
    arguments = ("--asha", "--num-seeds", "1", "--num", "8", "--per-round", "4", "--epochs", "27")
    result = script.run(*arguments)
    assert result.returncode == 0, result.stdout
    table = pd.read_parquet(tmp_path / "runs/studies/tiny_search-demo/report/trials.parquet")
    stopped, finished = (table[table["status"] == status] for status in ("stopped", "finished"))
    assert len(stopped) + len(finished) == len(table) == 16 and len(stopped) and len(finished)
    assert (
        (stopped["epoch"] < 27).all()
        and set(stopped["epoch"]) <= {3, 9}
        and (finished["epoch"] == 27).all()
    )
    again = script.run(*arguments)
    assert again.returncode == 0 and "16 done, 0 to do" in again.stdout, again.stdout
    assert f"{len(stopped)} stopped" in again.stdout
    winners = json.loads(
        (tmp_path / "runs/studies/tiny_search-demo/report/winners.json").read_text()
    )["winners"]
    for arm, winner in winners.items():
        assert winner["value"] == finished[finished["arm"] == arm]["value"].min()
