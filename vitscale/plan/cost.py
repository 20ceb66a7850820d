"""The cost of a trial in closed form: parameters, multiply-adds, activations, training FLOPs.

Needs no torch. Counts follow Xiao et al. 2021 (appendix D): FLOPs are multiply-adds of
convolutions, linear layers and attention products, including biases; norms and activation functions
are free; activations are the output elements of the same layers. `vitscale.train.complexity` counts
the built model, and a test compares the two with each other and with Table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from vitscale.catalog.regnety import REGNETY, RegNetYShape
from vitscale.plan.config import TrainConfig
from vitscale.plan.laws import VIT_ONLY
from vitscale.plan.parts import is_part


@dataclass(frozen=True)
class Complexity:
    """The cost of the forward pass of one image."""

    params: int
    flops: int  # multiply-adds
    acts: int  # output elements

    def __add__(self, other: Complexity) -> Complexity:
        return Complexity(
            self.params + other.params, self.flops + other.flops, self.acts + other.acts
        )

    def __mul__(self, times: int) -> Complexity:
        return Complexity(self.params * times, self.flops * times, self.acts * times)


# determines the cost of a model without a closed form: model, its arguments, resolution, ...
Shape = tuple[str | int | float, ...]
Measured = Mapping[Shape, Complexity]


def complexity(config: TrainConfig, measured: Measured = MappingProxyType({})) -> Complexity:
    """Parameters, multiply-adds and activations of a config's model at its resolution.

    One of timm, and a part, has no closed form: its cost is looked up in `measured`. Raises
    ValueError if it is not there.
    """
    if not has_closed_form(config):
        if shape_of(config) not in measured:
            raise ValueError(
                f"the cost of a model must be measured first, but got (model={config.model!r})"
            )
        return measured[shape_of(config)]
    if config.model in REGNETY:
        return _regnety(config, REGNETY[config.model])
    return _vit(config)


def has_closed_form(config: TrainConfig) -> bool:
    """Whether the cost of a config's model follows from its fields."""
    return not (config.model.startswith("timm:") or is_part(config.model))


def shape_of(config: TrainConfig) -> Shape:
    """What the cost of a model without a closed form depends on."""
    shape = config.model, config.timm_args, config.resolution, config.channels, config.num_classes
    if not is_part(config.model):
        return shape
    return *shape, str(config.own), *(getattr(config, name) for name in VIT_ONLY)


def training_flops(config: TrainConfig, measured: Measured = MappingProxyType({})) -> float:
    """Multiply-adds of a training: forward once and backward twice per sample drawn."""
    return 3.0 * complexity(config, measured).flops * config.num_samples


def own_training_flops(config: TrainConfig, measured: Measured = MappingProxyType({})) -> float:
    """Multiply-adds of a training without those of its trunk, which is a trial of its own."""
    return training_flops(config, measured) * config.num_own_steps / config.num_steps


def _linear(positions: int, inputs: int, outputs: int, bias: bool = True) -> Complexity:
    """A linear layer, or a 1x1 convolution, applied at each of `positions`."""
    weights = inputs * outputs + bias * outputs
    return Complexity(weights, positions * weights, positions * outputs)


def _conv(
    side: int, inputs: int, outputs: int, kernel: int, groups: int = 1, bias: bool = False
) -> Complexity:
    """A convolution with an output of side x side positions."""
    weights = kernel * kernel * inputs // groups * outputs + bias * outputs
    return Complexity(weights, side * side * weights, side * side * outputs)


def _norm(channels: int) -> Complexity:
    return Complexity(2 * channels, 0, 0)


