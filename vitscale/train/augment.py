"""Augmentation of a batch on its device.

The order is crop, flip, policy, color jitter, normalization, erasing, mixing.

Random numbers are drawn for all `batch_size` samples of a batch, and those at `positions` are used:
the indices of the given images within the batch, ascending. So what happens to a sample does not
depend on how the batch is split.

Each operation has two parts: `plan_...` draws random numbers on the host and adds what the device
needs to a copy; the function that it returns transforms the images once the copy is sent. So
all parameters of a batch travel in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.train.draws import normal
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.pixel_ops import Step, plan, resample
from vitscale.train.policies import layers

CROP_RATIO = (3 / 4, 4 / 3)  # width over height, of random resized crops
SRC_PADDING = 4  # pixels, DeiT III's
ERASED_AREA = (0.02, 1 / 3)  # fraction of the image
ERASED_RATIO = (0.3, 1 / 0.3)  # height over width
TRIES = 10  # candidates per rectangle, until one fits: torchvision's and timm's number


def crop_boxes(
    sizes: np.ndarray, config: TrainConfig, positions: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Random crop boxes (b, 4), as top, left, height and width, for images of sizes (b, 2).

    Sizes are heights and widths in pixels. With rrc, boxes are relative to the image, as in
    torchvision's RandomResizedCrop; with src, to the image after resizing and padding. Raises
    ValueError for the crop "pad", which does not change the size of an image.
    """
    match config.crop:
        case "pad":
            raise ValueError(
                "crop in (rrc, src) must hold for images of any size, but got "
                f"(crop={config.crop!r})"
            )
        case "src":
            return _src_boxes(
                sizes, config.resolution, rng.random((config.batch_size, 2))[positions]
            )
        case "rrc":
            draws = rng.random((config.batch_size, TRIES, 4))[positions]
            return _rrc_boxes(sizes, config.crop_scale_min, draws)
        case never:
            assert_never(never)


