"""Randomness of layers as a function of (seed, step, layer, sample), the same on every device.

Dropout and drop path therefore do not depend on how a batch is split, on the number of workers, or
on other consumers of random numbers. No generator is involved: numbers are hashes. Words are int32
tensors, whose products wrap around on a CPU as on a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

GOLDEN = 0x9E3779B9  # 2**32 / golden ratio, odd: maps 0, a fixed point of the hash, elsewhere


def key_of(*numbers: int) -> int:
    """A key, as a signed 32-bit integer, of an ordered list of integers in [0, 2**64)."""
    key = GOLDEN
    for number in numbers:
        for word in (number & 0xFFFFFFFF, number >> 32):
            key = key ^ word
            key = (key ^ key >> 16) * 0x7FEB352D & 0xFFFFFFFF
            key = (key ^ key >> 15) * 0x846CA68B & 0xFFFFFFFF
            key = ((key ^ key >> 16) + GOLDEN) & 0xFFFFFFFF
    return key - (key >> 31 << 32)


def mix(words: Tensor) -> Tensor:
    """A bijection of 32-bit words in which each input bit flips each output bit half of the time.

    Words are int32. The function lowbias32 of Wellons 2018, "Prospecting for Hash Functions".
    """
    words = (words ^ (words >> 16 & 0xFFFF)) * 0x7FEB352D
    words = (words ^ (words >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return words ^ (words >> 16 & 0xFFFF)


def uniform(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1), float32 (B, *shape), from a key and sample positions (B,)."""
    return _uniform(_rows(key, positions), math.prod(shape)).view(len(positions), *shape)


