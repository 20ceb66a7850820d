"""Winners of a search for lr and wd, as data with provenance: tuned/<scale>.json, written by
`vitscale adopt`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LABELS = {"adamw": "AdamW", "sgd": "SGD"}  # as a config says it -> as an arm says it
Optima = Mapping[tuple[str, str], tuple[float, float]]  # (model, optimizer) -> (lr, wd)


def tuned(scale: str) -> dict[str, Any] | None:
    """The result of a search at this scale: its study, how it searched, and the winner of each
    arm; None without one.
    """
    path = Path(__file__).parent / "tuned" / f"{scale}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def optima(
    adopted: Mapping[str, Any], models: Iterable[str] = ()
) -> dict[tuple[str, str], tuple[float, float]]:
    """(model, optimizer) -> (lr, wd) of the winner.

    `models` are those of the scale. In a file from before winners named their model and
    optimizer, they are read from the names that `studies/tune_lr_wd.py` gives its arms. Raises
    ValueError for any other arm, or one whose space is not of lr and wd.
    """
    cells = {f"{m} {label}": (m, optimizer) for m in models for optimizer, label in LABELS.items()}
    result = {}
    for arm, winner in adopted["winners"].items():
        cell = (winner["model"], winner["optimizer"]) if winner.get("model") else cells.get(arm)
        if cell is None:
            raise ValueError(
                "a winner must name its model and optimizer, or be of a model of the scale, but "
                f"got (arm={arm!r}); remove the winners file of {adopted['search']}, or take it "
                "from version control, and adopt the search again"
            )
        values = winner["values"]
        if set(values) != {"lr", "wd"}:
            raise ValueError(
                f"a winner must have lr and wd and nothing else, but got (arm={arm!r}, {values})"
            )
        result[cell] = (values["lr"], values["wd"])
    return result


def found_or_chosen(
    scale: str, models: Iterable[str], chosen: Mapping[str, tuple[float, float]]
) -> tuple[Optima, str]:
    """(lr and wd of each model and optimizer, how they were found in a sentence for notes): winners
    of the search at this scale once they are adopted, and until then `chosen`, one (lr, wd) for
    each optimizer, so that no arm is tuned better than another.
    """
    adopted = tuned(scale)
    if adopted:
        return optima(adopted, models), in_words(adopted)
    values = ", ".join(f"{LABELS[name]} {lr:g} and {wd:g}" for name, (lr, wd) in chosen.items())
    return {(model, name): pair for name, pair in chosen.items() for model in models}, (
        f"lr and wd are round values chosen before any training ({values}), and no search "
        "confirmed them. "
    )


def good_values(winners: Optima, optimizer: str) -> tuple[float, float]:
    """One (lr, wd) for all models with an optimizer: geometric means of their winners, to two
    digits.

    As in Xiao et al. 2021, Table 4, where the models of a family share an interval, so that they
    are compared over the same draws.
    """
    pairs = [pair for (_, name), pair in winners.items() if name == optimizer]
    means = (
        math.exp(math.fsum(map(math.log, values)) / len(values))
        for values in zip(*pairs, strict=True)
    )
    lr, wd = (float(f"{mean:.2g}") for mean in means)
    return lr, wd


def in_words(adopted: Mapping[str, Any]) -> str:
    """How the winners were found, in a sentence, for the notes of the studies that use them."""
    first = next(iter(adopted["winners"].values()))
    return (
        "lr and wd are the winners of a search on minival (studies/tune_lr_wd.py: "
        f"{adopted['search']}; {first['num_points']} points for each model and optimizer, "
        f"{first['num_seeds']} seeds each, {adopted['epochs']} epochs); the best of so many points "
        "is lucky, too. "
    )