def crop_encoded(image: Tensor, box: Iterable[int], config: TrainConfig) -> Tensor:
    """Crops one image by a row of crop_boxes: uint8 (C, H, W) of any size -> uint8 (C, R, R)."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as tv

    top, left, height, width = (int(n) for n in box)
    match config.crop:
        case "rrc":
            size = [config.resolution, config.resolution]
            return tv.resized_crop(
                image, top, left, height, width, size, InterpolationMode.BICUBIC, antialias=True
            )
        case "src":
            padded = tv.pad(
                _resize(image, config.resolution), [SRC_PADDING], padding_mode="reflect"
            )
            return padded[:, top : top + height, left : left + width]
        case "pad":
            raise AssertionError(
                "a batch of one size is padded and cropped at once: crop_boxes refuses others"
            )
        case never:
            assert_never(never)


def plan_crop(
    packed: PackedCopy,
    size: tuple[int, ...],
    config: TrainConfig,
    positions: np.ndarray,
    rng: np.random.Generator,
) -> Step:
    """A random crop of each image: float (b, C, H, W) in [0, 1] -> (b, C, R, R) in [0, 1].

    Raises ValueError if the crop is "pad" and the images are not `resolution` pixels large.
    """
    height, width = size
    sizes = np.array([[height, width]] * len(positions))
    match config.crop:
        case "pad":
            check_sizes(height, width, config)
            return _padded_crop(packed, config, positions, rng)
        case "src":
            boxes = crop_boxes(sizes, config, positions, rng)
            window = _windows(packed, boxes[:, 0], boxes[:, 1], config.resolution)
            return lambda images: window(
                F.pad(_resize(images, config.resolution), [SRC_PADDING] * 4, mode="reflect")
            )
        case "rrc":
            boxes = crop_boxes(sizes, config, positions, rng)
            return _resized_crop(packed, boxes, height, width, config)
        case never:
            assert_never(never)


def _resized_crop(
    packed: PackedCopy, boxes: np.ndarray, height: int, width: int, config: TrainConfig
) -> Step:
    """Resizes a box (b, 4) of each image to the resolution.

    All images are height x width pixels.
    """
    sent = packed.add(boxes.T.astype(np.float32))

    def step(images: Tensor) -> Tensor:
        top, left, heights, widths = sent().to(images.dtype)
        rows = cubic_weights(top, heights, height, config.resolution)
        columns = cubic_weights(left, widths, width, config.resolution)
        return resample(images, rows, columns).clamp(0, 1)

    return step


def crop_for_eval(images: Tensor, config: TrainConfig) -> Tensor:
    """Resizes the shorter side and crops the center: (..., C, H, W) -> (..., C, R, R).

    The shorter side is resized to eval_side(config) pixels.
    """
    from torchvision.transforms.v2.functional import center_crop

    resized = _resize(images, eval_side(config))
    return center_crop(resized, [config.resolution, config.resolution])


def eval_side(config: TrainConfig) -> int:
    """Pixels of the shorter side before the center crop: R / eval_crop_ratio, rounded down.

    As in deit and timm: 224 / 0.95 = 235.8 pixels become 235. A ratio such as 232 / 262 means 262,
    whatever its floating-point rounding.
    """
    return math.floor(config.resolution / config.eval_crop_ratio + 1e-6)


def plan_augment(
    packed: PackedCopy,
    size: tuple[int, ...],
    config: TrainConfig,
    positions: np.ndarray,
    rng: np.random.Generator,
) -> Step:
    """Flips, the policy and jittered colors: (b, C, R, R) in [0, 1] -> the same.

    Policies operate on 256 levels.
    """
    flips = None
    if config.flip_prob:
        flips = packed.add((rng.random(config.batch_size) < config.flip_prob)[positions])
    # on a CPU, where a call costs little, the images that an operation leaves as they are cost more
    is_grouped = packed.device.type == "cpu"
    steps = [
        plan(
            packed,
            layer.names[positions],
            layer.values[positions],
            layer.warp,
            size,
            None if is_grouped else layer.possible,
        )
        for layer in layers(config, rng)
    ]

    def step(images: Tensor) -> Tensor:
        if flips is not None:
            images = torch.where(flips()[:, None, None, None], images.flip(-1), images)
        if not steps:
            return images
        levels = (images * 255).round().to(torch.uint8)
        for layer in steps:
            levels = layer(levels)
        return levels.to(images.dtype) / 255

    return step


def normalize(
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    layout: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """Standardizes each channel: (b, C, H, W) with mean and std (C, 1, 1), in a memory format."""
    centered = torch.empty_like(images, memory_format=layout)
    return torch.sub(images, mean, out=centered).div_(std)


def plan_erase(
    packed: PackedCopy,
    size: tuple[int, ...],
    config: TrainConfig,
    positions: np.ndarray,
    rng: np.random.Generator,
) -> Step:
    """A random rectangle of normal noise in some images: (b, C, H, W) -> the same.

    Images are normalized, and overwritten. Zhong et al. 2020 as in timm's mode "pixel", which DeiT
    uses: 2% to a third of the area.
    """
    if not config.erasing_prob:
        return lambda images: images
    chosen = rng.random(config.batch_size) < config.erasing_prob
    draws = rng.random((config.batch_size, TRIES, 4))
    key = int(rng.integers(2**31))
    height, width = size
    boxes, fits = _erased_boxes(height, width, draws[positions])
    rows = np.flatnonzero(chosen[positions] & fits)
    if not len(rows):
        return lambda images: images
    index, erased, erased_boxes = (
        packed.add(array) for array in (rows, positions[rows], boxes[rows])
    )

    def step(images: Tensor) -> Tensor:
        noise = normal(key, erased(), tuple(images.shape[1:])).to(images.dtype)
        inside = _inside(erased_boxes(), height, width)
        return images.index_copy_(
            0, index(), torch.where(inside, noise, images.index_select(0, index()))
        )

    return step


def mix(
    images: Tensor,
    labels: Tensor,
    config: TrainConfig,
    positions: np.ndarray,
    rng: np.random.Generator,
    overwrites: bool = False,
) -> tuple[Tensor, Tensor]:
    """Applies mixup or CutMix between mirrored positions: images (b, C, H, W) and labels (b,).

    The mixed images replace the others in memory if `overwrites`.
    Each of `mix_groups` equal groups of the batch draws one of the two methods, the mixing ratio
    and the rectangle (timm draws them once per process); group g is part g of
    vitscale.train.parallel.cut. Targets become (b, num_classes) with label smoothing included, also
    if `mix_prob` leaves a group unmixed. With both methods off, they stay labels.
    """
    if not config.mixup_alpha and not config.cutmix_alpha:
        return images, labels
    assert (positions + positions[::-1] == config.batch_size - 1).all(), (
        f"mirrored pairs, but got {positions}"
    )
    seeds = rng.integers(2**32, size=config.mix_groups, dtype=np.uint32)
    state = np.random.get_state()  # timm draws from NumPy's global generator
    try:
        images = images if overwrites else images.clone()
        return _mixed_groups(images, labels, config, positions, seeds)
    finally:
        np.random.set_state(state)


def _mixed_groups(
    images: Tensor, labels: Tensor, config: TrainConfig, positions: np.ndarray, seeds: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Implements mix; group g is mixed by NumPy's global generator seeded with seeds[g]."""
    from timm.data.mixup import Mixup

    mixup = Mixup(
        mixup_alpha=config.mixup_alpha,
        cutmix_alpha=config.cutmix_alpha,
        prob=config.mix_prob,
        switch_prob=config.cutmix_share,
        label_smoothing=config.label_smoothing,
        num_classes=config.num_classes,
    )
    # Positions ascend, so a group is a slice of the first half and the mirrored slice of the
    # second half: no index has to be copied to the device.
    num, half = len(positions), len(positions) // 2
    groups, starts = np.unique(
        positions[:half] * len(seeds) // (config.batch_size // 2), return_index=True
    )
    if len(groups) == 1:
        np.random.seed(seeds[groups[0]])
        return mixup(images, labels)
    lower, upper = [], []
    for group, start, end in zip(groups, starts, [*starts[1:], half], strict=True):
        np.random.seed(seeds[group])
        whole = [torch.cat([x[start:end], x[num - end : num - start]]) for x in (images, labels)]
        of_group = mixup(*whole)
        lower.append([x[: end - start] for x in of_group])
        upper.append([x[end - start :] for x in of_group])
    mixed, targets = zip(*lower, *upper[::-1], strict=True)
    return torch.cat(mixed, out=images), torch.cat(targets)


