"""Printed numbers of the papers as tables: context for ours on other data and other models, and a
target only where a table says so.

Functions without an underscore and with `published_` in their name are tables of a report. The
others place the printed numbers beside a study's own, for the drawings of figures.py.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.arm_means import means_by_set
from vitscale.analysis.columns import named, two_decimals
from vitscale.analysis.estimates import Contrast, contrast
from vitscale.analysis.questions import seeds
from vitscale.analysis.questions.recipes import interaction, recipe_cells
from vitscale.analysis.results import Results
from vitscale.analysis.stats.correlation import pearson, pearson_difference
from vitscale.analysis.stats.intervals import clopper_pearson
from vitscale.analysis.stats.spread import sampling_error
from vitscale.catalog.datasets import DATASETS, original
from vitscale.catalog.tables import table_path
from vitscale.plan.study import Study

LENGTHS = (100, 200, 400)  # epochs of Xiao et al. 2021, Table 2
FIGURE_9 = {"params_m": 0.71, "flops_g": 0.75, "acts_m": 0.93}  # its r of epoch time with a cost


def read(name: str) -> pd.DataFrame:
    """A table of vitscale/catalog/published by name, as printed: "xiao2021_table2", ..."""
    return pd.read_csv(table_path(name))


def published_training_length(results: Results) -> pd.DataFrame:
    """Xiao et al. 2021, Table 2 (ImageNet): error after 100 and 200 epochs minus that after 400.

    Differences are in points. Printed numbers of single runs, without intervals, of the recipe for
    peak performance. For ViT_P-18GF, ViT_C-4GF, ViT_C-18GF and RegNetY-1GF, 4GF and 16GF it has the
    lr and wd of Figures 2 and 3, so that their 18 errors are targets, like for like, of the trials
    at scale imagenet, which only hold 10,000 training images out. ViT_P-1GF, ViT_P-4GF and
    ViT_C-1GF have another lr and wd there.
    """
    table = read("xiao2021_table2")
    longest = table["error_400_epochs_pct"]
    deltas = {
        f"delta_{epochs}_points": (table[f"error_{epochs}_epochs_pct"] - longest).round(1)
        for epochs in (100, 200)
    }
    return table[["model", "error_400_epochs_pct"]].assign(**deltas)


def runtime_correlations() -> pd.DataFrame:
    """Xiao et al. 2021, Table 2: Pearson's r of minutes per epoch with three costs of 23 models.

    One row per cost: r with Fisher's 95% interval, r of Figure 9 (`printed`), which has more
    models, and r of activations minus r, with an interval bootstrapped over models. The models are
    no random sample: intervals say how much r depends on which of them are there.
    """
    table = read("xiao2021_table2")
    minutes, acts = (table[name].to_numpy(dtype=float) for name in ("epoch_time_min", "acts_m"))
    rows = []
    for name, printed in FIGURE_9.items():
        cost = table[name].to_numpy(dtype=float)
        row = {"cost": name, "n": len(table), "printed": printed}
        row |= named("r", pearson(minutes, cost))
        if name != "acts_m":
            row |= named("acts_minus_r", pearson_difference(minutes, (acts, cost)))
        rows.append(row)
    return pd.DataFrame(rows)


def published_seed_statistics(results: Results) -> pd.DataFrame:
    """H. Touvron's thesis, 2022, Figure 6.7 (ResNet-50, recipe A2, 100 seeds, ImageNet), as errors.

    The thesis prints mean, sd, min, max and seed 0 as accuracies with two decimals; the rest is
    computed from them. `one_run_sampling_points` is the binomial standard error of one run on the
    test set. The thesis gives the number of images of val and v2; the 46,837 images of real are
    those with a label in Beyer et al. 2020.
    """
    table = read("thesis_seed_statistics")
    table["images"] = table["evaluation"].map(DATASETS["imagenet"].evals)
    mean, sd = 100 - table["mean_top1_pct"], table["sd_points"]
    worst, best, zero = (100 - table[f"{name}_top1_pct"] for name in ("min", "max", "seed_0"))
    sampling = [
        sampling_error(error, num) for error, num in zip(mean, table["images"], strict=True)
    ]
    result = table[["evaluation", "images", "n"]].assign(
        mean_error_pct=mean,
        sd_points=sd,
        standard_error_points=sd / np.sqrt(table["n"]),
        min_error_pct=best,
        max_error_pct=worst,
        min_z=(best - mean) / sd,
        max_z=(worst - mean) / sd,
        seed_0_error_pct=zero,
        seed_0_z=(zero - mean) / sd,
        one_run_sampling_points=sampling,
    )
    return two_decimals(result)


def published_finetuning(results: Results) -> pd.DataFrame:
    """Touvron et al. 2022, Table 5 (ImageNet): error of ViT-S, B and L after fine-tuning at 384
    pixels, by what was trained, and the difference from all weights with the same optimizer, in
    points.

    Single runs, without intervals; the paper names a standard deviation of 0.1 points.
    """
    table = read("touvron2022_table5")
    for name in ("val", "v2"):
        table[f"{name}_error_pct"] = (100 - table.pop(f"{name}_top1_pct")).round(1)
        full = table[table["part"] == "full"].set_index(["model", "optimizer"])
        beside = full.loc[pd.MultiIndex.from_frame(table[["model", "optimizer"]])]
        minus = table[f"{name}_error_pct"].to_numpy() - beside[f"{name}_error_pct"].to_numpy()
        table[f"{name}_minus_full_points"] = minus.round(1)
    return table


def published_arms(results: Results) -> pd.DataFrame:
    """One row per arm and evaluation set of which the source of the study prints an error: that
    error, the mean of ours with its 95% interval, and ours minus the printed one, in points.

    Printed numbers are of single runs, without an interval, so the difference has none either.
    Ours are over the runs that finished, each arm at its own lr.
    """
    by_set = results.study.printed.items()
    printed = [(arm, name, error) for name, errors in by_set for arm, error in errors.items()]
    table = pd.DataFrame(printed, columns=["arm", "evaluation", "printed_error_pct"])
    table = table.merge(results.once(means_by_set), how="left")
    return table.assign(minus_printed_points=table["mean"] - table["printed_error_pct"])


def published_depth_vs_width(results: Results) -> pd.DataFrame:
    """Touvron et al. 2022 (ImageNet): errors of Figures 1 to 3 and Tables 1 to 3, and for each
    parallel shape the difference from the sequential one with as many pairs in the same figure or
    table, in points.

    Values of the figures are a third party's reading of the charts, to about 0.1. Single runs
    without intervals, except B12x1 of Table 3 (5 runs, sd 0.06 on val and 0.26 on v2). At imagenet
    the models of Figures 1 to 3 and Tables 2 and 3 are those of the plan, by a recipe that the text
    leaves open in part; on other data the numbers are context, not a target.
    """
    table = shape_errors()
    key = ["source", "size", "pairs", "layerscale", "epochs"]
    errors = ["val_error_pct", "v2_error_pct"]
    sequential = table[table["branches"] == 1].set_index(key)[errors]
    beside = sequential.reindex(pd.MultiIndex.from_frame(table[key])).to_numpy(dtype=float)
    minus = (table[errors].to_numpy(dtype=float) - beside).round(1)
    minus[table["branches"] == 1] = np.nan
    table = table.assign(
        val_minus_sequential_points=minus[:, 0], v2_minus_sequential_points=minus[:, 1]
    )
    return table


def published_recipe_interaction(results: Results) -> pd.DataFrame:
    """H. Touvron's thesis, 2022, section 6.3.4 (ImageNet): error of ResNet-50 minus DeiT-S under
    the recipes A2 and T2.

    The thesis prints one accuracy per cell. The intervals use the sd of 100 seeds of ResNet-50
    under A2 for all four cells. That is our assumption, so the intervals are only a guide.
    """
    error = (
        100
        - read("thesis_recipe_architecture").set_index(["evaluation", "recipe", "architecture"])[
            "top1_pct"
        ]
    )
    spread = read("thesis_seed_statistics").set_index("evaluation")["sd_points"]
    rows = []
    for name in ("val", "v2"):
        runs = [
            np.array([error[name, recipe, model]])
            for recipe in ("A2", "T2")
            for model in ("ResNet-50", "DeiT-S")
        ]
        sd = float(spread[name])
        for recipe, pair in (("A2", runs[:2]), ("T2", runs[2:])):
            simple = contrast(pair, [1, -1], sd=[sd, sd])
            rows.append(
                {
                    "evaluation": name,
                    "effect": f"ResNet-50 − DeiT-S under {recipe}",
                    **_estimate(simple),
                }
            )
        rows.append(
            {"evaluation": name, "effect": "interaction", **_estimate(interaction(*runs, sd=sd))}
        )
    return two_decimals(pd.DataFrame(rows))


def _estimate(result: Contrast) -> dict[str, float]:
    return {
        **named("difference_points", (result.estimate, result.low, result.high)),
        "z": result.estimate / result.error,
    }


# ---- beside a study's own numbers, for figures


def is_imagenet(study: Study) -> bool:
    """Whether the study is on the papers' data, so that their numbers need no axis of their own."""
    return original(study.trials[0].config.dataset) == "imagenet"


