"""The decay of the averaged weights, and the share of the initial weights that remains in them."""

from __future__ import annotations

from vitscale.plan.config import TrainConfig


def decay_of(config: TrainConfig) -> float:
    """The decay of the average at each update.

    `ema_alpha` follows the code of Xiao et al. 2021: the average spans the same fraction of a
    training whatever its length, batch size and `ema_every`. Their code restarts the count of steps
    at each epoch; here it continues.
    """
    if config.ema_alpha:
        return 1 - min(1.0, config.ema_alpha * config.batch_size / config.epochs * config.ema_every)
    return config.ema_decay


def initial_share(config: TrainConfig) -> float:
    """The weight, in [0, 1], of the initial weights in the averaged model after the training.

    It is 0 without an average. With `ema_after_warmup`, it is that of the weights at the end of the
    warm-up, of which the average is a copy.
    """
    if not (config.ema_decay or config.ema_alpha):
        return 0.0
    copies = config.num_warmup_steps // config.ema_every if config.ema_after_warmup else 0
    return float(decay_of(config) ** (config.num_steps // config.ema_every - copies))