def cubic_weights(start: Tensor, length: Tensor, size: int, num: int) -> Tensor:
    """Weights (b, num, size) that resize pixels [start, start + length) of a line to `num` pixels.

    The line has `size` pixels; start and length are (b,). Bicubic (a = -1/2) with antialiasing, as
    in torch.nn.functional.interpolate and PIL.
    """
    scale = (length / num)[:, None]
    centre = scale * (torch.arange(num, device=start.device) + 0.5)
    pixel = torch.arange(size, device=start.device) - start[:, None]
    x = ((pixel[:, None] + 0.5 - centre[:, :, None]) / scale.clamp(min=1)[..., None]).abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0))
    weights = weights * ((pixel >= 0) & (pixel < length[:, None]))[:, None]
    return weights / weights.sum(-1, keepdim=True)


def _rrc_boxes(sizes: np.ndarray, scale_min: float, draws: np.ndarray) -> np.ndarray:
    """The first candidate of draws (b, TRIES, 4) that fits in its image.

    If none fits, the largest centered rectangle whose aspect ratio is within CROP_RATIO.
    """
    height, width = sizes[:, :1], sizes[:, 1:]
    area = height * width * (scale_min + (1 - scale_min) * draws[..., 0])
    ratio = _log_uniform(CROP_RATIO, draws[..., 1])
    h, w = np.round(np.sqrt(area / ratio)), np.round(np.sqrt(area * ratio))
    fits = (h > 0) & (w > 0) & (h <= height) & (w <= width)
    top, left = (
        np.floor(draws[..., 2] * (height - h + 1)),
        np.floor(draws[..., 3] * (width - w + 1)),
    )
    drawn = _first(np.stack([top, left, h, w], -1), fits)
    return np.where(fits.any(1)[:, None], drawn, _centre_boxes(sizes)).astype(np.int64)


