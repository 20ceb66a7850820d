"""Depth, width and branches: plans against the paper, an lr
chosen on other images, differences on simulated truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, WITHOUT_PDF, load_script
from statsmodels.stats.multitest import multipletests
from support import known
from support.refusals import refusing
from support.scripts import shortened

from search_spaces import demo, touvron2022
from search_spaces.touvron2022 import Shape, split
from vitscale.analysis import power
from vitscale.analysis import shapes as shape_words
from vitscale.analysis.arm_means import arm_means
from vitscale.analysis.published import tables as published
from vitscale.analysis.published.tables import read
from vitscale.analysis.questions import shapes
from vitscale.analysis.questions.blocks_or_width import blocks_or_width
from vitscale.analysis.report import text
from vitscale.analysis.report.report import caveats, headline, summary, write_report
from vitscale.analysis.results import Results
from vitscale.catalog.costs import agrees
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.plan.study import Study
from vitscale.plan.trial import Arm, Trial
from vitscale.record.workdir import Workdir

NO_ROWS = pd.DataFrame(columns=["arm", "point", "trial_id", "status", "epoch"])

# Touvron et al. 2022: section 3.3 on Figures 1 and 2, Tables 2 and 3; the blocks of Figure 3 off
# its axis.
TRAINED = ("", " LS", " 400 epochs", " LS 400 epochs")
PAPER = {
    "branches": [
        "S36x1",
        "S18x2",
        "S12x3",
        "S9x4",
        "S60x1",
        "S30x2",
        "S20x3",
        "S15x4",
        "B36x1",
        "B18x2",
        "B12x3",
        "B9x4",
    ],
    "widths": ["Ti24x1", "Ti12x2", "S24x1", "S12x2", "B24x1", "B12x2", "L24x1 LS", "L12x2 LS"],
    "depths": [
        "S24x1",
        "S12x2",
        "S36x1",
        "S18x2",
        "S48x1",
        "S24x2",
        "S60x1",
        "S30x2",
        "B12x1",
        "B6x2",
        "B24x1",
        "B12x2",
        "B36x1",
        "B18x2",
    ],
    "LayerScale and epochs": [f"{shape}{how}" for shape in ("B36x1", "B18x2") for how in TRAINED],
    "blocks or width": ["S48x1", "S24x2", "B12x1", "B36x1 LS", "B18x2 LS", "L24x1 LS"],
}
# Thesis, Table 3.11, without LayerScale: DeiT-S has 0.05, 0.10, 0.20, 0.25 at 12, 18, 24, 36
# blocks, B 0.05 more (3T, section 2.2: 0.1 at 12). With LayerScale 0.1 for each 12 blocks: CaiT of
# Table 3.16 as wide as B has 0.3 at 36.
LADDER = {
    "S36x1": 0.25,
    "S18x2": 0.10,
    "S60x1": 0.25,
    "S30x2": 0.23,
    "S20x3": 0.13,
    "S15x4": 0.08,
    "S48x1": 0.25,
    "S24x1": 0.20,
    "S24x2": 0.20,
    "B36x1": 0.30,
    "B18x2": 0.15,
    "B24x1": 0.25,
    "L12x2 LS": 0.30,
    **{f"B36x1{how}": 0.30 for how in TRAINED[1:]},
    **{f"B18x2{how}": 0.15 for how in TRAINED[1:]},
}


def plan(scale: str, **options: object) -> Study:
    return load_script(ROOT / "studies" / "depth_vs_width.py").study(scale, **options)


def configs(study: Study) -> dict[str, TrainConfig]:
    return {trial.arm.name: trial.config for trial in study.trials}


# ---- plans


def test_the_plan_at_imagenet_has_each_shape_of_the_paper_once() -> None:
    study = plan("imagenet")
    panels = {title: list(arms) for title, arms in study.panels.items()}
    assert set(panels.pop(touvron2022.LADDER)) == {f"{shape} ladder" for shape in LADDER}
    assert panels == PAPER
    assert (
        len(study.arms) - len(LADDER) == len({arm for arms in PAPER.values() for arm in arms}) == 30
    )
    assert (
        len({trial.config.id for trial in study.trials})
        == len(study.trials)
        == 30 + 4 + len(LADDER)
    )
    seeds = {arm: [t.config.seed for t in study.trials if t.arm.name == arm] for arm in study.arms}
    assert {arm for arm, s in seeds.items() if s != [0]} == {"B12x1"} and seeds["B12x1"] == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_trials_at_imagenet_are_trained_as_the_text_says() -> None:
    """Section 2.2: lr and drop rate by size, 300 epochs; Table
    2: both lengths, with LayerScale and without.
    """
    stated = {"Ti": (4e-3, 0.0), "S": (4e-3, 0.05), "B": (3e-3, 0.1), "L": (3e-3, 0.4)}
    study = plan("imagenet")
    for arm, config in configs(study).items():
        lr, drop_path = stated[str(study.arms[arm].factors["size"])]
        assert (config.lr, config.drop_path) == (
            lr,
            LADDER[arm.removesuffix(" ladder")] if "ladder" in arm else drop_path,
        )
        assert (config.epochs, config.layerscale > 0) == (400 if "400" in arm else 300, "LS" in arm)
        assert (config.loss, config.optimizer, config.evals, config.ema_decay) == (
            "bce",
            "lamb",
            ("val", "v2"),
            0.0,
        )


def test_a_ladder_changes_drop_path_alone_and_is_compared_within_itself() -> None:
    study = plan("imagenet")
    found = configs(study)
    for shape in LADDER:
        laddered = found[f"{shape} ladder"]
        assert laddered.drop_path != found[shape].drop_path
        assert laddered.replace(drop_path=found[shape].drop_path) == found[shape]
    outcomes = outcomes_of(
        study, lambda arm, config: {"val": 20 - 5 * ("ladder" in arm), "v2": 30.0}
    )
    table = shapes.branch_differences(Results(study, outcomes))
    ladder = table["drop_path_by"] == "depth"
    # each against a sequence of its own drop path
    assert ladder.any() and (table["difference"] == 0).all()
    rows = table[ladder & (table["evaluation"] == "val")]
    assert set(zip(rows["size"], rows["pairs"], rows["branches"], strict=True)) == {
        ("S", 36, 2),
        ("S", 60, 2),
        ("S", 60, 3),
        ("S", 60, 4),
        ("S", 48, 2),
        ("B", 36, 2),
    }
    assert len(blocks_or_width(Results(study, outcomes))) == 2 * 2 * 4


def test_the_ladder_is_the_printed_one_at_its_rungs() -> None:
    for depth, rate in {9: 0.05, 12: 0.05, 18: 0.10, 24: 0.20, 36: 0.25, 48: 0.25}.items():
        assert touvron2022.ladder_rate(Shape("S", depth)) == rate
        assert touvron2022.ladder_rate(Shape("B", depth)) == round(rate + 0.05, 2)
    # CaiT-M of Table 3.16, at 24, 36 and 48
    for depth, rate in {12: 0.1, 24: 0.2, 36: 0.3, 48: 0.4}.items():
        assert touvron2022.ladder_rate(Shape("B", depth, 1, True)) == rate
    assert (
        touvron2022.ladder_rate(Shape("L", 24, 1, True)) == 0.4
        and touvron2022.ladder_rate(Shape("Ti", 48)) == 0.0
    )


def test_costs_at_imagenet_are_those_of_table_3() -> None:
    found = configs(plan("imagenet"))
    for _, row in read("touvron2022_table3").astype(str).iterrows():
        shape = Shape(
            row["size"], int(row["depth"]), int(row["branches"]), row["layerscale"] == "1"
        )
        cost = complexity(found[shape.name])
        assert agrees(row["params_m"], cost.params / 1e6) and agrees(
            row["flops_g"], cost.flops / 1e9
        ), shape.name


@pytest.mark.parametrize("scale", ["demo", "cifar", "imagenet"])
def test_branches_cost_what_a_sequence_costs(scale: str) -> None:
    study = plan(scale)
    costs: dict[tuple[object, ...], set[object]] = {}
    for arm, config in configs(study).items():
        key = (*study.arms[arm].factors.values(), config.layerscale)
        costs.setdefault(key, set()).add(complexity(config))
    assert all(len(values) == 1 for values in costs.values()) and len(costs) > 3


@pytest.mark.parametrize("scale", ["demo", "cifar"])
def test_more_blocks_cost_what_more_width_costs(scale: str) -> None:
    found = configs(plan(scale))
    for deep, wide in plan(scale).pairs:
        a, b = complexity(found[deep]), complexity(found[wide])
        assert found[deep].width < found[wide].width and found[deep].epochs == found[wide].epochs
        assert a.params == pytest.approx(b.params, rel=0.02) and a.flops == pytest.approx(
            b.flops, rel=0.07
        )


@pytest.mark.parametrize("scale", ["demo", "cifar"])
def test_every_shape_has_the_same_grid_and_more_seeds_extend_it(scale: str) -> None:
    num_shapes = {"demo": 9, "cifar": 21}[scale]
    short, longer = plan(scale, num=2), plan(scale, num=3)
    points: dict[str, set] = {}
    for t in longer.trials:
        points.setdefault(t.arm.name, set()).add((t.point, t.config.seed, t.config.lr))
    assert len(points) == num_shapes and all(
        grid == points["S12x1"] and len(grid) == 9 for grid in points.values()
    )
    ids = [{(t.arm.name, t.point, t.config.id) for t in study.trials} for study in (short, longer)]
    assert ids[0] < ids[1]
    assert shapes.CHOOSES in longer.trials[
        0
    ].config.evals and shapes.CHOOSES not in shapes.reported(longer)


# ---- outcomes with known truth

Errors = Callable[[str, TrainConfig], dict[str, float] | None]


def outcomes_of(study: Study, error: Errors) -> pd.DataFrame:
    """error(arm, config) in percent by evaluation set; None for a diverged run."""
    rows = []
    for trial in study.trials:
        found = error(trial.arm.name, trial.config)
        values = found or dict.fromkeys(trial.config.evals, 100.0)
        labels = {
            "arm": trial.arm.name,
            "point": trial.point,
            "trial_id": trial.config.id,
            "status": "finished" if found else "diverged",
        }
        sets = {f"{name}_error_pct": value for name, value in values.items()}
        rows.append({**labels, "value": values["val"], **trial.config.asdict(), **sets})
    return pd.DataFrame(rows).astype({"point": "Int64"})


def small_study(
    *planned: Shape, num: int = 4, lrs: tuple[float, ...] = (0.01,), **fields: object
) -> Study:
    """Shapes of the demo at some lr with `num` seeds."""
    trials, point = [], 0
    for shape in planned:
        base = TrainConfig(**{**demo.SHAPE_SIZES[shape.size], **shape.fields})
        for point, (seed, lr) in enumerate((seed, lr) for seed in range(num) for lr in lrs):
            arm = Arm(shape.name, {"size": shape.size, "pairs": shape.pairs})
            trials.append(Trial(arm, base.replace(seed=seed, lr=lr), point))
    settings: dict = {
        "kind": "shapes",
        "name": "made",
        "scale": "demo",
        "question": "Which?",
        "source": "Nobody 2021",
    }
    return Study(
        **{
            **settings,
            "metric": "val_error_pct",
            "trials": tuple(trials),
            **fields,
        }
    )


def test_lr_is_chosen_by_minival_alone() -> None:
    """val and test would choose others. A diverged run counts as none, unless most diverged; of
    equal lr the smaller is taken.
    """
    study = small_study(*split("S", 4), Shape("B", 2), lrs=(0.01, 0.02, 0.04))
    minival = {"S4x1": (9.0, 8.0, 7.0), "S2x2": (9.0, 9.0, 6.0), "B2x1": (5.0, 4.0, 3.0)}

    lost = {"S2x2": 1, "B2x1": 3}  # of 4 seeds

    def error(arm: str, config: TrainConfig) -> dict[str, float] | None:
        if (arm, config.lr) in (("S2x2", 0.04), ("B2x1", 0.04)) and config.seed < lost[arm]:
            return None
        return {
            "minival": minival[arm][round(np.log2(config.lr / 0.01))],
            "val": 1 / config.lr,
            "test": config.lr,
        }

    table = shapes.shape_cells(Results(study, outcomes_of(study, error))).set_index("shape")
    assert table["lr"].to_dict() == {"S4x1": 0.04, "S2x2": 0.04, "B2x1": 0.02}
    assert table["lr_at_edge"].to_dict() == {"S4x1": True, "S2x2": True, "B2x1": False}
    assert table["val_mean"].to_dict() == {"S4x1": 25.0, "S2x2": 25.0, "B2x1": 50.0}
    assert table.loc["S2x2", ["n", "diverged"]].tolist() == [3, 1]


def test_error_at_the_chosen_lr_is_unbiased_on_val_and_not_on_minival() -> None:
    """Three lr, equally good: the least of three normal means lies
    3 / (2 sqrt(pi)) standard errors below the truth.
    """
    study = small_study(
        *(Shape("S", depth) for depth in range(1, 51)), num=4, lrs=(0.01, 0.02, 0.04)
    )
    rng, means = np.random.default_rng(0), []
    table = outcomes_of(study, lambda arm, config: dict.fromkeys(config.evals, 20.0))
    for _ in range(6):
        noisy = table.assign(
            **{
                f"{name}_error_pct": 20 + rng.normal(0, 2, len(table))
                for name in ("minival", "val")
            }
        )
        means += [
            [cell.runs[f"{name}_error_pct"].mean() for name in ("minival", "val")]
            for cell in shapes.all_shapes(Results(study, noisy)).values()
        ]
    minival, val = np.mean(means, axis=0) - 20
    error = 2 / np.sqrt(4)
    assert val == pytest.approx(0, abs=3.5 * error / np.sqrt(300))
    assert minival == pytest.approx(
        -3 / (2 * np.sqrt(np.pi)) * error, abs=3.5 * error / np.sqrt(300)
    )


def test_differences_of_branches_cover_the_truth() -> None:
    study = small_study(*(shape for pairs in range(2, 42, 2) for shape in split("S", pairs)), num=5)
    rng, found = np.random.default_rng(1), []
    table = outcomes_of(study, lambda arm, config: dict.fromkeys(config.evals, 20.0))
    truth = 20 - 1.5 * (table["branches"] == 2)
    for _ in range(5):
        noise = {
            f"{name}_error_pct": truth + rng.normal(0, 0.5, len(table)) for name in ("val", "test")
        }
        found.append(shapes.branch_differences(Results(study, table.assign(**noise))))
    low, high = (pd.concat(found)[f"difference_{end}"] for end in ("low", "high"))
    assert len(low) == 200 and 0.90 <= ((low <= -1.5) & (high >= -1.5)).mean() <= 0.99
    # of equal sds; Welch's df are a little fewer
    expected = 2 * scipy.stats.t.ppf(0.975, 8) * 0.5 * np.sqrt(2 / 5)
    assert (high - low).mean() == pytest.approx(expected, rel=0.08)


def test_the_demo_can_answer_its_question_and_two_seeds_could_not() -> None:
    """A true difference of 4 sd of a seed in each of the demo's
    ten comparisons of branches, Welch's t with Holm.
    """
    rng, num = np.random.default_rng(3), len({trial.config.seed for trial in plan("demo").trials})
    shown = {}
    for seeds in (2, num):
        a, b = rng.normal(0, 1, (300, 10, seeds)), rng.normal(4, 1, (300, 10, seeds))
        p = np.sort(scipy.stats.ttest_ind(a, b, axis=2, equal_var=False).pvalue)
        shown[seeds] = np.cumprod(p * np.arange(10, 0, -1) < 0.05, axis=1).mean()
    assert num == 5 and shown[2] < 0.03 and shown[num] > 0.85


def test_every_parallel_shape_is_compared_with_its_own_sequence() -> None:
    planned = (
        *split("S", 12, 4),
        *split("S", 12, layerscale=True),
        *split("B", 4),
        Shape("Ti", 2, 2),
    )
    study, rng = small_study(*planned), np.random.default_rng(2)
    table = outcomes_of(
        study,
        lambda arm, config: {"minival": 9.0, "val": rng.normal(9, 1), "test": rng.normal(9, 1)},
    )
    found = shapes.branch_differences(Results(study, table))
    val = found[found["evaluation"] == "val"]
    compared = val[["size", "pairs", "branches", "layerscale"]].to_numpy().tolist()
    assert compared == [
        *(["S", 12, p, False] for p in (2, 3, 4)),
        ["S", 12, 2, True],
        ["B", 4, 2, False],
    ]
    errors = table.set_index(["arm", "seed"])["val_error_pct"]
    welch = scipy.stats.ttest_ind(errors["S4x3"], errors["S12x1"], equal_var=False)
    row = val.iloc[1]
    assert (row["difference_p"], row["difference_low"]) == pytest.approx(
        (welch.pvalue, welch.confidence_interval(0.95).low)
    )
    corrected = multipletests(found["difference_p"], method="holm")[
        1
    ]  # over both sets, which a sentence counts together
    assert found["difference_p_holm"].tolist() == pytest.approx(corrected)


def test_effects_of_layerscale_and_length_and_of_blocks() -> None:
    """Truth: LayerScale takes 2 points, longer training 1, and a block more 0.5."""
    planned = (*touvron2022.trained(split("S", 12), longer=13), Shape("B", 3))
    study, rng = small_study(*planned, pairs=(("S12x1", "B3x1"),)), np.random.default_rng(3)

    def error(arm: str, config: TrainConfig) -> dict[str, float]:
        truth = 20 - 2 * (config.layerscale > 0) - (config.epochs == 13) - 0.5 * config.depth
        return dict.fromkeys(config.evals, truth + rng.normal(0, 0.01))

    outcomes = outcomes_of(study, error)
    table = shapes.layerscale_and_epochs(Results(study, outcomes))
    assert len(table) == 2 * 4 * 2 and set(table["shape"]) == {"S12x1", "S6x2"}
    (power_of_plan,) = power._of_comparisons(study, "layerscale_and_epochs")
    assert f"{len(table)} comparisons" in power_of_plan
    truth = np.where(table["effect"].str.startswith("LayerScale"), -2.0, -1.0)
    assert table["difference"].to_numpy() == pytest.approx(truth, abs=0.05)
    row = blocks_or_width(Results(study, outcomes)).iloc[0]
    assert row["difference"] == pytest.approx(-4.5, abs=0.05)
    assert row["params_ratio"] == pytest.approx(1, rel=0.02)


def test_layerscale_has_its_effect_where_all_train_for_one_length() -> None:
    study = small_study(*split("S", 12), *split("S", 12, layerscale=True))
    outcomes = outcomes_of(
        study,
        lambda arm, config: dict.fromkeys(config.evals, 9.0 + config.seed - 3.0 * ("LS" in arm)),
    )
    table = shapes.layerscale_and_epochs(Results(study, outcomes))
    assert table["effect"].unique().tolist() == ["LayerScale, 10 epochs"] and len(table) == 4
    assert table["difference"].tolist() == pytest.approx([-3.0] * 4)


def test_single_runs_have_a_difference_and_no_interval() -> None:
    study = small_study(*split("S", 4), num=1)
    outcomes = outcomes_of(
        study, lambda arm, config: dict.fromkeys(config.evals, 5.0 if arm == "S4x1" else 4.0)
    )
    row = shapes.branch_differences(Results(study, outcomes)).iloc[0]
    assert (row["difference"], row["n_a"], row["method"]) == (
        -1.0,
        1,
        "single run: no interval",
    )
    assert np.isnan(row["difference_low"]) and np.isnan(row["difference_p_holm"])
    told = headline(Results(dataclasses.replace(study, tables=("branch_differences",)), outcomes))
    assert "no interval in 1" in " ".join(told)


def test_several_lr_without_minival_are_refused() -> None:
    study = small_study(Shape("S", 4), lrs=(0.01, 0.02))
    without = dataclasses.replace(
        study,
        trials=tuple(
            dataclasses.replace(t, config=t.config.replace(more_evals="")) for t in study.trials
        ),
    )
    outcomes = outcomes_of(without, lambda arm, config: {"val": 5.0})
    with refusing("arm='S4x1'"):
        shapes.all_shapes(Results(without, outcomes))


# ---- the paper's numbers


def test_published_differences_are_those_of_the_text() -> None:
    """Section 3.3: two branches are best in Figure 1; at 24 pairs
    Ti and S lose by them, B does not, and L gains.
    """
    table = published.published_depth_vs_width(Results(plan("demo"), pd.DataFrame()))
    delta = table.set_index(["source", "size", "pairs", "branches"])["val_minus_sequential_points"]
    for size, pairs in (("S", 36), ("S", 60), ("B", 36)):
        gaps = delta.sort_index().loc["Figure 1", size, pairs].dropna()
        assert gaps.idxmin() == 2 and gaps[2] < 0
    assert [
        delta["Figure 2", size, 24, 2].item() for size in ("Ti", "S", "B", "L")
    ] == pytest.approx([0.6, 0.5, 0.0, -0.1])
    trained = table[table["source"] == "Table 2"].set_index(["branches", "epochs", "layerscale"])[
        "val_error_pct"
    ]
    assert [trained[p, 300, False] - trained[p, 300, True] for p in (1, 2)] == pytest.approx(
        [1.0, 0.5]
    )
    same = table[table["source"] == "Table 2"]["val_minus_sequential_points"].dropna()
    assert same.tolist() == pytest.approx([-0.4, 0.1, 0.0, 0.0])


def test_numbers_that_no_text_prints_are_marked() -> None:
    """Touvron et al. 2022 print Tables 1 to 3; the values of
    Figures 1 to 3 are of an OCR of the charts.
    """
    figures = read("touvron2022_figures1_3")
    assert set(figures["origin"]) == {"chart read by a third party's OCR to 0.1"}
    assert all("origin" not in read(f"touvron2022_table{i}") for i in (1, 2, 3))


def test_numbers_read_off_the_charts_agree_with_the_tables() -> None:
    """To 0.1, where a table prints the same shape, trained alike."""
    table = published.shape_errors()
    key = ["size", "depth", "branches", "layerscale", "epochs"]
    printed = table[table["source"].str.startswith("Table")].groupby(key)["val_error_pct"].first()
    charts = table[table["source"].str.startswith("Figure")].set_index(key)["val_error_pct"]
    both = charts[charts.index.isin(printed.index)]
    assert len(both) == 8 and (both - printed.reindex(both.index)).abs().max() <= 0.1 + 1e-9


# ---- figures and report


def test_report_of_an_unfinished_study_with_divergence(tmp_path: Path) -> None:
    study = dataclasses.replace(plan("cifar", num=2), published=True)
    rng = np.random.default_rng(4)

    def error(arm: str, config: TrainConfig) -> dict[str, float] | None:
        return (
            None
            if config.depth == 12 and config.seed == 1
            else {
                name: 10 + 1600 * abs(config.lr - 0.001) + rng.normal(0, 0.3)
                for name in config.evals
            }
        )

    outcomes = outcomes_of(study, error)
    begun = outcomes["arm"].isin(study.panels["branches"])
    outcomes = outcomes.assign(status=outcomes["status"].where(begun, "missing"))
    outcomes.loc[~begun, [c for c in outcomes if c.endswith("value")]] = np.nan
    page = write_report(Results(study, outcomes, NO_ROWS), Workdir(tmp_path), {}, WITHOUT_PDF)
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in study.figures)
    cells = pd.read_csv(tmp_path / "shape_cells.csv").set_index("shape")
    assert (
        cells.loc["S12x1", ["n", "diverged"]].tolist() == [1, 1]
        and cells.loc["B4x1", "missing"] == 0
    )
    assert (
        cells["val_mean"].notna().sum() == 4
        and "S of 12 pairs, error minus that in sequence" in page
    )
    shown = text.to_markdown(shapes.branch_differences(Results(study, outcomes)))
    assert "single run: no interval" in shown and "epochs: n=0, 0 diverged" in shown


def test_figures_show_the_intervals_of_the_table_and_mark_divergence() -> None:
    study = plan("demo", num=3)
    rng = np.random.default_rng(5)
    outcomes = outcomes_of(
        study,
        lambda arm, config: (
            None
            if arm == "S6x2" and config.seed == 1002
            else {
                name: 20 + 300 * abs(config.lr - 0.016) + rng.normal(0, 0.5)
                for name in config.evals
            }
        ),
    )
    figure = known.FIGURES["branches"](Results(study, outcomes, NO_ROWS))
    ax, table = figure.axes[0], shapes.shape_cells(Results(study, outcomes)).set_index("shape")
    ends = sorted(tuple(bar[:, 1]) for bar in ax.collections[0].get_segments())
    arms = study.panels["branches"]
    expected = sorted((table.loc[a, "val_mean_low"], table.loc[a, "val_mean_high"]) for a in arms)
    assert np.array(ends) == pytest.approx(np.array(expected))
    assert "1/3" in [text.get_text() for text in ax.texts]
    assert "n=11, 1 diverged, 4 shapes" in figure.legends[0].get_texts()[0].get_text()


# ---- words and numbers of the sweep


def swept(num: int = 3) -> tuple[Study, pd.DataFrame]:
    """Two shapes at three lr, best at the middle one; a run of
    S2x2 diverged there, and all of the greatest lr.
    """
    study, rng = (
        small_study(*split("S", 4), num=num, lrs=(0.01, 0.02, 0.04)),
        np.random.default_rng(6),
    )

    def error(arm: str, config: TrainConfig) -> dict[str, float] | None:
        if config.lr == 0.04 or (arm == "S2x2" and config.lr == 0.02 and config.seed == 1):
            return None
        found = {name: rng.normal(20, 1) for name in config.evals}
        return {**found, "minival": 5.0 if config.lr == 0.02 else 90.0}

    return study, outcomes_of(study, error)


def test_numbers_of_a_shape_are_those_at_the_lr_that_minival_chose() -> None:
    study, outcomes = swept()
    numbers = summary(Results(study, outcomes))
    assert {arm: numbers[arm]["best_lr"] for arm in study.arms} == {"S4x1": 0.02, "S2x2": 0.02}
    ended = {
        arm: [numbers[arm][name] for name in ("n", "diverged", "failed", "missing")]
        for arm in study.arms
    }
    assert ended == {"S4x1": [3, 0, 0, 0], "S2x2": [2, 1, 0, 0]}
    for arm in study.arms:
        runs = outcomes[
            (outcomes["arm"] == arm) & (outcomes["lr"] == 0.02) & (outcomes["status"] == "finished")
        ]
        for name, column in (
            ("mean", "val_error_pct"),
            ("test_mean", "test_error_pct"),
        ):
            low, high = scipy.stats.t.interval(
                0.95, len(runs) - 1, runs[column].mean(), scipy.stats.sem(runs[column])
            )
            shown = [numbers[arm][f"{name}{end}"] for end in ("", "_low", "_high")]
            assert shown == pytest.approx([runs[column].mean(), low, high])


def test_a_shape_without_an_outcome_has_no_lr_and_all_its_runs_are_missing() -> None:
    study, outcomes = swept()
    numbers = summary(Results(study, outcomes.assign(status="missing")))
    ended = {"n": 0.0, "diverged": 0.0, "failed": 0.0, "missing": 9.0}
    assert numbers == dict.fromkeys(study.arms, ended)


def test_every_run_of_the_sweep_is_counted_once_and_those_shown_beside() -> None:
    study, outcomes = swept()
    outcomes.loc[(outcomes["arm"] == "S4x1") & (outcomes["lr"] == 0.01), "status"] = "missing"
    table = shape_words.counts(Results(study, outcomes)).set_index("shape")
    assert table["planned"].tolist() == [9, 9]
    assert table.loc["S4x1", ["finished", "diverged", "failed", "missing"]].tolist() == [3, 3, 0, 3]
    assert table.loc["S2x2", ["finished", "diverged", "failed", "missing"]].tolist() == [5, 4, 0, 0]
    assert table.loc["S2x2", ["finished there", "diverged there"]].tolist() == [2, 1]
    assert "3 of 18 runs, of S4x1." in shape_words.unfinished(Results(study, outcomes))
    assert shape_words.unfinished(Results(*swept())) == ""


def test_a_report_of_a_sweep_says_how_its_lr_was_chosen_and_speaks_of_no_draws(
    tmp_path: Path,
) -> None:
    study, outcomes = swept()
    study = dataclasses.replace(study, tables=("shape_cells", "branch_differences"))
    page = write_report(Results(study, outcomes, NO_ROWS), Workdir(tmp_path), {}, WITHOUT_PDF)
    assert not {
        word
        for word in ("draws", "drawn", "reference run", "independent", "share of")
        if word in page
    }
    assert "2 shapes, each at 3 lr with the same 3 seeds at each: 18 runs" in page
    assert (
        "0.01, 0.02, 0.04" in page and "lowest mean on minival over the runs that finished" in page
    )
    assert "val and test have no part in that choice" in page
    assert "Code: not recorded." in caveats(Results(study, outcomes))


def test_only_where_minival_chooses_an_lr_is_a_choice_told() -> None:
    """Not of single settings with several seeds, nor of draws that differ in lr alone."""
    study = swept()[0]
    one_lr = small_study(*split("S", 4))
    assert shape_words.chooses_lr(plan("demo", num=2)) and shape_words.chooses_lr(
        plan("cifar", num=1)
    )
    assert not any(map(shape_words.chooses_lr, (plan("imagenet"), one_lr)))
    without_size = tuple(
        dataclasses.replace(t, arm=Arm(t.arm.name, {"model": t.arm.name})) for t in study.trials
    )
    with refusing("arm='S4x1'"):
        dataclasses.replace(study, trials=without_size, tables=("shape_cells",), figures=())


def test_arms_without_a_size_choose_an_lr_and_are_called_arms() -> None:
    """The numbers are those of the same runs as shapes."""
    shaped, outcomes = swept()
    study = dataclasses.replace(
        shaped,
        trials=tuple(
            dataclasses.replace(t, arm=Arm(t.arm.name, {"model": t.arm.name}))
            for t in shaped.trials
        ),
        tables=("pair_differences", "arm_means"),
        figures=(),
    )
    results, before = Results(study, outcomes), Results(shaped, outcomes)
    assert shape_words.summary(results) == shape_words.summary(before)
    counts = shape_words.counts(results).rename(columns={"arm": "shape"})
    pd.testing.assert_frame_equal(counts, shape_words.counts(before))
    said = [shape_words.design_text(study), *shape_words.caveats(results)]
    assert "shape" not in " ".join([*said, *shape_words.design(study)])
    assert f"{len(study.arms)} arms, each at" in said[0]


def test_means_of_arms_are_those_at_the_lr_that_minival_chose() -> None:
    shaped, outcomes = swept()
    results = Results(shaped, outcomes)
    means = arm_means(results).set_index("arm")
    cells = shapes.shape_cells(results).set_index("shape")
    for ours, to in (("mean", "val_mean"), ("mean_low", "val_mean_low"), ("lr", "lr"), ("n", "n")):
        np.testing.assert_array_equal(means[ours], cells[to].loc[means.index])
    runs = [t for t in shaped.trials if t.arm.name == means.index[0]]
    assert means["n"].iloc[0] < len(runs)


# ---- a shortened demo


@pytest.mark.slow
def test_a_shortened_demo_runs_and_reports_the_lr_that_minival_chose(tmp_path: Path) -> None:
    pairs = split("S", 4)
    script = shortened(
        tmp_path,
        "depth_vs_width",
        panels={
            "branches": pairs,
            "widths": pairs,
            "depths": pairs,
            "blocks or width": (Shape("B", 1),),
        },
        pairs=((Shape("S", 4), Shape("B", 1)),),
        lrs=(4e-3, 1.6e-2),
        sizes={size: {**fields, "epochs": 3} for size, fields in demo.SHAPE_SIZES.items()},
    )
    result = script.run("--num", "2")
    assert result.returncode == 0 and "12 finished" in result.stdout, result.stdout
    folder = tmp_path / "runs" / "studies" / "depth_vs_width-demo" / "report"
    last = pd.read_parquet(folder / "rows.parquet").sort_values("epoch").groupby("trial_id").last()
    means = last.groupby(["arm", "lr"])[
        ["minival_error_pct", "val_error_pct", "test_error_pct"]
    ].mean()
    cells = pd.read_csv(folder / "shape_cells.csv").set_index("shape")
    for arm in ("S4x1", "S2x2", "B1x1"):
        assert cells.loc[arm, "lr"] == means.loc[arm]["minival_error_pct"].idxmin()
        for name in ("val", "test"):
            mean = means.loc[arm, cells.loc[arm, "lr"]][f"{name}_error_pct"]
            assert cells.loc[arm, f"{name}_mean"] == pytest.approx(mean)
    assert (folder / "report.html").stat().st_size > 10_000
