"""The learning rate at each step."""

from __future__ import annotations

import math

from vitscale.plan.config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """Learning rate of optimizer step `step`, counted from 0: linear warm-up to the peak, then half a cosine to 0.

    The last step of the warm-up is at the peak, and the step after the last would be at 0.
    """
    warmup = round(config.warmup_epochs * config.steps_per_epoch)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / (config.num_steps - warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
