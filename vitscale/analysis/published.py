"""Printed numbers of the papers as context for ours: other data, other models, never a target.

Tables show them beside ours. With a study's `published` set, figures draw them behind ours as well:
grey, labelled with author, figure and data, in no legend and no table of ours. If their errors are
far from ours, they are shifted together and get their own axis with the same scale as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vitscale.analysis.repeats import estimates, seeds
from vitscale.analysis.repeats.estimates import Contrast, contrast
from vitscale.analysis.repeats.interaction import interaction
from vitscale.analysis.results import Results
from vitscale.analysis.stats.intervals import clopper_pearson
from vitscale.catalog.tables import table_path
from vitscale.plan.study import Study

Side = Literal["left", "center", "right"]
Level = Literal["bottom", "center", "top"]
GREY = "#777777"
SIZE = 7  # of text, in points
LINE: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "zorder": 1.5}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.0, "markersize": 5}
BAR: dict[str, Any] = {"color": GREY, "alpha": 0.45, "solid_capstyle": "butt", "zorder": 1.4}
THESIS = "H. Touvron's thesis, 2022"
_SPREAD = "mean ± sd, lowest to highest, star: seed 0"
_SHIFTED = " Shifted so that the means agree; same scale as our axis."
# Figure -> what is drawn behind it; what its note adds on the papers' data; and on other data.
SOURCES = {
    "training_length": (
        "Xiao et al. 2021, ImageNet, same marks as ours: joined, Table 2, with its own lr and "
        "wd; alone, section 5.1 on Figure 2. One run each, no interval.",
        "",
        " Their smallest models; their 400 epochs are aligned with our longest training.",
    ),
    "optimizer_stability": (
        "Xiao et al. 2021, ImageNet: gaps, on their own axis; those of section 5.2 are given in "
        "words, for larger models and longer schedules; those of 4GF are from Table 3, 50 epochs. "
        "One run each.",
        (
            " Alone: Table 3. Dotted: Table 2, AdamW for ViTs and SGD for RegNetY, with its own "
            "lr and wd."
        ),
        "",
    ),
    "edf_panels": (
        "Xiao et al. 2021, ImageNet, caption of Figure 5, SGD: shares of 64 draws within 4 "
        "points, in words. Whisker: 95%, computed by us for 38 of 64.",
        "",
        "",
    ),
    "seed_histogram": (
        f"{THESIS}, ImageNet, Figure 6.7 (ResNet-50, A2, n=100): {_SPREAD}.",
        "",
        _SHIFTED,
    ),
    "seed_sets": (
        (
            f"{THESIS}, ImageNet, Figure 6.7 (ResNet-50, A2, n=100): {_SPREAD}; no correlation is "
            "printed."
        ),
        "",
        _SHIFTED,
    ),
    "seed_curves": (
        f"{THESIS}, ImageNet-val, Figures 6.7 and 6.9 (ResNet-50, A2, n=100): lowest to highest, "
        "as lengths around our mean at the same fraction of the training; intermediate levels are "
        "not printed.",
        "",
        "",
    ),
    "recipe_interaction": (
        f"{THESIS}, ImageNet, section 6.3.4, recipes A2 and T2: one run per cell, no interval.",
        "",
        _SHIFTED,
    ),
}
SOURCES["optimizer_stability_copied"] = SOURCES["optimizer_stability"]


def read(name: str) -> pd.DataFrame:
    """A table of vitscale/catalog/published by name, as printed: "xiao2021_table2", ..."""
    return pd.read_csv(table_path(name))


def published_training_length(results: Results) -> pd.DataFrame:
    """Xiao et al. 2021, Table 2 (ImageNet): error after 100 and 200 epochs minus that after 400.

    Differences are in points. Printed numbers, one run each, no interval; with the recipe for peak
    performance and not that of Figure 2.
    """
    table = read("xiao2021_table2")
    longest = table["error_400_epochs_pct"]
    deltas = {
        f"delta_{epochs}_points": (table[f"error_{epochs}_epochs_pct"] - longest).round(1)
        for epochs in (100, 200)
    }
    return table[["model", "error_400_epochs_pct"]].assign(**deltas)


def published_seed_statistics(results: Results) -> pd.DataFrame:
    """H. Touvron's thesis, 2022, Figure 6.7 (ResNet-50, recipe A2, 100 seeds, ImageNet), as errors.

    Printed are mean, sd, min, max and seed 0, as accuracies with two decimals; all else is computed
    from them. one_run_sampling_points is the binomial standard error of one run on the test set.
    The thesis gives the images of val and v2; the 46,837 of real are not in it: so many have a
    label in Beyer et al. 2020.
    """
    table = read("thesis_seed_statistics")
    table["images"] = table["evaluation"].map(seeds.NUM_IMAGES["imagenet"])
    mean, sd = 100 - table["mean_top1_pct"], table["sd_points"]
    worst, best, zero = (100 - table[f"{name}_top1_pct"] for name in ("min", "max", "seed_0"))
    sampling = [
        seeds.sampling_error(error, num) for error, num in zip(mean, table["images"], strict=True)
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
    result.attrs["decimals"] = 2
    return result


def published_recipe_interaction(results: Results) -> pd.DataFrame:
    """Thesis of H.

    Touvron, 2022, section 6.3.4 (ImageNet): error of ResNet-50 minus DeiT-S.

    Under recipes A2 and T2. One accuracy per cell is printed. The intervals use the sd of 100 seeds
    of ResNet-50 under A2 for all four cells, which is our assumption; they are only a guide.
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
                    **_shown(simple),
                }
            )
        rows.append(
            {"evaluation": name, "effect": "interaction", **_shown(interaction(*runs, sd=sd))}
        )
    table = pd.DataFrame(rows)
    table.attrs["decimals"] = 2
    return table


