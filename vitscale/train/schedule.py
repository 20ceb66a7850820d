"""The learning rate schedule."""

from __future__ import annotations

import math
from typing import assert_never

from vitscale.plan.config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """Learning rate of optimizer step `step`, counted from 0: linear warm-up, then decay.

    The warm-up rises from `warmup_start` of the peak in equal increments, and its last step is at
    the peak. The decay (half a cosine, a line, or none) starts at the peak, and the step after the
    last one would be at `decay_floor` of the peak. A cooldown stays at the peak until its first
    step, which is there too; then it falls by a line, or as 1 minus the root of its progress
    (Hägele et al. 2024).
    """
    peak, warmup = config.peak_lr, config.num_warmup_steps
    if step < warmup:
        start = config.warmup_start * peak
        return start + (peak - start) * (step + 1) / warmup
    floor = config.decay_floor * peak
    progress = (step - warmup) / (config.num_steps - warmup)
    match config.decay:
        case "constant":
            return peak
        case "linear":
            return floor + (peak - floor) * (1 - progress)
        case "cosine":
            return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
        case "cooldown":
            begin = config.cooldown_start
            if step <= begin:
                return peak
            return floor + (peak - floor) * _left(
                (step - begin) / (config.num_steps - begin), config
            )
        case never:
            assert_never(never)


def _left(progress: float, config: TrainConfig) -> float:
    """Share of the decay that is still to come in a cooldown, from its progress in [0, 1]."""
    match config.cooldown_shape:
        case "linear":
            return 1 - progress
        case "1-sqrt":
            return 1 - math.sqrt(progress)
        case never:
            assert_never(never)
