"""What a stranger meets first: links, workflows, forms, quoted messages, the list of the API."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

import vitscale

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [p for p in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if p.stem != "config"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    """As GitHub resolves it; `make docs` does so for the site."""
    broken = [
        target
        for target, _ in LINK.findall(without_code(page))
        if target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](none.md) `[b](code.md)` [![c](d.png)](e.md#f) [g](https://h.org)")
    assert [target for target, _ in LINK.findall(without_code(page))] == [
        "none.md",
        "d.png",
        "e.md",
    ]


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_only_and_pins_what_it_uses(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert content["concurrency"]["cancel-in-progress"] is True
    assert all("timeout-minutes" in job for job in content["jobs"].values())
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", name) for name in used)


def test_workflows_do_nothing_but_call_the_script_with_targets_of_the_makefile() -> None:
    commands = [step["run"] for path in WORKFLOWS for step in steps_of(path) if "run" in step]
    targets = [command.removeprefix(".ci/run ").split() for command in commands]
    assert all(command.startswith(".ci/run ") for command in commands)
    assert {name for names in targets for name in names} >= {
        *("check", "docs", "wheel", "test-fast", "test", "test-readme", "test-slow", "test-gpu")
    }
    for name in sorted({name for names in targets for name in names}):
        result = subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "suites"),
    [
        ([], ["check", "docs", "wheel", "test", "test-slow"]),
        (["docs", "check"], ["docs", "check"]),
    ],
)
def test_the_script_runs_all_suites_or_those_it_is_given(
    arguments: list[str], suites: list[str]
) -> None:
    result = subprocess.run(
        [ROOT / ".ci/run", *arguments],
        env={**os.environ, "MAKEFLAGS": "n"},  # make prints what it would run
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^== make ([\w-]+):", result.stdout, re.MULTILINE) == suites


def test_python_versions_that_are_tested_begin_with_the_oldest_supported_one() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    tested = jobs["test-fast"]["strategy"]["matrix"]["python"]
    assert tested == sorted(tested, key=lambda version: int(version.split(".")[1]))
    assert f'requires-python = ">={tested[0]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_has_what_github_demands(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    assert content["name"] and content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in fields:
        assert field["type"] in {"input", "textarea", "dropdown", "checkboxes"}
        assert field["attributes"]["label"]
        if field["type"] == "dropdown":  # GitHub refuses what YAML reads as true or false
            assert all(isinstance(option, str) for option in field["attributes"]["options"])


def literals(path: Path) -> str:
    """The constant text of a module, f-strings with `...` for values and adjacent parts joined."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else "..." for part in node.values
            ]
            found.append("".join(str(part) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


def test_messages_quoted_under_troubleshooting_are_those_of_the_code() -> None:
    """Each run of words between the `...` of a quotation."""
    folders = [ROOT / "vitscale" / name for name in ("cli", "launch", "plan", "record")]
    code = "\n".join(literals(path) for folder in folders for path in folder.glob("*.py"))
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^> `([^`]+)`$", page, re.MULTILINE)
    assert len(quoted) >= 10
    words = [
        words
        for message in quoted
        if "ModuleNotFoundError" not in message  # Python's own
        for words in re.split(r"\.\.\.", message.removeprefix("warning: "))
        if re.search(r"\w{3}", words)
    ]
    assert [part for part in words if part.strip(" ;()=?") not in code] == []


def test_the_page_of_the_api_lists_the_public_names() -> None:
    listed = re.findall(r"^::: vitscale\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(vitscale.__all__)


def test_the_citation_is_of_the_newest_release_in_the_changelog() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, day = re.findall(
        r"^## \[(\d[\d.]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[0]
    assert (citation["version"], str(citation["date-released"])) == (version, day)
