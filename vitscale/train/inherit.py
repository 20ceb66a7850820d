"""The initial weights of a child, which are the final ones of its parent, and what of them is
trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.record.workdir import Workdir
from vitscale.train import checkpoint
from vitscale.train.model import build_model, gains, place

POSITIONS = "pos_embed"
# part of the names of what is trained beside the head and the positions
TRAINED = {"attn": ".attn.", "ffn": ".mlp."}


def inherit(model: nn.Module, config: TrainConfig, weights: Mapping[str, Tensor]) -> None:
    """Loads the weights of a parent, as of `state_dict`, into a model of the config: all, or the
    gains of LayerScale alone (`init_parts`).

    Learned positions of another resolution are resized by bicubic interpolation without
    antialiasing, as in DeiT's code (Touvron et al. 2021); those of other tokens stay. The head
    is kept, zero, or left as it is (`init_head`).
    """
    own, state = model.state_dict(), dict(weights)
    match config.init_parts:
        case "all":
            pass
        case "layerscale":
            model.load_state_dict({**own, **{name: state[name] for name in _of_gains(model)}})
            return
        case never:
            assert_never(never)
    if POSITIONS in own and config.pos_embed == "sincos":
        state[POSITIONS] = own[POSITIONS]
    elif POSITIONS in own and own[POSITIONS].shape != state[POSITIONS].shape:
        state[POSITIONS] = resized(state[POSITIONS], config, model)
    for name in _of_head(model) if config.init_head != "keep" else ():
        match config.init_head:
            case "zero":
                state[name] = torch.zeros_like(own[name])
            case "random":
                state[name] = own[name]
    model.load_state_dict(state)


def build_teacher(config: TrainConfig, folder: Workdir | Path, device: torch.device) -> nn.Module:
    """The model of a teacher's config in evaluation mode, with its final raw weights, which need no
    gradient.
    """
    model = build_model(config)
    workdir = Workdir(folder) if isinstance(folder, Path) else folder
    model.load_state_dict(checkpoint.load_final(workdir, config.id)["model"])
    return place(model, config, device).eval().requires_grad_(False)


def resized(
    positions: Tensor, config: TrainConfig, model: nn.Module, antialias: bool = False
) -> Tensor:
    """Learned positions (L, T, C) of L layers, or those of learned2d, for the resolution of the
    config and its model; of a model without a grid of patches, the same.
    """
    from timm.layers import resample_abs_pos_embed

    if config.model != "vit":
        grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
        if not grid or positions.dim() != 3:  # (1, T, C); timm resamples no other
            return positions
        prefix = model.get_parameter(POSITIONS).shape[1] - math.prod(grid)
        return resample_abs_pos_embed(
            positions, list(grid), num_prefix_tokens=prefix, antialias=antialias
        )
    side = config.resolution // config.patch_size
    if config.pos_embed == "learned2d":  # bicubic along the axis of each half
        # a height of 1: with a width of 1, torch 2's antialiasing gives other values
        halves = [half.transpose(1, 2)[:, :, None] for half in positions.chunk(2, 1)]
        new = [F.interpolate(h, (1, side), mode="bicubic", antialias=antialias) for h in halves]
        return torch.cat([h[:, :, 0].transpose(1, 2) for h in new], 1)
    prefix = config.num_tokens if config.embed_token and not config.has_late_token else 0
    return torch.cat(
        [
            resample_abs_pos_embed(
                layer[None], [side, side], num_prefix_tokens=prefix, antialias=antialias
            )
            for layer in positions
        ]
    )


def _of_head(model: nn.Module) -> set[str]:
    """The names of the weights of the head, or of two with a distillation token."""
    vit: Any = model
    heads = vit.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    return {
        f"{where}.{name}"
        for where, module in model.named_modules()
        if any(module is head for head in heads)
        for name in module.state_dict()
    }


def _of_gains(model: nn.Module) -> set[str]:
    """The names of the gains of LayerScale."""
    return {f"{name}.gamma" for name in gains(model)}


def freeze(model: nn.Module, config: TrainConfig) -> nn.Module:
    """The model, of which only `trainable` has gradients: attention or the MLPs, with the positions
    and the head, or the head alone. Statistics of BatchNorm then stay as they are. `frozen` gains
    have none, either, and what has no gradient is in no optimizer.
    """
    if config.frozen == "layerscale":
        for module in gains(model).values():
            module.gamma.requires_grad = False
    if config.trainable == "all":
        return model
    from timm.layers import freeze_batch_norm_2d

    head, part = _of_head(model), TRAINED.get(config.trainable, "")
    for name, weight in model.named_parameters():
        is_part = bool(part) and (part in name or name.endswith(POSITIONS))
        weight.requires_grad = name in head or is_part
    frozen: nn.Module = freeze_batch_norm_2d(model)
    return frozen
