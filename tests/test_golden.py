"""Every number of the demos' reports, made from the rows of
real runs, is what it was (golden/capture.py).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import WITHOUT_PDF
from golden.capture import GOLDEN, load, report

from vitscale.analysis.kinds import kind_of
from vitscale.analysis.repeats import estimates
from vitscale.analysis.report.report import (
    caveats,
    headline,
    read_results,
    summary,
    write_report,
)
from vitscale.analysis.report.save import as_files
from vitscale.analysis.results import Results
from vitscale.analysis.stats import bands, betting, correction, correlation, images, intervals
from vitscale.record.table import outcomes, tidy
from vitscale.record.workdir import Workdir

SLUGS = sorted(path.name.removesuffix(".json.gz") for path in GOLDEN.glob("*.json.gz"))


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def agree(now: Any, then: Any, where: str) -> None:
    """Floats to nine digits, all else as it was."""
    if isinstance(then, dict):
        assert sorted(now) == sorted(then), where
        for name in then:
            agree(now[name], then[name], f"{where}/{name}")
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for i, (a, b) in enumerate(zip(now, then, strict=True)):
            agree(a, b, f"{where}[{i}]")
    elif isinstance(then, float) and isinstance(now, float):
        assert now == pytest.approx(then, rel=1e-9, abs=1e-9, nan_ok=True), where
    else:
        assert now == then, where


@pytest.mark.parametrize("slug", SLUGS)
def test_the_report_has_the_numbers_that_it_had(slug: str) -> None:
    study, read, then = load(slug)
    now = json.loads(json.dumps(report(study, read)))
    agree(now["tables"], then["tables"], f"{slug}/tables")
    agree(now["summary"], then["summary"], f"{slug}/summary")
    agree(now["figures"], then["figures"], f"{slug}/figures")
    for name in ("headline", "caveats"):
        assert [numbers(line) for line in now[name]] == [numbers(line) for line in then[name]], (
            f"{slug}/{name}"
        )


def test_there_is_a_golden_report_of_every_demo() -> None:
    studies = {path.stem for path in (Path(__file__).parents[1] / "studies").glob("[a-z]*.py")}
    assert {slug.removesuffix("-demo") for slug in SLUGS} == studies


@pytest.mark.parametrize("slug", SLUGS)
def test_figures_are_drawn_again_from_the_parquet_files_of_a_report(
    slug: str, tmp_path: Path
) -> None:
    """The same bytes, and no table that the report holds is made a second time."""
    study, read, _ = load(slug)
    results = Results(study, outcomes(study, read), tidy(study, read))
    write_report(results, Workdir(tmp_path), {}, WITHOUT_PDF)
    again = read_results(study, Workdir(tmp_path))
    held = set(results.made(kind_of(study).tables))
    assert set(again.made(kind_of(study).tables)) == held
    for name in study.figures:
        drawn = as_files(kind_of(study).figures[name](again), ("png", "svg"))
        assert drawn["png"] == (tmp_path / f"{name}.png").read_bytes(), name
        assert b"<title>" in drawn["svg"], name  # a mark says which trial, arm or difference it is
    assert set(again.made(kind_of(study).tables)) == held


# modules and functions that make estimates of values
STATS = (intervals, bands, betting, correction, correlation, images)
ESTIMATES = [
    getattr(estimates, name)
    for name in ("mean_interval", "value_interval", "sd_interval", "contrast", "difference")
]


def _is_made_in(value: object, module: ModuleType) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == module.__name__


def _refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("an estimate that the tables of the report hold was made again")


@pytest.mark.parametrize("slug", SLUGS)
def test_sentences_and_summary_are_read_from_the_parquet_files_of_a_report(
    slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sentences and numbers, and no function that makes an estimate is called again."""
    study, read, _ = load(slug)
    results = Results(study, outcomes(study, read), tidy(study, read))
    write_report(results, Workdir(tmp_path), {}, ["parquet"])
    again = read_results(study, Workdir(tmp_path))
    makers = {value for of in STATS for value in vars(of).values() if _is_made_in(value, of)}
    for module in [sys.modules[n] for n in sys.modules if n.startswith("vitscale.analysis")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value in makers | set(ESTIMATES):
                monkeypatch.setattr(module, name, _refused)
    with pytest.raises(AssertionError, match="made again"):
        estimates.value_interval(np.array([1.0, 2.0]), study.column.metric)
    for words in (headline, caveats, summary):
        assert words(again) == words(results), words.__name__
