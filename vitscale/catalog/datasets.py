"""Facts of the datasets that a plan needs before any image is read: sizes, channels, classes."""

from __future__ import annotations

import re
from typing import NamedTuple


class DatasetFacts(NamedTuple):
    """Published counts of a dataset."""

    num_train: int  # images of the training set
    num_classes: int
    channels: int
    evals: dict[str, int]  # images of its evaluation sets
    # of each channel of the training images, in [0, 1]: what the trainer normalises by
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    own_minival: int = 0  # images of a minival that belongs to the dataset; num_train leaves it out


DATASETS = {
    "digits": DatasetFacts(
        997, 10, 1, {"val": 400, "test": 200}, (0.30391467,), (0.37546375,),
        (
            "scikit-learn's copy of the UCI Optical Recognition of Handwritten Digits test set: "
            "1,797 images of 8x8 pixels, split here into 997 train, 200 minival, 400 val and 200 "
            "test, stratified, seed 0"
        ),
        own_minival=200,
    ),
    # The official test sets are called val here: what is reported, and never tuned on.
    "cifar10": DatasetFacts(
        50_000, 10, 3, {"val": 10_000}, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
        "Krizhevsky 2009: train 50,000, test 10,000 images of 32x32 pixels",
    ),
    "cifar100": DatasetFacts(
        50_000, 100, 3, {"val": 10_000}, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
        "Krizhevsky 2009: train 50,000, test 10,000 images of 32x32 pixels",
    ),
    # the test set is called val here too; `minival_images` holds a second set out of train
    "fashion_mnist": DatasetFacts(
        60_000, 10, 1, {"val": 10_000}, (0.28604060,), (0.35302424,),
        "Xiao, Rasul and Vollgraf 2017: train 60,000, test 10,000 grey images of 28x28 pixels",
    ),
    # v2: Recht et al. 2019, matched frequency. real: Beyer et al. 2020, new labels for those of the
    # 50,000 images of val to which they give one.
    "imagenet": DatasetFacts(
        1_281_167, 1000, 3, {"val": 50_000, "v2": 10_000, "real": 46_837},
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
        "ILSVRC 2012 (Russakovsky et al. 2015): train 1,281,167, val 50,000",
    ),
}  # fmt: skip


def original(name: str) -> str:
    """The dataset that one of this name was prepared from: "imagenet-256" is imagenet prepared at
    256 pixels per side.

    The name is a config's field and a folder's, and so has the size in it.
    """
    return name if name in DATASETS else re.sub(r"-\d+$", "", name)


def dataset_facts(name: str) -> DatasetFacts | None:
    """Facts of a dataset by name, or None; a prepared one has those of its original."""
    return DATASETS.get(original(name))
