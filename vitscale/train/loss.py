"""The training loss."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.plan.parts import is_part


def training_loss(logits: Tensor, targets: Tensor, config: TrainConfig, num: int) -> Tensor:
    """Loss in nats of logits (B, classes): summed over samples and divided by `num`, a () tensor.

    `num` is the size of the whole batch, so losses of the parts of a batch add up to that of the
    batch. Targets are class indices (B,), which are smoothed here, or probabilities (B, classes),
    to which mixing has applied label smoothing already. The loss "ce" is softmax cross entropy;
    "bce" is binary cross entropy averaged over classes (Wightman et al. 2021), against the mixed
    probabilities or, with `bce_targets` present, against 1 for each class that is present. A part
    gives the loss of each sample.
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
        case part:
            from vitscale.train.parts import own_loss

            assert is_part(part)
            return own_loss(config)(logits, targets).float().sum() / num


def distilled(
    loss: Tensor, logits: Tensor, theirs: Tensor, config: TrainConfig, num: int
) -> Tensor:
    """Loss of a student in nats, a () tensor: a share of `loss`, which is about the labels, plus a
    share of one about the logits `theirs` (B, classes) of a teacher.

    The latter is summed over samples and divided by `num`, as `loss` is (H. Touvron's thesis, 2022,
    equations 3.2 and 3.3). The divergence is that of the student from the teacher (Hinton et al.
    2015). `logits` (B, classes) are those that learn from the teacher: with a distillation token
    those of its head, of which `loss` knows nothing.
    """
    match config.distill:
        case "hard" | "token":
            about = F.cross_entropy(logits, theirs.argmax(dim=1), reduction="sum")
            return loss / 2 + about / (2 * num)
        case "soft":
            tau, share = config.distill_tau, config.distill_share
            ours, target = (F.log_softmax(values / tau, dim=1) for values in (logits, theirs))
            divergence = F.kl_div(ours, target, reduction="sum", log_target=True)
            return (1 - share) * loss + share * tau**2 * divergence / num
        case "none":
            return loss
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
