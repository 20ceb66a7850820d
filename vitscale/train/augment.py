"""Augmentation of a whole batch on its device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


def augment(images: Tensor, config: TrainConfig, rng: np.random.Generator) -> Tensor:
    """Random crop and horizontal flip, each image its own: (B, C, H, W) in [0, 1] -> the same."""
    if config.crop_padding:
        images = _random_crop(images, config.crop_padding, rng)
    if config.flip_prob:
        flips = torch.from_numpy(rng.random(len(images)) < config.flip_prob).to(images.device)
        images = torch.where(flips[:, None, None, None], images.flip(-1), images)
    return images


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (images - mean) / std


def mix(images: Tensor, labels: Tensor, config: TrainConfig, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mixup or CutMix, one for the whole batch (timm); targets become (B, num_classes) with smoothing folded in."""
    if not config.mixup_alpha and not config.cutmix_alpha:
        return images, labels
    from timm.data.mixup import Mixup

    mixup = Mixup(
        mixup_alpha=config.mixup_alpha,
        cutmix_alpha=config.cutmix_alpha,
        label_smoothing=config.label_smoothing,
        num_classes=config.num_classes,
    )
    state = np.random.get_state()  # timm draws from NumPy's global generator
    np.random.seed(rng.integers(2**32, dtype=np.uint32))
    try:
        return mixup(images.clone(), labels)
    finally:
        np.random.set_state(state)


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Mean cross entropy in nats against class indices (B,) or, smoothed already, probabilities (B, classes)."""
    if targets.ndim == 2:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def _random_crop(images: Tensor, padding: int, rng: np.random.Generator) -> Tensor:
    """Pads with zeros (black) and crops back to the size, at an offset of its own for each image."""
    num, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    top, left = torch.from_numpy(rng.integers(0, 2 * padding + 1, (2, num))).to(images.device)
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    item = torch.arange(num, device=images.device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[item, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)
