"""Datasets as tensors, and batches as a function of (seed, step) alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitscale.plan.config import TrainConfig
from vitscale.plan.data import refuse_unreadable
from vitscale.train.augment import augment, mix, normalize

ORDER, AUGMENT, MIX = range(3)  # independent random streams of one seed


@dataclass(frozen=True)
class Split:
    """Images (N, channels, H, W) in [0, 1] and labels (N,)."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


def load(config: TrainConfig, split: str, root: Path | None = None) -> Split:
    """A split of the config's dataset: "train", "minival", "val" or "test".

    Raises ValueError for a dataset that cannot be read, or whose images are not of the config's resolution.
    """
    refuse_unreadable(config.dataset, str(root or ""))
    loaded = _digits()[split]
    side = loaded.images.shape[-1]
    if side != config.resolution:
        raise ValueError(f"resolution == {side} must hold for digits, but got (resolution={config.resolution})")
    return loaded


@functools.cache
def _digits() -> dict[str, Split]:
    """scikit-learn's digits, 8x8 grey: 997 train, 200 minival, 400 val, 200 test; stratified by class, seed 0.

    The source says nothing of the writers, so images of one hand may lie on both sides of a split.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    rest, parts = np.arange(len(labels)), {}
    for name, size in (("test", 200), ("val", 400), ("minival", 200)):
        rest, parts[name] = train_test_split(rest, test_size=size, stratify=labels[rest], random_state=0)
    parts["train"] = rest
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    classes = torch.tensor(labels, dtype=torch.int64)
    return {name: Split(pixels[np.sort(part)], classes[np.sort(part)]) for name, part in parts.items()}


def statistics(split: Split) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (channels, 1, 1) each."""
    flat = split.images.transpose(0, 1).flatten(1)
    return flat.mean(1)[:, None, None], flat.std(1)[:, None, None]


class Batches(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Item `step` is the training batch of optimizer step `step`: images (B, C, R, R), targets (B,) or (B, classes).

    A batch depends on (seed, step) only, so neither the number of loader workers nor an interruption changes it.
    """

    def __init__(self, train: Split, config: TrainConfig) -> None:
        self.train, self.config = train, config
        self.mean, self.std = statistics(train)
        self.epoch, self.order = -1, np.empty(0, np.int64)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        indices = torch.from_numpy(self.indices(step)).to(self.train.labels.device)
        images, targets = self.train.images[indices], self.train.labels[indices]
        images = augment(images, self.config, generator(self.config.seed, AUGMENT, step))
        images = normalize(images, self.mean, self.std)
        return mix(images, targets, self.config, generator(self.config.seed, MIX, step))

    def indices(self, step: int) -> np.ndarray:
        """Which training images step `step` sees, (B,): every epoch is a permutation of its own."""
        epoch, position = divmod(step, self.config.steps_per_epoch)
        if epoch != self.epoch:
            order = generator(self.config.seed, ORDER, epoch).permutation(len(self.train.labels))
            self.epoch, self.order = epoch, order
        return self.order[position * self.config.batch_size :][: self.config.batch_size]

    def iterate(self, first_step: int, num_workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches from a step to the end of the training, made by worker processes if there are any."""
        steps = range(first_step, self.config.num_steps)
        own = torch.Generator()  # else a loader draws from the global one each time that it starts
        return iter(
            torch.utils.data.DataLoader(self, batch_size=None, sampler=steps, num_workers=num_workers, generator=own)
        )


def generator(seed: int, stream: int, counter: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments."""
    return np.random.default_rng([seed, stream, counter])
