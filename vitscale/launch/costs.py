"""Costs of the trials of a study, measured on the built model where there is no closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from vitscale.plan.cost import has_closed_form, shape_of
from vitscale.plan.search import Search
from vitscale.plan.study import Study

Planned = TypeVar("Planned", Study, Search)


def with_costs(study: Planned) -> Planned:
    """The study with measured costs of models that have no closed form.

    Models are built on torch's meta device, which takes seconds. Raises ValueError for a model that
    timm does not have, or cannot build in the requested shape, and for a part that does not work.
    """
    trials = (study.stand_in() if isinstance(study, Search) else study).trained
    unknown = {
        shape: trial.config
        for trial in trials
        if not has_closed_form(trial.config)
        and (shape := shape_of(trial.config)) not in study.measured
    }
    if not unknown:
        return study
    from vitscale.train.complexity import measured_complexity

    measured = {shape: measured_complexity(config) for shape, config in unknown.items()}
    return replace(study, measured={**study.measured, **measured})
