"""Figures, headline and report: what is drawn and said, not how it looks."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from conftest import WITHOUT_PDF
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.path import Path as Path2D
from support.outcomes import make_outcomes, make_rows, make_study, random_errors
from support.pages import EVERYTHING, Page

from vitscale.analysis import kinds
from vitscale.analysis.distribution import edf_figures, figures
from vitscale.analysis.distribution import population as population_module
from vitscale.analysis.distribution.population import population
from vitscale.analysis.distribution.tables import arm_comparison
from vitscale.analysis.kinds import check
from vitscale.analysis.report.layout import COLORS
from vitscale.analysis.report.report import (
    caveats,
    headline,
    summary,
    write_report,
)
from vitscale.analysis.report.save import as_files
from vitscale.analysis.report.text import as_text, to_latex
from vitscale.analysis.results import Results
from vitscale.analysis.stats.bands import share_bounds
from vitscale.analysis.stats.sequential import Looks
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import ERROR
from vitscale.record.workdir import Workdir


def all_text(figure: matplotlib.figure.Figure) -> str:
    return "\n".join(
        text.get_text() for ax in figure.axes for text in [ax.title, ax._left_title, *ax.texts]
    )


# ---- figures


def test_drawn_edf_is_the_share_of_all_draws_with_an_outcome():
    study = make_study(20)
    status = {("a", 0): "diverged", ("a", 1): "failed", ("a", 19): "missing", ("b", 5): "diverged"}
    outcomes = make_outcomes(study, random_errors(study), status)
    figure = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes)))
    (ax,) = figure.axes
    for line, arm, n in zip(ax.lines, ("a", "b"), (19, 20), strict=True):
        assert line.get_drawstyle() == "steps-post"
        x, y = line.get_xydata().T
        arm_rows = outcomes[(outcomes["arm"] == arm) & outcomes["point"].notna()]
        finished = arm_rows.loc[arm_rows["status"] == "finished", "value"] - 10
        for at in np.linspace(x[0], 10, 57):
            drawn = y[np.searchsorted(x, at, side="right") - 1]
            assert drawn == pytest.approx((finished <= at).sum() / n)
        assert y[-1] < 1
    texts = [text.get_text() for text in ax.texts]
    assert "a, n=19\n1 diverged\n1 failed\n1 missing" in "".join(texts[:1])
    assert texts[1].startswith("b, n=20\n1 diverged")


def test_three_arms_are_drawn_each_against_the_first_one_without_its_band() -> None:
    study = make_study(8, arms=("a", "b", "c"))
    outcomes = make_outcomes(study, random_errors(study))
    axes = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes))).axes
    grey, blue, green = ("#888888", *(to_hex(COLORS[place]) for place in (1, 2)))
    drawn = [[to_hex(line.get_color()) for line in ax.lines] for ax in axes]
    assert drawn == [[grey, blue], [grey, green]]
    bands = [[to_hex(band.get_facecolor()[0]) for band in ax.collections] for ax in axes]
    assert bands == [[blue], [green]]
    assert [text.get_text() for text in axes[1].texts] == ["a, n=8", "c, n=8"]
    assert [line.get_xydata().tolist() for line in (axes[0].lines[0], axes[1].lines[0])] == [
        axes[0].lines[0].get_xydata().tolist()
    ] * 2
    first, second = (axes[0].lines[1], axes[1].lines[1])
    assert str(first._dash_pattern) != str(second._dash_pattern)


def test_the_panel_states_the_comparison_of_its_pair_with_the_larger_area_first() -> None:
    study = make_study(12, num_references=4, pairs=(("a", "b"),))
    errors = {"a": np.arange(12) + 12.0, "b": np.arange(12) / 10 + 12}
    outcomes = make_outcomes(study, errors)
    results = Results(study, outcomes, make_rows(study, outcomes))
    (ax,) = edf_figures.edf_panels(results).axes
    row = results.once(arm_comparison).iloc[0]
    said = next(text.get_text() for text in ax.texts if "area" in text.get_text())
    ends = f"{-row['area_difference_high']:.2f}, {-row['area_difference_low']:.2f}"
    assert row["area_difference"] < 0 and "-" not in said
    assert said == (
        f"area of b\n− a: {-row['area_difference']:.2f}\n[{ends}], p = {row['area_p_holm']:.3f}"
    ).replace("p = 0.000", "p < 0.001")
    assert (
        "Areas: under the curves from 0 to 10 points"
        in edf_figures.edf_panels(results).get_supxlabel()
    )


def test_panels_of_three_arms_state_differences_to_the_first_one_whatever_their_sign() -> None:
    study = make_study(12, ("a", "b", "c"), num_references=4, pairs=(("b", "a"), ("a", "c")))
    errors = {"a": np.arange(12) + 12.0, "b": np.arange(12) / 10 + 12, "c": np.arange(12) + 18.0}
    outcomes = make_outcomes(study, errors)
    given = (study, outcomes, make_rows(study, outcomes))
    figure = edf_figures.edf_panels(Results(*given))
    said = re.findall(r"area of (.)\n− (.): (.)", all_text(figure))
    assert said == [("b", "a", "0"), ("c", "a", "−")]
    looks = "for all looks at the study; intervals are for this look alone"
    assert looks not in " ".join(figure.get_supxlabel().split())
    second = edf_figures.edf_panels(Results(*given, looks=Looks(number=2, growth="grown")))
    note = " ".join(second.get_supxlabel().split())
    assert f"p after Holm's correction for 2 pairs and {looks}" in note


def test_axes_on_which_no_draw_differs_are_not_drawn() -> None:
    study = make_study(8, num_references=1)
    fixed = tuple(
        dataclasses.replace(t, config=t.config.replace(wd=0.1, seed=t.config.seed + (t.point or 0)))
        for t in study.trials
    )
    study = dataclasses.replace(study, trials=fixed)
    outcomes = make_outcomes(study, random_errors(study))
    results = Results(study, outcomes, make_rows(study, outcomes))
    assert [ax.get_xlabel() for ax in figures.lr_wd_scatter(results).axes] == ["lr"]


def test_names_cover_no_curve_and_no_other_text() -> None:
    """At twelve seeds, with the extents that a renderer measures."""
    for seed in range(12):
        study = make_study(16, num_references=4, pairs=(("a", "b"),))
        outcomes = make_outcomes(study, random_errors(study, seed))
        figure = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes)))
        FigureCanvasAgg(figure).draw()
        (ax,) = figure.axes
        boxes = [text.get_window_extent() for text in ax.texts]
        assert len(boxes) == 3
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        for line in ax.lines:
            steps = np.repeat(line.get_xydata(), 2, axis=0)
            corners = np.stack([steps[1:, 0], steps[:-1, 1]], axis=1)
            path = Path2D(ax.transData.transform(corners))
            assert not any(path.intersects_bbox(box, filled=False) for box in boxes)
        assert all(ax.bbox.contains(*corner) for box in boxes for corner in (box.p0, box.p1))


def test_x_ends_where_nothing_changes_any_more() -> None:
    study = make_study(16, num_references=4)
    outcomes = make_outcomes(study, {"a": np.arange(16) / 10 + 11.5, "b": np.full(16, 12.0)})
    (ax,) = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes))).axes
    reach = 3.1824 * np.sqrt(5 / 3) / 2  # t of 3 df times the SE of 10, 11, 12 and 13
    changes = 13.0 - 11.5 + reach  # of the band of a
    assert changes < ax.get_xlim()[1] < 1.15 * changes


def test_a_panel_per_entry_of_the_study():
    panels = {"first": ("a", "b"), "second": ("c",)}
    study = make_study(8, arms=("a", "b", "c"), panels=panels)
    outcomes = make_outcomes(study, random_errors(study))
    rows = make_rows(study, outcomes)
    axes = edf_figures.edf_panels(Results(study, outcomes, rows)).axes
    assert [(ax.get_title(), len(ax.lines)) for ax in axes] == [("first", 2), ("second", 1)]
    assert len(figures.lr_wd_scatter(Results(study, outcomes, rows)).axes) == 6


def test_a_missing_reference_makes_the_panel_absolute_and_is_said():
    study = make_study(8)
    errors = random_errors(study)
    outcomes = make_outcomes(study, errors, {("b", None): "missing"})
    figure = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes)))
    assert "no finished reference of b" in all_text(figure)
    assert figure.axes[0].get_xlabel() == "val error (%)"
    drawn = figure.axes[0].lines[1].get_xdata()
    assert np.allclose(drawn[1:-1], np.sort(errors["b"]))


def test_scatter_draws_diverged_draws_at_the_top_and_the_optimum_as_a_line():
    study = make_study(16)
    status = {("a", 3): "diverged", ("a", 4): "failed"}
    outcomes = make_outcomes(study, random_errors(study), status)
    axes = figures.lr_wd_scatter(Results(study, outcomes, make_rows(study, outcomes))).axes
    draws = population(study, outcomes, "a")
    for ax, name in zip(axes, ("lr", "wd", "lr*wd"), strict=True):
        assert ax.get_xscale() == "log"
        marks = {line.get_marker(): line for line in reversed(ax.lines)}
        assert marks["o"].get_xdata().tolist() == draws.values[name][draws.finished].tolist()
        for marker, state in (("x", "diverged"), ("+", "failed")):
            assert (
                marks[marker].get_xdata().tolist()
                == draws.values[name][draws.status == state].tolist()
            )
            assert (np.asarray(marks[marker].get_ydata()) > 0.9).all()  # of the axes' height
        vertical = [
            line for line in ax.lines if list(line.get_xdata()) == [draws.setting[name]] * 2
        ]
        assert len(vertical) == 2  # one an arm


def test_a_reference_outside_the_axes_is_an_arrow_and_its_error_a_tick():
    study = make_study(16)
    outcomes = make_outcomes(study, random_errors(study))
    outcomes.loc[(outcomes["arm"] == "b") & outcomes["point"].isna(), "lr"] = 5.0
    ax = figures.lr_wd_scatter(Results(study, outcomes, make_rows(study, outcomes))).axes[0]
    marks = {line.get_marker(): line for line in ax.lines}
    assert (marks[">"].get_xdata()[0], marks[">"].get_ydata()[0]) == (1.0, 10.0)
    assert (marks["_"].get_xdata()[0], marks["_"].get_ydata()[0]) == (TrainConfig().lr, 10.0)
    assert ax.get_xlim()[1] < 5


def test_panels_share_the_range_of_x():
    study = make_study(8, panels={"first": ("a",), "second": ("b",)})
    outcomes = make_outcomes(study, {"a": 2 * np.arange(8.0) + 9, "b": np.arange(8.0) + 4})
    first, second = edf_figures.edf_panels(
        Results(study, outcomes, make_rows(study, outcomes))
    ).axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[0] == pytest.approx(-6.3) and 9 < first.get_xlim()[1] <= 10


def test_edf_against_the_best_draw_starts_at_it_and_is_labelled():
    study = make_study(4)
    outcomes = make_outcomes(
        study, {"a": [5, 6, 8, 40], "b": [20, 21, 22, 23]}, {("b", None): "missing"}
    )
    figure = edf_figures.edf_panels_vs_best(Results(study, outcomes, make_rows(study, outcomes)))
    (ax,) = figure.axes
    assert ax.lines[0].get_xydata()[:4].tolist() == [[0, 0.25], [1, 0.5], [3, 0.75], [10, 0.75]]
    assert "best of n draws: depends on n" in ax.get_xlabel()
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["a, n=4\n1 beyond 10 points", "b, n=4"]


def test_the_note_of_the_edf_says_what_the_bands_are():
    study = make_study(4)
    outcomes = make_outcomes(study, random_errors(study))
    note = (
        edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes)))
        .get_supxlabel()
        .replace("\n", " ")
    )
    assert "Bands: 95%, of the whole curve, conditional on the references." in note
    study = make_study(4, num_references=3)
    outcomes = make_outcomes(study, random_errors(study))
    note = (
        edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes)))
        .get_supxlabel()
        .replace("\n", " ")
    )
    assert "Bands: 95%, of the whole curve, with the references' noise." in note
    note = (
        edf_figures.edf_panels_vs_best(Results(study, outcomes, make_rows(study, outcomes)))
        .get_supxlabel()
        .replace("\n", " ")
    )
    assert "conditional on the best draws" in note


def test_drawn_bands_hold_the_curve_for_every_reference_that_may_be():
    """With three runs, 10, 11 and 12, the reference may lie
    2.48 points lower or higher: t of 2 df, 4.303 SE.
    """
    study = make_study(16, num_references=3)
    outcomes = make_outcomes(study, random_errors(study))
    (ax,) = edf_figures.edf_panels(Results(study, outcomes, make_rows(study, outcomes))).axes
    errors = outcomes.loc[(outcomes["arm"] == "a") & outcomes["point"].notna(), "value"].to_numpy()
    path = ax.collections[0].get_paths()[0]  # the band of a: edges of a step function
    (lower, upper), reach = share_bounds(16), 4.3027 / np.sqrt(3)
    for at in (0.31, 1.7, 4.2):
        edges = np.sort([y for x, y in path.vertices if x <= at][-400:])
        low, high = (int(np.sum(errors <= 11 + at + off)) for off in (-reach, reach))
        assert path.contains_point((at, lower[low] + 1e-4)) and len(edges)
        assert path.contains_point((at, upper[high] - 1e-4))
        assert not path.contains_point((at, lower[low] - 0.02))


def test_learning_curves_draw_every_reference_thick():
    study = make_study(4, num_references=3)
    outcomes = make_outcomes(study, random_errors(study))
    (ax,) = figures.learning_curves(Results(study, outcomes, make_rows(study, outcomes))).axes
    assert len([line for line in ax.lines if line.get_linewidth() > 2]) == 6


def test_every_learning_curve_says_what_it_is_unless_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two arms of 4 draws and 3 references; thin lines of more vertices are one picture."""
    study = make_study(4, num_references=3)
    outcomes = make_outcomes(study, random_errors(study))
    results = Results(study, outcomes, make_rows(study, outcomes))
    for most, titled in ((figures.MAX_VERTICES, 14), (1, 6)):
        monkeypatch.setattr(figures, "MAX_VERTICES", most)
        svg = as_files(figures.learning_curves(results), ["svg"])["svg"].decode()
        titles = re.findall(r"<title>(.*?): .*?trial (.*?)</title>", svg, re.DOTALL)
        assert len(titles) == len(set(titles)) == titled
        assert ("<image" in svg) == (titled == 6)
    assert {trial.config.id for trial in study.trials} >= {trial_id for _, trial_id in titles}


