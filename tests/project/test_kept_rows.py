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
