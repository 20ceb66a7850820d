"""The embedded dataset: scikit-learn's digits."""

from __future__ import annotations

import functools

import numpy as np
import torch

from vitscale.train.sources.images import Images


class Digits:
    """Handwritten digits, 8x8 gray, with pixels 0 to 16.

    Splits are stratified with seed 0: 997 train, 200 minival, 400 val, 200 test. The dataset does
    not identify the writers, so images by one writer may be in several splits.
    """

    splits = ("train", "minival", "val", "test")
    classes = tuple(map(str, range(10)))

    def read(self, split: str) -> Images:
        return _digits()[split]


@functools.cache
def _digits() -> dict[str, Images]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    rest, parts = np.arange(len(labels)), {}
    for name, size in (("test", 200), ("val", 400), ("minival", 200)):
        rest, parts[name] = train_test_split(
            rest, test_size=size, stratify=labels[rest], random_state=0
        )
    parts["train"] = rest
    pixels = torch.tensor(images, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    classes = torch.tensor(labels, dtype=torch.int64)
    whole = Images(classes, pixels, white=16)
    return {name: whole.select(np.sort(part)) for name, part in parts.items()}
