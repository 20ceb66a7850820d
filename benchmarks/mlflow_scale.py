"""How a study of many trials connects to an MLflow server and stays current: seconds, CPU, memory.

    python benchmarks/mlflow_scale.py --num 10000

A real `mlflow server` on this machine's loopback, with an SQLite database that holds a run for
every trial of a study as vitscale would have made it (written straight into the tables, since
making them one by one takes minutes). Each line is a process of its own. The peer is the request
that vitscale made at every start before: all runs in one page.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitscale.plan.config import TrainConfig
from vitscale.plan.design import sample, trials
from vitscale.plan.study import Study
from vitscale.record.mlflow.contents import Colors
from vitscale.record.mlflow.run_cache import ChildRun
from vitscale.record.mlflow.view import View, synchronize
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store

EPOCHS = 3  # of which each run shows a row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=10_000, help="trials (default: %(default)s)")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(measured(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        study = study_of(options.num)
        fill(store, study)
        print(
            f"{options.num} runs, {store.beside('mlflow.db').stat().st_size / 1e6:.0f} MB, "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first step"
        )
        with server(Path(folder)) as (uri, pid):
            print(f"{'step':44} {'wall s':>8} {'CPU s':>8} {'server CPU s':>13} {'peak MB':>8}")
            for name in STEPS:
                before = cpu_of(pid)
                command = [
                    sys.executable,
                    __file__,
                    "--num",
                    str(options.num),
                    "--step",
                    name,
                    "--folder",
                    folder,
                ]
                ran = subprocess.run([*command, "--uri", uri], capture_output=True, text=True)
                if ran.returncode:
                    raise SystemExit(f"the step {name!r} failed:\n{ran.stderr}")
                facts = json.loads(ran.stdout.splitlines()[-1])
                print(
                    (
                        f"{name:44} {facts['wall_s']:8.1f} {facts['cpu_s']:8.1f} "
                        f"{cpu_of(pid) - before:13.1f} {facts['peak_mb']:8.0f}  {facts['said']}"
                    ),
                    flush=True,
                )


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """A step without its imports: seconds, CPU seconds, and the peak memory of the process."""
    import mlflow  # noqa: F401

    store, study = Store(options.folder), study_of(options.num)
    idle_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wall, cpu = time.monotonic(), time.process_time()
    said = STEPS[options.step](store, study, options.uri)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    said = f"{said}; {idle_mb:.0f} MB before"
    return {
        "wall_s": time.monotonic() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": peak_mb,
        "said": said,
    }


def study_of(num: int) -> Study:
    """Two arms at shared random points."""
    from optuna.distributions import FloatDistribution

    space = {
        "lr": FloatDistribution(1e-5, 1e-2, log=True),
        "wd": FloatDistribution(1e-3, 1.0, log=True),
    }
    base = TrainConfig(width=16, heads=2, depth=1, epochs=EPOCHS, warmup_epochs=1.0)
    arms = {
        "patchify": {},
        "conv": {"stem": "conv", "stem_channels": "8-16", "stem_strides": "1-2"},
    }
    plan = trials(base, arms, sample(space, num=num // 2))
    return Study(
        kind="distribution",
        name="large",
        scale="demo",
        question="How large may a study be?",
        source="none",
        trials=plan,
    )


def rows_of(trial_id: str, num: int = EPOCHS) -> list[dict[str, float]]:
    names = ("train_loss", "val_loss", "val_error_pct", "val_ema_error_pct", "lr", "images_per_s")
    return [
        {"epoch": e, "unix_s": 1e9 + e, **dict.fromkeys(names, 50.0 / e)} for e in range(1, num + 1)
    ]


def fill(
    store: Store, study: Study, outcome: Outcome | None = None, colors: Colors | None = None
) -> None:
    """The database of the store with a finished run for each trial, as `View.runs` leaves them, and
    the cache of these runs.
    """
    from vitscale.record.mlflow.place import create_database

    uri = f"sqlite:///{store.beside('mlflow.db')}"
    create_database(uri)
    view = View(study, uri, store, colors)
    model = study.trials[0]
    facts = {"attempt": "1", "commit": "0" * 40}
    rows = tuple(rows_of(model.config.id))
    view.runs.show(model.config.id, outcome or Outcome(Status.FINISHED, rows, facts))
    copy_runs(store.beside("mlflow.db"), view, view.runs.children[model.config.id], study)
    view.save()


TABLES = ("metrics", "latest_metrics", "params", "tags")


def copy_runs(database: Path, view: View, child: ChildRun, study: Study) -> None:
    """Copies one run for all other trials, with the params and tags that theirs would have, and
    with the metrics of its last row: nothing that is measured reads those before.
    """
    trials = study.trials[1:]
    ids = sorted(uuid.uuid4().hex for _ in trials)  # in the order of the tables' keys
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        query = f"select sql, name from sqlite_master where tbl_name in {TABLES} and sql like ?"
        indexes = db.execute(query, ("create index%",)).fetchall()
        for _, name in indexes:  # one by one, 26 million rows would take hours
            db.execute(f"drop index {name}")
        tags = dict(db.execute("select key, value from tags where run_uuid = ?", (child.run_id,)))
        names = {
            k for (k,) in db.execute("select key from params where run_uuid=?", (child.run_id,))
        }
        db.execute("create temp table made (run_uuid primary key)")
        db.executemany("insert into made values (?)", ((new,) for new in ids))
        _copy(db, "runs", child.run_id)
        _copy(db, "metrics", child.run_id, f"old.step = {child.epoch}")
        _copy(db, "latest_metrics", child.run_id)
        # a day ago
        db.execute(
            "update runs set start_time = start_time - 86400000 where run_uuid != ?",
            (child.run_id,),
        )
        for new, trial in zip(ids, trials, strict=True):
            params = view.contents.params_of(trial)
            assert names == set(params), names ^ set(params)
            for table, entries in (
                ("params", params),
                ("tags", {**tags, **view.contents.tags_of(trial)}),
            ):
                db.executemany(
                    f"insert into {table} (key, value, run_uuid) values (?, ?, ?)",
                    ((*entry, new) for entry in entries.items()),
                )
            digest = view.contents.digest(trial.config.id)
            view.runs.children[trial.config.id] = replace(child, run_id=new, digest=digest)
        for sql, _ in indexes:
            db.execute(sql)


def _copy(db: sqlite3.Connection, table: str, old: str, which: str = "true") -> None:
    """These rows of a run for each run that is made, in the order of the table's key."""
    about = list(db.execute(f"pragma table_info({table})"))
    names = [row[1] for row in about]
    keys = [row[1] for row in sorted(about, key=lambda row: row[5]) if row[5]]
    chosen, order = (
        ", ".join(f"{'made' if name == 'run_uuid' else 'old'}.{name}" for name in some)
        for some in (names, keys)
    )
    db.execute(
        f"insert into {table} ({', '.join(names)}) select {chosen} from {table} as old, made "
        f"where old.run_uuid = ? and {which} order by {order}",
        (old,),
    )


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """A real MLflow server with one worker: (address, process id)."""
    import psutil
    from mlflow import MlflowClient

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _answers(port):
            time.sleep(0.5)
        # it imports much at the first request
        MlflowClient(f"http://127.0.0.1:{port}").search_experiments()
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            child.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    import psutil

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in family)