def length_deltas() -> pd.DataFrame:
    """Xiao et al. 2021: error minus that after 400 epochs, in points, by model and epochs.

    `source`: Table 2 for 100 to 400 epochs, section 5.1 for 50.
    """
    table = read("xiao2021_table2")
    longest = table["error_400_epochs_pct"]
    of_lengths = [
        pd.DataFrame(
            {
                "model": table["model"],
                "epochs": float(epochs),
                "delta_points": table[f"error_{epochs}_epochs_pct"] - longest,
                "source": "Table 2",
            }
        )
        for epochs in LENGTHS
    ]
    text = read("xiao2021_text").query("quantity == 'delta_points'")
    of_text = pd.DataFrame(
        {
            "model": text["model"],
            "epochs": text["epochs"].astype(float),
            "delta_points": text["low"],
            "source": "section 5.1",
        }
    )
    return pd.concat([*of_lengths, of_text], ignore_index=True)


def optimizer_errors() -> pd.DataFrame:
    """Xiao et al. 2021: error in percent by model, optimizer and epochs, from Tables 2 and 3.

    Table 2 is with AdamW for ViTs and with SGD for RegNetY.
    """
    table = read("xiao2021_table2")
    best = np.where(table["family"] == "RegNetY", "sgd", "adamw")
    columns = ["source", "model", "family", "optimizer", "epochs", "error_pct"]
    of_lengths = [
        table.assign(
            source="Table 2",
            optimizer=best,
            epochs=epochs,
            error_pct=table[f"error_{epochs}_epochs_pct"],
        )[columns]
        for epochs in LENGTHS
    ]
    early = read("xiao2021_table3").dropna(subset="model")
    of_optimizers = [
        early.assign(
            source="Table 3", family="", optimizer=name, error_pct=early[f"error_{name}_pct"]
        )[columns]
        for name in ("adamw", "sgd")
    ]
    return pd.concat([*of_lengths, *of_optimizers], ignore_index=True)


