"""The MLflow view: complete, live, without duplicates, rebuilt from the store, never blocking."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import (
    TINY,
    Script,
    empty_database,
    free_port,
    load_script,
    wait_for,
    wait_for_mlflow,
)
from support.mlflow_runs import client, history, runs_of, stop
from support.scripts import plan

from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.mlflow.pages import arm_view, axes, trial_views
from vitscale.record.mlflow.place import create_database
from vitscale.record.mlflow.view import View
from vitscale.record.store import Store

NUM_EPOCHS = 3


def study(**options: int) -> Study:
    return load_script(TINY).study(**options)


def arm_runs(uri: str) -> dict[str, Any]:
    mlflow = client(uri)
    experiment = mlflow.get_experiment_by_name("tiny-demo")
    found = mlflow.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'arm'")
    assert len({run.data.tags["vitscale.arm"] for run in found}) == len(found), (
        "two runs of one arm"
    )
    return {run.data.tags["vitscale.arm"]: run for run in found}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Script:
    script = Script(tmp_path_factory.mktemp("ran"), is_lean=True)
    result = script.run("--broken", "1")
    assert result.returncode == 1 and "6 finished, 1 diverged, 1 failed" in result.stdout, (
        result.stdout
    )
    return script


@pytest.fixture(scope="module")
def uri(ran: Script) -> str:
    return ran.environment["MLFLOW_TRACKING_URI"]


def sync(script: Script, uri: str, *options: str) -> subprocess.CompletedProcess[str]:
    store = str(script.folder / "runs")
    command = [sys.executable, "-m", "vitscale", "sync", "--store", store, *options]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    return subprocess.run(
        command, cwd=script.folder, env=environment, capture_output=True, text=True, timeout=200
    )


def test_experiment_states_question_and_source(uri: str) -> None:
    note = client(uri).get_experiment_by_name("tiny-demo").tags["mlflow.note.content"]
    assert "Does a study survive being killed?" in note and "Source: none" in note


def test_one_parent_and_a_child_for_each_trial(uri: str) -> None:
    parents, children = runs_of(uri, "study"), runs_of(uri, "trial")
    assert len(parents) == 1
    assert set(children) == {trial.config.id for trial in study(broken=1).trials}
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {
        parents[""].info.run_id
    }


def test_a_child_has_its_config_status_and_provenance(uri: str) -> None:
    plan = {trial.config.id: trial for trial in study(broken=1).trials}
    shared = runs_of(uri, "study")[""].data.params
    for trial_id, run in runs_of(uri, "trial").items():
        params, tags = {**shared, **run.data.params}, run.data.tags
        assert {name: params[name] for name in DEFAULTS} == {
            k: str(v) for k, v in plan[trial_id].config.asdict().items()
        }
        assert (tags["vitscale.arm"], params["arm"]) == (plan[trial_id].arm.name,) * 2
        status = {"diverging": "diverged", "broken": "failed"}.get(
            plan[trial_id].arm.name, "finished"
        )
        assert tags["vitscale.status"] == status
        assert run.info.status == ("FAILED" if status == "failed" else "FINISHED")
        counts = {"epoch", "step", "samples", "diverged", "failed"}
        assert run.data.metrics.keys().isdisjoint(counts)
        if status != "failed":
            assert next(iter(run.data.metrics)) == "val_ema_error_pct"  # on which Compare opens
            shown = history(uri, run.info.run_id, "val_ema_error_pct")
            assert int(tags["vitscale.epoch"]) == shown[-1][0]
            assert (
                tags["vitscale.commit"]
                and tags["vitscale.machine"]
                and "torch" in tags["vitscale.versions"]
            )


def test_every_row_is_logged_once_with_its_own_time(ran: Script, uri: str) -> None:
    for trial_id, run in runs_of(uri, "trial").items():
        if run.data.tags["vitscale.status"] == "failed":
            continue
        rows = ran.store().read(trial_id).rows
        expected = [
            (int(r["epoch"]), int(r["unix_s"] * 1000), r["val_ema_error_pct"]) for r in rows
        ]
        assert history(uri, run.info.run_id, "val_ema_error_pct") == expected
        assert run.data.metrics["final_error_pct"] == rows[-1]["val_ema_error_pct"]


def test_the_parent_has_report_and_summary(uri: str) -> None:
    parent = runs_of(uri, "study")[""]
    files = {entry.path for entry in client(uri).list_artifacts(parent.info.run_id)}
    assert {
        "report.html",
        "edf_panels.png",
        "edf_panels.svg",
        "rows.parquet",
        "edf_summary.csv",
    } <= files
    assert parent.data.metrics == {
        "num_trials": 8,
        "finished": 6,
        "diverged": 1,
        "failed": 1,
        "missing": 0,
    }
    assert parent.info.status == "FAILED"
    note = parent.data.tags["mlflow.note.content"]
    assert "Does a study survive being killed?" in note and "| patchify | 3 | 0 | 0 | 0 |" in note


def test_each_arm_is_a_run_with_what_its_trials_share_and_its_summary(
    ran: Script, uri: str
) -> None:
    runs = arm_runs(uri)
    plan = study(broken=1)
    assert set(runs) == set(plan.arms)
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {
        runs_of(uri, "study")[""].info.run_id
    }
    for arm, run in runs.items():
        configs = [trial.config.asdict() for trial in plan.trials if trial.arm.name == arm]
        shared = {
            name: str(configs[0][name])
            for name in DEFAULTS
            if len({config[name] for config in configs}) == 1
        }
        assert {
            name: value for name, value in run.data.params.items() if name in DEFAULTS
        } == shared
    errors = [
        ran.store().read(t.config.id).rows[-1]["val_ema_error_pct"]
        for t in plan.trials
        if t.arm.name == "conv"
    ]
    metrics = runs["conv"].data.metrics
    assert (metrics["n"], metrics["median"]) == (3, statistics.median(errors))
    assert metrics["median_low"] <= metrics["median"] <= metrics["median_high"]
    assert (runs["diverging"].data.metrics["diverged"], runs["broken"].data.metrics["failed"]) == (
        1,
        1,
    )
    assert (runs["conv"].info.status, runs["broken"].info.status) == ("FINISHED", "FAILED")


def test_saved_views_name_only_what_runs_have(uri: str) -> None:
    """Columns, axes and charts of each view exist in a run that its filter finds. AdamW and SGD,
    whose lr and wd are not on one scale, have a view each, and a contour only there.
    """
    mlflow = client(uri)
    experiment = mlflow.get_experiment_by_name("tiny-demo")
    views = {
        key: json.loads(value)
        for key, value in experiment.tags.items()
        if key.startswith("mlflow.sharedViewState")
    }
    assert [view["name"] for _, view in sorted(views.items())] == [
        "Arms",
        "Curves by arm",
        "Trials",
        "Trials, adamw",
        "Trials, sgd",
    ]
    for view in views.values():
        state = json.loads(view["state"])
        assert set(view) == {"name", "createdAt", "state"} and isinstance(view["createdAt"], int)
        found = mlflow.search_runs(
            [experiment.experiment_id], state["searchFilter"], max_results=100
        )
        num = {"Arms": 5, "Trials, adamw": 7, "Trials, sgd": 1}.get(view["name"], 8)
        assert len(found) == num
        contours = [chart for chart in state["compareRunCharts"] if chart["type"] == "CONTOUR"]
        assert len(contours) == (view["name"] == "Trials, adamw")  # there is one trial of SGD
        params, metrics, tags = (
            {k for run in found for k in getattr(run.data, part)}
            for part in ("params", "metrics", "tags")
        )
        known = {"params": params, "metrics": metrics, "tags": tags}
        for column in [*state["selectedColumns"], state["orderByKey"]]:
            kind, name = re.fullmatch(r"(\w+)\.`(.+)`", column).groups()
            assert name in known[kind], column
        sections = {section["uuid"] for section in state["compareRunSections"]}
        for chart in state["compareRunCharts"]:
            assert chart["metricSectionId"] in sections
            axes = [chart[axis] for axis in ("xaxis", "yaxis", "zaxis") if axis in chart]
            assert {axis["key"] for axis in axes if axis["type"] == "PARAM"} <= params
            assert {axis["key"] for axis in axes if axis["type"] == "METRIC"} <= metrics
            assert (
                set(chart.get("selectedParams", ())) <= params
                and set(chart.get("selectedMetrics", ())) <= metrics
            )
    assert "selectedParams" in json.dumps(views["mlflow.sharedViewState.vitscale-trials"])


def test_axes_are_what_varies_within_arms_or_between_single_settings() -> None:
    assert axes(study().trials) == ["arm", "log10_lr", "log10_wd"]
    minival = [replace(t, config=t.config.replace(more_evals="test")) for t in study().trials[:1]]
    more = replace(study(), trials=(*minival, *study().trials[1:]))
    assert axes(more.trials) == axes(study().trials)
    lengths = tuple(
        replace(
            t, config=t.config.replace(lr=1e-3, wd=0.0, epochs=e, seed=e), arm=f"{t.arm.name} {e}"
        )
        for t in study(num=1).trials[:1]
        for e in (3, 6)
    )
    assert axes(lengths) == ["arm", "epochs"]


def test_arms_that_are_too_many_to_be_read_are_no_axis() -> None:
    """Instead the fields in which they differ, without those that another decides: heads follow
    from width, and the recipe's warm-up from its epochs. A stem without channels would take its
    runs out of the plot.
    """
    base = TrainConfig(depth=1)
    cells = [(width, epochs) for width in (16, 32, 48, 64) for epochs in (4, 8, 12, 16)]
    many = tuple(
        Trial(
            f"width {width}, {epochs} epochs",
            base.replace(
                **{"width": width, "heads": width // 16, "epochs": epochs, "lr": lr, "seed": i},
                warmup_epochs=epochs / 4,
                **({"stem": "conv", "stem_channels": "8", "stem_strides": "2"} if i else {}),
            ),
            i,
        )
        for width, epochs in cells
        for i, lr in enumerate((1e-3, 2e-3))
    )
    assert axes(many) == ["width", "stem", "epochs", "log10_lr"]
    few = [t for t in many if t.config.epochs == 4 and t.point == 0]
    assert axes(few) == ["arm", "width"]


def test_axes_tell_arms_apart_whose_names_are_cut() -> None:
    """MLflow shows "12 ...ale" and "12 ...dom". More axes than one plot has are in a second one."""
    deep = plan("layerscale_depth", "demo")
    gains = ["layerscale", "branch_gain", "gain_init"]
    assert axes(deep.trials) == ["arm", "depth", *gains, "drop_path", "log10_lr"]
    charts = trial_views(deep)["vitscale-trials"]["state"]["compareRunCharts"]
    plots = [chart["selectedParams"] for chart in charts if chart["type"] == "PARALLEL"]
    assert plots == [["arm", "depth", *gains], ["drop_path", "log10_lr"]]
    # trials without a parent would be left out of the plot
    assert "init_from" not in axes(plan("finetune", "demo").trials)


def test_the_arms_are_a_table_in_which_an_estimate_is_between_the_ends_of_its_interval() -> None:
    (view,) = arm_view(["n", "mean", "mean_low", "mean_high", "area"]).values()
    names = [column.split("`")[1] for column in view["state"]["selectedColumns"]]
    assert names[:4] == ["n", "mean_low", "mean", "mean_high"] and "area" not in names
    assert not view["state"]["compareRunCharts"]


def test_an_arm_with_changed_params_gets_a_new_run(tmp_path: Path) -> None:
    """A param cannot be changed, so the arm's old run is deleted."""
    (tmp_path / "mlflow.db").write_bytes(empty_database())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    one, store = study(num=1), Store(tmp_path)
    View(one, uri, store).summarize({"conv": {"n": 1.0}}, None)
    before = arm_runs(uri)["conv"]
    View(one, uri, store).summarize({"conv": {"n": 1.0}}, None)
    assert arm_runs(uri)["conv"].info.run_id == before.info.run_id
    View(study(num=2), uri, store).summarize({"conv": {"n": 2.0}}, None)
    after = arm_runs(uri)["conv"]
    assert "lr" in before.data.params and "lr" not in after.data.params
    assert (after.info.run_id != before.info.run_id, after.data.metrics["n"]) == (True, 2.0)