def normal(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32 (B, *shape), from a key and sample positions (B,).

    By the method of Box and Muller 1958.
    """
    u, v = uniform(key, positions, (2, *shape)).unbind(1)
    return (-2 * (1 - u).log()).sqrt() * (2 * math.pi * v).cos()


def _rows(key: int, positions: Tensor) -> Tensor:
    """One word per sample (B,)."""
    return mix(mix(positions.int()) ^ key)


def _uniform(rows: Tensor, num: int) -> Tensor:
    """Uniform numbers (B, num) from one word per sample.

    Element indices are hashed before they are combined with the sample, so that no two samples
    share a run of numbers.
    """
    elements = mix(torch.arange(num, dtype=torch.int32, device=rows.device))
    return _unit(mix(rows[:, None] ^ elements))


def _unit(words: Tensor) -> Tensor:
    """The upper 24 bits of each word, as float32 in [0, 1)."""
    return (words >> 8 & 0xFFFFFF).float() * 2.0**-24


class Draws:
    """State shared by the seeded layers of a model: samples and step of the next forward pass.

    The words of layers that draw per element, and the masks of those that draw per sample, are
    computed on the CPU for all layers at once and sent in one copy: one kernel per layer and
    operation would take a GPU's host longer.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device
        # (number, rate, whether to scale) of each layer
        self.layers: list[tuple[int, float, bool]] = []
        self.constants: tuple[Tensor, Tensor, Tensor] | None = None
        # the three tensors below, for each number of samples: parts of a batch differ in size
        self.by_size: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.sent: Tensor | None = None  # (L, B) int32: words of layers, or the bits of masks
        self.masks: Tensor | None = None  # (L, B) float32, same memory
        self.masks_bf16: Tensor | None = None

    def add(self, layer: Seeded) -> None:
        """Registers the next layer."""
        layer.place = len(self.layers)
        self.layers.append((layer.layer, layer.rate if layer.once else -1.0, layer.scale))

    def at(self, step: int, positions: Tensor) -> None:
        """Sets the step and the positions (B,) of the samples within the batch of all workers.

        Positions are integers on the CPU.
        """
        if not self.layers:
            return
        drawn = self._drawn(_rows(key_of(self.seed, step), positions))
        size = len(positions)
        if size not in self.by_size:
            sent = torch.empty(drawn.shape, dtype=torch.int32, device=self.device)
            masks_bf16 = torch.empty(drawn.shape, dtype=torch.bfloat16, device=self.device)
            self.by_size[size] = sent, sent.view(torch.float32), masks_bf16
        self.sent, self.masks, self.masks_bf16 = self.by_size[size]
        on_gpu = self.device.type == "cuda"
        # in place: compiled models and CUDA graphs keep references to these tensors
        self.sent.copy_(drawn.pin_memory() if on_gpu else drawn, non_blocking=on_gpu)
        self.masks_bf16.copy_(self.masks)

    def _drawn(self, rows: Tensor) -> Tensor:
        """One word per layer and sample, (L, B) int32.

        For a layer that draws per sample, the bits of its float32 mask.
        """
        self.constants = self.constants or self._constants()
        keys, rates, gains = self.constants
        words = mix(rows ^ keys)
        masks = (_unit(mix(words)) >= rates) * gains
        return torch.where(rates >= 0, masks.view(torch.int32), words)

    def _constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key, rate and scale of each layer, (L, 1) each.

        The rate is negative for a layer that draws per element.
        """
        numbers, rates, scaled = zip(*self.layers, strict=True)
        keys = torch.tensor([key_of(number) for number in numbers], dtype=torch.int32)
        gains = 1 / torch.tensor(
            [1 - rate if scale else 1.0 for rate, scale in zip(rates, scaled, strict=True)]
        )
        return keys[:, None], torch.tensor(rates)[:, None], gains[:, None]


class Seeded(nn.Module):
    """Zeroes elements with probability `rate` in training, and scales the others up.

    `Draws` decide which elements.
    """

    once = False  # whether it draws one number per sample
    place: int  # index among the layers of the draws

    def __init__(self, rate: float, draws: Draws, layer: int, scale: bool = True) -> None:
        super().__init__()
        self.rate, self.draws, self.layer, self.scale = rate, draws, layer, scale
        draws.add(self)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask(x) if self.training else x

    def mask(self, x: Tensor) -> Tensor:
        """The factor for x (B, ...).

        The first dimension of x may be a multiple of B, if the model has cut images into windows.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"rate={self.rate}, layer={self.layer}"


class SeededDropout(Seeded):
    """nn.Dropout with seeded masks."""

    def mask(self, x: Tensor) -> Tensor:
        assert self.draws.sent is not None, UNSET
        rows = self.draws.sent[self.place]
        mask = (_uniform(rows, x.numel() // len(rows)).view(x.shape) >= self.rate).to(x.dtype)
        return mask.div_(1 - self.rate) if self.scale else mask


class SeededDropPath(Seeded):
    """timm's DropPath with seeded masks: zeroes the whole branch of a sample."""

    once = True

    def mask(self, x: Tensor) -> Tensor:
        """The factor (B, 1, ...) for x (B, ...)."""
        assert self.draws.masks is not None and self.draws.masks_bf16 is not None, UNSET
        masks = self.draws.masks_bf16 if x.dtype == torch.bfloat16 else self.draws.masks
        mask = masks[self.place].to(x.dtype)
        assert len(mask) == len(x), (
            f"as many positions as samples must be set, but got {len(mask)} for {len(x)}"
        )
        return mask.view(-1, *[1] * (x.ndim - 1))


UNSET = "Draws.at must come before a forward pass in training"


def seed_layers(model: nn.Module, seed: int) -> Draws:
    """Replaces each active dropout and drop path of a model by a seeded one; returns their Draws.

    Layers are numbered in the order of the model, which must be on its device already. Call
    `draws.at(step, positions)` before each forward pass in training, and not again before the
    corresponding backward pass. Raises ValueError for other layers that draw random numbers.
    """
    draws = Draws(seed, next((p.device for p in model.parameters()), torch.device("cpu")))
    seeded: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if layer not in seeded and (twin := _seeded(layer, draws, 1 + len(seeded))) is not None:
                seeded[layer] = twin
            if layer in seeded:
                setattr(parent, name, seeded[layer])
    return draws


def _seeded(layer: nn.Module, draws: Draws, number: int) -> nn.Module | None:
    """The seeded counterpart of a layer; None if the layer draws no random numbers."""
    from timm.layers import DropPath, PatchDropout

    if isinstance(layer, Seeded):
        return type(layer)(layer.rate, draws, number, layer.scale)
    if isinstance(layer, DropPath):
        return (
            SeededDropPath(layer.drop_prob, draws, number, layer.scale_by_keep)
            if layer.drop_prob
            else None
        )
    if type(layer) is nn.Dropout:
        return SeededDropout(layer.p, draws, number) if layer.p else None
    if (isinstance(layer, _DropoutNd) and layer.p) or isinstance(layer, (PatchDropout, nn.RReLU)):
        raise ValueError(f"layers that draw must be Dropout or DropPath, but got (layer={layer})")
    return None
