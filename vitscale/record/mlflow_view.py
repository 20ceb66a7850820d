"""The MLflow view of a study: one experiment, one parent run, one child run per trial for life.

Everything in the view is in the store as well, and `synchronize` can rebuild it. While a study
runs, one thread of the driver writes the view. It retries what it could not write, so a tracking
server that is slow or down neither stops nor slows down training.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import columns_of
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record import mlflow_pages
from vitscale.record.mlflow_known import BEGAN, UNPLANNED, Child, Known, recall, remember
from vitscale.record.mlflow_params import Params, point_of
from vitscale.record.mlflow_place import (
    artifacts_of,
    create_database,
    experiment_prefix,
    follow_move,
    without_user,
)
from vitscale.record.outcome import ENDINGS, Outcome, Row, Status, value_at
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Run

RETRY_EVERY_S = 5.0
PATIENCE_S = 30.0
REMEMBER_EVERY_S = 30.0
WRITE_EVERY_S = 2.0  # a row is in the UI about this long after it was reported
PAGE, MIN_PAGE = 200, 10  # runs per request
PAUSES_S = (0.5, 2.0)  # before each retry of a request
FINAL = (Status.FINISHED, Status.DIVERGED, Status.FAILED, Status.STOPPED)
MARGIN_MS = 120_000  # clock difference between machines that run a study in turn
_sorted_json = json.JSONEncoder(sort_keys=True).encode
_NOT_METRICS = ("unix_s", "step", "epoch")  # epoch is the MLflow step


T = TypeVar("T")
Colors = Callable[[Study], Mapping[str, str]]  # arm -> "#rrggbb"


class View:
    """A connection to the MLflow experiment of one study of one store.

    `reread` reads every run from the server; else only those not in the store's cache. Every
    method may raise exceptions of MLflow, and TakenOver where `may_write`, which is asked before
    each request, says no.
    """

    def __init__(
        self,
        study: Study,
        uri: str,
        store: Store,
        colors: Colors | None = None,
        *,
        reread: bool = False,
        may_write: Callable[[], bool] = lambda: True,
    ):
        self.uri, self.store, self.store_id, self.colors = uri, store, store.identity(), colors
        create_database(uri)
        follow_move(uri)
        self.client: MlflowClient = cast("MlflowClient", _Patient(client_of(uri), may_write))
        self._plan(study)
        cached = recall(store, study.slug, uri)
        self.saved_ms, known = cached.saved_ms, Known() if reread else cached
        experiment = self._experiment(known.experiment_id)
        self.experiment_id = experiment.experiment_id
        self._save_views(mlflow_pages.trial_views(study), experiment)
        self.parent_id = self._parent(
            known.parent_id if known.experiment_id == self.experiment_id else ""
        )
        self.children = self._children(known if known.parent_id == self.parent_id else Known())

    @property
    def trials(self) -> Mapping[str, Trial]:
        return self._trials

    def _plan(self, study: Study) -> None:
        """Splits params into `varying`, logged per trial, and `shared`, logged on the parent."""
        self.study = study
        self._trials = {trial.config.id: trial for trial in study.trials}
        self._digests: dict[str, str] = {}
        self._of_arm = self.colors(study) if self.colors else {}
        self.params = Params(study.measured)
        axes = mlflow_pages.axes(study)
        self.varying = frozenset({"arm", "point", *axes, *self.params.varying(study.trials)})
        first = self.params.of(study.trials[0])
        self.shared = {name: value for name, value in first.items() if name not in self.varying}

    def extend(self, study: Study) -> None:
        """Adds the new trials of a study that has grown."""
        self._plan(study)
        self.parent_id = self._parent(self.parent_id)

    def save(self) -> None:
        """Writes the cache of runs to the store. Raises OSError."""
        known = Known(self.experiment_id, self.parent_id, children=self.children)
        remember(self.store, self.study.slug, self.uri, known)

    def show(self, trial_id: str, outcome: Outcome) -> None:
        """Updates a trial's run to its rows and status; logs only rows that the run lacks."""
        try:
            self._show(trial_id, outcome)
        except Exception as error:
            if not _is_gone(error) or self.children.pop(trial_id, None) is None:
                raise
            self._show(trial_id, outcome)  # its run was permanently deleted from the server

    def _show(self, trial_id: str, outcome: Outcome) -> None:
        trial, digest, status = self.trials[trial_id], self._digest(trial_id), outcome.status
        child = self.children.get(trial_id)
        if (
            child is not None
            and child.digest == digest
            and child.status == status
            and status is not Status.RUNNING
            and not _is_other_training(child, outcome)
        ):
            return
        if child is not None and _is_other_training(child, outcome):
            self.client.delete_run(child.run_id)
            child = None
        if child is None or child.digest != digest:
            child = self.children[trial_id] = self._renewed(child, trial)
        new = [row for row in outcome.rows if row["epoch"] > child.epoch]
        epoch = int(new[-1]["epoch"]) if new else child.epoch
        groups = [metrics_of(row) for row in new]
        if status not in (Status.RUNNING, child.status):
            groups.append(self._final_metrics(child, outcome, epoch))
        tags = {"status": status.value, **outcome.facts} if status != child.status else {}
        if new and not child.epoch:
            child.began_s = outcome.rows[0]["unix_s"]
            tags |= {BEGAN: repr(child.began_s)}
        for part in _in_batches(groups):
            self._log(child, trial, part, tags)
        child.epoch = epoch
        if child.error and not outcome.error:  # the trial is being retried
            self.client.delete_tag(child.run_id, "vitscale.error")
        child.error = bool(outcome.error)
        if status != child.status:
            self._set_state(child, outcome)

    def _log(
        self, child: Child, trial: Trial, metrics: list[Metric], tags: Mapping[str, str]
    ) -> None:
        """Logs metrics and tags in one call; the first call also logs the params."""
        from mlflow.entities import Param, RunTag

        digest = self._digest(trial.config.id)
        named = [RunTag(f"vitscale.{key}", value) for key, value in tags.items() if value]
        params = (
            [Param(*entry) for entry in self._params_of(trial).items()]
            if child.digest != digest
            else []
        )
        if metrics or named or params:
            self.client.log_batch(child.run_id, metrics=metrics, params=params, tags=named)
        child.digest = digest

    def _digest(self, trial_id: str) -> str:
        """A digest of the params and tags of a trial's run that do not change during training."""
        if trial_id not in self._digests:
            trial = self.trials[trial_id]
            text = _sorted_json([self._params_of(trial), self._tags_of(trial)])
            self._digests[trial_id] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._digests[trial_id]

    def _renewed(self, child: Child | None, trial: Trial) -> Child:
        """The run of a trial with updated tags; a new run if a param has changed.

        MLflow cannot change a param. Missing params are logged with the next metrics.
        """
        params, tags = self._params_of(trial), self._tags_of(trial)
        if child is not None:
            run = self.client.get_run(child.run_id)
            if all(run.data.params.get(name, value) == value for name, value in params.items()):
                self._set_tags(run, tags)
                return child
            self.client.delete_run(child.run_id)
        return Child.read(self._create_run(tags), digest="")

    def _create_run(self, tags: Mapping[str, str]) -> Run:
        """A new run, which starts after what the cache has seen, by whatever clock that was saved:
        otherwise a later start, which asks for the runs since, would not find it.
        """
        began_ms = max(int(time.time() * 1000), self.saved_ms - MARGIN_MS)
        return self.client.create_run(self.experiment_id, start_time=began_ms, tags=dict(tags))

    def _set_tags(self, run: Run, tags: Mapping[str, str]) -> None:
        """Sets the tags that a run lacks or that have another value."""
        from mlflow.entities import RunTag

        news = [
            RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value
        ]
        if news:
            self.client.log_batch(run.info.run_id, tags=news)

    def rename(self, most: int | None = None) -> None:
        """Brings runs of trials that go by another arm, point or colour now up to date, at most so
        many: also of those that nothing is known of yet, which `show` would leave as they were.
        """
        stale = [
            (i, child)
            for i, child in self.children.items()
            if i in self.trials and child.digest != self._digest(i)
        ]
        for trial_id, child in stale[:most]:
            trial = self.trials[trial_id]
            renewed = self.children[trial_id] = self._renewed(child, trial)
            self._log(renewed, trial, [], {})

    def mark_unplanned(self, most: int | None = None) -> None:
        """Tags runs of trials that the study no longer plans, at most `most`; views hide them."""
        gone = [
            c for i, c in self.children.items() if i not in self.trials and c.digest != UNPLANNED
        ]
        for child in gone[:most]:
            try:
                self.client.set_tag(child.run_id, "vitscale.planned", "false")
            except Exception as error:
                if not _is_gone(error):
                    raise
            child.digest = UNPLANNED

    def _final_metrics(self, child: Child, outcome: Outcome, epoch: int) -> list[Metric]:
        """The final metrics of a trial; none for a missing one, which has no result.

        Each start tries a failed trial again, and may log its end again. MLflow keeps one of two
        equal metrics of the same time, and shows the later one of a step: a failed trial, whose
        outcome has no rows, has the time at which its run began.
        """
        from mlflow.entities import Metric

        if outcome.status is Status.MISSING:
            return []
        rows = outcome.rows
        ended_ms = _end_ms(rows) if rows else self.client.get_run(child.run_id).info.start_time
        final: dict[str, float] = {
            mlflow_pages.result_of(self.study): outcome.final(self.study.column),
            "diverged": outcome.status is Status.DIVERGED,
            "failed": outcome.status is Status.FAILED,
        }
        return [
            Metric(name, float(value), ended_ms, epoch)
            for name, value in final.items()
            if math.isfinite(value)  # MLflow stores infinity as 1.8e308, which breaks charts
        ]

    def _set_state(self, child: Child, outcome: Outcome) -> None:
        """Sets MLflow's state of the run: a diverged trial is FINISHED, and a tag marks it."""
        running = outcome.status is Status.RUNNING
        if not running:
            state = {Status.FAILED: "FAILED", Status.MISSING: "KILLED"}.get(
                outcome.status, "FINISHED"
            )
            self.client.set_terminated(child.run_id, state, _end_ms(outcome.rows))
        elif child.state != "RUNNING":
            self.client.update_run(child.run_id, status="RUNNING")
        child.status, child.state = outcome.status.value, "RUNNING" if running else "ended"

    def show_evaluations(self, trial_id: str, outcomes: Iterable[Outcome]) -> None:
        """Adds later evaluations to a trial's run, as `evaluation/NAME/error_pct` and so on.

        Metrics have the time of the evaluation, so adding them again changes nothing.
        """
        child = self.children.get(trial_id)
        groups = [evaluation_metrics(outcome) for outcome in outcomes]
        for part in _in_batches(groups) if child is not None else ():
            if part and child is not None:
                self.client.log_batch(child.run_id, metrics=part)

    def set_parent(self, state: str) -> None:
        """Sets the parent run to RUNNING, FINISHED, FAILED or KILLED."""
        if state == "RUNNING":
            self.client.update_run(self.parent_id, status=state)
        else:
            self.client.set_terminated(self.parent_id, status=state)

    def interrupt(self) -> None:
        """Tags the runs that this driver leaves unfinished; the next start continues them."""
        from mlflow.entities import RunTag

        for child in self.children.values():
            if child.status in ("", Status.RUNNING):  # "": a killed driver left it
                self.client.log_batch(child.run_id, tags=[RunTag("vitscale.status", "interrupted")])
                self.client.set_terminated(child.run_id, "KILLED")
                child.status, child.state = "interrupted", "ended"

    def summarize(
        self,
        summary: Mapping[str, Mapping[str, float]],
        report: Workdir | None,
        headline: Sequence[str] = (),
    ) -> None:
        """Logs the numbers of `summary` to one run per arm, and the report to the parent run.

        The parent run also gets the counts of trials and a description.
        """
        arms = {arm: _metrics(summary.get(arm, {})) for arm in self.study.arms}
        self._save_views(mlflow_pages.arm_view(name for of_arm in arms.values() for name in of_arm))
        known = self._arm_runs()
        for arm, of_arm in arms.items():
            if of_arm:
                self._show_arm(arm, of_arm, known.get(arm))
        self._leave_arms_out(known)
        parent = self.client.get_run(self.parent_id)
        pages = mlflow_pages.links(self.experiment_id, self.parent_id)
        note = mlflow_pages.description(self.study, arms, headline, pages)
        self._log_news(parent, self._counts(), note)
        if report is not None and report.exists():
            with report.as_folder() as folder:
                self.client.log_artifacts(self.parent_id, str(folder))

    def _arm_runs(self) -> dict[str, Run]:
        """Runs of arms, also of those that are not planned any more."""
        found = self._search("tags.`vitscale.role` = 'arm'")
        return {run.data.tags["vitscale.arm"]: run for run in found}

    def leave_arms_out(self) -> None:
        """Marks runs of arms that the study does not have any more; pages then skip them."""
        self._leave_arms_out(self._arm_runs())

    def _leave_arms_out(self, known: Mapping[str, Run]) -> None:
        for arm in known.keys() - self.study.arms.keys():
            self._set_tags(known[arm], {"vitscale.planned": "false"})

    def _save_views(
        self, views: Mapping[str, Mapping[str, object]], experiment: Experiment | None = None
    ) -> None:
        """Saves views of the experiment's runs, unless they are saved and unchanged."""
        experiment = experiment or self.client.get_experiment(self.experiment_id)
        for tag, value in mlflow_pages.tags(views, experiment.creation_time or 0).items():
            if experiment.tags.get(tag) != value:
                self.client.set_experiment_tag(self.experiment_id, tag, value)

    def _show_arm(self, arm: str, metrics: Mapping[str, float], run: Run | None) -> None:
        """Updates an arm's run, or replaces it if its params, which are final, have changed."""
        from mlflow.entities import Param

        params = self._common_params(arm)
        tags = {
            "mlflow.parentRunId": self.parent_id,
            "mlflow.runName": arm,
            "vitscale.role": "arm",
            **self._origin(),
            "vitscale.arm": arm,
            **self._color(arm),
        }
        if run is not None and run.data.params != params:
            self.client.delete_run(run.info.run_id)
            run = None
        if run is None:
            run = self.client.create_run(self.experiment_id, tags=tags)
            self.client.log_batch(
                run.info.run_id, params=[Param(name, value) for name, value in params.items()]
            )
        self._set_tags(run, tags)
        self._log_news(run, metrics)
        state = (
            "KILLED"
            if metrics.get("missing")
            else "FAILED"
            if metrics.get("failed")
            else "FINISHED"
        )
        if run.info.status != state:
            self.client.set_terminated(run.info.run_id, state)

    def _common_params(self, arm: str) -> dict[str, str]:
        """The params that all trials of an arm share."""
        of_arm = [trial for trial in self.study.trials if trial.arm.name == arm]
        left_out = {"point", *self.params.varying(of_arm)}
        first = self.params.of(of_arm[0])
        return {name: value for name, value in first.items() if name not in left_out}

    def _counts(self) -> dict[str, float]:
        """The number of trials by status; a trial without an outcome is missing."""
        ended = Counter(self.children[i].status for i in self.trials if i in self.children)
        shown = [
            s for s in ENDINGS if s is not Status.MISSING and (s is not Status.STOPPED or ended[s])
        ]
        counts = {status.value: float(ended[status]) for status in shown}
        total = len(self.trials)
        return {"num_trials": float(total), **counts, "missing": total - sum(counts.values())}

    def _log_news(self, run: Run, metrics: Mapping[str, float], note: str = "") -> None:
        """Logs the metrics and the note that the run does not have yet."""
        from mlflow.entities import Metric, RunTag

        now, have = int(time.time() * 1000), run.data.metrics
        entries = [
            Metric(name, value, now, 0)
            for name, value in metrics.items()
            if have.get(name) != value
        ]
        news = (
            [RunTag("mlflow.note.content", note)]
            if note != run.data.tags.get("mlflow.note.content", "")
            else []
        )
        if entries or news:
            self.client.log_batch(run.info.run_id, metrics=entries, tags=news)

    def page(self, base: str = "http://127.0.0.1:5000") -> str:
        """The address of the study's trials and charts in the MLflow UI at `base`."""
        return mlflow_pages.address(
            without_user(self.uri) if self.uri.startswith("http") else base, self.experiment_id
        )

    def _experiment(self, known_id: str) -> Experiment:
        """The experiment of this study and store; one of another store is left untouched."""
        found = self._if_there(self.client.get_experiment, known_id)
        if found is not None and self._is_own(found.tags) and found.lifecycle_stage != "deleted":
            return found
        if tagged := self._tagged():
            return tagged
        usual = experiment_prefix() + self.study.slug
        for name in (usual, f"{usual}-{self.store_id[:8]}"):
            try:
                found = self.client.get_experiment_by_name(name)
            except Exception as error:
                if _is_forbidden(error):  # of another user
                    continue
                raise
            if found is None:
                made = self.client.create_experiment(
                    name,
                    artifact_location=artifacts_of(self.uri, name),
                    tags={
                        "mlflow.experimentKind": "custom_model_development",
                        **self._origin(),
                        "mlflow.note.content": mlflow_pages.about(self.study),
                    },
                )
                return self.client.get_experiment(made)
            if not self._is_own(found.tags):
                continue
            if found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            if "vitscale.store" not in found.tags:
                self.client.set_experiment_tag(found.experiment_id, "vitscale.store", self.store_id)
            return found
        raise ValueError(
            f"an experiment must be of this store and user, but got ({name!r}: of another)"
        )

    def _tagged(self) -> Experiment | None:
        """The experiment of this study and store, whatever its name; not one that was deleted."""
        found = self.client.search_experiments(
            filter_string=f"tags.`vitscale.store` = '{self.store_id}' and "
            f"tags.`vitscale.study` = '{self.study.slug}'"
        )
        return next(iter(found), None)

    def _if_there(self, get: Callable[[str], T], entity_id: str) -> T | None:
        """The entity with an id; None if the server no longer has it, or not for this user, or for
        an empty id.
        """
        try:
            return get(entity_id) if entity_id else None
        except Exception as error:
            if _is_gone(error) or _is_forbidden(error):
                return None
            raise

    def _is_own(self, tags: Mapping[str, str]) -> bool:
        """Whether an experiment is of this study and store, or of a version without store ids."""
        return (
            tags.get("vitscale.study") == self.study.slug
            and tags.get("vitscale.store", self.store_id) == self.store_id
        )

    def _origin(self) -> dict[str, str]:
        """Tags of every entity of this view; `mark_unplanned` changes `vitscale.planned`."""
        return {
            "vitscale.study": self.study.slug,
            "vitscale.store": self.store_id,
            "vitscale.planned": "true",
        }

    def _parent(self, known_id: str) -> str:
        """The parent run, with the params that all trials share; a new one if they change."""
        from mlflow.entities import Param

        run = self._if_there(self.client.get_run, known_id)
        if (
            run is None
            or run.info.lifecycle_stage == "deleted"
            or run.info.experiment_id != self.experiment_id
        ):
            run = None
        role = "tags.`vitscale.role` = 'study'"
        found = list(self._search(role + self._since() if run else role))
        run = run or next(iter(found), None)
        for twin in found:  # of a request that was done after its reply was lost
            if run is not None and twin.info.run_id != run.info.run_id:
                self.client.delete_run(twin.info.run_id)
        logged = {} if run is None else run.data.params
        if run is not None and any(
            n in self.varying or self.shared.get(n, v) != v for n, v in logged.items()
        ):
            self.client.delete_run(run.info.run_id)
            run = None
        tags = {"vitscale.role": "study", **self._origin(), "mlflow.runName": self.study.slug}
        if run is None:
            note = mlflow_pages.about(self.study)
            run = self._create_run({**tags, "mlflow.note.content": note})
        self._set_tags(run, tags)
        lacking = [
            Param(*entry) for entry in self.shared.items() if entry[0] not in run.data.params
        ]
        for start in range(0, len(lacking), 100):  # MLflow's limit
            self.client.log_batch(run.info.run_id, params=lacking[start : start + 100])
        return run.info.run_id

    def _since(self) -> str:
        """The condition of runs that were created after the cache was saved."""
        return f" and attributes.start_time >= {self.saved_ms - MARGIN_MS}"

    def _children(self, known: Known) -> dict[str, Child]:
        """Runs by trial id: those in the cache, without deleted ones, and those created since."""
        role = "tags.`vitscale.role` = 'trial'"
        since = self._since() if known.children else ""
        children = dict(known.children)
        if children:
            deleted = {run.info.run_id for run in self._search(role, deleted=True)}
            children = {i: child for i, child in children.items() if child.run_id not in deleted}
        found = [*self._search(role + since), *self._read_again(children)]
        for run in found:
            trial_id = run.data.tags["vitscale.trial_id"]
            child = Child.read(run, self._digest_of_run(run, trial_id))
            twin = children.get(trial_id, child)
            if twin.run_id != child.run_id:  # of a request that was done after its reply was lost
                child, twin = sorted((child, twin), key=lambda one: -one.epoch)
                self.client.delete_run(twin.run_id)
            children[trial_id] = child
        return children

    def _read_again(self, children: Mapping[str, Child]) -> Iterator[Run]:
        """The runs of a cache whose trials had no result: what a driver showed of them after it had
        saved the cache, before it was killed, would otherwise be shown twice.
        """
        ids = [child.run_id for child in children.values() if child.status not in FINAL]
        for start in range(0, len(ids), 100):
            names = ", ".join(f"'{run_id}'" for run_id in ids[start : start + 100])
            yield from self._search(f"attributes.run_id IN ({names})")

    def _digest_of_run(self, run: Run, trial_id: str) -> str:
        """The digest of a run's params and tags on the server; empty if they are out of date."""
        if trial_id not in self.trials:
            return UNPLANNED if run.data.tags.get("vitscale.planned") == "false" else ""
        trial = self.trials[trial_id]
        is_current = (
            self._params_of(trial).items() <= run.data.params.items()
            and self._tags_of(trial).items() <= run.data.tags.items()
        )
        return self._digest(trial_id) if is_current else ""

    def _search(self, filter_string: str, deleted: bool = False) -> Iterator[Run]:
        """Runs of the experiment, page by page; pages shrink if the server is too slow."""
        from mlflow.entities import ViewType

        kind, token, size = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY, None, PAGE
        while True:
            try:
                page = self.client.search_runs(
                    [self.experiment_id], filter_string, kind, max_results=size, page_token=token
                )
            except Exception as error:
                if not _may_pass(error) or size <= MIN_PAGE:
                    raise
                size //= 4
                time.sleep(PAUSES_S[0])
                continue
            yield from page
            token = page.token
            if not token:
                return

    def _tags_of(self, trial: Trial) -> dict[str, str]:
        """Tags of a trial's run that do not change during training."""
        seeded = isinstance(trial.config, TrainConfig) and trial.point is None
        seed = f" seed {trial.config.seed}" if seeded else ""
        name = f"{trial.arm.name} {point_of(trial)}{seed}"
        return {
            "mlflow.parentRunId": self.parent_id,
            "mlflow.runName": name,
            "vitscale.role": "trial",
            "vitscale.trial_id": trial.config.id,
            **self._origin(),
            "vitscale.arm": trial.arm.name,
            "vitscale.point": point_of(trial),
            **self._color(trial.arm.name),
            **_trunk_tags(trial.config),
        }

    def _color(self, arm: str) -> dict[str, str]:
        """The tag that makes MLflow draw a run in the colour of its arm."""
        return {"mlflow.runColor": self._of_arm[arm]} if arm in self._of_arm else {}

    def _params_of(self, trial: Trial) -> dict[str, str]:
        """The params of a trial that vary within its study."""
        return self.params.of(trial, self.varying)


