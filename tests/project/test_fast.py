"""What `make test-fast` leaves out is a list of tests that exist, and the rest starts no study."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Script, not_fast

TESTS = ROOT / "tests"


@pytest.mark.parametrize("line", not_fast())
def test_what_is_left_out_exists(line: str) -> None:
    file, _, test = line.partition("::")
    (path,) = TESTS.rglob(file)
    text = path.read_text()
    assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_files_and_tests_that_a_guide_names_exist(page: str) -> None:
    """Paths, whole or as in a diagram; links; tests by name."""
    text = (ROOT / page).read_text()
    tests = "".join(path.read_text() for path in TESTS.rglob("*.py"))
    files = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if ".venv" not in path.parts
    }
    for name in re.findall(r"\b(test_[a-z_0-9]+)\b(?!\.py)", text):
        assert f"def {name}(" in tests, name
    for name in re.findall(r"(?<![\w/*])(?:[\w]+/)*[a-z_0-9]\w*\.py\b", text):
        made = name == "sgd.py"  # by the reader
        assert made or any(f"/{file}".endswith(f"/{name}") for file in files), name
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_the_command_refuses_tests_that_run_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = subprocess.run(
        ["make", "-n", "test-fast"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (
        "VITSCALE_TEST_FAST=1 .venv/bin/python -m pytest" in command
        and '-m "not slow and not long"' in command
    )
    monkeypatch.setenv("VITSCALE_TEST_FAST", "1")
    with pytest.raises(AssertionError, match=r"belongs in tests/not_fast\.txt"):
        Script(tmp_path)
