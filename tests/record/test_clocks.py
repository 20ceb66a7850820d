"""A machine whose clock differs from the store's: it is told, and nothing else depends on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Script
from support.apart import apart_by, apart_clock
from support.buckets import SERVER, fresh, point_at
from support.tiny_study import put, study

from vitscale.record.store import Store

APART_S = 600
LOOK = """
import json, sys
from vitscale.doctor.check import Machine
from vitscale.doctor.storage import clock
found = clock(Machine(store=sys.argv[1]))
print(json.dumps([found.verdict, found.detail, found.values["ahead_s"]]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = apart_clock(tmp_path_factory.mktemp("clock"))
    if found is None:
        pytest.skip("needs gcc")
    return found


def look(address: str, **environment: str) -> tuple[str, str, float]:
    """What `vitscale doctor` finds of the clock of a process."""
    command = [sys.executable, "-c", LOOK, address]
    environment = {**os.environ, **environment}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    verdict, detail, ahead_s = json.loads(said.stdout)
    return verdict, detail, ahead_s


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_doctor_measures_a_clock_against_the_store_s(
    where: str,
    tmp_path: Path,
    library: Path,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point_at(f"http://127.0.0.1:{server}", monkeypatch)
    address = str(tmp_path / "runs") if where == "folder" else fresh()
    verdict, _, ahead_s = look(address)
    assert verdict == "pass" and ahead_s == 0
    for shift in (-APART_S, APART_S):
        if where == "bucket" and SERVER == "azurite":
            continue  # it refuses requests of another time
        verdict, detail, ahead_s = look(address, **apart_by(library, shift))
        assert verdict == "fail" and abs(ahead_s - shift) <= 3, detail
        assert f"{abs(round(ahead_s))} s {'ahead of' if shift > 0 else 'behind'} the st" in detail
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_study_on_a_machine_with_another_clock_says_so_and_trains(
    tmp_path: Path, library: Path
) -> None:
    script = Script(tmp_path, is_lean=True)
    said = script.run("--num", "1", "--epochs", "2", **apart_by(library, -APART_S))
    assert said.returncode == 0, said.stdout
    (line,) = [line for line in said.stdout.splitlines() if "clock" in line]
    found = re.search(r"warning: the clock of this machine is (\d+) s behind the store's", line)
    assert found and abs(int(found[1]) - APART_S) <= 3
    again = script.run("--num", "1", "--epochs", "2", **apart_by(library, -APART_S))
    assert "clock" not in again.stdout  # nothing is trained
    assert not list((tmp_path / "runs/studies").glob("**/.*"))


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("shift", [-APART_S, APART_S])
def test_a_start_into_a_bucket_from_such_a_machine_is_refused(
    shift: int,
    tmp_path: Path,
    library: Path,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is trained; unless it is told that it may."""
    if SERVER == "azurite":
        pytest.skip("it refuses requests of another time")
    point_at(f"http://127.0.0.1:{server}", monkeypatch)
    script, root = Script(tmp_path, is_lean=True), fresh()
    options = ("--num", "1", "--epochs", "2", "--only", "conv", "--store", root)
    apart = apart_by(library, shift)
    refused = script.run(*options, **{**apart, "VITSCALE_ANY_CLOCK": ""})
    assert refused.returncode == 2
    (line,) = [line for line in refused.stdout.splitlines() if "error:" in line]
    words = "ahead of" if shift > 0 else "behind"
    law = r"the clock of this machine must be as the store's within a lease \(60 s\), but is "
    assert re.search(rf"{law}(59|60)\d s {words} it; .*VITSCALE_ANY_CLOCK=1", line)
    assert not Store.open(root).trial_ids()
    if shift > 0:
        told = script.run(*options, **apart)
        assert told.returncode == 0 and "warning: the clock of this machine is" in told.stdout


def test_a_file_that_is_being_written_is_not_removed_by_a_machine_with_another_clock(
    tmp_path: Path, library: Path
) -> None:
    """By the clock of the store it was written just now."""
    put(store := Store.open(tmp_path / "runs"), study(num=1, epochs=2))
    scratch = store.root / "studies/.plan.json.0a1b2c3d.tmp"
    scratch.write_bytes(b"{")
    for shift in (86400, -86400):
        said = clean(store, **apart_by(library, shift))
        assert scratch.exists(), said
    os.utime(scratch, (1e9, 1e9))
    assert "1 " in clean(store, **apart_by(library, -86400 * 365 * 40))
    assert not scratch.exists() and not list((store.root / "studies").glob(".*"))


def clean(store: Store, **environment: str) -> str:
    command = [sys.executable, "-m", "vitscale", "clean", "--yes", "--store", str(store.root)]
    environment = {**os.environ, **environment}
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
