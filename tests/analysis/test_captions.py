"""Captions fit their figure, and speak of nothing that the
study has not: references, strips, averaged weights.
"""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from support import known
from support.outcomes import make_outcomes, make_rows, make_study, random_errors

from vitscale.analysis.report.layout import finish, metric_label
from vitscale.analysis.results import Results
from vitscale.plan.study import Study

NAMES = ("edf_panels", "edf_panels_vs_best", "lr_wd_scatter", "learning_curves", "tuning_budget")


def draw(study: Study, name: str) -> Figure:
    outcomes = make_outcomes(study, random_errors(study))
    return known.FIGURES[name](Results(study, outcomes, make_rows(study, outcomes)))


def caption(figure: Figure) -> str:
    return " ".join(figure.get_supxlabel().split())


def with_ema(study: Study, arms: tuple[str, ...]) -> Study:
    """The study with averaged weights in some arms."""
    trials = tuple(
        dataclasses.replace(
            t, config=t.config.replace(ema_decay=0.9 if t.arm.name in arms else 0.0)
        )
        for t in study.trials
    )
    return dataclasses.replace(study, trials=trials)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_panels", [1, 2])
@pytest.mark.parametrize("num_references", [0, 3])
def test_a_caption_lies_within_its_figure(name: str, num_panels: int, num_references: int) -> None:
    arms = tuple("abcd"[: 2 * num_panels])
    panels = {} if num_panels == 1 else {"first": arms[:2], "second": arms[2:]}
    figure = draw(make_study(8, arms=arms, panels=panels, num_references=num_references), name)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure._supxlabel.get_window_extent()  # type: ignore[attr-defined]
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    labels = [ax.xaxis.label.get_window_extent() for ax in figure.axes]
    legends = [ax.get_legend().get_window_extent() for ax in figure.axes if ax.get_legend()]
    # below all: a box has margins
    assert labels and box.y1 <= min(part.y0 for part in [*labels, *legends]) + 3
    assert all(part.y0 >= -1 and part.y1 <= figure.bbox.y1 + 1 for part in [*labels, *legends])


def test_what_all_entries_of_a_legend_say_stands_once() -> None:
    legend = draw(make_study(8, arms=("a", "b")), "learning_curves").axes[0].get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert legend.get_title().get_text().replace("\u00a0", " ") == "each n=8, 0 diverged"


@pytest.mark.parametrize("width", [6.4, 9.0, 11.0])
def test_any_note_is_broken_into_lines_that_fit(width: float) -> None:
    """In every figure, since all are finished alike; lines that the note has itself stay apart."""
    figure = Figure(figsize=(width, 3.0), layout="constrained")
    figure.subplots().set_xlabel("x")
    note = "A sentence that goes on, and on, for longer than any figure is wide. " * 6
    finish(figure, f"{note.strip()}\nA second line.")
    FigureCanvasAgg(figure).draw()
    box = figure._supxlabel.get_window_extent()  # type: ignore[attr-defined]
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert box.y1 <= figure.axes[0].xaxis.label.get_window_extent().y0 + 3
    assert figure.get_supxlabel().endswith("\nA second line.") and figure.get_figheight() > 3.0


def test_captions_speak_of_references_only_where_there_are_some() -> None:
    with_some, without = (make_study(8, num_references=num) for num in (3, 0))
    for name in ("edf_panels", "lr_wd_scatter", "learning_curves"):
        assert "reference" in caption(draw(with_some, name)), name
        assert "reference" not in caption(draw(without, name)), name


def test_the_strip_is_explained_only_where_it_is_drawn() -> None:
    assert "Strip at the bottom" in caption(draw(make_study(8), "lr_wd_scatter"))
    assert "Strip" not in caption(draw(make_study(6), "lr_wd_scatter"))  # too few draws for one


def test_axes_say_ema_only_where_weights_are_averaged() -> None:
    study = make_study(6)
    assert study.metric == "val_ema_error_pct"
    assert metric_label(with_ema(study, ("a", "b"))) == "val EMA error"
    assert metric_label(with_ema(study, ())) == "val error"
    assert metric_label(with_ema(study, ("a",))) == "val error, EMA in some arms,"
    assert (
        metric_label(dataclasses.replace(with_ema(study, ("a", "b")), metric="val_error_pct"))
        == "val error"
    )
    for name in NAMES:
        figure = draw(with_ema(study, ()), name)
        texts = [
            figure.get_supxlabel(),
            *(text for ax in figure.axes for text in (ax.get_xlabel(), ax.get_ylabel())),
        ]
        assert any("val error" in text for text in texts) and not any(
            "EMA" in text for text in texts
        ), name
