"""Printed numbers of the papers, as context for ours: other data, other models, and never a target."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pandas as pd

from vitscale.analysis import seeds
from vitscale.analysis.interaction import interaction
from vitscale.analysis.repeats import Contrast, contrast
from vitscale.plan.study import Study


def read(name: str) -> pd.DataFrame:
    """A table of search_spaces/published by name, as printed: "xiao2021_table2", "thesis_seed_statistics", ..."""
    with (files("search_spaces") / "published" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def published_training_length(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """Xiao et al. 2021, Table 2 (ImageNet): error after 100 and 200 epochs minus that after 400, in points.

    Printed numbers, one run each, no interval; the recipe of peak performance, and not that of Figure 2.
    """
    table = read("xiao2021_table2")
    longest = table["error_400_epochs_pct"]
    deltas = {
        f"delta_{epochs}_points": (table[f"error_{epochs}_epochs_pct"] - longest).round(1) for epochs in (100, 200)
    }
    return table[["model", "error_400_epochs_pct"]].assign(**deltas)


def published_seed_statistics(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """H. Touvron's thesis, 2022, Figure 6.7 (ResNet-50, recipe A2, 100 seeds, ImageNet), as errors.

    Printed are mean, sd, min, max and seed 0, as accuracies with two decimals; all else is computed from them.
    sampling_error_points is the binomial standard error of the test set.
    """
    table = read("thesis_seed_statistics")
    mean, sd = 100 - table["mean_top1_pct"], table["sd_points"]
    worst, best, zero = (100 - table[f"{name}_top1_pct"] for name in ("min", "max", "seed_0"))
    sampling = [seeds.sampling_error(error, num) for error, num in zip(mean, table["images"], strict=True)]
    result = table[["evaluation", "images", "n"]].assign(
        mean_error_pct=mean, sd_points=sd, standard_error_points=sd / np.sqrt(table["n"]), min_error_pct=best,
        max_error_pct=worst, min_z=(best - mean) / sd, max_z=(worst - mean) / sd, seed_0_error_pct=zero,
        seed_0_z=(zero - mean) / sd, sampling_error_points=sampling,
    )  # fmt: skip
    result.attrs["decimals"] = 2
    return result


def published_recipe_interaction(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """H. Touvron's thesis, 2022, section 6.3.4 (ImageNet): error of ResNet-50 minus DeiT-S under recipes A2 and T2.

    Printed are single accuracies a cell. The intervals borrow the sd of 100 seeds of ResNet-50 under A2 for all four
    cells, an assumption of ours; so they are no more than a guide.
    """
    error = 100 - read("thesis_recipe_architecture").set_index(["evaluation", "recipe", "architecture"])["top1_pct"]
    spread = read("thesis_seed_statistics").set_index("evaluation")["sd_points"]
    rows = []
    for name in ("val", "v2"):
        runs = [np.array([error[name, recipe, model]]) for recipe in ("A2", "T2") for model in ("ResNet-50", "DeiT-S")]
        sd = float(spread[name])
        for recipe, pair in (("A2", runs[:2]), ("T2", runs[2:])):
            simple = contrast(pair, [1, -1], sd=[sd, sd])
            rows.append({"evaluation": name, "effect": f"ResNet-50 − DeiT-S under {recipe}", **_shown(simple)})
        rows.append({"evaluation": name, "effect": "interaction", **_shown(interaction(*runs, sd=sd))})
    table = pd.DataFrame(rows)
    table.attrs["decimals"] = 2
    return table


def _shown(result: Contrast) -> dict[str, float]:
    return {"difference_points": result.estimate, "difference_points_low": result.low,
            "difference_points_high": result.high, "z": result.estimate / result.error}  # fmt: skip
