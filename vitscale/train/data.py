"""Batches as a function of (seed, step) only, however they are split and read."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitscale.catalog.datasets import DATASETS, dataset_facts
from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_readers
from vitscale.plan.parts import is_part
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
from vitscale.train.model import memory_format
from vitscale.train.packed_copy import PackedCopy, put
from vitscale.train.parallel import Team, cut
from vitscale.train.sources import Images, Shards, load_split

ORDER, AUGMENT, MIX, CROP, ERASE, OWN = range(6)  # independent random streams of one seed
EVAL_BATCH = 512
# fraction of this process' GPU memory that may be in use once a dataset is copied there
RESIDENT_SHARE = 0.5
T = TypeVar("T")
# sends a copy, and applies a function to images that reads its arrays
Transforms = Callable[[Callable[..., Tensor], tuple[Tensor, ...], PackedCopy], Tensor]


class Waits:
    """Time that a training waits for batches that are not read yet.

    On a CPU, the time in which it waited, or read the batch itself. On a GPU, the time in which the
    device had nothing to do: the host runs ahead of it, and may wait without any loss. Events on
    the device measure that without a wait of their own. Images that are on the GPU are not timed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.past_s = device, 0.0
        self.events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @property
    def total_s(self) -> float:
        """Seconds so far: on a GPU, of the batches which the device has begun."""
        while self.events and self.events[0][1].query():
            asked, arrived = self.events.popleft()
            self.past_s += 1e-3 * asked.elapsed_time(arrived)
        return self.past_s

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches."""
        iterator = iter(batches)
        while True:
            asked, asked_s = self._event(), time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            if asked is None:
                self.past_s += time.perf_counter() - asked_s
            elif (arrived := self._event()) is not None:
                self.events.append((asked, arrived))
                _ = self.total_s  # so that few events wait for their turn
            yield batch

    def _event(self) -> torch.cuda.Event | None:
        """An event behind all that the GPU was asked to do so far."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Training batches in parts: images (b, C, R, R) and targets (b,) or (b, classes) per part.

    A sample depends only on (seed, step, position within the batch): not on the number of loader
    workers, on interruptions, or on how the batch is split. `parts` are those on which this process
    trains; by default one part with the whole batch.
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
        self.captured: Transforms | None = None  # by a CUDA graph
        self.waits = Waits(self.device)

    def __getstate__(self) -> dict[str, object]:
        """The state that loader workers need.

        It has no tensors on a GPU, which would initialize CUDA in each worker.
        """
        without = ("mean", "std", "captured", "waits")
        return {name: value for name, value in vars(self).items() if name not in without}

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        """Images as read, uint8 (b, C, S, S), and labels (b,), of item = step * parts + part.

        Images that are not cropped on the device are cropped here, to (b, C, R, R). Of images on a
        GPU, only their indices (b,) are given.
        """
        step, part = divmod(item, len(self.parts))
        indices = torch.from_numpy(self.indices(step)[self.parts[part]])
        labels = self.train.labels[indices]
        if is_resident(self.train):
            return indices, labels
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
        """Whether images are cropped on the device, as a batch.

        On a CPU, cropping one by one is 20 times as fast. The boxes are the same, and so are the
        pixels up to rounding. For a GPU, readers only copy the images of a prepared set.
        """
        return self.train.pixels is not None and (
            self.config.crop == "pad" or self.device.type == "cuda"
        )

    def indices(self, step: int) -> np.ndarray:
        """Indices (B,) of the training images in step `step`; every epoch is another permutation.

        With repeated augmentation (Hoffer et al. 2020), each image is drawn `repeats` times in a
        row, mostly in the same batch. An epoch counts samples drawn, so it uses only the first
        images of its permutation.
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
        """Crops, augments, normalizes and mixes on the device what __getitem__ read.

        Returns images and targets.
        """
        step, part = divmod(item, len(self.parts))
        config, positions = self.config, self.parts[part]
        packed, rng = PackedCopy(self.device), generator(config.seed, AUGMENT, step)
        pixels = cast(Tensor, self.train.pixels) if is_resident(self.train) else None
        chosen = packed.add(images.numpy()) if pixels is not None else None
        size = tuple((images if pixels is None else pixels).shape[-2:])
        crop = None
        if self.crops_in_batch:
            boxes = rng if config.crop == "pad" else generator(config.seed, CROP, step)
            crop, size = plan_crop(packed, size, config, positions, boxes), (config.resolution,) * 2
        change = plan_augment(packed, size, config, positions, rng)
        # how many images are erased differs from batch to batch: not in a captured transform
        late, cover = packed if self.captured is None else PackedCopy(self.device), None
        if config.erasing_prob:  # a generator takes a percent of the step of a small model
            cover = plan_erase(late, size, config, positions, generator(config.seed, ERASE, step))
        sent_labels = packed.add(labels.numpy())

        def transform(*read: Tensor) -> Tensor:
            images = read[0] if pixels is None or chosen is None else pixels[chosen()]
            images = images.float().div_(self.train.white)
            images = change(images if crop is None else crop(images))
            if is_part(config.augment):
                from vitscale.train.parts import own_augment

                images = own_augment(config, images, [config.seed, OWN, step, int(positions[0])])
            return normalize(images, self.mean, self.std, memory_format(config, self.device))

        read = (images.to(self.device, non_blocking=True),) if pixels is None else ()
        if self.captured is None or is_part(config.augment):  # which draws from a generator
            packed.send()
            images = transform(*read)
        else:
            images = self.captured(transform, read, packed)
        if cover is not None:
            if late is not packed:
                late.send()
            images = cover(images)
        labels = sent_labels()
        if not mixed or not (config.mixup_alpha or config.cutmix_alpha):
            return images, labels
        return mix(images, labels, config, positions, generator(config.seed, MIX, step), True)

    def iterate(self, first_step: int, num_workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts from `first_step` to the end of the training.

        They are read by worker processes if there are any.
        """
        items = range(first_step * len(self.parts), self.config.num_steps * len(self.parts))
        for item, images, labels in self._read(items, num_workers):
            yield self.finish(item, images, labels)

    def unmixed(self, num_images: int, num_workers: int = 0) -> Iterator[Tensor]:
        """The first `num_images` images of the training, augmented but not mixed, by parts."""
        num_steps = min(self.config.num_steps, -(-num_images // self.config.batch_size))
        for item, raw, labels in self._read(range(num_steps * len(self.parts)), num_workers):
            if num_images <= 0:
                return
            images, _ = self.finish(item, raw, labels, mixed=False)
            yield images[:num_images]
            num_images -= len(images)

    def _read(self, items: range, num_workers: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        batches = loader(self, items, num_workers, self.device, self.train)
        batches = batches if is_resident(self.train) else self.waits.timed(batches)
        for (images, labels), item in _complete(batches, items):
            yield item, images, labels


class HeldOut(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """An evaluation set in preprocessed batches, split over the processes of a team."""

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
        # batches that each process of the team has, at least
        self.num_common = -(-(self.num // team.size) // most)
        # number of loader workers -> batches, in order; the workers stay for the next evaluation
        self.readers: dict[int, Iterable[Any]] = {}

    def __getstate__(self) -> dict[str, object]:
        """The state that loader workers need, as in Batches."""
        without = ("mean", "std", "readers")
        return {name: value for name, value in vars(self).items() if name not in without}

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
        """Images (b, C, R, R), labels (b,) and, for ReaL, the accepted classes (b, classes)."""
        if num_workers not in self.readers:
            # reads from a copy without readers: a loader that refers to its owner would not end
            # with it, and neither would its processes
            self.readers[num_workers] = loader(
                copy.copy(self), range(len(self)), num_workers, self.device, self.images, keep=True
            )
        reader = self.readers[num_workers]
        for (raw, labels, indices), _ in _complete(reader, range(len(self))):
            images = raw.to(self.device, non_blocking=True).float().div_(self.images.white)
            if self.images.pixels is not None:
                images = crop_for_eval(images, self.config)
            allowed = (
                None
                if self.images.allowed is None
                else self.images.allowed[indices].to(self.device)
            )
            layout = memory_format(self.config, self.device)
            yield (
                normalize(images, self.mean, self.std, layout),
                labels.to(self.device, non_blocking=True),
                allowed,
            )


def gather(pixels: Tensor | Shards, indices: Tensor) -> Tensor:
    """Images by index, on their device, or from memory-mapped files."""
    return pixels[put(indices.numpy(), pixels.device) if isinstance(pixels, Tensor) else indices]


def normalization(config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, (C, 1, 1) each.

    Those of the dataset if known, otherwise ImageNet's; a gray image uses the mean over ImageNet's
    three channels.
    """
    facts = dataset_facts(config.dataset) or DATASETS["imagenet"]
    mean, std = torch.tensor(facts.mean), torch.tensor(facts.std)
    if len(mean) != config.channels:
        mean, std = mean.mean().repeat(config.channels), std.mean().repeat(config.channels)
    return mean[:, None, None], std[:, None, None]


def resident(images: Images, device: torch.device) -> Images:
    """The same images, on the GPU if they fit.

    They fit if all memory allocated there stays within RESIDENT_SHARE of the process' memory.
    """
    if device.type != "cuda" or images.pixels is None:
        return images
    allowed = torch.cuda.mem_get_info(device)[1] * torch.cuda.get_per_process_memory_fraction(
        device
    )
    if images.pixels.shape.numel() + torch.cuda.memory_allocated(device) > RESIDENT_SHARE * allowed:
        return images
    pixels = torch.empty(images.pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 4096):  # in chunks, never all of it in host memory
        pixels[start : start + 4096] = images.pixels[start : start + 4096].to(device)
    return replace(images, pixels=pixels)


def fingerprint(images: Images) -> str:
    """A digest of all labels and some images, to distinguish datasets of the same name."""
    digest = hashlib.sha256(images.labels.cpu().numpy().tobytes())
    for index in range(0, len(images), max(1, len(images) // 8)):
        digest.update(images[index].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


class Examined(NamedTuple):
    """What a start learns of the images of its trials."""

    digests: dict[str, str]  # fingerprints of "train" and of each evaluation set
    is_on_disk: bool  # and read from there in each step, unless they fit on a GPU
    batch_bytes: int  # of a training batch and one of an evaluation, as readers send them, at most


def examine(configs: Sequence[TrainConfig], root: Path | None) -> Examined:
    """Examines the images of configs that read the same ones.

    Raises ValueError where a training would: as load_split for each split that a config reads, and
    for images of sizes that its crop cannot take. Decodes only a few images.
    """
    images = load_split(configs[0], "train", root)
    for config in {(c.crop, c.resolution): c for c in configs}.values():
        _check_crop(images, config)
    fingerprints = {"train": fingerprint(images)}
    for config in {c.evals: c for c in configs}.values():
        for name in config.evals:
            fingerprints[name] = fingerprint(load_split(config, name, root))
    stored = 0 if images.pixels is None else math.prod(images.pixels.shape[1:])
    batch_bytes = max(
        (c.batch_size + EVAL_BATCH) * max(stored, c.channels * c.resolution**2) for c in configs
    )
    return Examined(fingerprints, not isinstance(images.pixels, Tensor), batch_bytes)


def _check_crop(images: Images, config: TrainConfig) -> None:
    """Raises ValueError, as the first batch would, if the crop cannot give `resolution` pixels."""
    if images.pixels is None:
        crop_boxes(np.array([images[0].shape[1:]]), config, np.arange(1), np.random.default_rng(0))
    elif config.crop == "pad":
        height, width = images.pixels.shape[-2:]
        check_sizes(height, width, config)


def readers_of(asked: int | Literal["auto"], images: Images) -> int:
    """The number of loader processes; a core is a thread of this process."""
    return num_readers(asked, torch.get_num_threads(), not isinstance(images.pixels, Tensor))


def is_resident(images: Images) -> bool:
    """Whether the images are on a GPU."""
    return isinstance(images.pixels, Tensor) and images.pixels.is_cuda


def generator(seed: int, stream: int, counter: int) -> np.random.Generator:
    """A random generator that depends only on its arguments."""
    return np.random.default_rng([seed, stream, counter])


def loader(
    dataset: Dataset,
    items: range,
    num_workers: int,
    device: torch.device,
    images: Images,
    keep: bool = False,
) -> Iterable[Any]:
    """Gives one batch per item, read by worker processes if there are any.

    Workers' batches are pinned if the device is a GPU, so that copies to it are asynchronous. With
    `keep`, the items can be read several times, by the same workers.
    """
    if num_workers == 0 or is_resident(images):  # nothing to read from disk
        return _InProcess(dataset, items)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=items,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        persistent_workers=keep,
        # otherwise a loader draws from the global generator each time it starts
        generator=torch.Generator(),
    )


def _complete(batches: Iterable[T], items: range) -> Iterator[tuple[T, int]]:
    """Each batch with its item. Raises OSError if batches are missing: torch ends an iteration, as
    if it were complete, whose loader processes Python ends.
    """
    numbers = iter(items)
    yield from zip(batches, numbers, strict=False)
    if (item := next(numbers, None)) is not None:
        raise OSError(f"batch {item} of {len(items)} was not read: loader processes have ended")


class _InProcess:
    """One batch per item, read by this process; may be iterated over again."""

    def __init__(self, dataset: Dataset, items: range) -> None:
        self.dataset, self.items = dataset, items

    def __iter__(self) -> Iterator[Any]:
        return map(self.dataset.__getitem__, self.items)