def _vit(c: TrainConfig) -> Complexity:
    side = c.resolution // c.patch_size
    patches, tokens = side * side, c.num_tokens
    embedding = Complexity(_positions(c, side) + tokens * c.width, 0, 0)
    before = c.depth if c.class_blocks else c.token_layer  # blocks without these tokens
    blocks = _branch(c, patches) * (before * c.branches)
    blocks += _branch(c, patches + tokens) * ((c.depth - before) * c.branches)
    blocks += _branch(c, patches + tokens, tokens) * c.class_blocks
    if c.pos_embed == "relative":
        bias = Complexity(  # a vector per offset, and its products with the queries
            (2 * patches - 1) * (c.width // c.heads), patches**2 * c.width, c.heads * patches**2
        )
        blocks += bias * c.depth
    heads = _norm(c.width) + _linear(1, c.width, c.num_classes) * max(1, tokens)
    return _stem(c, side) + embedding + blocks + heads


def _positions(c: TrainConfig, side: int) -> int:
    """Parameters of learned positions that are added to tokens."""
    tokens = c.num_tokens if c.embed_token and not c.has_late_token else 0
    halves = {"learned": side * side + tokens, "learned2d": side}  # of half vectors: two sides
    return halves.get(c.pos_embed, 0) * c.width * (c.depth if c.pos_at == "layer" else 1)


def _branch(c: TrainConfig, tokens: int, queries: int = 0) -> Complexity:
    """One attention and one MLP with their norms and LayerScale, of all tokens or of the first
    ones, `queries`, to which the others are keys.
    """
    hidden, queries = int(c.width * c.mlp_ratio), queries or tokens
    products = Complexity(
        0, 2 * queries * tokens * c.width, c.heads * queries * tokens + queries * c.width
    )
    qkv = _linear(queries, c.width, c.width) + _linear(tokens, c.width, 2 * c.width)
    attention = qkv + products + _linear(queries, c.width, c.width)
    mlp = _linear(queries, c.width, hidden) + _linear(queries, hidden, c.width)
    per_branch = c.width if c.branch_gain == "channel" else 1
    gains = Complexity(2 * per_branch if c.layerscale else 0, 0, 0)
    return _norm(c.width) * 2 + attention + mlp + gains


def _stem(c: TrainConfig, side: int) -> Complexity:
    num = c.patch_size.bit_length() - 1
    match c.stem:
        case "patchify" | "patchify_gelu":
            return _conv(side, c.channels, c.width, c.patch_size, bias=True)
        case "patchify_bn" | "patchify_bn_gelu" | "patchify_bn_relu":
            return _conv(side, c.channels, c.width, c.patch_size, bias=True) + _norm(c.width)
        case "conv":
            return _convs(c, c.stem_layers, bias=False) + _linear(
                side * side, c.stem_layers[-1][0], c.width
            )
        case "graham":
            return _convs(c, [(c.width >> (num - 1 - i), 2, 3) for i in range(num)], bias=False)
        case "hmlp":
            layers = [(c.width // 4, 2 if i else 4, 2 if i else 4) for i in range(num - 1)]
            return _convs(c, [*layers[:-1], (c.width, *layers[-1][1:])], bias=True)
        case never:
            assert_never(never)


def _convs(c: TrainConfig, layers: list[tuple[int, int, int]], bias: bool) -> Complexity:
    """Convolutions (output channels, stride, kernel size) on the image, each with a norm."""
    cost, inputs, side = Complexity(0, 0, 0), c.channels, c.resolution
    for outputs, stride, kernel in layers:
        side //= stride  # exact: the resolution is a multiple of the patch size
        cost += _conv(side, inputs, outputs, kernel, bias=bias) + _norm(outputs)
        inputs = outputs
    return cost


def _regnety(c: TrainConfig, shape: RegNetYShape) -> Complexity:
    side = -(-c.resolution // 2)
    cost, inputs = _conv(side, c.channels, 32, 3) + _norm(32), 32
    for depth, width in zip(shape.depths, shape.widths, strict=True):
        for block in range(depth):
            stride = 2 if block == 0 else 1
            cost += _regnety_block(side, inputs, width, stride, shape)
            side, inputs = -(-side // stride), width
    return cost + _linear(1, inputs, c.num_classes)


def _regnety_block(
    side: int, inputs: int, width: int, stride: int, shape: RegNetYShape
) -> Complexity:
    after = -(-side // stride)
    squeezed = round(inputs * shape.se_ratio)
    cost = _conv(side, inputs, width, 1) + _norm(width)
    cost += _conv(after, width, width, 3, groups=width // shape.group_width) + _norm(width)
    cost += _linear(1, width, squeezed) + _linear(1, squeezed, width)
    cost += _conv(after, width, width, 1) + _norm(width)
    if stride > 1 or inputs != width:
        cost += _conv(after, inputs, width, 1) + _norm(width)
    return cost


# of final weights of a trial, raw and averaged, that are kept unless told otherwise
SMALL_BYTES = 64 * 2**20


def weights_bytes(config: TrainConfig, measured: Measured) -> int:
    """Bytes of a trial's final weights in fp32, raw and, where there is an average, averaged; less
    those of buffers.
    """
    copies = 2 if config.ema_decay or config.ema_alpha else 1
    return 4 * copies * complexity(config, measured).params
