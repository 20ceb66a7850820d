"""Requests of a start to an MLflow server, repair of lost runs, and edited studies."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY, empty_database, load_script
from mlflow import MlflowClient
from support.mlflow_runs import client, roles

from vitscale.cli.commands import sync
from vitscale.launch.colors import arm_colors
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.plan.study import Study, to_json
from vitscale.plan.trial import Trial
from vitscale.record.mlflow import experiment, params
from vitscale.record.mlflow.client import TakenOver
from vitscale.record.mlflow.mirror import Mirror
from vitscale.record.mlflow.view import View, synchronize
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store


def study(**options: int) -> Study:
    return load_script(TINY).study(**options)


def rows_of(num: int, error: float = 7.0) -> list[dict[str, float]]:
    return [{"epoch": e, "unix_s": 1e9 + e, "val_ema_error_pct": error} for e in range(1, num + 1)]


def finished(plan: Study) -> dict[str, Any]:
    return {trial.config.id: Outcome(Status.FINISHED, tuple(rows_of(2))) for trial in plan.trials}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "runs")
    (store.root / "mlflow.db").write_bytes(empty_database())
    return store


@pytest.fixture
def uri(store: Store) -> str:
    return f"sqlite:///{store.root}/mlflow.db"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the requests that views send, with the number of runs returned."""
    from mlflow import MlflowClient

    log: list[str] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = method(self, *args, **kwargs)
            log.append(f"{name} {len(answer)}" if name == "search_runs" else name)
            return answer

        return call

    for name in (
        "search_runs",
        "get_run",
        "create_run",
        "log_batch",
        "set_tag",
        "get_experiment",
        "delete_run",
    ):
        monkeypatch.setattr(MlflowClient, name, watched(name, getattr(MlflowClient, name)))
    return log


def children(uri: str, chosen: str = "") -> dict[str, Any]:
    runs = roles(uri, "trial", chosen)
    found = {run.data.tags["vitscale.trial_id"]: run for run in runs}
    assert len(found) == len(runs), "two runs of one trial"
    return found


def test_params_of_trials_are_what_varies_and_the_parent_has_the_rest(
    store: Store, uri: str
) -> None:
    plan = study()
    synchronize(View(plan, uri, store), finished(plan))
    (parent,) = roles(uri, "study")
    found = children(uri)
    for trial in plan.trials:
        params = found[trial.config.id].data.params
        everything = {name: str(value) for name, value in trial.config.asdict().items()}
        assert {name: (parent.data.params | params)[name] for name in everything} == everything
        assert not params.keys() & parent.data.params.keys()
        assert {"arm", "point", "lr", "wd", "log10_lr", "log10_wd", "stem"} <= params.keys()
        assert len(params) < 20 < len(parent.data.params)


def test_a_start_requests_only_runs_that_are_not_in_the_cache(
    store: Store, uri: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "MARGIN_MS", 0)
    plan = study()
    view = View(plan, uri, store)
    synchronize(view, finished(plan))
    view.save()
    asked.clear()
    again = View(plan, uri, store)
    assert again.runs.children == view.runs.children
    assert (
        sum(int(line.split()[1]) for line in asked if line.startswith("search_runs")) == 0
        and len(asked) <= 5
    )
    asked.clear()
    synchronize(again, finished(plan))
    assert asked == []


