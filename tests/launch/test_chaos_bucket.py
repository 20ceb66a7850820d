"""Random SIGKILLs and SIGSTOPs of all that a study consists of, in a bucket and with servers.

A sequence is a study that is struck again and again while it has trials to do, and then started
once to its end. Victims of SIGKILL: the driver, a worker, the raylet, the GCS, all of them, the
MLflow server, and the S3 server. moto keeps its objects in memory, so what is killed is the process
through which all clients reach it: replies are lost and connections are cut, as they are when a
real server is killed, which keeps its objects. Victims of SIGSTOP, for 30 s with a lease of 6 s:
the same, and moto itself. While a driver stands still, the same command takes over on a machine of
another name, and the zombie comes back into its work. Some starts, with their
workers, run on a clock that is ten minutes or a day behind or ahead of that of the others and of
the servers (apart_clock.c; not without gcc).

Every study has a trial that diverges; those of even seeds also one whose config is broken, which
each start tries again, and which must be `failed` at the end, whatever happened meanwhile.

A sequence of teams trains each trial on two workers; the process that leads them and two of Ray
Train are victims, too, also of SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import (
    SPAWNER,
    TINY,
    Script,
    free_port,
    kill_family,
    load_script,
    mlflow_answers,
    wait_for,
    workers_of,
)
from support.apart import CLOCKS_S, apart_by, apart_clock
from support.buckets import KEYS
from support.faulty_proxy import serve as serve_front
from support.mlflow_runs import assert_shown
from support.teams import on_team
from support.tiny_study import without_times

from vitscale.plan.config import TrainConfig
from vitscale.record import object_store
from vitscale.record.outcome import Row, Status
from vitscale.record.store import PLANNING, Store
from vitscale.record.table import read_trials

pytestmark = pytest.mark.slow
NUM_SEQUENCES = int(os.environ.get("VITSCALE_TEST_SEQUENCES", "1"))  # 12 in `make chaos`
NUM_OF_TEAMS = int(os.environ.get("VITSCALE_TEST_TEAM_SEQUENCES", "0"))  # 4 in `make chaos`
FIRST = int(os.environ.get("VITSCALE_TEST_FIRST_SEQUENCE", "0"))
EPOCHS, LEASE_S, STOP_S = 30, 6, 30.0
KILLS = (*("worker",) * 8, *("driver",) * 2, "everything", *("s3",) * 4, "mlflow")
STOPS = ("worker", "driver", "everything", "raylet", "gcs", "mlflow", "s3", "moto")  # by turns
TEAM_KILLS = ("worker", "leader", "controller", "sync") * 3 + KILLS[8:]
TEAM_STOPS = ("worker", "leader", "controller", "sync")
TEAM_TERMS = ("worker", "leader", "controller")
TITLES = {
    "leader": "ray::ImplicitFunc",
    "worker": "ray::RayTrainWorker",
    "controller": "ray::TrainController",
    "sync": "ray::SynchronizationActor",
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
FEW = (("s3", "kill"), ("driver", "stop"), ("worker", "kill"), ("mlflow", "kill"))
HOSTS = (socket.gethostname(), "two", "three")  # only on the first one can clocks be set
URL = "s3://studies/chaos"


def strikes_of(seed: int, rng: random.Random, in_teams: bool) -> list[tuple[str, str]]:
    """(victim, signal) of a sequence: 17 SIGKILLs and 4 SIGSTOPs, or few where only one is run; of
    teams 21, 4 and 3 SIGTERMs.
    """
    if NUM_SEQUENCES == 1 and not in_teams:
        return list(FEW)
    own = (TEAM_KILLS, TEAM_STOPS, TEAM_TERMS) if in_teams else (KILLS, STOPS[seed % 2 :: 2], ())
    kills, stops, terms = own
    strikes = [(kind, "kill") for kind in (*kills, ("raylet", "gcs")[seed % 2])]
    strikes += [(kind, "stop") for kind in stops] + [(kind, "term") for kind in terms]
    return rng.sample(strikes, len(strikes))


class Services:
    """An S3 server, the process through which it is reached, and an MLflow server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.moto_port, self.port, self.mlflow_port = free_port(), free_port(), free_port()
        self.moto: Any = SPAWNER.Process(target=serve_moto, args=(self.moto_port,))
        self.moto.start()
        self.front: Any = None
        self.mlflow: subprocess.Popen[bytes] | None = None
        self.start("s3")
        self.start("mlflow")
        wait_for(lambda: "studies" in buckets(self.port), 120, "the bucket")

    def start(self, kind: str) -> None:
        if kind == "s3":
            log = str(self.folder / "front.txt")
            front: Any = SPAWNER.Process(target=serve_front, args=(self.port, self.moto_port, log))
            front.start()
            self.front = front  # not before: without a pid, it would be this process
        else:
            self.mlflow = start_mlflow(self.folder, self.mlflow_port)

    def pids(self, kind: str) -> list[int]:
        process = {"moto": self.moto, "s3": self.front, "mlflow": self.mlflow}[kind]
        return family(process.pid)

    def close(self) -> None:
        for process in (self.moto, self.front, self.mlflow):
            kill_family(process.pid)
            process.join() if hasattr(process, "join") else process.wait()


