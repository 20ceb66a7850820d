"""Tries the parts that a user brings before any training."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan import parts
from vitscale.plan.config import TrainConfig
from vitscale.train.checkpoint import rng_state, same_rng, set_rng_state
from vitscale.train.device import seed_everything
from vitscale.train.draws import seed_layers
from vitscale.train.model import build_model
from vitscale.train.optim import build_optimizer, match_formats
from vitscale.train.parts import (
    check_bounds,
    check_logits,
    check_own,
    own_augment,
    own_loss,
    own_metrics,
    reason_of,
)
from vitscale.train.step import autocast

BATCH, STEPS = 4, 3


def check_parts(config: TrainConfig) -> None:
    """Raises ValueError for a part of a config that cannot be imported or made, or that gives a
    batch of another shape than it must; and for an optimizer that timm does not have. A model is
    built where its cost is counted.
    """
    given = parts.parts_of(config)
    check_own(config)
    build_optimizer(nn.Linear(2, 2), config)
    logits, labels = torch.randn(BATCH, config.num_classes), torch.zeros(BATCH, dtype=torch.int64)
    try:
        if "loss" in given:
            own_loss(config)(logits, _as_mixed(labels, config))
        if "metrics" in given:
            values = own_metrics(config)(logits, labels)
            for metric in parts.metrics_of(config.metrics):
                check_bounds(metric, values[metric.name].double().mean().item(), config)
        if "augment" in given:
            shape = (BATCH, config.channels, config.resolution, config.resolution)
            _check_augment(config, torch.rand(shape))
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"a part must work, but got ({', '.join(given.values())}): {reason_of(error)}"
        ) from error


def _check_augment(config: TrainConfig, images: Tensor) -> None:
    """Raises ValueError for an augmentation whose result depends on what it has seen before."""
    first, again = (own_augment(config, images.clone(), [0]) for _ in range(2))
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise ValueError(
            "an augmentation must depend on its images and its generator alone, but got "
            f"({config.augment}: two results for the same)"
        )


def try_out(config: TrainConfig) -> bool:
    """Takes three steps with the parts of a config on a small random batch, once in one piece and
    once from a saved state after two.

    Returns whether a part draws random numbers for the images that it gets, so that these must be
    whole batches. Raises ValueError, naming the part at fault, if one fails or does not resume by
    the bit.
    """
    given = parts.parts_of(config)
    own, draws = [field for field in parts.TRAINED if field in given], "augment" in given
    # with fewer parts first: the one that comes in is at fault
    for number, field in enumerate(own):
        among = set(own[: number + 1])
        try:
            (whole, draws_too), (resumed, _) = (
                _run(config, among, again) for again in (False, True)
            )
            draws |= draws_too
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"a part must train, but got ({field}={given[field]}): {reason_of(error)}"
            ) from error
        # NaN continues as NaN: a training that diverges is a result
        if not all(
            torch.equal(whole[name].nan_to_num(), resumed[name].nan_to_num()) for name in whole
        ):
            raise ValueError(
                "a part must continue from a saved state by the bit, all of which is in its "
                f"state_dict, but got ({field}={given[field]}: other weights after {STEPS} steps)"
            )
    return draws


def _run(config: TrainConfig, among: set[str], is_resumed: bool) -> tuple[dict[str, Tensor], bool]:
    """The weights after STEPS steps, with only some parts of the config, the others replaced; and
    whether the model draws from a global generator of torch, NumPy or Python.
    """
    cpu, shape = torch.device("cpu"), (config.channels, config.resolution, config.resolution)

    def begun(seed: int) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
        seed_everything(seed)
        model = build_model(config)
        draws = seed_layers(model, config.seed)
        if "optimizer" in among:
            return model, draws, build_optimizer(model, config)
        return model, draws, torch.optim.SGD(model.parameters(), lr=1e-3)

    model, draws, optimizer = begun(0)
    before = rng_state(cpu)
    samples = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        if is_resumed and step == STEPS - 1:
            file = io.BytesIO()
            state = model.state_dict(), optimizer.state_dict(), rng_state(cpu)
            torch.save(state, file)
            model, draws, optimizer = begun(1)
            file.seek(0)
            weights, of_optimizer, rng = torch.load(file, weights_only=True)
            model.load_state_dict(weights)
            optimizer.load_state_dict(of_optimizer)
            match_formats(optimizer)
            set_rng_state(rng)
        images = torch.randn(BATCH, *shape, generator=samples)
        labels = torch.randint(config.num_classes, (BATCH,), generator=samples)
        optimizer.zero_grad()
        draws.at(step, torch.arange(BATCH))
        with autocast(config, cpu):
            logits = model(images)
            check_logits(logits, config, BATCH)
            loss = F.cross_entropy(logits, labels)
            if "loss" in among:
                loss = own_loss(config)(logits, _as_mixed(labels, config)).mean()
        if step == 0:
            is_drawn = not same_rng(before, rng_state(cpu))
        loss.backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, is_drawn


def _as_mixed(labels: Tensor, config: TrainConfig) -> Tensor:
    """Targets as the config's trainings have them."""
    if not (config.mixup_alpha or config.cutmix_alpha):
        return labels
    return F.one_hot(labels, config.num_classes).float()
