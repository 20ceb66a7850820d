"""Operations on a batch of RGB images, each with its own strength, without a loop over images.

Images are uint8 (B, 3, H, W) on any device, and are rounded to integer levels after each operation,
as in PIL: the results equal PIL's where PIL computes in integers, and otherwise agree to within one
level. Strengths are NumPy arrays (B,), so that no operation waits for the device. Each operation
has two parts: the parameters that it needs on the device, and its computation there.

A CPU computes each operation that was drawn for the images that have it. A GPU's host pays for each
call, so there all images go through all operations of a policy, with strengths that change nothing
where they were not drawn: calls and shapes are the same for any draw, and the pixels are a CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.train.packed_copy import PackedCopy

BLUR_RADIUS = 8  # pixels: four standard deviations of the strongest blur
GROUP_VALUES = 2**20  # of the images that a CPU computes together: intermediate results are cached
LEVELS = np.arange(256, dtype=np.float32)
BLENDS = {"Color", "Sharpness"}
Step = Callable[[Tensor], Tensor]  # images -> images
# (images, their grey images if a possible operation needs these) -> images
Operation = Callable[[Tensor, Tensor | None], Tensor]
# place in a matrix (2, 3) -> its entries, where they are not those of the identity
Entries = dict[tuple[int, int], np.ndarray]


class Warp(NamedTuple):
    """Interpolation of geometric operations, and the color outside the image, in levels."""

    interpolation: str = "nearest"  # or bilinear
    fill: tuple[int, int, int] = (0, 0, 0)


def plan(
    packed: PackedCopy,
    names: np.ndarray,
    values: np.ndarray,
    warp: Warp,
    size: tuple[int, ...],
    possible: Collection[str] | None = None,
) -> Step:
    """Operation names[i] with strength values[i] on image i: uint8 (B, 3, H, W) -> the same.

    The name "" leaves an image unchanged. Strengths: shears, the tangent; translations, pixels to
    the right or down; Rotate, degrees counter-clockwise; Brightness, Color, Contrast, Sharpness,
    the factor of PIL.ImageEnhance; Posterize, bits kept, 0 for black; Solarize, the first level
    inverted; SolarizeAdd, levels added below 128; Blur, the standard deviation in pixels. The
    others have none. With `possible`, the names that could be drawn, the calls do not depend on
    those that were. Adds the parameters to the copy; the returned function can be called once the
    copy is sent.
    """
    if possible is not None:
        return _planned(packed, set(possible), names, values, warp, size)
    groups = np.array([GROUP_OF.get(name, -1) for name in names.tolist()])
    parts = []
    most = max(1, GROUP_VALUES // (3 * size[0] * size[1]))
    for group in np.unique(groups[groups >= 0]):
        everyone = np.flatnonzero(groups == group)
        for rows in np.split(everyone, range(most, len(everyone), most)):
            operation = _planned(packed, set(GROUPS[group]), names[rows], values[rows], warp, size)
            parts.append((packed.add(rows), operation))

    def step(images: Tensor) -> Tensor:
        images = images.clone()
        for rows, operation in parts:
            index = rows()
            images.index_copy_(0, index, operation(images.index_select(0, index)))
        return images

    return step


def _planned(
    packed: PackedCopy,
    possible: set[str],
    names: np.ndarray,
    values: np.ndarray,
    warp: Warp,
    size: tuple[int, ...],
) -> Step:
    """Plans a table of levels, a warp, a blend and a blur, as far as they are possible.

    At most one of them changes an image.
    """
    operations: list[Operation] = []
    if possible & (DRAWN_TABLES.keys() | PIXEL_TABLES):
        operations.append(_table(packed, possible, names, values, size))
    if possible & WARPS.keys():
        operations.append(_warp(packed, names, values, warp, size))
    if possible & BLENDS:
        operations.append(_blend(packed, possible, names, values))
    if "Blur" in possible:
        operations.append(_blur(packed, names, values))

    def step(images: Tensor) -> Tensor:
        grey = _grey(images) if possible & {"Color", "Contrast"} else None
        for operation in operations:
            images = operation(images, grey)
        return images.to(torch.uint8)

    return step


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums of pixels: (B, C, H, W) -> (B, C, R, S), floats.

    Weights are (B, R, H) for rows and (B, S, W) for columns.
    """
    num, channels, height, width = images.shape
    wide = images.reshape(num, channels * height, width) @ columns.mT
    wide = wide.view(num, channels, height, -1).transpose(1, 2).reshape(num, height, -1)
    return (rows @ wide).view(num, rows.shape[1], channels, -1).transpose(1, 2)


