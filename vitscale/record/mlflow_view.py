"""The MLflow view of a study: one experiment, one parent run, one child run a trial for life.

It is a view: everything in it stands in the store, and `synchronize` makes it anew. One thread in the driver writes it
while a study runs; it keeps what it could not write and tries again, so a tracking server that is slow or away neither
stops nor slows the training.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscale.plan.cost import complexity, training_flops
from vitscale.plan.profile import BEARING, ProfileConfig
from vitscale.plan.study import Study, Trial
from vitscale.record import mlflow_pages
from vitscale.record.store import Row

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

RETRY_EVERY_S = 5.0
PATIENCE_S = 30.0
WRITE_EVERY_S = 2.0  # a row is in the UI this long after it was reported, or a little later
_NOT_METRICS = ("unix_s", "step", "epoch")  # epoch is the MLflow step


def default_uri() -> str:
    """MLFLOW_TRACKING_URI, else a database in this directory. Absolute, so that no process reads another one."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    return uri


def create_database(uri: str) -> None:
    """Makes the SQLite file of a tracking URI, whole or not at all, unless it is there.

    MLflow makes its tables in many transactions, over seconds, and cannot open a database in which a killed process has
    left some of them.
    """
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or path.exists() or not path.parent.is_dir():
        return
    from mlflow import MlflowClient

    made = path.with_name(f"{path.name}.new-{uuid.uuid4().hex}")
    MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
    try:
        os.link(made, path)
    except (FileExistsError, FileNotFoundError):
        if not path.exists():  # else another process was first, and may have cleared up
            raise
    for leftover in path.parent.glob(f"{path.name}.new-*"):  # of killed processes, too
        leftover.unlink(missing_ok=True)


