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
        self.origin = {
            "vitscale.study": study.slug,
            "vitscale.store": store_id,
            "vitscale.planned": "true",
        }
        self.plan(study)

    def plan(self, study: Study) -> None:
        """Splits params into `varying`, logged per trial, and `shared`, logged for the study."""
        self.study = study
        self.trials = {trial.config.id: trial for trial in study.trials}
        self._digests: dict[str, str] = {}
        self._color_of_arm = self.colors(study) if self.colors else {}
        self.params = Params(study.measured)
        varying = self.params.varying(study.trials)
        self.varying = frozenset({"arm", "point", *pages.axes(study), *varying})
        first = self.params.of(study.trials[0])
        self.shared = {name: value for name, value in first.items() if name not in self.varying}

    def params_of(self, trial: Trial) -> dict[str, str]:
        """The params of a trial that vary within its study."""
        return self.params.of(trial, self.varying)

    def tags_of(self, trial: Trial) -> dict[str, str]:
        """Tags of a trial's run that do not change during training."""
        config, point = trial.config, point_of(trial)
        seeded = isinstance(config, TrainConfig) and trial.point is None
        seed = f" seed {config.seed}" if seeded else ""
        trunk = {"vitscale.trunk": config.trunk, "vitscale.trunk_step": str(config.trunk_step)}
        return {
            "mlflow.parentRunId": self.parent_id,
            "mlflow.runName": f"{trial.arm.name} {point}{seed}",
            "vitscale.role": "trial",
            "vitscale.trial_id": config.id,
            **self.origin,
            "vitscale.arm": trial.arm.name,
            "vitscale.point": point,
            **self._color(trial.arm.name),
            **(trunk if config.trunk else {}),  # where it starts, if that is in another trial
        }

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
        first = self.params.of(trials[0])
        return {name: value for name, value in first.items() if name not in left_out}

    def arm_tags(self, arm: str) -> dict[str, str]:
        return {
            "mlflow.parentRunId": self.parent_id,
            "mlflow.runName": arm,
            "vitscale.role": "arm",
            **self.origin,
            "vitscale.arm": arm,
            **self._color(arm),
        }

    def _color(self, arm: str) -> dict[str, str]:
        """The tag that makes MLflow draw a run in the colour of its arm."""
        color = self._color_of_arm.get(arm)
        return {} if color is None else {"mlflow.runColor": color}


def end_state(statuses: Collection[str]) -> str:
    """MLflow's state of an ended run, of one trial or of several with these statuses: KILLED if one
    is missing, else FAILED if one failed.
    """
    if Status.MISSING in statuses:
        return "KILLED"
    return "FAILED" if Status.FAILED in statuses else "FINISHED"
