"""The training loss."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


def training_loss(logits: Tensor, targets: Tensor, config: TrainConfig, num: int) -> Tensor:
    """Loss in nats of logits (B, classes): summed over samples and divided by `num`, a () tensor.

    `num` is the size of the whole batch, so losses of the parts of a batch add up to that of the
    batch. Targets are class indices (B,), which are smoothed here, or probabilities (B, classes),
    to which mixing has applied label smoothing already. The loss "ce" is softmax cross entropy;
    "bce" is binary cross entropy averaged over classes (Wightman et al. 2021), against the mixed
    probabilities or, with `bce_targets` present, against 1 for each class that is present.
    """
    match config.loss:
        case "ce":
            smoothing = config.label_smoothing if targets.ndim == 1 else 0.0
            if num == len(logits):
                return F.cross_entropy(logits, targets, label_smoothing=smoothing)
            return (
                F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum") / num
            )
        case "bce":
            targets = _bce_targets(targets, logits, config)
            if num == len(logits):
                return F.binary_cross_entropy_with_logits(logits, targets)
            return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / (
                num * logits.shape[1]
            )
        case never:
            assert_never(never)


def _bce_targets(targets: Tensor, logits: Tensor, config: TrainConfig) -> Tensor:
    """The target probability of each class, (B, classes)."""
    if targets.ndim == 1:
        return smooth(targets, logits.shape[1], config.label_smoothing)
    match config.bce_targets:
        case "soft":
            return targets
        case "present":
            return (targets > 0).to(logits.dtype)
        case never:
            assert_never(never)


def smooth(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Class indices (B,) -> probabilities (B, num_classes) with label smoothing.

    Each class gets smoothing / num_classes, and the label the rest.
    """
    off = smoothing / num_classes
    shape = (len(labels), num_classes)
    return torch.full(shape, off, device=labels.device).scatter_(
        1, labels[:, None], 1 - smoothing + off
    )
