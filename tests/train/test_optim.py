"""Optimizers, schedule, averages, losses and BatchNorm
statistics against closed forms and second implementations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.averaging import decay_of, initial_share
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import choices
from vitscale.train.batchnorm import has_batchnorm, reestimate
from vitscale.train.ema import Ema
from vitscale.train.loss import smooth, training_loss
from vitscale.train.optim import build_optimizer
from vitscale.train.schedule import lr_at

torch.set_num_threads(1)

# --- optimizers -----------------------------------------------------------------------------------

Step = Callable[[np.ndarray, list[np.ndarray], list[float], float], np.ndarray]
# none is the default; the epsilon is large enough to be seen
BETA1, BETA2, EPSILON, MOMENTUM = 0.8, 0.95, 1e-3, 0.7


def adam_update(grads: list[np.ndarray], t: int) -> np.ndarray:
    """Kingma and Ba 2015, algorithm 1, at step t, with the
    moments written out as sums over all gradients so far.
    """
    m = sum((1 - BETA1) * BETA1 ** (t - i) * grads[i - 1] for i in range(1, t + 1))
    v = sum((1 - BETA2) * BETA2 ** (t - i) * grads[i - 1] ** 2 for i in range(1, t + 1))
    return (m / (1 - BETA1**t)) / (np.sqrt(v / (1 - BETA2**t)) + EPSILON)


def adamw(w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    """Loshchilov and Hutter 2019, algorithm 2: the decay is
    apart from the gradient, and scaled by the rate.
    """
    for t, lr in enumerate(lrs, start=1):
        w = w - lr * wd * w - lr * adam_update(grads, t)
    return w


def adam(w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    """L2: the decay is part of the gradient, and so of both moments."""
    seen: list[np.ndarray] = []
    for t, lr in enumerate(lrs, start=1):
        seen.append(grads[t - 1] + wd * w)
        w = w - lr * adam_update(seen, t)
    return w


def sgd(
    w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float, nesterov: bool = False
) -> np.ndarray:
    """Sutskever et al. 2013 with the rate outside the momentum; L2 in the gradient."""
    velocity = np.zeros_like(w)
    for g, lr in zip(grads, lrs, strict=True):
        g = g + wd * w
        velocity = MOMENTUM * velocity + g
        w = w - lr * (g + MOMENTUM * velocity if nesterov else velocity)
    return w


def nesterov(w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    return sgd(w, grads, lrs, wd, nesterov=True)


def lamb(w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    """You et al. 2020, algorithm 2, phi the identity; a
    tensor without decay takes the step of Adam.
    """
    for t, lr in enumerate(lrs, start=1):
        update = adam_update(grads, t) + wd * w
        trust = np.linalg.norm(w) / np.linalg.norm(update) if wd and np.linalg.norm(w) else 1.0
        w = w - lr * trust * update
    return w


def lion(w: np.ndarray, grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    """Chen et al. 2023, algorithm 2, with the average written out over the earlier gradients."""
    for t, lr in enumerate(lrs, start=1):
        m = sum((1 - BETA2) * BETA2 ** (t - 1 - i) * grads[i - 1] for i in range(1, t))
        w = w - lr * (np.sign(BETA1 * m + (1 - BETA1) * grads[t - 1]) + wd * w)
    return w


def small_vit(**fields: Any) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        embed_dim=8,
        depth=1,
        num_heads=2,
        num_classes=10,
        init_values=0.1,
        **fields,
    )


def decayed_by_hand(model: nn.Module, tokens: bool) -> set[str]:
    """Names of the weights of convolutions and linear layers,
    and of class token and positions if asked.
    """
    names = {
        f"{prefix}.weight"
        for prefix, layer in model.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.Linear))
    }
    return names | ({"cls_token", "pos_embed"} if tokens else set())


@pytest.mark.parametrize(
    ("fields", "reference"),
    [
        ({"optimizer": "adamw"}, adamw),
        ({"optimizer": "adam"}, adam),
        ({"optimizer": "lamb"}, lamb),
        ({"optimizer": "lion"}, lion),
        ({"optimizer": "sgd"}, sgd),
        ({"optimizer": "sgd", "nesterov": True}, nesterov),
    ],
    ids=["adamw", "adam", "lamb", "lion", "sgd", "nesterov"],
)
def test_steps_are_those_of_numpy(fields: dict[str, Any], reference: Step) -> None:
    """Both groups, with gradients whose norm is far beyond 1: no optimizer clips."""
    config = TrainConfig(
        **fields, wd=0.3, beta1=BETA1, beta2=BETA2, epsilon=EPSILON, momentum=MOMENTUM
    )
    torch.manual_seed(0)
    model = small_vit().double()
    optimizer = build_optimizer(model, config)
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    lrs = [0.02, 0.05, 0.1, 0.03, 0.01]
    grads = [{name: 3 * torch.randn_like(p) for name, p in model.named_parameters()} for _ in lrs]
    for lr, grad in zip(lrs, grads, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, p in model.named_parameters():
            p.grad = grad[name].clone()
        optimizer.step()
    decayed = decayed_by_hand(model, tokens=True)
    assert 0 < len(decayed) < len(before)
    for name, p in model.named_parameters():
        wd = 0.3 if name in decayed else 0.0
        expected = reference(before[name], [grad[name].numpy() for grad in grads], lrs, wd)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("optimizer", choices(TrainConfig)["optimizer"])
@pytest.mark.parametrize("decay_tokens", [True, False])
def test_norms_biases_and_layerscale_are_never_decayed(optimizer: str, decay_tokens: bool) -> None:
    config = TrainConfig(
        optimizer=optimizer, wd=0.3, decay_tokens=decay_tokens, lr=0.1, lr_batch=32, batch_size=64
    )
    model = small_vit()
    groups = build_optimizer(model, config).param_groups
    wd_of = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    wds = {name: wd_of[id(p)] for name, p in model.named_parameters()}
    assert {name for name, wd in wds.items() if wd == 0.3} == decayed_by_hand(model, decay_tokens)
    assert wds["blocks.0.ls1.gamma"] == wds["blocks.0.norm1.weight"] == wds["head.bias"] == 0.0
    assert {group["lr"] for group in groups} == {0.2}


@pytest.mark.parametrize("decay_tokens", [True, False])
def test_gains_and_biases_decay_if_asked_and_layerscale_does_not(decay_tokens: bool) -> None:
    """Norm gains and biases by the type of their layer; a step of SGD shrinks a gain."""
    config = TrainConfig(decay_gains=True, decay_tokens=decay_tokens, wd=0.3, optimizer="sgd")
    model = small_vit()
    optimizer = build_optimizer(model, config)
    groups = optimizer.param_groups
    wd_of = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    decayed = {name for name, p in model.named_parameters() if wd_of[id(p)] == 0.3}
    added = {
        f"{prefix}.{name}"
        for prefix, layer in model.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.Linear, nn.LayerNorm))
        for name, p in layer.named_parameters()
        if name == "bias" or isinstance(layer, nn.LayerNorm)
    }
    assert decayed == decayed_by_hand(model, decay_tokens) | added
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    gain, scale = (model.get_parameter(name) for name in ("norm.weight", "blocks.0.ls1.gamma"))
    assert gain.tolist() == pytest.approx([1 - config.lr * 0.3] * 8)
    assert scale.tolist() == pytest.approx([0.1] * 8)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "vit_small_patch16_18x2_224"])
def test_models_of_timm_decay_alike(name: str) -> None:
    block = {"depth": 1} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=3, **block)
    for tokens in (True, False):
        config = TrainConfig(model=f"timm:{name}", wd=0.3, decay_tokens=tokens)
        groups = build_optimizer(model, config).param_groups
        decayed = {id(p) for group in groups for p in group["params"] if group["weight_decay"]}
        names = {name for name, p in model.named_parameters() if id(p) in decayed}
        assert names == decayed_by_hand(model, tokens and bool(block))


@pytest.mark.parametrize("optimizer", choices(TrainConfig)["optimizer"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_makes_the_weight_so(optimizer: str, bad: float) -> None:
    """Divergence is seen in the loss and the weights, so no optimizer may hide it there."""
    model = nn.Linear(3, 2)
    optim = build_optimizer(model, TrainConfig(optimizer=optimizer))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert model.weight.grad is not None
    model.weight.grad[0, 1] = bad
    optim.step()
    assert not model.weight[0, 1].isfinite() and model.bias.isfinite().all()


def test_positions_without_a_gradient_are_in_no_group() -> None:
    model = small_vit()
    model.pos_embed.requires_grad_(False)
    groups = build_optimizer(model, TrainConfig()).param_groups
    held = {id(p) for group in groups for p in group["params"]}
    assert held == {id(p) for name, p in model.named_parameters() if name != "pos_embed"}


# --- schedule -------------------------------------------------------------------------------------

# 997 // 99 = 10 steps per epoch, 6 epochs: 60 steps, of which 20 warm up and 40 decay.
PLAN: dict[str, Any] = {"batch_size": 99, "epochs": 6, "warmup_epochs": 2.0, "lr": 0.3}


def schedule(config: TrainConfig) -> list[float]:
    return [lr_at(step, config) for step in range(config.num_steps)]


@pytest.mark.parametrize(
    # of the peak, after 1, 10 and 20 steps, at the start, half and last step of the decay
    ("fields", "shares"),
    [
        ({}, (0.05, 0.5, 1.0, 1.0, 0.5, 0.5 * (1 + math.cos(math.pi * 39 / 40)))),
        (
            {"warmup_start": 0.1},
            (0.145, 0.55, 1.0, 1.0, 0.5, 0.5 * (1 + math.cos(math.pi * 39 / 40))),
        ),
        (
            {"decay_floor": 0.2},
            (0.05, 0.5, 1.0, 1.0, 0.6, 0.2 + 0.4 * (1 + math.cos(math.pi * 39 / 40))),
        ),
        ({"decay": "linear"}, (0.05, 0.5, 1.0, 1.0, 0.5, 1 / 40)),
        ({"decay": "linear", "decay_floor": 0.2}, (0.05, 0.5, 1.0, 1.0, 0.6, 0.22)),
        ({"decay": "constant"}, (0.05, 0.5, 1.0, 1.0, 1.0, 1.0)),
        # 24 of 60 steps cool down: the first at the peak, the fifth a sixth of the way, the last 23
        # of 24 steps
        ({"decay": "cooldown", "cooldown_share": 0.4}, (0.05, 0.5, 1.0, 1.0, 5 / 6, 1 / 24)),
        (
            {"decay": "cooldown", "cooldown_share": 0.4, "decay_floor": 0.2},
            (0.05, 0.5, 1.0, 1.0, 0.2 + 0.8 * 5 / 6, 0.2 + 0.8 / 24),
        ),
        (
            {"decay": "cooldown", "cooldown_share": 0.4, "cooldown_shape": "1-sqrt"},
            (0.05, 0.5, 1.0, 1.0, 1 - math.sqrt(1 / 6), 1 - math.sqrt(23 / 24)),
        ),
    ],
)
@pytest.mark.parametrize(
    "warmup", [{}, {"warmup_epochs": 0.0, "warmup_steps": 20}], ids=["epochs", "steps"]
)
def test_schedule_at_chosen_steps(
    fields: dict[str, Any], shares: tuple[float, ...], warmup: dict[str, Any]
) -> None:
    config = TrainConfig(**{**PLAN, **fields, **warmup})
    assert [lr_at(step, config) for step in (0, 9, 19, 20, 40, 59)] == pytest.approx(
        [0.3 * share for share in shares]
    )


def test_a_cooldown_over_all_steps_is_the_linear_decay() -> None:
    config = TrainConfig(**{**PLAN, "warmup_epochs": 0.0}, decay="cooldown", cooldown_share=1.0)
    line = config.replace(decay="linear", cooldown_share=0.2)
    assert schedule(config) == pytest.approx(schedule(line))


@pytest.mark.parametrize("share", [0.001, 0.1, 1 / 3])
def test_lengths_share_their_schedule_until_the_shortest_cools_down(share: float) -> None:
    """At least one step cools down, and it is the last one that is at the peak."""
    short = TrainConfig(**PLAN, decay="cooldown", cooldown_share=share)
    long = short.replace(epochs=24)
    lrs, start = schedule(short), short.cooldown_start
    assert lrs[: start + 1] == schedule(long)[: start + 1] and set(lrs[20 : start + 1]) == {0.3}
    assert all(after < before for before, after in zip(lrs[start:], lrs[start + 1 :], strict=False))


def test_default_schedule_keeps_its_bits() -> None:
    """Trials that exist were trained with these expressions."""
    config = TrainConfig(**PLAN)
    old = [
        config.lr * (s + 1) / 20
        if s < 20
        else config.lr * 0.5 * (1 + math.cos(math.pi * ((s - 20) / 40)))
        for s in range(60)
    ]
    assert schedule(config) == old


def test_peak_follows_the_batch() -> None:
    half = TrainConfig(**PLAN, lr_batch=198)
    assert schedule(half) == pytest.approx([lr / 2 for lr in schedule(TrainConfig(**PLAN))])


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_decays_are_those_of_torch(floor: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    config = TrainConfig(**{**PLAN, "warmup_epochs": 0.0}, decay_floor=floor)
    for decay, reference in [
        ("cosine", torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60, eta_min=0.3 * floor)),
        ("linear", torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, max(floor, 1e-12), 60)),
    ]:
        torch_lrs = [0.3] * 60
        optimizer.param_groups[0]["lr"] = 0.3
        for step in range(1, 60):
            optimizer.step()
            reference.step()
            torch_lrs[step] = reference.get_last_lr()[0]
        assert schedule(config.replace(decay=decay)) == pytest.approx(torch_lrs, rel=1e-6, abs=1e-9)


def test_whole_schedule_is_that_of_timm() -> None:
    """timm starts the warm-up a step earlier, at its start itself."""
    from timm.scheduler import CosineLRScheduler

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    config = TrainConfig(**PLAN, warmup_start=0.1, decay_floor=0.01)
    reference = CosineLRScheduler(
        optimizer, t_initial=40, lr_min=0.003, warmup_t=20, warmup_lr_init=0.03, warmup_prefix=True
    )
    expected = [reference._get_lr(step + 1 if step < 20 else step)[0] for step in range(60)]
    assert schedule(config) == pytest.approx(expected)


# --- averages -------------------------------------------------------------------------------------


def walk(model: nn.Module, ema: Ema, num_steps: int, start: int = 0) -> list[dict[str, Tensor]]:
    """States of the model before and after each of some steps in
    random directions; the average sees every step.
    """
    history = [{k: v.clone() for k, v in model.state_dict().items()}]
    for step in range(start, start + num_steps):
        model(torch.randn(6, 3))  # moves the running statistics
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        ema.update(model, step)
        history.append({k: v.clone() for k, v in model.state_dict().items()})
    return history


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def closed_form(taken: list[Tensor], decay: float) -> Tensor:
    """decay^n x_0 + (1 - decay) sum_k decay^(n-k) x_k."""
    n = len(taken) - 1
    terms = [(1 - decay) * decay ** (n - k) * taken[k].double() for k in range(1, n + 1)]
    return decay**n * taken[0].double() + sum(terms)


@pytest.mark.parametrize("every", [1, 3])
def test_average_is_the_closed_form_with_the_statistics_of_batchnorm(every: int) -> None:
    model = normed()
    ema = Ema(model, TrainConfig(ema_decay=0.8, ema_every=every))
    # the initial weights, then those after 1, 2, ... or 3, 6, 9 steps
    taken = walk(model, ema, 10)[::every]
    for name, value in ema.module.state_dict().items():
        states = [state[name] for state in taken]
        expected = closed_form(states, 0.8) if value.is_floating_point() else states[-1].double()
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_default_average_keeps_its_bits() -> None:
    """As timm's, at every step from the initial weights."""
    from timm.utils import ModelEmaV3

    model = normed()
    ema, reference = Ema(model, TrainConfig(ema_decay=0.98)), ModelEmaV3(model, decay=0.98)
    for step in range(5):
        walk(model, ema, 1, step)
        reference.update(model)
    for name, value in reference.module.state_dict().items():
        assert torch.equal(ema.module.state_dict()[name], value)