def _shown(result: Contrast) -> dict[str, float]:
    return {
        "difference_points": result.estimate,
        "difference_points_low": result.low,
        "difference_points_high": result.high,
        "z": result.estimate / result.error,
    }


# ---- drawn behind ours


def note(study: Study, name: str, drawn: bool = False) -> str:
    """The part of a figure's note about the papers' numbers; "" unless the study shows them."""
    if not study.published:
        return ""
    text = "The papers print no number for what this figure shows."
    if drawn:
        source, on_imagenet, elsewhere = SOURCES[name]
        text = f"Grey, behind: {source}{on_imagenet if is_imagenet(study) else elsewhere}"
    return f"\n{text}"


def is_imagenet(study: Study) -> bool:
    """Whether the study is on the papers' data, so that their numbers need no axis of their own."""
    return study.trials[0].config.dataset.split("-")[0] == "imagenet"


def draw_published_training_length(
    ax: Axes, models: Sequence[str], lengths: Sequence[int], markers: Sequence[str]
) -> bool:
    """Xiao et al. 2021: Table 2 after 100 and 200 epochs relative to 400, and section 5.1 for 50.

    Differences are in points; x is the base-2 logarithm of epochs, with their 400 epochs at our
    longest schedule. For a model that is not in the paper, its smallest model of that family is
    drawn. Returns whether anything was drawn, as do all of these functions.
    """
    table, text = read("xiao2021_table2").set_index("model"), read("xiao2021_text")
    shift = np.log2(max(lengths)) - np.log2(400)
    known = [
        (model, _named(model, table.index), marker)
        for model, marker in zip(models, markers, strict=False)
    ]
    known = [found for found in known if found[1]]
    for model, name, marker in known:
        errors = table.loc[
            name, [f"error_{epochs}_epochs_pct" for epochs in (100, 200, 400)]
        ].to_numpy(dtype=float)
        x = np.log2([100, 200, 400]) + shift
        ax.plot(x, errors - errors[-1], marker=marker, **HOLLOW, **LINE)
        said = text[(text["model"] == name) & (text["quantity"] == "delta_points")]
        ax.plot(
            np.log2(said["epochs"].astype(float)) + shift, said["low"], marker, **HOLLOW, **LINE
        )
        if name != model:
            first = (
                (np.log2(50) + shift, said["low"].iloc[0])
                if len(said)
                else (x[0], errors[0] - errors[-1])
            )
            _say(ax, *first, name, (6, 1))
    if known and shift:
        own = _own_axis(ax, "x", shift, "epochs on ImageNet, Xiao et al. 2021").xaxis
        own.set_major_locator(FixedLocator(list(np.log2([50, 100, 200, 400]))))
        own.set_major_formatter(FuncFormatter(lambda x, _: f"{2**x:.0f}"))
    return bool(known)


