"""Operations on a batch of RGB images, each with its own strength, without a loop over images.

Images are uint8 (B, 3, H, W) on any device, and are rounded to integer levels after each operation,
as in PIL: the results equal PIL's where PIL computes in integers, and otherwise agree to within one
level. Strengths are NumPy arrays (B,), so that no operation waits for the device. Each operation
has two parts: the parameters that it needs on the device, and its computation there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitscale.train.packed_copy import PackedCopy

BLUR_RADIUS = 8  # pixels: four standard deviations of the strongest blur


class Warp(NamedTuple):
    """Interpolation of geometric operations, and the color outside the image, in levels."""

    interpolation: str = "nearest"  # or bilinear
    fill: tuple[int, int, int] = (0, 0, 0)


def plan(
    packed: PackedCopy, names: np.ndarray, values: np.ndarray, warp: Warp, size: tuple[int, ...]
) -> Callable[[Tensor], Tensor]:
    """Operation names[i] with strength values[i] on image i: uint8 (B, 3, H, W) -> the same.

    The name "" leaves an image unchanged. Strengths: shears, the tangent; translations, pixels to
    the right or down; Rotate, degrees counter-clockwise; Brightness, Color, Contrast, Sharpness,
    the factor of PIL.ImageEnhance; Posterize, bits kept, 0 for black; Solarize, the first level
    inverted; SolarizeAdd, levels added below 128; Blur, the standard deviation in pixels. The
    others have none. Adds the parameters to the copy; the returned function can be called once the
    copy is sent.
    """
    parts = []
    for name in np.unique(names[names != ""]):
        rows = np.flatnonzero(names == name)
        parts.append((packed.add(rows), _planned(packed, name, values[rows], warp, size)))

    def step(images: Tensor) -> Tensor:
        images = images.clone()
        for rows, operation in parts:
            index = rows()
            images.index_copy_(0, index, operation(images.index_select(0, index)))
        return images

    return step


def _planned(
    packed: PackedCopy, name: str, values: np.ndarray, warp: Warp, size: tuple[int, ...]
) -> Callable[[Tensor], Tensor]:
    """Plans one operation, for the images that undergo it and their strengths."""
    if name in WARPS:
        matrices = packed.add(WARPS[name](values, *size).astype(np.float32))
        fill = packed.add(np.array(warp.fill, np.float32))
        return lambda images: _warp(images, matrices(), fill(), warp.interpolation)
    needs, operation = OPS[name]
    strengths = packed.add(needs(values))
    return lambda images: operation(images, strengths())


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums of pixels: (B, C, H, W) -> (B, C, R, S), floats.

    Weights are (B, R, H) for rows and (B, S, W) for columns.
    """
    num, channels, height, width = images.shape
    wide = images.reshape(num, channels * height, width) @ columns.mT
    wide = wide.view(num, channels, height, -1).transpose(1, 2).reshape(num, height, -1)
    return (rows @ wide).view(num, rows.shape[1], channels, -1).transpose(1, 2)


def _warp(images: Tensor, matrices: Tensor, fill: Tensor, interpolation: str) -> Tensor:
    """Sets pixel (x, y), relative to the center, to the value at matrix @ (x, y, 1).

    Matrices are (B, 2, 3), fill (3,).
    """
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    m = matrices[..., None, None]
    source_x, source_y = (m[:, :, 0] * x + m[:, :, 1] * y + m[:, :, 2]).unbind(1)
    grid = torch.stack([source_x / (width / 2), source_y / (height / 2)], -1)
    values = F.grid_sample(
        images.float(), grid, interpolation, padding_mode="border", align_corners=False
    )
    inside = (grid.abs() <= 1).all(-1)[:, None]
    return torch.where(inside, values, fill[:, None, None]).round_().to(torch.uint8)


def _matrices(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, e: np.ndarray, f: np.ndarray
) -> np.ndarray:
    """The matrix [[a, b, c], [d, e, f]] of each image, (B, 2, 3)."""
    return np.stack([np.stack([a, b, c], -1), np.stack([d, e, f], -1)], 1)


def _rotate(degrees: np.ndarray, height: int, width: int) -> np.ndarray:
    cos, sin, zero = (
        np.cos(np.radians(degrees)),
        np.sin(np.radians(degrees)),
        np.zeros(len(degrees)),
    )
    return _matrices(cos, -sin, zero, sin, cos, zero)


