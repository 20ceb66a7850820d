"""The loss scale of fp16 training: gradients too small for fp16
are computed larger, those too large skip a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitscale.plan.config import TrainConfig

# As torch.amp.GradScaler and apex: at a non-finite gradient the scale is halved and the step
# skipped; it doubles after so many steps in a row that were not.
FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2_000
# Below this a gradient is non-finite whatever the scale, which is divergence: from the first scale,
# 31 skips in a row.
LEAST_SCALE = 2.0**-14


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018) by torch's GradScaler; with other precisions
    than fp16, nothing.

    A skipped step leaves the weights and the state of the optimizer as they are, and counts as a
    step of the schedule, as in the papers' codes. With the fused optimizers the host never waits
    for the device; LAMB's, which is not fused, waits once per step to learn whether to skip.
    """

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.on = config.precision == "fp16"
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=FIRST_SCALE, growth_interval=GROWTH_INTERVAL, enabled=self.on
        )
        self.num_skipped = torch.zeros((), dtype=torch.int64, device=device)
        # the scale fell below the least one
        self.exhausted = torch.zeros((), dtype=torch.bool, device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss () to call backward on."""
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Brings the gradients to their own size, for clipping."""
        if self.on:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, bad_step: Tensor | None = None) -> None:
        """The optimizer's step, unless a gradient is non-finite; then the next scale.

        Once `bad_step` () is not negative, the training has diverged, and what is skipped from
        there on is not counted.
        """
        if not self.on:
            optimizer.step()
            return
        scale = self.scaler._get_scale_async()  # get_scale() would wait for the device
        assert scale is not None
        _prepare_momentum(optimizer)
        before = scale.clone()
        self.scaler.step(optimizer)
        self.scaler.update()
        skipped = scale < before
        self.num_skipped += skipped if bad_step is None else skipped & (bad_step < 0)
        self.exhausted |= scale < LEAST_SCALE

    def state_dict(self) -> dict[str, Any]:
        """Empty with other precisions than fp16."""
        return (
            {"scaler": self.scaler.state_dict(), "num_skipped": self.num_skipped} if self.on else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.on:
            self.scaler.load_state_dict(state["scaler"])
            self.num_skipped.copy_(state["num_skipped"])

    def columns(self) -> dict[str, float]:
        """What a row says of it: the steps skipped since the training began."""
        return {"skipped_steps": float(self.num_skipped.item())} if self.on else {}


def _prepare_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Gives SGD momenta of 0 before its first step, which changes no step that is not skipped.

    Fused SGD makes them without a value, and leaves them so if the first step is skipped (torch
    2.15).
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
