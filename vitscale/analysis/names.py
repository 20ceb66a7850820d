"""Names of the figures and tables of studies, for who must know them before anything heavy is imported."""

from __future__ import annotations

from vitscale.plan.study import Study

# Of studies of frozen trials. A name that is missing here costs a second and no more: then those that draw are asked.
FIGURES = {
    "edf_panels", "edf_panels_vs_best", "lr_wd_scatter", "learning_curves", "optimizer_stability",
    "optimizer_stability_copied", "training_length", "seed_histogram", "seed_sets", "seed_curves", "seed_intermediate",
    "recipe_interaction", "branches", "widths", "depths", "lr_sweep", "throughput_by_batch", "throughput_gain",
    "peak_memory", "throughput_by_resolution",
}  # fmt: skip
TABLES = {
    "edf_summary", "arm_comparison", "good_range", "stability_cells", "optimizer_gap", "optimizer_gap_copied",
    "training_length", "optimizer_gap_interaction", "training_length_interaction", "seed_statistics", "seed_normality",
    "seed_noise", "seed_correlation", "seed_power", "recipe_interaction", "published_training_length",
    "published_seed_statistics", "published_recipe_interaction", "shape_cells", "lr_sweep", "branch_differences",
    "layerscale_and_epochs", "blocks_or_width", "published_depth_vs_width", "throughput", "epoch_minutes",
    "published_throughput", "seed_epochs",
}  # fmt: skip


def refuse_unknown_names(study: Study) -> None:
    """Raises ValueError as vitscale.analysis.report.refuse_unknown does, which it asks only about what it cannot tell.

    So a plan of names that are known is made without pandas and matplotlib.
    """
    if study.adaptive or not (FIGURES.issuperset(study.figures) and TABLES.issuperset(study.tables)):
        from vitscale.analysis.report import refuse_unknown

        refuse_unknown(study)
