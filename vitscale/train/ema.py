"""Exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitscale.plan.averaging import decay_of
from vitscale.plan.config import TrainConfig


class Ema:
    """Averages weights and BatchNorm statistics: ema <- decay * ema + (1 - decay) * model, every
    `ema_every` steps.

    Starts at the initial weights; with `ema_after_warmup`, an update within the warm-up copies the
    model instead. Where `ema_decay` and `ema_alpha` are both 0 it is off, keeps no copy, and its
    state is empty. The state is the averaged model alone: the step says all else.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        from timm.utils import ModelEmaV3

        on = config.ema_decay or config.ema_alpha
        self.average = ModelEmaV3(model, decay=decay_of(config)) if on else None
        self.every = config.ema_every
        self.num_copied = config.num_warmup_steps if config.ema_after_warmup else 0

    @property
    def on(self) -> bool:
        return self.average is not None

    @property
    def module(self) -> nn.Module:
        """The model with the averaged weights."""
        assert self.average is not None
        return self.average.module

    def update(self, model: nn.Module, step: int) -> None:
        """Takes in the model after optimizer step `step`, counted
        from 0, if `ema_every` divides the steps taken.
        """
        if self.average is None or (step + 1) % self.every:
            return
        if step < self.num_copied:
            self.average.set(model)
        else:
            self.average.update(model)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict() if self.on else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.on:
            self.module.load_state_dict(state)