def _centre_boxes(sizes: np.ndarray) -> np.ndarray:
    height, width = sizes.T
    h = np.where(width / height < CROP_RATIO[0], np.round(width / CROP_RATIO[0]), height)
    w = np.where(width / height > CROP_RATIO[1], np.round(height * CROP_RATIO[1]), width)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], -1)


def _src_boxes(sizes: np.ndarray, side: int, draws: np.ndarray) -> np.ndarray:
    """Windows of side x side pixels in images resized by _resize and padded; draws (b, 2).

    Offsets are random along both axes, as in the authors' code (deit); the thesis, section 6.2.3,
    says along the x-axis.
    """
    resized = side * sizes // sizes.min(1, keepdims=True)
    corners = np.floor(draws * (resized + 2 * SRC_PADDING - side + 1)).astype(np.int64)
    return np.concatenate([corners, np.full_like(corners, side)], 1)


def _erased_boxes(height: int, width: int, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first candidate of draws (b, TRIES, 4) that fits, and whether any does.

    Boxes are (b, 4): top, left, height, width.
    """
    area = height * width * (ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * draws[..., 0])
    ratio = _log_uniform(ERASED_RATIO, draws[..., 1])
    h, w = np.round(np.sqrt(area * ratio)), np.round(np.sqrt(area / ratio))
    fits = (h < height) & (w < width)
    top, left = (
        np.floor(draws[..., 2] * (height - h + 1)),
        np.floor(draws[..., 3] * (width - w + 1)),
    )
    return _first(np.stack([top, left, h, w], -1), fits).astype(np.int64), fits.any(1)


def _log_uniform(limits: tuple[float, float], draws: np.ndarray) -> np.ndarray:
    low, high = np.log(limits)
    return np.exp(low + (high - low) * draws)


def _first(boxes: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """Selects from boxes (b, TRIES, 4) the first one per image where `fits` (b, TRIES).

    Where none fits, the choice is arbitrary.
    """
    return boxes[np.arange(len(boxes)), fits.argmax(1)]


def _inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """A mask (b, 1, H, W) of the pixels inside the boxes (b, 4)."""
    top, left, h, w = boxes.T[:, :, None]
    y, x = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows, columns = (y >= top) & (y < top + h), (x >= left) & (x < left + w)
    return (rows[:, :, None] & columns[:, None])[:, None]


def _resize(images: Tensor, side: int) -> Tensor:
    """Resizes the shorter side, bicubic with antialiasing; floats stay in [0, 1]."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    if min(images.shape[-2:]) == side:
        return images
    resized = resize(images, [side], InterpolationMode.BICUBIC, antialias=True)
    return resized.clamp(0, 1) if resized.is_floating_point() else resized


def check_sizes(height: int, width: int, config: TrainConfig) -> None:
    """Raises ValueError if images are not `resolution` pixels large.

    Padding and cropping back does not change the size.
    """
    if (height, width) != (config.resolution, config.resolution):
        raise ValueError(
            "resolution == height == width must hold for the crop pad, but got "
            f"(resolution={config.resolution}, height={height}, width={width})"
        )


def _padded_crop(
    packed: PackedCopy, config: TrainConfig, positions: np.ndarray, rng: np.random.Generator
) -> Step:
    """Pads with zeros (black) and crops back to the size."""
    padding = config.crop_padding
    if not padding:
        return lambda images: images
    top, left = rng.integers(0, 2 * padding + 1, (2, config.batch_size))[:, positions]
    window = _windows(packed, top, left, config.resolution)
    return lambda images: window(F.pad(images, (padding,) * 4))


def _windows(packed: PackedCopy, top: np.ndarray, left: np.ndarray, side: int) -> Step:
    """Cuts a window of side x side pixels out of each image, at its own offset."""
    offsets = packed.add(np.stack([top, left]))

    def step(images: Tensor) -> Tensor:
        tops, lefts = offsets()
        rows = tops[:, None] + torch.arange(side, device=images.device)
        columns = lefts[:, None] + torch.arange(side, device=images.device)
        item = torch.arange(len(images), device=images.device)[:, None, None]
        cropped = images.permute(0, 2, 3, 1)[item, rows[:, :, None], columns[:, None, :]]
        return cropped.permute(0, 3, 1, 2)

    return step
