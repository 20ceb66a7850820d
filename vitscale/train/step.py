"""The optimizer step, shared by trainings and by profiles of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.train.draws import Draws
from vitscale.train.ema import Ema
from vitscale.train.loss import distilled, training_loss
from vitscale.train.loss_scale import LossScale
from vitscale.train.parallel import Team


@dataclass(frozen=True)
class TrainingStep:
    """One optimizer step: the objects that it uses and updates."""

    config: TrainConfig
    model: nn.Module  # the model whose weights are trained
    replica: nn.Module  # the same model, possibly compiled and wrapped in DDP
    draws: Draws
    optimizer: torch.optim.Optimizer
    ema: Ema
    loss_scale: LossScale
    team: Team
    # (b,) int64 each: positions within the batch of the samples in each part of this process
    positions: Sequence[Tensor]
    teacher: nn.Module | None = None  # in evaluation mode

    def take(
        self,
        step: int,
        lr: float,
        parts: Iterator[tuple[Tensor, Tensor]],
        bad_step: Tensor | None = None,
    ) -> Tensor:
        """Takes optimizer step `step` (from 0); returns the batch's loss in nats, a () tensor.

        `parts` yields images (b, C, R, R) and targets (b,) or (b, classes) of each part in turn.
        Nothing here waits for the device, except optimizers that are not fused (LAMB, Lion) with
        fp16. `bad_step` () is the step at which the training diverged, or negative; steps that the
        loss scale skips after it are not counted.
        """
        config, model, optimizer = self.config, self.model, self.optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        # frees the memory of the gradients before the forward pass
        optimizer.zero_grad(set_to_none=True)

        # --- forward and backward, part by part ---
        # Losses and gradients of the parts add up to those of the batch.
        device = next(model.parameters()).device
        loss = torch.zeros((), device=device)
        for part, positions in enumerate(self.positions):
            images, targets = next(parts)  # (b, C, R, R), (b,) or (b, classes)
            self.draws.at(step, positions)
            with self.team.no_sync(self.replica, is_last=part == len(self.positions) - 1):
                with autocast(config, device):
                    logits = self.replica(images)
                    part_loss = training_loss(logits, targets, config, config.batch_size)
                    if self.teacher is not None:
                        with torch.no_grad():
                            theirs = self.teacher(images)
                        part_loss = distilled(part_loss, logits, theirs, config, config.batch_size)
                # DDP averages gradients over the team, but parts of a batch must add up
                self.loss_scale.scaled(part_loss * self.team.size).backward()
            loss = loss + part_loss.detach()

        # --- update ---
        # Clipping is the same for every optimizer, so that comparisons are not about clipping.
        if config.clip_norm:
            self.loss_scale.unscale(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        self.loss_scale.step(optimizer, bad_step)
        self.ema.update(model, step)
        return self.team.sum(loss)


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Casts matrix products and convolutions to the config's precision; weights stay fp32."""
    match config.precision:
        case "fp32" | "tf32":  # tf32: device.products
            return torch.autocast(device.type, torch.bfloat16, enabled=False)
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
        case never:
            assert_never(never)