class View:
    """A connection to the experiment of one study. Every method may raise what MLflow raises."""

    def __init__(self, study: Study, uri: str) -> None:
        # A dead server must be noticed in seconds; MLflow's own patience is minutes. And a request that is sent again
        # unasked may make a second run of a trial: we look what there is before we try again.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # importing MLflow sets its own level
            logging.getLogger(name).setLevel(logging.WARNING)
        self.study = study
        create_database(uri)
        self.client: MlflowClient = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.experiment_id = self._experiment(uri)
        self._save_views(mlflow_pages.trial_views(study))
        self.parent_id = self._parent()
        self.children: dict[str, _Child] = self._children()
        self.trials = {trial.config.id: trial for trial in study.trials}

    def extend(self, study: Study) -> None:
        """Takes the trials of a study that has grown."""
        self.study, self.trials = study, {trial.config.id: trial for trial in study.trials}

    def show(self, trial_id: str, status: str, rows: Iterable[Row], facts: Mapping[str, str]) -> None:
        """Brings a trial's run up to its rows and status. Rows that the run has already are not written again."""
        child = self.children.get(trial_id) or self._create_child(self.trials[trial_id])
        self.children[trial_id] = child
        if child.status == status and status != "running":
            return
        rows = list(rows)
        new = [row for row in rows if row["epoch"] > child.epoch]
        epoch = int(new[-1]["epoch"]) if new else child.epoch
        groups = [metrics_of(row) for row in new]
        if status != "running":
            groups.append(self._final_metrics(status, rows, epoch))
        tags = {"status": status, **facts} if status != child.status else {}
        for part in _in_batches(groups):
            self._log(child, part, tags)
        child.epoch = epoch
        if status != child.status:
            self._set_state(child, status, rows)

    def _log(self, child: _Child, metrics: list[Metric], tags: Mapping[str, str]) -> None:
        """One call; with it go the params, the first time."""
        from mlflow.entities import Param, RunTag

        named = [RunTag(f"vitscale.{key}", value) for key, value in tags.items() if value]
        params = [] if child.has_params else self._params(self.trials[child.trial_id])
        if metrics or named or params:
            entries = [Param(name, str(value)) for name, value in params]
            self.client.log_batch(child.run_id, metrics=metrics, params=entries, tags=named)
        child.has_params = True

    def _final_metrics(self, status: str, rows: list[Row], epoch: int) -> list[Metric]:
        from mlflow.entities import Metric

        final: dict[str, float] = {"failed": status == "failed"}
        if self.study.measures:
            runs = [row[self.study.metric] for row in rows]
            final |= {f"median_{self.study.metric}": statistics.median(runs)} if runs else {}
        else:
            error = 100.0 if status == "failed" or not rows else rows[-1][self.study.metric]
            final = {"final_error_pct": error, "diverged": status == "diverged", **final}
        return [Metric(name, float(value), _end_ms(rows), epoch) for name, value in final.items()]

    def _set_state(self, child: _Child, status: str, rows: list[Row]) -> None:
        """The state of the run, as MLflow knows states: a diverged trial is FINISHED, a tag tells it apart."""
        if status != "running":
            self.client.set_terminated(child.run_id, "FAILED" if status == "failed" else "FINISHED", _end_ms(rows))
        elif child.state != "RUNNING":
            self.client.update_run(child.run_id, status="RUNNING")
        child.status, child.state = status, "RUNNING" if status == "running" else "ended"

    def set_parent(self, state: str) -> None:
        """RUNNING, FINISHED, FAILED or KILLED."""
        if state == "RUNNING":
            self.client.update_run(self.parent_id, status=state)
        else:
            self.client.set_terminated(self.parent_id, status=state)

    def interrupt(self) -> None:
        """Marks the runs that a stopped driver leaves unfinished; the next start continues them."""
        from mlflow.entities import RunTag

        for child in self.children.values():
            if child.status in ("", "running"):  # "": left by a driver that was killed
                self.client.log_batch(child.run_id, tags=[RunTag("vitscale.status", "interrupted")])
                self.client.set_terminated(child.run_id, "KILLED")
                child.status = "interrupted"

    def summarize(self, metrics: Mapping[str, float], artifacts: Path | None, headline: Sequence[str] = ()) -> None:
        """Numbers named `arm/name` on a run for each arm; counts, description and the report's files on the parent."""
        arms: dict[str, dict[str, float]] = {arm: {} for arm in self.study.arms}
        for key, value in metrics.items():
            arm, _, name = key.rpartition("/")
            if math.isfinite(value):
                arms[arm][_key(name)] = float(value)
        self._save_views(mlflow_pages.arm_view(name for of_arm in arms.values() for name in of_arm))
        known = {run.data.tags["vitscale.arm"]: run for run in self._search("arm")}
        for arm, of_arm in arms.items():
            if of_arm:
                self._show_arm(arm, of_arm, known.get(arm))
        parent = self.client.get_run(self.parent_id)
        self._log_news(parent, self._counts(), mlflow_pages.description(self.study, arms, headline))
        if artifacts is not None and artifacts.is_dir():
            self.client.log_artifacts(self.parent_id, str(artifacts))

    def _save_views(self, views: Mapping[str, Mapping[str, object]]) -> None:
        """Saves views of the experiment's runs, but for those that it has just so."""
        experiment = self.client.get_experiment(self.experiment_id)
        for tag, value in mlflow_pages.tags(views, experiment.creation_time or 0).items():
            if experiment.tags.get(tag) != value:
                self.client.set_experiment_tag(self.experiment_id, tag, value)

    def _show_arm(self, arm: str, metrics: Mapping[str, float], run: Run | None) -> None:
        """Brings an arm's run up to date. Params cannot be changed: an arm made of other things gets a new run."""
        from mlflow.entities import Param

        params = self._common_params(arm)
        if run is not None and run.data.params != params:
            self.client.delete_run(run.info.run_id)
            run = None
        if run is None:
            tags = {"mlflow.parentRunId": self.parent_id, "mlflow.runName": arm, "vitscale.role": "arm",
                    "vitscale.study": self.study.slug, "vitscale.arm": arm}  # fmt: skip
            run = self.client.create_run(self.experiment_id, tags=tags)
            self.client.log_batch(run.info.run_id, params=[Param(name, value) for name, value in params.items()])
        self._log_news(run, metrics)
        state = "KILLED" if metrics.get("missing") else "FAILED" if metrics.get("failed") else "FINISHED"
        if run.info.status != state:
            self.client.set_terminated(run.info.run_id, state)

    def _common_params(self, arm: str) -> dict[str, str]:
        """What all trials of an arm share."""
        of_arm = [dict(self._params(trial)) for trial in self.study.trials if trial.arm == arm]
        shared = set.intersection(*(set(params.items()) for params in of_arm))
        return {name: str(value) for name, value in of_arm[0].items() if (name, value) in shared and name != "point"}

    def _counts(self) -> dict[str, float]:
        """How many trials of the study ended how; what has no outcome yet is missing."""
        ended = Counter(self.children[i].status for i in self.trials if i in self.children)
        names = ("finished", "diverged", "stopped", "failed")
        counts = {name: float(ended[name]) for name in names if name != "stopped" or ended[name]}
        total = len(self.trials)
        return {"num_trials": float(total), **counts, "missing": total - sum(counts.values())}

    def _log_news(self, run: Run, metrics: Mapping[str, float], note: str = "") -> None:
        """Logs what the run does not show already."""
        from mlflow.entities import Metric, RunTag

        now, have = int(time.time() * 1000), run.data.metrics
        entries = [Metric(name, value, now, 0) for name, value in metrics.items() if have.get(name) != value]
        news = [RunTag("mlflow.note.content", note)] if note != run.data.tags.get("mlflow.note.content", "") else []
        if entries or news:
            self.client.log_batch(run.info.run_id, metrics=entries, tags=news)

    def page(self, uri: str) -> str:
        """Where to look at the study, once a server shows the store: its trials with their charts."""
        base = uri if uri.startswith("http") else "http://127.0.0.1:5000"
        return mlflow_pages.address(base, self.experiment_id, mlflow_pages.TRIALS)

    def _experiment(self, uri: str) -> str:
        name = self.study.slug
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            return found.experiment_id
        # Beside the database, and absolute: MLflow's default is relative to whoever asks.
        place = f"{Path(uri.removeprefix('sqlite:///')).parent}/mlruns/{name}" if uri.startswith("sqlite") else None
        return self.client.create_experiment(name, artifact_location=place, tags={
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.note.content": f"{self.study.question}\n\nSource: {self.study.source}", "vitscale.study": name,
        })  # fmt: skip

    def _parent(self) -> str:
        found = self.client.search_runs([self.experiment_id], "tags.`vitscale.role` = 'study'", max_results=1)
        if found:
            return found[0].info.run_id
        tags = {"vitscale.role": "study", "vitscale.study": self.study.slug, "mlflow.runName": self.study.slug,
                "mlflow.note.content": f"{self.study.question}\n\nSource: {self.study.source}"}  # fmt: skip
        return self.client.create_run(self.experiment_id, tags=tags).info.run_id

    def _children(self) -> dict[str, _Child]:
        return {run.data.tags["vitscale.trial_id"]: _Child(run) for run in self._search("trial")}

    def _search(self, role: str) -> list[Run]:
        """All runs of the experiment in a role."""
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], f"tags.`vitscale.role` = '{role}'", max_results=10_000, page_token=token
            )
            runs, token = [*runs, *page], page.token
            if not token:
                return runs

    def _create_child(self, trial: Trial) -> _Child:
        point = _point(trial)
        tags = {"mlflow.parentRunId": self.parent_id, "mlflow.runName": f"{trial.arm} {point}",
                "vitscale.role": "trial", "vitscale.trial_id": trial.config.id, "vitscale.study": self.study.slug,
                "vitscale.arm": trial.arm, "vitscale.point": point}  # fmt: skip
        return _Child(self.client.create_run(self.experiment_id, tags=tags))

    def _params(self, trial: Trial) -> list[tuple[str, object]]:
        """Every field of the config under its name, and what MLflow's charts need as numbers."""
        config, cost = trial.config, complexity(trial.config)
        params = {"arm": trial.arm, "point": _point(trial), **config.asdict(), "log10_lr": _log10(config.lr),
                  "lr_used": config.peak_lr, "params_m": f"{cost.params / 1e6:.4g}",
                  "flops_g": f"{cost.flops / 1e9:.4g}", "samples": config.num_samples,
                  "training_flops": f"{training_flops(config):.4g}"}  # fmt: skip
        if isinstance(config, ProfileConfig):  # lr and the like have no bearing on a speed
            own = BEARING[config.profile] | {"profile", "layout", "timed_runs", "hardware"}
            return [(k, v) for k, v in params.items() if k in own | {"arm", "point", "params_m", "flops_g"}]
        return list((params | ({"log10_wd": _log10(config.wd)} if config.wd > 0 else {})).items())


