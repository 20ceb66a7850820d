"""The runs of a study's trials: one per trial for life, a child of the study's run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vitscale.plan.trial import Trial
from vitscale.record.mlflow import pages
from vitscale.record.mlflow.client import GONE, code_of
from vitscale.record.mlflow.contents import end_state
from vitscale.record.mlflow.experiment import StudyExperiment
from vitscale.record.mlflow.metrics import (
    batches,
    end_ms,
    evaluation_metrics,
    finite_metrics,
    row_metrics,
)
from vitscale.record.mlflow.run_cache import BEGAN, EPOCH, UNPLANNED, ChildRun, RunCache
from vitscale.record.outcome import Outcome, Status, value_at

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

FINAL = (Status.FINISHED, Status.DIVERGED, Status.FAILED, Status.STOPPED)
MAX_IDS = 100  # in the filter of a request


class TrialRuns:
    """The runs of trials on the server, with their states by trial id in `children`."""

    def __init__(self, experiment: StudyExperiment, cache: RunCache) -> None:
        self.experiment, self.client = experiment, experiment.client
        self.contents = experiment.contents
        self.children = self._read(cache)

    # ---- what the server has

    def _read(self, cache: RunCache) -> dict[str, ChildRun]:
        """Runs by trial id: those in the cache, without deleted ones, and those created since."""
        role, children = "tags.`vitscale.role` = 'trial'", dict(cache.children)
        since = self.experiment.since_cache if children else ""
        if children:
            deleted = {run.info.run_id for run in self.experiment.runs(role, deleted=True)}
            children = {i: child for i, child in children.items() if child.run_id not in deleted}
        for run in [*self.experiment.runs(role + since), *self._unfinished(children)]:
            trial_id = run.data.tags["vitscale.trial_id"]
            child = ChildRun.from_run(run, self._digest_of(run, trial_id))
            twin = children.get(trial_id, child)
            if twin.run_id != child.run_id:  # of a request that was done after its reply was lost
                child, twin = sorted((child, twin), key=lambda either: -either.epoch)
                self.client.delete_run(twin.run_id)
            children[trial_id] = child
        return children

    def _unfinished(self, children: Mapping[str, ChildRun]) -> Iterator[Run]:
        """The runs of a cache whose trials had no result: what a driver showed of them after it had
        saved the cache, before it was killed, would otherwise be shown twice.
        """
        ids = [child.run_id for child in children.values() if child.status not in FINAL]
        for start in range(0, len(ids), MAX_IDS):
            names = ", ".join(f"'{run_id}'" for run_id in ids[start : start + MAX_IDS])
            yield from self.experiment.runs(f"attributes.run_id IN ({names})")

    def _digest_of(self, run: Run, trial_id: str) -> str:
        """The digest of a run's params and tags on the server; empty if they are out of date."""
        params, tags, contents = run.data.params, run.data.tags, self.contents
        if trial_id not in contents.trials:
            return UNPLANNED if tags.get("vitscale.planned") == "false" else ""
        trial = contents.trials[trial_id]
        is_current = (
            contents.params_of(trial).items() <= params.items()
            and contents.tags_of(trial).items() <= tags.items()
        )
        return contents.digest(trial_id) if is_current else ""

    # ---- what a trial shows

    def show(self, trial_id: str, outcome: Outcome) -> None:
        """Updates a trial's run to its rows and status; logs only rows that the run lacks."""
        try:
            self._show(trial_id, outcome)
        except Exception as error:
            if code_of(error) != GONE or self.children.pop(trial_id, None) is None:
                raise
            self._show(trial_id, outcome)  # its run was permanently deleted from the server

    def _show(self, trial_id: str, outcome: Outcome) -> None:
        trial, digest = self.contents.trials[trial_id], self.contents.digest(trial_id)
        status, child = outcome.status, self.children.get(trial_id)
        if child is not None and _is_other_training(child, outcome):
            self.client.delete_run(child.run_id)
            child = None
        if child is None or child.digest != digest:
            child = self.children[trial_id] = self._renewed(child, trial)
        elif child.status == status and status is not Status.RUNNING:
            return
        new = [row for row in outcome.rows if row["epoch"] > child.epoch]
        epoch = int(new[-1]["epoch"]) if new else child.epoch
        groups = [row_metrics(row, self.contents.study.metric) for row in new]
        if status not in (Status.RUNNING, child.status):
            groups.append(self._final_metrics(child, outcome, epoch))
        tags = {"status": status.value, **outcome.facts} if status != child.status else {}
        if new and not child.epoch:
            child.began_s = outcome.rows[0]["unix_s"]
            tags |= {BEGAN: repr(child.began_s)}
        for batch in batches(groups):
            self._log(child, trial, batch, tags)
        child.epoch = epoch
        if child.error and not outcome.error:  # the trial is being retried
            self.client.delete_tag(child.run_id, "vitscale.error")
        child.error = bool(outcome.error)
        if status != child.status:
            self._set_state(child, outcome)

    def _log(
        self, child: ChildRun, trial: Trial, metrics: list[Metric], tags: Mapping[str, str]
    ) -> None:
        """Logs metrics and tags in one call; the first call also logs the params."""
        from mlflow.entities import Param, RunTag

        digest = self.contents.digest(trial.config.id)
        new_params = self.contents.params_of(trial) if child.digest != digest else {}
        params = [Param(name, value) for name, value in new_params.items()]
        named = [RunTag(f"vitscale.{key}", value) for key, value in tags.items() if value]
        if metrics:
            named.append(RunTag(f"vitscale.{EPOCH}", str(metrics[-1].step)))
        if metrics or named or params:
            self.client.log_batch(child.run_id, metrics=metrics, params=params, tags=named)
        child.digest = digest

    def _renewed(self, child: ChildRun | None, trial: Trial) -> ChildRun:
        """The run of a trial with updated tags; a new run if a param has changed.

        MLflow cannot change a param. Missing params are logged with the next metrics.
        """
        params, tags = self.contents.params_of(trial), self.contents.tags_of(trial)
        if child is not None:
            run = self.client.get_run(child.run_id)
            if all(run.data.params.get(name, value) == value for name, value in params.items()):
                self.experiment.log_changes(run, tags)
                return child
            self.client.delete_run(child.run_id)
        return ChildRun.from_run(self.experiment.create_run(tags), digest="")

    def _final_metrics(self, child: ChildRun, outcome: Outcome, epoch: int) -> list[Metric]:
        """The final metrics of a trial; none for a missing one, which has no result.

        Each start tries a failed trial again, and may log its end again. MLflow keeps one of two
        equal metrics of the same time, and shows the later one of a step: a failed trial, whose
        outcome has no rows, has the time at which its run began.
        """
        from mlflow.entities import Metric

        study, rows = self.contents.study, outcome.rows
        if outcome.status is Status.MISSING:
            return []
        ended_ms = end_ms(rows) if rows else self.client.get_run(child.run_id).info.start_time
        numbers = {pages.result_of(study): outcome.final(study.column)}
        return [
            Metric(name, value, ended_ms, epoch) for name, value in finite_metrics(numbers).items()
        ]

    def _set_state(self, child: ChildRun, outcome: Outcome) -> None:
        """Sets MLflow's state of the run: a diverged trial is FINISHED, and a tag marks it."""
        running = outcome.status is Status.RUNNING
        if not running:
            state = end_state({outcome.status})
            self.client.set_terminated(child.run_id, state, end_ms(outcome.rows))
        elif child.state != "RUNNING":
            self.client.update_run(child.run_id, status="RUNNING")
        child.status, child.state = outcome.status.value, "RUNNING" if running else "ended"

    def show_evaluations(self, trial_id: str, outcomes: Iterable[Outcome]) -> None:
        """Adds later evaluations to a trial's run, as `evaluation/NAME/error_pct` and so on.

        Metrics have the time of the evaluation, so adding them again changes nothing.
        """
        for batch in batches(evaluation_metrics(outcome) for outcome in outcomes):
            if batch:
                self.client.log_batch(self.children[trial_id].run_id, metrics=batch)

    # ---- what a plan or a driver leaves

    def rename(self, most: int | None = None) -> None:
        """Brings runs of trials that go by another arm, point or colour now up to date, at most so
        many: also of those that nothing is known of yet, which `show` would leave as they were.
        """
        trials = self.contents.trials
        stale = [
            (trials[i], child)
            for i, child in self.children.items()
            if i in trials and child.digest != self.contents.digest(i)
        ]
        for trial, child in stale[:most]:
            renewed = self.children[trial.config.id] = self._renewed(child, trial)
            self._log(renewed, trial, [], {})

    def mark_unplanned(self, most: int | None = None) -> None:
        """Tags runs of trials that the study no longer plans, at most `most`; views hide them."""
        unplanned = [
            child
            for i, child in self.children.items()
            if i not in self.contents.trials and child.digest != UNPLANNED
        ]
        for child in unplanned[:most]:
            try:
                self.client.set_tag(child.run_id, "vitscale.planned", "false")
            except Exception as error:
                if code_of(error) != GONE:
                    raise
            child.digest = UNPLANNED

    def interrupt(self) -> None:
        """Tags the runs that this driver leaves unfinished; the next start continues them."""
        from mlflow.entities import RunTag

        for child in self.children.values():
            if child.status in ("", Status.RUNNING):  # "": a killed driver left it
                self.client.log_batch(child.run_id, tags=[RunTag("vitscale.status", "interrupted")])
                self.client.set_terminated(child.run_id, "KILLED")
                child.status, child.state = "interrupted", "ended"


def _is_other_training(child: ChildRun, outcome: Outcome) -> bool:
    """Whether rows are of another training than a run shows: then the trial was trained again."""
    rows = outcome.rows
    return bool(child.began_s and rows) and value_at(rows, 0, "unix_s") != child.began_s
