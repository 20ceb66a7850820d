"""A study: a question, and the frozen list of trials that answers it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import METRIC, ProfileConfig


@dataclass(frozen=True)
class Trial:
    """One training run to completion, as part of an arm.

    `point` is its index in the arm's design; trials of two arms with one index share the point. None marks the
    reference run, trained at the arm's tuned optimum, which is no draw of the design.
    """

    arm: str
    config: TrainConfig
    point: int | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the trials that answer it. Raises ValueError if the parts contradict each other."""

    name: str  # of the directory in the store and of the MLflow experiment, together with the scale
    scale: str
    question: str  # one sentence
    source: str  # author, year, figure
    trials: tuple[Trial, ...]
    num_scrambles: int = 0  # 0: draws are i.i.d.; R: the points are R equal blocks of independent Sobol scrambles
    metric: str = "val_ema_error_pct"  # the column of a row that figures are about, in percent, lower is better
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # title -> arms drawn together
    pairs: tuple[tuple[str, str], ...] = ()  # arms compared with each other
    factors: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)  # arm -> what it is made of: its model
    figures: tuple[str, ...] = ()  # functions of vitscale.analysis.figures
    tables: tuple[str, ...] = ()  # functions of vitscale.analysis.tables
    design: str = ""  # how points, seeds and reference runs were chosen, for its report
    notes: str = ""  # what the study does and does not show, for its report
    published: bool = False  # draw the papers' printed numbers behind ours, as context and never as a target
    adaptive: str = ""  # how points were chosen from outcomes of others, of a search; such a study has no distribution
    spaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of a search: arm -> axis -> Optuna's JSON

    def __post_init__(self) -> None:
        for text in (self.name, self.scale):
            if not re.fullmatch(r"[a-z0-9_]+", text):
                raise ValueError(f"name and scale of a study must match [a-z0-9_]+, but got ({text!r})")
        if not self.trials:
            raise ValueError(f"a study must have a trial, but got (name={self.name!r}, trials=())")
        twice = [trial_id for trial_id, n in Counter(t.config.id for t in self.trials).items() if n > 1]
        if twice:
            trial = next(t for t in self.trials if t.config.id == twice[0])
            raise ValueError(
                f"each config must occur once in a study (vary seed to repeat a run), "
                f"but got {len(twice)} twice, first (arm={trial.arm!r}, {trial.config.non_default()})"
            )
        _refuse_mixed(self)
        off = [t for t in self.trials if not (self.measures or self.metric.startswith(f"{t.config.eval_split}_"))]
        if off:
            raise ValueError(
                f"the metric must be of the split that is evaluated, but got (metric={self.metric!r}, "
                f"eval_split={off[0].config.eval_split!r})"
            )
        unknown = {arm for arms in [*self.panels.values(), *self.pairs] for arm in arms} - set(self.arms)
        if unknown:
            raise ValueError(f"panels and pairs must name arms of the study, but got ({sorted(unknown)})")
        if self.factors and set(self.factors) != set(self.arms):
            raise ValueError(
                f"factors must name the arms of the study, but got ({sorted(set(self.factors) ^ set(self.arms))})"
            )
        names = {tuple(sorted(factors)) for factors in self.factors.values()}
        if len(names) > 1:
            raise ValueError(f"all arms must have the same factors, but got ({sorted(names)})")

    @property
    def slug(self) -> str:
        """Name and scale: the directory in the store and the MLflow experiment."""
        return f"{self.name}-{self.scale}"

    @property
    def measures(self) -> bool:
        """Whether its trials are profiles, which have a speed and no error."""
        return isinstance(self.trials[0].config, ProfileConfig)

    @property
    def arms(self) -> tuple[str, ...]:
        """The conditions compared, in the order of their first trial."""
        return tuple(dict.fromkeys(trial.arm for trial in self.trials))


def config_of(fields: Mapping[str, Any]) -> TrainConfig:
    """The config of these fields: a profile if they say so. Raises ValueError as the config does."""
    return ProfileConfig(**fields) if "profile" in fields else TrainConfig(**fields)


def _refuse_mixed(study: Study) -> None:
    devices = {t.config.hardware if isinstance(t.config, ProfileConfig) else "" for t in study.trials}
    if len(devices) > 1:
        raise ValueError(f"a study must be of trainings, or of profiles on one hardware, but got ({sorted(devices)})")
    if study.measures != (study.metric == METRIC):
        raise ValueError(
            f"{METRIC} must be the metric of profiles, and of nothing else, but got (metric={study.metric!r})"
        )


def to_json(study: Study) -> dict[str, object]:
    """Everything about a study as plain values, for plan.json. Configs are given by their non-default fields."""
    texts = {name: getattr(study, name) for name in _PLAIN}
    trials = [
        {"id": t.config.id, "arm": t.arm, "point": t.point, "config": t.config.non_default()} for t in study.trials
    ]
    factors, spaces = ({arm: dict(of_arm) for arm, of_arm in of.items()} for of in (study.factors, study.spaces))
    return {**texts, "panels": dict(study.panels), "pairs": study.pairs, "factors": factors, "spaces": spaces,
            "trials": trials}  # fmt: skip


def from_json(plan: Mapping[str, Any]) -> Study:
    """The study of a plan.json. Raises ValueError if a config no longer has the id that the plan gave it."""
    trials = tuple(Trial(t["arm"], config_of(t["config"]), t["point"]) for t in plan["trials"])
    for trial, entry in zip(trials, plan["trials"], strict=True):
        if trial.config.id != entry["id"]:
            raise ValueError(f"a config must keep its id, but got (planned={entry['id']}, now={trial.config.id})")
    texts: dict[str, Any] = {
        name: tuple(plan[name]) if isinstance(plan[name], list) else plan[name] for name in _PLAIN if name in plan
    }  # those of an older version have fewer
    panels = {title: tuple(arms) for title, arms in plan["panels"].items()}
    pairs = tuple((a, b) for a, b in plan["pairs"])
    mappings = {name: plan.get(name, {}) for name in ("factors", "spaces")}
    return Study(**texts, panels=panels, pairs=pairs, **mappings, trials=trials)


_PLAIN = ("name", "scale", "question", "source", "num_scrambles", "metric", "figures", "tables", "design", "notes",
          "adaptive", "published")  # fmt: skip
