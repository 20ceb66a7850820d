"""What the trials of a study cost, also where only the built model says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from vitscale.plan.cost import shape_of
from vitscale.plan.search import Search
from vitscale.plan.study import Study

Asked = TypeVar("Asked", Study, Search)


def with_costs(study: Asked) -> Asked:
    """The same with the costs of its models that have no closed form, measured on torch's meta
    device: some seconds.

    Raises ValueError for a model that timm does not have or cannot build in the shape that is asked
    for.
    """
    trials = (study.stand_in() if isinstance(study, Search) else study).trials
    unknown = {
        shape_of(trial.config): trial.config
        for trial in trials
        if trial.config.model.startswith("timm:")
    }
    if not unknown:
        return study
    from vitscale.train.complexity import measured_complexity

    return replace(
        study, measured={shape: measured_complexity(config) for shape, config in unknown.items()}
    )
