"""The runs of a study's arms: one per arm, with the numbers of its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitscale.record.mlflow.contents import end_state
from vitscale.record.mlflow.experiment import StudyExperiment

if TYPE_CHECKING:
    from mlflow.entities import Run


def arm_runs(experiment: StudyExperiment) -> dict[str, Run]:
    """Runs of arms by name, also of those that are not planned any more."""
    runs = experiment.runs("tags.`vitscale.role` = 'arm'")
    return {run.data.tags["vitscale.arm"]: run for run in runs}


def show_arms(experiment: StudyExperiment, arms: Mapping[str, Mapping[str, float]]) -> None:
    """Logs the numbers of each arm to its run; marks runs of arms that the study has no more."""
    runs = arm_runs(experiment)
    for arm, metrics in arms.items():
        if metrics:
            _show_arm(experiment, arm, metrics, runs.get(arm))
    leave_arms_out(experiment, runs)


def leave_arms_out(experiment: StudyExperiment, runs: Mapping[str, Run]) -> None:
    """Marks runs of arms that the study does not have any more; pages then skip them."""
    for arm in runs.keys() - experiment.contents.study.arms.keys():
        experiment.log_changes(runs[arm], {"vitscale.planned": "false"})


def _show_arm(
    experiment: StudyExperiment, arm: str, metrics: Mapping[str, float], run: Run | None
) -> None:
    """Updates an arm's run, or replaces it if its params, which are final, have changed."""
    from mlflow.entities import Param

    client, contents = experiment.client, experiment.contents
    params, tags = contents.arm_params(arm), contents.child_tags("arm", arm, arm)
    if run is not None and run.data.params != params:
        client.delete_run(run.info.run_id)
        run = None
    if run is None:
        run = client.create_run(experiment.id, tags=tags)
        client.log_batch(run.info.run_id, params=[Param(*entry) for entry in params.items()])
    experiment.log_changes(run, tags, metrics)
    state = end_state({name for name, number in metrics.items() if number})
    if run.info.status != state:
        client.set_terminated(run.info.run_id, state)