def draw_published_optimizer_stability(ax: Axes, models: Sequence[str], is_last: bool) -> bool:
    """Xiao et al. 2021: errors of Tables 2 and 3 for models
    of their names; in the last panel their gaps.
    """
    table, early = (
        read("xiao2021_table2").set_index("model"),
        read("xiao2021_table3").set_index("model"),
    )
    for name in [model for model in models if model in table.index]:
        family = str(table.loc[name, "family"])
        errors = table.loc[
            name, [f"error_{epochs}_epochs_pct" for epochs in (100, 200, 400)]
        ].to_numpy(dtype=float)
        ax.plot(
            np.log2([100, 200, 400]),
            errors,
            "v" if family == "RegNetY" else "^",
            linestyle=":",
            **HOLLOW,
            **LINE,
        )
        _say(ax, np.log2(100), errors[0], family, (4, 5))
    for column, marker in (("error_adamw_pct", "^"), ("error_sgd_pct", "v")):
        known = early[column][[model for model in models if model in early.index]]
        ax.plot(np.full(len(known), np.log2(50)), known, marker, **HOLLOW, **LINE)
    if is_last:
        _gaps(ax)
    return is_last


def _gaps(ax: Axes) -> None:
    """Gaps of Table 3 and section 5.2 (in words), on inset axes in the upper right."""
    said, table = (
        read("xiao2021_text").query("quantity == 'gap_points'"),
        read("xiao2021_table3").dropna(),
    )
    bars = [
        (f"{row['model']} {row['relation']} {row['said']}", row["low"], row["high"])
        for _, row in said.iterrows()
    ]
    bars += [
        (f"{row['model']} {row['gap_points']:g}", np.nan, row["gap_points"])
        for _, row in table.iterrows()
    ]
    inset = ax.inset_axes((0.6, 0.44, 0.39, 0.37), zorder=0.5)
    for place, (words, low, high) in enumerate(sorted(bars, key=lambda bar: -bar[2])):
        inset.plot([0.0 if np.isnan(low) else low, high], [place, place], linewidth=7, **BAR)
        inset.text(
            0.2 if high > 4 else high + 0.3,
            place,
            words,
            fontsize=SIZE,
            va="center",
            color="#444444",
        )
    inset.set(xlim=(0, 10.5), ylim=(len(bars) - 0.5, -0.5), yticks=[])
    inset.set_title(
        "Xiao et al. 2021, ImageNet:\nSGD − AdamW (points)", fontsize=SIZE, color=GREY, loc="right"
    )
    _make_grey(inset)


def draw_published_edf(ax: Axes, study: Study, arms: Sequence[str]) -> bool:
    """Xiao et al. 2021, caption of Figure 5: shares within 4 points of the best, with SGD, of the
    18GF models.

    Only in the panel of that optimizer, at imagenet in that of those models.
    """
    said = read("xiao2021_text").query("quantity == 'within_4_points_pct'").set_index("model")
    optimizers = {trial.config.optimizer for trial in study.trials if trial.arm.name in arms}
    theirs = [
        arm.name for arm in study.arms.values() if arm.factors.get("model") in set(said.index)
    ]
    if optimizers != {"sgd"} or (theirs and not set(theirs) & set(arms)):
        return False
    highs, n = said["high"].astype(float).to_dict(), int(said["n"].iloc[0])
    about, most = highs["ViT_C-18GF"], highs["ViT_P-18GF"]
    low, high = (float(end) for end in clopper_pearson(np.round(about / 100 * n), n))
    ax.errorbar(
        [4],
        [about / 100],
        [[about / 100 - low], [high - about / 100]],
        elinewidth=1,
        capsize=2.5,
        marker="D",
        **HOLLOW,
        **LINE,
    )
    ax.plot([4, 4], [0, most / 100], linewidth=5, **BAR)
    _say(ax, 4, about / 100, f"ViT_C-18GF\nabout {about:g}%", (6, -12))
    _say(ax, 4, most / 200, f"ViT_P-18GF\nless than {most:g}%", (6, 0))
    return True


