"""The processes that train one trial together, and how they split a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.plan.parts import is_part
from vitscale.train.batchnorm import ESTIMATED

ASK_EVERY_S = 0.5  # Ray Train ends a team about two seconds after it has lost a worker


@dataclass(frozen=True)
class Team:
    """The rank of this process among those that train a trial.

    All processes must call the same methods in the same order.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> Team:
        """The team of torch.distributed's default process group; a team of one without a group."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, values: list[float], device: torch.device) -> list[float]:
        """The largest of each value over all processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def share(self, value: Any) -> Any:
        """Broadcasts the value of the process of rank 0."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces each gradient by its sum over all processes.

        All travel as one block, after the backward pass: the order in which three or more processes
        add then depends on nothing else, and the pass may be a CUDA graph.
        """
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        block = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(block)
        parts = block.split([gradient.numel() for gradient in gradients])
        summed = [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)]
        torch._foreach_copy_(gradients, summed)


class Parting:
    """Lets the processes of a team leave at the same step when any of them has to.

    Called by all of them, once before the first step and after each one. A team asks around about
    every ASK_EVERY_S, since each time waits for its devices, and after at most twice as many steps
    as before, since the next steps may be slower; `now`, as before an evaluation's batches, which
    may take far longer than steps, at this call. A process alone asks at each call.
    """

    def __init__(self, is_leaving: Callable[[], bool], team: Team, device: torch.device) -> None:
        self.is_leaving, self.team, self.device = is_leaving, team, device
        self.steps, self.ask_after = 0, 1  # since the team was asked last
        self.asked_s = time.monotonic()

    def __call__(self, now: bool = False) -> bool:
        if self.team.size == 1:
            return self.is_leaving()
        if now:
            (told,) = self.team.largest([float(self.is_leaving())], self.device)
            self.steps, self.asked_s = 0, time.monotonic()
            return told > 0
        self.steps += 1
        if self.steps < self.ask_after:
            return False
        step_s = (time.monotonic() - self.asked_s) / self.steps
        told, step_s = self.team.largest([float(self.is_leaving()), step_s], self.device)
        most = min(2 * self.ask_after, int(ASK_EVERY_S / max(step_s, 1e-6)))
        self.steps, self.ask_after, self.asked_s = 0, max(1, most), time.monotonic()
        return told > 0


def cut(batch_size: int, num_parts: int) -> list[np.ndarray]:
    """Splits positions 0 .. batch_size - 1 into parts, each sorted and closed under mirroring.

    The mirror of i is batch_size - 1 - i. Mixup and CutMix mix a sample with its mirror, so no part
    needs a sample of another. The parts have equal sizes if 2 * num_parts divides batch_size;
    otherwise sizes differ by up to 3.
    """
    lower = np.array_split(np.arange(batch_size // 2), num_parts)
    middle = [np.empty(0, np.int64)] * (num_parts - 1) + [
        np.arange(batch_size // 2, (batch_size + 1) // 2)
    ]
    return [
        np.concatenate([a, m, batch_size - 1 - a[::-1]]) for a, m in zip(lower, middle, strict=True)
    ]


def num_parts(config: TrainConfig, micro_batch: int, team: Team, has_batchnorm: bool) -> int:
    """The number of parts into which a batch is split, a multiple of the team's size.

    Raises ValueError if that would change the results of a BatchNorm model, or if a part would be
    empty.
    """
    batch_size, norm_batch = config.batch_size, config.norm_batch
    if is_part(config.augment) and (team.size > 1 or micro_batch):
        raise ValueError(  # it draws for the images that it gets, and not for each image alone
            "an augmentation that is a part must get whole batches, but got (augment="
            f"{config.augment!r}, workers={team.size}, micro_batch={micro_batch})"
        )
    if has_batchnorm and norm_batch and team.size > 1 and not config.precise_bn:
        raise ValueError(  # each worker would keep its own running statistics
            "precise_bn > 0 must hold for a BatchNorm model with norm_batch on several workers, "
            f"but got (precise_bn=0, norm_batch={norm_batch}, workers={team.size})"
        )
    if has_batchnorm and norm_batch:
        parts = batch_size // norm_batch
        if parts % team.size or (micro_batch and micro_batch < norm_batch):
            raise ValueError(
                "norm_batch <= micro_batch and batch_size / norm_batch a multiple of the workers "
                f"must hold with BatchNorm, but got (norm_batch={norm_batch}, "
                f"micro_batch={micro_batch}, batch_size={batch_size}, workers={team.size})"
            )
        return parts
    worker_batch = -(-batch_size // team.size)
    parts_each = -(-worker_batch // micro_batch) if micro_batch else 1
    if has_batchnorm and parts_each > 1:
        raise ValueError(
            f"micro_batch >= {worker_batch} must hold with BatchNorm, or norm_batch > 0 be the "
            "number of images to normalize over, but got "
            f"(micro_batch={micro_batch}, norm_batch=0, "
            f"batch_size={batch_size}, workers={team.size})"
        )
    if parts_each * team.size > max(1, batch_size // 2):
        raise ValueError(
            f"a part of a batch must hold two images, but got (batch_size={batch_size}, "
            f"micro_batch={micro_batch}, workers={team.size})"
        )
    return parts_each * team.size


def synchronize_batchnorm(model: nn.Module) -> nn.Module:
    """Lets BatchNorm normalize over the images of all processes.

    On a GPU this is torch's SyncBatchNorm, which does not support CPUs.
    """
    from timm.layers import BatchNormAct2d, convert_sync_batchnorm

    if next(model.parameters()).is_cuda:
        return convert_sync_batchnorm(model)

    class SyncedAct(BatchNormAct2d):
        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.drop(_synced_norm(self, x)))

    for module in model.modules():
        if type(module) is BatchNormAct2d:
            module.__class__ = SyncedAct
        elif type(module) is nn.BatchNorm2d:
            module.__class__ = Synced
    return model


class Synced(nn.BatchNorm2d):
    """BatchNorm2d that uses the statistics of all processes' images in training."""

    def forward(self, x: Tensor) -> Tensor:
        return _synced_norm(self, x)


def _synced_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """BatchNorm over all processes, with torch's unbiased running variance.

    Ioffe and Szegedy 2015. A layer whose statistics are being reestimated
    (vitscale.train.batchnorm) sees the same images in every process, so it uses its own.
    """
    from torch.distributed.nn.functional import all_reduce

    if not layer.training or getattr(layer, ESTIMATED, False):
        return nn.BatchNorm2d.forward(layer, x)
    wide = x.double()
    count = torch.full_like(wide[0, :, 0, 0], x.numel() / x.shape[1])
    sums = all_reduce(torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3)), count]))
    num = sums[2]
    mean, var = sums[0] / num, sums[1] / num - (sums[0] / num).square()
    with torch.no_grad():
        assert layer.running_mean is not None and layer.running_var is not None
        assert layer.num_batches_tracked is not None
        layer.num_batches_tracked += 1
        assert layer.momentum is not None
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), layer.momentum)
        layer.running_var.lerp_((var * num / (num - 1)).to(layer.running_var.dtype), layer.momentum)
    scale = layer.weight * (var + layer.eps).rsqrt()
    shift = layer.bias - mean * scale
    return (wide * scale[:, None, None] + shift[:, None, None]).to(x.dtype)
