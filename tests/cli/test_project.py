"""Where `vitscale run` finds a script and what it imports, and what `vitscale init` writes. With a
wheel and without the repository: test_installed.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.refusals import refusing

from vitscale.cli.project import copy_project, find_script


def project_files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for name in ("studies", "search_spaces")
        for path in (folder / name).rglob("*.*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def vitscale(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitscale", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_study_of_the_folder_comes_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_script("lr_wd_edf")
    assert shipped is not None and shipped.samefile(ROOT / "studies/lr_wd_edf.py")
    assert find_script("mine") is None and find_script("../studies/lr_wd_edf") is None
    (tmp_path / "studies").mkdir()
    for name in ("lr_wd_edf", "mine"):
        (tmp_path / f"studies/{name}.py").touch()
        found = find_script(name)
        assert found is not None and found.samefile(tmp_path / f"studies/{name}.py")
    for name in ("scaling", "ab"):  # as `vitscale new` writes them without such a folder
        (tmp_path / f"{name}.py").touch()
        assert find_script(name) == Path(f"{name}.py")
    with refusing("studies/none.py"):
        find_script("studies/none.py")


def test_a_project_is_copied_whole_and_never_over_anything(tmp_path: Path) -> None:
    own = tmp_path / "a" / "project"
    made = copy_project(own)
    assert sorted(made) == [own / "README.md", own / "search_spaces", own / "studies"]
    assert project_files(own) == project_files(ROOT) and len(project_files(own)) > 15
    for kept in (own / "studies/lr_wd_edf.py", own / "README.md"):
        kept.write_text("mine")
    for folder in (own, tmp_path):
        (tmp_path / "README.md").touch()
        with refusing(folder / "README.md"):
            copy_project(folder)
    assert (own / "studies/lr_wd_edf.py").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "a"]

    for folder in (own / "README.md", Path("/proc/project")):
        with refusing(folder):
            copy_project(folder)


SCRIPT = """
import os, sys
import search_spaces
print(search_spaces.__file__, sys.argv[1:], os.environ["VITSCALE_RUN"])
"""


@pytest.mark.parametrize("study", ["mine", "studies/mine.py"])
def test_a_script_imports_the_search_spaces_of_its_project(study: str, tmp_path: Path) -> None:
    """Although those of the repository are on PYTHONPATH."""
    for name in ("studies/mine.py", "search_spaces/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT if "studies" in name else "")
    result = vitscale(tmp_path, "run", study, "--num", "3")
    printed = (
        f"{tmp_path / 'search_spaces/__init__.py'} ['--num', '3'] python -m vitscale run {study}\n"
    )
    assert result.stdout == printed, result.stderr


def test_plain_python_finds_the_search_spaces_of_a_copied_project(tmp_path: Path) -> None:
    """Although those of the repository are on PYTHONPATH; from any folder."""
    copy_project(tmp_path / "own")
    script = tmp_path / "own/studies/mine.py"
    script.write_text("import search_spaces\nprint(search_spaces.__file__)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for folder in (tmp_path, tmp_path / "own", script.parent):
        command = [sys.executable, os.path.relpath(script, folder)]
        printed = subprocess.check_output(command, cwd=folder, env=environment, text=True)
        assert (folder / printed.strip()).samefile(tmp_path / "own/search_spaces/__init__.py")


def test_a_script_of_no_project_imports_the_shipped_search_spaces(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    result = vitscale(tmp_path, "run", "mine.py")
    assert (
        result.stdout == f"{ROOT / 'search_spaces/__init__.py'} [] python -m vitscale run mine.py\n"
    ), result.stderr


def test_run_lists_what_it_can_run_and_refuses_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/mine.py").write_text('"""Is mine better?\n\nNo."""\n')
    (tmp_path / "studies/broken.py").write_text("(")
    lines = {line.split()[0]: line for line in vitscale(tmp_path, "run").stdout.splitlines()}
    assert "Is mine better?" in lines["mine"] and "this folder" in lines["mine"]
    assert "broken" in lines and lines["lr_wd_edf"].split()[1] == "vitscale"
    result = vitscale(tmp_path, "run", "none")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "mine" in result.stderr and "got ('none')" in result.stderr


# ---- a Python without the packages


@pytest.mark.parametrize("path", ["", str(ROOT)])
def test_a_python_without_the_packages_gets_one_line(path: str) -> None:
    """As after cloning, before `make demo`; -S hides installed packages."""
    scripts = [str(script) for script in sorted((ROOT / "studies").glob("*.py"))]
    assert len(scripts) > 8
    for arguments in (*([script] for script in scripts), ["-m", "vitscale"]):
        result = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=ROOT,
            env={"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        (line,) = result.stderr.splitlines()
        assert result.returncode == 1 and result.stdout == "", arguments
        assert line.startswith("No module named '") and "run `make demo` once" in line


# ---- one version


def test_the_changelog_begins_with_the_version_that_is_built_and_cited() -> None:
    """What a wheel of this code has must not be listed as unreleased, or under another version."""
    heading = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    unreleased = re.search(r"^## \[Unreleased\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert heading and not unreleased and heading[1] == built
    assert f"\nversion: {built}\ndate-released: {heading[2]}\n" in citation


# ---- pinned versions


def test_every_package_of_the_environment_is_pinned_at_the_version_that_is_tested() -> None:
    """Follows what vitscale[dev] requires, and what those require, on this machine."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pins = {
        canonicalize_name(name): version for name, _, version in (x.partition("==") for x in lines)
    }
    todo = [Requirement("vitscale[dev]")]
    seen: dict[str, str] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        key = f"{name}{sorted(requirement.extras)}"
        if key in seen:
            continue
        installed = distribution(name)
        seen[key] = name if name == "vitscale" else installed.version
        for text in installed.requires or ():
            required = Requirement(text)
            environments = [{"extra": extra} for extra in (*requirement.extras, "")]
            if not required.marker or any(required.marker.evaluate(e) for e in environments):
                todo.append(required)
        if name not in ("vitscale", "setuptools"):
            assert pins.get(name) == installed.version, f"{name} is not pinned: make constraints"
    assert len(seen) > 100


