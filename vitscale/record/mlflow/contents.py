"""What MLflow's runs of a study contain by its plan: params, tags and colours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping

from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.mlflow import pages
from vitscale.record.mlflow.params import Params, point_of
from vitscale.record.outcome import Status

Colors = Callable[[Study], Mapping[str, str]]  # arm -> "#rrggbb"
_sorted_json = json.JSONEncoder(sort_keys=True).encode


class Contents:
    """Params and tags of the runs of a study, of its arms and of its trials."""

    parent_id = ""  # of the run of the study

    def __init__(self, study: Study, store_id: str, colors: Colors | None = None) -> None:
        self.store_id, self.colors = store_id, colors
        # tags of every entity; `vitscale.planned` changes where a plan leaves something out
        self.origin = {"vitscale.study": study.slug, "vitscale.store": store_id}
        self.origin["vitscale.planned"] = "true"
        self.plan(study)

    def plan(self, study: Study) -> None:
        """Splits params into `varying`, logged per trial, and `shared`, logged for the study."""
        self.study = study
        self.trials = {trial.config.id: trial for trial in study.trials}
        self._digests: dict[str, str] = {}
        self._color_of_arm = self.colors(study) if self.colors else {}
        self.params = Params(study.measured)
        varying = self.params.varying(study.trials)
        self.varying = frozenset({"arm", "point", *pages.axes(study.trials), *varying})
        first = self.params.of_trial(study.trials[0])
        self.shared = {name: value for name, value in first.items() if name not in self.varying}

    def params_of(self, trial: Trial) -> dict[str, str]:
        """The params of a trial that vary within its study."""
        return self.params.of_trial(trial, self.varying)

    def tags_of(self, trial: Trial) -> dict[str, str]:
        """Tags of a trial's run that do not change during training."""
        config, point, arm = trial.config, point_of(trial), trial.arm.name
        is_seeded = isinstance(config, TrainConfig) and trial.point is None
        name = f"{arm} {point}" + (f" seed {config.seed}" if is_seeded else "")
        tags = {"vitscale.trial_id": config.id, "vitscale.point": point}
        if config.trunk:  # it starts in another trial
            tags |= {"vitscale.trunk": config.trunk, "vitscale.trunk_step": str(config.trunk_step)}
        return tags | self.child_tags("trial", name, arm)

    def child_tags(self, role: str, name: str, arm: str) -> dict[str, str]:
        """Tags of the run of an arm, or of one of its trials."""
        tags = {"vitscale.role": role, "vitscale.arm": arm, "mlflow.runName": name}
        if arm in self._color_of_arm:  # in which MLflow then draws the run
            tags["mlflow.runColor"] = self._color_of_arm[arm]
        return tags | {"mlflow.parentRunId": self.parent_id} | self.origin

    def digest(self, trial_id: str) -> str:
        """A digest of the params and tags of a trial's run that do not change during training."""
        if trial_id not in self._digests:
            trial = self.trials[trial_id]
            text = _sorted_json([self.params_of(trial), self.tags_of(trial)])
            self._digests[trial_id] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._digests[trial_id]

    def arm_params(self, arm: str) -> dict[str, str]:
        """The params that all trials of an arm share."""
        trials = [trial for trial in self.study.trials if trial.arm.name == arm]
        left_out = {"point", *self.params.varying(trials)}
        first = self.params.of_trial(trials[0])
        return {name: value for name, value in first.items() if name not in left_out}


def end_state(statuses: Collection[str]) -> str:
    """MLflow's state of an ended run, of one trial or of several with these statuses: KILLED if one
    is missing, else FAILED if one failed.
    """
    if Status.MISSING in statuses:
        return "KILLED"
    return "FAILED" if Status.FAILED in statuses else "FINISHED"
