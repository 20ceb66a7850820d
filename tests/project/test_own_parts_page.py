"""The page on parts: the packages and optimizers that it names; the recipes. Its example is trained
in test_installed.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import timm.optim
from conftest import ROOT
from support.guides import python_of, run

from vitscale import TrainConfig
from vitscale.train.complexity import measured_complexity
from vitscale.train.optim import REFUSED
from vitscale.train.try_parts import check_parts, try_out

PAGE, RECIPES = ROOT / "docs/own-parts.md", ROOT / "docs/recipes.md"


@pytest.mark.slow
def test_parts_of_packages_that_the_page_names() -> None:
    (text,) = (text for text in python_of(PAGE) if text.startswith("PACKAGES"))
    scope: dict[str, Any] = {}
    exec(text, scope)
    images = {"dataset": "cifar10", "channels": 3, "resolution": 32, "patch_size": 2}
    for fields in scope["PACKAGES"]:
        config = TrainConfig(**{**images, **fields})
        check_parts(config)
        assert measured_complexity(config).flops > 0
        # its stochastic depth draws for the batch
        assert try_out(config) is ("swin_t" in config.model)


def test_the_optimizers_that_the_page_names_are_those_of_timm_that_are_tried() -> None:
    """In test_own_parts.py, by the bit, all of them."""
    of_timm = PAGE.read_text().partition("## Optimizers of timm")[2]
    tried, refused = (set(re.findall("`([a-z0-9]+)`", row)) for row in of_timm.splitlines()[-2:])
    names = {str(o) for o in timm.optim.list_optimizers()}
    assert refused == {name for name in names if REFUSED.fullmatch(name)}
    assert tried == names - refused and len(tried) > 80


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_recipes_are_planned(tmp_path: Path, number: int) -> None:
    (tmp_path / "study.py").write_text(python_of(RECIPES)[number])
    plan = run("python study.py --plan", tmp_path)
    assert plan.returncode == 0 and "multiply-adds in total" in plan.stdout, plan.stdout
