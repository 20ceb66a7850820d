"""Counts parameters, multiply-adds and activations of a model as it is built, without allocating its weights."""

from __future__ import annotations

import torch
from torch import nn

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import Complexity
from vitscale.train.model import build_model


def measured_complexity(config: TrainConfig) -> Complexity:
    """Cost of one forward pass of one image, counted by hooks on the meta device.

    Convolutions, linear layers and the two products of an attention count, as in Xiao et al. 2021, appendix D.
    """
    from timm.layers import Attention

    with torch.device("meta"):
        model = build_model(config).eval()
        image = torch.empty(1, config.channels, config.resolution, config.resolution)
    counts = [0, 0]  # multiply-adds, activations

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        flops, acts = _layer_cost(layer, inputs[0], output)
        counts[0] += flops
        counts[1] += acts

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, Attention)):
            module.register_forward_hook(count)
    with torch.no_grad():
        model(image)
    return Complexity(sum(p.numel() for p in model.parameters()), counts[0], counts[1])


def _layer_cost(layer: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
    """(multiply-adds, output elements) of a layer by itself; an attention's linear layers are counted as such."""
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        bias = 0 if layer.bias is None else y.numel()
        out_channels = layer.weight.shape[0]
        return y.numel() * (layer.weight.numel() // out_channels) + bias, y.numel()
    heads: int = layer.num_heads  # type: ignore[assignment]
    tokens, width = x.shape[-2:]
    return 2 * tokens * tokens * width, heads * tokens * tokens + tokens * width
