"""Stems: (B, channels, R, R) images -> (B, width, R/p, R/p) tokens."""

from __future__ import annotations

import itertools
from typing import assert_never

from torch import nn

from vitscale.plan.config import TrainConfig


def build_stem(config: TrainConfig) -> nn.Sequential:
    """The stem of a config; for the plain "patchify", timm models have their own."""
    match config.stem:
        case "patchify":
            return patchify_stem(config)
        case "patchify_bn":
            return patchify_stem(config, nn.BatchNorm2d(config.width))
        case "patchify_gelu":
            return patchify_stem(config, nn.GELU())
        case "patchify_bn_gelu":
            return patchify_stem(config, nn.BatchNorm2d(config.width), nn.GELU())
        case "patchify_bn_relu":
            return patchify_stem(config, nn.BatchNorm2d(config.width), nn.ReLU())
        case "conv":
            return conv_stem(config)
        case "graham":
            return graham_stem(config)
        case "hmlp":
            return hmlp_stem(config)
        case never:
            assert_never(never)


def conv_stem(config: TrainConfig) -> nn.Sequential:
    """The convolutional stem of Xiao et al. 2021, section 3 and appendix A.

    Convolutions without bias, each followed by a norm and ReLU, then a plain 1x1 convolution to the
    width.
    """
    from timm.models.vision_transformer_hybrid import ConvStem

    layers = config.stem_layers
    return ConvStem(
        in_chans=config.channels,
        depth=len(layers) + 1,
        channels=(*(channels for channels, _, _ in layers), config.width),
        stride=(*(stride for _, stride, _ in layers), 1),
        kernel_size=(*(kernel for _, _, kernel in layers), 1),
        # timm's own padding adds an extra row at a stride of 3 or more
        padding=(*(1 if kernel == 3 else 0 for _, _, kernel in layers), 0),
        norm_layer=_norm_layer(config),
    )


def graham_stem(config: TrainConfig) -> nn.Sequential:
    """The stem of Graham et al. 2021 (LeViT) with GELU, as in Touvron et al. 2022, Table 7.

    3x3 convolutions of stride 2, each with a norm; channels double up to `width`.
    """
    num = config.patch_size.bit_length() - 1
    widths = [config.channels, *(config.width >> (num - 1 - i) for i in range(num))]
    convs = [
        nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in itertools.pairwise(widths)
    ]
    return _normed(config, convs)


def hmlp_stem(config: TrainConfig) -> nn.Sequential:
    """The hierarchical MLP stem of Touvron et al. 2022, appendix C; patches do not interact.

    A 4x4 convolution of stride 4, then 2x2 convolutions of stride 2, each with a norm; all have
    width / 4 channels but the last one.
    """
    num = config.patch_size.bit_length() - 2
    widths = [config.channels, *[config.width // 4] * (num - 1), config.width]
    sizes = [4] + [2] * (num - 1)
    return _normed(
        config, [nn.Conv2d(widths[i], widths[i + 1], sizes[i], stride=sizes[i]) for i in range(num)]
    )


def patchify_stem(config: TrainConfig, *after: nn.Module) -> nn.Sequential:
    """Patchify, then BatchNorm, GELU or both (Touvron et al. 2022, Table 7), or BatchNorm and ReLU
    (Xiao et al. 2021, Figure 7).
    """
    patch = config.patch_size
    return nn.Sequential(nn.Conv2d(config.channels, config.width, patch, stride=patch), *after)


def _normed(config: TrainConfig, convs: list[nn.Conv2d]) -> nn.Sequential:
    """Convolutions each followed by a norm, with GELU in between."""
    stem = nn.Sequential()
    for conv in convs:
        stem.extend([conv, _norm_layer(config)(conv.out_channels), nn.GELU()])
    return stem[:-1]


def _norm_layer(config: TrainConfig) -> type[nn.Module]:
    from timm.layers import LayerNorm2d

    match config.stem_norm:
        case "bn":
            return nn.BatchNorm2d
        case "ln":
            return LayerNorm2d
        case never:
            assert_never(never)
