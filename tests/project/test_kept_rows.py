"""The rows of long trainings that docs/studies/rows keeps: a study goes on from them, and its page
has their numbers.
"""

from __future__ import annotations

import re
import tarfile
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import ROOT, load_script
from golden.capture import load, results_of

from vitscale.analysis.kinds import kind_of
from vitscale.analysis.report.report import caveats, headline
from vitscale.plan.study import Study
from vitscale.record.outcome import DONE, Outcome
from vitscale.record.store import Store
from vitscale.record.table import read_trials

PAGES = ROOT / "docs" / "studies"
OPTIONS = {"scaling-fashion": {"subsets": "epochs"}}


def unpacked(slug: str, folder: Path) -> tuple[Study, dict[str, Outcome]]:
    """The plan of a study, and what a store with its kept rows has of each trial."""
    with tarfile.open(PAGES / "rows" / f"{slug}.tar.xz") as rows:
        rows.extractall(folder, filter="data")
    name, scale = slug.rsplit("-", 1)
    options = OPTIONS.get(slug, {})
    study = load_script(ROOT / "studies" / f"{name}.py").study(scale, **options)
    return study, read_trials(study, Store.at(str(folder)))


@pytest.mark.parametrize("slug", sorted(path.name[:-7] for path in PAGES.glob("rows/*.tar.xz")))
def test_kept_rows_are_of_the_plan_and_whole(slug: str, tmp_path: Path) -> None:
    study, read = unpacked(slug, tmp_path)
    kept = {path.name for path in (tmp_path / "trials").iterdir()}
    assert kept <= {trial.config.id for trial in study.trials}
    assert {i for i, end in read.items() if end.status in DONE} == kept
    assert f"rows/{slug}.tar.xz" in (PAGES / f"{study.name}.md").read_text()


def test_the_page_of_layerscale_depth_has_the_numbers_of_its_rows(tmp_path: Path) -> None:
    results = results_of(*unpacked("layerscale_depth-fashion", tmp_path))
    page = (PAGES / "layerscale_depth.md").read_text().partition("## At scale fashion")[2]
    means = results.once(kind_of(results.study).tables["arm_means"])
    numbers = [
        f"{row.mean:.1f} [{row.mean_low:.1f}, {row.mean_high:.1f}]" for row in means.itertuples()
    ]
    numbers += re.findall(
        r"-?\d\.\d \[-?\d\.\d, -?\d\.\d\](?= points)", " ".join(headline(results))
    )
    assert len(numbers) == 12 and not [number for number in numbers if number not in page]
    assert "val has no part in that choice" in " ".join(caveats(results))


def test_the_page_of_lr_wd_edf_has_the_numbers_of_its_rows(tmp_path: Path) -> None:
    results = results_of(*unpacked("lr_wd_edf-fashion", tmp_path))
    tables = kind_of(results.study).tables
    page = (PAGES / "lr_wd_edf.md").read_text().partition("## At scale fashion")[2]
    page = page.partition("**A first run")[0]  # whose numbers are like these
    table = results.trials
    summary = results.once(tables["edf_summary"])
    assert len(summary) == 4
    for row in summary.itertuples():
        (line,) = re.findall(rf"\| {row.arm} \|(.+)", page)
        draws = table[(table["arm"] == row.arm) & table["point"].notna()]["value"]
        values = [row.reference, row.reference_sd, row.median, row.median_low, row.median_high]
        values += [draws.min(), draws.max()]
        for share in ("within_quarter_near", "within_near"):
            values += [getattr(row, f"{share}_pct{end}") for end in ("", "_low", "_high")]
        assert_printed(line, [*values, row.area, row.area_low, row.area_high])
    for row in results.once(tables["arm_comparison"]).itertuples():
        low, high = row.area_difference_low, row.area_difference_high
        assert f"{row.area_difference:.2f} [{low:.2f}, {high:.2f}]" in page
        assert f"p = {row.area_p_holm:.2f}" in page and f"{row.ratio_p_holm:.2f}" in page


def assert_printed(line: str, values: list[float]) -> None:
    """The numbers of a line are these, to the last digit that is printed."""
    printed = [Decimal(number) for number in re.findall(r"-?\d[\d.]*(?:e-\d)?", line)]
    assert len(printed) == len(values)
    for number, value in zip(printed, values, strict=True):
        digit = 10.0 ** int(number.as_tuple().exponent)
        assert abs(float(number) - value) <= 0.501 * digit, (line, number, value)


@pytest.mark.parametrize("scale", ["demo", "fashion"])
def test_the_page_of_optimizers_has_the_numbers_of_its_rows(scale: str, tmp_path: Path) -> None:
    slug = f"optimizers-{scale}"
    results = results_of(*(load(slug)[:2] if scale == "demo" else unpacked(slug, tmp_path)))
    sections = (PAGES / "optimizers.md").read_text().partition("## At scale fashion")[::2]
    tuned = {trial.arm.name: trial.config for trial in results.study.trials if trial.point is None}
    summary = results.once(kind_of(results.study).tables["edf_summary"])
    assert len(summary) == 10
    for row in summary.itertuples():
        (line,) = re.findall(rf"\| {row.arm} \|(.+ \(.+)", sections[scale == "fashion"])
        winner = tuned[row.arm]
        values = [winner.lr, winner.wd, row.reference, row.reference_sd]
        values += [row.median, row.median_low, row.median_high, row.num_beyond]
        values += [row.area, row.area_low, row.area_high]
        assert_printed(line, values)
