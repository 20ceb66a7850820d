"""TrainConfig -> optimizer."""

from __future__ import annotations

import torch
from torch import nn

from vitscale.plan.config import TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (decoupled weight decay) or SGD (weight decay as L2 in the gradient), with fused kernels.

    Norm gains and all biases are never decayed (Xiao et al. 2021, section 5: decaying them costs small models many
    points); class token and position embedding are, or not, by `decay_tokens`.
    """
    from timm.optim import param_groups_weight_decay

    tokens = () if config.decay_tokens or config.model != "vit" else ("cls_token", "pos_embed")
    groups = param_groups_weight_decay(model, config.wd, no_weight_decay_list=tokens)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=True)
