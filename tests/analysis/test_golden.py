"""Every number of the demos' reports, made from the rows of
real runs, is what it was (golden/capture.py).
"""

from __future__ import annotations

import functools
import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import WITHOUT_PDF
from golden.capture import GOLDEN, load, report, results_of

from vitscale.analysis import estimates
from vitscale.analysis.kinds import kind_of
from vitscale.analysis.report.report import (
    caveats,
    headline,
    summary,
    write_report,
)
from vitscale.analysis.report.save import as_files
from vitscale.analysis.results import Results
from vitscale.analysis.stats import bands, betting, correction, correlation, images, intervals
from vitscale.analysis.stats.sequential import ONE_LOOK, Looks
from vitscale.record.outcome import Outcome, Status
from vitscale.record.workdir import Workdir

SLUGS = sorted(path.name.removesuffix(".json.gz") for path in GOLDEN.glob("*.json.gz"))


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def agree(now: Any, then: Any, where: str) -> None:
    """Floats to nine digits, those that follow from iterative fits to seven, all else as it was."""
    if isinstance(then, dict):
        assert sorted(now) == sorted(then), where
        for name in then:
            agree(now[name], then[name], f"{where}/{name}")
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for i, (a, b) in enumerate(zip(now, then, strict=True)):
            agree(a, b, f"{where}[{i}]")
    elif isinstance(then, float) and isinstance(now, float):
        digits = 7 if re.search("scaling_(fit|forecast)/", where) else 9
        assert now == pytest.approx(then, rel=10**-digits, abs=1e-9, nan_ok=True), where
    else:
        assert now == then, where


Written = Callable[[str], tuple[Workdir, set[str]]]


