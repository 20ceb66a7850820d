"""deploy/slurm/study.sbatch, as it is, on two nodes of a real SLURM (Debian's slurm-wlm)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, TINY, kill_family, load_script, wait_for
from support.mlflow_runs import epochs
from support.teams import undisturbed
from support.tiny_study import assert_uninterrupted, without_times

from vitscale.record.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        "VITSCALE_TEST_SLURM" not in os.environ,
        reason="takes minutes: `make test-slurm` as root, where slurm-wlm is installed",
    ),
]

SBATCH_FILE = ROOT / "deploy/slurm/study.sbatch"
FREEZER = Path("/sys/fs/cgroup/freezer")
EPOCHS = 1000  # half a minute or more
UNSHARE = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc")
SLURM_CONF = """
ClusterName=lab
SlurmctldHost=n1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MinJobAge=86400
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeAddr=10.77.0.1 CPUs=1 State=UNKNOWN
NodeName=n2 NodeAddr=10.77.0.2 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10
{more}
"""


class Lab:
    """Two nodes of a core each, which share a folder; the controller is on the first."""

    def __init__(self, folder: Path, proctrack: str, more: str) -> None:
        self.folder = folder
        for name in ("home", "state"):
            (folder / name).mkdir()
        (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n")
        settings = {"folder": folder, "proctrack": proctrack, "more": more}
        (folder / "slurm.conf").write_text(SLURM_CONF.format(**settings))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))},
            "HOME": f"{folder}/home",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLURM_CONF": f"{folder}/slurm.conf",
            "TMPDIR": "/tmp",
        }
        self.holder = subprocess.Popen(
            [*UNSHARE, "--kill-child", "bash", str(ROOT / "tests/slurm/lab.sh"), str(folder), "1"],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        assert self.holder.stdout and self.holder.stdout.readline() == "ready\n", self.said()
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.init = int(children)

    def run(self, *command: object) -> str:
        """What a command prints that is run on the first node."""
        inside = ("--target", str(self.init), "--mount", "--pid", "--net", "--ipc", "--uts")
        return subprocess.run(
            ["nsenter", *inside, f"--wdns={self.folder}", "--", *map(str, command)],
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def submit(self, *arguments: object) -> str:
        return self.run("sbatch", "--parsable", *arguments).strip()

    def study(self, *arguments: object, nodes: int = 2) -> str:
        """Submits deploy/slurm/study.sbatch; the number of the job."""
        return self.submit(f"--nodes={nodes}", "--cpus-per-task=1", SBATCH_FILE, *arguments)

    def fact(self, job: str, name: str) -> str:
        """A field of `scontrol show job`, such as JobState."""
        found = re.search(rf"\b{name}=(\S*)", self.run("scontrol", "show", "job", job))
        assert found, name
        return found[1]

    def waits_for(self, job: str, state: str, seconds: float = 300) -> None:
        wait_for(lambda: self.fact(job, "JobState") == state, seconds, f"{job} {state}")

    def out(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def waits_until_it_says(self, job: str, text: str, seconds: float = 300) -> None:
        wait_for(lambda: text in self.out(job), seconds, f"{job}: {text}")

    def said(self) -> str:
        return "\n".join(f"{p.name}\n{p.read_text()}" for p in sorted(self.folder.glob("*.out")))

    def close(self) -> None:
        kill_family(self.holder.pid)
        self.holder.wait()
        for made in sorted(FREEZER.glob("slurm_n[12]/**/"), reverse=True):
            wait_for(lambda made=made: not (made / "cgroup.procs").read_text(), 30, "its processes")
            made.rmdir()


def endings(said: str) -> list[int]:
    """The status of each start of a study."""
    return [int(status) for status in re.findall(r"study ended with status (\d+)", said)]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """By default with proctrack/linuxproc, which signals all processes of a step."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "ip") if not shutil.which(name)]
    if absent or subprocess.run([*UNSHARE, "ip", "link"], capture_output=True).returncode:
        pytest.skip(f"needs slurm-wlm, munge and the right to make namespaces; absent: {absent}")
    proctrack, more = getattr(request, "param", ("linuxproc", ""))
    if proctrack == "cgroup" and not os.access(FREEZER, os.W_OK):
        pytest.skip("needs the freezer of cgroup v1")
    folder = Path(tempfile.mkdtemp(prefix="vitscale-slurm-", dir="/var/tmp"))  # /tmp is per node
    made = Lab(folder, proctrack, more)
    try:
        made.wait()
        yield made
    finally:
        print(made.said())  # shown where the test fails
        made.close()
        shutil.rmtree(folder)


TRAINS = re.compile(r", [1-9] running")


