"""The loss that training minimises."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


def training_loss(logits: Tensor, targets: Tensor, config: TrainConfig, num: int) -> Tensor:
    """Loss in nats, summed over the samples given and divided by `num`, the samples of the whole
    batch: () tensor.

    Of the logits (B, classes) against class indices (B,), which are smoothed here, or against
    probabilities (B, classes), which are taken as they are: mixing smooths its own. Losses of the
    parts of a batch add up to that of the batch. `loss` ce: softmax cross entropy. bce: a binary
    cross entropy for each class, averaged over the classes (Wightman et al. 2021), each of which is
    as present as the mix says, or, with `bce_targets` present, there.
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
    """What each class's probability is compared with, (B, classes)."""
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
    """Class indices (B,) -> probabilities (B, num_classes):
    smoothing / num_classes to each, the rest to the label.
    """
    off = smoothing / num_classes
    shape = (len(labels), num_classes)
    return torch.full(shape, off, device=labels.device).scatter_(
        1, labels[:, None], 1 - smoothing + off
    )