def _translate_x(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    one, zero = np.ones(len(pixels)), np.zeros(len(pixels))
    return _matrices(one, zero, -pixels, zero, one, zero)


def _translate_y(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    one, zero = np.ones(len(pixels)), np.zeros(len(pixels))
    return _matrices(one, zero, zero, zero, one, -pixels)


def _shear_x(tangents: np.ndarray, height: int, width: int) -> np.ndarray:
    """Along the top border, which stays where it is."""
    one, zero = np.ones(len(tangents)), np.zeros(len(tangents))
    return _matrices(one, tangents, tangents * height / 2, zero, one, zero)


def _shear_y(tangents: np.ndarray, height: int, width: int) -> np.ndarray:
    """Along the left border, which stays where it is."""
    one, zero = np.ones(len(tangents)), np.zeros(len(tangents))
    return _matrices(one, zero, zero, tangents, one, tangents * width / 2)


def _each(values: np.ndarray) -> np.ndarray:
    """Strengths as float32 (B, 1, 1, 1)."""
    return values.astype(np.float32)[:, None, None, None]


def _nothing(values: np.ndarray) -> np.ndarray:
    return np.empty(0, np.float32)


def _blend(other: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """other + factor * (images - other), truncated to integer levels as by PIL's blend."""
    base = other.float()
    return (base + factors * (images.float() - base)).clamp_(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Luma of ITU-R 601 in integer levels, (B, 1, H, W): bit for bit PIL's convert("L")."""
    red, green, blue = images.int().unbind(1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000 >> 16).to(torch.uint8)[:, None]


def _brightness(images: Tensor, factors: Tensor) -> Tensor:
    return _blend(torch.zeros_like(images), images, factors)


def _color(images: Tensor, factors: Tensor) -> Tensor:
    return _blend(_grey(images), images, factors)


def _contrast(images: Tensor, factors: Tensor) -> Tensor:
    mean = _grey(images).double().mean((1, 2, 3), keepdim=True)
    return _blend((mean + 0.5).floor(), images, factors)


def _sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """PIL's sharpness: inside the border, a blend with a 3x3 average.

    The average has weights 5 in the middle and 1 around, over 13.
    """
    wide = images.float()
    inner = wide[..., 1:-1, 1:-1]
    if inner.numel() == 0:
        return images
    smooth = wide.clone()
    smooth[..., 1:-1, 1:-1] = ((F.avg_pool2d(wide, 3, 1) * 9 + inner * 4) / 13 + 0.5).floor()
    return _blend(smooth, images, factors)


def _kept_bits(bits: np.ndarray) -> np.ndarray:
    """Numbers of bits to keep -> masks for the levels, uint8 (B, 1, 1, 1)."""
    return (0xFF << (8 - bits.astype(np.int64)) & 0xFF).astype(np.uint8)[:, None, None, None]


def _solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    return torch.where(images >= thresholds, 255 - images, images)


def _solarize_add(images: Tensor, levels: Tensor) -> Tensor:
    added = (images + levels).clamp_(0, 255).to(torch.uint8)
    return torch.where(images < 128, added, images)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    from torchvision.transforms.v2.functional import autocontrast

    return autocontrast(images)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    from torchvision.transforms.v2.functional import equalize

    return equalize(images)


def _gaussians(sigmas: np.ndarray) -> np.ndarray:
    """Standard deviations (B,) -> kernels (B, 2 * BLUR_RADIUS + 1), float32."""
    offsets = np.arange(-BLUR_RADIUS, BLUR_RADIUS + 1)
    kernels = np.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
    return (kernels / kernels.sum(1, keepdims=True)).astype(np.float32)


def _blur(images: Tensor, kernels: Tensor) -> Tensor:
    """A Gaussian blur truncated at BLUR_RADIUS; border pixels are repeated beyond the border."""
    rows, columns = (_band(kernels, size) for size in images.shape[-2:])
    return resample(images.float(), rows, columns).round_().clamp_(0, 255).to(torch.uint8)


def _band(kernels: Tensor, size: int) -> Tensor:
    """The convolution of a line of `size` pixels with each kernel, as matrices (B, S, S).

    Kernels are (B, 2 * BLUR_RADIUS + 1).
    """
    pixels = torch.arange(size, device=kernels.device)
    sources = pixels[:, None] + torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=kernels.device)
    taps = (sources.clamp(0, size - 1)[..., None] == pixels).float().transpose(0, 1)
    return (kernels @ taps.flatten(1)).view(-1, size, size)


WARPS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "Rotate": _rotate,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
}
# name -> (strengths -> parameters on the device, (images, parameters) -> images)
OPS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Tensor, Tensor], Tensor]]] = {
    "AutoContrast": (_nothing, _autocontrast),
    "Blur": (_gaussians, _blur),
    "Brightness": (_each, _brightness),
    "Color": (_each, _color),
    "Contrast": (_each, _contrast),
    "Equalize": (_nothing, _equalize),
    "Invert": (_nothing, lambda images, _: 255 - images),
    "Posterize": (_kept_bits, torch.bitwise_and),
    "Sharpness": (_each, _sharpness),
    "Solarize": (_each, _solarize),
    "SolarizeAdd": (_each, _solarize_add),
}
