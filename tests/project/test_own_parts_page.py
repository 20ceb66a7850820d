"""The page on parts: its files and commands, and the packages that it names; the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from support.guides import python_of, run, write_digits

from vitscale import TrainConfig, load
from vitscale.train.complexity import measured_complexity
from vitscale.train.try_parts import check_parts, try_out

PAGE, RECIPES = ROOT / "docs/own-parts.md", ROOT / "docs/recipes.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_page(tmp_path: Path) -> None:
    write_digits(tmp_path / "data/flowers")
    prepare = "vitscale prepare data/flowers data --size 32 --channels 1"
    assert run(prepare, tmp_path).returncode == 0
    (tmp_path / "parts").mkdir()
    for name, text in zip(
        ("parts/net.py", "parts/more.py", "widths.py"), python_of(PAGE), strict=False
    ):
        (tmp_path / name).write_text(text)
    plan = run("python widths.py --plan --data-root data", tmp_path)
    assert plan.returncode == 0 and "norm" in plan.stdout, plan.stdout
    assert not (tmp_path / "runs/parts").exists()
    done = run("python widths.py --data-root data --num 2", tmp_path, timeout=500)
    assert done.returncode == 0 and "10 finished" in done.stdout, done.stdout
    trials = load("widths-flowers", tmp_path / "runs").trials.set_index("arm")
    assert trials.loc["no norm", "own.norm"].tolist() == [False, False]
    assert trials.loc["wide", "own.dim"].tolist() == [64, 64]
    assert trials["val_margin"].notna().all()


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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_recipes_are_planned(tmp_path: Path, number: int) -> None:
    (tmp_path / "study.py").write_text(python_of(RECIPES)[number])
    plan = run("python study.py --plan", tmp_path)
    assert plan.returncode == 0 and "multiply-adds in total" in plan.stdout, plan.stdout