def test_learning_curves_leave_out_the_100_of_a_diverged_row_and_mark_its_epoch():
    study = make_study(8)
    outcomes = make_outcomes(study, random_errors(study), {("a", 3): "diverged"})
    (ax,) = figures.learning_curves(Results(study, outcomes, make_rows(study, outcomes))).axes
    segments = ax.collections[0].get_segments()
    assert sorted(len(segment) for segment in segments) == [2] + [6] * 7
    assert max(segment[:, 1].max() for segment in segments) == 90
    (cross,) = [line for line in ax.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert cross.get_xdata().tolist() == [3]
    references = [line for line in ax.lines if line.get_linewidth() > 2]
    assert len(references) == 2


UNFINISHED = {
    "nothing yet": {(arm, point): "missing" for arm in "ab" for point in [None, *range(8)]},
    "an arm not begun": {("b", point): "missing" for point in [None, *range(8)]},
    "only references": {(arm, point): "missing" for arm in "ab" for point in range(8)},
    "one draw": {(arm, point): "missing" for arm in "ab" for point in range(1, 8)},
    "all diverged": {(arm, point): "diverged" for arm in "ab" for point in range(8)},
    "references diverged": {(arm, None): "diverged" for arm in "ab"},
}


@pytest.mark.parametrize("case", UNFINISHED)
@pytest.mark.parametrize("num_scrambles", [0, 2])
def test_every_figure_and_the_report_work_on_an_unfinished_study(case, num_scrambles, tmp_path):
    study = make_study(8, num_scrambles=num_scrambles, **EVERYTHING)
    outcomes = make_outcomes(study, random_errors(study), UNFINISHED[case])
    rows = make_rows(study, outcomes)
    results, facts = Results(study, outcomes, rows), {"command": "python x.py"}
    text = write_report(results, Workdir(tmp_path), facts, WITHOUT_PDF)
    assert ("Unfinished." in text) == any(state == "missing" for state in UNFINISHED[case].values())
    drawn = edf_figures.edf_panels(Results(study, outcomes, rows))
    assert ("no outcome yet" in all_text(drawn)) == (case in ("nothing yet", "only references"))
    if case == "all diverged":
        assert all(line.get_ydata().max() == 0 for line in drawn.axes[0].lines)
    assert len(headline(Results(study, outcomes))) == 5


def test_a_study_with_no_row_at_all_draws_empty_curves():
    study = make_study(4)
    outcomes = make_outcomes(study, random_errors(study), UNFINISHED["nothing yet"])
    bare = pd.DataFrame({name: [] for name in ("study", "arm", "point", "trial_id", "status")})
    assert "no row yet" in all_text(figures.learning_curves(Results(study, outcomes, bare)))


SETTINGS = {
    "font.family": ["serif"],
    "axes.unicode_minus": False,
    "savefig.bbox": "tight",
    "savefig.facecolor": "black",
    "axes.grid.which": "both",
    "xtick.direction": "in",
    "path.simplify": False,
}


def test_files_of_a_figure_are_the_same_bytes_whatever_the_user_has_set() -> None:
    study = make_study(8)
    outcomes = make_outcomes(study, random_errors(study))
    rows = make_rows(study, outcomes)
    for draw in kinds.KINDS["distribution"].figures.values():
        first = as_files(draw(Results(study, outcomes, rows)))
        with matplotlib.rc_context(SETTINGS):
            second = as_files(draw(Results(study, outcomes, rows)))
        assert set(first) == {"png", "svg", "pdf"} and first == second
        assert b"<dc:date>" not in first["svg"] and b"/CreationDate" not in first["pdf"]
        assert b"/FontFile2" in first["pdf"] and b"/Type3" not in first["pdf"]  # TrueType
        labels = (b"epoch", b"share of draws", b">lr<", b"draws tried")
        assert any(label in first["svg"] for label in labels)


def test_marks_and_lines_of_many_points_are_pixels():
    """A study of 100,000 draws made an SVG of 37 MB, and a page of 56 MB."""
    sizes = {}
    for num in (4_900, 5_100):
        figure = matplotlib.figure.Figure()
        line, cloud, area = figure.subplots(1, 3)
        x = np.linspace(0, 1, num)
        line.step(x, np.sin(9 * x))
        cloud.scatter(x, np.random.default_rng(0).random(num))
        area.fill_between(x[: num // 2], np.cos(x[: num // 2]))  # two corners a point
        svg = as_files(figure, ["svg"])["svg"]
        sizes[num] = len(svg)
        assert svg.count(b"<image ") == (0 if num == 4_900 else 3)
    assert sizes[5_100] < sizes[4_900] / 4


def test_of_many_draws_the_first_have_learning_curves(monkeypatch):
    study = make_study(8)
    outcomes = make_outcomes(study, random_errors(study))
    rows = make_rows(study, outcomes)
    of_all = drawn_curves(figures.learning_curves(Results(study, outcomes, rows)))
    monkeypatch.setattr(figures, "MAX_CURVES", 3)
    some = figures.learning_curves(Results(study, outcomes, rows))
    assert "one draw each, the first 3 of an arm" in " ".join(some.get_supxlabel().split())
    assert drawn_curves(some) == 3 * of_all / 8


def drawn_curves(figure):
    """Thin lines of a figure."""
    return sum(len(collection.get_segments()) for collection in figure.findobj(LineCollection))


def test_rows_are_the_same_whatever_part_of_them_is_written_at_once(tmp_path, monkeypatch):
    study = make_study(8)
    outcomes = make_outcomes(study, random_errors(study))
    results, read = Results(study, outcomes, make_rows(study, outcomes)), []
    for part in (10**6, 7):  # rows
        monkeypatch.setattr("vitscale.record.table.PART", part)
        folder = Workdir(tmp_path / str(part))
        write_report(results, folder, {}, ("parquet",))
        read.append(pd.read_parquet(tmp_path / str(part) / "rows.parquet"))
    assert len(read[0]) > 14 and "lr" in read[0]
    pd.testing.assert_frame_equal(*read)


# ---- report


def made_results() -> Results:
    study = make_study(16, **EVERYTHING)
    status = {("a", 0): "diverged", ("b", 1): "failed", ("b", 2): "missing"}
    outcomes = make_outcomes(study, random_errors(study), status)
    return Results(study, outcomes, make_rows(study, outcomes))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts = {"command": "python studies/made.py --num 16", "tracking": "http://localhost:5000"}
    folder = tmp_path_factory.mktemp("report")
    page = write_report(made_results(), Workdir(folder), facts)
    assert (folder / "report.html").read_text() == page
    return folder / "report.html"


def test_report_is_well_formed_and_loads_nothing(report):
    page = Page(report.read_text())
    assert page.open == []
    # the figures, and what an EDF is
    assert report.read_text().count("<svg ") == len(EVERYTHING["figures"]) + 1
    assert page.loads and all(
        source.startswith(("#", "data:image/png;base64,")) for source in page.loads
    )
    assert not re.search(r"@import|url\((?!#)|<script|http-equiv=.refresh", report.read_text())
    assert len(page.ids) == len(set(page.ids))
    assert {source[1:] for source in page.loads if source.startswith("#")} <= set(page.ids)


def test_every_sentence_of_the_answer_links_to_the_table_of_its_numbers(report):
    answer = re.split(r'<h2 id="answer">|<h2>', report.read_text())[1]
    links = [re.findall(r'href="#(\S+)"', item) for item in answer.split("<li>")[1:]]
    shares = [["table-edf_summary"]] * (len(links) - 4)
    assert links == [["numbers"], *shares, *[["table-arm_comparison"]] * 3]


def test_the_page_leads_to_trials_and_to_a_server_of_mlflow_alone(tmp_path):
    facts = {"trials": "../trials/", "MLflow": "http://a.b/", "store": "http://c.d/"}
    page = Page(write_report(made_results(), Workdir(tmp_path), facts, ("html",)))
    assert [to for to in page.loads if not to.startswith(("#", "data:"))] == [
        "../trials/",
        "http://a.b/",
    ]


def test_ties_are_rounded_up_in_tables_sentences_and_labels():
    """4.25 is 17 of 400 images. Python gives 4.2, and 4.3 for 4.35."""
    for value, text in ((4.25, "4.3"), (4.35, "4.4"), (4.2499, "4.2"), (-4.25, "-4.3"), (0, "0.0")):
        table = pd.DataFrame({"value_pct": [float(value)]})
        assert as_text(table).iloc[0, 0] == ERROR.number(value) == text


def test_latex_has_the_first_sentence_as_its_caption_and_a_box_only_where_it_is_wide():
    caption = "One row.\nMore on its `columns`."
    narrow = pd.DataFrame({"arm": ["a"], "mean": [1.0]})
    wide = pd.DataFrame({f"a column with a long name {i}": ["a"] for i in range(5)})
    for table, is_boxed in ((narrow, False), (wide, True)):
        text = to_latex(table, "name", caption)
        assert r"\caption{One row.}" in text and "% More on its `columns`." in text
        assert ("resizebox" in text) == ("graphicx" in text) == is_boxed
        assert text.count("{") == text.count("}")


def test_report_says_question_counts_reference_provenance_and_how_to_repeat(report):
    text = " ".join(" ".join(Page(report.read_text()).text).split())
    for said in (
        "Is a < b & c?",
        "Nobody 2021",
        "First <note>.",
        "Second note.",
        "python studies/made.py --num 16",
        "http://localhost:5000",
        "1 of 16 draws of b",
        "ONE run",
        "of the last epoch",
        "All draws share seed 0",
        "How <points> were drawn.",
        "lr drawn (min-max)",
        "conditional on the held-out images",
        "only the draws before the first missing one of their arm",
        "13 with an outcome are excluded",
        "A reference that many draws beat is not optimal",
        "Code: abc.",
        "arm n diverged median (%)",
        "a 16 15 1 0 0 0",
        "b 16 1 0 1 1 13",
    ):
        assert said in text, said


def test_report_writes_each_table_in_three_forms_that_agree(report):
    for name in EVERYTHING["tables"]:
        csv = pd.read_csv(report.parent / f"{name}.csv")
        parquet = pd.read_parquet(report.parent / f"{name}.parquet")
        pd.testing.assert_frame_equal(csv, parquet, check_dtype=False)
        assert len((report.parent / f"{name}.md").read_text().splitlines()) == len(csv) + 2
    assert not [path for path in report.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("formats", [("pdf", "tex"), ("html",), ("parquet", "csv"), ("svg", "md")])
def test_only_the_formats_that_are_asked_for_are_written(report, tmp_path, formats):
    again = made_results()
    page = write_report(again, Workdir(tmp_path), {}, formats)
    assert {path.suffix[1:] for path in tmp_path.iterdir()} == set(formats)
    assert ("html" in formats) == bool(page)
    for path in tmp_path.iterdir():  # as in the whole report
        if path.suffix not in (".html", ".parquet"):
            assert path.read_bytes() == (report.parent / path.name).read_bytes()


def test_each_table_is_made_once(monkeypatch, tmp_path):
    calls: Counter[str] = Counter()
    kind = kinds.KINDS["distribution"]
    study = make_study(16, **EVERYTHING)
    outcomes = make_outcomes(study, random_errors(study))
    made = population_module.population

    def counted(*args, **kwargs):
        calls["population"] += 1
        return made(*args, **kwargs)

    monkeypatch.setattr(population_module, "population", counted)
    results = Results(study, outcomes, make_rows(study, outcomes))
    write_report(results, Workdir(tmp_path), {})
    headline(results), summary(results), kind.counts(results)
    assert calls["population"] == len(study.arms)


def test_an_unknown_figure_is_refused_with_the_known_ones(tmp_path):
    study = make_study(4, figures=("edf_pannels",))
    outcomes = make_outcomes(study, random_errors(study))
    with pytest.raises(ValueError, match=r"edf_panels, .*lr_wd_scatter.* but got \(edf_pannels\)"):
        write_report(Results(study, outcomes, make_rows(study, outcomes)), Workdir(tmp_path), {})
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"edf_summary, .* but got \(edf_sumary\)"):
        check(make_study(4, tables=("edf_sumary",)))
    check(make_study(4, **EVERYTHING))


def test_honesty_says_what_the_seeds_are():
    study = make_study(6, own_seeds=True)
    said = " ".join(caveats(Results(study, make_outcomes(study, random_errors(study)))))
    assert (
        "Each draw has its own seed, which the arms share at each point, so seed noise is part"
        in said
    )
    assert "and other seeds" in said and "All draws share" not in said and "biased" not in said


NODES = {
    "a100": "AMD EPYC 7763, 64-Core, 128 cores, NVIDIA A100-SXM4-80GB, Linux x86_64",
    "other a100": "Intel Xeon 8480, 96 cores, NVIDIA A100-SXM4-80GB, Linux x86_64",
    "h100": "AMD EPYC 7763, 64-Core, 128 cores, NVIDIA H100 80GB HBM3, Linux x86_64",
}


def on_nodes(device: str, nodes: dict[str, list[str]]) -> list[str]:
    """The sentences about hardware, if draw i of an arm ran on the i-th node that is listed."""
    study = make_study(3)
    outcomes = make_outcomes(study, random_errors(study)).assign(device=device)
    draws = outcomes["point"].notna()
    where = outcomes[draws].apply(lambda row: NODES[nodes[row["arm"]][row["point"]]], axis=1)
    outcomes["machine"] = where.reindex(outcomes.index, fill_value=NODES["a100"])
    return [line for line in caveats(Results(study, outcomes)) if "different hardware" in line]


def test_caveats_count_the_trials_of_each_arm_by_kind_of_gpu():
    one = ["a100", "other a100", "a100"]
    assert on_nodes("cuda", {"a": one, "b": one}) == []
    (line,) = on_nodes("cuda", {"a": one, "b": ["h100"] * 3})  # and a reference run on an A100 each
    a, b = "4 on NVIDIA A100-SXM4-80GB", "3 on NVIDIA H100 80GB HBM3, 1 on NVIDIA A100-SXM4-80GB"
    assert f"(a: {a}; b: {b})" in line and "--accelerator-type" in line


def test_caveats_name_processors_of_trials_on_cpus():
    (line,) = on_nodes("cpu", {"a": ["a100", "h100", "a100"], "b": ["other a100"] * 3})
    assert "3 on Intel Xeon 8480" in line and "on AMD EPYC 7763, 64-Core" in line
    assert "NVIDIA" not in line and "--accelerator-type" not in line


def test_honesty_and_headline_say_that_a_reference_run_diverged():
    study = make_study(6, num_references=3)
    outcomes = make_outcomes(study, random_errors(study), {("a", "seed 2"): "diverged"})
    assert "mean of 3 runs" in " ".join(caveats(Results(study, outcomes)))
    assert "Diverged or failed: 1 of 3 reference runs of a;" in " ".join(
        caveats(Results(study, outcomes))
    )
    assert headline(Results(study, outcomes))[0].endswith(
        "0 missing; 1 of 3 reference runs of a diverged or failed."
    )


# ---- headline


def test_a_panel_without_a_title_still_has_a_sentence_with_a_beginning() -> None:
    study = make_study(16, panels={"": ("a", "b")})
    sentence = headline(Results(study, make_outcomes(study, random_errors(study))))[1]
    assert sentence.startswith("All arms, draws within")


def test_headline_gives_shares_with_n_and_intervals():
    study = make_study(16, panels={"AdamW": ("a", "b")})
    status = {("b", 0): "diverged"}
    outcomes = make_outcomes(
        study, {"a": np.full(16, 12.0), "b": np.r_[[0.0] * 8, [20.0] * 8]}, status
    )
    assert headline(Results(study, outcomes)) == [
        "Of 32 draws: 31 finished, 1 diverged, 0 failed, 0 missing.",
        (
            "AdamW, draws within 4 points, and 1.5 times the error, of their reference: a 100% "
            "[79, 100] and 100% [79, 100] (n=16, 0 diverged, 0 beyond 10 points); b 44% [20, 70] "
            "and 44% [20, 70] (n=16, 1 diverged, 0 beyond 10 points)."
        ),
    ]


def test_headline_claims_a_difference_only_where_the_test_shows_one():
    study = make_study(16, arms=("a", "b", "c"), pairs=(("a", "b"), ("c", "a")), num_references=3)
    rng = np.random.default_rng(0)
    base = rng.normal(20, 1, 16)
    errors = {"a": base, "b": base + np.where(np.arange(16) % 2, 1.0, -1.0), "c": base + 2}
    points, ratios, text = headline(Results(study, make_outcomes(study, errors, reference=22.0)))[
        -3:
    ]
    assert text.startswith(
        "Absolute error (a separate question): a is lower than c in 100% [79, 100] of 16 shared "
    )
    assert text.endswith(
        "p < 0.001. No difference shown for a against b, p = 1.000 (p after Holm over 2 pairs)."
    )
    assert points.startswith(
        "Forgiveness in points of error, area from 0 to 10 points above the reference: no diff"
    )
    assert "no difference shown for a against b, p = " in ratios and "DISAGREE" not in ratios


def narrow_references(outcomes: pd.DataFrame, **of_arm: float) -> pd.DataFrame:
    """References of an arm at a value, 0.02 points apart."""
    for arm, value in of_arm.items():
        runs = (outcomes["arm"] == arm) & outcomes["point"].isna()
        outcomes.loc[runs, "value"] = value + 0.02 * np.arange(runs.sum())
    return outcomes


def test_headline_names_the_more_forgiving_arm():
    study = make_study(16, pairs=(("b", "a"),), num_references=3)
    errors = {"a": np.full(16, 11.0), "b": np.r_[np.full(4, 11.0), np.full(12, 30.0)]}
    outcomes = narrow_references(make_outcomes(study, errors), a=10.0, b=10.0)
    points, ratios = headline(Results(study, outcomes))[-3:-1]
    assert re.fullmatch(
        r".*: a is more forgiving than b by 0.68 \[0\.\d+, 0\.\d+\], p < 0.001\.", points
    )
    assert re.search(
        r": b is 2\.\d+ \[[\d.]+, [\d.]+\] times as far above its reference as a, p < 0\.001",
        ratios,
    )
    assert ratios.endswith("Both scales agree in what they show.")


def test_headline_says_where_the_two_scales_disagree():
    """Both arms end at 1 to 3 times their reference, but that of b is 1% and that of a 5%."""
    study = make_study(16, pairs=(("a", "b"),), num_references=3)
    factor = np.linspace(1, 3, 16)
    outcomes = make_outcomes(study, {"a": 5 * factor, "b": factor[::-1]})
    ratios = headline(Results(study, narrow_references(outcomes, a=5.0, b=1.0)))[-2]
    assert ratios.endswith(
        "THE TWO SCALES DISAGREE for a against b: what only one shows depends on the scale."
    )


def test_headline_with_one_reference_run_claims_no_forgiveness():
    study = make_study(16, pairs=(("b", "a"),))
    errors = {"a": np.full(16, 11.0), "b": np.r_[np.full(4, 11.0), np.full(12, 30.0)]}
    for sentence in headline(Results(study, make_outcomes(study, errors)))[-3:-1]:
        assert sentence.endswith("1 of 1 pair not tested with fewer than 3 reference runs per arm.")


def test_headline_without_references_does_not_promise_a_comparison():
    pairs = (("a", "b"), ("a", "c"))
    study = make_study(8, num_references=0, arms=("a", "b", "c"), pairs=pairs)
    points, ratios = headline(Results(study, make_outcomes(study, random_errors(study))))[-3:-1]
    assert all(
        "2 of 2 pairs not compared: no reference runs planned" in said for said in (points, ratios)
    )
    whole = make_study(8, num_references=3, arms=("a", "b", "c"), pairs=pairs)
    study = dataclasses.replace(
        whole, trials=tuple(t for t in whole.trials if t.point is not None or t.arm.name != "c")
    )
    points = headline(Results(study, make_outcomes(study, random_errors(study))))[-3]
    assert (
        "1 of 2 pairs not compared: no reference runs planned" in points
        and "not compared yet" not in points
    )
    unfinished = make_outcomes(
        whole, random_errors(whole), {(arm, None): "missing" for arm in "abc"}
    )
    assert "2 of 2 pairs not compared yet" in headline(Results(whole, unfinished))[-3]


def test_headline_of_six_panels_stays_short():
    arms = tuple(f"arm {i}" for i in range(18))
    panels = {f"panel {i}": arms[3 * i : 3 * i + 3] for i in range(6)}
    pairs = tuple((a, b) for group in panels.values() for a, b in combinations(group, 2))
    study = make_study(8, arms=arms, panels=panels, pairs=pairs)
    sentences = headline(Results(study, make_outcomes(study, random_errors(study))))
    assert len(sentences) == 1 + 6 + 3
    assert max(map(len, sentences)) < 450
    assert "18 of 18 pairs not tested with fewer than 3 reference runs" in sentences[-2]
    assert "no difference shown in 18 of 18 pairs" in sentences[-1]


def test_the_summary_has_finite_numbers_of_the_arms():
    study = make_study(8)
    outcomes = make_outcomes(
        study, random_errors(study), {("b", None): "missing", ("a", 0): "diverged"}
    )
    numbers = summary(Results(study, outcomes))
    a, b = numbers["a"], numbers["b"]
    assert (a["n"], a["diverged"], b["missing"]) == (8, 1, 0)
    assert "area" not in b and 0 < a["area"] < 1
    assert a["ratio"] > 0 and 0 <= a["within_1.5_times_pct"] <= 100
    assert np.isfinite([x for interval in numbers.values() for x in interval.values()]).all()
