"""Counts parameters, multiply-adds and activations of a model without allocating its weights."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitscale.catalog.costs import PublishedModel, agrees, exaflops, published_models
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import Complexity
from vitscale.plan.parts import is_part
from vitscale.train.model import build_model
from vitscale.train.parts import check_logits, load, reason_of

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
CONVOLUTIONS = (aten.conv1d, aten.conv2d, aten.convolution)
ATTENTION = aten.scaled_dot_product_attention
# The result has the shape of the first argument, and counts depend on shapes alone: torch's own
# answer on the meta device is Python code that takes most of the time.
SAME_SHAPE = (aten.batch_norm, aten.layer_norm, aten.gelu, aten.relu, aten.silu, aten.softmax)


@functools.cache
def measured_complexity(config: TrainConfig) -> Complexity:
    """The cost of the forward pass of one image, counted on the meta device; that of a part which
    cannot be built there, on the CPU.

    Convolutions, linear layers and all other matrix products count, including biases, as in Xiao et
    al. 2021, appendix D. Buffers that are not trained do not count as parameters. Raises ValueError
    if the model does not accept images of this size, or gives no logits.
    """
    if not is_part(config.model):
        return _counted(config, "meta")
    load(config.model)  # refused before the model is built
    try:
        return _counted(config, "meta")
    except Exception:  # such as numbers that a model reads from its tensors
        with torch.random.fork_rng(devices=()):
            return _counted(config, "cpu")


def _counted(config: TrainConfig, device: str) -> Complexity:
    with torch.device(device):
        model = build_model(config).eval()
        image = torch.empty(1, config.channels, config.resolution, config.resolution)
    with torch.inference_mode(), Products() as products:
        try:
            logits = model(image)
        except Exception as error:
            if is_part(config.model):
                shape = tuple(image.shape)
                raise ValueError(
                    f"a model must take images of the shape {shape}, but got ({config.model}: "
                    f"{reason_of(error)})"
                ) from None
            if not isinstance(error, (RuntimeError, AssertionError)):
                raise
            raise ValueError(
                f"{config.model} must take images of such a size, but got "
                f"(resolution={config.resolution}): {' '.join(str(error).split())}"
            ) from None
    check_logits(logits, config, 1)
    return Complexity(sum(p.numel() for p in model.parameters()), products.flops, products.acts)


class Products(TorchDispatchMode):
    """Counts the multiply-adds and output elements of matrix products and convolutions.

    Use it under inference_mode, in which linear layers and attention are not decomposed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.acts = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func.overloadpacket
        if kind in SAME_SHAPE or (kind is aten.add and _equal_shapes(*args)):
            return torch.empty_like(args[0])
        if not self._is_counted(kind):
            with self:  # its parts may count
                if (output := func.decompose(*args, **(kwargs or {}))) is not NotImplemented:
                    return output
        result = func(*args, **(kwargs or {}))
        if self._is_counted(kind):
            self._count(kind, args, result)
        return result

    @staticmethod
    def _is_counted(kind: Any) -> bool:
        return kind in (*PRODUCTS, *CONVOLUTIONS, aten.linear, ATTENTION)

    def _count(self, kind: Any, args: Any, y: Tensor) -> None:
        if kind is ATTENTION:  # the scores, then their weighted sums of values
            scores = y.numel() // y.shape[-1] * args[1].shape[-2]
            self.flops += scores * (args[0].shape[-1] + y.shape[-1])
            self.acts += scores + y.numel()
            return
        self.flops += y.numel() * _inputs(kind, args) + (y.numel() if _has_bias(kind, args) else 0)
        self.acts += y.numel()


def _equal_shapes(x: Tensor, y: Tensor | float) -> bool:
    return isinstance(y, Tensor) and x.shape == y.shape


def _inputs(kind: Any, args: Any) -> int:
    """The number of products summed for one output element."""
    if kind in CONVOLUTIONS:
        return math.prod(args[1].shape[1:])
    first: Tensor = args[1] if kind in (aten.addmm, aten.baddbmm) else args[0]
    return first.shape[-1]


def _has_bias(kind: Any, args: Any) -> bool:
    if kind in (aten.addmm, aten.baddbmm):
        return True
    return kind in (*CONVOLUTIONS, aten.linear) and len(args) > 2 and args[2] is not None


def compare_published() -> list[dict[str, Any]]:
    """Compares each published model (vitscale.catalog.costs) with ours.

    Gives the printed and the measured numbers, and those that deviate. Parameters (millions) must
    agree to the printed digit; multiply-adds (billions), activations (millions) and, where a table
    prints them, exaFLOPs of a whole training within 1% or the printed digit. Takes seconds.
    """
    return [_compare(published) for published in published_models()]


def _compare(published: PublishedModel) -> dict[str, Any]:
    config = TrainConfig(**published.fields)
    cost = measured_complexity(config)
    ours = {"params_m": cost.params / 1e6, "flops_g": cost.flops / 1e9, "acts_m": cost.acts / 1e6}
    if published.exaflops:
        ours["exaflops"] = exaflops(cost.flops, int(published.epochs))
    printed = {name: getattr(published, name) for name in ours}
    deviates = [
        name
        for name, text in printed.items()
        if text and not agrees(text, ours[name], 0.0 if name == "params_m" else 0.01)
    ]
    return {
        "source": published.source,
        "name": published.name,
        "model": config.model,
        "resolution": config.resolution,
        "published": printed,
        "ours": ours,
        "deviates": deviates,
        "reason": published.reason,
    }