@functools.cache
def results_of_demo(slug: str) -> Results:
    study, read, _ = load(slug)
    return results_of(study, read)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Demo -> the folder of its report, and the names of the tables in it; written once."""

    @functools.cache
    def write(slug: str) -> tuple[Workdir, set[str]]:
        results, folder = results_of_demo(slug), Workdir(tmp_path_factory.mktemp(slug))
        write_report(results, folder, {}, WITHOUT_PDF)
        return folder, set(results.made(kind_of(results.study).tables))

    return write


def of_tables_alone(results: Results) -> Results:
    """The same results, of which only the tables are made."""
    again = Results(results.study, results.trials, results.rows)
    tables = kind_of(results.study).tables
    again._made = {tables[name]: table for name, table in results.made(tables).items()}
    return again


@pytest.mark.parametrize("slug", SLUGS)
def test_the_report_has_the_numbers_that_it_had(slug: str) -> None:
    _, _, then = load(slug)
    now = json.loads(json.dumps(report(results_of_demo(slug))))
    agree(now["tables"], then["tables"], f"{slug}/tables")
    agree(now["summary"], then["summary"], f"{slug}/summary")
    agree(now["figures"], then["figures"], f"{slug}/figures")
    for name in ("headline", "caveats"):
        assert [numbers(line) for line in now[name]] == [numbers(line) for line in then[name]], (
            f"{slug}/{name}"
        )


def test_there_is_a_golden_report_of_every_demo() -> None:
    studies = {path.stem for path in (Path(__file__).parents[2] / "studies").glob("[a-z]*.py")}
    assert {slug.removesuffix("-demo") for slug in SLUGS} == studies


@pytest.mark.parametrize("slug", SLUGS)
def test_figures_need_no_table_beyond_those_of_the_report(slug: str, written: Written) -> None:
    """The same bytes from these tables alone."""
    folder, held = written(slug)
    study = results_of_demo(slug).study
    again = of_tables_alone(results_of_demo(slug))
    for name in study.figures:
        drawn = as_files(kind_of(study).figures[name](again), ("png", "svg"))
        assert drawn["png"] == folder.read(f"{name}.png"), name
        # a mark says which trial, arm or difference it is; but where a figure would say nothing
        is_drawn = b"The numbers are in the table" not in drawn["svg"]
        assert (b"<title>" in drawn["svg"]) == is_drawn, name
    assert set(again.made(kind_of(study).tables)) == held


# modules and functions that make estimates of values
STATS = (intervals, bands, betting, correction, correlation, images)
ESTIMATES = [
    getattr(estimates, name)
    for name in ("mean_interval", "value_interval", "sd_interval", "contrast")
]


def _is_made_in(value: object, module: ModuleType) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == module.__name__


def _refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("an estimate that the tables of the report hold was made again")


@pytest.mark.parametrize("slug", SLUGS)
def test_sentences_and_summary_are_made_of_the_tables_of_a_report(
    slug: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sentences and numbers, and no function that makes an estimate is called again."""
    results, _ = results_of_demo(slug), written(slug)
    said = [words(results) for words in (headline, caveats, summary)]
    again = of_tables_alone(results)
    makers = {value for part in STATS for value in vars(part).values() if _is_made_in(value, part)}
    for module in [sys.modules[n] for n in sys.modules if n.startswith("vitscale.analysis")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value in makers | set(ESTIMATES):
                monkeypatch.setattr(module, name, _refused)
    with pytest.raises(AssertionError, match="made again"):
        estimates.value_interval(np.array([1.0, 2.0]), results.study.column.metric)
    assert [words(again) for words in (headline, caveats, summary)] == said


# ---- looks


def _tables_at(results: Results, looks: Looks) -> dict[str, pd.DataFrame]:
    """The tables of a report of the same rows at another look."""
    again = Results(results.study, results.trials, results.rows, looks=looks)
    tables = kind_of(results.study).tables
    return {name: again.once(tables[name]) for name in results.made(tables)}


@pytest.mark.parametrize("slug", SLUGS)
def test_tests_that_are_made_again_keep_their_p(slug: str, written: Written) -> None:
    """By a report of the same rows, and where Holm's number has the tests of an earlier look."""
    results, _ = results_of_demo(slug), written(slug)
    then = results.made(kind_of(results.study).tables)
    for looks in (
        replace(ONE_LOOK, again=results.p, tested=results.p),
        replace(ONE_LOOK, tested=results.p),
    ):
        for name, table in _tables_at(results, looks).items():
            pd.testing.assert_frame_equal(table, then[name], check_exact=True, obj=name)


# ---- studies without anything to show


def _with_values(outcome: Outcome, value: float) -> Outcome:
    rows = [
        {
            name: value if name.endswith(("value", "images_per_s")) else number
            for name, number in row.items()
        }
        for row in outcome.rows
    ]
    return replace(outcome, rows=tuple(rows))


ENDS: dict[str, Callable[[Outcome], Outcome]] = {
    "equal": lambda outcome: _with_values(outcome, 25.0),
    "zero": lambda outcome: _with_values(outcome, 0.0),
    "the worst": lambda outcome: _with_values(outcome, 100.0),
    "diverged": lambda outcome: replace(outcome, status=Status.DIVERGED, rows=()),
    "none": lambda outcome: Outcome(Status.MISSING),
}


@pytest.mark.parametrize("end", [*ENDS, "one run of each arm"])
@pytest.mark.parametrize("slug", SLUGS)
def test_no_sentence_has_a_number_that_does_not_exist(slug: str, end: str) -> None:
    study, read, _ = load(slug)
    if end in ENDS:
        read = {trial_id: ENDS[end](outcome) for trial_id, outcome in read.items()}
    else:
        first = {trial.arm: trial.config.id for trial in reversed(study.trials)}.values()
        read = {i: outcome if i in first else ENDS["none"](outcome) for i, outcome in read.items()}
    results = results_of(study, read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = [*headline(results), *caveats(results), kind_of(study).unfinished(results)]
        if (slug, end) != ("throughput-demo", "zero"):  # no speed is 0
            for name in study.tables:
                results.once(kind_of(study).tables[name])
    assert not [line for line in said if re.search(r"(?<![\w.])[+-]?(nan|inf)(?!\w)", line)]
    assert np.isfinite([x for numbers in summary(results).values() for x in numbers.values()]).all()