NAMED = """if True:
    import json, os, sys
    import vitscale.launch.command as named
    from types import ModuleType

    def study(): ...
    sys.argv = ["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"]
    for module, arguments in json.loads(sys.stdin.read()):
        if module not in sys.modules:
            sys.modules[module] = ModuleType(module)
            sys.modules[module].__file__ = f"{os.getcwd()}/studies/mine.py"
        study.__module__ = module
        named.name_command(study, arguments)
        print(json.dumps(named.command()))
"""


def test_the_command_of_a_call_is_that_of_its_study_and_arguments(tmp_path: Path) -> None:
    """Not that of the process: a kernel of a notebook, whose studies are in no file."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/mine.py").write_text("")
    calls = [("mine", ["--num", "a b"]), ("__main__", ["--num", "1"])]
    expected = [
        ["python studies/mine.py --num 'a b'", "mine.py"],
        ["main(study, ['--num', '1'])  # in Python: the study is in no script", ""],
    ]
    command = [sys.executable, "-c", NAMED]
    said = subprocess.run(
        command, cwd=tmp_path, input=json.dumps(calls), capture_output=True, text=True
    )
    assert [json.loads(line) for line in said.stdout.splitlines()] == expected, said.stderr


OWN = "import json; from vitscale.launch import command as named\n\ndef study(): ...\n\n"
OWN += "named.name_command(study, None); print(json.dumps(named.command()))\n"


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("studies/mine.py", "python studies/mine.py"),
        ("-m studies.mine", "python -m studies.mine"),
        ("-m vitscale run mine", "python -m vitscale run mine"),
    ],
)
def test_a_command_is_named_as_it_was_typed(typed: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/mine.py").write_text(OWN)
    said = subprocess.run(
        [sys.executable, *typed.split(), "--num", "a b"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert json.loads(said.stdout) == [f"{command} --num 'a b'", "mine.py"], said.stderr
