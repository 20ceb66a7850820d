"""The optimizer step: the one of every training, which a profile of the training measures too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.train.draws import Draws
from vitscale.train.ema import Ema
from vitscale.train.loss import training_loss
from vitscale.train.loss_scale import LossScale
from vitscale.train.parallel import Team


@dataclass(frozen=True)
class TrainingStep:
    """What a step takes and changes: the model, its averaged
    weights, the optimizer, and the randomness of layers.
    """

    config: TrainConfig
    model: nn.Module  # whose weights are trained
    # the same model, compiled and with gradients averaged over the team where that is wanted
    replica: nn.Module
    draws: Draws
    optimizer: torch.optim.Optimizer
    ema: Ema
    loss_scale: LossScale
    team: Team
    # (b,) int64 each: places in the batch of the samples of each part of this process
    positions: Sequence[Tensor]

    def take(
        self,
        step: int,
        lr: float,
        parts: Iterator[tuple[Tensor, Tensor]],
        bad_step: Tensor | None = None,
    ) -> Tensor:
        """Takes optimizer step `step` (from 0) at a learning rate; the loss of the whole batch in
        nats, a () tensor.

        `parts` gives images (b, C, R, R) and targets (b,) or (b, classes) of each part, in turn.
        Nothing here waits for the device, but for LAMB with fp16. `bad_step` () is the step at
        which the training diverged, or negative: steps that the loss scale skips from there on are
        not counted.
        """
        config, model, optimizer = self.config, self.model, self.optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        # frees the memory of the last step's gradients before the forward pass
        optimizer.zero_grad(set_to_none=True)

        # ---- forward and backward, part by part: losses of parts add up to that of the batch, and
        # so do gradients
        device = next(model.parameters()).device
        loss = torch.zeros((), device=device)
        for part, where in enumerate(self.positions):
            pixels, targets = next(parts)
            self.draws.at(step, where)
            with self.team.holding_back(self.replica, until=part == len(self.positions) - 1):
                with autocast(config, device):
                    share = training_loss(self.replica(pixels), targets, config, config.batch_size)
                # The team averages gradients where they have to add up.
                self.loss_scale.scaled(share * self.team.size).backward()
            loss = loss + share.detach()

        # ---- clipping is the same for every optimizer, so that their comparison is not one of
        # clipping
        if config.clip_norm:
            self.loss_scale.unscale(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        self.loss_scale.step(optimizer, bad_step)
        self.ema.update(model, step)
        return self.team.sum(loss)


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Matrix products and convolutions in the precision of the config; weights stay fp32."""
    match config.precision:
        case "fp32":
            return torch.autocast(device.type, torch.bfloat16, enabled=False)
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
        case never:
            assert_never(never)
