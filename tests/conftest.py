"""Fixtures of several tests: a study script that runs as a user runs it, signals, small disks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import importlib.util
import itertools
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.register_assert_rewrite("support")

from support.forked_worker import LEAN, fork_workers_of_ray  # noqa: E402

from vitscale.plan.config import TrainConfig  # noqa: E402

pytest_plugins = ("support.buckets", "support.users")  # their fixtures

# several processes share the cores; a trial sets its own threads
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "studies" / "tiny.py"
# a ViT of one narrow block behind a convolutional stem: milliseconds per step
NARROW = TrainConfig(
    width=8,
    depth=1,
    heads=2,
    patch_size=4,
    stem="conv",
    stem_channels="4-8",
    stem_strides="2-2",
    epochs=2,
    warmup_epochs=1.0,
)
LISTED = ROOT / "tests" / "not_fast.txt"
# A time in seconds since the epoch after which no slow test begins: on a slow machine CI would
# otherwise be ended from outside, and say nothing at all.
UNTIL = "VITSCALE_TEST_UNTIL"
NO_TURN = "not run: CI's time for slow tests was over"
# formats of a report; the PDF of a figure takes as long as its PNG and SVG
WITHOUT_PDF = ("html", "parquet", "csv", "md", "tex", "png", "svg")

# Its children start with the packages imported, which takes five CPU seconds for torch and as many
# for a driver. All but Ray: see forked_worker.py.
SPAWNER = multiprocessing.get_context("forkserver")
SPAWNER.set_forkserver_preload(
    [
        "pytest",
        "vitscale.train.loop",
        "timm.models.vision_transformer_hybrid",
        "timm.optim",
        "timm.utils",
        "timm.data.mixup",
        "sklearn.datasets",
        "sklearn.model_selection",
        "vitscale.launch.driver",
        "vitscale.launch.worker",
        "torch._dynamo",
        "vitscale.analysis.kinds",
        "vitscale.analysis.report.report",
        "vitscale.record.mlflow.mirror",
        "mlflow.store.tracking.sqlalchemy_workspace_store",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_pdf",
        "matplotlib.backends.backend_svg",
        "fontTools.subset",
    ]
)


# Variables of which a process that has imported everything still learns: read later, or by `drive`.
READ_LATER = ("AWS_", "MLFLOW_", "PYTEST_", "PYTHONPATH", "VITSCALE_", "FAULTS", "ELSEWHERE")


def not_fast() -> list[str]:
    """The tests that `make test-fast` skips: files, and file::test."""
    return [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Marks the tests in not_fast.txt as long, before -m selects, and begins with their files."""
    listed = set(not_fast())
    files = list(dict.fromkeys(line.partition("::")[0] for line in not_fast()))
    place = {name: index for index, name in enumerate(files)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    for item in items:
        if not listed.isdisjoint({item.path.name, f"{item.path.name}::{item.originalname}"}):
            item.add_marker("long")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins no slow test, and none of its fixtures, after the time that CI has for them. Marks
    that skip a test come before.
    """
    until = float(os.environ.get(UNTIL, "inf"))
    if item.get_closest_marker("slow") and time.time() > until:
        pytest.skip(NO_TURN)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the tests that had no turn; what was done to the studies of test_chaos_bucket.py, and
    how often.
    """
    skipped = terminalreporter.stats.get("skipped", ())
    if without_turn := [report.nodeid for report in skipped if NO_TURN in str(report.longrepr)]:
        terminalreporter.section(f"{len(without_turn)} slow tests {NO_TURN}", yellow=True)
        for name in without_turn:
            terminalreporter.write_line(name)
    total: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if getattr(report, "when", "") == "teardown":
            for done in (value for name, value in report.user_properties if name == "chaos"):
                total.update({"sequence": 1, **done})
    if total:
        terminalreporter.section("what was done to studies in a bucket")
    for name in sorted(total):
        terminalreporter.write_line(f"{total[name]:5}  {name}")


def load_script(path: Path) -> ModuleType:
    """Imports a study script without running it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def empty_database() -> bytes:
    """An empty MLflow database; migrations take seconds, so it is created once and then copied."""
    from vitscale.record.mlflow.place import create_database

    with tempfile.TemporaryDirectory() as folder:
        create_database(f"sqlite:///{folder}/mlflow.db")
        return (Path(folder) / "mlflow.db").read_bytes()


class Driver:
    """A study script that runs as `python SCRIPT ARGUMENTS` does, in a child of SPAWNER, with the
    methods of a subprocess.Popen.
    """

    def __init__(
        self, arguments: list[str], folder: Path, environment: dict[str, str], output: Path
    ) -> None:
        self.args = arguments
        self._process = SPAWNER.Process(
            target=drive, args=(arguments, str(folder), environment, str(output))
        )
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, name: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, name)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def drive(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """What Python does for a script: in a folder, with its arguments, as __main__."""
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("VITSCALE_")]:
        del os.environ[name]  # they are of the time when the first driver began
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    read_again()
    if host := os.environ.get("VITSCALE_TEST_HOST"):
        move_to(host)
    fork_workers_of_ray()
    sys.argv, sys.path = arguments, [str(Path(arguments[0]).parent), *sys.path]
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing leaves them out


def read_again() -> None:
    """What Python and vitscale read of the environment as they start and are imported."""
    from vitscale.record import bucket

    bucket.LEASE_S = float(os.environ.get("VITSCALE_LEASE_S", "60"))
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
            if (customize := Path(folder) / "sitecustomize.py").exists():
                runpy.run_path(str(customize))


def move_to(host: str) -> None:
    """Gives this process and what it starts another host name, of which the system knows nothing:
    a machine that cannot tell whether a process of another one runs.
    """
    import ctypes

    libc, clone_newuser, clone_newuts = ctypes.CDLL(None, use_errno=True), 0x10000000, 0x04000000
    ids = os.getuid(), os.getgid()
    if libc.unshare(clone_newuts | (clone_newuser if ids[0] else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if ids[0]:
        Path("/proc/self/setgroups").write_text("deny")
        for name, own in zip(("uid_map", "gid_map"), ids, strict=True):
            Path(f"/proc/self/{name}").write_text(f"0 {own} 1")
    socket.sethostname(host)


class Script:
    """A study script in a directory of its own, with an MLflow database.

    One trial is trained at a time, as each further worker process costs more CPU (the import of
    torch) than most of these trials. Tests about trials side by side ask for more. With `is_lean`,
    what a study does not use of Ray is left out: most of the CPU time of a start.
    """

    OWN_CONCURRENCY = frozenset(("--max-concurrent", "--address", "--gpus-per-trial", "--plan"))

    def __init__(self, folder: Path, script: Path = TINY, is_lean: bool = False) -> None:
        assert "VITSCALE_TEST_FAST" not in os.environ, (
            "a test that runs a study belongs in tests/not_fast.txt"
        )
        self.folder, self.script = folder, script
        self.environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        if is_lean:
            self.environment[LEAN] = "1"
        if not (database := folder / "mlflow.db").exists():
            database.write_bytes(empty_database())

    def arguments(self, given: tuple[str, ...]) -> list[str]:
        limit = () if self.OWN_CONCURRENCY & set(given) else ("--max-concurrent", "1")
        return [str(self.script), *given, *limit]

    def command(self, *arguments: str) -> list[str]:
        """What a user types, for tests in which the process must be a new one."""
        return [sys.executable, *self.arguments(arguments)]

    def run(
        self, *arguments: str, timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs to the end, with stderr merged into stdout."""
        with tempfile.NamedTemporaryFile("r") as output:
            process = self._begin(arguments, environment, Path(output.name))
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return subprocess.CompletedProcess(process.args, status, output.read())

    def start(self, *arguments: str, **environment: str) -> Driver | subprocess.Popen[bytes]:
        """Starts in the background, with a log file."""
        return self._begin(arguments, environment, self.folder / "log.txt")

    def _begin(
        self, arguments: tuple[str, ...], environment: dict[str, str], output: Path
    ) -> Driver | subprocess.Popen[bytes]:
        output.open("ab").close()  # so that it can be read from now on
        environment = {**self.environment, **environment}
        changed = dict(environment.items() - os.environ.items())
        if all(name.startswith(READ_LATER) for name in changed):
            return Driver(self.arguments(arguments), self.folder, environment, output)
        with output.open("ab") as file:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def store(self):
        from vitscale.record.store import Store

        return Store(self.folder / "runs")


@pytest.fixture
def tiny(tmp_path: Path) -> Script:
    return Script(tmp_path)


def workers_of(pid: int, title: str = "ray::Implicit") -> list[int]:
    """The ids of the processes in which Ray trains for a driver, or of those with another title."""
    import psutil

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end at any moment
                if process.name().startswith(title[:15]):
                    found.append(process.pid)
    return found


def kill_family(pid: int) -> None:
    """Sends SIGKILL to a driver and all its descendants."""
    import psutil

    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def wait_for(condition, seconds: float, what: str) -> None:
    """Polls until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mlflow_answers(port: int, timeout_s: float = 2.0) -> bool:
    """Whether the MLflow server on this port of 127.0.0.1 answers."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def wait_for_mlflow(port: int) -> None:
    wait_for(lambda: mlflow_answers(port), 180, "the MLflow server")


def interrupt(process: Driver | subprocess.Popen[bytes], name: int = signal.SIGINT) -> int:
    """Signals a driver and returns its exit status."""
    process.send_signal(name)
    return process.wait(120)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A real file system of a size such as 256k; skips the test if mounting is not allowed."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    ).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