def draw_published_seed_histogram(ax: Axes, study: Study, name: str, values: np.ndarray) -> bool:
    """Thesis, Figure 6.7: mean, sd, extremes and seed 0 on a strip above our histogram.

    `values`: (n,) errors of ours in percent.
    """
    theirs = _seed_errors(study, name)
    if theirs is None or not len(values):
        return False
    shift = 0.0 if is_imagenet(study) else values.mean() - theirs["mean"]
    low, high = ax.get_ylim()
    ax.set_ylim(low, low + 1.16 * (high - low))
    _strip(ax, theirs, shift, 0.955)
    if shift:
        _own_axis(ax, "x", shift, f"error on ImageNet-{theirs['set']} (%), thesis")
    return True


def draw_published_seed_sets(
    ax: Axes, study: Study, pair: tuple[str, str], values: Sequence[np.ndarray]
) -> bool:
    """Thesis, Figure 6.7: mean, sd, extremes and seed 0 on both sets, as a cross.

    `values` are ours.
    """
    found = [_seed_errors(study, name) for name in pair]
    if found[0] is None or found[1] is None or not len(values[0]):
        return False
    theirs = found[0], found[1]
    shifts = [
        0.0 if is_imagenet(study) else ours.mean() - of["mean"]
        for ours, of in zip(values, theirs, strict=True)
    ]
    (x, y), (dx, dy) = theirs, shifts
    for width, looks, ends in ((1.0, LINE, ("min", "max")), (5.0, BAR, ("below", "above"))):
        looks = {**looks, "linewidth": width}
        ax.plot([x[end] + dx for end in ends], [y["mean"] + dy] * 2, **looks)
        ax.plot([x["mean"] + dx] * 2, [y[end] + dy for end in ends], **looks)
    ax.plot([x["seed_0"] + dx], [y["seed_0"] + dy], "*", **{**HOLLOW, "markersize": 9}, **LINE)
    if any(shifts):
        _own_axis(ax, "x", dx, f"error on ImageNet-{x['set']} (%), thesis")
        _own_axis(ax, "y", dy, f"error on ImageNet-{y['set']} (%), thesis")
    return True


def draw_published_seed_curves(line: Sequence[Axes], table: pd.DataFrame) -> bool:
    """The thesis: the range over seeds at epoch 100 of 300 (Figure 6.9, "as large as" 10 points)
    and at the last one.

    `table`: mean errors of ours by epoch. Ranges are lengths in points around our mean, at that
    share of the training.
    """
    if table.empty:
        return False
    said = read("thesis_epoch_variability").dropna(subset="value").iloc[0]
    val = read("thesis_seed_statistics").set_index("evaluation").loc["val"]
    epochs, mean = (
        table["epoch"].to_numpy(dtype=float),
        table["mean_error_pct"].to_numpy(dtype=float),
    )
    early = float(said["epoch"] / said["of_epochs"] * epochs[-1])
    at = float(np.interp(early, epochs, mean))
    line[0].plot([early] * 2, [at - said["value"] / 2, at + said["value"] / 2], linewidth=5, **BAR)
    _say(
        line[0],
        early,
        at + said["value"] / 2,
        (
            f"ImageNet-val, epoch {said['epoch']:g} of {said['of_epochs']:g}:\nup to "
            f"{said['value']:g} points"
        ),
        (4, 4),
        va="bottom",
    )
    worst, best = (val["mean_top1_pct"] - val[f"{end}_top1_pct"] for end in ("min", "max"))
    line[1].plot([epochs[-1]] * 2, [mean[-1] + best, mean[-1] + worst], linewidth=5, **BAR)
    line[1].text(
        0.98,
        0.96,
        f"grey: ImageNet-val, last epoch, {worst - best:.2f} points",
        fontsize=SIZE,
        color=GREY,
        ha="right",
        va="top",
        transform=line[1].transAxes,
    )
    return True


