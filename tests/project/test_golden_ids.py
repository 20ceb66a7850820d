"""Ids of every demo and cifar trial: what somebody has trained must be found again."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest
from conftest import ROOT, load_script

from vitscale.plan.search import Search
from vitscale.plan.study import Study

GOLDEN: dict[str, dict[str, list[str]]] = json.loads(
    (ROOT / "tests" / "golden" / "ids.json").read_text()
)


def ids_by_arm(study: Study | Search) -> dict[str, list[str]]:
    """Arm -> ids in the order of the plan; of a search, whose
    points are not planned, the settings that it varies.
    """
    if isinstance(study, Search):
        return {
            arm.name: [config.replace(seed=seed).id for seed in study.seeds]
            for arm, config in study.configs.items()
        }
    ids: dict[str, list[str]] = {}
    for trial in study.trials:
        ids.setdefault(trial.arm.name, []).append(trial.config.id)
    return ids


def made(slug: str) -> dict[str, list[str]]:
    name, scale = slug.rsplit("-", 1)
    options: dict[str, Any] = {"hardware": "golden"} if name == "throughput" else {}
    return ids_by_arm(load_script(ROOT / "studies" / f"{name}.py").study(scale, **options))


def slugs() -> list[str]:
    """Every study at the scales demo and cifar, as far as it has them."""
    found = []
    for path in sorted((ROOT / "studies").glob("*.py")):
        scales = get_args(get_type_hints(load_script(path).study)["scale"])
        found += [f"{path.stem}-{scale}" for scale in ("demo", "cifar") if scale in scales]
    return found


@pytest.mark.parametrize("slug", GOLDEN)
def test_ids_of_trials_that_may_have_been_trained_never_change(slug: str) -> None:
    """To write the file again, when a study gets trials: `PYTHONPATH=tests python
    tests/project/test_golden_ids.py`; look at the difference.
    """
    assert made(slug) == GOLDEN[slug]


def test_no_study_is_left_out() -> None:
    assert set(GOLDEN) == set(slugs())


if __name__ == "__main__":
    found = {slug: made(slug) for slug in slugs()}
    (ROOT / "tests" / "golden" / "ids.json").write_text(json.dumps(found, indent=0) + "\n")