def _table(
    packed: PackedCopy,
    possible: set[str],
    names: np.ndarray,
    values: np.ndarray,
    size: tuple[int, ...],
) -> Operation:
    """Plans the operations that map the levels of a channel, as a table (B, 3, 256) and a gather.

    The host computes the tables that do not depend on the pixels.
    """
    num_pixels = size[0] * size[1]
    drawn = np.repeat(LEVELS[None], len(names), 0)
    for name in DRAWN_TABLES.keys() & {*names.tolist()}:
        rows = np.flatnonzero(names == name)
        drawn[rows] = DRAWN_TABLES[name](LEVELS, values[rows, None].astype(np.float32))
    tables, levels = packed.add(drawn[:, None]), packed.add(LEVELS)
    contrasts, factors = _factors(packed, names, values, "Contrast")
    # a channel is stretched if its range of levels is larger, and equalized if its step is larger
    ranges = packed.add(_each(np.where(names == "AutoContrast", 0, 255).astype(np.uint8)))
    steps = packed.add(_each(np.where(names == "Equalize", 0, num_pixels).astype(np.int32)))
    ones = packed.add(np.ones((1, 1, 1), np.int32))

    def operation(images: Tensor, grey: Tensor | None) -> Tensor:
        pixels = images.flatten(2)
        index = pixels.long()
        table = tables()
        if "Contrast" in possible:
            assert grey is not None
            total = grey.flatten(2).sum(2, keepdim=True, dtype=torch.int32)
            mean = (total + num_pixels // 2) // num_pixels
            blended = mean + factors() * (levels() - mean)
            table = torch.where(contrasts(), blended, table)
        if possible & {"AutoContrast", "Equalize"}:
            low, high = pixels.aminmax(dim=2, keepdim=True)
        if "AutoContrast" in possible:
            between = high - low  # as in torchvision
            stretched = (levels() - low) / (between * (1 / 255))
            table = torch.where(between > ranges(), stretched, table)
        if "Equalize" in possible:
            counts = torch.zeros(*pixels.shape[:2], 257, dtype=torch.int32, device=images.device)
            counts[..., 1:].scatter_add_(2, index, ones().expand_as(index))
            below = counts.cumsum(2, dtype=torch.int32)[..., :256]  # pixels of lower levels
            num = below.gather(2, high.long())
            width = num // 255  # pixels per new level, PIL's step
            # truncated, this is the integer quotient: floats are exact enough up to 2^24 pixels
            table = torch.where(width > steps(), (below + num // 510) / width, table)
        table = table.clamp(0, 255).to(torch.uint8).expand(*pixels.shape[:2], 256)
        return table.gather(2, index).view_as(images)

    return operation


def _warp(
    packed: PackedCopy, names: np.ndarray, values: np.ndarray, warp: Warp, size: tuple[int, ...]
) -> Operation:
    """Plans geometric operations, to whole levels as floats.

    Sets pixel (x, y), relative to the center, to the value at matrix @ (x, y, 1). The identity
    gives back the pixels: its coordinates are wrong by rounding only, and levels are rounded.
    """
    height, width = size
    matrices = np.tile(np.eye(2, 3), (len(names), 1, 1))
    for name in WARPS.keys() & {*names.tolist()}:
        rows = np.flatnonzero(names == name)
        for (row, column), entries in WARPS[name](values[rows], height, width).items():
            matrices[rows, row, column] = entries
    sent, fill, halves, x, y = (
        packed.add(np.asarray(array, np.float32))
        for array in (
            matrices[..., None, None],
            np.reshape(warp.fill, (3, 1, 1)),
            np.reshape([width / 2, height / 2], (2, 1, 1)),
            np.arange(width) - (width - 1) / 2,
            np.arange(height)[:, None] - (height - 1) / 2,
        )
    )

    def operation(images: Tensor, grey: Tensor | None) -> Tensor:
        m = sent()
        grid = (m[:, :, 0] * x() + m[:, :, 1] * y() + m[:, :, 2]) / halves()
        values = F.grid_sample(
            images.float(),
            grid.movedim(1, -1),
            warp.interpolation,
            padding_mode="border",
            align_corners=False,
        )
        inside = (grid.abs() <= 1).all(1, keepdim=True)
        return torch.where(inside, values, fill()).round_()

    return operation


def _rotate(degrees: np.ndarray, height: int, width: int) -> Entries:
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return {(0, 0): cos, (0, 1): -sin, (1, 0): sin, (1, 1): cos}


def _each(values: np.ndarray) -> np.ndarray:
    """(B,) -> (B, 1, 1)."""
    return values[:, None, None]


def _factors(
    packed: PackedCopy, names: np.ndarray, values: np.ndarray, *blended: str
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Whether an image has the first operation, and factors: 1 without any of them; (B, 1, 1)."""
    chosen = [names == name for name in blended]
    factors = np.where(np.logical_or.reduce(chosen), values, 1).astype(np.float32)
    return packed.add(_each(chosen[0])), packed.add(_each(factors))


def _grey(images: Tensor) -> Tensor:
    """Luma of ITU-R 601 in integer levels, int (B, 1, H, W): bit for bit PIL's convert("L")."""
    red, green, blue = images.int().split(1, 1)
    luma = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return luma.add_(0x8000).bitwise_right_shift_(16)


def _blend(
    packed: PackedCopy, possible: set[str], names: np.ndarray, values: np.ndarray
) -> Operation:
    """Plans other + factor * (images - other), truncated to integer levels as by PIL's blend.

    The other is the grey image, or for PIL's sharpness, inside the border, a 3x3 average with
    weights 5 in the middle and 1 around, over 13. The factor 1 gives back the pixels.
    """
    sharpened, factors = _factors(packed, names, values, "Sharpness", "Color")

    def operation(images: Tensor, grey: Tensor | None) -> Tensor:
        wide = images.float()
        other = wide if grey is None else grey
        if "Sharpness" in possible:
            sharp = sharpened()[..., None]
            other = torch.where(sharp, wide, other)
            middle, inner = wide[..., 1:-1, 1:-1], other[..., 1:-1, 1:-1]
            if middle.numel():
                # a sum of 13 levels over 13 is never half a level
                smooth = F.avg_pool2d(wide, 3, 1, divisor_override=13)
                smooth.add_(middle, alpha=4 / 13).round_()
                torch.where(sharp, smooth, inner, out=inner)
        blended = (wide - other).mul_(factors()[..., None]).add_(other)
        return blended.clamp_(0, 255).to(torch.uint8)

    return operation


def _gaussians(sigmas: np.ndarray) -> np.ndarray:
    """Standard deviations (B,) -> kernels (B, 2 * BLUR_RADIUS + 1), float32."""
    offsets = np.arange(-BLUR_RADIUS, BLUR_RADIUS + 1)
    kernels = np.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
    return (kernels / kernels.sum(1, keepdims=True)).astype(np.float32)


def _blur(packed: PackedCopy, names: np.ndarray, values: np.ndarray) -> Operation:
    """Plans a Gaussian blur truncated at BLUR_RADIUS; border pixels are repeated beyond the border.

    Other images get kernels of one pixel, which give back the pixels.
    """
    sent = packed.add(_gaussians(np.where(names == "Blur", values, 0.01)))

    def operation(images: Tensor, grey: Tensor | None) -> Tensor:
        rows, columns = (_band(sent(), size) for size in images.shape[-2:])
        return resample(images.float(), rows, columns).round_().clamp_(0, 255)

    return operation


def _band(kernels: Tensor, size: int) -> Tensor:
    """The convolution of a line of `size` pixels with each kernel, as matrices (B, S, S).

    Kernels are (B, 2 * BLUR_RADIUS + 1).
    """
    pixels = torch.arange(size, device=kernels.device)
    sources = pixels[:, None] + torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=kernels.device)
    taps = (sources.clamp(0, size - 1)[..., None] == pixels).float().transpose(0, 1)
    return (kernels @ taps.flatten(1)).view(-1, size, size)


WARPS: dict[str, Callable[[np.ndarray, int, int], Entries]] = {
    "Rotate": _rotate,
    # along the top border, and along the left one, which stay where they are
    "ShearX": lambda tangents, height, width: {(0, 1): tangents, (0, 2): tangents * height / 2},
    "ShearY": lambda tangents, height, width: {(1, 0): tangents, (1, 2): tangents * width / 2},
    "TranslateX": lambda pixels, height, width: {(0, 2): -pixels},
    "TranslateY": lambda pixels, height, width: {(1, 2): -pixels},
}
# (levels (256,), strengths (B, 1)) -> levels (B, 256), to be clamped and truncated
DRAWN_TABLES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Brightness": lambda levels, factors: factors * levels,
    "Invert": lambda levels, _: 255 - levels,
    "Posterize": lambda levels, bits: levels.astype(int) & 0xFF << (8 - bits.astype(int)),
    "Solarize": lambda levels, least: np.where(levels >= least, 255 - levels, levels),
    "SolarizeAdd": lambda levels, added: np.where(levels < 128, levels + added, levels),
}
PIXEL_TABLES = {"AutoContrast", "Contrast", "Equalize"}
# the operations whose images are computed together on a CPU: those that cost the same
GROUPS = [[*DRAWN_TABLES], [*WARPS], *([name] for name in sorted(PIXEL_TABLES | BLENDS)), ["Blur"]]
GROUP_OF = {name: place for place, group in enumerate(GROUPS) for name in group}
