"""Batches as a function of (seed, step) alone, however they are cut and whoever makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitscale.catalog.datasets import DATASETS, dataset_facts
from vitscale.plan.config import TrainConfig
from vitscale.train.augment import (
    check_sizes,
    crop_boxes,
    crop_encoded,
    crop_for_eval,
    mix,
    normalize,
    plan_augment,
    plan_crop,
    plan_erase,
)
from vitscale.train.parallel import Team, cut
from vitscale.train.parcel import Parcel, put
from vitscale.train.sources import Images, Shards, load_split

ORDER, AUGMENT, MIX, CROP, ERASE = range(5)  # independent random streams of one seed
EVAL_BATCH = 512
# of the memory of a GPU that datasets may take, where a trial may have a part of it only
RESIDENT_SHARE = 0.5


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Training batches, in parts: images (b, C, R, R) and targets (b,) or (b, classes) of each part
    of each step.

    A sample depends on (seed, step, position in the batch) only, so that neither the number of
    loader workers, nor an interruption, nor how the batch is cut changes it. The parts are those
    that this process trains on; by default all of the batch in one.
    """

    def __init__(
        self,
        train: Images,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        parts: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.train, self.config, self.device = train, config, torch.device(device)
        self.parts = parts if parts is not None else cut(config.batch_size, 1)
        self.mean, self.std = (t.to(self.device) for t in normalization(config))
        self.epoch, self.order = -1, np.empty(0, np.int64)

    def __getstate__(self) -> dict[str, object]:
        """What loader workers need: nothing on a GPU, where each would start CUDA."""
        return {name: value for name, value in vars(self).items() if name not in ("mean", "std")}

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        """Images as read, uint8 (b, C, S, S), and labels (b,), of
        item = step * parts + part; cropped on a CPU.
        """
        step, part = divmod(item, len(self.parts))
        indices = torch.from_numpy(self.indices(step)[self.parts[part]])
        labels = self.train.labels[indices]
        if not self.crops_in_batch:
            images = [self.train[i] for i in indices.tolist()]
            sizes = np.array([image.shape[1:] for image in images])
            boxes = crop_boxes(
                sizes, self.config, self.parts[part], generator(self.config.seed, CROP, step)
            )
            cropped = [
                crop_encoded(image, box, self.config)
                for image, box in zip(images, boxes, strict=True)
            ]
            return torch.stack(cropped), labels
        assert self.train.pixels is not None
        return gather(self.train.pixels, indices), labels

    @property
    def crops_in_batch(self) -> bool:
        """Whether images are cropped all at once on the device; on a CPU, one by one is 20 times as
        fast.

        The boxes are the same, and so are the pixels up to rounding.
        """
        return self.train.pixels is not None and (
            self.config.crop == "pad" or is_resident(self.train)
        )

    def indices(self, step: int) -> np.ndarray:
        """Which training images step `step` sees, (B,): every epoch is a permutation of its own.

        With repeated augmentation, each image is drawn `repeats` times in a row, mostly in one
        batch, and an epoch, which counts samples drawn, takes the first images of its permutation
        only (Hoffer et al. 2020).
        """
        epoch, position = divmod(step, self.config.steps_per_epoch)
        if epoch != self.epoch:
            order = generator(self.config.seed, ORDER, epoch).permutation(len(self.train.labels))
            self.epoch, self.order = epoch, order
        drawn = np.arange(
            position * self.config.batch_size, (position + 1) * self.config.batch_size
        )
        return self.order[drawn // self.config.repeats]

    def finish(
        self, item: int, images: Tensor, labels: Tensor, mixed: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Crops, augments, normalises and mixes what
        __getitem__ read, on the device: images and targets.
        """
        step, part = divmod(item, len(self.parts))
        config, positions = self.config, self.parts[part]
        parcel, rng, size = (
            Parcel(),
            generator(config.seed, AUGMENT, step),
            tuple(images.shape[-2:]),
        )
        crop = None
        if self.crops_in_batch:
            boxes = rng if config.crop == "pad" else generator(config.seed, CROP, step)
            crop, size = plan_crop(parcel, size, config, positions, boxes), (config.resolution,) * 2
        change = plan_augment(parcel, size, config, positions, rng)
        cover = plan_erase(parcel, size, config, positions, generator(config.seed, ERASE, step))
        sent_labels = parcel.add(labels.numpy())
        parcel.send(self.device)
        labels = sent_labels()
        images = images.to(self.device, non_blocking=True).float().div_(self.train.white)
        images = change(images if crop is None else crop(images))
        images = cover(normalize(images, self.mean, self.std))
        if not mixed:
            return images, labels
        return mix(images, labels, config, positions, generator(config.seed, MIX, step))

    def iterate(self, first_step: int, num_workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts from a step to the end of the training, read
        by worker processes if there are any.
        """
        items = range(first_step * len(self.parts), self.config.num_steps * len(self.parts))
        for item, images, labels in self._read(items, num_workers):
            yield self.finish(item, images, labels)

    def unmixed(self, num_images: int, num_workers: int = 0) -> Iterator[Tensor]:
        """The first `num_images` training images that the
        training sees, augmented but not mixed, by parts.
        """
        num_steps = min(self.config.num_steps, -(-num_images // self.config.batch_size))
        for item, raw, labels in self._read(range(num_steps * len(self.parts)), num_workers):
            if num_images <= 0:
                return
            images, _ = self.finish(item, raw, labels, mixed=False)
            yield images[:num_images]
            num_images -= len(images)

    def _read(self, items: range, num_workers: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for item, (images, labels) in zip(
            items, _loader(self, items, num_workers, self.device, self.train), strict=True
        ):
            yield item, images, labels


class HeldOut(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """An evaluation set in batches of the trainer's
    preprocessing; each process of a team has its share.
    """

    def __init__(
        self, images: Images, config: TrainConfig, device: torch.device, team: Team, most: int
    ) -> None:
        self.images, self.config, self.device = images, config, torch.device(device)
        self.mean, self.std = (t.to(device) for t in normalization(config))
        labelled = (
            (images.labels >= 0 if images.allowed is None else images.allowed.any(1))
            .nonzero()[:, 0]
            .cpu()
        )
        self.num = len(labelled)  # ReaL leaves some images without a label
        mine = labelled[team.rank :: team.size]
        self.batches = mine.split(most) if len(mine) else ()

    def __getstate__(self) -> dict[str, object]:
        """As of Batches."""
        return {name: value for name, value in vars(self).items() if name not in ("mean", "std")}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor, Tensor]:
        indices = self.batches[item]
        if self.images.pixels is not None:
            raw = gather(self.images.pixels, indices)
        else:
            assert self.images.decode is not None
            raw = torch.stack(
                [crop_for_eval(self.images.decode(i), self.config) for i in indices.tolist()]
            )
        return raw, self.images.labels[indices], indices

    def iterate(self, num_workers: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Images (b, C, R, R), labels (b,), and for ReaL the accepted classes (b, classes)."""
        for raw, labels, indices in _loader(
            self, range(len(self)), num_workers, self.device, self.images
        ):
            images = raw.to(self.device, non_blocking=True).float().div_(self.images.white)
            if self.images.pixels is not None:
                images = crop_for_eval(images, self.config)
            allowed = (
                None
                if self.images.allowed is None
                else self.images.allowed[indices].to(self.device)
            )
            yield (
                normalize(images, self.mean, self.std),
                labels.to(self.device, non_blocking=True),
                allowed,
            )


def gather(pixels: Tensor | Shards, indices: Tensor) -> Tensor:
    """Images by index, on the device where they lie, or from files that the system maps."""
    return pixels[put(indices.numpy(), pixels.device) if isinstance(pixels, Tensor) else indices]


def normalization(config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (C, 1, 1) each: of the dataset if known, else
    ImageNet's.

    A grey image takes the means of ImageNet's three channels.
    """
    facts = dataset_facts(config.dataset) or DATASETS["imagenet"]
    mean, std = torch.tensor(facts.mean), torch.tensor(facts.std)
    if len(mean) != config.channels:
        mean, std = mean.mean().repeat(config.channels), std.mean().repeat(config.channels)
    return mean[:, None, None], std[:, None, None]


def resident(images: Images, device: torch.device) -> Images:
    """The same images, on the GPU if all that lies there takes no
    more than RESIDENT_SHARE of the process' memory.
    """
    if device.type != "cuda" or images.pixels is None:
        return images
    allowed = torch.cuda.mem_get_info(device)[1] * torch.cuda.get_per_process_memory_fraction(
        device
    )
    if images.pixels.shape.numel() + torch.cuda.memory_allocated(device) > RESIDENT_SHARE * allowed:
        return images
    pixels = torch.empty(images.pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 4096):  # never all of it in the memory of the host
        pixels[start : start + 4096] = images.pixels[start : start + 4096].to(device)
    return replace(images, pixels=pixels)


def fingerprint(images: Images) -> str:
    """Tells datasets of one name apart: a digest of all labels and of some images."""
    digest = hashlib.sha256(images.labels.cpu().numpy().tobytes())
    for index in range(0, len(images), max(1, len(images) // 8)):
        digest.update(images[index].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def examine(configs: Sequence[TrainConfig], root: Path) -> str:
    """The fingerprint of the training images of configs that read the same ones; decodes no more
    than it needs.

    Raises ValueError, without training, for what a training would raise for: as load_split does for
    each split that a config reads, and for images of sizes that its crop cannot take.
    """
    images = load_split(configs[0], "train", root)
    for config in {(c.crop, c.resolution): c for c in configs}.values():
        _check_crop(images, config)
    for config in {c.evals: c for c in configs}.values():
        for name in config.evals:
            load_split(config, name, root)
    return fingerprint(images)


def _check_crop(images: Images, config: TrainConfig) -> None:
    """Raises ValueError, as the first batch would, for a crop
    that cannot make these images `resolution` pixels.
    """
    if images.pixels is None:
        crop_boxes(np.array([images[0].shape[1:]]), config, np.arange(1), np.random.default_rng(0))
    elif config.crop == "pad":
        height, width = images.pixels.shape[-2:]
        check_sizes(height, width, config)


def is_resident(images: Images) -> bool:
    """Whether the images lie on a GPU."""
    return isinstance(images.pixels, Tensor) and images.pixels.is_cuda


def generator(seed: int, stream: int, counter: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments."""
    return np.random.default_rng([seed, stream, counter])


def _loader(
    dataset: Dataset, items: range, num_workers: int, device: torch.device, images: Images
) -> Iterable[Any]:
    """One batch per item, made by worker processes if there are
    any, in memory that a GPU copies from by itself.
    """
    if num_workers == 0 or is_resident(images):  # of which nothing is left to read
        return map(dataset.__getitem__, items)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=items,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        # else a loader draws from the global one each time that it starts
        generator=torch.Generator(),
    )