def optimizer_gaps() -> pd.DataFrame:
    """Xiao et al. 2021: error with SGD minus that with AdamW in points, from section 5.2 and Table
    3, from the largest to the smallest; `low` is NaN where a single number is printed.
    """
    text = read("xiao2021_text").query("quantity == 'gap_points'")
    table = read("xiao2021_table3").dropna()
    labels = [
        *(f"{row['model']} {row['relation']} {row['said']}" for _, row in text.iterrows()),
        *(f"{row['model']} {row['gap_points']:g}" for _, row in table.iterrows()),
    ]
    gaps = pd.DataFrame(
        {
            "label": labels,
            "low": [*text["low"], *([np.nan] * len(table))],
            "high": [*text["high"], *table["gap_points"]],
        }
    )
    return gaps.sort_values("high", ascending=False, kind="stable", ignore_index=True)


def shares_within_4_points() -> pd.DataFrame:
    """Xiao et al. 2021, caption of Figure 5: shares of `n` draws with SGD, in percent, by model.

    `low` and `high` are the exact 95% interval of Clopper and Pearson where the caption says
    "about"; NaN for an upper bound.
    """
    table = read("xiao2021_text").query("quantity == 'within_4_points_pct'").set_index("model")
    share, n = table["high"].astype(float), int(table["n"].iloc[0])
    low, high = clopper_pearson(np.round(share.to_numpy() / 100 * n), n)
    is_bound = table["relation"] == "less than"
    ends = pd.DataFrame({"low": 100 * low, "high": 100 * high}, index=table.index).mask(is_bound)
    return ends.assign(share=share, n=n, is_bound=is_bound)


def shape_errors() -> pd.DataFrame:
    """Touvron et al. 2022: errors in percent by figure or table and shape; epochs are 300 unless
    400 is stated.
    """
    figures = read("touvron2022_figures1_3")
    depth = figures["pairs"] // figures["branches"]
    figures = figures.assign(source="Figure " + figures["figure"].astype(str), depth=depth)
    tables = [read(f"touvron2022_table{i}").assign(source=f"Table {i}") for i in (1, 2, 3)]
    table = pd.concat([figures, *tables], ignore_index=True)
    table = table.fillna({"branches": 1, "epochs": 300, "n": 1}).astype(
        {"branches": int, "epochs": int, "n": int}
    )
    for name in ("val", "v2"):
        table[f"{name}_error_pct"] = (100 - table[f"{name}_top1_pct"]).round(2)
    table = table.assign(
        pairs=table["depth"] * table["branches"], layerscale=table["layerscale"] == 1
    )
    columns = "source size depth branches pairs layerscale epochs n val_error_pct v2_error_pct"
    return table[columns.split()]


