"""The params of a trial's MLflow run: every field of its config, and numbers derived from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitscale.plan.cost import Measured, complexity, training_flops
from vitscale.plan.trial import Trial

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


class Common(NamedTuple):
    """What trials have in common that differ in arm, point, lr, wd and seed alone."""

    params: dict[str, str]
    own: tuple[str, ...]  # names of the params that each of them has for itself, if any


class Params:
    """The params of the trials of a study. Those of trials that differ in arm, point, lr, wd and
    seed alone are the same but for these, and are made once.
    """

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        # `others` of a config, and the names asked for -> params
        self.common: dict[tuple[str, frozenset[str] | None], Common] = {}

    def of_trial(self, trial: Trial, names: frozenset[str] | None = None) -> dict[str, str]:
        """Param -> value; only these, if `names` are given."""
        common = self._common(trial, names)
        own = ((name, OWN[name](trial)) for name in common.own)
        return {**common.params, **{name: str(value) for name, value in own if value is not None}}

    def varying(self, trials: Sequence[Trial]) -> set[str]:
        """The params that are not the same in all trials, or that some of them lack."""
        names: set[str] = set()
        params, same = self._common(trials[0]).params, {name: _own(trials[0], name) for name in OWN}
        seen = {trials[0].config.others}
        for trial in trials:
            if not trial.config.others or trial.config.others not in seen:
                seen.add(trial.config.others)
                names |= dict(params.items() ^ self._common(trial).params.items()).keys()
            if changed := [name for name in same if _own(trial, name) != same[name]]:
                names.update(changed)
                for name in changed:
                    del same[name]
        return names

    def _common(self, trial: Trial, names: frozenset[str] | None = None) -> Common:
        if (key := (trial.config.others, names)) in self.common:
            return self.common[key]
        if names is None:
            common = Common(self._params(trial), tuple(name for name in OWN if _bears(trial, name)))
        else:
            params, own = self._common(trial)
            common = Common(
                {name: value for name, value in params.items() if name in names},
                tuple(name for name in own if name in names),
            )
        if trial.config.others:
            if len(self.common) >= MOST_KEPT:  # as in a grid of models: it would take much memory
                self.common.clear()
            self.common[key] = common
        return common

    def _params(self, trial: Trial) -> dict[str, str]:
        config, cost = trial.config, complexity(trial.config, self.measured)
        params = {
            **config.axes(),
            "params_m": f"{cost.params / 1e6:.4g}",
            "flops_g": f"{cost.flops / 1e9:.4g}",
            "samples": config.num_samples,
            "training_flops": f"{training_flops(config, self.measured):.4g}",
        }
        return {
            name: str(value)
            for name, value in params.items()
            if name not in OWN and _bears(trial, name)
        }


def _bears(trial: Trial, name: str) -> bool:
    """Whether the trial depends on a param."""
    return (
        name in WITHOUT_FIELD
        or DERIVED_FROM.get(name, name.partition(".")[0]) in trial.config.bearing
    )


def _own(trial: Trial, name: str) -> str | None:
    """The value of a param of OWN; None if the trial has none."""
    value = OWN[name](trial) if _bears(trial, name) else None
    return None if value is None else str(value)


def point_of(trial: Trial) -> str:
    """The point of a trial among those of its arm."""
    return "reference" if trial.point is None else f"{trial.point:03d}"


def _log10(value: float) -> str:
    return f"{math.log10(value):.4f}"


# those that differ between trials that are alike
OWN: dict[str, Callable[[Trial], object]] = {
    "arm": lambda trial: trial.arm.name,
    "point": point_of,
    "lr": lambda trial: trial.config.lr,
    "wd": lambda trial: trial.config.wd,
    "seed": lambda trial: trial.config.seed,
    "log10_lr": lambda trial: _log10(trial.config.lr),
    "lr_used": lambda trial: trial.config.peak_lr,
    "log10_wd": lambda trial: _log10(trial.config.wd) if trial.config.wd > 0 else None,
}
