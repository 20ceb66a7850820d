"""The rows of long trainings that docs/studies/rows keeps: a study goes on from them, and its page
has their numbers.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT, load_script
from golden.capture import results_of

from vitscale.analysis.report.report import caveats, headline
from vitscale.plan.study import Study
from vitscale.record.outcome import DONE
from vitscale.record.store import Store
from vitscale.record.table import read_trials

PAGES = ROOT / "docs" / "studies"
OPTIONS = {"scaling-fashion": {"subsets": "epochs"}}


def planned(slug: str) -> Study:
    name, scale = slug.rsplit("-", 1)
    study: Study = load_script(ROOT / "studies" / f"{name}.py").study(
        scale, **OPTIONS.get(slug, {})
    )
    return study


@pytest.mark.parametrize("slug", sorted(path.name[:-7] for path in PAGES.glob("rows/*.tar.xz")))
def test_kept_rows_are_of_the_plan_and_whole(slug: str, tmp_path: Path) -> None:
    with tarfile.open(PAGES / "rows" / f"{slug}.tar.xz") as rows:
        rows.extractall(tmp_path, filter="data")
    study = planned(slug)
    kept = {path.name for path in (tmp_path / "trials").iterdir()}
    assert kept <= {trial.config.id for trial in study.trials}
    read = read_trials(study, Store.at(str(tmp_path)))
    assert {i for i, end in read.items() if end.status in DONE} == kept
    assert f"rows/{slug}.tar.xz" in (PAGES / f"{study.name}.md").read_text()


def test_the_page_of_layerscale_depth_has_the_numbers_of_its_rows(tmp_path: Path) -> None:
    with tarfile.open(PAGES / "rows" / "layerscale_depth-fashion.tar.xz") as rows:
        rows.extractall(tmp_path, filter="data")
    study = planned("layerscale_depth-fashion")
    results = results_of(study, read_trials(study, Store.at(str(tmp_path))))
    numbers = re.findall(r"-?\d\.\d \[-?\d\.\d, -?\d\.\d\] points", " ".join(headline(results)))
    page = (PAGES / "layerscale_depth.md").read_text().partition("## At scale fashion")[2]
    assert len(numbers) == 6 and all(number.removesuffix(" points") in page for number in numbers)
    assert "val has no part in that choice" in " ".join(caveats(results))