def dump(database: Path) -> list[tuple[Any, ...]]:
    """The content of the view, without run ids and times of writing."""
    with sqlite3.connect(database) as db:
        metrics = db.execute(
            "select t.value, m.key, m.step, m.timestamp, m.value, m.is_nan from metrics m join "
            "tags t on t.run_uuid = m.run_uuid and t.key = 'vitscale.trial_id'"
        ).fetchall()
        params = db.execute(
            "select t.value, p.key, p.value from params p join tags t "
            "on t.run_uuid = p.run_uuid and t.key = 'vitscale.trial_id'"
        ).fetchall()
    return sorted(map(repr, metrics + params))


def everything(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What a second sync must leave unchanged: every run, metric, param and tag."""
    tables = ("runs", "metrics", "latest_metrics", "params", "tags", "experiment_tags")
    with sqlite3.connect(database) as db:
        found = {table: sorted(map(repr, db.execute(f"select * from {table}"))) for table in tables}
        found["runs"] = sorted(
            map(repr, db.execute("select run_uuid, name, status, lifecycle_stage from runs"))
        )
    return found


def test_sync_changes_nothing_where_the_view_is_up_to_date(ran: Script, uri: str) -> None:
    before = everything(ran.folder / "mlflow.db")
    result = sync(ran, uri)
    assert result.returncode == 0, result.stderr
    assert everything(ran.folder / "mlflow.db") == before


def test_sync_rebuilds_the_view_in_an_empty_tracking_store(
    ran: Script, uri: str, tmp_path: Path
) -> None:
    result = sync(ran, f"sqlite:///{tmp_path}/new.db")
    assert result.returncode == 0, result.stderr
    assert "8 of 8 trials shown" in result.stdout
    old, new = dump(ran.folder / "mlflow.db"), dump(tmp_path / "new.db")
    # it has no row, so the time is that of the telling
    failed = study(broken=1).trials[-1].config.id
    assert [line for line in new if failed not in line] == [
        line for line in old if failed not in line
    ]
    assert len(new) == len(old)
    assert runs_of(f"sqlite:///{tmp_path}/new.db", "study")[""].info.status


def test_reread_finds_what_was_removed_for_good(ran: Script, uri: str, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path}/copy.db"
    assert sync(ran, copy).returncode == 0
    runs = runs_of(copy, "trial")
    complete = (i for i, run in runs.items() if run.data.tags["vitscale.status"] == "finished")
    run = runs[trial_id := next(complete)]
    client(copy).delete_run(run.info.run_id)
    client(copy)._tracking_client.store._hard_delete_run(run.info.run_id)
    assert sync(ran, copy).returncode == 0
    assert trial_id not in runs_of(copy, "trial")  # as docs/mlflow.md says
    result = sync(ran, copy, "--reread")
    assert result.returncode == 0, result.stderr
    assert runs_of(copy, "trial").keys() == runs.keys()


def serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Starts a real MLflow server; returns once it answers."""
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # as `vitscale ui`
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    wait_for_mlflow(port)
    return process


@pytest.mark.slow
def test_a_server_that_is_down_stops_nothing_and_is_updated_later(tmp_path: Path) -> None:
    """Dead at first: all is trained, one line and status 3 tell.

    Alive later: the same command, or sync, catches up.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    script = Script(tmp_path, is_lean=True)
    result = script.run("--num", "1", MLFLOW_TRACKING_URI=address)
    assert result.returncode == 3, result.stdout
    assert "2 finished, 1 diverged, 0 failed, 0 missing of 3" in result.stdout
    said = [line for line in result.stdout.splitlines() if line.startswith("mlflow")]
    assert (
        len(said) == 1 and f"{address} is not up to date" in said[0] and "vitscale sync" in said[0]
    )
    refused = sync(script, address)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1 and "MLflow must answer" in refused.stderr

    server = serve(tmp_path, port)
    try:
        assert sync(script, address).returncode == 0
        children = runs_of(address, "trial")
        assert set(children) == {trial.config.id for trial in study(num=1).trials}
        assert {run.info.status for run in children.values()} == {"FINISHED"}
    finally:
        stop(server)


class SlowProxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests after half a second."""

    target = 0

    def relay(self) -> None:
        time.sleep(0.5)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upstream = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = relay

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[int]:
    target = free_port()
    server = serve(tmp_path, target)
    proxy = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Proxy", (SlowProxy,), {"target": target})
    )
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield proxy.server_address[1]
    proxy.shutdown()
    stop(server)


