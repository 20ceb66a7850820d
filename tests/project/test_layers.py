"""Who may import whom: stages import downwards only, and
what is heavy is imported where it is used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

SOURCES = [
    path
    for folder in ("vitscale", "search_spaces", "studies", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "ray",
    "mlflow",
    "pandas",
    "matplotlib",
    "sklearn",
    "pyarrow",
)

ABOVE = ("vitscale.cli", "vitscale.launch")
# folder -> what no file in it may import, not even within a function; "a.b except a.b.c" is written
# as two entries
USERS = ("search_spaces", "studies")  # the user's side, of which the engine knows nothing
FORBIDDEN = {
    "search_spaces": ("vitscale", *HEAVY),
    "vitscale": USERS,
    "vitscale/catalog": ("vitscale", "optuna", *HEAVY),
    "vitscale/plan": (
        "vitscale.cli",
        "vitscale.doctor",
        "vitscale.launch",
        "vitscale.train",
        "vitscale.record",
        "vitscale.analysis",
        *HEAVY,
    ),
    "vitscale/record": (
        "vitscale.cli",
        "vitscale.doctor",
        "vitscale.launch",
        "vitscale.train",
        "vitscale.analysis",
        "torch",
        "timm",
        "ray",
    ),
    "vitscale/train": (
        "vitscale.cli",
        "vitscale.doctor",
        "vitscale.launch",
        "vitscale.analysis",
        "vitscale.record",
        "ray",
        "mlflow",
        "optuna",
    ),
    "vitscale/analysis": (
        "vitscale.cli",
        "vitscale.doctor",
        "vitscale.launch",
        "vitscale.train",
        "torch",
        "torchvision",
        "ray",
        "mlflow",
        "timm",
    ),
    "vitscale/launch": ("vitscale.cli", "vitscale.doctor"),
    "vitscale/doctor": ("vitscale.cli", "vitscale.analysis", "ray"),
    "vitscale/cli": ("torch", "torchvision", "timm", "ray"),
    "studies": ("vitscale.train", "vitscale.record", "ray", "mlflow", "torch", "timm"),
}
ALLOWED = {
    "search_spaces": ("vitscale.catalog",),
    "vitscale/catalog": ("vitscale.catalog",),
    "vitscale/train": ("vitscale.record.workdir", "vitscale.record.outcome"),
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted module or name, line) of every import in a file, at its top or within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"an import must be absolute, but got ({path}:{node.lineno})"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def strings(path: Path) -> Iterator[tuple[str, int]]:
    """(text, line) of every string of a file that is no docstring, f-strings in parts: a module
    may be imported by name, and a package's files looked for.
    """
    tree = ast.parse(path.read_text())
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in docstrings:
                yield text, node.lineno


def edges(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports: at its top, within functions, and for types."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in names}
    return found & modules.keys()


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each imports every other, by way of others."""
    reach = {name: {name} for name in graph}
    for _ in graph:
        longer = {
            name: set().union(seen, *(graph[other] for other in seen))
            for name, seen in reach.items()
        }
        if longer == reach:
            break
        reach = longer
    groups = {tuple(sorted(o for o in reach[name] if name in reach[o])) for name in graph}
    return sorted(list(group) for group in groups if len(group) > 1)


def test_files_import_each_other_in_no_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
    }
    assert not circles({name: edges(path, modules) - {name} for name, path in modules.items()})


def within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def test_the_walk_sees_imports_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "import ray.tune as rt\ndef f():\n    from vitscale import train, plan\n    import torch, "
        "timm\n"
    )
    seen = [name for name, _ in imports(file)]
    assert sorted(seen) == ["ray.tune", "timm", "torch", "vitscale.plan", "vitscale.train"]
    assert within("ray.tune", "ray") and within("ray", "ray") and not within("rayon", "ray")


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_stage_imports_only_what_lies_below_it(folder: str) -> None:
    files = [path for path in SOURCES if path.is_relative_to(ROOT / folder)]
    assert len(files) >= 2
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for name, line in imports(path)
        if any(within(name, package) for package in FORBIDDEN[folder])
        and not any(within(name, package) for package in ALLOWED.get(folder, ()))
    ]
    assert not wrong


def test_a_test_file_imports_no_other_one() -> None:
    """What several of them use lies in tests/support."""
    files = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name, line in imports(path)
        if not files.keys().isdisjoint(name.split("."))
    ]
    assert len(files) > 100 and not wrong


def names_a_user_module(text: str) -> bool:
    """Whether a string is a module of the user's side, or the start of one, as in an f-string.

    "studies" alone is a folder of every store, and as a package it holds nothing.
    """
    return re.fullmatch(r"search_spaces(\.[\w.]*)?|studies\.[\w.]*", text) is not None


