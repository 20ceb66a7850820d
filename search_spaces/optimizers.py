"""Five optimizers at one budget of tuning: values of studies/tune_optimizers.py and optimizers.py.

AdamW and SGD have the winners of studies/tune_lr_wd.py. The other three are searched in the same
way: as many points, seeds and epochs, the same sampler, and intervals as wide as AdamW's. All
values were chosen before any training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import FloatDistribution

from search_spaces import cifar, demo, fashion
from search_spaces.space import Space
from search_spaces.winners import in_words, optima, tuned
from search_spaces.xiao2021 import interval

SPACES: dict[str, Space] = {"demo": demo, "fashion": fashion, "cifar": cifar}
# label -> fields; beside lr and wd, optimizers have the values of their papers or of timm
FIELDS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "SGD": {"optimizer": "sgd"},
    # Chen et al. 2023, algorithm 2 and section 5: lr 3 to 10 times lower than AdamW's, wd as much
    # higher
    "Lion": {"optimizer": "lion", "beta2": 0.99},
    "NAdamW": {"optimizer": "timm:nadamw"},
    # steps of the size of AdamW's (Liu et al. 2025, section 2.2), which updates the rest at this lr
    "Muon": {"optimizer": "timm:muon", "momentum": 0.95},
}
# (lowest and highest lr of NAdamW and Muon, those of Lion), as wide as AdamW's in tune_lr_wd.py
_RATES = {
    "demo": ((2.5e-4, 3.2e-2), (5e-5, 6.4e-3)),
    "fashion": ((2.5e-4, 3.2e-2), (5e-5, 6.4e-3)),
    "cifar": ((1e-4, 1e-2), (2e-5, 2e-3)),
}
# lr and wd before there is a search: round values, as those of search_spaces/cifar.py
_CHOSEN = {"cifar": {"Lion": (2e-4, 0.5), "NAdamW": (1e-3, 0.1), "Muon": (1e-3, 0.1)}}


def searched(scale: str) -> dict[str, dict[str, FloatDistribution]]:
    """Label -> the intervals of its search."""
    rates, of_lion = _RATES[scale]
    as_adamw = interval(rates, (0.01, 1.0))
    return {"Lion": interval(of_lion, (0.05, 5.0)), "NAdamW": as_adamw, "Muon": as_adamw}


def winners_file(scale: str) -> str:
    """Where `vitscale adopt` writes the winners of the search, from the root of the project."""
    return f"search_spaces/tuned/optimizers_{scale}.json"


def tuned_values(scale: str) -> tuple[dict[tuple[str, str], tuple[float, float]], str]:
    """((model, label) -> lr and wd, how they were found): of the search, or without any search
    those that were chosen. Raises ValueError if there are none, or some are of a search.
    """
    adopted = tuned(f"optimizers_{scale}")
    if adopted is None and scale in _CHOSEN and tuned(scale) is None:
        chosen = {label: SPACES[scale].OPTIMA["ViT_P", label.lower()] for label in ("AdamW", "SGD")}
        chosen |= _CHOSEN[scale]
        values = ", ".join(f"{label} {lr:g} and {wd:g}" for label, (lr, wd) in chosen.items())
        words = f"lr and wd are round values chosen before any training ({values})."
        return {(m, label): chosen[label] for m in SPACES[scale].MODELS for label in FIELDS}, words
    if adopted is None:
        raise ValueError(
            f"the winners of studies/tune_optimizers.py --scale {scale} must be adopted first "
            f"(vitscale adopt tune_optimizers-{scale}), but got none ({winners_file(scale)})"
        )
    space, name = SPACES[scale], {fields["optimizer"]: label for label, fields in FIELDS.items()}
    pairs: Mapping[tuple[str, str], tuple[float, float]] = {**space.OPTIMA, **optima(adopted)}
    return {(model, name[kind]): values for (model, kind), values in pairs.items()}, in_words(
        adopted
    )