def test_average_is_a_copy_until_the_warmup_ends() -> None:
    """997 // 99 = 10 steps per epoch: 20 warm up; copies
    after 8 and 16 steps, then averages from 24 on.
    """
    model = normed()
    config = TrainConfig(
        batch_size=99,
        epochs=6,
        warmup_epochs=2.0,
        ema_decay=0.8,
        ema_every=8,
        ema_after_warmup=True,
    )
    ema = Ema(model, config)
    history = walk(model, ema, 7)
    assert torch.equal(ema.module[0].weight, history[0]["0.weight"])
    history += walk(model, ema, 12, 7)[1:]
    for name, value in ema.module.state_dict().items():
        assert torch.equal(value, history[16][name])
    history += walk(model, ema, 21, 19)[1:]
    expected = closed_form([history[step]["0.weight"] for step in (16, 24, 32, 40)], 0.8)
    torch.testing.assert_close(ema.module[0].weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_alpha_is_the_rule_of_pycls() -> None:
    """At batch 2048 and an update each 32 steps, a = 0.65536 /
    epochs: 0.0131072 at 50 epochs, 0.0016384 at 400.
    """
    fields: dict[str, Any] = {
        "dataset": "imagenet",
        "num_classes": 1000,
        "channels": 3,
        "batch_size": 2048,
        "ema_alpha": 1e-5,
        "ema_every": 32,
    }
    decays = [decay_of(TrainConfig(**fields, epochs=epochs)) for epochs in (50, 400)]
    assert decays == pytest.approx([1 - 0.0131072, 1 - 0.0016384])
    assert decay_of(TrainConfig(ema_alpha=1e9)) == 0.0
    assert decay_of(TrainConfig(ema_decay=0.97)) == 0.97
    # a window of the same share of the training, whatever its length: 32 steps / a of 625 steps per
    # epoch
    windows = [
        32 / (1 - decay) / (625 * epochs) for decay, epochs in zip(decays, (50, 400), strict=True)
    ]
    assert windows == pytest.approx([0.078125] * 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"ema_decay": 0.98},
        {"ema_decay": 0.9, "ema_every": 8},
        {"ema_alpha": 1e-4, "ema_every": 4},
        {"ema_decay": 0.98, "ema_after_warmup": True},
        {"ema_decay": 0.9, "ema_every": 7, "ema_after_warmup": True},
        {"ema_decay": 0.9, "ema_every": 50, "ema_after_warmup": True},
        {},
    ],
)
def test_how_much_of_the_start_is_left_in_the_average(fields: dict[str, Any]) -> None:
    """Weights that are 1 until the average last began, and 0 after
    it, leave in it what `initial_share` foretells.
    """
    config = TrainConfig(epochs=3, warmup_epochs=1.0, **fields)  # 45 steps, of which 15 are warm-up
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    ema = Ema(model, config)
    first = (
        config.num_warmup_steps
        if config.ema_after_warmup and config.ema_every <= config.num_warmup_steps
        else 0
    )
    for step in range(config.num_steps):
        with torch.no_grad():
            model.weight.fill_(1.0 if step < first else 0.0)
        ema.update(model, step)
    left = float(ema.module.weight.detach()) if ema.on else 0.0
    assert left == pytest.approx(initial_share(config), rel=1e-5, abs=1e-12)
    assert (left > 0) == ema.on


