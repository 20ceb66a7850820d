"""TrainConfig -> optimizer."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Any

import torch
from torch import nn

from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.laws import WITH_FALLBACK
from vitscale.plan.parts import is_part


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of a config at the peak learning rate; none clips gradients itself.

    That is AdamW, Adam, SGD, LAMB or Lion, one of timm's, or a part. The training step clips
    gradients for all optimizers alike. Weight decay: AdamW (Loshchilov and Hutter 2019) and Lion
    (Chen et al. 2023, algorithm 2) subtract it from the weights, times the learning rate; Adam and
    SGD add it to the gradient (L2); LAMB (You et al. 2020, algorithm 2) adds it to Adam's update,
    before the trust ratio.
    """
    groups = decay_groups(model, config)
    adaptive: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.epsilon}
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, lr=config.peak_lr, **adaptive, fused=True)
        case "adam":
            return torch.optim.Adam(groups, lr=config.peak_lr, **adaptive, fused=True)
        case "lamb":
            return _lamb(groups, config, adaptive)
        case "lion":
            optimizer = _lion(groups, config)
        case "sgd":
            return torch.optim.SGD(
                groups,
                lr=config.peak_lr,
                momentum=config.momentum,
                nesterov=config.nesterov,
                fused=True,
            )
        case name if is_part(name):
            from vitscale.train.parts import build_own_optimizer

            optimizer = build_own_optimizer(groups, config)
        case name:
            optimizer = _of_timm(groups, config, name.removeprefix("timm:"))
    optimizer.register_step_post_hook(_spoil_weights)
    return optimizer


# Of timm's optimizers, those that cannot be a trial's: they do not resume by the bit (kron), ask
# for second derivatives (adahessian), or need a GPU or a package that timm does not install. A test
# tries all others: they resume by the bit, see non-finite gradients, and do not clip.
REFUSED = re.compile("kron.*|adahessian|bnb.*|fused.*")


def _of_timm(groups: list[dict[str, Any]], config: TrainConfig, name: str) -> torch.optim.Optimizer:
    """An optimizer of timm by its name in timm's factory, with timm's defaults but for the fields.

    Those are `beta1`, `beta2` and `epsilon` where they are not at their default, and `momentum`:
    timm's defaults differ between optimizers. Raises ValueError for a name that timm does not have,
    and for one of REFUSED.
    """
    import timm.optim

    names = [str(o) for o in timm.optim.list_optimizers() if not REFUSED.fullmatch(str(o))]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        raise ValueError(
            "timm:NAME must name an optimizer of timm that resumes by the bit and needs no GPU, "
            f"but got (optimizer={config.optimizer!r})"
            + (f"; close are {', '.join(close)}" if close else "")
        )
    optimizer = timm.optim.get_optimizer_class(name, bind_defaults=False)
    accepted = inspect.signature(optimizer).parameters
    given: dict[str, Any] = {}
    if (config.beta1, config.beta2) != (DEFAULTS["beta1"], DEFAULTS["beta2"]):
        given["betas"] = (config.beta1, config.beta2)
    if config.epsilon != DEFAULTS["epsilon"]:
        given["eps"] = config.epsilon
    if config.fallback_lr:
        given["fallback_lr_scale"] = config.fallback_lr / config.lr
    if absent := [argument for argument in given if argument not in accepted]:
        raise ValueError(
            f"beta1, beta2 and epsilon must be at their defaults for an optimizer without them, "
            f"but got (optimizer={config.optimizer!r}: no {absent[0]})"
        )
    # timm's LAMB and its kin would clip gradients alone among all
    given |= {argument: None for argument in ("max_grad_norm",) if argument in accepted}
    return timm.optim.create_optimizer_v2(
        groups, opt=name, lr=config.peak_lr, momentum=config.momentum, **given
    )


def match_formats(optimizer: torch.optim.Optimizer) -> None:
    """Gives loaded moments the memory formats of their parameters, which fused optimizers demand.

    They differ if the checkpoint was written on another kind of device. Values stay as they are.
    """
    for parameter, state in optimizer.state.items():
        if not isinstance(state, dict):  # of the optimizer itself, under a name
            continue
        for name, value in state.items():
            moment = torch.is_tensor(value) and value.shape == parameter.shape
            if moment and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter).copy_(value)


def decay_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay.

    Biases and norm gains are decayed if `decay_gains` (Xiao et al. 2021, section 5.4: that costs
    small models many points), and LayerScale gains never. Class token and position embeddings,
    identified by the names in timm models, are decayed if `decay_tokens`; Muon leaves them to its
    fallback, as it does all that has one dimension. Buffers without a gradient (sine-cosine
    positions) are in neither group.
    """
    from timm.optim import param_groups_weight_decay

    named: set[str] = set(getattr(model, "no_weight_decay", set)())
    if named and config.pos_embed == "relative":  # those of attention are in its blocks
        named |= {name for name, _ in model.named_parameters() if name.endswith(".pos_embed")}
    tokens = set() if config.decay_tokens else named
    kept: dict[str, Any] = {"fallback_list": named if config.optimizer in WITH_FALLBACK else ()}
    if not config.decay_gains:
        return param_groups_weight_decay(model, config.wd, no_weight_decay_list=tokens, **kept)
    # timm calls the gains of LayerScale gamma, gamma1, gamma_1, ...
    scales = {name for name, _ in model.named_parameters() if ".gamma" in f".{name}"}
    return param_groups_weight_decay(
        model,
        config.wd,
        weight_decay_exclude_1d=False,
        no_weight_decay_list=tokens | scales,
        **kept,
    )


def _lamb(
    groups: list[dict[str, Any]], config: TrainConfig, adaptive: dict[str, Any]
) -> torch.optim.Optimizer:
    """LAMB with bias correction.

    Tensors without weight decay take Adam's step, as in NVIDIA's kernel, which the ViT recipes use.
    """
    from timm.optim import Lamb

    return Lamb(
        groups,
        lr=config.peak_lr,
        **adaptive,
        bias_correction=True,
        grad_averaging=True,
        max_grad_norm=None,  # timm's default of 1 would clip LAMB alone
        trust_clip=False,
        always_adapt=False,
        decoupled_decay=False,
    )


def _lion(groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """Lion: every weight moves by the learning rate, whatever the size of its gradient.

    The step is the sign of beta1 times the average of gradients plus (1 - beta1) times the
    gradient; the average decays by beta2. The paper has 0.9 and 0.99, and the default beta2 is
    AdamW's 0.999, so a study of Lion sets it. Epsilon has no effect.
    """
    from timm.optim import Lion

    betas = (config.beta1, config.beta2)
    return Lion(groups, lr=config.peak_lr, betas=betas, caution=False)


@torch.no_grad()
def _spoil_weights(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Makes each weight NaN whose gradient is non-finite, and leaves the others as they are.

    Divergence is looked for in the loss and the weights. The sign of a NaN is 0 and that of an
    infinity 1 in torch, so Lion would train on with weights that it no longer updates. What one of
    timm, or a part, makes of such a gradient is unknown.
    """
    for group in optimizer.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        torch._foreach_add_(weights, [weight.grad for weight in weights], alpha=0.0)