def buckets(port: int) -> str:
    """The answer of an S3 server that is asked for its buckets; empty without one."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
    except OSError:
        return ""


def serve_moto(port: int) -> None:
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    ThreadedMotoServer(port=port, verbose=False).start()
    names = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **names).create_bucket(
        Bucket="studies"
    )
    threading.Event().wait()


def start_mlflow(folder: Path, port: int) -> subprocess.Popen[bytes]:
    database = ("--backend-store-uri", f"sqlite:///{folder}/server.db")
    command = [sys.executable, "-m", "mlflow", "server", *database, "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    with (folder / "server.txt").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def family(pid: int) -> list[int]:
    """A process and its descendants; empty if it has ended."""
    try:
        return [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def send(pids: list[int], name: int) -> bool:
    """Whether a signal reached one of the processes."""
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, name)
            reached += 1
    return bool(reached)


class Sequence:
    """A study that is struck, and what was done to it."""

    def __init__(self, folder: Path, seed: int, in_teams: bool = False) -> None:
        self.in_teams, self.num_broken = in_teams, 1 - seed % 2
        self.rng, self.folder = random.Random(seed), folder
        self.script = Script(folder, is_lean=True)
        self.strikes = strikes_of(seed, self.rng, in_teams)
        self.services, self.clock = Services(folder), apart_clock(folder)
        self.script.environment |= {
            **KEYS,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.services.port}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.services.mlflow_port}",
            "VITSCALE_LEASE_S": str(LEASE_S),
        }
        self.num, self.host = 2, HOSTS[0]
        self.started: list[Any] = []
        self.zombies: list[Any] = []  # drivers that were stopped and have been replaced
        self.stopped: dict[int, float] = {}  # pid -> when it goes on
        self.timers: list[threading.Thread] = []
        self.closing = threading.Event()
        self.process: Any = None
        self.done: Counter[str] = Counter()
        self.log = (folder / "chaos.txt").open("a", buffering=1)

    def say(self, line: str) -> None:
        self.log.write(f"{time.strftime('%T')} {line}\n")

    def arguments(self) -> tuple[str, ...]:
        options = ("--num", self.num, "--epochs", EPOCHS, "--max-concurrent", 2)
        options += ("--broken", self.num_broken)
        teams = ("--workers-per-trial", "2") if self.in_teams else ()
        return *map(str, options), *teams, "--checkpoint-every-s", "0.3", "--store", URL

    def start(self, host: str) -> Any:
        """The same command on some machine; on the first one, sometimes by another time of day."""
        self.host, environment = host, {"VITSCALE_TEST_HOST": host}
        if host == HOSTS[0] and self.clock and self.rng.random() < 0.4:
            shift = self.rng.choice(CLOCKS_S)
            environment = apart_by(self.clock, shift)
            self.done["start, clock apart"] += 1
        else:
            self.done["start"] += 1
        process = self.script.start(*self.arguments(), **environment)
        self.say(f"start {process.pid} {environment}")
        self.started.append(process)
        return process

    def run(self) -> None:
        for victim, name in self.strikes:
            self.be_at_work(early=victim in ("driver", "everything"))
            self.strike(victim, name)
        self.finish()

    def be_at_work(self, early: bool) -> None:
        """Until trials are trained, or, for some victims, some instant of a start."""
        while True:
            if self.process is None or self.process.poll() is not None:
                self.begin()
                if early and self.rng.random() < 0.4:
                    time.sleep(self.rng.uniform(0, 10))
                    return
            wait_for(self.is_at_work_or_ended, 400, "trials are trained")
            time.sleep(self.rng.uniform(0, 4))
            if self.process.poll() is None:
                return

    def is_at_work_or_ended(self) -> bool:
        return bool(self.trainers()) or self.process.poll() is not None

    def trainers(self) -> list[int]:
        return workers_of(self.process.pid, TITLES["worker" if self.in_teams else "leader"])

    def begin(self) -> None:
        """Starts the study again, larger if it is complete; or leaves it to a zombie."""
        if self.process is not None:
            status = self.process.poll()
            self.say(f"ended {self.process.pid} with {status}")
            self.done[f"status {status}"] += 1
            if status == 2 and self.zombies:
                self.process = self.zombies.pop()
                wait_for(lambda: self.process.pid not in self.stopped, 60, "the driver goes on")
                return
            assert status in (0, 1, 3, 130, -signal.SIGKILL), f"status {status}"
            if status in (0, 3) or (status == 1 and self.is_complete()):
                self.num += 1
        another = self.rng.random() < 0.3
        self.process = self.start(self.rng.choice(HOSTS) if another else self.host)

    def strike(self, victim: str, name: str) -> None:
        process, pids, end = self.process, self.pids(victim), time.monotonic() + 60
        while not pids and process.poll() is None and time.monotonic() < end:
            time.sleep(0.5)  # a server starts again, or all workers are stopped
            pids = self.pids(victim)
        if process.poll() is not None or not pids:
            self.say(f"no {victim} to {name}")
            self.done[f"{name} {victim}: not there"] += 1
            return
        self.say(f"{name} {victim} {pids}")
        if not send(pids, SIGNALS[name]):
            self.done[f"{name} {victim}: not there"] += 1
            return
        self.done[f"{name} {victim}"] += 1
        if name == "stop":
            self.stop(victim, pids)
        elif victim in ("driver", "everything"):
            process.wait(60)
            if victim == "driver":
                time.sleep(self.rng.uniform(0, 4))  # its workers live on for seconds
        elif victim in ("raylet", "gcs"):
            process.wait(180)
        elif victim in ("s3", "mlflow"):
            self.after(self.rng.uniform(0.5, 12), lambda: self.services.start(victim))

    def pids(self, victim: str) -> list[int]:
        pid = self.process.pid
        match victim:
            case "worker":
                going = [worker for worker in self.trainers() if worker not in self.stopped]
                return self.rng.sample(going, min(1, len(going)))
            case "leader" | "controller" | "sync":
                return [p for p in workers_of(pid, TITLES[victim]) if p not in self.stopped]
            case "driver":
                return [pid]
            case "everything":
                return family(pid)
            case "raylet" | "gcs":
                return workers_of(pid, {"gcs": "gcs_server"}.get(victim, victim))
        if victim == "mlflow" and not mlflow_answers(self.services.mlflow_port, 5.0):
            return []
        return [p for p in self.services.pids(victim) if p not in self.stopped]

    def stop(self, victim: str, pids: list[int]) -> None:
        """The processes go on after STOP_S; a driver is replaced, or is asked not to be."""
        self.stopped |= dict.fromkeys(pids, time.monotonic() + STOP_S)

        def go_on() -> None:
            self.say(f"go on {victim} {pids}")
            send(pids, signal.SIGCONT)
            for pid in pids:
                self.stopped.pop(pid, None)

        if victim not in ("driver", "everything"):
            return self.after(STOP_S, go_on)
        if self.rng.random() < 0.2:  # on this machine it is seen to live
            self.after(STOP_S, go_on)
            second = self.start(self.host)
            status = second.wait(300)  # 3: all was done before; or 1, with a broken one
            assert status in (2, 3) or (status == 1 and self.is_complete()), self.said()
            self.done["second start, refused"] += 1
            return
        self.zombies.append(self.process)
        elsewhere = HOSTS[(HOSTS.index(self.host) + 1) % len(HOSTS)]
        before, second = self.attempt(), self.start(elsewhere)
        self.done["second start, elsewhere"] += 1
        self.process = second
        # on a busy machine the second start may take longer than that until it has the lock
        self.after(STOP_S, go_on, lambda: self.attempt() > before or second.poll() is not None)

    def is_complete(self) -> bool:
        """Whether all but the broken trial are done, which each start ends with status 1."""
        ids = {t.config.id for t in load_script(TINY).study(num=self.num, epochs=EPOCHS).trials}
        return bool(self.num_broken) and ids == Store.at(URL).done_of(ids)

    def attempt(self) -> int:
        found = Store.at(URL).study("tiny-demo")
        return int(found.read("attempt")) if found.exists("attempt") else 0

    def after(
        self, seconds: float, action: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        """Acts after so many seconds, once something is true."""

        def act() -> None:
            self.closing.wait(seconds)
            while not self.closing.wait(0.5) and not ready():
                pass
            if not self.closing.is_set():
                action()

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        self.timers.append(thread)

    def finish(self) -> None:
        """One start to the end, into which the last zombies come back."""
        process = self.process
        if process.poll() is None and self.rng.random() < 0.5:
            process.wait(600)
        elif process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(180)
        for timer in self.timers[:-1]:
            timer.join()
        wait_for(lambda: mlflow_answers(self.services.mlflow_port, 5.0), 180, "the MLflow server")
        status = self.last_start()
        for timer in self.timers:
            timer.join()
        for zombie in self.zombies:
            zombie.wait(300)
            self.say(f"zombie {zombie.pid} ended with {zombie.returncode}")
            self.done[f"zombie: status {zombie.returncode}"] += 1
        assert status == self.num_broken, self.said()

    def last_start(self) -> int:
        """Its status. Ray gives a node 30 s to begin, which a busy machine may exceed; and a zombie
        that comes back before another start has taken its place drives the study on.
        """
        for _ in range(4):
            before = len(self.said())
            status = self.start(self.host).wait(900)
            said = self.said()[before:]
            if status == 2 and self.zombies and "one driver may run a study" in said:
                for zombie in self.zombies:
                    zombie.wait(600)
                self.done["last start: refused, as a zombie drives"] += 1
            elif status == 1 and "The current node timed out during startup" in said:
                self.done["last start: Ray did not begin within 30 s"] += 1
            else:
                break
        return status

    def said(self) -> str:
        return (self.folder / "log.txt").read_text()

    def close(self) -> None:
        self.closing.set()
        send(list(self.stopped), signal.SIGCONT)
        for process in self.started:
            kill_family(process.pid)
        self.services.close()
        self.log.close()


@pytest.fixture
def sequence(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sequence]:
    made = Sequence(tmp_path, *request.param)
    for name in ("AWS_REGION", *KEYS):
        monkeypatch.setenv(name, made.script.environment[name])
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.services.moto_port}")
    object_store._client.cache_clear()
    try:
        yield made
    finally:
        made.close()
        object_store._client.cache_clear()
        request.node.user_properties.append(("chaos", dict(made.done)))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the rows of uninterrupted trainings, of all processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "references"
    folder.mkdir(exist_ok=True)
    return folder


def reference(
    config: TrainConfig, references: Path, folder: Path, in_teams: bool = False
) -> list[Row]:
    """The rows of the trainer without Ray, uninterrupted; those of a team of two."""
    import torch

    from vitscale.train.loop import train

    path = references / f"{config.id}{'-team' if in_teams else ''}.json"
    if not path.exists():
        torch.set_num_threads(1)
        (folder / config.id).mkdir(parents=True)
        own = folder / config.id
        trained = on_team(2, config, own)[0] if in_teams else list(train(config, own))
        rows = without_times(trained)
        (folder / path.name).write_text(json.dumps(rows))
        (folder / path.name).replace(path)
    rows: list[Row] = json.loads(path.read_text())
    return rows


SEQUENCES = [(seed, False) for seed in range(FIRST, FIRST + NUM_SEQUENCES)]
SEQUENCES += [(seed, True) for seed in range(FIRST, FIRST + NUM_OF_TEAMS)]


@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=str, indirect=True)
def test_a_study_survives_signals_at_random_instants(
    sequence: Sequence, references: Path, tmp_path: Path
) -> None:
    sequence.run()
    plan = load_script(TINY).study(num=sequence.num, epochs=EPOCHS, broken=sequence.num_broken)
    states = {"diverging": Status.DIVERGED, "broken": Status.FAILED}
    ends = {t.config.id: states.get(t.arm.name, Status.FINISHED) for t in plan.trials}
    expected = {
        trial.config.id: reference(
            trial.config, references, tmp_path / "by_hand", sequence.in_teams
        )
        for trial in plan.trials
        if trial.arm.name != "broken"
    }
    store = Store.at(URL)
    assert set(store.trial_ids()) == set(ends)
    assert {i: found.status for i, found in read_trials(plan, store).items()} == ends
    assert {i: without_times(store.read(i).rows) for i in expected} == expected
    assert not {i: store.holder(i) for i in ends if store.holder(i)}
    assert not store.driver_is_alive("tiny-demo")
    wait_for(lambda: not store.folder.is_held(PLANNING), 3 * LEASE_S, "no lease left over")

    assert_shown(tmp_path / "server.db", expected, [i for i in ends if i not in expected])
    assert "Traceback" not in sequence.said()
    sequence.done["sequence to its end"] += 1