def _trunk_tags(config: TrainConfig) -> dict[str, str]:
    """Where a trial starts, if that is in another one."""
    if not config.trunk:
        return {}
    return {"vitscale.trunk": config.trunk, "vitscale.trunk_step": str(config.trunk_step)}


def client_of(uri: str) -> MlflowClient:
    """A quiet client that detects a dead server in seconds; MLflow's defaults wait for minutes."""
    # MLflow's own retries could create a second run of a trial. `_Patient` retries all requests but
    # those that create something.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # importing MLflow sets its own level
        logging.getLogger(name).setLevel(logging.WARNING)
    # prints the traceback of every error of a database that it raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def pages(uri: str, store: Store, base: str) -> dict[str, str]:
    """Study -> the address of its page, for the store's studies on the server at `base`."""
    found = client_of(uri).search_experiments(
        filter_string=f"tags.`vitscale.store` = '{store.identity()}'", max_results=1000
    )
    named = {experiment.tags["vitscale.study"]: experiment.experiment_id for experiment in found}
    return {slug: mlflow_pages.address(base, named[slug]) for slug in sorted(named)}


class TakenOver(RuntimeError):
    """Another start of the study writes its view now."""


class _Patient:
    """A client that retries requests after a pause, except those that create a run."""

    def __init__(self, client: MlflowClient, may_write: Callable[[], bool]) -> None:
        self.client, self.may_write = client, may_write

    def __getattr__(self, name: str) -> Any:
        method = functools.partial(self._ask, getattr(self.client, name))
        return (
            method if name.startswith(("create_", "search_")) else functools.partial(_again, method)
        )

    def _ask(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T:
        if not self.may_write():
            raise TakenOver("another start of the study has taken it over")
        return method(*arguments, **options)


def _again(method: Callable[..., T], *arguments: Any, **options: Any) -> T:
    for pause_s in PAUSES_S:
        try:
            return method(*arguments, **options)
        except Exception as error:
            if not _may_pass(error):
                raise
            time.sleep(pause_s)
    return method(*arguments, **options)


def _may_pass(error: Exception) -> bool:
    """Whether an error may be temporary: the server was down, slow or broken."""
    codes = (
        "INTERNAL_ERROR",
        "TEMPORARILY_UNAVAILABLE",
        "REQUEST_LIMIT_EXCEEDED",
        "DEADLINE_EXCEEDED",
    )
    return getattr(error, "error_code", "") in codes


def _is_gone(error: Exception) -> bool:
    return getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST"


def _is_forbidden(error: Exception) -> bool:
    return getattr(error, "error_code", "") == "PERMISSION_DENIED"


def _end_ms(rows: Sequence[Row]) -> int:
    """End of a trial: the time of its last row, so that logging it again changes nothing. Without
    rows, now.
    """
    return int(rows[-1]["unix_s"] * 1000) if rows else int(time.time() * 1000)


def _is_other_training(child: Child, outcome: Outcome) -> bool:
    """Whether rows are of another training than a run shows: then the trial was trained again."""
    rows = outcome.rows
    return bool(child.began_s and rows) and value_at(rows, 0, "unix_s") != child.began_s


def metrics_of(row: Row) -> list[Metric]:
    """The metrics of a row at MLflow step `epoch`, with the time of the row."""
    from mlflow.entities import Metric

    at, step = int(row["unix_s"] * 1000), int(row["epoch"])
    named = {"epoch": row["epoch"], **{k: v for k, v in row.items() if k not in _NOT_METRICS}}
    return [Metric(_key(name), value, at, step) for name, value in named.items()]


def evaluation_metrics(outcome: Outcome) -> list[Metric]:
    """The metrics of an evaluation after the training, at the step of the last epoch."""
    from mlflow.entities import Metric

    (row,), facts = outcome.rows, outcome.facts
    at, step, split = int(row["unix_s"] * 1000), int(row["epoch"]), facts["split"]
    return [
        Metric(
            _key(f"evaluation/{facts['name']}/{of.weights}{of.metric.name}"), row[name], at, step
        )
        for name, of in columns_of(split).items()
        if name in row
    ]


def _in_batches(rows: Iterable[list[Metric]]) -> Iterable[list[Metric]]:
    """Splits rows into batches of at most 1,000 metrics (MLflow's limit), without splitting a row.

    There is at least one batch, which may be empty.
    """
    batch: list[Metric] = []
    for row in rows:
        if len(batch) + len(row) > 1000:
            yield batch
            batch = []
        batch = batch + row
    yield batch


def _metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """The finite numbers, under names that MLflow accepts."""
    return {_key(name): float(value) for name, value in numbers.items() if math.isfinite(value)}


def _key(name: str) -> str:
    """A name with only characters that MLflow allows: letters, digits, spaces and _-./:."""
    return "".join(c if c.isalnum() or c in "_-./: " else "_" for c in name)


class Mirror:
    """A thread that writes the view of a running study. `put` never blocks and never raises."""

    def __init__(
        self,
        study: Study,
        uri: str,
        store: Store,
        colors: Colors | None = None,
        warn: Callable[[str], None] = lambda error: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.study, self.uri, self.store, self.colors = study, uri, store, colors
        self.may_write = may_write  # is asked before each request
        self.warn = warn  # is called once, with the first error
        self.saved = time.monotonic()
        self.latest: dict[str, Outcome] = {}  # outcomes that are not written yet
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.view: View | None = None
        self.error = ""  # of the last attempt; empty if it succeeded
        self.warned = False
        self.thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> Mirror:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()

    def put(self, trial_id: str, outcome: Outcome) -> None:
        """Queues the latest outcome of a trial, in place of one that is queued already."""
        with self.lock:
            self.latest[trial_id] = outcome

    def finish(self, final_update: Callable[[View], None]) -> str:
        """Writes the queued outcomes, then calls `final_update`; returns "" or the error.

        Waits as long as the server accepts at least one outcome per PATIENCE_S.
        """
        self.closing.set()
        left = -1
        while self.thread.is_alive() and len(self.latest) != left:
            left = len(self.latest)
            self.thread.join(PATIENCE_S)
        if self.thread.is_alive():
            return self.error or f"no answer within {PATIENCE_S:.0f} s"
        if not self.error:
            self._attempt(lambda: final_update(self._connected()))
            self._save()
        return self.error

    def _run(self) -> None:
        import mlflow  # noqa: F401  takes seconds, in parallel with the first steps of the driver

        if self.uri.startswith("http"):  # a wrong password is said now, and not after the training
            self._attempt(lambda: client_of(self.uri).search_experiments(max_results=1))
        while not self.closing.wait(RETRY_EVERY_S if self.error else WRITE_EVERY_S):
            self._attempt(self._write)
        self._attempt(self._write)

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
            self.error = ""
        except Exception as error:  # the view must never stop training, whatever the server answers
            self.error = without_user(f"{type(error).__name__}: {error}".splitlines()[0])
            if not self.warned and not isinstance(error, TakenOver):
                self.warned = True
                self.warn(self.error)
            self._save()
            self.view = None  # it may have written a part: read the server again

    def _save(self) -> None:
        """Writes the cache of runs; if that fails, the next start reads them from the server.

        Not once another start writes it: this one knows nothing of the runs that are that one's.
        """
        self.saved = time.monotonic()
        with contextlib.suppress(OSError):
            if self.view is not None and self.may_write():
                self.view.save()

    def _connected(self) -> View:
        self.view = self.view or View(
            self.study, self.uri, self.store, self.colors, may_write=self.may_write
        )
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
            self._connected().leave_arms_out()
        view = self._connected()
        for trial_id, outcome in news:
            view.show(trial_id, outcome)
            with self.lock:
                if self.latest.get(trial_id) is outcome:
                    del self.latest[trial_id]
            if time.monotonic() - self.saved > REMEMBER_EVERY_S:
                self._save()
        view.rename(most=20)  # a slow server must stay free for news
        view.mark_unplanned(most=100)


def state_of(read: Mapping[str, Outcome]) -> str:
    """The parent's state: KILLED if a trial is missing, else FAILED if any failed, or FINISHED."""
    statuses = {outcome.status for outcome in read.values()}
    if Status.MISSING in statuses:
        return "KILLED"
    return "FAILED" if Status.FAILED in statuses else "FINISHED"


def synchronize(
    view: View, read: Mapping[str, Outcome], may_create: Callable[[], bool] = lambda: True
) -> int:
    """Shows all outcomes of the store, and marks runs whose trial has none any more.

    `may_create` is asked before a trial gets a run: only one process at a time may give it one.
    Returns the number of trials with an outcome that are shown.
    """
    view.mark_unplanned()
    num = 0
    for trial_id, outcome in read.items():
        child = view.children.get(trial_id)
        if outcome.is_known or outcome.error:
            if child is None and not may_create():
                continue
            view.show(trial_id, outcome)
            num += outcome.is_known
        elif child is not None and child.status in ENDINGS and child.status != Status.MISSING:
            view.show(trial_id, outcome.because("the store no longer has its outcome"))
    view.rename()
    return num