@pytest.mark.slow
def test_a_slow_server_is_live_during_training_and_complete_at_the_end(
    tmp_path: Path, slow_server: int
) -> None:
    """Responses take 0.5 s longer: rows of a running trial still appear, and all appear once."""
    script, address = Script(tmp_path, is_lean=True), f"http://127.0.0.1:{slow_server}"
    arguments = ("--num", "1", "--epochs", "100", "--only", "conv")
    process = script.start(*arguments, MLFLOW_TRACKING_URI=address)
    direct = f"sqlite:///{tmp_path}/server.db"

    def live() -> bool:
        if client(direct).get_experiment_by_name("tiny-demo") is None:
            return False
        running = [run for run in runs_of(direct, "trial").values() if run.info.status == "RUNNING"]
        return any(int(run.data.tags.get("vitscale.epoch", 0)) >= 1 for run in running)

    wait_for(live, 120, "a row of a running trial")
    assert process.wait(300) == 0, (tmp_path / "log.txt").read_text()
    for trial_id, run in runs_of(direct, "trial").items():
        rows = script.store().read(trial_id).rows
        shown = history(direct, run.info.run_id, "val_error_pct")
        assert [(step, value) for step, _, value in shown] == [
            (r["epoch"], r["val_error_pct"]) for r in rows
        ]


