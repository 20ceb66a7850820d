"""`vitscale fields`, and the pages of the site that it fills."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
from conftest import ROOT

import vitscale
from vitscale.__main__ import main
from vitscale.analysis.kinds import KINDS
from vitscale.catalog.datasets import DATASETS
from vitscale.cli import fields
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import choices, field_types
from vitscale.plan.metrics import METRICS
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.search import Search
from vitscale.plan.spelling import ALIASES
from vitscale.plan.study import Study
from vitscale.plan.trial import Arm, Trial

PAGES = [ROOT / "docs" / name for name in ("config.md", "study-file.md", "papers.md")]
KNOWN = {"TrainConfig": TrainConfig, "Study": Study, "Arm": Arm, "Trial": Trial, "Search": Search}


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["vitscale", "fields", *words])
    main()
    return capsys.readouterr().out


def test_the_site_has_every_table_once() -> None:
    texts = [page.read_text() for page in PAGES]
    named = [name for text in texts for name in fields.BLOCK.findall(text)]
    assert sorted(named) == sorted([*fields.CLASSES, *fields.TABLES])
    site = "\n".join(map(fields.filled, texts))
    assert "<!--" not in site and all(fields.table(name).strip() in site for name in named)


def test_every_field_has_a_row_and_every_field_of_a_config_a_meaning() -> None:
    for name, kind in KNOWN.items():
        rows = fields.fields_of(name)
        assert [row.name for row in rows] == [field.name for field in dataclasses.fields(kind)]
    own = [f.name for f in dataclasses.fields(ProfileConfig)][
        len(dataclasses.fields(TrainConfig)) :
    ]
    assert [row.name for row in fields.fields_of("ProfileConfig")] == own
    for name in ("TrainConfig", "ProfileConfig"):
        assert not [row.name for row in fields.fields_of(name) if len(row.meaning) < 5]


def test_defaults_choices_bounds_and_aliases_are_those_of_the_class() -> None:
    rows = {row.name: row for row in fields.fields_of("TrainConfig")}
    for field in dataclasses.fields(TrainConfig):
        assert eval(rows[field.name].default) == field.default
        assert rows[field.name].aliases == tuple(ALIASES.get(field.name, "").split())
    for name, values in choices(TrainConfig).items():
        is_open = field_types(TrainConfig)[name].is_open
        assert rows[name].values.split(" | ") == [*values, *["file.py:Name"] * is_open]
    # bounds are tried: a value beyond what the row says is refused, one at its edge is not
    assert rows["resolution"].values == "int, x >= 1, x <= 16,384"
    assert rows["ema_decay"].values == "float, 0 <= x < 1" and TrainConfig(ema_decay=0.0)
    with pytest.raises(ValueError, match="0 <= ema_decay < 1 must hold"):
        TrainConfig(ema_decay=1.0)
    # what a comment lists by hand
    assert all(name in rows["dataset"].meaning for name in DATASETS)
    stated = re.search(r"outcomes: ([a-z, ]+)$", fields.fields_of("Study")[0].meaning)
    assert stated and stated[1].split(", ") == list(KINDS)


def test_all_figures_tables_and_metrics_are_listed() -> None:
    kinds, metrics = fields.table("kinds"), fields.table("metrics")
    for kind in KINDS.values():
        section = kinds.partition(f"### Kind `{kind.name}`\n")[2].partition("### ")[0]
        listed = re.findall(r"^\| `(\w+)` \| (table|figure) \| (\S.*) \|$", section, re.MULTILINE)
        assert listed == [
            (name, what, " ".join((function.__doc__ or "").partition("\n\n")[0].split()))
            for what, functions in (("table", kind.tables), ("figure", kind.figures))
            for name, function in functions.items()
        ]
    assert re.findall(r"^\| `(\w+)`", metrics, re.MULTILINE) == list(METRICS)


def test_rows_of_markdown_have_as_many_cells_as_their_head() -> None:
    for page in PAGES:
        width = 0
        for line in fields.filled(page.read_text()).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert not width or not cells or cells == width, line
            width = cells


def test_a_terminal_shows_all_fields_or_one_by_any_of_its_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = said(capsys, monkeypatch)
    names = re.findall(r"^  (\w+) ", listing, re.MULTILINE)
    assert names == [field.name for field in dataclasses.fields(TrainConfig)]
    assert max(map(len, listing.splitlines())) < 120
    wd = said(capsys, monkeypatch, "wd")
    assert wd.startswith("wd: weight decay") and "0.05" in wd and "weight_decay" in wd
    for alias in ("weight_decay", "Weight-Decay", "l2"):
        assert said(capsys, monkeypatch, alias) == wd
    assert said(capsys, monkeypatch, "patch_siz") == said(capsys, monkeypatch, "patch_size")
    assert "part of  ProfileConfig" in said(capsys, monkeypatch, "timed_runs")
    assert said(capsys, monkeypatch, "--markdown").strip() == fields.table("TrainConfig").strip()


@pytest.mark.parametrize("words", [["zzz"], ["--markdown", "zzz"]])
def test_what_is_unknown_is_refused_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        said(capsys, monkeypatch, *words)
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.err.count("\n") == 1 and not told.out


def test_the_page_of_the_api_has_every_public_name() -> None:
    named = re.findall(r"^::: vitscale\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(vitscale.__all__)