def test_the_engine_names_no_module_of_the_user_s_side(tmp_path: Path) -> None:
    """Neither `import search_spaces` (above) nor import_module("search_spaces.demo"), nor
    files("search_spaces"). A folder of that name in a path is written with a slash.
    """
    file = tmp_path / "some.py"
    file.write_text(
        '"""search_spaces"""\nimport_module(f"search_spaces.{scale}")\nfiles("search_spaces")\n'
        'open("search_spaces/x")\n'
    )
    assert {line for text, line in strings(file) if names_a_user_module(text)} == {2, 3}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "vitscale")
        for text, line in strings(path)
        if names_a_user_module(text)
    ]
    assert not wrong


def test_five_files_import_ray_and_four_its_settings_before() -> None:
    """In a worker, where a team is led, Ray has been imported. A
    benchmark may compare with Ray by itself.
    """
    users = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if path.parts[len(ROOT.parts)] != "benchmarks"
        and any(within(name, "ray") for name, _ in imports(path))
    }
    names = ("cluster", "nodes", "placement", "ray_team", "tune")
    assert users == {f"vitscale/launch/{name}.py" for name in names}
    for user in users - {"vitscale/launch/ray_team.py"}:
        imported = [name for name, _ in imports(ROOT / user)]
        assert imported[1] == "vitscale.launch.ray_settings", user  # after __future__


def python(code: str, *arguments: str) -> str:
    """What a program in a fresh process prints."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


BLOCKER = """
    import sys

    class Without:
        def __init__(self, finder):
            self.finder = finder

        def __getattr__(self, name):
            return getattr(self.finder, name)

        def find_spec(self, name, path=None, target=None):
            absent = name.split(".")[0] in sys.argv[1].split(",")
            return None if absent else self.finder.find_spec(name, path, target)

    sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def test_the_trainer_runs_on_a_machine_without_ray_mlflow_and_optuna(tmp_path: Path) -> None:
    code = """
    import pathlib
    import torch
    from vitscale.plan.config import TrainConfig
    from vitscale.train.loop import train

    torch.set_num_threads(1)
    config = TrainConfig(
        width=8, depth=1, heads=2, patch_size=4, batch_size=498, epochs=1, warmup_epochs=0.0
    )
    print([row["epoch"] for row in train(config, pathlib.Path(sys.argv[2]))])
    """
    assert (
        python(BLOCKER + code, "ray,mlflow,optuna,pandas,matplotlib,pyarrow", str(tmp_path))
        == "[1.0]\n"
    )


def test_a_report_is_drawn_without_torch_ray_and_mlflow(tmp_path: Path) -> None:
    """tests/project/test_installed.py does so with the wheel, and with commands."""
    code = """
    from pathlib import Path
    sys.path.append(sys.argv[3])
    from golden.capture import load
    from vitscale.analysis.report.draw import draw
    from vitscale.record.store import Store

    study, read, _ = load("lr_wd_edf-demo")
    folder = draw(study, Store.at(sys.argv[2]), read)[0]
    print(*(len(folder.read(name)) > 2000 for name in ("report.html", "edf_panels.png")))
    """
    absent = "torch,torchvision,timm,ray,mlflow,sklearn"
    tests = str(ROOT / "tests")
    assert python(BLOCKER + code, absent, str(tmp_path), tests) == "True True\n"


def test_the_blocker_blocks() -> None:
    code = """
    try:
        import optuna
    except ImportError as error:
        print(error)
    """
    assert python(BLOCKER + code, "optuna") == "No module named 'optuna'\n"


@pytest.mark.parametrize(
    "module", ["vitscale", "vitscale.cli.script", "vitscale.plan.cost", "search_spaces.demo"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = (
        "import sys, importlib; importlib.import_module(sys.argv[1]); print(*{m.split('.')[0] for "
        "m in sys.modules})"
    )
    loaded = set(python(code, module).split())
    assert module.split(".")[0] in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize(
    "study", sorted((ROOT / "studies").glob("[a-z]*.py")), ids=lambda path: path.stem
)
def test_a_study_script_builds_its_plan_without_anything_heavy(study: Path) -> None:
    code = """
    import sys, runpy
    made = runpy.run_path(sys.argv[1])["study"]()
    plan = made.stand_in() if hasattr(made, "stand_in") else made  # a search
    print(len(plan.trials) > 1, *{m.split('.')[0] for m in sys.modules})
    """
    printed = python(code, str(study)).split()
    assert printed[0] == "True" and not set(printed) & set(HEAVY)


def test_only_tables_of_data_are_laid_out_by_hand() -> None:
    """A table is a literal or a call that a module assigns to a name."""
    for path in SOURCES:
        text = path.read_text()
        marked = {i for i, line in enumerate(text.splitlines(), 1) if "# fmt: skip" in line}
        tables = [
            node for node in ast.parse(text).body if isinstance(node, (ast.Assign, ast.AnnAssign))
        ]
        loose = marked - {node.end_lineno for node in tables}
        assert not loose and "# fmt: off" not in text, (path, loose)
