"""Randomness of layers as a function of (seed, step, layer, sample): no generator, and the same on every device.

So dropout and drop path do not depend on how a batch is cut, over how many workers it is spread, or what else has
drawn random numbers. Words are int32 tensors, whose products wrap around, on a CPU as on a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

GOLDEN = 0x9E3779B9  # 2**32 / the golden ratio, odd: takes 0, which `mix` keeps, to somewhere else


def key_of(*numbers: int) -> int:
    """A key, as a signed 32-bit number, of any non-negative numbers below 2**64, in their order."""
    key = GOLDEN
    for number in numbers:
        for word in (number & 0xFFFFFFFF, number >> 32):
            key = key ^ word
            key = (key ^ key >> 16) * 0x7FEB352D & 0xFFFFFFFF
            key = (key ^ key >> 15) * 0x846CA68B & 0xFFFFFFFF
            key = ((key ^ key >> 16) + GOLDEN) & 0xFFFFFFFF
    return key - (key >> 31 << 32)


def mix(words: Tensor) -> Tensor:
    """A bijection of 32-bit words (int32) in which each bit in flips each bit out half of the time.

    The function lowbias32 of Wellons 2018, "Prospecting for Hash Functions".
    """
    words = (words ^ (words >> 16 & 0xFFFF)) * 0x7FEB352D
    words = (words ^ (words >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return words ^ (words >> 16 & 0xFFFF)


def uniform(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1), float32, (B, *shape), that depend on the key, a sample's position (B,) and the element."""
    return _uniform(_rows(key, positions), math.prod(shape)).view(len(positions), *shape)


def normal(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32, (B, *shape), of the same arguments (Box and Muller 1958)."""
    u, v = uniform(key, positions, (2, *shape)).unbind(1)
    return (-2 * (1 - u).log()).sqrt() * (2 * math.pi * v).cos()


def _rows(key: int, positions: Tensor) -> Tensor:
    """A word for each sample (B,)."""
    return mix(mix(positions.int()) ^ key)


def _uniform(rows: Tensor, num: int) -> Tensor:
    """(B, num). Elements are mixed before they meet the sample, so that no two samples share a stretch of numbers."""
    elements = mix(torch.arange(num, dtype=torch.int32, device=rows.device))
    return (mix(rows[:, None] ^ elements) >> 8 & 0xFFFFFF).float() * 2.0**-24


class Draws:
    """What the seeded layers of a model share: which samples, at which step, the next forward pass sees."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rows: Tensor | None = None

    def at(self, step: int, positions: Tensor) -> None:
        """Sets the step and the positions (B,), integers, of the samples in the batch of all parts and workers."""
        rows = _rows(key_of(self.seed, step), positions)
        if self.rows is not None and self.rows.shape == rows.shape and self.rows.device == rows.device:
            self.rows.copy_(rows)  # a compiled model need not look again
        else:
            self.rows = rows


class Seeded(nn.Module):
    """Zeroes a share `rate` of elements in training, and scales the others up; `Draws` decide which."""

    def __init__(self, rate: float, draws: Draws, layer: int, scale: bool = True) -> None:
        super().__init__()
        self.rate, self.draws, self.layer, self.scale = rate, draws, layer, scale

    def numbers(self, x: Tensor) -> Tensor:
        """Uniform numbers in the shape of x (B, ...), or a multiple of B where a layer has cut images in windows."""
        return _uniform(self._own_rows(), x.numel() // len(self._own_rows())).view(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = (self.numbers(x) >= self.rate).to(x.dtype)
        return x * (mask.div_(1 - self.rate) if self.scale else mask)

    def _own_rows(self) -> Tensor:
        assert self.draws.rows is not None, "Draws.at must come before a forward pass in training"
        return mix(self.draws.rows ^ key_of(self.layer))

    def extra_repr(self) -> str:
        return f"rate={self.rate}, layer={self.layer}"


class SeededDropout(Seeded):
    """nn.Dropout, seeded."""


class SeededDropPath(Seeded):
    """timm's DropPath, seeded: a sample's branch as a whole."""

    def numbers(self, x: Tensor) -> Tensor:
        """Uniform numbers (B, 1, ...), one for each sample of x (B, ...)."""
        rows = self._own_rows()
        assert len(rows) == len(x), f"as many positions as samples must be set, but got {len(rows)} for {len(x)}"
        return _uniform(rows, 1).view(-1, *[1] * (x.ndim - 1))


def seed_layers(model: nn.Module, seed: int) -> Draws:
    """Replaces each active dropout and drop path of a model by a seeded one, and returns what tells them where it is.

    Layers are told apart by their order among such layers of the model. Call `draws.at(step, positions)` before each
    forward pass in training. Raises ValueError for other layers that draw random numbers.
    """
    draws = Draws(seed)
    known: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if layer not in known and (made := _seeded(layer, draws, 1 + len(known))) is not None:
                known[layer] = made
            if layer in known:
                setattr(parent, name, known[layer])
    return draws


def _seeded(layer: nn.Module, draws: Draws, number: int) -> nn.Module | None:
    """The seeded twin of a layer; None if the layer draws nothing."""
    from timm.layers import DropPath, PatchDropout

    if isinstance(layer, Seeded):
        return type(layer)(layer.rate, draws, number, layer.scale)
    if isinstance(layer, DropPath):
        return SeededDropPath(layer.drop_prob, draws, number, layer.scale_by_keep) if layer.drop_prob else None
    if type(layer) is nn.Dropout:
        return SeededDropout(layer.p, draws, number) if layer.p else None
    if (isinstance(layer, _DropoutNd) and layer.p) or isinstance(layer, (PatchDropout, nn.RReLU)):
        raise ValueError(f"layers that draw must be Dropout or DropPath, but got (layer={layer})")
    return None
