"""Printed errors of a study's arms: kept in the plan, beside ours in a table and two figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from support.refusals import refusing
from support.scripts import plan

from vitscale.analysis.comparisons import pair_differences
from vitscale.analysis.displays.arm_lines import arm_lines
from vitscale.analysis.displays.forest import comparison_forest
from vitscale.analysis.published.figures import GREY
from vitscale.analysis.published.tables import published_arms
from vitscale.analysis.results import Results
from vitscale.catalog.tables import printed_errors
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study, from_json, to_json
from vitscale.plan.trial import Arm, Trial

# mean 11, 95% interval of Student with 2 degrees of freedom: 4.302653 of 1 / sqrt(3)
ERRORS = {"a": (10.0, 11.0, 12.0), "b": (20.0, 20.5, 21.0)}
HALF = 4.302653 / np.sqrt(3)
PRINTED = {"val": {"a": 12.5, "b": 18.0}, "test": {"b": 20.0}}


def made(**fields: Any) -> Study:
    """Arms a and b of depth 3 and 6, three seeds each, evaluated on val and test."""
    trials = tuple(
        Trial(
            Arm(name, {"depth": depth, "stem": "P"}),
            TrainConfig(depth=depth, seed=seed, more_evals="test"),
            seed,
        )
        for name, depth in (("a", 3), ("b", 6))
        for seed in range(3)
    )
    given: dict[str, Any] = {
        "kind": "repeats",
        "tables": ("pair_differences", "published_arms"),
        "pairs": (("a", "b"),),
        "printed": PRINTED,
        "trials": trials,
        **fields,
    }
    return Study(name="made", scale="demo", question="?", source="A. Author", **given)


def results_of(study: Study, lost: frozenset[tuple[str, int]] = frozenset()) -> Results:
    """Errors of `ERRORS` on val and one more on test; trials of `lost` (arm, seed) diverged."""
    rows = []
    for trial in study.trials:
        key = trial.arm.name, trial.config.seed
        value = 100.0 if key in lost else ERRORS[key[0][0]][key[1]]
        rows.append(
            {
                "arm": key[0],
                "point": trial.point,
                "trial_id": trial.config.id,
                "status": "diverged" if key in lost else "finished",
                "value": value,
                "lr": trial.config.lr,
                "seed": key[1],
                "val_ema_error_pct": value,
                "test_ema_error_pct": value + 1,
            }
        )
    return Results(study, pd.DataFrame(rows).astype({"point": "Int64"}))


def grey(ax: Axes) -> list[Any]:
    return [line for line in ax.lines if line.get_color() == GREY]


def note(figure: Any) -> str:
    return " ".join(figure._supxlabel.get_text().split())


def test_the_table_has_a_row_of_each_printed_error_beside_ours() -> None:
    table = published_arms(results_of(made()))
    rows = {(row.arm, row.evaluation): row for row in table.itertuples()}
    assert [*rows] == [("a", "val"), ("b", "val"), ("b", "test")]
    cell = rows["a", "val"]
    assert (cell.printed_error_pct, cell.mean, cell.n, cell.diverged) == (12.5, 11.0, 3, 0)
    assert (cell.mean_low, cell.mean_high) == pytest.approx((11 - HALF, 11 + HALF), abs=1e-5)
    minus = [rows[key].minus_printed_points for key in rows]
    assert minus == pytest.approx([11 - 12.5, 20.5 - 18, 21.5 - 20])
    assert "single runs" in str(published_arms.__doc__)


def test_an_arm_of_kind_shapes_is_compared_at_the_lr_that_minival_chooses() -> None:
    trials = tuple(
        Trial(Arm("a", {"size": "S"}), TrainConfig(lr=lr, seed=seed, more_evals="minival"))
        for lr in (0.001, 0.002)
        for seed in range(2)
    )
    fields: dict[str, Any] = {"tables": ("published_arms",), "pairs": (), "trials": trials}
    study = made(kind="shapes", printed={"val": {"a": 8.0}}, **fields)
    rows = [
        {
            "arm": "a",
            "trial_id": trial.config.id,
            "status": "finished",
            "value": 9.0 if trial.config.lr == 0.002 else 5.0,
            "lr": trial.config.lr,
            "seed": trial.config.seed,
            "val_ema_error_pct": 9.0 if trial.config.lr == 0.002 else 5.0,
            "minival_ema_error_pct": 3.0 if trial.config.lr == 0.002 else 4.0,
        }
        for trial in study.trials
    ]
    (row,) = published_arms(Results(study, pd.DataFrame(rows))).to_dict("records")
    # 0.002 is best on minival, though 0.001 is better on val
    assert (row["mean"], row["n"], row["minus_printed_points"]) == (9.0, 2, 1.0)


def test_the_forest_has_printed_differences_as_grey_diamonds() -> None:
    study = made(figures=("comparison_forest",))
    shown = comparison_forest(results_of(replace(study, published=True)))
    (mark,) = grey(shown.axes[0])  # on test only one of the arms has a printed error
    assert mark.get_marker() == "D" and mark.get_markerfacecolor() == "white"
    assert mark.get_xdata().tolist() == [12.5 - 18.0] and not grey(shown.axes[1])
    assert "Grey diamonds: printed numbers of A. Author; single runs, no interval." in note(shown)
    plain = comparison_forest(results_of(study))
    assert not any(map(grey, plain.axes)) and "Author" not in note(plain)
    assert pair_differences(results_of(study))["difference"].tolist() == [-9.5, -9.5]


def test_a_study_without_printed_errors_has_no_mark_of_theirs() -> None:
    figure = comparison_forest(
        results_of(made(printed={}, published=True, tables=("pair_differences",)))
    )
    assert not any(map(grey, figure.axes)) and "printed" not in note(figure)


def test_lines_of_arms_have_means_runs_intervals_and_printed_errors() -> None:
    study = made(figures=("arm_lines",), axis="depth", published=True)
    (ax,) = arm_lines(results_of(study)).axes
    ours = [line.get_ydata().tolist() for line in ax.lines if line.get_color() != GREY]
    assert [11.0, 20.5] in ours and [10.0, 11.0, 12.0] in ours and [20.0, 20.5, 21.0] in ours
    (theirs,) = grey(ax)
    assert theirs.get_ydata().tolist() == [12.5, 18.0] and theirs.get_linestyle() == "-"
    assert theirs.get_xdata().tolist() == pytest.approx(np.log2([3, 6]))
    assert ax.get_xlabel() == "depth"
    assert [ax.xaxis.get_major_formatter()(v) for v in ax.get_xticks()] == ["3", "6"]
    low, high = next(iter(collection.get_segments()[0] for collection in ax.collections))[:, 1]
    assert (low, high) == pytest.approx((11 - HALF, 11 + HALF), abs=1e-5)


def test_many_values_over_a_wide_range_have_an_axis_of_doublings_and_stay_where_they_are() -> None:
    """Xiao et al. 2021, Figure 6: 19 models at 2.6 to 41.7 minutes an epoch, a panel per length."""
    study = replace(plan("peak_performance", "imagenet"), published=True)
    rows = [
        {
            "arm": trial.arm.name,
            "point": trial.point,
            "trial_id": trial.config.id,
            "status": "finished",
            "value": 20.0,
            "lr": trial.config.lr,
            "val_ema_error_pct": 20.0,
        }
        for trial in study.trials
    ]
    figure = arm_lines(Results(study, pd.DataFrame(rows).astype({"point": "Int64"})))
    assert [ax.get_title() for ax in figure.axes] == ["100 epochs", "200 epochs", "400 epochs"]
    for ax, vit_p in zip(figure.axes, ([33.2, 19.9], [29.7, 18.8], [27.7, 18.2]), strict=True):
        told = [ax.xaxis.get_major_formatter()(at) for at in ax.get_xticks()]
        assert told == ["2.6", "5.2", "10.4", "20.8", "41.6"]
        left, right = ax.get_xlim()
        assert left < np.log2(2.6) and np.log2(41.7) < right
        theirs = grey(ax)
        assert len(theirs) == 5 and theirs[0].get_ydata()[[0, -1]].tolist() == vit_p
        assert theirs[0].get_xdata().tolist() == pytest.approx(np.log2([2.6, 3.8, 11.5, 18.8]))
        ours = [line.get_xdata().tolist() for line in ax.lines if line.get_color() != GREY]
        assert theirs[0].get_xdata().tolist() in ours


def test_lines_are_of_the_factors_that_vary_and_panels_of_the_study() -> None:
    trials = tuple(
        Trial(
            Arm(f"{name} {stem} {size}", {"width": width, "stem": stem, "size": size}),
            TrainConfig(width=width, seed=seed, depth=1 + (stem == "P") + 2 * size),
            seed,
        )
        for name, width in (("a", 16), ("b", 48), ("b2", 80))
        for stem in "PC"
        for size in (1, 2)
        for seed in range(3)
    )
    arms = list(dict.fromkeys(trial.arm.name for trial in trials))
    first = tuple(arm for arm in arms if "P" in arm)
    study = made(figures=("arm_lines",), axis="width", printed={}, pairs=(), tables=("arm_means",))
    study = replace(study, trials=trials, panels={"P": first, "all": tuple(arms)})
    figure = arm_lines(results_of(study, frozenset({(first[0], 0), (first[0], 1)})))
    texts = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in figure.axes]
    names = [[text.split("\n")[0] for text in labels] for labels in texts]
    assert names == [
        ["P, size 1", "P, size 2"],
        ["P, size 1", "P, size 2", "C, size 1", "C, size 2"],
    ]
    assert [text.split("\n")[1] for text in texts[0]] == [
        "n=7, 2 diverged, 3 arms",
        "n=9, 0 diverged, 3 arms",
    ]
    # 16, 48 and 80 are not powers of two apart
    ax = figure.axes[0]
    assert ax.get_xticks().tolist() == [16, 48, 80] and ax.get_title() == "P"
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert [line.get_xdata() for line in crosses] == [[16.0]]
    assert [text.get_text() for text in ax.texts] == ["2/3"] and "× above" in note(figure)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("", "got (axis='', arm='a': None)"),
        ("blocks", "got (axis='blocks', arm='a': None)"),
        ("stem", "got (axis='stem', arm='a': 'P')"),
        ("optimizer", "got (axis='optimizer', arm='a': 'adamw')"),
        ("seed", "arms must differ in seed, in their configs or in their factors"),
    ],
)
def test_an_axis_is_a_number_of_each_arm_that_tells_the_arms_of_a_line_apart(
    axis: str, said: str
) -> None:
    factors = {"stem": "P"}
    trials = [Trial(Arm(n, factors), TrainConfig(depth=d)) for n, d in (("a", 3), ("b", 6))]
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        replace(made(printed={}), figures=("arm_lines",), axis=axis, trials=tuple(trials))
    assert "\n" not in str(error.value)
    study = replace(made(printed={}), figures=("arm_lines",), axis="depth", trials=tuple(trials))
    assert study.axis == "depth"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            {"val": {"c": 1.0}},
            "evaluated, and arms of the study, but got ('c')",
        ),
        (
            {"real": {}},
            "evaluated, and arms of the study, but got ('real')",
        ),
        ({"val": {"a": 101}}, "0 <= printed <= 100 must hold, but got (val, a=101)"),
        ({"val": {"a": np.nan}}, "0 <= printed <= 100 must hold, but got (val, a=nan)"),
        ({"val": {"a": True}}, "0 <= printed <= 100 must hold, but got (val, a=True)"),
        ({"val": 3.0}, "printed must map evaluation sets to errors in percent by arm"),
    ],
)
def test_printed_errors_are_percentages_of_arms_and_sets(printed: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        made(printed=printed)


def test_printed_errors_come_with_the_top_1_error() -> None:
    with refusing("metric='val_ema_loss'"):
        made(metric="val_ema_loss")


def test_a_plan_keeps_printed_errors_and_axis_and_one_without_is_as_before() -> None:
    study = made(axis="depth")
    written = json.loads(json.dumps(to_json(study)))
    assert written["printed"] == PRINTED and written["axis"] == "depth"
    assert from_json(written) == study != replace(study, axis="")
    without = made(printed={}, tables=("pair_differences",))
    written = to_json(without)
    assert not {"printed", "axis"} & set(written) and from_json(written) == without


def test_a_cell_that_is_not_printed_is_left_out() -> None:
    sets = {"val": "val_top1_pct", "v2": "v2_top1_pct"}
    got = printed_errors("touvron2022_table3", lambda r: f"{r['size']}{r['depth']}", sets)
    assert got["val"]["B12"] == 17.8 and got["v2"]["S24"] == 27.7  # 82.2 and 72.3 in print
    assert printed_errors("touvron2022_table3", lambda _: "", sets) == {"val": {}, "v2": {}}


def test_studies_have_the_errors_of_their_tables() -> None:
    """Touvron et al. 2022, Table 5, and H. Touvron's thesis, 2022, Table 6.15."""
    finetune = plan("finetune", "imagenet")
    assert {name: set(errors) for name, errors in finetune.printed.items()} == {
        name: set(finetune.arms) for name in ("val", "v2")
    }
    assert finetune.printed["val"]["ViT-S ffn SGD"] == 18.0  # 82.0
    assert finetune.printed["v2"]["ViT-L attn AdamW"] == 24.6  # 75.4
    duration = plan("duration", "imagenet")
    kept = {arm for arm in duration.arms if "kept" in arm}  # ours
    assert {name: set(errors) for name, errors in duration.printed.items()} == {
        name: set(duration.arms) - kept for name in ("val", "v2", "real")
    }
    assert duration.printed["val"]["ViT-B, 800 epochs"] == 16.3  # 83.7
    assert duration.printed["v2"]["ViT-H, 400 epochs"] == 24.7  # 75.3


