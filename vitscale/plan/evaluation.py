"""What a trial is evaluated on after its training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from vitscale.plan.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation set and how its images are shown; what is None is as in the trial's config.

    The trial's id has no part in it: an evaluation has an id of its own, under its trial.
    """

    split: str
    dataset: str | None = None  # another one, of the same classes
    resolution: int | None = None  # pixels per side
    crop_ratio: float | None = None  # as of eval_crop_ratio

    def arguments(self, config: TrainConfig) -> dict[str, str | int | float]:
        """The split, and what differs from the config: equal evaluations have equal arguments."""
        asked = {
            "dataset": self.dataset,
            "resolution": self.resolution,
            "eval_crop_ratio": self.crop_ratio,
        }
        others = {k: v for k, v in asked.items() if v is not None and v != getattr(config, k)}
        return {"split": self.split, **others}

    def id(self, config: TrainConfig) -> str:
        """Twelve hex digits of a hash of the arguments."""
        canonical = json.dumps(self.arguments(config), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def applied(self, config: TrainConfig) -> TrainConfig:
        """The config with resolution and crop of this evaluation; its dataset stays the one that it
        was trained on. Raises ValueError for a resolution that the model cannot have.
        """
        return config.replace(
            resolution=self.resolution or config.resolution,
            eval_crop_ratio=self.crop_ratio or config.eval_crop_ratio,
        )

    @property
    def name(self) -> str:
        """For tables and metrics: "test", "val of cifar10c at 256 pixels, crop 0.9"."""
        source = f" of {self.dataset}" if self.dataset else ""
        pixels = f" at {self.resolution} pixels" if self.resolution else ""
        return f"{self.split}{source}{pixels}" + (
            f" crop {self.crop_ratio:g}" if self.crop_ratio else ""
        )