def test_ui_without_a_database_is_refused(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "vitscale", "ui"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == (
        f"vitscale: error: an MLflow database must exist, but got ({tmp_path}/runs/mlflow.db); "
        "run a study or `vitscale sync` first\n"
    )


def test_ui_takes_a_port_that_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next port if MLflow's own is in use; a requested port in use is refused."""
    from vitscale.cli import commands

    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        monkeypatch.setattr(commands, "PORT", taken)
        chosen = commands.free_port("127.0.0.1", None)
        assert (
            taken < chosen < taken + 100
            and f"port {taken} is in use; using {chosen}" in capsys.readouterr().out
        )
        with pytest.raises(ValueError, match=f"must be free.*port={taken}"):
            commands.free_port("127.0.0.1", taken)
    assert commands.free_port("127.0.0.1", None) == taken


def test_ui_serves_the_store_of_the_results(ran: Script, uri: str) -> None:
    """Also prints a link per study, with its port, the study's experiment and its saved view."""
    port = free_port()
    command = [sys.executable, "-m", "vitscale", "ui", "--port", str(port)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    process = subprocess.Popen(
        command, cwd=ran.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:

        def shows() -> bool:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request(
                    "GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=tiny-demo"
                )
                answer = connection.getresponse()
                return answer.status == 200 and b"Does a study survive" in answer.read()
            except OSError:
                return False

        wait_for(shows, 120, "the experiment in the UI's server")
        family = psutil.Process(process.pid).children(recursive=True)
        assert not [p.pid for p in family if "huey" in " ".join(p.cmdline())]  # MLflow's jobs
        assert process.stdout is not None
        said = process.stdout.readline().decode(), process.stdout.readline().decode()
        assert f"http://127.0.0.1:{port}" in said[0]
        number = client(uri).get_experiment_by_name("tiny-demo").experiment_id
        place, _, query = said[1].split()[-1].partition("?")
        assert (
            said[1].split()[0] == "tiny-demo"
            and place == f"http://127.0.0.1:{port}/#/experiments/{number}/runs"
        )
        assert (
            "workflowType=machine_learning" in query
            and "viewStateShareKey=vitscale-trials" in query
        )
    finally:
        stop(process)


def test_a_database_is_created_atomically(tmp_path: Path) -> None:
    """A kill while MLflow creates tables leaves no partial database; the next start creates it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    code = f"from vitscale.record.mlflow.place import create_database; create_database({uri!r})"
    for wait_s in (0.1, 0.5, 1.0):
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        known = set(tmp_path.iterdir())
        wait_for(lambda known=known: set(tmp_path.iterdir()) - known, 60, "tables in the making")
        time.sleep(wait_s)
        process.kill()
        process.wait()
        if (tmp_path / "mlflow.db").exists():  # it took less than that
            break
    assert wait_s > 0.1
    create_database(uri)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert [experiment.name for experiment in client(uri).search_experiments()] == ["Default"]
    (tmp_path / "mlflow.db").write_bytes(b"mine")
    create_database(uri)
    assert (tmp_path / "mlflow.db").read_bytes() == b"mine"  # what is there is not ours to make
