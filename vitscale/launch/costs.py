"""Costs of the trials of a study, measured on the built model where there is no closed form, and
whether their parts can be used."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from vitscale.plan.cost import has_closed_form, shape_of
from vitscale.plan.parts import parts_of
from vitscale.plan.search import Search
from vitscale.plan.study import Study
from vitscale.record.sources import check_trusted
from vitscale.record.store import Store

# fields on which it depends, beside the parts, whether a part can be used
TRIED = (
    "optimizer",
    "own",
    "num_classes",
    "channels",
    "resolution",
    "mixup_alpha",
    "cutmix_alpha",
    "fallback_lr",
)
Planned = TypeVar("Planned", Study, Search)


def check_parts(study: Study, trusted: Sequence[str], store: Store) -> None:
    """Raises ValueError for a part that may not run, or that cannot be imported or used, and for an
    optimizer that timm does not have.
    """
    configs = [trial.config for trial in study.trained]
    check_trusted(configs, trusted, store)
    with_parts = {
        (*parts_of(config).values(), *(getattr(config, name) for name in TRIED)): config
        for config in configs
        if parts_of(config) or config.optimizer.startswith("timm:")
    }
    # a plan whose costs have a closed form needs no torch, which then tries no optimizer of timm
    is_needed = any(parts_of(config) for config in with_parts.values())
    if with_parts and (is_needed or importlib.util.find_spec("torch")):
        from vitscale.train import try_parts

        for config in with_parts.values():
            try_parts.check_parts(config)


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
