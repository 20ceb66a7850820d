"""vitscale as a wheel, in environments that have what its metadata says and nothing else.

The environments are virtual ones. Their packages are links into the environment of the tests, for
the requirements of the wheel with its extras, followed through the metadata: what is not required,
cannot be imported. vitscale itself is installed from the wheel, and the repository is on no path.
The wheel's files are read-only, and root runs without the right to write them nevertheless.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from conftest import ROOT, load_script
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.guides import python_of, write_digits

from vitscale import load

pytestmark = pytest.mark.slow
STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("[a-z]*.py"))


class Environment(NamedTuple):
    """A virtual environment with the wheel, and an empty folder to work in."""

    root: Path
    folder: Path

    def python(self) -> Path:
        return self.root / "bin" / "python"

    def packages(self) -> Path:
        return next((self.root / "lib").glob("python*")) / "site-packages"

    def run(
        self, *command: str, folder: Path | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """A program of the environment; stderr is not mixed into stdout."""
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "VITSCALE_STORE", "MLFLOW_TRACKING_URI")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        return subprocess.run(
            [*unprivileged(), str(self.root / "bin" / command[0]), *command[1:]],
            cwd=folder or self.folder,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def unprivileged() -> list[str]:
    """What takes from root the right to write a read-only file; nothing for other users."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv, or a user other than root")
    return [setpriv, "--bounding-set", "-dac_override,-dac_read_search"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def required(wheel: Path, extras: set[str]) -> Iterator[Distribution]:
    """The distributions that a wheel with extras requires, and theirs, as they are installed."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    texts = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    todo, seen = [(text, extras) for text in texts], set[tuple[str, str]]()
    while todo:
        text, wanted = todo.pop()
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
            continue
        name = canonicalize_name(requirement.name)
        if (name, str(sorted(requirement.extras))) in seen:
            continue
        seen.add((name, str(sorted(requirement.extras))))
        found = Distribution.from_name(name)
        assert requirement.specifier.contains(found.version, prereleases=True), text
        yield found
        todo += [(other, requirement.extras) for other in found.requires or ()]


def link(found: Distribution, packages: Path) -> None:
    """Links what a distribution has at the top of site-packages."""
    source = Path(str(found.locate_file("")))
    for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        target = packages / name
        if (source / name).exists() and not target.exists():
            target.symlink_to(source / name)


def installed(wheel: Path, root: Path, extras: set[str]) -> Environment:
    venv.create(root, symlinks=True)
    environment = Environment(root, root.parent / "work")
    environment.folder.mkdir()
    for found in required(wheel, extras):
        link(found, environment.packages())
    command = [sys.executable, "-m", "pip", "--python", str(environment.python()), "install"]
    subprocess.run([*command, "--quiet", "--no-deps", str(wheel)], check=True)
    for path in [environment.packages(), *environment.packages().rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    return environment


@pytest.fixture(scope="module")
def trains(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed(wheel, tmp_path_factory.mktemp("train") / "env", {"train"})


@pytest.fixture(scope="module")
def plans(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed(wheel, tmp_path_factory.mktemp("base") / "env", set())


@pytest.fixture(scope="module")
def trained(trains: Environment) -> str:
    """What the smallest form of a shipped study prints, trained in an empty folder."""
    command = ("vitscale", "run", "lr_wd_edf", "--num", "1", "--num-references", "1")
    return passed(trains.run(*command, timeout=1000))


def passed(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


# ---- the wheel


def test_the_wheel_installs_one_package_with_its_data_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {name: archive.read(name) for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names} == {"vitscale", "vitscale-0.2.0.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    inside = {name.removeprefix("vitscale/") for name in names}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        folder = name.partition("/")[0]
        if folder in ("studies", "search_spaces"):
            assert f"project/{name}" in inside
        elif folder == "vitscale":
            assert name.removeprefix("vitscale/") in inside
    assert "py.typed" in inside
    metadata = texts["vitscale-0.2.0.dist-info/METADATA"].decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert b"Apache License" in texts["vitscale-0.2.0.dist-info/licenses/LICENSE"]


def test_the_environment_holds_neither_the_repository_nor_what_may_be_written(
    trains: Environment,
) -> None:
    """Otherwise the tests below would prove nothing."""
    code = "import vitscale, sys, json; print(json.dumps([vitscale.__file__, sys.path]))"
    file, path = json.loads(passed(trains.run("python", "-c", code)))
    assert Path(file).is_relative_to(trains.packages())
    assert not [folder for folder in path if Path(folder).is_relative_to(ROOT) and folder]
    for name in ("search_spaces", "studies"):
        result = trains.run("python", "-c", f"import {name}")
        assert f"No module named '{name}'" in result.stderr
    written = trains.run("python", "-c", f"open({file!r}, 'a')")
    assert "PermissionError" in written.stderr


# ---- training


@pytest.mark.timeout(1200)
def test_a_shipped_study_trains_in_an_empty_folder(trains: Environment, trained: str) -> None:
    assert "lr_wd_edf-demo: 8 finished" in trained
    report = trains.folder / "runs/studies/lr_wd_edf-demo/report"
    assert (report / "edf_panels.png").stat().st_size > 10_000
    plan = json.loads((report.parent / "plan.json").read_text())
    assert plan["command"] == "vitscale run lr_wd_edf --num 1 --num-references 1"
    # the same trials, by their ids, as from the repository
    ours = load_script(ROOT / "studies/lr_wd_edf.py").study(num=1, num_references=1)
    assert [trial["id"] for trial in plan["trials"]] == [t.config.id for t in ours.trials]
    rows = pd.read_parquet(report / "trials.parquet")
    assert len(rows) == 8 and set(rows["status"]) == {"finished"}


@pytest.mark.usefixtures("trained")
def test_all_other_commands_work_there(trains: Environment) -> None:
    assert "lr_wd_edf-demo" in passed(trains.run("vitscale", "status"))
    assert "report.html" in passed(trains.run("vitscale", "report", "lr_wd_edf-demo"))
    arms = ("lr_wd_edf-demo:ViT_P AdamW", "lr_wd_edf-demo:ViT_C AdamW")
    assert "difference" in passed(trains.run("vitscale", "compare", *arms))
    assert "8 of 8 trials shown" in passed(trains.run("vitscale", "sync"))
    planned = passed(trains.run("vitscale", "plan", "throughput"))
    assert "timed runs" in planned
    # nothing but the store is written where one works
    assert {path.name for path in trains.folder.iterdir()} == {"runs"}


def test_a_project_has_its_own_studies_and_values(trains: Environment) -> None:
    printed = passed(trains.run("vitscale", "init", "my-project"))
    project = trains.folder / "my-project"
    assert str(Path("my-project") / "studies") in printed
    for name in ("studies", "search_spaces"):
        files = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*.*")}
        files = {path for path in files if "__pycache__" not in path.parts}
        assert files == {p.relative_to(project) for p in (project / name).rglob("*.*")}
        for file in files:
            assert (project / file).read_bytes() == (ROOT / file).read_bytes()
    before = {path: path.read_bytes() for path in project.rglob("*.*")}
    refused(trains.run("vitscale", "init", "my-project"), "must not overwrite", "studies")
    assert {path: path.read_bytes() for path in project.rglob("*.*")} == before

    space = project / "search_spaces/demo.py"
    space.write_text(space.read_text() + "\nRECIPE = {**RECIPE, 'epochs': 7}\n")
    in_shipped = passed(trains.run("vitscale", "plan", "lr_wd_edf", "--json"))
    in_project = passed(trains.run("vitscale", "plan", "lr_wd_edf", "--json", folder=project))
    by_path = passed(trains.run("vitscale", "plan", "my-project/studies/lr_wd_edf.py", "--json"))
    command = ("python", "studies/lr_wd_edf.py", "--plan", "--json")
    by_python = passed(trains.run(*command, folder=project))
    plans = (in_shipped, in_project, by_path, by_python)
    assert [json.loads(text)["arms"][0]["epochs"] for text in plans] == [[20], [7], [7], [7]]


@pytest.mark.timeout(1200)
def test_winners_go_to_the_project_and_never_into_the_installed_package(
    trains: Environment,
) -> None:
    """A search of two points per arm and one epoch, trained through Ray in a project."""
    project = trains.folder / "searched"
    passed(trains.run("vitscale", "init", str(project)))
    script = project / "studies/tune_lr_wd.py"
    shorter = '"epochs": 2, "warmup_epochs": 1.0'
    script.write_text(script.read_text().replace('"epochs": 20', shorter))
    command = ("vitscale", "run", "tune_lr_wd", "--num", "2", "--num-seeds", "1")
    assert "8 finished" in passed(trains.run(*command, folder=project, timeout=1000))
    shipped = trains.packages() / "vitscale/project/search_spaces/tuned/demo.json"
    before = shipped.read_bytes()
    adopt = ("vitscale", "adopt", "tune_lr_wd-demo", "--store", str(project / "runs"))
    refused(trains.run(*adopt), "must be run in a project folder")
    refused(
        trains.run(*adopt, folder=trains.packages() / "vitscale/project"),
        "must be run in a project folder",
    )
    passed(trains.run(*adopt, folder=project))
    found = json.loads((project / "search_spaces/tuned/demo.json").read_text())
    assert found["epochs"] == 2 and len(found["winners"]) == 4
    assert shipped.read_bytes() == before


# ---- plans and reports alone


def test_without_the_extra_nothing_that_trains_is_there(plans: Environment) -> None:
    for name in ("torch", "ray", "mlflow", "timm"):
        result = plans.run("python", "-c", f"import {name}")
        assert f"No module named '{name}'" in result.stderr


@pytest.mark.usefixtures("trained")
def test_plans_and_reports_are_made_without_torch_ray_and_mlflow(
    plans: Environment, trains: Environment
) -> None:
    store = plans.folder / "runs"
    shutil.copytree(trains.folder / "runs", store)
    shutil.rmtree(store / "studies/lr_wd_edf-demo/report")
    listed = passed(plans.run("vitscale", "run"))
    assert [line.split()[0] for line in listed.splitlines()[1:]] == STUDIES
    for study in STUDIES:
        assert study in passed(plans.run("vitscale", "plan", study))
    assert "lr_wd_edf-demo" in passed(plans.run("vitscale", "status"))
    assert "report.html" in passed(plans.run("vitscale", "report", "lr_wd_edf-demo"))
    report = store / "studies/lr_wd_edf-demo/report"
    assert (report / "edf_panels.png").stat().st_size > 10_000
    drawn = (report / "edf_summary.csv").read_bytes()
    same = trains.folder / "runs/studies/lr_wd_edf-demo/report/edf_summary.csv"
    assert drawn == same.read_bytes()


@pytest.mark.parametrize("command", [("run", "lr_wd_edf"), ("complexity",), ("sync",)])
def test_what_needs_the_extra_says_so_in_a_line(plans: Environment, command: tuple[str]) -> None:
    result = plans.run("vitscale", *command)
    refused(result, "must be installed for this", "pip install 'vitscale[train]'")


@pytest.mark.timeout(600)
def test_the_example_of_own_parts_trains_in_a_folder_of_its_own(trains: Environment) -> None:
    """The files and commands of the page, on images of a folder."""
    folder = trains.folder / "parts"
    write_digits(folder / "all", num_val=0)
    (folder / "all/train").rename(folder / "flowers")
    given = ("--size", "32", "--channels", "1", "--val-fraction", "0.2", "--seed", "0")
    passed(trains.run("vitscale", "prepare", "flowers", "data", *given, folder=folder))
    (folder / "parts").mkdir()
    names = ("parts/net.py", "parts/more.py", "widths.py")
    for name, text in zip(names, python_of(ROOT / "docs/own-parts.md"), strict=False):
        (folder / name).write_text(text)
    command = ("python", "widths.py", "--data-root", "data")
    assert "norm" in passed(trains.run(*command, "--plan", folder=folder))
    assert not (folder / "runs/parts").exists()
    assert "10 finished" in passed(trains.run(*command, "--num", "2", folder=folder, timeout=500))
    rows = load("widths-flowers", folder / "runs").trials.set_index("arm")
    assert rows.loc["no norm", "own.norm"].tolist() == [False, False]
    assert rows.loc["wide", "own.dim"].tolist() == [64, 64]
    assert rows["val_margin"].notna().all()