class _Child:
    """What is known of a trial's run: its id, the last epoch it shows, its status and state."""

    def __init__(self, run: Run) -> None:
        self.run_id, self.state = run.info.run_id, run.info.status
        self.trial_id = run.data.tags["vitscale.trial_id"]
        self.epoch = int(run.data.metrics.get("epoch", 0))
        self.has_params = bool(run.data.params)
        # A run that a killed driver left RUNNING is brought up to date whatever its tag says.
        self.status = run.data.tags.get("vitscale.status", "") if self.state != "RUNNING" else ""


def _point(trial: Trial) -> str:
    return "reference" if trial.point is None else f"{trial.point:03d}"


def _log10(value: float) -> str:
    return f"{math.log10(value):.4f}"


def _end_ms(rows: list[Row]) -> int:
    """When a trial ended: the time of its last row, so that telling it twice is telling it once."""
    return int(rows[-1]["unix_s"] * 1000) if rows else int(time.time() * 1000)


def metrics_of(row: Row) -> list[Metric]:
    """The metrics of a row at MLflow step `epoch`, with the time at which the row was made."""
    from mlflow.entities import Metric

    at, step = int(row["unix_s"] * 1000), int(row["epoch"])
    named = {"epoch": row["epoch"], **{k: v for k, v in row.items() if k not in _NOT_METRICS}}
    return [Metric(_key(name), value, at, step) for name, value in named.items()]


