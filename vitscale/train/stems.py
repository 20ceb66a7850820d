"""Stems: what turns an image into tokens."""

from __future__ import annotations

from torch import nn

from vitscale.plan.config import TrainConfig


def conv_stem(config: TrainConfig) -> nn.Sequential:
    """The convolutional stem of Xiao et al. 2021, section 3: (B, channels, R, R) -> (B, width, R/p, R/p).

    3x3 convolutions without bias, each with BatchNorm and ReLU, then a plain 1x1 convolution to the width.
    """
    from timm.models.vision_transformer_hybrid import ConvStem

    layers = config.stem_layers
    return ConvStem(
        in_chans=config.channels,
        depth=len(layers) + 1,
        channels=(*(channels for channels, _ in layers), config.width),
        stride=(*(stride for _, stride in layers), 1),
        kernel_size=(*(3 for _ in layers), 1),
        padding=(*(1 for _ in layers), 0),  # timm's own padding makes a row too many at a stride of 3 or more
    )
