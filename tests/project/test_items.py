"""The papers' figures and tables (catalog/published/items.csv) against the plans of the commands
that they name: what a row claims is counted, not believed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter

import pytest
from conftest import ROOT, load_script
from support.scripts import plan

from vitscale.analysis.published.tables import runtime_correlations
from vitscale.catalog.costs import published_models
from vitscale.catalog.tables import table_rows
from vitscale.cli.fields import TEXTS
from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

ROWS = table_rows("items")
SCRIPT = re.compile(r"studies/(\w+)\.py --scale (\w+)(?: --item (\w+))? --plan")
COSTS = "vitscale complexity"
# Figures and tables of each text, without illustrations and lists of data sets; of the thesis, the
# numbered ones of chapters 2 to 6, section 6.3.4's table and two without a number. Recipes of the
# thesis and of Dosovitskiy et al. 2021 are in search_spaces/recipes.py instead.
NUMBERS = {"xiao2021": 15, "touvron2022": 13, "thesis": 94, "dosovitskiy2021": 22}
CHAPTERS = {"2": 23, "3": 27, "4": 9, "5": 14, "6": 21}
COUNTED = [row for row in ROWS if row["command"] and row["status"] != "settings"]


def name_of(row: dict[str, str]) -> str:
    return f"{row['text']} {row['item']}"


@functools.cache
def study_of(name: str, scale: str, item: str = "") -> Study:
    options = {"hardware": "any"} if name == "throughput" else {"item": item} if item else {}
    return plan(name, scale, **options)


def label(trial: Trial) -> str:
    """What a pattern is searched in: the arm, and of a profile the resolution and batch, too."""
    config = trial.config
    if isinstance(config, ProfileConfig):
        return f"{trial.arm.name}, {config.resolution} px, batch {config.batch_size}"
    return trial.arm.name


def trials_of(command: str, arms: str) -> list[Trial]:
    """The trials of a command's plan that are of the arms: "" is all, "panel:TITLE" those of a
    panel, and anything else a pattern.
    """
    study = study_of(*SCRIPT.fullmatch(command).groups(""))  # type: ignore[union-attr]
    if arms.startswith("panel:"):
        return [t for t in study.trials if t.arm.name in study.panels[arms.removeprefix("panel:")]]
    return [trial for trial in study.trials if re.search(arms, label(trial))]


def planned(row: dict[str, str]) -> int:
    """How many of the row's arms, runs, profiles or rows of costs its commands plan.

    An arm counts once for all its seeds, and arms of the same configs count once.
    """
    if row["command"] == f"{COSTS} --runtime":
        return len(runtime_correlations())
    if row["command"] == COSTS:
        return sum(bool(re.search(row["arms"], model.source)) for model in published_models())
    commands = zip(row["command"].split(" ; "), row["arms"].split(" ; "), strict=True)
    trials = [(command, trial) for command, arms in commands for trial in trials_of(command, arms)]
    if row["count"] != "arms":
        return len({trial.config.id for _, trial in trials})
    configs: dict[tuple[str, str], set[str]] = {}
    for command, trial in trials:
        assert isinstance(trial.config, TrainConfig)
        key = command, trial.arm.name
        configs.setdefault(key, set()).add(trial.config.replace(seed=0).id)
    return len(set(map(frozenset, configs.values())))


def test_every_figure_and_table_of_the_texts_has_one_row() -> None:
    assert Counter(row["text"] for row in ROWS) == NUMBERS and list(TEXTS) == list(NUMBERS)
    assert len({name_of(row) for row in ROWS}) == len(ROWS)
    of_thesis = Counter(row["section"][0] for row in ROWS if row["text"] == "thesis")
    assert of_thesis == CHAPTERS


def test_the_words_of_a_row_are_of_a_list() -> None:
    for row in ROWS:
        assert row["status"] in {"full", "part", "no", "other task", "settings"}, name_of(row)
        kinds = {"experiment", "measurement", "cost", "analysis", "settings", "other"}
        assert row["kind"] in kinds and row["title"] and row["section"], name_of(row)
        assert (row["kind"] == "other") == (row["status"] == "other task"), name_of(row)
        assert bool(row["command"]) == (row["status"] in {"full", "part", "settings"}), name_of(row)
        assert row["note"] or row["status"] in {"full", "other task"}, name_of(row)
        assert row["count"] in ({"arms", "runs", "profiles", "rows"} if row in COUNTED else {""})


@pytest.mark.parametrize("row", COUNTED, ids=name_of)
def test_a_command_plans_what_its_row_claims(row: dict[str, str]) -> None:
    """Full: at least what is printed. In part: some of it, or all with a stand-in; how many, the
    note says first.
    """
    number, printed = planned(row), int(row["printed"])
    if row["status"] == "full":
        assert number >= printed and not row["stand_in"]
    else:
        assert 0 < number <= printed and (number < printed or row["stand_in"])
        assert row["note"].startswith(f"{number} of {printed}")


@pytest.mark.parametrize("row", [row for row in ROWS if row["shows"]], ids=name_of)
def test_a_study_draws_what_its_row_names(row: dict[str, str]) -> None:
    studies = [study_of(*options) for options in SCRIPT.findall(row["command"])]
    drawn = {name for study in studies for name in (*study.tables, *study.figures)}
    assert set(row["shows"].split()) <= drawn


def test_every_study_that_answers_a_paper_is_in_a_row() -> None:
    """And its page is one that the table can link to."""
    named = {name for row in ROWS for name, *_ in SCRIPT.findall(row["command"])}
    scripts = {path.stem for path in (ROOT / "studies").glob("*.py")}
    assert named <= scripts
    for name in scripts - named:
        assert load_script(ROOT / "studies" / f"{name}.py").study().source.startswith("ours;"), name
    assert all((ROOT / "docs" / "studies" / f"{name}.md").exists() for name in named)