def _in_batches(rows: Iterable[list[Metric]]) -> Iterable[list[Metric]]:
    """Whole rows, in batches of at most 1,000 metrics (MLflow's limit): a row is shown whole or not at all.

    At least one batch, be it empty.
    """
    batch: list[Metric] = []
    for row in rows:
        if len(batch) + len(row) > 1000:
            yield batch
            batch = []
        batch = batch + row
    yield batch


def _key(name: str) -> str:
    """MLflow allows letters, digits and _-./: and spaces in a name."""
    return "".join(c if c.isalnum() or c in "_-./: " else "_" for c in name)


class Mirror:
    """A thread that writes the view of a running study. `put` never waits and never raises."""

    def __init__(self, study: Study, uri: str) -> None:
        self.study, self.uri = study, uri
        self.latest: dict[str, tuple[str, list[Row], dict[str, str]]] = {}  # news that is not written yet
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.view: View | None = None
        self.error = ""  # of the last try; empty if it went well
        self.thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> Mirror:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()

    def put(self, trial_id: str, status: str, rows: Iterable[Row], facts: Mapping[str, str]) -> None:
        """Tells the latest of a trial; it replaces what was told of it before."""
        with self.lock:
            self.latest[trial_id] = (status, list(rows), dict(facts))

    def finish(self, last_words: Callable[[View], None]) -> str:
        """Writes what is left, then calls `last_words` with the view; returns "" or why it could not be done.

        Waits as long as the server takes something at least every PATIENCE_S.
        """
        self.closing.set()
        left = -1
        while self.thread.is_alive() and len(self.latest) != left:
            left = len(self.latest)
            self.thread.join(PATIENCE_S)
        if self.thread.is_alive():
            return self.error or f"no answer within {PATIENCE_S:.0f} s"
        if not self.error:
            self._attempt(lambda: last_words(self._connected()))
        return self.error

    def _run(self) -> None:
        import mlflow  # noqa: F401  takes seconds, which pass beside the first steps of the driver

        while not self.closing.wait(RETRY_EVERY_S if self.error else WRITE_EVERY_S):
            self._attempt(self._write)
        self._attempt(self._write)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
            self.error = ""
        except Exception as error:  # a view must never stop a training, whatever a server answers
            self.error = f"{type(error).__name__}: {error}".splitlines()[0]
            self.view = None  # it may have written a part: read it anew

    def _connected(self) -> View:
        self.view = self.view or View(self.study, self.uri)
        if self.view.study is not self.study:  # a search has grown
            self.view.extend(self.study)
        return self.view

    def _write(self) -> None:
        with self.lock:
            news = list(self.latest.items())
        if not news:
            return
        if self.view is None:
            self._connected().set_parent("RUNNING")
        view = self._connected()
        for trial_id, told in news:
            view.show(trial_id, *told)
            with self.lock:
                if self.latest.get(trial_id) == told:
                    del self.latest[trial_id]


def state_of(statuses: Collection[str]) -> str:
    """The state of the parent run: FINISHED if every trial has an outcome, FAILED if some failed, else KILLED."""
    if "missing" in statuses:
        return "KILLED"
    return "FAILED" if "failed" in statuses else "FINISHED"


def synchronize(view: View, read: Mapping[str, tuple[list[Row], dict[str, str]]]) -> int:
    """Shows every trial that has an outcome in the store; returns how many."""
    done: dict[str, Any] = {i: entry for i, entry in read.items() if entry[1]["status"] != "missing"}
    for trial_id, (rows, facts) in done.items():
        view.show(trial_id, facts["status"], rows, facts)
    return len(done)
