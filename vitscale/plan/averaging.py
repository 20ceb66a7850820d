"""The averaged weights as a plan knows them: how much an update
keeps, and how much of the start is left at the end.
"""

from __future__ import annotations

from vitscale.plan.config import TrainConfig


def decay_of(config: TrainConfig) -> float:
    """Share of itself that the average keeps at an update.

    `ema_alpha` is the rule of the code of Xiao et al. 2021: the average spans the same share of a
    training whatever its length, batch size and `ema_every`. Their code starts to count steps anew
    with each epoch; here they run on.
    """
    if config.ema_alpha:
        return 1 - min(1.0, config.ema_alpha * config.batch_size / config.epochs * config.ema_every)
    return config.ema_decay


def initial_share(config: TrainConfig) -> float:
    """Share, in [0, 1], of the initial weights in the averaged model at the end of the training; 0
    without an average.

    With `ema_after_warmup` it is that of the weights at the end of the warm-up, of which the
    average began as a copy.
    """
    if not (config.ema_decay or config.ema_alpha):
        return 0.0
    copies = config.num_warmup_steps // config.ema_every if config.ema_after_warmup else 0
    return float(decay_of(config) ** (config.num_steps // config.ema_every - copies))