def test_average_of_alpha_one_is_the_model_itself() -> None:
    model = normed()
    ema = Ema(model, TrainConfig(ema_alpha=1e9))
    walk(model, ema, 2)
    assert ema.on and all(
        torch.equal(ema.module.state_dict()[k], v) for k, v in model.state_dict().items()
    )


def test_average_goes_on_from_its_state() -> None:
    """Cut at step 22 of 40, between two updates."""
    config = TrainConfig(
        batch_size=99,
        epochs=6,
        warmup_epochs=2.0,
        ema_alpha=1e-4,
        ema_every=3,
        ema_after_warmup=True,
    )
    model = normed()
    whole = Ema(model, config)
    walk(model, whole, 22)
    resumed = Ema(normed(), config)
    resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
    for step in range(22, 40):
        walk(model, whole, 1, step)
        resumed.update(model, step)
    assert all(
        torch.equal(resumed.state_dict()[name], value) for name, value in whole.state_dict().items()
    )
    assert not torch.equal(whole.module[0].weight, model[0].weight)


def test_without_a_decay_there_is_no_average() -> None:
    ema = Ema(normed(), TrainConfig())
    ema.update(normed(), 0)
    ema.load_state_dict({})
    assert not ema.on and ema.state_dict() == {}


# --- loss -----------------------------------------------------------------------------------------

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -2.0]])
LABELS = torch.tensor([0, 2])
MIXED = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.35, 0.6]])


