"""Facts of the datasets that a plan needs before any image is read: sizes, channels, classes."""

from typing import NamedTuple


class DatasetFacts(NamedTuple):
    """Counts of a dataset as the trainer splits it."""

    num_train: int  # images of the training split
    num_classes: int
    channels: int
    source: str


DATASETS = {
    "digits": DatasetFacts(
        997, 10, 1,
        "scikit-learn's copy of the UCI Optical Recognition of Handwritten Digits test set: 1,797 images of "
        "8x8 pixels, split here into 997 train, 200 minival, 400 val and 200 test, stratified, seed 0",
    ),
    "cifar10": DatasetFacts(49_500, 10, 3, "Krizhevsky 2009; the last 1% of its 50,000 training images are minival"),
    "cifar100": DatasetFacts(49_500, 100, 3, "Krizhevsky 2009; the last 1% of its 50,000 training images are minival"),
    # Russakovsky et al. 2015. The papers train on all of train; tuning on a minival is a choice of a tuning study.
    "imagenet": DatasetFacts(1_281_167, 1000, 3, "ILSVRC 2012 as in the papers: train 1,281,167, val 50,000"),
}  # fmt: skip
