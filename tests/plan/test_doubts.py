"""Warnings before the first step: what cannot answer its
question is named, in one line, and nothing else is.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing
from typing import Any

import pytest
from conftest import ROOT, Script, load_script

from vitscale.plan.config import TrainConfig
from vitscale.plan.design import trials
from vitscale.plan.plan_warnings import plan_warnings
from vitscale.plan.search import Search
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

# 186 steps
BASE = TrainConfig(width=16, heads=2, depth=1, batch_size=32, epochs=6, warmup_epochs=1.0)


def make(
    arms: dict[str, dict[str, Any]], references: bool = True, num: int = 3, **fields: Any
) -> Study:
    """Draws of lr, and a reference run an arm."""
    plan = trials(BASE, arms, [{"lr": 1e-3 * (i + 1), "seed": i} for i in range(num)])
    if references:
        plan += tuple(Trial(arm, BASE.replace(**f, seed=1000)) for arm, f in arms.items())
    given = {"figures": ("edf_panels",), "tables": ("edf_summary", "arm_comparison"), **fields}
    pairs = tuple(itertools.combinations(arms, 2))
    return Study(
        kind="distribution",
        name="s",
        scale="demo",
        question="?",
        source="none",
        trials=plan,
        pairs=pairs,
        **given,
    )


def test_nothing_is_doubtful_where_nothing_is() -> None:
    assert plan_warnings(make({"a": {}, "b": {"ema_decay": 0.97}})) == []  # 0.97 ** 186 is 0.3%


def test_initial_weights_in_the_average_are_told_with_the_arms() -> None:
    """186 steps at batch 32 and 42 at 128, as 0.98 ** 42 is 43%."""
    study = make(
        {"small": {"ema_decay": 0.98}, "large": {"batch_size": 128, "ema_decay": 0.98}, "off": {}}
    )
    (told,) = plan_warnings(dataclasses.replace(study, pairs=()))
    assert told.startswith(
        "43% of the averaged model are still its initial weights at the end (ema_decay=0.98, 42 s"
    )
    assert ": small, large;" in told  # 0.98 ** 186 is 2.3%
    # of the weights themselves
    assert plan_warnings(dataclasses.replace(study, metric="val_error_pct")) == []


def test_an_average_by_alpha_is_told_alike() -> None:
    (told,) = plan_warnings(make({"a": {}, "b": {"ema_alpha": 1e-4}}))  # exp(-1e-4 * 992) = 0.9055
    assert (
        told.startswith("91% of the averaged model")
        and "ema_alpha=0.0001" in told
        and ": b;" in told
    )
    assert plan_warnings(make({"a": {}, "b": {"ema_alpha": 1e-2}})) == []


def test_a_long_warmup_is_told() -> None:
    assert plan_warnings(make({"a": {}, "b": {"warmup_epochs": 3.0}})) == []  # half
    (told,) = plan_warnings(make({"a": {}, "b": {"warmup_epochs": 5.0}}))
    assert told.startswith("83% of the training is warm-up (155 of 186 steps): b;")
    (told,) = plan_warnings(make({"a": {}, "b": {"warmup_epochs": 0.0, "warmup_steps": 100}}))
    assert "100 of 186 steps" in told


def test_forgiveness_without_references_is_told() -> None:
    arms: dict[str, dict[str, Any]] = {"a": {}, "b": {"depth": 2}}
    (told,) = plan_warnings(make(arms, references=False))
    assert "no reference run is planned" in told and ": a, b;" in told
    assert "edf_panels, edf_summary, arm_comparison cannot compare forgiveness" in told
    whole = make(arms)
    kept = tuple(t for t in whole.trials if t.point is not None or t.arm.name == "a")
    assert ": b;" in plan_warnings(dataclasses.replace(whole, trials=kept))[0]
    assert not plan_warnings(make(arms, references=False, figures=("learning_curves",), tables=()))


@pytest.mark.parametrize(
    ("num", "says"),
    [(1, "1 seed of an arm can show no interval"), (2, "2 seeds of an arm"), (3, "")],
)
def test_too_few_seeds_in_a_comparison_are_told(num: int, says: str) -> None:
    plan = trials(
        BASE, {f"arm {i}": {"depth": i + 1} for i in range(6)}, [{"seed": i} for i in range(num)]
    )
    study = Study(
        kind="distribution",
        name="s",
        scale="demo",
        question="?",
        source="none",
        trials=plan,
        tables=("recipe_interaction",),
    )
    told = plan_warnings(study)
    assert [says in line for line in told] == [True] * bool(says)
    assert all("arm 3, and 2 more arms; plan 3 or more" in line for line in told)
    assert plan_warnings(dataclasses.replace(study, tables=("seed_statistics",))) == []


# one run, as printed
FEW = {
    "architectures-imagenet",
    "depth_vs_width-imagenet",
    "distillation-imagenet",
    "duration-imagenet",
    "finetune-imagenet",
    "layerscale_depth-imagenet",
    "optimizer_stability-imagenet",
    "recipe_ingredients-imagenet",
    "stems-imagenet",
    "peak_performance-imagenet",
    "training_length-imagenet",
    "vit_design-imagenet",
}


def test_our_own_studies_are_doubtful_only_where_the_papers_train_once() -> None:
    for path in sorted((ROOT / "studies").glob("*.py")):
        script = load_script(path)
        for scale in typing.get_args(script.study.__annotations__["scale"]):
            made = script.study(scale)
            study = made.stand_in() if isinstance(made, Search) else made
            told = plan_warnings(study)
            assert all(re.match("[12] seeds? of an arm", line) for line in told), (study.slug, told)
            assert bool(told) == (study.slug in FEW), study.slug


def test_a_plan_ends_with_its_doubts(tmp_path: Any) -> None:
    result = Script(tmp_path).run("--plan", "--epochs", "2")
    assert result.returncode == 0, result.stdout
    warnings = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert (
        len(warnings) == 2
        and "of the averaged model" in warnings[0]
        and "no reference run" in warnings[1]
    )
