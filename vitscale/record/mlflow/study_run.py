"""The run of a whole study, which is the parent of the others: counts, description and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vitscale.record.mlflow import pages
from vitscale.record.mlflow.client import get_if_there
from vitscale.record.mlflow.experiment import StudyExperiment
from vitscale.record.mlflow.run_cache import ChildRun
from vitscale.record.outcome import ENDINGS, Status
from vitscale.record.workdir import Workdir

MAX_PARAMS = 100  # of a request: MLflow's limit


def open_study_run(experiment: StudyExperiment, cached_id: str) -> None:
    """Finds or creates the run, with the params that all trials share; a new one if they change."""
    from mlflow.entities import Param

    client, contents = experiment.client, experiment.contents
    role = "tags.`vitscale.role` = 'study'"
    run = get_if_there(client.get_run, cached_id)
    if run and (run.info.lifecycle_stage == "deleted" or run.info.experiment_id != experiment.id):
        run = None
    runs = [*experiment.runs(role + experiment.since_cache if run else role)]
    run = run or next(iter(runs), None)
    for twin in runs:  # of a request that was done after its reply was lost
        if run and twin.info.run_id != run.info.run_id:
            client.delete_run(twin.info.run_id)
    if run and any(
        name in contents.varying or contents.shared.get(name, value) != value
        for name, value in run.data.params.items()
    ):
        client.delete_run(run.info.run_id)
        run = None
    tags = {"vitscale.role": "study", "mlflow.runName": contents.study.slug} | contents.origin
    if run is None:
        run = experiment.create_run(tags | {"mlflow.note.content": pages.about(contents.study)})
    experiment.log_changes(run, tags)
    logged = run.data.params
    lacking = [Param(*entry) for entry in contents.shared.items() if entry[0] not in logged]
    for start in range(0, len(lacking), MAX_PARAMS):
        client.log_batch(run.info.run_id, params=lacking[start : start + MAX_PARAMS])
    contents.parent_id = run.info.run_id


def summarize_study(
    experiment: StudyExperiment,
    children: Mapping[str, ChildRun],
    arms: Mapping[str, Mapping[str, float]],
    report: Workdir | None,
    headline: Sequence[str],
) -> None:
    """Logs the counts of trials, a description with the numbers of the arms, and the report."""
    contents, parent_id = experiment.contents, experiment.contents.parent_id
    links = pages.links(experiment.id, parent_id)
    note = pages.description(contents.study, arms, headline, links)
    ended = Counter(children[i].status for i in contents.trials if i in children)
    counts = {
        status.value: float(ended[status])
        for status in ENDINGS
        if status is not Status.MISSING and (status is not Status.STOPPED or ended[status])
    }
    num_trials = float(len(contents.trials))
    # a trial without an outcome is missing
    counts |= {"num_trials": num_trials, "missing": num_trials - sum(counts.values())}
    run = experiment.client.get_run(parent_id)
    experiment.log_changes(run, {"mlflow.note.content": note}, counts)
    if report is not None and report.exists():
        with report.as_folder() as folder:
            experiment.client.log_artifacts(parent_id, str(folder))