def test_a_study_on_two_nodes_is_interrupted_queued_again_and_ends(lab: Lab) -> None:
    """SIGTERM to the batch script alone, as before the time limit."""
    store = lab.folder / "runs"
    options = ("--num", 1, "--epochs", 30, "--checkpoint-every-s", 0.3, "--store", store)
    job = lab.study(TINY, *options)
    wait_for(lambda: list(store.glob("trials/*/checkpoint*")), 240, "a checkpoint")
    lab.run("scancel", "--signal=TERM", "--batch", job)
    lab.waits_for(job, "COMPLETED")
    assert lab.fact(job, "Restarts") == "1"
    assert endings(lab.out(job)) == [130, 0]
    assert "training 2 at a time" in lab.out(job)  # one core on each node
    assert len(list(store.glob("trials/*/rows.parquet"))) == 3


def test_a_study_goes_on_where_ray_ends_on_one_node_which_joins_again(lab: Lab) -> None:
    """The raylet of the second node is killed. The home has no token yet, and the first node's own
    name has an address of the loopback, too, as Debian writes it.
    """
    hosts = lab.folder / "hosts"
    hosts.write_text("127.0.1.1 n1\n" + hosts.read_text())
    store, num_epochs = lab.folder / "runs", 300
    options = ("--num", 1, "--epochs", num_epochs, "--only", "conv patchify", "--store", store)
    job = lab.study(TINY, *options, "--checkpoint-every-s", 0.3)
    wait_for(lambda: ", 2 running" in lab.out(job), 300, "a trial on each node")

    def on_second() -> list[psutil.Process]:
        found = []
        for one in psutil.Process(lab.holder.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if one.name() == "raylet" and "--node_ip_address=10.77.0.2" in one.cmdline():
                    found.append(one)
        return found

    (killed,) = on_second()
    killed.kill()
    wait_for(lambda: {one.pid for one in on_second()} - {killed.pid}, 120, "Ray there again")
    lab.waits_for(job, "COMPLETED", 600)
    assert lab.fact(job, "Restarts") == "0" and endings(lab.out(job)) == [0]
    plan = load_script(TINY).study(num=1, epochs=num_epochs, only="conv patchify")
    assert_uninterrupted(Store(store), plan, lab.folder / "by_hand")


USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"


@pytest.mark.parametrize(
    ("lab", "only"),
    [
        (("linuxproc", ""), "conv"),
        (("cgroup", ""), "conv patchify"),
        (("cgroup", USER_SIGNAL), "conv"),
    ],
    indirect=["lab"],
    ids=["to all processes", "to the tasks of two nodes", "to the script"],
)
def test_a_preempted_study_saves_within_its_grace_is_queued_again_and_ends(
    lab: Lab, only: str
) -> None:
    """Another job needs the nodes. Nothing is saved by the clock, only at the end. One trial on
    each node.
    """
    store, nodes = lab.folder / "runs", len(only.split())
    options = ("--num", 1, "--epochs", EPOCHS, "--only", only, "--store", store)
    job = lab.study(TINY, *options, "--checkpoint-every-s", 3600, nodes=nodes)
    wait_for(lambda: f", {nodes} running" in lab.out(job), 300, "a trial on each node")
    # before its first step there is nothing to save
    wait_for(lambda: epochs(store / "mlflow.db") == nodes, 120, "epochs of each trial")
    assert not list(store.glob("trials/*/checkpoint*"))
    start = time.monotonic()
    urgent = lab.submit("--partition=urgent", "--nodes=2", "--wrap=sleep 1")
    wait_for(lambda: len(list(store.glob("trials/*/checkpoint*"))) == nodes, 90, "all to save")
    saved_s = time.monotonic() - start
    lab.waits_for(urgent, "COMPLETED")
    assert not list(store.glob("trials/*/rows.parquet"))
    lab.waits_for(job, "COMPLETED", 900)
    print(f"saved {saved_s:.1f} s after the other job was submitted")
    assert lab.fact(job, "Restarts") == "1"
    # without a line, where SLURM's patience with the end of Ray has ended before
    assert endings(lab.out(job)) in ([130, 0], [0])
    plan = load_script(TINY).study(num=1, epochs=EPOCHS, only=only)
    assert_uninterrupted(Store(store), plan, lab.folder / "by_hand")
    assert saved_s < 30


@pytest.mark.parametrize(
    "lab", [("cgroup", ""), ("cgroup", USER_SIGNAL)], indirect=True, ids=["tasks", "script"]
)
def test_a_preempted_team_on_two_nodes_saves_and_goes_on(lab: Lab) -> None:
    """A worker on each; SIGTERM to the tasks of both nodes, or to the script."""
    store, num_epochs = lab.folder / "runs", 100
    team = ("--workers-per-trial", 2, "--cpus-per-trial", 1, "--checkpoint-every-s", "1e6")
    options = ("--num", 1, "--epochs", num_epochs, "--only", "conv", "--store", store)
    job = lab.study(TINY, *options, *team)
    wait_for(lambda: epochs(store / "mlflow.db"), 300, "an epoch of the team")
    assert not list(store.glob("trials/*/checkpoint*"))
    urgent = lab.submit("--partition=urgent", "--nodes=2", "--wrap=sleep 1")
    wait_for(lambda: list(store.glob("trials/*/checkpoint*")), 90, "the team to save")
    lab.waits_for(urgent, "COMPLETED")
    assert not list(store.glob("trials/*/rows.parquet"))
    lab.waits_for(job, "COMPLETED", 600)
    assert lab.fact(job, "Restarts") == "1"
    assert endings(lab.out(job)) in ([130, 0], [0])
    (trial,) = load_script(TINY).study(num=1, epochs=num_epochs, only="conv").trials
    assert without_times(Store(store).read(trial.config.id).rows) == undisturbed(trial.config)


def assert_token_is_private(lab: Lab) -> None:
    """Who reads it may run programs as this user; homes may be open to others."""
    token = Path(lab.environment["HOME"]) / ".ray/auth_token"
    assert token.stat().st_size and not token.stat().st_mode & 0o077


def test_a_cancelled_study_stays_so(lab: Lab) -> None:
    """`scancel` ends it as SLURM does all jobs; it is not queued again."""
    store = lab.folder / "runs"
    job = lab.study(TINY, "--num", 1, "--epochs", EPOCHS, "--store", store)
    wait_for(lambda: TRAINS.search(lab.out(job)), 300, "a training")
    lab.run("scancel", job)
    lab.waits_for(job, "CANCELLED")
    wait_for(lambda: not lab.run("squeue", "--noheader"), 90, "an empty queue")
    assert lab.fact(job, "JobState") == "CANCELLED" and lab.fact(job, "Restarts") == "0"
    assert_token_is_private(lab)


def test_tasks_of_an_array_run_a_study_each_and_only_the_preempted_one_again(lab: Lab) -> None:
    """Two of three studies share a trial and run at once, on two nodes of a core. The preempted
    task is the last one, whose SLURM_JOB_ID is that of the whole array. Line 1 names no study.
    """
    file, store = lab.folder / "studies.txt", lab.folder / "runs"
    options = {
        "one": "--num 1 --epochs 3 --only 'conv'",
        "two": "--num 2 --epochs 3 --only conv",
        "three": f"--num 1 --epochs {EPOCHS} --only 'conv patchify'",
    }
    for name in options:
        text = TINY.read_text().replace('name="tiny"', f'name="{name}"')
        (lab.folder / f"{name}.py").write_text(text)
    file.write_text("\n" + "".join(f"{name}.py {given}\n" for name, given in options.items()))
    for_all = ("--store", store, "--checkpoint-every-s", 0.5)
    array = lab.submit("--array=1-4", "--cpus-per-task=1", SBATCH_FILE, file, *for_all)
    tasks = [f"{array}_{number}" for number in (1, 2, 3, 4)]
    wait_for(lambda: TRAINS.search(lab.out(tasks[3])), 900, "the third study")
    for task in tasks[1:3]:
        lab.waits_for(task, "COMPLETED")
    assert lab.fact(tasks[3], "JobId") == array
    node = lab.fact(tasks[3], "NodeList")
    urgent = lab.submit("--partition=urgent", f"--nodelist={node}", "--wrap=sleep 1")
    lab.waits_for(urgent, "COMPLETED")
    lab.waits_for(tasks[3], "COMPLETED", 900)

    states = [(lab.fact(task, "JobState"), lab.fact(task, "Restarts")) for task in tasks]
    assert states == [("FAILED", "0"), *[("COMPLETED", "0")] * 2, ("COMPLETED", "1")]
    found = [endings(lab.out(task)) for task in tasks]
    assert found[:3] == [[], [0], [0]] and found[3] in ([130, 0], [0])
    assert f"line 1 of {file} must name a study" in lab.out(tasks[0])
    ports = [re.findall(r"joining Ray at [\d.]+:(\d+)", lab.out(task)) for task in tasks[1:]]
    assert len({of_task[0] for of_task in ports}) == 3
    tiny = load_script(TINY)
    short = tiny.study(num=2, epochs=3, only="conv")
    long = tiny.study(num=1, epochs=EPOCHS, only="conv patchify")
    assert len(list(store.glob("trials/*/rows.parquet"))) == 4
    assert_uninterrupted(Store(store), short, lab.folder / "short")
    assert_uninterrupted(Store(store), long, lab.folder / "long")
