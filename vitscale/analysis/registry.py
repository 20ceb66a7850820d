"""All tables and figures, by kind and module: the one list of them, readable without pandas and
matplotlib, so that a plan is checked in a moment.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# kind -> module of vitscale.analysis -> names of its functions
Registry = Mapping[str, Mapping[str, tuple[str, ...]]]
TABLES: Registry = {
    "distribution": {
        "distribution.tables": ("edf_summary", "arm_comparison", "good_range"),
        "distribution.curves": ("edf_curves", "edf_curves_vs_best"),
        "distribution.budget": ("tuning_budget", "tuning_crossings"),
    },
    "repeats": {
        "repeats.arms": ("arm_means",),
        "comparisons": ("pair_differences", "factorial_effects", "factorial_means"),
        "repeats.stability": (
            "stability_cells",
            "optimizer_gap",
            "optimizer_gap_copied",
            "training_length",
            "optimizer_gap_interaction",
            "training_length_interaction",
        ),
        "repeats.seeds": (
            "seed_statistics",
            "seed_normality",
            "seed_noise",
            "seed_correlation",
            "seed_power",
            "seed_epochs",
        ),
        "repeats.mistakes": ("seed_spread", "agreement"),
        "repeats.bins": ("seed_bins",),
        "repeats.interaction": ("recipe_interaction", "recipe_cells"),
        "published.tables": (
            "published_training_length",
            "published_seed_statistics",
            "published_recipe_interaction",
            "published_finetuning",
        ),
    },
    "shapes": {
        "repeats.arms": ("arm_means",),
        "comparisons": ("pair_differences", "factorial_effects", "factorial_means"),
        "shapes.tables": (
            "shape_cells",
            "lr_sweep",
            "branch_differences",
            "layerscale_and_epochs",
            "blocks_or_width",
            "published_depth_vs_width",
        ),
    },
    "scaling": {
        "scaling.tables": (
            "scaling_cells",
            "scaling_fit",
            "scaling_curves",
            "scaling_forecast",
            "scaling_forecast_far",
            "scaling_frontier",
            "scaling_crossing",
        ),
        "scaling.compute": ("scaling_optimum", "scaling_crossing_at_cost"),
        "comparisons": ("pair_differences",),
    },
    "profile": {"profile.tables": ("throughput", "epoch_minutes", "published_throughput")},
    "search": {"search.tables": ("search_best", "search_importance")},
}
FIGURES: Registry = {
    "distribution": {
        "distribution.figures": (
            "edf_panels",
            "edf_panels_vs_best",
            "lr_wd_scatter",
            "learning_curves",
            "tuning_budget",
        ),
    },
    "repeats": {
        "repeats.figures": (
            "optimizer_stability",
            "optimizer_stability_copied",
            "training_length",
            "seed_histogram",
            "seed_sets",
            "seed_curves",
            "seed_intermediate",
            "recipe_interaction",
            "agreement",
        ),
        "distribution.figures": ("learning_curves",),
        "displays": ("comparison_forest", "factorial_grid"),
    },
    "shapes": {
        "shapes.figures": ("branches", "widths", "depths", "lr_sweep"),
        "distribution.figures": ("learning_curves",),
        "displays": ("comparison_forest", "factorial_grid"),
    },
    "scaling": {
        "scaling.figures": ("error_by_scale", "error_by_compute"),
        "distribution.figures": ("learning_curves",),
    },
    "profile": {
        "profile.figures": (
            "throughput_by_batch",
            "throughput_gain",
            "peak_memory",
            "throughput_by_resolution",
        ),
    },
    "search": {"search.figures": ("search_history", "search_slices", "search_contour")},
}


def load(registry: Registry, kind: str) -> dict[str, Callable[..., Any]]:
    """The functions of a kind by name, as in a study's `tables` and `figures`."""
    return {
        name: getattr(importlib.import_module(f"vitscale.analysis.{module}"), name)
        for module, names in registry[kind].items()
        for name in names
    }
