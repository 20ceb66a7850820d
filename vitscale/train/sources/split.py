"""Held-out images and training subsets, as a function of labels and split_seed only."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import assert_never

import numpy as np

from vitscale.plan.config import TrainConfig

MINIVAL, SUBSET = range(2)  # independent random streams of one split_seed


def training_rows(labels: np.ndarray, config: TrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """(rows of train, rows of minival) of a training set with labels (N,), both ascending.

    In a "stratified" minival and in a subset, each class has its proportional number of images,
    rounded down or up by the quota method. Of two subsets with the same split_seed and minival, the
    larger contains the smaller.
    """
    match config.minival_rule:
        case "last":
            minival = np.arange(len(labels) - config.minival_images, len(labels))
        case "stratified":
            minival = np.sort(
                balanced_order(labels, config.minival_images, [config.split_seed, MINIVAL])
            )
        case never:
            assert_never(never)
    rest = np.setdiff1d(np.arange(len(labels)), minival)
    if config.subset_images:
        rest = rest[
            np.sort(balanced_order(labels[rest], config.subset_images, [config.split_seed, SUBSET]))
        ]
    return rest, minival


def balanced_order(labels: np.ndarray, num: int, seed: Sequence[int]) -> np.ndarray:
    """Rows (num,) of which every prefix contains each class in proportion, to within one image.

    The order within a class is random.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    sizes = np.bincount(labels)
    by_class = np.split(
        shuffled[np.argsort(labels[shuffled], kind="stable")], np.cumsum(sizes)[:-1]
    )
    members = [iter(rows.tolist()) for rows in by_class]
    return np.array([next(members[label]) for label in seats(sizes.tolist(), num)], np.int64)


def seats(sizes: Sequence[int], num: int) -> Iterator[int]:
    """The class that each of `num` seats goes to.

    Among classes below their quota, it is the one with the earliest deadline, by the quota method
    of Balinski and Young 1975: after n seats, a class with m of M images has n * m / M seats,
    rounded down or up, and the allocation of n seats is a prefix of that of n + 1.
    """
    total, taken = sum(sizes), [0] * len(sizes)
    # (first seat that the quota allows, class)
    waiting = [(1, label) for label, size in enumerate(sizes) if size]
    ready: list[tuple[float, int]] = []  # (deadline as a fraction of all seats, class)
    for seat in range(1, num + 1):
        while waiting and waiting[0][0] <= seat:
            _, label = heapq.heappop(waiting)
            heapq.heappush(ready, ((taken[label] + 1) / sizes[label], label))
        _, label = heapq.heappop(ready)
        yield label
        taken[label] += 1
        heapq.heappush(waiting, (taken[label] * total // sizes[label] + 1, label))
