"""The MLflow view of a study, as a driver or `vitscale sync` writes it.

Everything in the view is in the store as well, and `synchronize` can rebuild it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from vitscale.plan.study import Study
from vitscale.record.mlflow import pages
from vitscale.record.mlflow.arm_runs import arm_runs, leave_arms_out, show_arms
from vitscale.record.mlflow.client import PatientClient, client_of
from vitscale.record.mlflow.contents import Colors, Contents, end_state
from vitscale.record.mlflow.experiment import StudyExperiment
from vitscale.record.mlflow.metrics import finite_metrics
from vitscale.record.mlflow.place import create_database, follow_move, without_user
from vitscale.record.mlflow.run_cache import RunCache
from vitscale.record.mlflow.study_run import open_study_run, summarize_study
from vitscale.record.mlflow.trial_runs import TrialRuns
from vitscale.record.outcome import ENDINGS, Outcome, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir

if TYPE_CHECKING:
    from mlflow import MlflowClient


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
        self.uri, self.store = uri, store
        create_database(uri)
        follow_move(uri)
        self.client: MlflowClient = cast("MlflowClient", PatientClient(client_of(uri), may_write))
        saved = RunCache.read(store, study.slug, uri)
        cache = RunCache() if reread else saved
        contents = Contents(study, store.identity(), colors)
        self.experiment = StudyExperiment(
            self.client, uri, contents, cache.experiment_id, saved.saved_ms
        )
        is_of_experiment = cache.experiment_id == self.experiment.id
        open_study_run(self.experiment, cache.parent_id if is_of_experiment else "")
        is_of_run = cache.parent_id == contents.parent_id
        self.runs = TrialRuns(self.experiment, cache if is_of_run else RunCache())

    @property
    def contents(self) -> Contents:
        return self.experiment.contents

    def extend(self, study: Study) -> None:
        """Adds the new trials of a study that has grown."""
        self.contents.plan(study)
        open_study_run(self.experiment, self.contents.parent_id)

    def save(self) -> None:
        """Writes the cache of runs to the store. Raises OSError."""
        cache = RunCache(self.experiment.id, self.contents.parent_id, children=self.runs.children)
        cache.write(self.store, self.contents.study.slug, self.uri)

    def begin(self) -> None:
        """Sets the study's run to RUNNING, and marks runs of arms that it does not have now."""
        self.client.update_run(self.contents.parent_id, status="RUNNING")
        leave_arms_out(self.experiment, arm_runs(self.experiment))

    def show_evaluations(self, trial_ids: Collection[str]) -> None:
        """Adds the store's evaluations of these trials, if they have runs."""
        for trial_id in self.runs.children.keys() & trial_ids:
            self.runs.show_evaluations(trial_id, self.store.evaluations(trial_id).values())

    def end(self, outcomes: Mapping[str, Outcome]) -> None:
        """Ends the study's run, whose trials have these outcomes."""
        state = end_state({outcome.status for outcome in outcomes.values()})
        self.client.set_terminated(self.contents.parent_id, status=state)

    def summarize(
        self,
        summary: Mapping[str, Mapping[str, float]],
        report: Workdir | None,
        headline: Sequence[str] = (),
    ) -> None:
        """Logs the numbers of `summary` to one run per arm, and the report to the study's run.

        The study's run also gets the counts of trials and a description.
        """
        arms = {arm: finite_metrics(summary.get(arm, {})) for arm in self.contents.study.arms}
        names = (name for metrics in arms.values() for name in metrics)
        self.experiment.save_views(pages.arm_view(names))
        show_arms(self.experiment, arms)
        summarize_study(self.experiment, self.runs.children, arms, report, headline)

    def page(self, base: str = "http://127.0.0.1:5000") -> str:
        """The address of the study's trials and charts in the MLflow UI at `base`."""
        server = without_user(self.uri) if self.uri.startswith("http") else base
        return pages.address(server, self.experiment.id)


def synchronize(
    view: View, outcomes: Mapping[str, Outcome], may_create: Callable[[], bool] = lambda: True
) -> int:
    """Shows all outcomes of the store, and marks runs whose trial has none any more.

    `may_create` is asked before a trial gets a run: only one process at a time may give it one.
    Returns the number of trials with an outcome that are shown.
    """
    view.runs.mark_unplanned()
    num = 0
    for trial_id, outcome in outcomes.items():
        child = view.runs.children.get(trial_id)
        if outcome.is_known or outcome.error:
            if child is None and not may_create():
                continue
            view.runs.show(trial_id, outcome)
            num += outcome.is_known
        elif child is not None and child.status in ENDINGS and child.status != Status.MISSING:
            view.runs.show(trial_id, outcome.because("the store no longer has its outcome"))
    view.runs.rename()
    return num