def seed_errors(results: Results) -> pd.DataFrame:
    """The thesis, Figure 6.7, in percent, by arm and evaluation set of ours.

    `set` is the set of the thesis: the one of the same name; on other data val for our first set
    and v2 for others. `shift` is our mean minus that of the thesis, 0 on ImageNet. Only rows of
    sets that the thesis has, and of arms with a finished seed.
    """
    study = results.study
    table = read("thesis_seed_statistics").set_index("evaluation")
    ours = results.once(seeds.seed_statistics)
    ours = ours[ours["mean"].notna()]
    rows = []
    for arm, name, own in zip(ours["arm"], ours["evaluation"], ours["mean"], strict=True):
        source = _source_set(study, name)
        if source in table.index:
            row = table.loc[source]
            mean, sd = 100 - row["mean_top1_pct"], row["sd_points"]
            rows.append(
                {
                    "arm": arm,
                    "evaluation": name,
                    "set": source,
                    "mean": mean,
                    "below": mean - sd,
                    "above": mean + sd,
                    "min": 100 - row["max_top1_pct"],
                    "max": 100 - row["min_top1_pct"],
                    "seed_0": 100 - row["seed_0_top1_pct"],
                    "shift": 0.0 if is_imagenet(study) else own - mean,
                }
            )
    names = ["arm", "evaluation", "set", "mean", "below", "above", "min", "max", "seed_0", "shift"]
    return pd.DataFrame(rows, columns=names)


def seed_ranges(ours: pd.DataFrame) -> pd.DataFrame:
    """The thesis: ranges over seeds as lengths in points around our mean, for the rows of an arm in
    the table seed_epochs.

    The first row is at epoch 100 of 300 (Figure 6.9, "as large as" 10 points), the other at the
    last epoch (Figure 6.7), where `low` and `high` are its lowest and highest seed; `epoch` is the
    one of ours at the same fraction of the training.
    """
    text = read("thesis_epoch_variability").dropna(subset="value").iloc[0]
    val = read("thesis_seed_statistics").set_index("evaluation").loc["val"]
    worst, best = (val["mean_top1_pct"] - val[f"{end}_top1_pct"] for end in ("min", "max"))
    epochs, mean = (ours[name].to_numpy(dtype=float) for name in ("epoch", "mean"))
    epoch = float(text["epoch"] / text["of_epochs"] * epochs[-1])
    middle, half = float(np.interp(epoch, epochs, mean)), text["value"] / 2
    label = f"ImageNet-val, epoch {text['epoch']:g} of {text['of_epochs']:g}:\nup to "
    rows = [
        (epoch, middle - half, middle + half, f"{label}{text['value']:g} points"),
        (
            *(epochs[-1], mean[-1] + best, mean[-1] + worst),
            f"grey: ImageNet-val, last epoch, {worst - best:.2f} points",
        ),
    ]
    return pd.DataFrame(rows, columns=["epoch", "low", "high", "label"])


def recipe_errors(results: Results) -> pd.DataFrame:
    """The thesis, section 6.3.4: errors of ResNet-50 and DeiT-S under A2 and T2, in percent, by
    evaluation set of ours.

    `shift` is the mean of our cells minus that of theirs, 0 on ImageNet. Only rows of sets on which
    the thesis has them and a run of ours finished.
    """
    table = read("thesis_recipe_architecture")
    table = table.assign(error_pct=100 - table["top1_pct"]).rename(columns={"evaluation": "set"})
    table = table[table["recipe"].isin(("A2", "T2"))]
    parts = []
    for name, ours in results.once(recipe_cells).groupby("evaluation", sort=False):
        theirs = table[table["set"] == _source_set(results.study, str(name))]
        own = ours["mean"]
        if len(theirs) and own.notna().any():
            shift = 0.0 if is_imagenet(results.study) else own.mean() - theirs["error_pct"].mean()
            parts.append(theirs.assign(evaluation=name, shift=shift))
    return pd.concat(parts, ignore_index=True) if parts else table.iloc[:0].assign(evaluation="")


def _source_set(study: Study, name: str) -> str:
    """The set of the thesis that is drawn behind one of ours: the one of the same name; on other
    data v2 behind all but the first.
    """
    first = next(iter(estimates.evaluations(study)))
    return name if is_imagenet(study) or name == first else "v2"