@pytest.mark.parametrize(
    ("item", "accuracies"),  # of an arm on a set, as the text prints them
    [
        ("thesis_3_8", {"val": {"DeiT-B": 81.8, "DeiT-B SGD": 74.5, "DeiT-B no CutMix": 80.0,
                                "DeiT-B no mixup, no CutMix": 75.8, "DeiT-B no erasing": 4.3,
                                "DeiT-B no drop path": 3.4, "DeiT-B dropout": 81.3}}),
        ("thesis_6_2", {"val": {"ViT-B jitter": 81.4, "ViT-B 3A without jitter": 83.1},
                        "real": {"ViT-B jitter, gray, blur": 87.6},
                        "v2": {"ViT-B jitter, gray": 69.7, "ViT-B 3A without jitter": 72.0}}),
        ("thesis_6_3", {"val": {"ViT-B AA": 82.8, "ViT-L TA": 83.6},
                        "real": {"ResNet-50 3A": 85.5, "ViT-B BCE LS RA 400": 87.4},
                        "v2": {"ViT-L BCE LS 3A 400": 74.3}}),
        ("thesis_6_4", {"val": {"ViT-S BCE LS 3A 400": 80.4, "ViT-L BCE RA 300": 83.0},
                        "v2": {"ViT-B CE RA 300": 68.5, "ViT-B BCE LS RA 300": 71.4}}),
        ("xiao_table_5", {"val": {"ViT_P-4GF ours 100 epochs": 100 - 23.2,
                                  "ViT_P-4GF RandAugment 400 epochs": 100 - 20.3,
                                  "ViT_P-18GF DeiT's 400 epochs": 100 - 18.6,
                                  "ViT_P-18GF DeiT's, no drop path 100 epochs": 100 - 25.1}}),
        ("touvron_table_1", {"val": {"ViT-Ti BCE LS RA 400": 73.5, "ViT-L BCE RA 300": 83.0},
                             "v2": {"ViT-S BCE RA 300": 68.5, "ViT-L BCE LS RA 400": 73.7}}),
        ("touvron_table_8", {"val": {"DeiT-Ti": 72.2, "DeiT-B": 81.8, "ViT-B BCE RA 300": 82.2}}),
    ],
)  # fmt: skip
def test_items_of_the_ingredients_have_the_errors_of_their_tables(
    item: str, accuracies: dict[str, dict[str, float]]
) -> None:
    study = plan("recipe_ingredients", "imagenet", item=item)
    assert {name: set(errors) for name, errors in study.printed.items()} == {
        name: set(study.arms) for name in accuracies
    }
    for name, errors in accuracies.items():
        for arm, accuracy in errors.items():
            assert study.printed[name][arm] == pytest.approx(100 - accuracy), (name, arm)
    # all tables are by the weights themselves, which Table 5 of Xiao et al. has in its row 6
    every = plan("recipe_ingredients", "imagenet").printed
    if item.startswith("touvron"):  # which has 79.7 for ViT-S of 300 epochs, Table 6.4 79.8
        return
    own = {arm: study.printed["val"][arm] for arm in study.arms if " ours " not in arm}
    assert set(every) == {"val"} and own.items() <= every["val"].items()
    assert every["val"]["ViT_P-18GF ours 400 epochs"] == 20.0
