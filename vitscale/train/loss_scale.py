"""Loss scaling for fp16 training.

Scaling keeps small gradients from underflowing in fp16; steps whose gradients overflow are skipped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitscale.plan.config import TrainConfig

# As in torch.amp.GradScaler and apex: a non-finite gradient halves the scale and skips the step;
# GROWTH_INTERVAL steps in a row that were not skipped double the scale.
FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2_000
# Below this, gradients are non-finite at any scale, which is divergence: 31 skipped steps in a row,
# starting from the first scale.
MIN_SCALE = 2.0**-14


class LossScale:
    """Dynamic loss scaling for fp16 by torch's GradScaler; inactive with other precisions.

    Micikevicius et al. 2018. A skipped step leaves the weights and the optimizer state unchanged,
    and counts as a step of the schedule, as in the papers' code. With fused optimizers the host
    never waits for the device; LAMB and Lion are not fused and wait once per step to learn whether
    to skip.
    """

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.on = config.precision == "fp16"
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=FIRST_SCALE, growth_interval=GROWTH_INTERVAL, enabled=self.on
        )
        self.num_skipped = torch.zeros((), dtype=torch.int64, device=device)
        # whether the scale fell below MIN_SCALE
        self.exhausted = torch.zeros((), dtype=torch.bool, device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """The scaled loss (), on which to call backward."""
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale, for clipping."""
        if self.on:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, bad_step: Tensor | None = None) -> None:
        """Takes the optimizer step, unless a gradient is non-finite, and updates the scale.

        Once `bad_step` () is non-negative, the training has diverged, and further skipped steps are
        not counted.
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
        self.exhausted |= scale < MIN_SCALE

    def state_dict(self) -> dict[str, Any]:
        """The state to save; empty with precisions other than fp16.

        Scale and tracker are left on the device: GradScaler's own state would wait for them.
        """
        if not self.on:
            return {}
        scaler = self.scaler
        state = {
            "scale": scaler._get_scale_async(),
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": scaler._growth_tracker,
        }
        begun = state["scale"] is not None
        return {
            "scaler": state if begun else scaler.state_dict(),
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.on:
            scaler = state["scaler"]
            numbers = {
                "scale": float(scaler["scale"]),
                "_growth_tracker": int(scaler["_growth_tracker"]),
            }
            self.scaler.load_state_dict(scaler | numbers)
            self.num_skipped.copy_(state["num_skipped"])

    def columns(self) -> dict[str, float]:
        """Columns of a row: the number of skipped steps so far."""
        return {"skipped_steps": float(self.num_skipped.item())} if self.on else {}


def _prepare_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Initializes the momentum of SGD with zeros before its first step.

    Fused SGD allocates it without a value, and leaves it so if the first step is skipped (torch
    2.15). Steps that are not skipped are unchanged.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
