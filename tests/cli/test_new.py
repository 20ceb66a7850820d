"""vitscale new: a short study to start from, that runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Script, load_script
from support.refusals import refusing

import vitscale
from vitscale.cli.new import KINDS, write


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_study_plans_is_short_and_overwrites_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write("mine", kind)
    text = path.read_text()
    assert 25 <= text.count("\n") <= 50 and max(map(len, text.splitlines())) <= 100
    for arguments in (["check", "--select", "E,F,B,UP"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--line-length", "100"]
        subprocess.run([*command, str(path)], check=True)
    made = vitscale.run(load_script(path).study, plan=True)
    assert made.study.slug == "mine-digits" and made.study.kind == kind
    assert "warning" not in capsys.readouterr().out
    with refusing("mine.py: exists"):
        write("mine", kind)
    assert path.read_text() == text


def test_a_new_study_of_a_project_lies_in_its_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/other.py").touch()
    assert write("mine", "repeats") == Path("studies/mine.py")
    assert "python studies/mine.py --plan" in Path("studies/mine.py").read_text()
    for name in ("Mine", "../mine", "mine.py", ""):
        with refusing(repr(name)):
            write(name, "repeats")
    for name in ("random", "ray"):  # importing vitscale imports them, and would find the study
        with refusing(name):
            write(name, "repeats")


@pytest.mark.slow
def test_a_new_study_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Script(tmp_path, tmp_path / write("mine", "repeats"))
    result = script.run("--num", "2", "--final-num", "4")
    assert result.returncode == 0 and "4 finished, 0 diverged" in result.stdout, result.stdout
    trials = vitscale.load("mine-digits", tmp_path / "runs").trials
    assert (trials["value"] < 50).all()  # chance is 90