def ce_by_hand(targets: np.ndarray) -> float:
    z = LOGITS.double().numpy()
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    return float(-(targets * log_p).sum(1).mean())


def bce_by_hand(targets: np.ndarray) -> float:
    p = 1 / (1 + np.exp(-LOGITS.double().numpy()))
    return float(-(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean())


@pytest.mark.parametrize(("loss", "by_hand"), [("ce", ce_by_hand), ("bce", bce_by_hand)])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_is_the_closed_form(
    loss: str, by_hand: Callable[[np.ndarray], float], smoothing: float
) -> None:
    """Smoothing of 0.3 over three classes: 0.8 and 0.1. Probabilities are taken as they are."""
    config = TrainConfig(loss=loss, label_smoothing=smoothing)
    on, off = (0.8, 0.1) if smoothing else (1.0, 0.0)
    smoothed = np.array([[on, off, off], [off, off, on]])
    assert training_loss(LOGITS, LABELS, config, 2).item() == pytest.approx(
        by_hand(smoothed), rel=1e-6
    )
    mixed = MIXED.double().numpy()
    assert training_loss(LOGITS, MIXED, config, 2).item() == pytest.approx(by_hand(mixed), rel=1e-6)


def test_bce_of_present_classes_forgets_the_shares_of_a_mixed_image() -> None:
    """1 for both classes of a mixed image, whatever its share; class indices are what they were."""
    config = TrainConfig(loss="bce", mixup_alpha=0.2, bce_targets="present")
    logits = torch.randn(4, 10, dtype=torch.float64)
    shares, there = torch.zeros(4, 10, dtype=torch.float64), np.zeros((4, 10))
    for row, (a, b) in enumerate([(0, 1), (2, 2), (9, 3), (5, 7)]):
        shares[row, a] += 0.3
        shares[row, b] += 0.7
        there[row, [a, b]] = 1
    p = 1 / (1 + np.exp(-logits.numpy()))
    expected = -(there * np.log(p) + (1 - there) * np.log(1 - p)).mean()
    assert training_loss(logits, shares, config, 4).item() == pytest.approx(expected)
    labels, soft = torch.arange(4), config.replace(bce_targets="soft")
    assert torch.equal(
        training_loss(logits.float(), labels, config, 4),
        training_loss(logits.float(), labels, soft, 4),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bce_is_that_of_timm(smoothing: float) -> None:
    from timm.loss import BinaryCrossEntropy

    logits, labels, mixed = torch.randn(8, 10), torch.randint(10, (8,)), torch.rand(8, 10)
    config, reference = (
        TrainConfig(loss="bce", label_smoothing=smoothing),
        BinaryCrossEntropy(smoothing),
    )
    for targets in (labels, mixed):
        assert torch.equal(training_loss(logits, targets, config, 8), reference(logits, targets))


def test_smoothing_is_that_of_timm() -> None:
    """As its mixup does, with nothing mixed."""
    from timm.data.mixup import mixup_target

    labels = torch.randint(10, (8,))
    torch.testing.assert_close(
        smooth(labels, 10, 0.1), mixup_target(labels, 10, lam=1.0, smoothing=0.1)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ce_of_a_whole_batch_keeps_its_bits(smoothing: float) -> None:
    config = TrainConfig(label_smoothing=smoothing)
    logits, labels, mixed = (
        torch.randn(37, 10),
        torch.randint(10, (37,)),
        torch.rand(37, 10).softmax(1),
    )
    assert torch.equal(
        training_loss(logits, labels, config, 37),
        F.cross_entropy(logits, labels, label_smoothing=smoothing),
    )
    assert torch.equal(training_loss(logits, mixed, config, 37), F.cross_entropy(logits, mixed))


@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize("soft", [False, True])
def test_losses_of_parts_add_up_with_their_gradients(loss: str, soft: bool) -> None:
    config = TrainConfig(loss=loss, label_smoothing=0.1)
    logits = torch.randn(12, 10, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(12, 10).softmax(1).double() if soft else torch.randint(10, (12,))
    whole = training_loss(logits, targets, config, 12)
    (gradient,) = torch.autograd.grad(whole, logits)
    parts = [
        training_loss(logits[i:j], targets[i:j], config, 12) for i, j in ((0, 5), (5, 6), (6, 12))
    ]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logits)[0], gradient)


def test_bce_under_autocast_is_in_full_precision() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for loss in ("ce", "bce"):
            for targets in (LABELS, MIXED):
                assert (
                    training_loss(LOGITS.bfloat16(), targets, TrainConfig(loss=loss), 2).dtype
                    == torch.float32
                )


# --- statistics of BatchNorm ----------------------------------------------------------------------


def statistics(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and unbiased variance of each channel of (B, C, H, W)."""
    values = images.double().numpy().transpose(1, 0, 2, 3).reshape(images.shape[1], -1)
    return values.mean(1), values.var(1, ddof=1)


def test_batches_weigh_by_their_images() -> None:
    """The mean over batches of 6, 6 and 2 images is that of all 14; one of 1 image is left out."""
    layer = nn.BatchNorm2d(3)
    images = torch.randn(14, 3, 4, 4) * 2 + 1
    parts = [images[:6], images[6:12] + 1, images[12:] - 3]
    reestimate(nn.Sequential(layer), [*parts, torch.full((1, 3, 4, 4), 100.0)])
    assert layer.running_mean is not None and layer.running_var is not None
    torch.testing.assert_close(layer.running_mean, torch.cat(parts).mean((0, 2, 3)))
    variances = torch.stack([part.var((0, 2, 3)) for part in parts])
    weights = torch.tensor([6.0, 6.0, 2.0]) / 14
    torch.testing.assert_close(layer.running_var, (weights[:, None] * variances).sum(0))


@pytest.mark.parametrize("num_batches", [1, 4])
def test_statistics_are_averages_over_batches(num_batches: int) -> None:
    """Of means, and of unbiased variances; batches of
    distinct means show that their spread is left out.
    """
    norm = nn.BatchNorm2d(3, momentum=0.3)
    with torch.no_grad():
        norm.weight.uniform_()
    norm(torch.randn(8, 3, 4, 4) + 7)
    batches = [torch.randn(5, 3, 4, 4) * (i + 1) + i for i in range(num_batches)]
    reestimate(norm, iter(batches))
    means, variances = zip(*(statistics(batch) for batch in batches), strict=True)
    np.testing.assert_allclose(norm.running_mean, np.mean(means, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.running_var, np.mean(variances, axis=0), rtol=1e-5)
    assert norm.momentum == 0.3 and norm.training


def test_only_batchnorm_trains_meanwhile() -> None:
    """The second layer sees what the first one normalises with
    the batch; dropout is off, and draws nothing.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    model[1].eval()
    weights = [p.clone() for p in model.parameters()]
    batch, rng = torch.randn(6, 3, 4, 4), torch.get_rng_state()
    reestimate(model, [batch])
    with torch.no_grad():
        hidden = model[2](
            F.batch_norm(batch, None, None, model[0].weight, model[0].bias, training=True)
        )
    np.testing.assert_allclose(model[3].running_mean, statistics(hidden)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model[3].running_var, statistics(hidden)[1], rtol=1e-4)
    assert [module.training for module in model] == [True, False, True, True] and model.training
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(
        torch.equal(p, w) and p.grad is None
        for p, w in zip(model.parameters(), weights, strict=True)
    )


def test_layers_that_join_norm_and_activation_count() -> None:
    model, batch = timm.create_model("regnety_002", num_classes=3), torch.randn(4, 3, 32, 32)
    reestimate(model, [batch])
    with torch.no_grad():
        mean, variance = statistics(model.stem.conv(batch))
    np.testing.assert_allclose(model.stem.bn.running_mean, mean, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(model.stem.bn.running_var, variance, rtol=1e-3)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert (
        has_batchnorm(model)
        and len(norms) > 10
        and all(norm.num_batches_tracked == 1 for norm in norms)
    )


def test_the_average_is_reestimated_and_keeps_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    ema, batch = Ema(model, TrainConfig(ema_decay=0.9)), torch.randn(4, 3, 8, 8)
    reestimate(ema.module, [batch])
    with torch.no_grad():
        mean, _ = statistics(ema.module[0](batch))
    np.testing.assert_allclose(ema.module[1].running_mean, mean, rtol=1e-4, atol=1e-6)
    assert {module.training for module in ema.module.modules()} == {False}
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def test_a_model_without_batchnorm_is_left_alone() -> None:
    model = small_vit()
    assert not has_batchnorm(model)

    def never() -> Any:
        yield pytest.fail("a batch was read")

    reestimate(model, never())
    assert not has_batchnorm(nn.BatchNorm2d(3, track_running_stats=False)) and has_batchnorm(
        nn.SyncBatchNorm(3)
    )


def test_no_batch_is_refused() -> None:
    norm = nn.BatchNorm2d(3)
    with pytest.raises(ValueError, match=r"num_images >= 1 must hold, but got \(num_images=0\)"):
        reestimate(norm, [])
    assert norm.momentum == 0.1
