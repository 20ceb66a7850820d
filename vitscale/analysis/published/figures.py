"""Drawings of the papers' printed numbers behind our figures, in studies with `published` set.

Grey, labelled with author, figure and data, in no legend and no table of ours. If their errors are
far from ours, they are shifted together and get their own axis with the same scale as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vitscale.analysis.published import tables
from vitscale.analysis.results import Results
from vitscale.plan.study import Study

Side = Literal["left", "center", "right"]
Level = Literal["bottom", "center", "top"]
GREY = "#777777"
SIZE = 7  # of text, in points
OPTIMIZERS = {"adamw": "^", "sgd": "v"}  # markers, as in Xiao et al. 2021, Figure 3
LINE: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "zorder": 1.5}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.0, "markersize": 5}
BAR: dict[str, Any] = {"color": GREY, "alpha": 0.45, "solid_capstyle": "butt", "zorder": 1.4}
THESIS = "H. Touvron's thesis, 2022"
_SPREAD = "mean ± sd, lowest to highest, star: seed 0"
_SAME_LR = (
    " Table 2 has the lr and wd of our trials for RegNetY, ViT_P-18GF, ViT_C-4GF and ViT_C-18GF, "
    "and others for ViT_P-1GF, ViT_P-4GF and ViT_C-1GF."
)
_SHIFTED = " Shifted so that the means agree; same scale as our axis."
# Figure -> what is drawn behind it; what its note adds on the papers' data; and on other data.
SOURCES = {
    "training_length": (
        "Xiao et al. 2021, ImageNet, same marks as ours: joined, Table 2; alone, section 5.1 on "
        "Figure 2. One run each, no interval.",
        _SAME_LR,
        " Table 2 has its own lr and wd. Their smallest models; their 400 epochs are aligned with "
        "our longest training.",
    ),
    "optimizer_stability": (
        "Xiao et al. 2021, ImageNet: gaps, on their own axis; those of section 5.2 are given in "
        "words, for larger models and longer schedules; those of 4GF are from Table 3, 50 epochs. "
        "One run each.",
        " Alone: Table 3. Dotted: Table 2, AdamW for ViTs and SGD for RegNetY." + _SAME_LR,
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
        (
            f"{THESIS}, ImageNet, section 6.3.4, recipes A2 and T2: as far as stated one run per "
            "cell, no interval."
        ),
        "",
        _SHIFTED,
    ),
}
SOURCES["optimizer_stability_copied"] = SOURCES["optimizer_stability"]


def note(study: Study, name: str, drawn: bool = False) -> str:
    """The part of a figure's note about the papers' numbers; "" unless the study shows them."""
    if not study.published:
        return ""
    text = "The papers print no number for what this figure shows."
    if drawn:
        source, on_imagenet, elsewhere = SOURCES[name]
        text = f"Grey, behind: {source}{on_imagenet if tables.is_imagenet(study) else elsewhere}"
    return f"\n{text}"


def printed_note(study: Study, marks: str) -> str:
    """What marks of `Study.printed` are; they are drawn only if the study shows them."""
    return f"\nGrey {marks}: printed numbers of {study.source}; single runs, no interval."


def draw_printed_pairs(ax: Axes, study: Study, table: pd.DataFrame) -> bool:
    """The printed difference of each pair whose arms have printed errors on its set, below ours."""
    drawn = False
    for y, row in enumerate(table.to_dict("records") if study.published else ()):
        printed = study.printed.get(row["evaluation"], {})
        if {row.get("a"), row.get("b")} <= printed.keys():
            ax.plot(printed[row["a"]] - printed[row["b"]], y + 0.25, "D", **HOLLOW, **LINE)
            drawn = True
    return drawn


def draw_printed_line(ax: Axes, study: Study, name: str, x: pd.Series, marker: str) -> None:
    """The printed errors on an evaluation set of arms at the places x, joined."""
    y = pd.Series(study.printed.get(name, {}), dtype=float).reindex(x.index)
    if study.published and y.notna().any():
        ax.plot(x[y.notna()], y.dropna(), marker, linestyle="-", **HOLLOW, **LINE)


def draw_published_training_length(
    ax: Axes, models: Sequence[str], lengths: Sequence[int], markers: Sequence[str]
) -> bool:
    """Xiao et al. 2021: Table 2 after 100 and 200 epochs relative to 400, and section 5.1 for 50.

    Differences are in points; x is the base-2 logarithm of epochs, with their 400 epochs at our
    longest schedule. For a model that is not in the paper, its smallest model of that family is
    drawn. Returns whether anything was drawn, as do all of these functions.
    """
    deltas = tables.length_deltas()
    shift = np.log2(max(lengths)) - np.log2(400)
    curves = [
        (model, _source_model(model, deltas["model"]), marker)
        for model, marker in zip(models, markers, strict=False)
    ]
    curves = [curve for curve in curves if curve[1]]
    for model, name, marker in curves:
        of_model = deltas[deltas["model"] == name]
        for source, linestyle in (("Table 2", "-"), ("section 5.1", "none")):
            part = of_model[of_model["source"] == source]
            x = np.log2(part["epochs"].to_numpy(dtype=float)) + shift
            y = part["delta_points"].to_numpy(dtype=float)
            ax.plot(x, y, marker=marker, linestyle=linestyle, **HOLLOW, **LINE)
        if name != model:
            first = of_model.sort_values("epochs").iloc[0]
            _annotate(ax, np.log2(first["epochs"]) + shift, first["delta_points"], name, (6, 1))
    if curves and shift:
        own = _own_axis(ax, "x", shift, "epochs on ImageNet, Xiao et al. 2021").xaxis
        own.set_major_locator(FixedLocator(list(np.log2([50, 100, 200, 400]))))
        own.set_major_formatter(FuncFormatter(lambda x, _: f"{2**x:.0f}"))
    return bool(curves)


def draw_published_optimizer_stability(ax: Axes, models: Sequence[str], is_last: bool) -> bool:
    """Xiao et al. 2021: errors of Tables 2 and 3 for the models of these names; in the last panel
    the gaps between optimizers.
    """
    table = tables.optimizer_errors()
    early = table[(table["source"] == "Table 3") & table["model"].isin(models)]
    lengths = table[(table["source"] == "Table 2") & table["model"].isin(models)]
    for _, of_model in lengths.groupby("model"):
        row, errors = of_model.iloc[0], of_model["error_pct"].to_numpy(dtype=float)
        x = np.log2(of_model["epochs"].to_numpy(dtype=float))
        ax.plot(x, errors, OPTIMIZERS[row["optimizer"]], linestyle=":", **HOLLOW, **LINE)
        _annotate(ax, x[0], errors[0], row["family"], (4, 5))
    for name, marker in OPTIMIZERS.items():
        errors = early.loc[early["optimizer"] == name, "error_pct"].to_numpy(dtype=float)
        ax.plot(np.full(len(errors), np.log2(50)), errors, marker, **HOLLOW, **LINE)
    if is_last:
        _gaps(ax)
    return is_last


def _gaps(ax: Axes) -> None:
    """Gaps of Table 3 and section 5.2 (in words), on inset axes in the upper right."""
    gaps = tables.optimizer_gaps()
    inset = ax.inset_axes((0.6, 0.44, 0.39, 0.37), zorder=0.5)
    for place, (label, low, high) in enumerate(gaps.itertuples(index=False)):
        inset.plot([0.0 if np.isnan(low) else low, high], [place, place], linewidth=7, **BAR)
        x = 0.2 if high > 4 else high + 0.3
        inset.text(x, place, label, fontsize=SIZE, va="center", color="#444444")
    inset.set(xlim=(0, 10.5), ylim=(len(gaps) - 0.5, -0.5), yticks=[])
    inset.set_title(
        "Xiao et al. 2021, ImageNet:\nSGD − AdamW (points)", fontsize=SIZE, color=GREY, loc="right"
    )
    _make_grey(inset)


def draw_published_edf(ax: Axes, study: Study, arms: Sequence[str]) -> bool:
    """Xiao et al. 2021, caption of Figure 5: shares within 4 points of the best, with SGD, of the
    18GF models.

    Drawn in the panel of that optimizer; at imagenet only in that of those models.
    """
    table = tables.shares_within_4_points()
    optimizers = {trial.config.optimizer for trial in study.trials if trial.arm.name in arms}
    same = [arm.name for arm in study.arms.values() if arm.factors.get("model") in table.index]
    if optimizers != {"sgd"} or (same and not set(same) & set(arms)):
        return False
    for model, row in table.iterrows():
        y = row["share"] / 100
        if row["is_bound"]:
            ax.plot([4, 4], [0, y], linewidth=5, **BAR)
            _annotate(ax, 4, y / 2, f"{model}\nless than {row['share']:g}%", (6, 0))
            continue
        ends = [[y - row["low"] / 100], [row["high"] / 100 - y]]
        ax.errorbar([4], [y], ends, elinewidth=1, capsize=2.5, marker="D", **HOLLOW, **LINE)
        _annotate(ax, 4, y, f"{model}\nabout {row['share']:g}%", (6, -12))
    return True


def draw_published_seed_histogram(ax: Axes, results: Results, arm: str, name: str) -> bool:
    """Thesis, Figure 6.7: mean, sd, extremes and seed 0 on a strip above our histogram."""
    row = _seed_row(results, arm, name)
    if row is None:
        return False
    low, high = ax.get_ylim()
    ax.set_ylim(low, low + 1.16 * (high - low))
    _strip(ax, row, 0.955)
    if row["shift"]:
        _own_axis(ax, "x", row["shift"], f"error on ImageNet-{row['set']} (%), thesis")
    return True


def draw_published_seed_sets(ax: Axes, results: Results, arm: str, pair: tuple[str, str]) -> bool:
    """Thesis, Figure 6.7: mean, sd, extremes and seed 0 on both sets, as a cross."""
    x, y = (_seed_row(results, arm, name) for name in pair)
    if x is None or y is None:
        return False
    dx, dy = x["shift"], y["shift"]
    for width, style, ends in ((1.0, LINE, ("min", "max")), (5.0, BAR, ("below", "above"))):
        style = {**style, "linewidth": width}
        ax.plot([x[end] + dx for end in ends], [y["mean"] + dy] * 2, **style)
        ax.plot([x["mean"] + dx] * 2, [y[end] + dy for end in ends], **style)
    ax.plot([x["seed_0"] + dx], [y["seed_0"] + dy], "*", **{**HOLLOW, "markersize": 9}, **LINE)
    if dx or dy:
        _own_axis(ax, "x", dx, f"error on ImageNet-{x['set']} (%), thesis")
        _own_axis(ax, "y", dy, f"error on ImageNet-{y['set']} (%), thesis")
    return True


def draw_published_seed_curves(line: Sequence[Axes], ours: pd.DataFrame) -> bool:
    """The thesis: the range over seeds at epoch 100 of 300 (Figure 6.9) on the left, and at the
    last epoch on the right, around our mean at the same fraction of the training.
    """
    if ours.empty:
        return False
    early, last = tables.seed_ranges(ours).to_dict("records")
    for ax, row in zip(line, (early, last), strict=True):
        ax.plot([row["epoch"]] * 2, [row["low"], row["high"]], linewidth=5, **BAR)
    _annotate(line[0], early["epoch"], early["high"], early["label"], (4, 4), va="bottom")
    look: dict[str, Any] = {"fontsize": SIZE, "color": GREY, "ha": "right", "va": "top"}
    line[1].text(0.98, 0.96, last["label"], transform=line[1].transAxes, **look)
    return True


def draw_published_recipe_interaction(ax: Axes, results: Results, name: str) -> bool:
    """The thesis, section 6.3.4: ResNet-50 and DeiT-S under A2 and T2 on an evaluation set."""
    table = results.once(tables.recipe_errors)
    table = table[table["evaluation"] == name]
    if table.empty:
        return False
    shift, source = table["shift"].iloc[0], table["set"].iloc[0]
    for architecture, marker in (("ResNet-50", "o"), ("DeiT-S", "s")):
        of_model = table[table["architecture"] == architecture].set_index("recipe")
        y = of_model.loc[["A2", "T2"], "error_pct"].to_numpy(dtype=float) + shift
        ax.plot([0, 1], y, marker=marker, linestyle="--", **HOLLOW, **LINE)
        _annotate(ax, 1, y[1], architecture, (14, 0))
    top = ax.secondary_xaxis("top")
    top.set_xticks([0, 1], ["A2", "T2"])
    _make_grey(top)
    if shift:
        _own_axis(ax, "y", shift, f"error on ImageNet-{source} (%), thesis")
    return True


def _source_model(model: str, models: pd.Series) -> str:
    """The paper's model of that name, or the smallest of that family; empty if it has none."""
    return next((name for name in (model, f"{model}-1GF") if name in set(models)), "")


def _seed_row(results: Results, arm: str, name: str) -> pd.Series | None:
    """The row of seed_errors of an arm and evaluation set; None if there is none."""
    table = results.once(tables.seed_errors)
    rows = table[(table["arm"] == arm) & (table["evaluation"] == name)]
    return None if rows.empty else rows.iloc[0]


def _strip(ax: Axes, row: pd.Series, height: float) -> None:
    """Extremes, mean ± sd and seed 0 on a horizontal line; `height` is a fraction of the axes."""
    shift = row["shift"]
    edge = ax.get_xaxis_transform()
    ax.plot([row["min"] + shift, row["max"] + shift], [height] * 2, "|-", transform=edge, **LINE)
    ax.plot(
        [row["below"] + shift, row["above"] + shift],
        [height] * 2,
        transform=edge,
        linewidth=6,
        **BAR,
    )
    ax.plot([row["mean"] + shift], [height], "|", transform=edge, markersize=9, **LINE)
    ax.plot(
        [row["seed_0"] + shift],
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


def _annotate(
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
