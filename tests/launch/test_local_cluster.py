"""The cluster that a study starts on its own machine: what it
listens on, how nice it is, and how it is lost.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import Script, wait_for, workers_of
from support.mlflow_runs import runs_of

from vitscale.launch.resources import Resources


def family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def listening(process: psutil.Process) -> list[str]:
    """Addresses on which a process listens."""
    try:
        return [
            c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN
        ]
    except psutil.NoSuchProcess:
        return []


def lives(process: psutil.Process) -> bool:
    """Whether a process runs, and is none that only waits to be reaped."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


@pytest.mark.slow
def test_it_listens_on_loopback_alone_and_its_loss_is_survived(tmp_path: Path) -> None:
    """The gcs_server is killed in the middle: last words, report,
    MLflow's states, exit 1; the same command goes on.
    """
    script = Script(tmp_path)
    arguments = ("--num", "1", "--epochs", "60", "--only", "conv diverging")
    arguments += ("--checkpoint-every-s", "0.3")
    process = script.start(*arguments)
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 200, "a checkpoint")
    heard = [address for member in family(process.pid) for address in listening(member)]
    assert len(heard) >= 4 and all(is_loopback(address) for address in heard), heard
    trainers = [psutil.Process(pid) for pid in workers_of(process.pid)]
    assert {trainer.nice() for trainer in trainers} == {psutil.Process(process.pid).nice()}

    (gcs,) = workers_of(process.pid, "gcs_server")
    os.kill(gcs, signal.SIGKILL)
    # Ray ends its driver after 60 s
    assert process.wait(50) == 1, (tmp_path / "log.txt").read_text()
    out = (tmp_path / "log.txt").read_text()
    assert (
        "stopped by HeadLost: the head of the Ray cluster" in out
        and "the same command resumes" in out
    )
    assert " missing of 2" in out and "report  " in out and "Traceback" not in out
    uri = script.environment["MLFLOW_TRACKING_URI"]
    states = [run.info.status for role in ("study", "trial") for run in runs_of(uri, role).values()]
    assert "KILLED" in states and "RUNNING" not in states
    wait_for(lambda: not any(map(lives, trainers)), 30, "no worker that trains on")

    result = script.run(*arguments, timeout=500)
    assert result.returncode == 0, result.stdout
    assert "attempt 2" in result.stdout and "1 finished, 1 diverged" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGKILL])
def test_a_study_ends_without_its_only_node(tmp_path: Path, name: int) -> None:
    """After SIGTERM, as when one of its agents fails, the raylet takes leave of the head, and
    Tune waited for another node for ever.
    """
    script = Script(tmp_path, is_lean=True)
    process = script.start("--num", "1", "--epochs", "200", "--only", "conv")
    wait_for(lambda: workers_of(process.pid), 200, "a worker")
    (raylet,) = workers_of(process.pid, "raylet")
    os.kill(raylet, name)
    assert process.wait(100) == 1, (tmp_path / "log.txt").read_text()
    out = (tmp_path / "log.txt").read_text()
    assert "the same command resumes" in out and "1 missing of 1" in out and "Traceback" not in out
    states = [
        run.info.status
        for run in runs_of(script.environment["MLFLOW_TRACKING_URI"], "study").values()
    ]
    assert states == ["KILLED"]


def test_a_client_of_ray_is_refused_with_the_way_that_works() -> None:
    with pytest.raises(
        ValueError, match=r"'ray://head:10001'.*--address auto, or .*ray job submit"
    ):
        Resources(address="ray://head:10001")


def heeds_sighup() -> None:
    """As of a program in a terminal; under nohup, which these
    tests may run under, it is ignored, and shall be.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_anything_was_begun_ends_in_a_line(tmp_path: Path, name: int) -> None:
    """The study's function is reached after the first imports; here it waits for the signal."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\nfrom vitscale import main\n"
        "def study(scale: str = 'demo'):\n    print('made', flush=True)\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n    main(study)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
        preexec_fn=heeds_sighup,
    ) as process:
        assert process.stdout and process.stdout.readline() == "made\n"
        process.send_signal(name)
        assert process.wait(30) == 130
        assert process.stdout.read().split("\n")[1:] == [
            "interrupted before anything was begun",
            "",
        ]


HANDLES = """
import threading, time
from vitscale.launch.process import handle_signals
stop = threading.Event()
handle_signals(stop)
print("ready", flush=True)
while True:
    if stop.wait(0.05):
        print("asked", flush=True)
    time.sleep(0.05)
"""


def test_a_sigterm_that_is_passed_on_is_one_request_and_a_later_one_ends_it() -> None:
    """SLURM may signal all processes of a job, of which some pass the signal on to the driver."""
    with subprocess.Popen(
        [sys.executable, "-c", HANDLES], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "asked\n"
        process.terminate()
        time.sleep(2.5)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 130


@pytest.mark.slow
def test_a_closed_terminal_stops_a_study_as_sigterm_does(tmp_path: Path) -> None:
    import pexpect

    script = Script(tmp_path)
    command, *arguments = script.command(
        "--num", "1", "--epochs", "200", "--checkpoint-every-s", "0.3"
    )
    child = pexpect.spawn(
        command,
        arguments,
        cwd=str(tmp_path),
        env=script.environment,
        timeout=120,
        encoding="utf-8",
        preexec_fn=heeds_sighup,
    )
    wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoint*")), 200, "a checkpoint")
    os.close(child.child_fd)  # the kernel sends SIGHUP
    wait_for(
        lambda: not psutil.pid_exists(child.pid) or os.waitpid(child.pid, os.WNOHANG)[0],
        100,
        "the end",
    )
    assert not script.store().driver_is_alive("tiny-demo")
    states = [
        run.info.status
        for run in runs_of(script.environment["MLFLOW_TRACKING_URI"], "study").values()
    ]
    assert states == ["KILLED"]
    assert (tmp_path / "runs/studies/tiny-demo/report/report.html").exists()
