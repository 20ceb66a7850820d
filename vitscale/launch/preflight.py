"""The data of a start, looked at before Ray starts: once
for all trials that read the same images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitscale.plan.config import TrainConfig
from vitscale.plan.data import EMBEDDED, check_embedded, check_readable
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome

# What decides which images a training reads.
READ = (
    "dataset",
    "num_images",
    "num_classes",
    "channels",
    "minival_images",
    "minival_rule",
    "subset_images",
    "split_seed",
)
# the fact of a done trial that tells its images from others of the same name
DIGEST = "data_digest"


class Data:
    """What lies at a data root, as far as a study reads it.

    Looking lists the images of a dataset, reads their labels and decodes ten images: milliseconds
    for a prepared set, CIFAR's files per second, parquet shards their column of labels, class
    folders a listing of every file, which for ImageNet takes some ten seconds on a local disk and
    minutes on a slow network file system.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.digests: dict[tuple[Any, ...], str] = {}

    def look(self, study: Study) -> None:
        """Raises ValueError for data that are not there or that a config of the study cannot be
        trained on.

        Such as another number of images, other classes or channels, no such split, or sizes that
        the crop cannot take.
        """
        for key, configs in self._by_images(trial.config for trial in study.trials):
            check_readable(configs[0].dataset, self.root)
            if configs[0].dataset in EMBEDDED:
                check_embedded(configs)
                continue
            from vitscale.train.data import examine  # imports torch

            self.digests[key] = examine(configs, Path(self.root))

    def compare(self, study: Study, known: Mapping[str, Outcome]) -> None:
        """Raises ValueError if done trials of the study were trained on other images.

        Trials of older versions have no digest among their facts, and are believed.
        """
        digests = {trial_id: outcome.facts.get(DIGEST) for trial_id, outcome in known.items()}
        done = [trial.config for trial in study.trials if digests.get(trial.config.id)]
        for key, configs in self._by_images(done):
            now = self.digests.get(key)
            other = [config for config in configs if now and digests[config.id] != now]
            if other:
                then = digests[other[0].id]
                raise ValueError(
                    f"the images of {other[0].dataset} must be those that the trials of this "
                    f"study were trained on, but got others (digest {now:.8}; of {len(other)} "
                    f"done trials {then:.8}; data_root={self.root!r}); name the root of those "
                    "trials, or give these images a name of their own"
                )

    def _by_images(
        self, configs: Iterable[TrainConfig]
    ) -> Iterator[tuple[tuple[Any, ...], list[TrainConfig]]]:
        """Configs that read the same training images, with
        what says which; a profile reads none.
        """
        found: dict[tuple[Any, ...], list[TrainConfig]] = {}
        for config in configs:
            if not isinstance(config, ProfileConfig):
                found.setdefault(tuple(getattr(config, name) for name in READ), []).append(config)
        yield from found.items()
