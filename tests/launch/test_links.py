"""Four machines, in namespaces of this one, that share no disk, and whose links are cut or slow:
Ray on three, an S3 server and an MLflow server with passwords on the fourth. The S3 server is
reached through a process that can be killed (as in test_chaos_bucket.py), and clocks may be apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, TINY, kill_family, load_script, wait_for
from support.apart import CLOCKS_S, apart_by, apart_clock
from support.buckets import KEYS
from support.mlflow_runs import assert_shown
from support.teams import undisturbed
from support.tiny_study import reference_rows, without_times

from vitscale.record.outcome import Row

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
]

BIN = Path(sys.executable).parent
WORKERS = ("a", "b")
RAY_MEMORY = "--object-store-memory=100000000"
RAY_START = (f"{BIN}/ray", "start", "--block")
UNSHARE = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc")
NETWORK = "10.77.0"
# of a slow link, each way: delay and jitter in seconds, and the share of frames that are lost
DELAY_S, JITTER_S, LOSS = 0.2, 0.05, 0.002
HEAD, SERVICES = f"{NETWORK}.1:6379", f"{NETWORK}.9"


class Machine:
    """Processes, a network, a /tmp and a host name of its own, on the switch's network."""

    def __init__(self, name: str, number: int, switch: int, hosts: Path) -> None:
        self.link, self.address, self.switch = f"to-{name}", f"{NETWORK}.{number}", switch
        begin = f"hostname {name}; mount -t tmpfs none /tmp; mount --bind {hosts} /etc/hosts; "
        begin += "echo; exec sleep infinity"
        self.holder = subprocess.Popen(
            [*UNSHARE, "--kill-child", "sh", "-c", begin], stdout=subprocess.PIPE
        )
        assert self.holder.stdout and self.holder.stdout.readline()  # the namespaces are there
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.init = int(children)
        self.relay: subprocess.Popen[bytes] | None = None

    def plug_in(self, slow: bool = False) -> None:
        if slow:
            self._join_slowly()
        else:
            ends = (self.link, "netns", self.switch), ("name", "eth0", "netns", self.init)
            ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        ip("link", "set", self.link, "master", "switch", "up", inside=self.switch)
        ip("addr", "add", f"{self.address}/24", "dev", "eth0", inside=self.init)
        for device in ("lo", "eth0"):
            ip("link", "set", device, "up", inside=self.init)
        ip(
            "route", "add", "default", "dev", "eth0", inside=self.init
        )  # by it, Ray finds its address

    def _join_slowly(self) -> None:
        ends = (self.switch, self.link, self.init, "eth0")
        given = map(str, (DELAY_S, JITTER_S, LOSS, *ends))
        self.relay = subprocess.Popen(
            [sys.executable, "-S", ROOT / "tests/support/slow_link.py", *given],
            stdout=subprocess.PIPE,
        )
        assert self.relay.stdout and self.relay.stdout.readline() == b"ready\n"

    def close(self) -> None:
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        kill_family(self.holder.pid)
        self.holder.wait()

    def command(self, *command: object) -> list[str]:
        inside = ("--mount", "--pid", "--net", "--ipc", "--uts")
        return ["nsenter", "--target", str(self.init), *inside, "--", *map(str, command)]

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Those on the machine whose command line has a text; all but its first one, without."""

        def space(pid: int) -> str:
            return os.readlink(f"/proc/{pid}/ns/pid")

        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):  # it may end at any moment
                here = space(process.pid) == space(self.init) and process.pid != self.init
                if here and title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def cut(self) -> None:
        ip("link", "set", self.link, "down", inside=self.switch)

    def mend(self) -> None:
        ip("link", "set", self.link, "up", inside=self.switch)


def ip(*arguments: object, inside: int | None = None) -> None:
    prefix = ["nsenter", "--target", str(inside), "--net"] if inside else []
    subprocess.run([*prefix, "ip", *map(str, arguments)], check=True)


class Lab:
    """Machines: `head` with the driver and no cores, `a` and `b` with a core each, `services`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        begin = "echo; exec sleep infinity"
        self.switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", begin], stdout=subprocess.PIPE
        )
        assert self.switch.stdout and self.switch.stdout.readline()
        ip("link", "add", "switch", "type", "bridge", inside=self.switch.pid)
        ip("link", "set", "switch", "up", inside=self.switch.pid)
        self.machines: dict[str, Machine] = {}
        self.clocks: dict[str, dict[str, str]] = {}  # of machines whose time of day is apart
        (folder / "home").mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))},
            **KEYS,
            "HOME": f"{folder}/home",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{SERVICES}:9000",
            "MLFLOW_TRACKING_URI": f"http://{SERVICES}:5000",
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": PASSWORD,
            "RAY_worker_niceness": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "VITSCALE_LEASE_S": "8",
        }

    def begin(self, slow: str = "") -> None:
        numbers, hosts = {"head": 1, "a": 2, "b": 3, "services": 9}, self.folder / "hosts"
        # gloo looks for the address of its machine's name
        lines = [f"{NETWORK}.{number} {name}" for name, number in numbers.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        for name, number in numbers.items():
            self.machines[name] = Machine(name, number, self.switch.pid, hosts)
            self.machines[name].plug_in(slow=name == slow)

    def start(self, name: str, *command: object, **environment: str) -> subprocess.Popen[bytes]:
        """On a machine, with its output in a file of the folder."""
        log = self.folder / f"{name}-{Path(str(command[0])).name}.log"
        with log.open("ab") as output:
            return subprocess.Popen(
                self.machines[name].command(*command),
                cwd=self.folder,
                env=self.environment | self.clocks.get(name, {}) | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def serve(self) -> None:
        """An S3 server with a bucket, and an MLflow server that asks for a password."""
        self.start("services", "moto_server", "--host", "127.0.0.1", "--port", "9001")
        self.start_s3()
        self.start_mlflow()
        wait_for(lambda: self.answer(MAKE_BUCKET), 60, "the S3 server")
        wait_for(lambda: self.answer(ASK_MLFLOW), 180, "the MLflow server")

    def start_ray(self) -> None:
        """The head, and what joins it once it answers."""
        head = ("--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
        self.start("head", *RAY_START, *head, RAY_MEMORY)
        wait_for(lambda: self.answer(PORT), 60, "the head")
        for name in WORKERS:
            self.join_ray(name)

    def join_ray(self, name: str) -> None:
        self.start(name, *RAY_START, f"--address={HEAD}", "--num-cpus=1", RAY_MEMORY)

    def start_s3(self) -> None:
        """The process that is reached as the S3 server, and passes requests on."""
        self.start("services", sys.executable, "-c", FRONT, PYTHONPATH=f"{ROOT}/tests")

    def set_clocks_apart(self, rng: random.Random) -> None:
        """Of the machines that train, and of that of the driver, as that of the servers is right;
        nothing without a compiler.
        """
        if library := apart_clock(self.folder):
            for name in ("head", *WORKERS):
                self.clocks[name] = apart_by(library, rng.choice(CLOCKS_S))

    def start_mlflow(self) -> None:
        script = ROOT / "deploy/mlflow/serve.sh"
        of_mlflow = {"HOST": SERVICES, "ALLOWED_HOSTS": f"{SERVICES}:5000", "WORKERS": "1"}
        of_mlflow["MLFLOW_AUTH_ADMIN_PASSWORD"] = PASSWORD
        self.start("services", "bash", script, f"{self.folder}/mlflow", **of_mlflow)

    def study(
        self, epochs: int, num: int = 2, *options: str, at: str = "head"
    ) -> subprocess.Popen[bytes]:
        given = ("--num", num, "--epochs", epochs, "--checkpoint-every-s", "0.5", "--store", URL)
        return self.start(at, sys.executable, TINY, *given, "--address", "auto", *options)

    def round_trip_s(self, name: str) -> float:
        """The least time in which a machine refuses a connection of the head."""
        address = self.machines[name].address
        times = [self.answer(KNOCK.format(address=address)) for _ in range(3)]
        return min(times)

    def answer(self, code: str) -> Any:
        """What Python prints on the machine `head`, as JSON; None if it fails."""
        done = subprocess.run(
            self.machines["head"].command(sys.executable, "-c", code),
            env=self.environment,
            capture_output=True,
            timeout=60,
        )
        return None if done.returncode else json.loads(done.stdout)

    def claims(self) -> dict[str, str]:
        """Trial -> machine, of those that train and have a checkpoint."""
        return self.answer(CLAIMS) or {}

    def said(self) -> str:
        logs = {path.name: path.read_text().splitlines() for path in self.folder.glob("*.log")}
        return "\n".join(
            "\n".join([name, *(line for line in lines if "HTTP/1.1" not in line)])
            for name, lines in logs.items()
        )

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        kill_family(self.switch.pid)
        self.switch.wait()


PASSWORD = "correct-horse-battery"


@pytest.fixture
def lab() -> Iterator[Lab]:
    if subprocess.run([*UNSHARE, "ip", "link"], capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces, and iproute2")
    folder = Path(tempfile.mkdtemp(prefix="vitscale-links-", dir="/var/tmp"))  # /tmp is hidden
    made = Lab(folder)
    try:
        yield made
    finally:
        made.close()
        print(made.said())  # shown where the test fails
        shutil.rmtree(folder)


URL = "s3://studies/links"
MAKE_BUCKET = f"""
import boto3
boto3.client("s3", endpoint_url="http://{SERVICES}:9000").create_bucket(Bucket="studies")
print(1)
"""
FRONT = f"from support.faulty_proxy import serve; serve(9000, 9001, '/dev/null', {SERVICES!r})"
ASK_MLFLOW = f"""
import urllib.request
print(urllib.request.urlopen("http://{SERVICES}:5000/health").status)
"""
PORT = "import socket; socket.create_connection(('10.77.0.1', 6379), 2); print(1)"
KNOCK = """
import socket, time
start = time.monotonic()
assert socket.socket().connect_ex(("{address}", 9)) == 111
print(time.monotonic() - start)
"""
STORE = f"""
import json
from vitscale.record.store import Store
store = Store.at({URL!r})
"""
CLAIMS = (
    STORE
    + """
files = " ".join(store.trials.files())
held = {i: store.trial(i).look()[0] for i in store.trials.having("claim.json")}
at_work = {i: c["host"] for i, c in held.items() if c and i + "/checkpoint-" in files}
print(json.dumps(at_work))
"""
)
ATTEMPT = (
    STORE
    + """
found = store.study("tiny-demo")
print(int(found.read("attempt")) if found.exists("attempt") else 0)
"""
)
ROWS = STORE + "print(json.dumps({i: [*map(dict, store.read(i).rows)] for i in store.trial_ids()}))"
EPOCHS = 150
# a worker begins late behind a slow link, and all that is saved takes long behind slow servers
WITH_SLOW = {"worker": 300, "services": 60}


@pytest.mark.parametrize("side", ["worker", "services"])
def test_a_study_survives_a_link_that_is_cut(lab: Lab, side: str) -> None:
    """The worker's machine comes back after Ray has given it up; the S3 server and the MLflow
    server come back while all wait, after more than the time of a lease.
    """
    lab.begin()
    lab.serve()
    lab.start_ray()
    driver = lab.study(EPOCHS)

    def on(*machines: str) -> Callable[[], bool]:
        def train() -> bool:
            assert driver.poll() is None, lab.said()
            return set(lab.claims().values()) == set(machines)

        return train

    wait_for(on("a", "b"), 240, "a trial on each machine")
    if side == "worker":
        (lost,) = (trial for trial, machine in lab.claims().items() if machine == "b")
        lab.machines["b"].cut()
        wait_for(lambda: on("a")() and lost in lab.claims(), 450, "its trial on the other machine")
        lab.machines["b"].mend()
    else:
        lab.machines["services"].cut()
        time.sleep(15)
        lab.machines["services"].mend()
    assert driver.wait(400) == 0, lab.said()
    assert_all_is_there_once(lab, EPOCHS)


def assert_all_is_there_once(lab: Lab, epochs: int, num: int = 2) -> None:
    """Rows as of a study on one machine, by the bit, and MLflow's runs with all of them, once."""
    plan = load_script(TINY).study(num=num, epochs=epochs)
    assert_recorded(lab, reference_rows(plan, lab.folder / "by_hand"))


def assert_recorded(lab: Lab, expected: Mapping[str, Sequence[Row]]) -> None:
    """By trial id, in the store and in MLflow."""
    rows: dict[str, list[Row]] = lab.answer(ROWS)
    assert {i: without_times(found) for i, found in rows.items()} == expected
    assert not lab.claims()
    assert_shown(lab.folder / "mlflow" / "mlflow.db", expected)
    assert PASSWORD not in lab.said()


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_team_on_two_machines_survives_the_loss_of_one(lab: Lab, how: str) -> None:
    """A worker on each; the machine of one is killed, or cut off for longer than Ray waits."""
    lab.begin()
    lab.serve()
    lab.start_ray()
    options = {"num": 1, "epochs": 60, "only": "conv"}
    given = ("--only", "conv", "--workers-per-trial", "2", "--cpus-per-trial", "1")
    driver = lab.study(60, 1, *given)

    def workers() -> list[int]:
        titles = [lab.machines[name].processes("ray::RayTrainWorker") for name in WORKERS]
        return [len(found) for found in titles]

    wait_for(lambda: driver.poll() is not None or lab.claims(), 300, "a checkpoint of the team")
    assert driver.poll() is None and workers() == [1, 1], lab.said()
    machine = lab.machines["b"]
    if how == "kill":
        for process in machine.processes():
            process.kill()
        time.sleep(5)
        lab.join_ray("b")
    else:
        machine.cut()
        time.sleep(60)
        machine.mend()
        # Ray ends on a machine that it has given up
        wait_for(lambda: not machine.processes("raylet/raylet "), 120, "the end of Ray there")
        lab.join_ray("b")
    assert driver.wait(500) == 0, lab.said()
    plan = load_script(TINY).study(**options)
    assert_recorded(lab, {t.config.id: undisturbed(t.config) for t in plan.trials})


@pytest.mark.parametrize("side", ["worker", "services"])
def test_a_study_ends_though_a_link_is_slow_all_the_time(lab: Lab, side: str) -> None:
    """That of a worker's machine, or that of the S3 server and the MLflow server."""
    slow, epochs = {"worker": "b", "services": "services"}[side], WITH_SLOW[side]
    lab.begin(slow=slow)
    lab.serve()
    lab.start_ray()
    took_s = {name: [lab.round_trip_s(name)] for name in ("a", slow)}
    start = time.monotonic()
    driver = lab.study(epochs)
    seen: set[str] = set()
    while driver.poll() is None and time.monotonic() < start + 700:
        seen |= set(lab.claims().values())
        time.sleep(3)
    assert driver.poll() == 0, lab.said()
    study_s = time.monotonic() - start
    for name, times in took_s.items():
        times.append(lab.round_trip_s(name))
    print(f"study {study_s:.0f} s, round trips {took_s} s")
    assert max(took_s["a"]) < DELAY_S and min(took_s[slow]) >= 2 * DELAY_S
    assert seen == {"a", "b"}
    assert_all_is_there_once(lab, epochs)


# (victim, what happens to it): what is cut or stopped goes on after so many seconds; a machine that
# is killed loses all that runs on it, Ray included, and comes back
STRIKES = (
    *(("worker", "kill"),) * 4,
    ("worker", "stop"),
    *(("driver", "kill"),) * 2,
    ("driver", "stop"),
    ("raylet", "kill"),
    ("gcs", "kill"),
    *(("s3", "kill"),) * 2,
    *(("machine", "kill"),) * 2,
    *(("machine", "cut"),) * 2,
    *(("services", "cut"),) * 2,
    ("mlflow", "kill"),
    ("head", "kill"),
)
GO_ON_S = {
    "worker": (20.0, 30.0),
    "driver": (30.0, 30.0),
    "machine": (3.0, 40.0),
    "services": (3.0, 20.0),
}
SEEDS = range(int(os.environ.get("VITSCALE_TEST_LINK_SEQUENCES", "2")))


class Struck:
    """A study on the lab's machines that is struck at random instants, and started again."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.rng, self.num = lab, random.Random(seed), 2
        self.done: Counter[str] = Counter()
        self.timers: list[threading.Timer] = []
        self.driver: subprocess.Popen[bytes] | None = None
        self.zombies: list[subprocess.Popen[bytes]] = []  # drivers that have been replaced

    def run(self) -> None:
        for victim, how in self.rng.sample(STRIKES, len(STRIKES)):
            self.be_at_work()
            self.strike(victim, how)
        for timer in self.timers:
            timer.join()
        assert self.driver is not None
        self.driver.wait(600)
        for zombie in self.zombies:
            self.done[f"zombie: status {zombie.wait(300)}"] += 1
        starts = 0  # a trial may have been lost to the last strikes
        while (status := self.ended()) != 0 and starts < 3:
            starts += 1
            self.driver = self.lab.study(EPOCHS // 2, self.num)
            self.driver.wait(600)
        assert status == 0, self.lab.said()

    def ended(self) -> int | None:
        assert self.driver is not None
        status = self.driver.poll()
        is_due = status in (None, 0, 1, 3, 130, 137, -9)
        if not is_due:  # a start may meet a head that was killed
            said = self.lab.said()
            is_due = status == 2 and "error: a Ray cluster must answer at" in said
            assert is_due, f"status {status}\n{said}"
        return status

    def be_at_work(self) -> None:
        """Until a trial is trained; a study that is complete goes on with more draws."""
        while True:
            if self.driver is None or (status := self.ended()) is not None:
                self.num += self.driver is not None and status in (0, 3)
                self.done["start"] += 1
                self.driver = self.lab.study(EPOCHS // 2, self.num)
            driver = self.driver
            wait_for(lambda: self.workers() or driver.poll() is not None, 400, "trials")  # noqa: B023
            time.sleep(self.rng.uniform(0, 5))
            if driver.poll() is None:
                return

    def workers(self) -> list[psutil.Process]:
        return [
            process
            for name in WORKERS
            for process in self.lab.machines[name].processes("ray::ImplicitFunc")
        ]

    def strike(self, victim: str, how: str) -> None:
        lab, name = self.lab, self.rng.choice(WORKERS)
        seconds = self.rng.uniform(*GO_ON_S.get(victim, (1.0, 10.0)))
        is_hit = True
        match victim, how:
            case "worker", "kill":
                is_hit = self.kill(self.workers()[:1])
            case "worker", "stop":
                is_hit = bool(found := self.workers()[:1])
                for process in found:
                    process.suspend()
                    self.after(seconds, process.resume)
            case "driver", "kill":
                is_hit = self.kill(self.drivers())
            case "driver", "stop":
                is_hit = bool(found := self.drivers())
                if is_hit:
                    self.replace(found, name, seconds)
            case "raylet", _:
                is_hit = self.kill(lab.machines[name].processes("raylet/raylet "))
                psutil.wait_procs(lab.machines[name].processes(), 30)  # all else ends by itself,
                self.kill(lab.machines[name].processes())  # but for a driver that is there
                self.after(seconds, lambda: lab.join_ray(name))
            case "gcs", _:
                is_hit = self.kill(lab.machines["head"].processes("gcs_server"))
                assert self.driver is not None
                self.driver.wait(200)  # it says so, and ends
                self.start_ray_again()
            case "machine", "kill":
                is_hit = self.kill(lab.machines[name].processes())
                self.after(seconds, lambda: lab.join_ray(name))
            case "machine" | "services", "cut":
                machine = lab.machines[name if victim == "machine" else victim]
                machine.cut()
                self.after(seconds, machine.mend)
            case "s3", _:
                is_hit = self.kill(lab.machines["services"].processes("faulty_proxy"))
                self.after(seconds, lab.start_s3)
            case "mlflow", _:
                is_hit = self.kill(lab.machines["services"].processes("mlflow"))
                self.after(seconds, lab.start_mlflow)
            case "head", _:
                self.kill(lab.machines["head"].processes())
                self.start_ray_again()
        self.done[f"{how} {victim}" + ("" if is_hit else ": not there")] += 1

    def drivers(self) -> list[psutil.Process]:
        """One that is stopped apart."""
        found = []
        for machine in ("head", *WORKERS):
            for process in self.lab.machines[machine].processes(str(TINY)):
                with contextlib.suppress(psutil.NoSuchProcess):  # it may end at any moment
                    if process.status() != psutil.STATUS_STOPPED:
                        found.append(process)
        return found

    def replace(self, found: list[psutil.Process], name: str, seconds: float) -> None:
        """Stops the driver; the same command on another machine takes over, and it comes back."""
        lab, before, start = self.lab, self.lab.answer(ATTEMPT), time.monotonic()
        for process in found:
            process.suspend()
        assert self.driver is not None
        self.zombies.append(self.driver)
        found = [*found, psutil.Process(self.driver.pid)]  # nsenter stops with what it runs
        self.driver = lab.study(EPOCHS // 2, self.num, at=name)
        wait_for(
            lambda: lab.answer(ATTEMPT) > before or self.ended() is not None, 200, "a second driver"
        )
        for process in found:
            self.after(max(1.0, start + seconds - time.monotonic()), process.resume)

    def start_ray_again(self) -> None:
        """On all machines; no machine joins a head that is not there."""
        for timer in self.timers:
            timer.join()
        for machine in ("head", *WORKERS):
            self.kill(self.lab.machines[machine].processes())
        self.lab.start_ray()

    def kill(self, processes: list[psutil.Process]) -> bool:
        """Whether there was one to be killed."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, 30)
        return bool(processes)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        def act_on_what_is_there() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                act()

        timer = threading.Timer(seconds, act_on_what_is_there)
        timer.start()
        self.timers.append(timer)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_study_on_several_machines_survives_faults_at_random_instants(
    lab: Lab, seed: int, request: pytest.FixtureRequest
) -> None:
    if seed % 2:
        lab.set_clocks_apart(random.Random(seed))
    lab.begin()
    lab.serve()
    lab.start_ray()
    struck = Struck(lab, seed)
    struck.run()
    assert_all_is_there_once(lab, EPOCHS // 2, struck.num)
    struck.done["sequence on several machines to its end"] += 1
    request.node.user_properties.append(("chaos", dict(struck.done)))
