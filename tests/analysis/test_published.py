"""The papers' numbers behind ours: the print itself, positions
in data, what stays out, and the list of studies.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, load_script
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support import known

from vitscale.analysis.published import tables as published
from vitscale.analysis.published.figures import GREY, note
from vitscale.analysis.report.report import summary
from vitscale.analysis.results import Results
from vitscale.analysis.stats import spread
from vitscale.plan.study import Study, from_json, to_json

NO_ROWS = pd.DataFrame(columns=["arm", "point", "trial_id", "status", "epoch"])


@functools.cache
def plan(name: str, scale: str = "demo") -> Study:
    """A study of the project with few draws or seeds, that shows the papers' numbers."""
    return replace(load_script(ROOT / "studies" / f"{name}.py").study(scale, num=6), published=True)


def make_outcomes(study: Study, mean: float = 5.0, status: str = "finished") -> pd.DataFrame:
    """Every trial has error mean plus noise on each set; `status` of all of them."""
    done = status == "finished"
    rng, rows = np.random.default_rng(0), []
    kind = study.metric.removeprefix(f"{study.trials[0].config.eval_split}_")
    for trial in study.trials:
        found = {
            f"{name}_{kind}": mean + rng.normal() if done else 100.0 for name in trial.config.evals
        }
        error = np.nan if status == "missing" else found[study.metric]
        rows.append(
            {
                "arm": trial.arm.name,
                "point": trial.point,
                "trial_id": trial.config.id,
                "status": status,
                "value": error,
                **trial.config.asdict(),
                **found,
                "commit": "abc",
            }
        )
    return pd.DataFrame(rows).astype({"point": "Int64"})


