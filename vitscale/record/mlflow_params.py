"""The params of a trial's MLflow run: every field of its config, and numbers derived from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vitscale.plan.cost import Measured, complexity, training_flops
from vitscale.plan.study import Trial

# param -> the field that it is derived from
DERIVED_FROM = {
    "log10_lr": "lr",
    "lr_used": "lr",
    "log10_wd": "wd",
    "samples": "epochs",
    "training_flops": "epochs",
}
MOST_KEPT = 1_000
WITHOUT_FIELD = {"arm", "point", "params_m", "flops_g"}


class Params:
    """The params of the trials of a study. Those of trials that differ in arm, point, lr, wd and
    seed alone are the same but for these, and are made once.
    """

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.alike: dict[str, dict[str, str]] = {}  # the others' text -> params

    def of(self, trial: Trial) -> dict[str, str]:
        """Param -> value."""
        return {**self._alike(trial), **_own(trial)}

    def varying(self, trials: Sequence[Trial]) -> set[str]:
        """The params that are not the same in all trials, or that some of them lack."""
        names: set[str] = set()
        alike, own = self._alike(trials[0]), _own(trials[0])
        seen = {trials[0].config.others}
        for trial in trials:
            if not trial.config.others or trial.config.others not in seen:
                seen.add(trial.config.others)
                names |= _differing(alike, self._alike(trial))
            names |= _differing(own, _own(trial))
        return names

    def _alike(self, trial: Trial) -> dict[str, str]:
        others = trial.config.others
        if not others:
            return self._made(trial)
        if others not in self.alike:
            if len(self.alike) == MOST_KEPT:  # as in a grid of models: it would take much memory
                self.alike.clear()
            self.alike[others] = self._made(trial)
        return self.alike[others]

    def _made(self, trial: Trial) -> dict[str, str]:
        config, cost = trial.config, complexity(trial.config, self.measured)
        params = {
            **config.asdict(),
            "params_m": f"{cost.params / 1e6:.4g}",
            "flops_g": f"{cost.flops / 1e9:.4g}",
            "samples": config.num_samples,
            "training_flops": f"{training_flops(config, self.measured):.4g}",
        }
        return _bearing({name: params[name] for name in params if name not in OWN}, trial)


OWN = ("lr", "wd", "seed")


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name, _ in one.items() ^ other.items()}


def _own(trial: Trial) -> dict[str, str]:
    """The params of arm, point and OWN."""
    config = trial.config
    params = {
        "arm": trial.arm.name,
        "point": point_of(trial),
        **{name: getattr(config, name) for name in OWN},
        "log10_lr": _log10(config.lr),
        "lr_used": config.peak_lr,
    }
    if config.wd > 0:
        params["log10_wd"] = _log10(config.wd)
    return _bearing(params, trial)


def _bearing(params: dict[str, object], trial: Trial) -> dict[str, str]:
    """The params that the trial depends on, as text."""
    bearing = trial.config.bearing
    return {
        name: str(value)
        for name, value in params.items()
        if name in WITHOUT_FIELD or DERIVED_FROM.get(name, name) in bearing
    }


def point_of(trial: Trial) -> str:
    """The point of a trial among those of its arm."""
    return "reference" if trial.point is None else f"{trial.point:03d}"


def _log10(value: float) -> str:
    return f"{math.log10(value):.4f}"
