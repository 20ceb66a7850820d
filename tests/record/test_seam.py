"""Nobody but vitscale.record.workdir opens a file of a store:
by what modules call, and by a store at no path.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Script

PACKAGE = ROOT / "vitscale"
OF_PATHS = {
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "mkdir",
    "unlink",
    "iterdir",
    "glob",
    "rglob",
    "is_file",
    "is_dir",
    "stat",
    "touch",
    "rmdir",
    "symlink_to",
    "hardlink_to",
    "savefig",
}
OF_OS = {
    "open",
    "replace",
    "rename",
    "link",
    "symlink",
    "walk",
    "scandir",
    "listdir",
    "mkdir",
    "makedirs",
    "remove",
    "unlink",
    "stat",
    "access",
    "truncate",
    "fdopen",
}
MODULES = {"shutil", "tempfile", "sqlite3", "glob"}

# Who calls what of this. The files are: datasets, the package's own, Ray's, MLflow's database, the
# user's project.
ALLOWED = {
    "record/workdir.py": {
        "open",
        "os.access",
        "os.fdopen",
        "os.open",
        "os.link",
        "os.listdir",
        "os.replace",
        "os.symlink",
        "os.scandir",
        "is_dir",
        "stat",
        "mkdir",
        "rmdir",
        "unlink",
        "shutil.rmtree",
    },
    "record/bucket.py": {
        "mkdir",
        "read_bytes",
        "read_text",
        "tempfile.NamedTemporaryFile",
        "tempfile.TemporaryDirectory",
        "write_bytes",
    },  # copies for libraries, a log before it is sent, /proc
    "record/store_folder.py": {"mkdir"},  # of the cache, for MLflow's database
    "record/mlflow/place.py": {
        "sqlite3.connect",
        "is_dir",
        "glob",
        "touch",
        "unlink",
        "os.link",
    },
    "record/provenance.py": {"read_bytes", "rglob"},  # the code of vitscale
    "record/sources.py": {"mkdir", "read_text"},  # the user's note of the parts that were run
    "plan/parts.py": {"is_dir", "is_file", "os.stat", "read_text"},  # the user's parts
    "plan/data.py": {"is_dir", "is_file", "iterdir", "read_text"},
    "plan/profile.py": {"read_text"},
    "plan/cores.py": {"read_text"},  # /proc, /sys
    "launch/cluster.py": {"tempfile.TemporaryFile"},
    "launch/placement.py": {"read_text"},
    "launch/tune.py": {"tempfile.TemporaryDirectory"},
    "launch/process.py": {"os.open"},
    "launch/command.py": {"is_file"},  # a script
    # the folder of Ray
    "launch/preflight.py": {"mkdir", "tempfile.TemporaryFile", "tempfile.gettempdir"},
    "launch/nodes.py": {"shutil.disk_usage"},  # of /dev/shm
    "launch/ray_team.py": {"os.open"},  # /dev/null
    # the code of vitscale and the names of installed packages
    "analysis/report/draw.py": {"is_file"},  # the documentation of a clone
    "analysis/report/save.py": {"savefig"},  # into memory
    # /proc/meminfo; temporary folders of trainings, not of a store
    "doctor/device.py": {"read_text"},
    "doctor/process.py": {  # the log of its processes, and their temporary files
        "os.open",
        "shutil.rmtree",
        "tempfile.NamedTemporaryFile",
        "tempfile.mkdtemp",
    },
    # /dev/shm, nvidia-smi, the devices that the kernel lists
    "doctor/software.py": {"glob", "read_text", "shutil.disk_usage", "shutil.which"},
    "doctor/scheduling.py": {"tempfile.TemporaryDirectory"},
    "doctor/team.py": {"tempfile.TemporaryDirectory"},
    "doctor/tracking.py": {"tempfile.TemporaryDirectory"},
    "doctor/training.py": {"mkdir", "tempfile.TemporaryDirectory"},
    "cli/adoption.py": {"is_file", "mkdir", "read_text"},
    "cli/fields.py": {"read_text"},
    "cli/process.py": {"os.fdopen", "os.open"},  # /dev/null
    "cli/project.py": {
        "glob",
        "is_dir",
        "is_file",
        "mkdir",
        "os.access",
        "read_bytes",
        "read_text",
        "rglob",
        "symlink_to",
        "write_bytes",
        "write_text",
    },
}
OF_DATASETS = ("train/sources/", "train/prepare.py")


def file_calls(path: Path) -> Iterator[str]:
    """What a module calls that reads, writes or looks for files, other than through a Workdir."""
    tree = ast.parse(path.read_text())
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        if isinstance(function, ast.Name) and function.id == "open":
            yield "open"
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if owner in MODULES or (owner == "os" and function.attr in OF_OS):
                yield f"{owner}.{function.attr}"
            elif function.attr in OF_PATHS and owner != "os":
                yield function.attr
            elif function.attr == "open" and _makes_a_path(function.value):
                yield "open"


def _makes_a_path(node: ast.expr) -> bool:
    """Whether an expression is a path being joined or made."""
    return (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Path"
    )


def test_the_walk_sees_calls_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "import os\nopen('x')\nPath('x').read_bytes()\nos.replace(a, b)\n(a / "
        "'b').open()\nstr.replace(a)\nworkdir.open('x')\nsqlite3.connect(x)\nos.getpid()\n"
    )
    assert sorted(file_calls(file)) == [
        "open",
        "open",
        "os.replace",
        "read_bytes",
        "sqlite3.connect",
    ]


def test_modules_open_only_files_that_are_no_store_s() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if calls := set() if name.startswith(OF_DATASETS) else set(file_calls(path)):
            found[name] = calls
    assert found == ALLOWED


def test_nobody_joins_a_path_to_that_of_a_store() -> None:
    """`store.root / x` and `workdir.path / x`: both are for showing."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            left = (
                node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
            )
            if isinstance(left, ast.Attribute) and left.attr in ("root", "path"):
                wrong.append(f"{path.relative_to(PACKAGE).as_posix()}: {ast.unparse(node)}")
    allowed = (
        "record/workdir.py: self.path / name",
        "record/bucket.py: self.path / name",
        "record/store_folder.py: self.root / name",
    )
    assert not [line for line in wrong if line not in allowed and not line.startswith(OF_DATASETS)]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """A study trained by Ray into a store whose root is no place where a file can be."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "hidden").mkdir()
    script = Script(folder, is_lean=True)
    path = os.pathsep.join(
        [str(ROOT / "tests" / "elsewhere"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    script.environment |= {
        "ELSEWHERE": str(folder / "hidden"),
        "PYTHONPATH": path,
        "VITSCALE_STORE": "/dev/null/store",
    }
    return script


def test_a_study_runs_in_a_store_that_only_the_verbs_reach(elsewhere: Script) -> None:
    result = elsewhere.run("--num", "1", "--epochs", "2", "--broken", "1")
    assert "tiny-demo: 2 finished, 1 diverged, 1 failed, 0 missing of 4" in result.stdout
    assert "report  /dev/null/store/studies/tiny-demo/report/report.html" in result.stdout
    hidden = elsewhere.folder / "hidden"
    assert len(list(hidden.glob("trials/*/rows.parquet"))) == 3
    report = hidden / "studies" / "tiny-demo" / "report"
    assert {"report.html", "trials.parquet", "edf_panels.png"} <= {
        path.name for path in report.iterdir()
    }
    assert (
        "WARNING" not in result.stdout and (hidden / "studies" / "tiny-demo" / "ray.log").exists()
    )


def test_so_do_the_commands(elsewhere: Script) -> None:
    for command, expected in (
        (["status"], "tiny-demo"),
        (["report", "tiny-demo"], "report  /dev/null/store/studies"),
        (["compare", "tiny-demo:patchify", "tiny-demo:conv"], "95% intervals"),
        (["sync"], "tiny-demo: 4 of 4 trials shown at"),
        (["plan", "tiny-demo"], "plan: /dev/null/store/studies/tiny-demo/plan-preview.json"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "vitscale", *command],
            cwd=elsewhere.folder,
            text=True,
            env=elsewhere.environment,
            capture_output=True,
            timeout=200,
        )
        assert done.returncode == 0 and expected in done.stdout, (command, done.stdout, done.stderr)