def test_params_that_all_trials_of_an_arm_share_are_made_once(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not once for each trial, of which there may be 100,000."""
    asked: list[TrainConfig] = []

    def counted(config: TrainConfig, *measured: Any) -> Any:
        asked.append(config)
        return complexity(config, *measured)

    monkeypatch.setattr(params, "complexity", counted)
    plan = study(num=4)
    view = View(plan, uri, store)
    synchronize(view, finished(plan))
    view.summarize({arm: {"n": 1.0} for arm in plan.arms}, None)
    assert len(asked) == len(plan.arms) == 3 < len(plan.trials)
    expected = {trial.config.id: view.contents.params.of_trial(trial) for trial in plan.trials}
    for trial in plan.trials:  # those of each by itself
        alone = params.Params({}).of_trial(trial)
        assert expected[trial.config.id] == alone
        assert alone["lr_used"] == str(trial.config.peak_lr)
        assert alone["params_m"] == f"{complexity(trial.config).params / 1e6:.4g}"


def test_runs_created_after_the_cache_was_written_are_found(store: Store, uri: str) -> None:
    """A killed driver has created runs that are not in the cache: none is created twice."""
    plan = study()
    view = View(plan, uri, store)
    first, *others = [trial.config.id for trial in plan.trials]
    view.runs.show(first, Outcome(Status.FINISHED, tuple(rows_of(2))))
    view.save()
    for trial_id in others:
        view.runs.show(trial_id, Outcome(Status.RUNNING, tuple(rows_of(1))))
    again = View(plan, uri, store)
    assert again.runs.children.keys() == {first, *others}
    synchronize(again, finished(plan))
    assert {run.info.status for run in children(uri).values()} == {"FINISHED"}


@pytest.mark.parametrize(
    "lost", ["run", "run for good", "parent", "experiment", "database", "memory", "memory damaged"]
)
def test_runs_lost_on_either_side_are_created_again(store: Store, uri: str, lost: str) -> None:
    plan = study()
    view = View(plan, uri, store)
    synchronize(view, finished(plan))
    view.save()
    mlflow, memory = client(uri), store.study(plan.slug).path / "mlflow.json"
    one = view.runs.children[plan.trials[0].config.id].run_id
    if lost.startswith("run"):
        mlflow.delete_run(one)
    if lost == "run for good":
        mlflow._tracking_client.store._hard_delete_run(one)
    if lost == "parent":
        mlflow.delete_run(view.contents.parent_id)
    if lost == "experiment":
        mlflow.delete_experiment(view.experiment.id)
    if lost == "database":
        (store.root / "mlflow.db").write_bytes(empty_database())
    if lost == "memory":
        memory.unlink()
    if lost == "memory damaged":
        memory.write_text('{"store": 3')
    again = View(plan, uri, store, reread=lost == "run for good")  # as `sync --reread`
    synchronize(again, finished(plan))
    found = children(uri)
    assert found.keys() == {trial.config.id for trial in plan.trials}
    for run in found.values():
        assert run.info.status == "FINISHED" and run.data.metrics["final_error_pct"] == 7.0
        assert run.data.tags["mlflow.parentRunId"] == again.contents.parent_id
    assert len(roles(uri, "study")) == 1


@pytest.mark.parametrize("method", ["create_experiment", "restore_experiment"])
def test_two_processes_may_create_or_restore_an_experiment_at_once(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    plan = study()
    if method == "restore_experiment":
        client(uri).delete_experiment(View(plan, uri, store).experiment.id)
    true = getattr(MlflowClient, method)

    def done_before(*arguments: Any) -> Any:
        true(*arguments)  # by another process, which found no active one either
        return true(*arguments)

    monkeypatch.setattr(MlflowClient, method, done_before)
    found = View(plan, uri, store).experiment.id
    (one,) = [e for e in client(uri).search_experiments() if e.name != "Default"]
    assert (one.experiment_id, one.lifecycle_stage) == (found, "active")


def test_a_run_deleted_permanently_while_a_study_runs_is_created_again(
    store: Store, uri: str
) -> None:
    plan = study(num=1)
    trial_id = plan.trials[0].config.id
    view = View(plan, uri, store)
    view.runs.show(trial_id, Outcome(Status.RUNNING, tuple(rows_of(1))))
    mlflow = client(uri)
    mlflow.delete_run(view.runs.children[trial_id].run_id)
    mlflow._tracking_client.store._hard_delete_run(view.runs.children[trial_id].run_id)
    view.runs.show(trial_id, Outcome(Status.FINISHED, tuple(rows_of(2))))
    run = children(uri)[trial_id]
    assert [m.step for m in mlflow.get_metric_history(run.info.run_id, "val_ema_error_pct")] == [
        1,
        2,
    ]


def test_an_edited_study_hides_its_old_trials_and_arms(store: Store, uri: str) -> None:
    """One trial has another lr, one arm another name: the pages show only the last plan."""
    old = study(num=2)
    view = View(old, uri, store)
    synchronize(view, finished(old))
    view.summarize({"patchify": {"n": 2.0}, "conv": {"n": 2.0}}, None)
    view.save()
    first, second, *others = old.trials
    edited = (Trial("patchify", first.config.replace(lr=0.5), 0), replace(second, arm="patchify"))
    renamed = tuple(
        replace(trial, arm=trial.arm.name.replace("conv", "convolutional")) for trial in others
    )
    new = replace(old, trials=(*edited, *renamed), panels={}, pairs=())
    again = View(new, uri, store)
    synchronize(again, finished(new))
    again.summarize({"patchify": {"n": 2.0}, "convolutional": {"n": 2.0}}, None)
    planned = " and tags.`vitscale.planned` = 'true'"
    found = children(uri, planned)
    assert {i: run.data.params["arm"] for i, run in found.items()} == {
        t.config.id: t.arm.name for t in new.trials
    }
    assert {i: run.data.tags["vitscale.arm"] for i, run in found.items()} == {
        t.config.id: t.arm.name for t in new.trials
    }
    assert children(uri).keys() - found.keys() == {first.config.id}
    arms = {run.data.tags["vitscale.arm"] for run in roles(uri, "arm", planned)}
    assert arms == {"patchify", "convolutional"}
    assert {run.data.tags["vitscale.arm"] for run in roles(uri, "arm")} == arms | {"conv"}
    synchronize(back := View(old, uri, store), finished(old))  # planned again: nothing was lost
    assert children(uri, planned).keys() == {trial.config.id for trial in old.trials}
    assert back.runs.children.keys() == {first.config.id, *again.runs.children}


def test_a_field_that_begins_to_vary_becomes_a_param_of_every_trial(store: Store, uri: str) -> None:
    old = study(num=1)
    view = View(old, uri, store)
    synchronize(view, finished(old))
    view.save()
    assert "epochs" not in children(uri)[old.trials[0].config.id].data.params
    longer = replace(old.trials[0], config=old.trials[0].config.replace(epochs=5))
    new = replace(old, trials=(*old.trials, longer))
    synchronize(View(new, uri, store), finished(new))
    found = children(uri)
    assert {i: run.data.params["epochs"] for i, run in found.items()} == {
        t.config.id: str(t.config.epochs) for t in new.trials
    }
    (parent,) = roles(uri, "study")
    assert "epochs" not in parent.data.params and parent.data.params["width"] == "16"
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}


def test_a_missing_trial_has_its_reason_and_no_error(store: Store, uri: str) -> None:
    plan = study(num=1)
    lost, fault, never, *_ = [trial.config.id for trial in (*plan.trials, *plan.trials)]
    view = View(plan, uri, store)
    view.runs.show(lost, Outcome(Status.FINISHED, tuple(rows_of(2))))
    view.runs.show(fault, Outcome(Status.RUNNING, tuple(rows_of(1))))
    read = {
        lost: Outcome(Status.MISSING),
        fault: Outcome(Status.MISSING).because("OutOfMemoryError: a neighbour has the memory"),
        never: Outcome(Status.MISSING),
    }
    assert synchronize(view, read) == 0
    runs = children(uri)
    assert runs.keys() == {lost, fault}
    assert {run.info.status for run in runs.values()} == {"KILLED"}
    assert {run.data.tags["vitscale.status"] for run in runs.values()} == {"missing"}
    assert runs[fault].data.tags["vitscale.error"] == "OutOfMemoryError: a neighbour has the memory"
    assert "no longer has its outcome" in runs[lost].data.tags["vitscale.error"]
    assert "final_error_pct" not in runs[fault].data.metrics


def test_runs_have_the_colour_of_their_arm_and_references_their_seed(
    store: Store, uri: str
) -> None:
    from vitscale.analysis.report.layout import COLORS

    plan = study()
    references = tuple(
        Trial("conv", plan.trials[3].config.replace(seed=seed), None) for seed in (1003, 1004)
    )
    plan = replace(plan, trials=(*plan.trials, *references))
    view = View(plan, uri, store, arm_colors)
    synchronize(view, finished(plan))
    view.summarize({"conv": {"n": 3.0}, "patchify": {"n": 3.0}}, None)
    colors = {"patchify": COLORS[0], "conv": COLORS[1]}  # as in the panel of the figures
    for run in (*children(uri).values(), *roles(uri, "arm")):
        arm = run.data.tags["vitscale.arm"]
        assert run.data.tags.get("mlflow.runColor") == colors.get(arm), arm
    named = {
        run.info.run_name
        for run in children(uri, " and tags.`vitscale.point` = 'reference'").values()
    }
    assert named == {"conv reference seed 1003", "conv reference seed 1004"}


def test_arms_that_share_a_place_in_two_panels_have_two_colours() -> None:
    plan = study()
    arms = tuple(plan.arms)
    colors = arm_colors(replace(plan, panels={"a": arms[:2], "b": (arms[2], arms[0])}))
    assert list(colors) == list(arms) and len(set(colors.values())) == 3
    assert colors == arm_colors(replace(plan, panels={"a": arms[:2], "b": (arms[2], arms[0])}))


def test_pages_of_a_server_that_is_slow_get_smaller(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that can return at most 50 runs in time."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    large = load_script(ROOT / "benchmarks" / "mlflow_scale.py")
    plan = large.study_of(120)
    view = View(plan, uri, store)
    first = plan.trials[0].config.id
    view.runs.show(first, Outcome(Status.FINISHED, tuple(large.rows_of(""))))
    large.copy_runs(store.root / "mlflow.db", view, view.runs.children[first], plan)
    search = MlflowClient.search_runs
    sizes = []

    def slow(
        self: Any, experiments: Any, chosen: str, kind: Any, max_results: int, page_token: Any
    ) -> Any:
        sizes.append(max_results)
        if max_results > 50:
            raise MlflowException("API request failed with timeout exception")
        return search(
            self, experiments, chosen, kind, max_results=max_results, page_token=page_token
        )

    monkeypatch.setattr(MlflowClient, "search_runs", slow)
    assert View(plan, uri, store, reread=True).runs.children.keys() == {
        trial.config.id for trial in plan.trials
    }
    assert sizes[-4:] == [200, 50, 50, 50]


@pytest.fixture
def http_server(store: Store) -> Iterator[str]:
    with load_script(ROOT / "benchmarks" / "mlflow_scale.py").server(store.root) as (address, _):
        yield address


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_large_study_connects_over_http(
    store: Store, uri: str, http_server: str, asked: list[str]
) -> None:
    """1,500 runs: never in one response, and not read again by the next start."""
    large = load_script(ROOT / "benchmarks" / "mlflow_scale.py")
    plan = large.study_of(1500)
    first = plan.trials[0].config.id
    view = View(plan, uri, store)
    view.runs.show(first, Outcome(Status.FINISHED, tuple(large.rows_of(first))))
    large.copy_runs(store.root / "mlflow.db", view, view.runs.children[first], plan)
    asked.clear()
    fresh = View(plan, http_server, store)
    assert fresh.runs.children.keys() == {trial.config.id for trial in plan.trials}
    assert max(int(line.split()[1]) for line in asked if line.startswith("search_runs")) <= 200
    fresh.save()
    asked.clear()
    again = View(plan, http_server, store)
    assert again.runs.children == fresh.runs.children and len(asked) <= 8
    asked.clear()
    assert (
        synchronize(
            again,
            {i: Outcome(Status.FINISHED, tuple(large.rows_of(i))) for i in again.contents.trials},
        )
        == 1500
    )
    assert asked == []
    again.runs.show(first, Outcome(Status.RUNNING, tuple(large.rows_of(first, 4))))
    (run,) = [run for run in roles(uri, "trial", f" and tags.`vitscale.trial_id` = '{first}'")]
    assert run.data.tags["vitscale.epoch"] == "4"


@pytest.mark.parametrize("before", [Status.RUNNING, Status.MISSING])
def test_rows_shown_after_the_cache_was_saved_are_not_shown_twice(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch, before: Status
) -> None:
    """A driver saves the cache, shows two more rows and is killed; they are trained again."""
    monkeypatch.setattr(experiment, "MARGIN_MS", 0)
    plan = study()
    trial_id = plan.trials[0].config.id
    view = View(plan, uri, store)
    view.runs.show(trial_id, Outcome(before, tuple(rows_of(2))))
    view.save()
    view.runs.show(trial_id, Outcome(Status.RUNNING, tuple(rows_of(4))))
    again = [{**row, "unix_s": row["unix_s"] + 60 * (row["epoch"] > 2)} for row in rows_of(5)]
    View(plan, uri, store).runs.show(trial_id, Outcome(Status.FINISHED, tuple(again)))
    run_id = children(uri)[trial_id].info.run_id
    history = client(uri).get_metric_history(run_id, "val_ema_error_pct")
    assert [entry.step for entry in history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("num_rows", [0, 2])
def test_a_trial_that_fails_at_each_start_has_one_value_at_a_step(
    store: Store, uri: str, num_rows: int
) -> None:
    """Also if the beginning of a start is not shown, since it fails too soon. A failed trial has
    no rows in the store. What counts once it finishes, even at the same step, is its result.
    """
    plan = study()
    trial_id = plan.trials[0].config.id
    (view := View(plan, uri, store)).runs.show(trial_id, Outcome(Status.RUNNING))
    view.save()
    time.sleep(0.01)  # its run begins, then come rows, then it fails
    rows = tuple({**row, "unix_s": time.time() + row["epoch"] / 1000} for row in rows_of(2))
    begun, failed = Outcome(Status.RUNNING, rows[:num_rows]), Outcome(Status.FAILED)
    for outcomes in ([begun, failed], [begun, failed], [failed]):
        view = View(plan, uri, store)
        for outcome in outcomes:
            view.runs.show(trial_id, outcome)
            time.sleep(0.01)  # else two times may be the same by chance
        view.save()
    run_id = children(uri)[trial_id].info.run_id
    history = client(uri).get_metric_history(run_id, "final_error_pct")
    assert [(entry.step, entry.value) for entry in history] == [(num_rows, 100.0)]
    View(plan, uri, store).runs.show(trial_id, Outcome(Status.FINISHED, rows))
    metrics = children(uri)[trial_id].data.metrics
    assert metrics["final_error_pct"] == 7
    assert children(uri)[trial_id].info.run_id == run_id


@pytest.mark.parametrize("ahead_s", [-86400, 86400])
def test_a_run_made_on_another_clock_is_found(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The cache is saved on one clock; a start on another one makes a run and is killed."""
    plan, now = study(), time.time
    first, second = (trial.config.id for trial in plan.trials[:2])
    outcomes = finished(plan)
    monkeypatch.setattr(time, "time", lambda: now() + ahead_s)
    view = View(plan, uri, store)
    view.runs.show(first, outcomes[first])
    view.save()
    monkeypatch.setattr(time, "time", now)
    View(plan, uri, store).runs.show(second, outcomes[second])
    assert View(plan, uri, store).runs.children.keys() == {first, second}


def test_of_runs_that_a_lost_reply_made_twice_one_is_kept(store: Store, uri: str) -> None:
    """A server that stands still does what it was asked after its client has given up."""
    plan = study()
    view, trial = View(plan, uri, store), plan.trials[0]
    outcome = Outcome(Status.RUNNING, tuple(rows_of(2)))
    view.runs.show(trial.config.id, outcome)
    kept = view.runs.children[trial.config.id].run_id
    view.save()
    parent = view.client.get_run(view.contents.parent_id)
    for tags in (view.contents.tags_of(trial), parent.data.tags):
        client(uri).create_run(view.experiment.id, tags=tags)
    again = View(plan, uri, store)
    assert again.contents.parent_id == view.contents.parent_id
    assert again.runs.children[trial.config.id].run_id == kept
    assert children(uri).keys() == {trial.config.id} and len(roles(uri, "study")) == 1


def recorded(store: Store, plan: Study, trials: Sequence[Trial]) -> None:
    """Trials end in the store, as those of a start of the study."""
    for trial in trials:
        workdir = store.claim(trial.config.id, trial.config.non_default(), plan.slug, 1)
        assert store.finish(workdir, finished(plan)[trial.config.id])


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_sync_beside_a_driver_gives_no_trial_a_second_run(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A driver that runs as `sync` begins, or that begins and ends while its report is drawn, for
    over two minutes: nothing is created beside it, and what `sync` saves hides no run of it.
    """
    plan, now = study(num=2), time.time
    first, *others = plan.trials
    store.study(plan.slug).write("plan.json", json.dumps(to_json(plan)).encode())
    recorded(store, plan, [first])
    if when == "meanwhile":
        view = View(plan, uri, store)
        view.runs.show(first.config.id, finished(plan)[first.config.id])
        view.save()

    def draw(*_: Any) -> tuple[None, list[str], dict[str, Any]]:
        if when == "meanwhile":
            recorded(store, plan, others)
            with store.drive(plan.slug):
                driver = View(plan, uri, store)
                for trial in others:
                    driver.runs.show(trial.config.id, finished(plan)[trial.config.id])
                driver.save()
        monkeypatch.setattr(time, "time", lambda: now() + 300)
        return None, [], {}

    monkeypatch.setattr("vitscale.analysis.report.draw.draw", draw)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    options = argparse.Namespace(store=str(store.root), studies=[plan.slug], reread=False)
    with store.drive(plan.slug) if when == "before" else contextlib.nullcontext():
        sync(options)
    assert children(uri).keys() == (
        set() if when == "before" else {trial.config.id for trial in plan.trials}
    )
    if when == "before":
        recorded(store, plan, others)
    monkeypatch.setattr(time, "time", lambda: now() + 600)
    synchronize(View(plan, uri, store), finished(plan))
    assert children(uri).keys() == {trial.config.id for trial in plan.trials}


def test_a_view_that_was_taken_over_writes_nothing(store: Store, uri: str) -> None:
    plan, permitted = study(), [True]
    view = View(plan, uri, store, may_write=lambda: permitted[0])
    permitted.clear()
    permitted.append(False)
    with pytest.raises(TakenOver):
        view.runs.show(plan.trials[0].config.id, finished(plan)[plan.trials[0].config.id])
    assert not children(uri)


def test_a_driver_that_comes_back_after_a_takeover_gives_no_trial_a_second_run(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saved would say that it knows all runs until then, and it knows its own."""
    plan, permitted, now = study(num=2), [True], time.time
    (first, *others), outcomes = plan.trials, finished(plan)
    suspended = Mirror(plan, uri, store, may_write=lambda: permitted[-1])
    suspended.put(first.config.id, outcomes[first.config.id])
    suspended._attempt(suspended._write)
    suspended._save()
    taken = View(plan, uri, store)  # by another machine, which trains the study to its end
    for trial in others:
        taken.runs.show(trial.config.id, outcomes[trial.config.id])
    taken.save()
    monkeypatch.setattr(time, "time", lambda: now() + 300)
    permitted.append(False)
    suspended.put(others[0].config.id, outcomes[others[0].config.id])
    suspended._attempt(suspended._write)
    assert "TakenOver" in suspended.error
    monkeypatch.setattr(time, "time", lambda: now() + 600)
    synchronize(View(plan, uri, store), outcomes)
    assert children(uri).keys() == {trial.config.id for trial in plan.trials}
