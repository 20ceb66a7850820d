"""The tables of studies of repeats: stability of optimizers and lengths, seeds, interactions."""

from __future__ import annotations

from vitscale.analysis.published import tables as published
from vitscale.analysis.repeats import arms, bins, interaction, mistakes, seeds, stability

TABLES = (
    arms.arm_means,
    stability.stability_cells,
    stability.optimizer_gap,
    stability.optimizer_gap_copied,
    stability.training_length,
    stability.optimizer_gap_interaction,
    stability.training_length_interaction,
    seeds.seed_statistics,
    seeds.seed_normality,
    seeds.seed_noise,
    mistakes.seed_spread,
    mistakes.agreement,
    seeds.seed_correlation,
    seeds.seed_power,
    seeds.seed_epochs,
    bins.seed_bins,
    interaction.recipe_interaction,
    interaction.recipe_cells,
    published.published_training_length,
    published.published_seed_statistics,
    published.published_recipe_interaction,
)
