"""Stems that are compared, and those of Xiao et al. 2021, appendices A and B."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces import xiao2021
from search_spaces.winners import LABELS

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scale:
    """Stems that are compared with several seeds, or one where a paper has one."""

    base: Mapping[str, Any]
    arms: Mapping[str, Mapping[str, Any]]  # arm -> fields
    num_seeds: int
    first_seed: int
    notes: str
    pairs: Pairs = ()
    source: str = "Touvron et al. 2022, Table 7"
    margin: float | None = None
    metric: str = "val_ema_error_pct"
    more_seeds: Mapping[str, int] = field(default_factory=dict)  # arms with more than num_seeds
    models: Mapping[str, str] = field(default_factory=dict)  # arm -> model, of several arms
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    figures: tuple[str, ...] = ("comparison_forest",)
    tables: tuple[str, ...] = ("pair_differences", "arm_means")


@dataclass(frozen=True)
class Draws:
    """Models whose errors are distributed over draws of lr and wd, with AdamW."""

    panels: Mapping[str, tuple[str, ...]]
    source: str
    notes: str


def against(stems: tuple[str, ...], *baselines: str) -> Pairs:
    return tuple((stem, baseline) for baseline in baselines for stem in stems)


def printed(arms: Mapping[str, Mapping[str, Any]], where: str, notes: str, **fields: Any) -> Scale:
    """What Xiao et al. 2021 print: one run per arm, at the optima of Table 4."""
    return Scale(
        base={**xiao2021.RECIPE, **xiao2021.HELD_OUT},
        arms=arms,
        num_seeds=1,
        first_seed=0,
        source=f"Xiao et al. 2021, {where}",
        notes=f"{notes} One run per arm, as in the paper. {xiao2021.NOTES}",
        **fields,
    )


ITEMS: dict[str, Scale | Draws] = {
    "xiao_table3": printed(
        {
            f"{model} {label}": xiao2021.at_optimum(model, optimizer)
            for model in xiao2021.TABLE_3
            for optimizer, label in LABELS.items()
        },
        "appendix A, Table 3",
        "lr and wd of S1 to S4 are tuned in the paper and not printed: those of ViT_C-4GF stand "
        "in.",
        models={f"{m} {label}": m for m in xiao2021.TABLE_3 for label in LABELS.values()},
        printed={"val": xiao2021.TABLE_3_ERRORS},
        figures=("optimizer_stability",),
        tables=("optimizer_gap", "optimizer_gap_interaction", "stability_cells"),
    ),
    "xiao_figure7": Draws(
        xiao2021.FIGURE_7,
        "appendix A, Figure 7",
        "The number of draws is that of section 5.3. The references of (bn) and (ln) have the lr "
        "and wd of ViT_P-4GF and ViT_C-4GF: their own are not printed.",
    ),
    "xiao_figure7_table": printed(
        {
            model: {**xiao2021.at_optimum(model, "adamw"), "epochs": 100}
            for models in xiao2021.FIGURE_7.values()
            for model in models
        },
        "appendix A, Figure 7, right",
        "lr and wd of (bn) and (ln) are the best of 50 epochs in the paper and not printed: those "
        "of ViT_P-4GF and ViT_C-4GF stand in.",
        printed={"val": xiao2021.FIGURE_7_ERRORS},
        pairs=tuple((changed, plain) for plain, changed in xiao2021.FIGURE_7.values()),
    ),
    "xiao_figure8": Draws(
        xiao2021.FIGURE_8,
        "appendix B, Figure 8",
        "Deeper models are the 4GF ones with 48 and 47 blocks. Their references have the lr and "
        "wd of those: their own are not printed.",
    ),
}
