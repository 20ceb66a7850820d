"""Reestimates BatchNorm's running statistics for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ESTIMATED = "estimated"  # attribute of a layer whose statistics are being reestimated


def has_batchnorm(model: nn.Module) -> bool:
    """Whether any layer of the model keeps running statistics."""
    return bool(_layers(model))


@torch.no_grad()
def reestimate(
    model: nn.Module,
    batches: Iterable[Tensor],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Replaces the running statistics of all BatchNorm layers by those of batches (B, C, H, W).

    A layer gets the average over images of their batches' means, and that of the unbiased
    variances, as in the code of Xiao et al. 2021: the variance of the batches' means is ignored, as
    it is when training normalizes a batch. A last batch of a single image, which may have no
    variance, is left out beside others. Meanwhile all other layers are in evaluation mode; weights,
    modes and random generators are left unchanged. A model without BatchNorm is not run. Raises
    ValueError if there is no batch.
    """
    layers = _layers(model)
    if not layers:
        return
    modes = [(module, module.training) for module in model.modules()]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        setattr(layer, ESTIMATED, True)
        layer.train()
    num = 0
    for images in batches:
        if num and len(images) == 1:
            continue
        num += len(images)
        for layer in layers:
            # cumulative average; momentum None would wait for the device, and weigh batches alike
            layer.momentum = len(images) / num
        # around the model only: the batches are made in their own precision
        with autocast():
            model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        delattr(layer, ESTIMATED)
    for module, training in modes:
        module.training = training
    if num == 0:
        raise ValueError(f"num_images >= 1 must hold, but got (num_images={num})")


def _layers(model: nn.Module) -> list[_BatchNorm]:
    """All BatchNorm layers with running statistics, including timm's and synchronized ones."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
