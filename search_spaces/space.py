"""Values that the studies of lr, wd and length share at a scale: the modules demo, fashion, cifar
and xiao2021.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from optuna.distributions import FloatDistribution

from vitscale.catalog.regnety import REGNETY


def family(model: Mapping[str, Any]) -> str:
    """The family of a model by its fields: "ViT" or "RegNetY", as in INTERVALS."""
    return "RegNetY" if model.get("model") in REGNETY else "ViT"


class Space(Protocol):
    """A module with these values; mypy compares it with this list where a study names it."""

    @property
    def RECIPE(self) -> Mapping[str, Any]:  # fields of TrainConfig that all trainings share
        ...

    @property
    def HELD_OUT(self) -> Mapping[str, Any]:
        """Fields of every training of a study that evaluates minival; none if the dataset has one.

        Studies that share trials with such a study train on the same images.
        """

    @property
    def MODELS(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def PANELS(self) -> Mapping[str, tuple[str, ...]]:  # panel of a figure -> models
        ...

    @property
    def OPTIMA(self) -> Mapping[tuple[str, str], tuple[float, float]]:
        """(model, optimizer) -> (lr, wd)."""

    @property
    def INTERVALS(self) -> Mapping[tuple[str, str], dict[str, FloatDistribution]]:
        """(family, optimizer) -> lr and wd."""


def at_optimum(space: Space, model: str = "ViT_P", optimizer: str = "adamw") -> dict[str, Any]:
    """Fields of a model with the recipe of the space, at its lr and wd of OPTIMA."""
    lr, wd = space.OPTIMA[model, optimizer]
    fields = {**space.RECIPE, **space.HELD_OUT, **space.MODELS[model]}
    return {**fields, "optimizer": optimizer, "lr": lr, "wd": wd}


def check_item(item: str, own: str, scale: str) -> None:
    """Raises ValueError for an item of a paper, other than the study's `own`, below imagenet."""
    if item != own and scale != "imagenet":
        raise ValueError(
            f"item == {own!r} unless scale is imagenet must hold, but got (item={item!r}, "
            f"scale={scale!r})"
        )
