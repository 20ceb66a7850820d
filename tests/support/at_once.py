"""Steps of augmentation on their own: planned, sent and applied in one call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from vitscale.train.augment import plan_augment, plan_crop, plan_erase
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.pixel_ops import Warp, plan


def _at_once(
    planned: Callable[..., Callable[[Tensor], Tensor]], images: Tensor, *args: Any
) -> Tensor:
    packed = PackedCopy(images.device)
    step = planned(packed, images.shape[-2:], *args)
    packed.send()
    return step(images.clone())


crop_pixels, augment, erase = (
    partial(_at_once, planned) for planned in (plan_crop, plan_augment, plan_erase)
)


def apply(
    images: Tensor,
    names: np.ndarray,
    values: np.ndarray,
    warp: Warp,
    possible: Collection[str] | None = None,
) -> Tensor:
    packed = PackedCopy(images.device)
    step = plan(packed, names, values, warp, images.shape[-2:], possible)
    packed.send()
    return step(images)
