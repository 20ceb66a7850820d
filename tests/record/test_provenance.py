"""Which code a trial says that it was trained by."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from vitscale.plan.profile import processor_name
from vitscale.record.outcome import Outcome, Status
from vitscale.record.provenance import commits_of, hardware, provenance

PRINT = "from vitscale.record.provenance import provenance; print(provenance()['commit'])"
HIDE = """
import importlib.metadata as metadata
def absent(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = metadata.distribution = absent
"""


def commit_of(folder: Path, before: str = "") -> str:
    result = subprocess.run(
        [sys.executable, "-c", before + PRINT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_the_same_sources_are_the_same_code_under_any_name() -> None:
    """As of a clone without git, or of another owner, whose commit is a digest."""
    own = provenance()
    same = {"commit": "sources 0123456789ab", "sources": own["sources"]}
    other = {"commit": "1234567890ab", "sources": "0" * 12}
    twin = {**other, "commit": "vitscale 0.2.0"}
    facts = {"a": same, "b": other, "c": twin, "d": own}
    found = commits_of({name: Outcome(Status.FINISHED, facts=f) for name, f in facts.items()})
    assert found == {
        "a": own["commit"],
        "b": "1234567890ab",
        "c": "1234567890ab",
        "d": own["commit"],
    }


def test_files_without_a_checkout_are_named_by_a_digest(tmp_path: Path) -> None:
    """As `ray job submit --working-dir .` ships them; also where no version of vitscale is
    installed. Equal files have one name, and an edited line another.
    """
    for name in ("one", "other"):
        shutil.copytree(
            ROOT / "vitscale",
            tmp_path / name / "vitscale",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    found = {commit_of(tmp_path / "one"), commit_of(tmp_path / "other", HIDE)}
    (shipped,) = found
    assert shipped.startswith("sources ") and len(shipped.split()[1]) == 12
    loop = tmp_path / "other" / "vitscale" / "train" / "loop.py"
    loop.write_text(loop.read_text() + "\n# edited\n")
    assert commit_of(tmp_path / "other") not in found


def test_the_hardware_of_a_trial_is_read_from_its_machine() -> None:
    """Of this process as it is; machines with GPUs as they are recorded elsewhere."""
    assert hardware(provenance()["machine"], "cpu") == processor_name()
    two = "AMD EPYC 7763, 64-Core, 128 cores, NVIDIA H100, NVIDIA H100, Linux x86_64"
    assert hardware(two, "cuda") == "NVIDIA H100"
    assert hardware(two, "cpu") == "AMD EPYC 7763, 64-Core"
    assert hardware("", "cpu") == ""


@pytest.mark.parametrize("text", ["here", "a machine, of no known form"])
def test_a_machine_of_another_form_is_its_own_hardware(text: str) -> None:
    assert hardware(text, "cuda") == text
