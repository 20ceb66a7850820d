"""Is a ViT with convolutions in its stem better than one without at their best, and than CNNs?

Compares the error of models at lr and wd that suit them, over sizes. After Xiao et al. 2021, Figure
6 and Table 2: a peak is the error of a long training with the better optimizer. The paper trains
each model once, and shows its error against minutes per epoch. The demo has several seeds, so it
also asks whether the gain of ViT_C over ViT_P is the same at each width.

    python studies/peak_performance.py  # 60 trials on digits, 10 of optimizer_stability: 6 minutes
    python studies/peak_performance.py --scale imagenet --plan  # 57 of the 69 trials of Table 2
    python studies/peak_performance.py --scale imagenet --item figure_11 --plan  # 19, also on V2
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

try:
    from search_spaces import cifar, demo, xiao2021
    from search_spaces.recipes import XIAO2021_PEAK_36GF, XIAO2021_PEAK_CNN, XIAO2021_PEAK_VIT
    from search_spaces.space import Space, check_item
    from vitscale import Arm, Study, TrainConfig, main, trials
    from vitscale.catalog.tables import table_rows
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

Fields = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    arms: dict[Arm, Fields]  # arm -> fields
    panels: Mapping[str, tuple[str, ...]]  # panel of the figure -> arms
    pairs: tuple[tuple[str, str], ...]
    axis: str  # of the figure arm_lines
    tables: tuple[str, ...]
    margin: float
    num_seeds: int
    first_seed: int
    notes: str
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def at_width(fields: Mapping[str, Any], factor: float) -> Fields:
    """A model with heads and stem in proportion to its width, so that a stem still costs a block.

    At half of 3 heads there are 2.
    """
    scaled = {name: round(fields[name] * factor) for name in ("width", "heads")}
    if "stem_channels" in fields:
        channels = (round(int(width) * factor) for width in fields["stem_channels"].split("-"))
        scaled["stem_channels"] = "-".join(map(str, channels))
    return {**fields, **scaled}


def widths(space: Space, lr: Mapping[tuple[str, int], float], notes: str) -> Scale:
    """ViT_P and ViT_C with AdamW at half, once and twice their width; `lr` where it is not that of
    the width itself.
    """
    arms, pairs = {}, []
    for factor in (0.5, 1, 2):
        for stem in ("ViT_P", "ViT_C"):
            fields = at_width(space.MODELS[stem], factor)
            best, wd = space.OPTIMA[stem, "adamw"]
            name, width = f"{stem} {fields['width']}", fields["width"]
            arms[Arm(name, {"family": stem, "width": width})] = {
                **space.RECIPE,
                **space.HELD_OUT,
                **fields,
                "optimizer": "adamw",
                "lr": lr.get((stem, width), best),
                "wd": wd,
            }
        pairs.append((f"ViT_C {width}", f"ViT_P {width}"))
    return Scale(
        arms=arms,
        panels={"": tuple(arm.name for arm in arms)},
        pairs=tuple(pairs),
        axis="width",
        tables=("factorial_effects", "factorial_means"),
        margin=1.0,
        num_seeds=10,
        first_seed=1000,
        notes=f"{notes} The margin is the lower end of the gain of 1 to 2 points that the paper "
        "reports.",
    )


LENGTHS = (100, 200, 400)
ROWS = {row["model"]: row for row in table_rows("xiao2021_table2")}
MINUTES = {model: float(row["epoch_time_min"]) for model, row in ROWS.items()}


def nearest(model: str) -> str:
    """The ResNet or RegNetY, which Figure 6 compares with ViTs, with the nearest epoch time."""
    cnns = [name for name, row in ROWS.items() if row["family"] in ("ResNet", "RegNetY")]
    return min(cnns, key=lambda name: abs(MINUTES[name] - MINUTES[model]))


def table_2() -> Scale:
    """Table 2 without RegNetZ, trained on ImageNet-1k."""
    names = {
        (model, epochs): f"{model}, {epochs} epochs"
        for epochs in LENGTHS
        for model in xiao2021.PEAK_MODELS
    }
    arms = {}
    for (model, epochs), name in names.items():
        vits = (r for r in (XIAO2021_PEAK_VIT, XIAO2021_PEAK_36GF) if model in r.sizes)
        fields = {**next(vits, XIAO2021_PEAK_CNN).fields, **xiao2021.HELD_OUT, "epochs": epochs}
        family = ROWS[model]["family"]
        arm = Arm(name, {"family": family, "minutes": MINUTES[model], "epochs": epochs})
        arms[arm] = {**fields, **xiao2021.PEAK_MODELS[model]}
    pairs = []
    for epochs in LENGTHS:
        for size in ("1GF", "4GF", "18GF", "36GF"):
            conv, patchify = f"ViT_C-{size}", f"ViT_P-{size}"
            compared = (conv, patchify), (conv, nearest(conv)), (patchify, nearest(patchify))
            pairs += [(names[a, epochs], names[b, epochs]) for a, b in compared]
    return Scale(
        arms=arms,
        panels={
            f"{epochs} epochs": tuple(name for (_, n), name in names.items() if n == epochs)
            for epochs in LENGTHS
        },
        pairs=tuple(pairs),
        axis="minutes",
        tables=("published_arms",),
        margin=0.2,
        num_seeds=1,
        first_seed=0,
        notes="lr and wd are those of section 6: one choice for all CNNs, one for ViTs up to 18GF "
        "and one for 36GF. Minutes per epoch are printed, on 8 V100. EfficientNet-B4 and B5 have "
        "batches of 512 and 256, and lr in proportion (appendix E). The four RegNetZ are left out: "
        "the paper leaves their widths to a reference. So are the 13 models pre-trained on "
        "ImageNet-21k, which need its images and fine-tuning at an lr that is not printed. The "
        "text leaves resolutions of CNNs to references: these are those of the authors' "
        "configuration files, for EfficientNets of their baselines. ResNets and EfficientNets are "
        "timm's, with its initial weights. The margin is the larger end of what the paper calls "
        "noise, about 0.1 to 0.2 points (Figure 11). One run per arm, as in the paper, decides "
        "nothing: --num adds seeds. " + xiao2021.NOTES,
        printed={
            "val": {
                name: float(ROWS[model][f"error_{epochs}_epochs_pct"])
                for (model, epochs), name in names.items()
            }
        },
    )


def figure_11(values: Scale) -> Scale:
    """Figure 11: the longest trainings of Table 2, evaluated on ImageNet-V2 as well. The figure has
    those after ImageNet-21k where they are better (appendix G).
    """
    longest = {
        arm: fields for arm, fields in values.arms.items() if fields["epochs"] == LENGTHS[-1]
    }
    model = {arm.name: arm.name.partition(",")[0] for arm in longest}
    return replace(
        values,
        arms={
            Arm(model[arm.name], arm.factors): {**fields, "more_evals": "v2"}
            for arm, fields in longest.items()
        },
        panels={},
        pairs=tuple((model[a], model[b]) for a, b in values.pairs if a in model),
        tables=("sets_regression", "published_arms"),
        notes=values.notes + " The figure has the better of 400 epochs and ImageNet-21k (appendix "
        "G): by Table 2 six of these models after ImageNet-21k, which is not trained here.",
        printed={"val": {name: values.printed["val"][arm] for arm, name in model.items()}},
    )


SCALES = {
    "demo": widths(
        demo,
        demo.PEAK_LR,
        f"Width 48: {demo.FOUND}The lr of widths 24 and 96 is the best of five on minival, of "
        "seeds 0 and 1, which are not among these, at the wd of width 48; that of ViT_C is at the "
        "edge of the five at both. 20 epochs are the length of these searches, and no asymptote. "
        "Models of 0.02 to 0.3 M "
        "parameters on 8x8 digits: no evidence about ImageNet.",
    ),
    "cifar": widths(cifar, {}, cifar.FOUND + "They serve for all widths, which may differ in it."),
    "imagenet": table_2(),
}


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo",
    num: int | None = None,
    item: Literal["table_2", "figure_11"] = "table_2",
) -> Study:
    """`num` seeds per arm, which no search has used; `item`: another set, at imagenet."""
    check_item(item, "table_2", scale)
    on_v2 = item == "figure_11"
    values = figure_11(SCALES[scale]) if on_v2 else SCALES[scale]
    num = values.num_seeds if num is None else num
    return Study(
        kind="repeats",
        name="peak_performance_figure_11" if on_v2 else "peak_performance",
        scale=scale,
        question="Is a ViT with an early convolution better at its best, and than CNNs?",
        source=f"Xiao et al. 2021, {'Figure 11' if on_v2 else 'Figure 6 and Table 2'}",
        trials=trials(
            TrainConfig(),
            values.arms,
            [{"seed": values.first_seed + i} for i in range(num)],
        ),
        panels=values.panels,
        pairs=values.pairs,
        margin=values.margin,
        printed=values.printed,
        axis=values.axis,
        figures=("sets_regression",) if on_v2 else ("arm_lines", "comparison_forest"),
        tables=("pair_differences", *values.tables, "arm_means"),
        design="Each arm is trained at the lr and wd that suit it. All arms share their seeds.",
        notes=values.notes,
    )


if __name__ == "__main__":
    main(study)
