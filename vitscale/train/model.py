"""TrainConfig -> model."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from search_spaces.regnety import REGNETY, RegNetYShape
from vitscale.plan.config import TrainConfig
from vitscale.train.stems import conv_stem


def build_model(config: TrainConfig) -> nn.Module:
    """A model that maps (B, channels, resolution, resolution) to logits (B, num_classes), on the default device.

    Weights follow torch's global generator.
    """
    if config.model in REGNETY:
        return _regnety(config, REGNETY[config.model])
    return _vit(config)


def _vit(config: TrainConfig) -> nn.Module:
    """Pre-norm ViT with class token and learned positions (Dosovitskiy et al. 2021), and the stem of the config.

    Initialised as in the authors' JAX code: zero head, Xavier-uniform linear layers, lecun-normal convolutions.
    """
    from timm.layers import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer

    stem: dict[str, Any] = {"patch_size": config.patch_size}
    if config.stem == "conv":
        embed = partial(HybridEmbed, backbone=conv_stem(config), proj=False)
        stem = {"patch_size": 1, "embed_layer": embed}
    return VisionTransformer(
        img_size=config.resolution,
        in_chans=config.channels,
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        weight_init="jax",
        **stem,
    )


def _regnety(config: TrainConfig, shape: RegNetYShape) -> nn.Module:
    """RegNetY with depths and widths written out; timm's models of this name are others."""
    from timm.models.regnet import RegNet, RegNetCfg

    class WrittenOut(RegNet):
        def _get_stage_args(self, cfg: Any, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            common = super()._get_stage_args(RegNetCfg(se_ratio=shape.se_ratio))[1]
            stages = zip(shape.widths, shape.depths, strict=True)
            return [
                {"out_chs": width, "stride": 2, "dilation": 1, "depth": depth, "bottle_ratio": 1.0,
                 "group_size": shape.group_width, "drop_path_rates": [0.0] * depth}
                for width, depth in stages
            ], common  # fmt: skip

    return WrittenOut(RegNetCfg(se_ratio=shape.se_ratio), in_chans=config.channels, num_classes=config.num_classes)
