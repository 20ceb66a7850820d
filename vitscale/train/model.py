"""TrainConfig -> model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

import torch
from torch import nn

from vitscale.catalog.regnety import REGNETY, RegNetYShape
from vitscale.plan.config import TrainConfig
from vitscale.plan.parts import is_part
from vitscale.train.stems import build_stem

# stems of several convolutions; a single one that cuts patches is a matrix product
CONVOLUTIONAL = ("conv", "graham", "hmlp")


def build_model(config: TrainConfig) -> nn.Module:
    """A model that maps (B, channels, resolution, resolution) to logits (B, num_classes).

    With a distillation token, a model in training gives two of them, as DesignedViT says.
    It is built on the default device, with weights from torch's global generator. Raises ValueError
    for a timm model that does not exist or cannot be built with this config.
    """
    if is_part(config.model):
        from vitscale.train.parts import build_own_model

        return build_own_model(config)
    if config.model.startswith("timm:"):
        return _timm(config, config.model.removeprefix("timm:"))
    if config.model in REGNETY:
        return _regnety(config, REGNETY[config.model])
    return _vit(config)


def memory_format(config: TrainConfig, device: torch.device) -> torch.memory_format:
    """The memory format of the images that a model reads on a device.

    Channels last for convolutions on a GPU: tensor cores read it, and cuDNN would otherwise copy
    activations to that format and back. Not for stems in fp32, which use no tensor cores, and which
    it costs a copy of the gradient. A CPU keeps the format: another changes the order of sums.
    """
    in_stem = config.stem in CONVOLUTIONAL and config.precision != "fp32"
    fast = device.type == "cuda" and (config.model != "vit" or in_stem)
    return torch.channels_last if fast else torch.preserve_format


def place(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The model on a device, with convolutions in the format in which they are fast there."""
    model = model.to(device)
    if config.model != "vit":
        return model.to(memory_format=torch.channels_last)
    if memory_format(config, device) == torch.channels_last:
        vit: Any = model
        vit.patch_embed.to(memory_format=torch.channels_last)
    return model