def draw_published_recipe_interaction(
    ax: Axes, study: Study, name: str, ours: pd.DataFrame
) -> bool:
    """The thesis, section 6.3.4: ResNet-50 and DeiT-S under A2 and T2.

    `ours`: mean errors of our cells on that set. On other data theirs are shifted so that the means
    of all cells meet.
    """
    table = read("thesis_recipe_architecture")
    table = table[table["evaluation"] == _their_set(study, name)]
    if table.empty or ours["mean_error_pct"].isna().all():
        return False
    errors = (
        100 - table.pivot(index="architecture", columns="recipe", values="top1_pct")[["A2", "T2"]]
    )
    shift = 0.0 if is_imagenet(study) else ours["mean_error_pct"].mean() - errors.to_numpy().mean()
    for architecture, marker in (("ResNet-50", "o"), ("DeiT-S", "s")):
        y = errors.loc[architecture].to_numpy(dtype=float) + shift
        ax.plot([0, 1], y, marker=marker, linestyle="--", **HOLLOW, **LINE)
        _say(ax, 1, y[1], architecture, (14, 0))
    top = ax.secondary_xaxis("top")
    top.set_xticks([0, 1], ["A2", "T2"])
    _make_grey(top)
    if shift:
        _own_axis(ax, "y", shift, f"error on ImageNet-{table['evaluation'].iloc[0]} (%), thesis")
    return True


def _named(model: str, known: pd.Index) -> str:
    """The paper's model of that name, or the smallest of that family; empty if it has none."""
    return next((name for name in (model, f"{model}-1GF") if name in known), "")


def _their_set(study: Study, name: str) -> str:
    """The set of the thesis that stands behind one of ours: that
    of its name; on other data v2 behind a second one.
    """
    first = next(iter(estimates.evaluations(study)))
    return name if is_imagenet(study) or name == first else "v2"


def _seed_errors(study: Study, name: str) -> dict[str, Any] | None:
    """Errors in percent of the thesis' Figure 6.7 on the set that
    stands behind ours; None if it has no such set.
    """
    table = read("thesis_seed_statistics").set_index("evaluation")
    theirs = _their_set(study, name)
    if theirs not in table.index:
        return None
    row = table.loc[theirs]
    mean, sd = 100 - row["mean_top1_pct"], row["sd_points"]
    return {
        "set": theirs,
        "mean": mean,
        "below": mean - sd,
        "above": mean + sd,
        "min": 100 - row["max_top1_pct"],
        "max": 100 - row["min_top1_pct"],
        "seed_0": 100 - row["seed_0_top1_pct"],
    }


def _strip(ax: Axes, theirs: dict[str, Any], shift: float, height: float) -> None:
    """Extremes, mean ± sd and seed 0 on a line; `height` is a share of the axes."""
    edge = ax.get_xaxis_transform()
    ax.plot(
        [theirs["min"] + shift, theirs["max"] + shift], [height] * 2, "|-", transform=edge, **LINE
    )
    ax.plot(
        [theirs["below"] + shift, theirs["above"] + shift],
        [height] * 2,
        transform=edge,
        linewidth=6,
        **BAR,
    )
    ax.plot([theirs["mean"] + shift], [height], "|", transform=edge, markersize=9, **LINE)
    ax.plot(
        [theirs["seed_0"] + shift],
        [height],
        "*",
        transform=edge,
        **{**HOLLOW, "markersize": 7},
        **LINE,
    )


def _own_axis(ax: Axes, which: Literal["x", "y"], shift: float, label: str) -> Any:
    """An axis at the top or right whose numbers are ours minus `shift`."""
    functions = (lambda ours: ours - shift, lambda theirs: theirs + shift)
    if which == "x":
        own = ax.secondary_xaxis("top", functions=functions)
    else:
        own = ax.secondary_yaxis("right", functions=functions)
    axis = own.xaxis if which == "x" else own.yaxis
    axis.set_label_text(label)
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    _make_grey(own)
    return own


def _make_grey(ax: Any) -> None:
    """Letters, ticks and edges of axes of theirs."""
    ax.tick_params(colors=GREY, labelsize=SIZE, length=2)
    ax.grid(False)
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set(color=GREY, fontsize=SIZE)
    for spine in ax.spines.values():
        spine.set_edgecolor(GREY)


def _say(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    offset: tuple[float, float],
    ha: Side = "left",
    va: Level = "center",
) -> None:
    ax.annotate(
        text,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        fontsize=SIZE,
        color=GREY,
        ha=ha,
        va=va,
        zorder=1.6,
    )