# The steps


def one_page(store: Store, study: Study, uri: str) -> str:
    """Every run in one answer, with a patience of ten minutes."""
    os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": "600", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name(study.slug)
    assert experiment is not None
    runs = client.search_runs(
        [experiment.experiment_id], "tags.`vitscale.role` = 'trial'", max_results=50_000
    )
    return f"{len(runs)} runs"


def reconnect(store: Store, study: Study, uri: str) -> str:
    view = View(study, uri, store, reread=True)
    view.save()
    return f"{len(view.runs.children)} runs"


def remembered(store: Store, study: Study, uri: str) -> str:
    return f"{len(View(study, uri, store).runs.children)} runs"


def all_done(store: Store, study: Study, uri: str) -> str:
    """What the end of a start does: every outcome is shown already."""
    view = View(study, uri, store)
    read = {i: Outcome(Status.FINISHED, tuple(rows_of(i))) for i in view.contents.trials}
    return f"{synchronize(view, read)} outcomes"


def more_rows(store: Store, study: Study, uri: str) -> str:
    """A row more of each of 100 trials that train."""
    view = View(study, uri, store)
    began, some = time.monotonic(), list(view.contents.trials)[:100]
    for trial_id in some:
        view.runs.show(trial_id, Outcome(Status.RUNNING, tuple(rows_of(trial_id, EPOCHS + 1))))
    view.save()
    return f"{(time.monotonic() - began) / len(some) * 1000:.0f} ms per trial"


STEPS = {
    "all runs in one page": one_page,
    "connect, empty cache": reconnect,
    "connect, runs remembered": remembered,
    "connect and show 10,000 outcomes again": all_done,
    "connect and show a row of 100 trials": more_rows,
}


if __name__ == "__main__":
    main()