def _vit(config: TrainConfig) -> nn.Module:
    """Pre-norm ViT (Dosovitskiy et al. 2021) with the stem of the config.

    weight_init "jax" is that of the authors' code: zero head, Xavier-uniform linear layers,
    lecun-normal convolutions. Patch tokens are averaged before the last norm, as in timm.
    """
    from timm.layers import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer

    parts: dict[str, Any] = {"patch_size": config.patch_size, "block_fn": _block(config)}
    if config.stem != "patchify":  # timm's model has its own patchify stem
        parts |= {
            "patch_size": 1,
            "embed_layer": partial(HybridEmbed, backbone=build_stem(config), proj=False),
        }
    match config.pool:
        case "token":
            parts |= {"global_pool": "token", "class_token": True}
        case "avg":
            parts |= {"global_pool": "avg", "class_token": False}
        case never_pool:
            assert_never(never_pool)
    match config.weight_init:
        case "jax":
            parts |= {"weight_init": "jax"}
        case "trunc_normal":
            parts |= {"weight_init": ""}  # timm's default, that of DeiT
        case never_init:
            assert_never(never_init)
    learned = config.pos_embed in ("learned", "learned2d")
    make: Callable[..., nn.Module] = VisionTransformer
    moved = config.pos_embed == "learned2d" or config.pos_at != "stem" or config.has_late_token
    designed = moved or config.distill == "token"
    if designed or config.pos_embed == "relative":
        from vitscale.train.designs import DesignedViT, RelativeAttention

        make = partial(DesignedViT, config) if designed else make
        if config.pos_embed == "relative":
            patches = (config.resolution // config.patch_size) ** 2
            parts |= {"attn_layer": type("Of", (RelativeAttention,), {"num_patches": patches})}
    model = make(
        img_size=config.resolution,
        in_chans=config.channels,
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth + config.class_blocks,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        pos_embed="learn" if learned else "none",
        no_embed_class=not config.embed_token
        or config.pos_embed in ("sincos", "learned2d")
        or config.has_late_token,
        init_values=config.layerscale or None,
        pos_drop_rate=config.dropout,
        proj_drop_rate=config.dropout,
        drop_path_rate=config.drop_path,
        **parts,
    )
    return _fix_positions(_with_gains(model, config), config)


def gains(model: nn.Module) -> dict[str, Any]:
    """The LayerScale modules of a ViT, by name."""
    from timm.models.vision_transformer import LayerScale

    return {
        name: module for name, module in model.named_modules() if isinstance(module, LayerScale)
    }


@torch.no_grad()
def _with_gains(model: nn.Module, config: TrainConfig) -> nn.Module:
    """Gives each residual branch the gains of the config; timm's are one constant for each channel.

    A scalar gain that starts at 0 is ReZero's (Bachlechner et al. 2020), with the norms that the
    original leaves out. Random values are drawn after all other weights, which they leave alone.
    """
    for module in gains(model).values():
        match config.branch_gain:
            case "channel":
                pass
            case "scalar":
                module.gamma = nn.Parameter(module.gamma[:1].clone())
            case never_gain:
                assert_never(never_gain)
        match config.gain_init:
            case "constant":
                pass
            case "uniform":
                module.gamma.uniform_(0, 2 * config.layerscale)
            case "zero":
                module.gamma.zero_()
            case never_init:
                assert_never(never_init)
    return model


def _fix_positions(model: Any, config: TrainConfig) -> nn.Module:
    """Gives a ViT sine-cosine positions, or none after the stem but their dropout, as the config
    says.
    """
    from timm.layers import build_sincos2d_pos_embed

    match config.pos_embed:
        case "learned" | "learned2d":
            pass
        case "sincos":  # Chen et al. 2021, MoCo v3: the class token has no position
            side = config.resolution // config.patch_size
            del model.pos_embed
            model.register_buffer(
                "pos_embed", build_sincos2d_pos_embed([side, side], config.width)[None]
            )
        case "none" | "relative":  # timm skips the dropout if there are no positions to add
            model.norm_pre, model.pos_drop = model.pos_drop, nn.Identity()
        case never:
            assert_never(never)
    return model


def _block(config: TrainConfig) -> Callable[..., nn.Module]:
    """The constructor of a transformer block; timm's own drop path rates follow the linear rule."""
    from timm.layers import Attention
    from timm.models.vision_transformer import Block

    from vitscale.train.blocks import ParallelBlock

    make = partial(ParallelBlock, num_parallel=config.branches) if config.branches > 1 else Block

    def build(depth: int, **fields: Any) -> nn.Module:
        if depth < config.depth:
            return make(depth=depth, **fields)
        from vitscale.train.designs import ClassBlock

        block = ClassBlock(depth=depth, **{**fields, "attn_layer": Attention})
        block.num_tokens = config.num_tokens
        return block

    def uniform(drop_path: float, **fields: Any) -> nn.Module:
        return build(drop_path=config.drop_path, **fields)

    match config.drop_path_rule:
        case "uniform":
            return uniform
        case "linear":
            return build
        case never:
            assert_never(never)


def _regnety(config: TrainConfig, shape: RegNetYShape) -> nn.Module:
    """RegNetY with explicit depths and widths; timm's models of these names differ.

    The last norm of a block starts with a gain of 1, as in the authors' code
    (BN.ZERO_INIT_FINAL_GAMMA is False in pycls), and not with timm's 0. Other initial weights are
    timm's: those of grouped convolutions are larger than in pycls by the square root of the number
    of groups, which the norm after them cancels.
    """
    from timm.layers import calculate_drop_path_rates
    from timm.models.regnet import RegNet, RegNetCfg

    rates: Any
    match config.drop_path_rule:
        case "uniform":
            rates = [[config.drop_path] * depth for depth in shape.depths]
        case "linear":
            rates = calculate_drop_path_rates(config.drop_path, list(shape.depths), stagewise=True)
        case never:
            assert_never(never)

    class WrittenOut(RegNet):
        def _get_stage_args(
            self, cfg: Any, *_: Any, **__: Any
        ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            common = super()._get_stage_args(RegNetCfg(se_ratio=shape.se_ratio))[1]
            stages = zip(shape.widths, shape.depths, rates, strict=True)
            return [
                {
                    "out_chs": width,
                    "stride": 2,
                    "dilation": 1,
                    "depth": depth,
                    "bottle_ratio": 1.0,
                    "group_size": shape.group_width,
                    "drop_path_rates": drop_path_rates,
                }
                for width, depth, drop_path_rates in stages
            ], common

    return WrittenOut(
        RegNetCfg(se_ratio=shape.se_ratio),
        in_chans=config.channels,
        num_classes=config.num_classes,
        zero_init_last=False,
    )


def _timm(config: TrainConfig, name: str) -> nn.Module:
    """An untrained model of timm.

    Dropout and drop path that the model has by default are switched off unless the config sets
    them.
    """
    import timm

    if name not in (names := timm.list_models()):
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"; close are {', '.join(close)}" if close else ""
        raise ValueError(
            f"timm:NAME must name a model of timm, but got (model={config.model!r}){hint}"
        )
    if (module := timm.model_entrypoint(name).__module__).partition(".")[0] != "timm":
        raise ValueError(
            "timm:NAME must name a model that timm itself defines, since workers do not run the "
            f"study's script, but got (model={config.model!r}, defined in {module}); name it as a "
            "part, model='file.py:Name'"
        )
    optional: dict[str, Any] = {
        "img_size": config.resolution,
        "drop_rate": 0.0,
        "drop_path_rate": config.drop_path,
    }
    while True:
        try:
            model = timm.create_model(
                name,
                pretrained=False,
                num_classes=config.num_classes,
                in_chans=config.channels,
                **optional,
                **config.timm_kwargs,
            )
        except (TypeError, ValueError, AssertionError) as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            needed = {"drop_path_rate"} if config.drop_path else set()
            if unknown is None or unknown[1] not in optional.keys() - needed:
                raise _refusal(config, str(error)) from None
            del optional[unknown[1]]
        else:
            return _with_drop_path(model, config)


def _refusal(config: TrainConfig, reason: str) -> ValueError:
    """The one-line error for a timm model that cannot be built with this config."""
    return ValueError(
        f"a model that timm can build must be named, but got (model={config.model!r}, "
        f"{f'timm_args={config.timm_args!r}, ' if config.timm_args else ''}"
        f"resolution={config.resolution}, channels={config.channels}, "
        f"drop_path={config.drop_path}): {' '.join(reason.split())}"
    )


def _with_drop_path(model: nn.Module, config: TrainConfig) -> nn.Module:
    """The model with the config's drop path rates.

    timm's own rule is linear, except for models whose rates are uniform by construction.
    """
    from timm.layers import DropPath

    probs = [layer.drop_prob for layer in model.modules() if isinstance(layer, DropPath)]
    rates = set(probs)
    if config.drop_path and not rates:
        raise _refusal(config, "it has no drop path")
    if config.drop_path_rule == "linear" and len(rates) == 1 and len(probs) > 2:
        raise _refusal(config, "its drop path is uniform by construction")
    if len(rates) > 1 and config.drop_path_rule == "uniform":
        for block in list(model.modules()):
            for name in [
                name for name in (*block._modules, *vars(block)) if name.startswith("drop_path")
            ]:
                # the first block has an identity or None instead
                if isinstance(getattr(block, name), (DropPath, nn.Identity, type(None))):
                    setattr(block, name, DropPath(config.drop_path))
    return model
