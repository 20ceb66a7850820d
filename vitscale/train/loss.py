"""The loss that training minimises."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


def training_loss(logits: Tensor, targets: Tensor, config: TrainConfig, num: int) -> Tensor:
    """Loss in nats, summed over the samples given and divided by `num`, the samples of the whole batch: () tensor.

    Of the logits (B, classes) against class indices (B,), which are smoothed here, or against probabilities
    (B, classes), which are taken as they are: mixing smooths its own. Losses of the parts of a batch add up to that
    of the batch. `loss` ce: softmax cross entropy. bce: a binary cross entropy for each class, averaged over the
    classes (Wightman et al. 2021), each of which is as present as the mix says, or, with `bce_targets` present, there.
    """
    if config.loss == "bce":
        if config.bce_targets == "present" and targets.ndim == 2:
            targets = (targets > 0).to(logits.dtype)
        if targets.ndim == 1:
            targets = smooth(targets, logits.shape[1], config.label_smoothing)
        if num == len(logits):
            return F.binary_cross_entropy_with_logits(logits, targets)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / (num * logits.shape[1])
    smoothing = config.label_smoothing if targets.ndim == 1 else 0.0
    if num == len(logits):
        return F.cross_entropy(logits, targets, label_smoothing=smoothing)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum") / num


def smooth(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Class indices (B,) -> probabilities (B, num_classes): smoothing / num_classes to each, the rest to the label."""
    off = smoothing / num_classes
    shape = (len(labels), num_classes)
    return torch.full(shape, off, device=labels.device).scatter_(1, labels[:, None], 1 - smoothing + off)
