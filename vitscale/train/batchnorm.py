"""BatchNorm's statistics for evaluation, estimated anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ESTIMATED = "estimated"  # an attribute of a layer whose statistics are being estimated anew


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a layer of the model keeps running statistics of its batches."""
    return bool(_layers(model))


@torch.no_grad()
def reestimate(
    model: nn.Module,
    batches: Iterable[Tensor],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Replaces the running statistics of all BatchNorm layers by those of the batches, each of (B,
    C, H, W).

    A layer gets the average over the batches of their means, and that of their unbiased variances,
    as in the code of Xiao et al. 2021: the spread of the batches' means is left out, as it is when
    training normalises a batch. All layers but these are in evaluation mode meanwhile; weights,
    modes and random generators stay as they are. A model without BatchNorm is not run. Raises
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
    for num, images in enumerate(batches, start=1):
        for layer in layers:
            # the average; momentum None is the same, and waits for the device in each layer
            layer.momentum = 1 / num
        # around the model alone: what makes the batches has a precision of its own
        with autocast():
            model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        delattr(layer, ESTIMATED)
    for module, training in modes:
        module.training = training
    if num == 0:
        raise ValueError(f"num_batches >= 1 must hold, but got (num_batches={num})")


def _layers(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm layer with running statistics, those
    of timm and the synchronised included.
    """
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
