"""What the trials of a study cost, also where only the built model says it."""

from __future__ import annotations

from vitscale.plan.cost import learn
from vitscale.plan.study import Study


def learn_costs(study: Study) -> Study:
    """Measures the models that have no closed form, on torch's meta device: some seconds. The same study.

    Raises ValueError for a model that timm does not have or cannot build in the shape that is asked for.
    """
    shapes = {(c.model, c.resolution, c.channels, c.num_classes): c for c in (trial.config for trial in study.trials)}
    unknown = [config for config in shapes.values() if config.model.startswith("timm:")]
    if unknown:
        from vitscale.train.complexity import measured_complexity

        for config in unknown:
            learn(config, measured_complexity(config))
    return study
