"""`ray job submit` with a shipped working directory, to a head without cores and two nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT, TINY, load_script, wait_for
from packaging.requirements import Requirement
from support.cluster import RAY, Cluster, short_folder, where_hidden, where_vitscale_is
from support.tiny_study import reference_rows, without_times

from vitscale.record.provenance import _release
from vitscale.record.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.chaos]
SHIPPED = ("vitscale", "search_spaces")  # of a clone; and a study
MINUTES = 60


@pytest.fixture(scope="module")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with what ray[default] needs beyond what is installed here.

    Where CI is true, a machine must be able to install it.
    """
    folder = tmp_path_factory.mktemp("job_server")
    missing = []
    for line in metadata.requires("ray") or ():
        needed = Requirement(line)
        if needed.marker and needed.marker.evaluate({"extra": "default"}):
            try:
                metadata.version(needed.name)
            except metadata.PackageNotFoundError:
                missing.append(f"{needed.name}{needed.specifier}")
    pip = [sys.executable, "-m", "pip"]
    kept = subprocess.check_output([*pip, "freeze", "--exclude-editable"], text=True)
    (folder / "kept.txt").write_text(kept)
    command = [*pip, "install", "--quiet", "--target", str(folder), "-c", f"{folder}/kept.txt"]
    installed = subprocess.run([*command, *missing], capture_output=True, text=True)
    if installed.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"ray[default] cannot be installed: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    return str(folder)


@pytest.fixture
def jobs(job_server: str) -> Iterator[tuple[Cluster, str]]:
    """A cluster, and the address to which jobs are sent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = short_folder()
    head = ("--num-cpus=0", "--num-gpus=0", f"--dashboard-port={port}")
    made = Cluster(folder, *head, job_server=job_server)
    try:
        # a node deletes what is shipped to its own folder; the second one has vitscale only so
        for name, before in {"first": (), "second": where_hidden(where_vitscale_is())}.items():
            made.grow(*before, options=(f"--temp-dir={folder}/{name}",))
        yield made, f"http://127.0.0.1:{port}"
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)
def test_a_study_is_submitted_stopped_and_submitted_again(
    tmp_path: Path, jobs: tuple[Cluster, str]
) -> None:
    """Its sources are those that were shipped, which differ from the installed ones, or are the
    only ones of a node; its rows are those of one process.
    """
    cluster, address = jobs
    clone, runs = tmp_path / "clone", tmp_path / "runs"
    for name in SHIPPED:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "vitscale" / "shipped.py").touch()
    (clone / "studies").mkdir()
    shutil.copy(TINY, clone / "studies" / "tiny.py")
    options = {"num": 2, "epochs": 60}
    study = ["studies/tiny.py", *(f"--{name}={value}" for name, value in options.items())]
    study += ["--address", "auto", "--store", str(runs), "--checkpoint-every-s", "0.5"]

    def job(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RAY, "job", *arguments],
            env=cluster.environment | {"RAY_ADDRESS": address},
            cwd=clone,
            capture_output=True,
            text=True,
        )

    def submit(name: str, *how: str) -> subprocess.CompletedProcess[str]:
        named = ("--submission-id", name, "--working-dir", str(clone))
        return job("submit", *named, *how, "--", sys.executable, *study)

    submitted = submit("first", "--no-wait")
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    wait_for(lambda: list(runs.glob("trials/*/checkpoint-*")), 3 * MINUTES, "a checkpoint")
    stopped = job("stop", "first")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    store = Store.open(str(runs))
    plan = load_script(TINY).study(**options)
    ids = [trial.config.id for trial in plan.trials]
    assert not all(store.is_done(trial_id) for trial_id in ids)

    again = submit("second")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "training 2 at a time" in again.stdout and "succeeded" in again.stdout
    read = {trial_id: store.read(trial_id) for trial_id in ids}
    expected = reference_rows(plan, tmp_path / "by_hand")
    assert {i: without_times(outcome.rows) for i, outcome in read.items()} == expected
    (commit,) = {outcome.facts["commit"] for outcome in read.values()}
    assert commit.startswith("sources ") and commit != _release()
