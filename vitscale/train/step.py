"""The optimizer step, shared by trainings and by profiles of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
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
    replica: nn.Module  # the same model, possibly compiled
    draws: Draws
    optimizer: torch.optim.Optimizer
    ema: Ema
    loss_scale: LossScale
    team: Team
    # (b,) int64 each: positions within the batch of the samples in each part of this process
    positions: Sequence[Tensor]
    device: torch.device
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
        self.set_lr(lr)
        # frees the memory of the gradients before the forward pass
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        return self.take_from(0, step, loss, parts, bad_step)

    def take_from(
        self,
        first: int,
        step: int,
        loss: Tensor,
        parts: Iterator[tuple[Tensor, Tensor]],
        bad_step: Tensor | None = None,
    ) -> Tensor:
        """The rest of `take` from part `first` of the batch on; `loss` () is that of earlier parts.

        Losses and gradients of the parts add up to those of the batch.
        """
        for part in range(first, len(self.positions)):
            images, targets = next(parts)  # (b, C, R, R), (b,) or (b, classes)
            self.draws.at(step, self.positions[part])
            loss = loss + self.compute(images, targets)
        return self.update(step, loss, bad_step)

    def compute(self, images: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward pass of a part of the batch, which adds to the gradients; its share
        of the loss in nats, a () tensor.
        """
        config = self.config
        with autocast(config, self.device):
            logits = self.replica(images)
            # those that learn from a teacher
            logits, taught = logits if config.distill == "token" else (logits, logits)
            loss = training_loss(logits, targets, config, config.batch_size)
            if self.teacher is not None:
                with torch.no_grad():
                    theirs = self.teacher(images)
                loss = distilled(loss, taught, theirs, config, config.batch_size)
        self.loss_scale.scaled(loss).backward()
        return loss.detach()

    def update(self, step: int, loss: Tensor, bad_step: Tensor | None = None) -> Tensor:
        """Updates weights and average from the gradients; returns the loss () of the whole team."""
        self.team.add_up(self.model.parameters())
        self.apply(step, bad_step)
        return self.team.sum(loss)

    def apply(self, step: int, bad_step: Tensor | None = None) -> None:
        """Updates weights and average from the team's gradients."""
        self.clip()
        self.loss_scale.step(self.optimizer, bad_step)
        self.ema.update(self.model, step)

    def clip(self) -> None:
        """The same for every optimizer, so that comparisons are not about clipping."""
        if self.config.clip_norm:
            self.loss_scale.unscale(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)

    def set_lr(self, lr: float) -> None:
        """On a GPU, rounded to float32, as the kernels of a captured step read it."""
        if self.device.type == "cuda":
            lr = float(np.float32(lr))
        for group in self.optimizer.param_groups:
            group["lr"] = lr


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
