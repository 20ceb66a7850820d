"""Exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

from torch import nn


class Ema:
    """Averages weights and BatchNorm statistics after every step: ema <- decay * ema + (1 - decay) * model.

    Starts at the initial weights. With decay 0 it is off, keeps no copy, and its state is empty.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        from timm.utils import ModelEmaV3

        self.average = ModelEmaV3(model, decay=decay) if decay else None

    @property
    def on(self) -> bool:
        return self.average is not None

    @property
    def module(self) -> nn.Module:
        """The model with the averaged weights."""
        assert self.average is not None
        return self.average.module

    def update(self, model: nn.Module) -> None:
        if self.average is not None:
            self.average.update(model)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict() if self.on else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.on:
            self.module.load_state_dict(state)
