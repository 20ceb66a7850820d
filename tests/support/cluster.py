"""A Ray cluster of several nodes on this machine, and nodes that lack something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from conftest import ROOT, SPAWNER, free_port, kill_family, wait_for
from support.forked_worker import ADDRESS, LEAN, fork_workers_at

RAY = str(Path(sys.executable).parent / "ray")
# For nodes; the driver finds the token by itself. At Ray's niceness of 15, other programs would
# starve the workers.
TOKEN = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
# prints the number of living nodes for each line that it is given
COUNTER = """
import sys
from ray._raylet import GcsClient

client = GcsClient(address=sys.argv[1])
for _ in sys.stdin:
    nodes = client.get_all_node_info().values()
    print(sum(node.state == node.ALIVE for node in nodes), flush=True)
"""


class Cluster:
    """A head node, which may have no cores, and others, each by its own `ray start --block`.

    `job_server`: a folder with what Ray's dashboard needs, which takes jobs; without it, there is
    none. A lean one leaves out what a study does not use of Ray, and its workers are forks of a
    process that has imported everything, but on nodes that a command starts.
    """

    def __init__(
        self,
        folder: Path,
        *head: str,
        job_server: str = "",
        is_lean: bool = False,
        port: int = 0,
        more: Mapping[str, str] = MappingProxyType({}),  # of the environment
    ) -> None:
        self.folder = folder
        self.counter: subprocess.Popen[str] | None = None
        self.environment = {**TOKEN, **more}
        if job_server:
            self.environment["PYTHONPATH"] = job_server
        self.lean: dict[str, str] = {}  # more of the environment
        if is_lean:
            self.lean = {LEAN: "1", ADDRESS: f"vitscale-{folder.name}"}
            self.forks = SPAWNER.Process(target=fork_workers_at, args=(self.lean[ADDRESS],))
            self.forks.start()
        subprocess.run(
            [RAY, "get-auth-token", "--generate"], check=True, capture_output=True, env=TOKEN
        )
        self.address = f"127.0.0.1:{port or free_port()}"
        self.nodes = [
            self._start(
                "--head",
                f"--port={self.address.split(':')[1]}",
                f"--include-dashboard={bool(job_server)}",
                f"--temp-dir={folder}/ray",
                *head,
            )
        ]
        try:
            wait_for(self._answers, 60, "the head node")
        except BaseException:
            self.stop()
            raise

    def grow(self, *before: str, options: tuple[str, ...] = ()) -> None:
        """Adds a node, started by the command `before` if there is one."""
        self.nodes.append(self._start(f"--address={self.address}", *options, before=before))
        wait_for(lambda: self.num_alive() == len(self.nodes), 60, "another node")

    def _start(self, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        is_lean = self.lean and not before
        command = [
            *before,
            *([sys.executable, str(ROOT / "tests/support/lean_ray.py")] if is_lean else [RAY]),
            "start",
            "--block",
            "--num-cpus=1",
            "--num-gpus=2",
            "--object-store-memory=100000000",
        ]
        return subprocess.Popen(
            [*command, *arguments],
            env=self.environment | (self.lean if is_lean else {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _answers(self) -> bool:
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def num_alive(self) -> int:
        """Asked for by one process: `ray.init` for each question takes four CPU seconds. 0 if it
        has ended, as by an error of the head; the next question begins another one.
        """
        if self.counter is None:
            self.counter = subprocess.Popen(
                [sys.executable, "-c", COUNTER, self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=TOKEN,
            )
        assert self.counter.stdin is not None and self.counter.stdout is not None
        try:
            self.counter.stdin.write("\n")
            self.counter.stdin.flush()
            return int(self.counter.stdout.readline())
        except (BrokenPipeError, ValueError):
            self.counter.kill()
            self.counter = None
            return 0

    def stop(self) -> None:
        if self.counter is not None:
            self.counter.communicate()
        for node in reversed(self.nodes):
            kill_family(node.pid)
            node.wait()
        if self.lean:
            self.forks.kill()
            self.forks.join()


def where_vitscale_is() -> list[Path]:
    packages = {Path(entry or ".").resolve() / "vitscale" for entry in sys.path}
    return [package for package in packages if package.is_dir()]


def where_hidden(folders: Sequence[Path]) -> tuple[str, ...]:
    """For Cluster.grow: a node on which these folders are empty."""
    mounts = " && ".join(f"mount -t tmpfs none {folder}" for folder in folders)
    without = ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    if subprocess.run([*without, "true"]).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    return without


def short_folder() -> Path:
    """Ray's socket paths must be short."""
    return Path(f"/tmp/vitscale-test-{time.time_ns() % 10**9}")