def make_rows(outcomes: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Errors that fall to the final one."""
    epochs = study.trials[0].config.epochs
    columns = [name for name in outcomes if name.endswith("_error_pct")]
    labels = outcomes[["arm", "point", "trial_id", "status"]].assign(diverged=0.0)
    curves = [
        {name: outcomes[name] + 20 * (1 - e / epochs) for name in columns}
        for e in range(1, epochs + 1)
    ]
    return pd.concat([labels.assign(epoch=e + 1.0, **errors) for e, errors in enumerate(curves)])


def draw(name: str, study: Study, status: str = "finished", mean: float = 5.0) -> Figure:
    outcomes = make_outcomes(study, mean, status)
    return known.FIGURES[name](
        Results(study, outcomes, make_rows(outcomes, study) if status == "finished" else NO_ROWS)
    )


def grey(ax: Axes) -> list:
    return [line for line in ax.lines if line.get_color() == GREY]


def said(figure: Figure) -> str:
    return " ".join(figure._supxlabel.get_text().split())  # type: ignore[attr-defined]


def test_activations_predict_minutes_per_epoch_and_multiply_adds_less() -> None:
    """Xiao et al. 2021, Figure 9, has more models than Table 2: its r lie in our intervals."""
    found = published.runtime_correlations().set_index("cost")
    table = published.read("xiao2021_table2")
    for name, row in found.iterrows():
        r = scipy.stats.pearsonr(table["epoch_time_min"], table[name]).statistic
        assert row["r"] == pytest.approx(r)
        assert row["r_low"] < row["printed"] < row["r_high"]
    assert found["r"].round(2).tolist() == [0.64, 0.65, 0.93]
    assert (found["acts_minus_r_low"].dropna() > 0).all() and found["acts_minus_r"].count() == 2


def test_printed_activations_are_those_of_the_table_of_costs() -> None:
    costs = pd.read_csv(published.table_path("complexity"), dtype=str)
    costs = costs[costs["source"] == "Xiao et al. 2021, Table 2"].set_index("name")["acts_m"]
    ours = published.read("xiao2021_table2").set_index("model")["acts_m"]
    assert len(costs) == 20 and ours[costs.index].tolist() == costs.astype(float).tolist()


OVERLAYS = {
    "training_length": "training_length",
    "optimizer_stability": "optimizer_stability",
    "edf_panels": "lr_wd_edf",
    "seed_histogram": "seed_distribution",
    "seed_sets": "seed_distribution",
    "seed_curves": "seed_distribution",
    "recipe_interaction": "recipe_vs_architecture",
}
WITHOUT = {
    "seed_intermediate": "seed_distribution",
    "lr_wd_scatter": "lr_wd_edf",
    "learning_curves": "lr_wd_edf",
}


@pytest.mark.parametrize(("name", "script"), OVERLAYS.items())
def test_theirs_is_grey_named_in_the_note_and_in_no_legend(name: str, script: str) -> None:
    study = plan(script)
    shown, plain = draw(name, study), draw(name, replace(study, published=False))
    assert any(grey(ax) or ax.child_axes for ax in shown.axes)
    assert not any(grey(ax) or ax.child_axes for ax in plain.axes)
    assert re.search(
        r"Grey, behind: (Xiao et al\. 2021|H\. Touvron's thesis, 2022), ImageNet", said(shown)
    )
    assert "ImageNet" not in said(plain) and "papers" not in said(plain)
    legends = [
        [
            [text.get_text() for text in ax.get_legend().get_texts()]
            for ax in drawn.axes
            if ax.get_legend()
        ]
        for drawn in (shown, plain)
    ]
    assert legends[0] == legends[1]


@pytest.mark.parametrize(("name", "script"), WITHOUT.items())
def test_a_figure_without_printed_numbers_says_so(name: str, script: str) -> None:
    figure = draw(name, plan(script))
    assert "The papers print no number for what this figure shows." in said(figure)
    assert not any(grey(ax) or ax.child_axes for ax in figure.axes)


@pytest.mark.parametrize(("name", "script"), OVERLAYS.items())
def test_overlays_stand_a_study_without_outcomes_and_claim_nothing_that_is_not_drawn(
    name: str, script: str
) -> None:
    figure = draw(name, plan(script), "missing")
    drawn = any(grey(ax) or ax.child_axes for ax in figure.axes)
    assert ("Grey, behind" in said(figure)) == drawn


def test_training_length_has_the_deltas_of_table_2_at_their_share_of_our_longest() -> None:
    (ax,) = draw("training_length", plan("training_length")).axes
    joined = {line.get_marker(): line for line in grey(ax) if len(line.get_xdata()) == 3}
    # ViT_P-1GF
    assert joined["o"].get_ydata().tolist() == pytest.approx([33.2 - 27.7, 29.7 - 27.7, 0])
    # ViT_C-1GF
    assert joined["s"].get_ydata().tolist() == pytest.approx([28.6 - 24.7, 26.1 - 24.7, 0])
    assert (2 ** joined["o"].get_xdata()).tolist() == pytest.approx(
        [20, 40, 80]
    )  # ours: 10 to 80 epochs, theirs to 400
    alone = {
        line.get_marker(): (2 ** line.get_xdata()[0], line.get_ydata()[0])
        for line in grey(ax)
        if len(line.get_xdata()) == 1
    }
    assert alone == {"o": pytest.approx((10, 10)), "s": pytest.approx((10, 6))}  # section 5.1


def test_stability_at_imagenet_has_tables_2_and_3_of_the_panel_s_models() -> None:
    axes = draw("optimizer_stability", plan("optimizer_stability", "imagenet"), mean=25.0).axes
    points = [sorted(float(y) for line in grey(ax) for y in line.get_ydata()) for ax in axes]
    assert points[1] == sorted(
        [23.3, 20.8, 19.6, 20.9, 19.2, 18.6, 19.4, 18.3, 17.9, 27.7, 24.0, 33.0, 24.7]
    )
    (inset,) = axes[-1].child_axes
    assert sorted(text.get_text() for text in inset.texts) == [
        "RegNetY about 0.1 to 0.2",
        "ViT_C less than 0.2",
        "ViT_C-4GF 0.7",
        "ViT_P up to 10",
        "ViT_P-4GF 5.3",
    ]
    assert not any(ax.child_axes for ax in axes[:-1])


def test_the_gaps_of_table_3_are_those_of_its_errors_but_for_the_misprint() -> None:
    table = published.read("xiao2021_table3").set_index("stem")
    derived = (table["error_sgd_pct"] - table["error_adamw_pct"]).round(1)
    assert derived[derived != table["gap_points"]].to_dict() == {"S4": 1.7}  # printed 1.3


@pytest.mark.parametrize(("scale", "panel"), [("demo", "SGD"), ("imagenet", "SGD 18GF")])
def test_shares_of_figure_5_stand_in_the_panel_of_sgd_alone(scale: str, panel: str) -> None:
    drawn = {ax.get_title(): grey(ax) for ax in draw("edf_panels", plan("lr_wd_edf", scale)).axes}
    assert [title for title, lines in drawn.items() if lines] == [panel]
    at = {tuple(line.get_ydata()) for line in drawn[panel] if set(line.get_xdata()) == {4}}
    assert {(0.6,), (0, 0.2)} <= at


def test_the_whisker_of_the_share_is_the_exact_interval_of_38_of_64() -> None:
    axes = {ax.get_title(): ax for ax in draw("edf_panels", plan("lr_wd_edf")).axes}
    (container,) = axes["SGD"].containers
    ((_, low), (_, high)) = container.lines[2][0].get_segments()[0]
    exact = scipy.stats.binomtest(38, 64).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))


def test_seed_statistics_are_those_of_figure_6_7_on_an_axis_where_a_point_is_as_long_as_ours() -> (
    None
):
    study = plan("seed_distribution")
    ax = draw("seed_histogram", study).axes[0]
    (own,) = ax.child_axes
    own.figure.draw_without_rendering()
    ends = next(
        line.get_xdata()
        for line in grey(ax)
        if line.get_marker() == "|" and len(line.get_xdata()) == 2
    )
    ours = make_outcomes(study).query("point.notna()")["val_ema_error_pct"].mean()
    assert (np.array(ends) - ours + (100 - 79.72)).tolist() == pytest.approx(
        [100 - 79.98, 100 - 79.50]
    )
    assert np.ptp(own.get_xlim()) == pytest.approx(np.ptp(ax.get_xlim()))
    assert own.get_xlim()[0] - ax.get_xlim()[0] == pytest.approx(100 - 79.72 - ours)


def test_seed_statistics_at_imagenet_stand_at_their_own_place() -> None:
    axes = draw("seed_histogram", plan("seed_distribution", "imagenet"), mean=25.0).axes
    ends = [
        next(tuple(line.get_xdata()) for line in grey(ax) if len(line.get_xdata()) == 2)
        for ax in axes
    ]
    # val, v2, real
    assert ends == [
        pytest.approx(pair) for pair in ((20.02, 20.50), (31.31, 32.61), (14.45, 14.79))
    ]
    assert not any(ax.child_axes for ax in axes)


def test_ranges_by_epoch_are_10_points_at_a_third_and_0_48_at_the_end() -> None:
    early, late = draw("seed_curves", plan("seed_distribution")).axes
    (at_third,), (at_end,) = grey(early), grey(late)
    assert np.ptp(at_third.get_ydata()) == pytest.approx(10) and at_third.get_xdata()[
        0
    ] == pytest.approx(20 / 3)
    assert (
        np.ptp(at_end.get_ydata()) == pytest.approx(79.98 - 79.50) and at_end.get_xdata()[0] == 20
    )


def test_recipe_lines_have_the_interaction_of_section_6_3_4() -> None:
    """The thesis does not give the number of runs per cell."""
    study = plan("recipe_vs_architecture")
    assert "as far as stated one run per cell" in note(study, "recipe_interaction", drawn=True)
    for ax, interaction in zip(draw("recipe_interaction", study).axes, (-1.5, -1.1), strict=True):
        lines = {line.get_marker(): np.array(line.get_ydata()) for line in grey(ax)}
        assert np.subtract(*(lines["o"] - lines["s"])) == pytest.approx(interaction)
        everything = np.concatenate(list(lines.values()))
        assert ax.get_ylim()[0] < everything.min() and everything.max() < ax.get_ylim()[1]


def test_tables_and_metrics_do_not_know_whether_theirs_is_shown() -> None:
    study = plan("training_length")
    outcomes, plain = make_outcomes(study), replace(study, published=False)
    assert summary(Results(study, outcomes)) == summary(Results(plain, outcomes))
    for name in study.tables:
        shown, other = (known.TABLES[name](Results(s, outcomes, NO_ROWS)) for s in (study, plain))
        pd.testing.assert_frame_equal(shown, other)


def test_a_study_keeps_whether_theirs_is_shown_and_older_plans_do_not_show_it() -> None:
    study = plan("training_length")
    stored = json.loads(json.dumps(to_json(study)))
    assert from_json(stored) == study
    del stored["published"]
    assert from_json(stored) == replace(study, published=False)


def test_images_of_the_thesis_sets_are_ours_where_it_prints_none() -> None:
    assert "images" not in published.read("thesis_seed_statistics")
    table = published.published_seed_statistics(Results(plan("seed_distribution"), pd.DataFrame()))
    assert dict(zip(table["evaluation"], table["images"], strict=True)) == {
        "val": 50_000,
        "v2": 10_000,
        "real": 46_837,
    }


def test_uncorrelated_pairs_are_as_many_as_seeds_of_an_arm() -> None:
    """What seed_power says of its assumption of a correlation of 1/2."""
    for difference in (0.5, 1.0, 2.0):
        alone = spread.seeds_needed(difference, 1.0)
        assert alone <= spread.seeds_needed(difference, 1.0, correlation=0.0) <= alone + 2
        assert spread.seeds_needed(difference, 1.0, correlation=0.5) < alone


# ---- the list of studies


@pytest.mark.parametrize("page", ["README.md", "docs/studies/index.md", "mkdocs.yml"])
def test_every_study_is_listed(page: str) -> None:
    """With its own page, which README leaves to the list."""
    text = (ROOT / page).read_text()
    pattern = {
        "README.md": r"`(\w+)`",
        "docs/studies/index.md": r"^\| \[(\w+)\]\(\1\.md\) ",
        "mkdocs.yml": r"studies/(\w+)\.md$",
    }[page]
    named = set(re.findall(pattern, text, re.MULTILINE)) - {"index"}
    scripts = {path.stem for path in (ROOT / "studies").glob("*.py")}
    assert scripts <= named if page == "README.md" else scripts == named
    pages = {path.stem for path in (ROOT / "docs" / "studies").glob("*.md")}
    assert pages == {*scripts, "index"}
