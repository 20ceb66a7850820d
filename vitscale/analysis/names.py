"""Names of the figures and tables of each kind, available without heavy imports."""

from __future__ import annotations

from vitscale.plan.kinds import check_use
from vitscale.plan.study import Study

# A name that is missing here costs a second and no more: then the kind itself is asked.
NAMES: dict[str, frozenset[str]] = {
    "distribution": frozenset(
        [
            "edf_panels",
            "edf_panels_vs_best",
            "lr_wd_scatter",
            "learning_curves",
            "edf_summary",
            "arm_comparison",
            "good_range",
            "edf_curves",
            "edf_curves_vs_best",
            "tuning_budget",
            "tuning_crossings",
        ]
    ),
    "repeats": frozenset(
        [
            "learning_curves",
            "arm_means",
            "optimizer_stability",
            "optimizer_stability_copied",
            "training_length",
            "seed_histogram",
            "seed_sets",
            "seed_curves",
            "seed_intermediate",
            "recipe_interaction",
            "stability_cells",
            "optimizer_gap",
            "optimizer_gap_copied",
            "optimizer_gap_interaction",
            "training_length_interaction",
            "seed_statistics",
            "seed_normality",
            "seed_noise",
            "seed_spread",
            "agreement",
            "seed_correlation",
            "seed_power",
            "seed_epochs",
            "seed_bins",
            "recipe_cells",
            "published_training_length",
            "published_seed_statistics",
            "published_recipe_interaction",
        ]
    ),
    "shapes": frozenset(
        [
            "learning_curves",
            "branches",
            "widths",
            "depths",
            "lr_sweep",
            "arm_means",
            "shape_cells",
            "branch_differences",
            "layerscale_and_epochs",
            "blocks_or_width",
            "published_depth_vs_width",
        ]
    ),
    "scaling": frozenset(
        [
            "learning_curves",
            "error_by_scale",
            "error_by_compute",
            "scaling_cells",
            "scaling_fit",
            "scaling_curves",
            "scaling_forecast",
            "scaling_forecast_far",
            "scaling_frontier",
            "scaling_crossing",
        ]
    ),
    "profile": frozenset(
        [
            "throughput_by_batch",
            "throughput_gain",
            "peak_memory",
            "throughput_by_resolution",
            "throughput",
            "epoch_minutes",
            "published_throughput",
        ]
    ),
}


def check_known_names(study: Study) -> None:
    """Raises ValueError as vitscale.analysis.kinds.check does, which it calls only if necessary.

    So a plan whose names are all listed here is made without pandas and matplotlib. Also for what
    the kind would ignore, of which a stored study is still reported.
    """
    check_use(study)
    if not NAMES.get(study.kind, frozenset()).issuperset((*study.figures, *study.tables)):
        from vitscale.analysis.kinds import check

        check(study)
