"""Several Ray nodes on this machine: placement, packing, a node that dies."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from conftest import (
    ROOT,
    TINY,
    Script,
    free_port,
    kill_family,
    load_script,
    wait_for,
    workers_of,
)
from support import own_images
from support.apart import apart_by, apart_clock
from support.buckets import KEYS, fresh, point_at
from support.cluster import RAY, TOKEN, Cluster, short_folder, where_hidden, where_vitscale_is
from support.faulty_proxy import serving
from support.mlflow_runs import epochs
from support.teams import undisturbed
from support.tiny_study import assert_uninterrupted, without_times

from vitscale.doctor.check import Machine
from vitscale.doctor.checks import CHECKS
from vitscale.doctor.process import Examination

pytestmark = pytest.mark.slow

CLAIMS = "runs/trials/*/claim.json"


LEAVE = ROOT / "deploy/leave.sh"


def on_a_machine_of_its_own(begin: str) -> tuple[str, ...]:
    """For Cluster.grow: a node whose processes see none but their own, as deploy/leave.sh asks for;
    `begin` starts something there.
    """
    own = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c")
    if subprocess.run([*own, "true"]).returncode:
        pytest.skip("needs the right to have processes in a namespace of its own")
    path = f"PATH={Path(RAY).parent}:{os.environ['PATH']}"
    return ("env", path, *own, f'{begin} exec "$@"', "sh")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes, for several tests."""
    made = Cluster(short_folder())
    try:
        made.grow()
        yield made
    finally:
        made.stop()


@pytest.fixture
def empty() -> Iterator[Cluster]:
    """A head node without cores, like that of an autoscaling cluster at its start."""
    made = Cluster(short_folder(), "--num-cpus=0", "--num-gpus=0", is_lean=True)
    try:
        yield made
    finally:
        made.stop()


def test_the_command_of_the_cluster_page(tmp_path: Path, cluster: Cluster) -> None:
    """Unchanged except for the address, the path, and options for a machine without a GPU.

    In a copy of the project with trainings of two epochs.
    """
    for name in ("studies", "search_spaces"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "studies/search_spaces").symlink_to("../search_spaces")  # as `vitscale init` does
    space = tmp_path / "search_spaces/demo.py"
    shorter = "RECIPE = {**RECIPE, 'epochs': 2, 'warmup_epochs': 1.0}"
    space.write_text(f"{space.read_text()}\n{shorter}\n")
    page = (ROOT / "docs/cluster.md").read_text()
    (command,) = re.findall(r"^python (.*--address auto --store /.*)$", page, re.MULTILINE)
    script, *arguments = (
        command.replace("auto", cluster.address).replace("/shared/runs", f"{tmp_path}/runs").split()
    )
    shortest = ("--num", "1", "--num-references", "1", "--device", "cpu")
    result = Script(tmp_path, tmp_path / script).run(*arguments, *shortest)
    assert result.returncode == 0, result.stdout
    assert "8 finished" in result.stdout
    assert "training 2 at a time" in result.stdout  # one core per trial, and a quarter of a GPU


def test_the_doctor_asks_every_node_of_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    (check,) = [check for check in CHECKS if check.name == "nodes"]
    with Examination() as examination:
        found = examination.find(check, Machine(store=str(tmp_path), address=cluster.address))
    assert found.verdict == "pass", found.detail
    assert found.values["num_nodes"] == found.values["slots"] == 2
    assert found.detail.count("1 cores, 2 GPUs") == 2 and not list(tmp_path.iterdir())


def test_fractions_of_a_gpu_pack_trials_node_by_node(tmp_path: Path, cluster: Cluster) -> None:
    """2 nodes of 1 core, 2 logical GPUs: 2 cores fit nowhere; 1 GPU and 0.1 cores fit twice."""
    script = Script(tmp_path)
    fixed = ("--address", cluster.address, "--device", "cpu", "--num", "2")
    refused = script.run(*fixed, "--gpus-per-trial", "1", "--cpus-per-trial", "2")
    assert refused.returncode == 2 and "a trial must fit on a node" in refused.stdout
    result = script.run(*fixed, "--gpus-per-trial", "1", "--cpus-per-trial", "0.1")
    assert result.returncode == 0, result.stdout
    assert "training 4 at a time" in result.stdout


def test_trials_go_only_to_nodes_with_the_named_accelerator(tmp_path: Path, empty: Cluster) -> None:
    """Two nodes of 2 logical GPUs, one of them of H100s: by the plan, and by when trials ran."""
    empty.grow()
    empty.grow(options=('--resources={"accelerator_type:H100": 1}',))
    script = Script(tmp_path)
    fixed = ("--address", empty.address, "--device", "cpu")
    fixed += ("--num", "4", "--epochs", "20", "--only", "conv")
    where = ("--gpus-per-trial", "1", "--cpus-per-trial", "0.1", "--accelerator-type", "H100")
    result = script.run(*fixed, *where)
    assert result.returncode == 0, result.stdout
    assert "training 2 at a time" in result.stdout  # 4 on both nodes
    instants = []
    for path in tmp_path.glob("runs/trials/*"):
        last = script.store().read(path.name).rows[-1]
        instants += [(last["unix_s"] - last["train_s"], 1), (last["unix_s"], -1)]
    running = list(itertools.accumulate(change for _, change in sorted(instants)))
    assert len(running) == 8 and max(running) <= 2


def test_nodes_of_different_sizes_and_kinds(tmp_path: Path, empty: Cluster) -> None:
    """A core and a GPU on one node, four of each on the other, whose processor has another name:
    0.7 of a GPU fits once on each. What differs is said at the start and in the report.
    """
    (tmp_path / "cpuinfo").write_text("model name\t: Abacus 7\n")
    named = f'mount --bind {tmp_path}/cpuinfo /proc/cpuinfo && exec "$@"'
    of_another_name = ("unshare", "-m", "sh", "-c", named, "sh")
    if subprocess.run([*of_another_name, "true"]).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    sizes = ("--num-cpus=1", "--num-gpus=1"), ("--num-cpus=4", "--num-gpus=4")
    empty.grow(options=(*sizes[0], '--resources={"accelerator_type:A100": 1}'))
    empty.grow(*of_another_name, options=(*sizes[1], '--resources={"accelerator_type:H100": 1}'))
    fixed = ("--address", empty.address, "--device", "cpu", "--num", "3", "--only", "patchify conv")
    share = ("--gpus-per-trial", "0.7", "--cpus-per-trial", "0.1")
    result = Script(tmp_path).run(*fixed, *share, "--epochs", "10")
    assert result.returncode == 0, result.stdout
    assert "training 5 at a time" in result.stdout
    kinds = "warning: the GPUs of the cluster are of several kinds (A100, H100)"
    assert kinds in result.stdout and "--accelerator-type" in result.stdout
    (page,) = tmp_path.glob("runs/studies/*/report/report.html")
    machines = [
        Script(tmp_path).store().read(path.name).facts["machine"].startswith("Abacus 7, ")
        for path in tmp_path.glob("runs/trials/*")
    ]
    counts = re.findall(r"(\d+) on Abacus 7", page.read_text())
    assert "Trials ran on different hardware (patchify: " in page.read_text()
    assert len(machines) == 6 and 0 < sum(machines) == sum(map(int, counts)) < 6


def test_trials_of_a_dead_node_resume_on_another_node(tmp_path: Path, cluster: Cluster) -> None:
    """Must be the last one of the cluster of two nodes."""
    script = Script(tmp_path)
    arguments = ("--num", "2", "--epochs", "40", "--only", "conv", "--checkpoint-every-s", "0.3")
    process = script.start(*arguments, "--address", cluster.address)
    wait_for(
        lambda: len(list(tmp_path.glob("runs/trials/*/checkpoint*"))) >= 2,
        120,
        "both nodes training",
    )
    kill_family(cluster.nodes[1].pid)
    assert process.wait(300) == 0, (tmp_path / "log.txt").read_text()
    plan = load_script(TINY).study(num=2, epochs=40, only="conv")
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")


def test_a_cluster_without_workers_is_waited_for(tmp_path: Path, empty: Cluster) -> None:
    """As long as asked; nothing is lost where none comes."""
    script = Script(tmp_path)
    said = "none of the cluster has a CPU yet; Ctrl-C stops"
    arguments = ("--num", "1", "--address", empty.address)
    in_vain = script.run(*arguments, "--cluster-timeout-s", "2")
    assert in_vain.returncode == 2
    assert f"waiting for nodes, at most 2 s (--cluster-timeout-s): {said}" in in_vain.stdout
    (line,) = [line for line in in_vain.stdout.splitlines() if "error:" in line]
    assert (
        "must join the cluster in time, but got (cluster_timeout_s=2, none of the cluster" in line
    )
    assert not list(tmp_path.glob("runs/trials/*"))
    for name in ("stopped", "served"):
        (tmp_path / "log.txt").write_text("")
        process = script.start(*arguments)
        wait_for(lambda: said in (tmp_path / "log.txt").read_text(), 100, "a word about waiting")
        if name == "stopped":  # by a scheduler that signals twice
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert process.wait(120) == 130
        else:
            empty.grow()
            assert process.wait(200) == 0, (tmp_path / "log.txt").read_text()
        assert (tmp_path / "log.txt").read_text().count(said) == 1


@pytest.mark.chaos
def test_a_head_that_is_lost_while_nodes_are_waited_for_ends_the_start(
    tmp_path: Path, empty: Cluster
) -> None:
    """With a report, and before Ray ends its driver without a word."""
    script = Script(tmp_path)
    process = script.start("--num", "1", "--address", empty.address)
    said = "none of the cluster has a CPU yet; Ctrl-C stops"
    wait_for(lambda: said in (tmp_path / "log.txt").read_text(), 100, "a word about waiting")
    kill_family(empty.nodes[0].pid)
    assert process.wait(200) == 1, (tmp_path / "log.txt").read_text()
    out = (tmp_path / "log.txt").read_text()
    assert "stopped by HeadLost: the head of the Ray cluster (GCS at " in out
    assert "the same command resumes" in out and "report  " in out and "Traceback" not in out


OTHER_VERSION = """if True:
    import json, sys
    import ray
    from ray.experimental import internal_kv as kv

    ray.init(address=sys.argv[1], log_to_driver=False)
    found = json.loads(kv._internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster"))
    for version, word in (("2.0.0", "changed"), (ray.__version__, "as it was")):
        content = json.dumps({**found, "ray_version": version}).encode()
        kv._internal_kv_put(b"CLUSTER_METADATA", content, True, namespace=b"cluster")
        print(word, flush=True)
        sys.stdin.read()
"""


def test_a_driver_that_may_not_join_is_told_why_in_one_line(
    tmp_path: Path, cluster: Cluster
) -> None:
    script, arguments = Script(tmp_path), ("--num", "1", "--address", cluster.address)

    def refusal(**environment: str) -> str:
        done = script.run(*arguments, **environment)
        assert done.returncode == 2, done.stdout
        (line,) = [line for line in done.stdout.splitlines() if "error:" in line]
        assert done.stdout.rstrip().endswith(line) and cluster.address in line
        return line

    assert "must have the token of its cluster" in refusal(RAY_AUTH_TOKEN="x" * 32)
    command = [sys.executable, "-c", OTHER_VERSION, cluster.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=TOKEN
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "changed\n"
        line = refusal()
        other.communicate("")
    assert "must have the versions of Ray and Python that its cluster has" in line
    assert "Ray: 2.0.0" in line
    assert not list(tmp_path.glob("runs/trials/*"))


def autoscaling(folder: Path) -> Cluster:
    """A head without cores, whose own autoscaler starts nodes of one core on this machine, at most
    four, as there is demand.
    """
    port, head = free_port(), {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    one = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 4}
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray")
    config = {
        **{f"{name}_commands": [] for name in (*commands, "worker_start_ray")},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
        "cluster_name": "fake",
        "max_workers": 4,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": f"127.0.0.1:{port}",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {"ray.head.default": head, "one": one},
        "head_node_type": "ray.head.default",
        "upscaling_speed": 4.0,
        "idle_timeout_minutes": 5,
    }
    (file := folder / "autoscaling.json").write_text(json.dumps(config))
    more = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    options = ("--num-cpus=0", "--num-gpus=0", f"--autoscaling-config={file}")
    return Cluster(short_folder(), *options, port=port, more=more)


@pytest.mark.timeout(900)
@pytest.mark.chaos
def test_an_autoscaling_cluster_grows_for_as_many_teams_as_there_are_trials(
    tmp_path: Path,
) -> None:
    """No node is there at the start; two teams of two are to train at once, on four nodes."""
    made = autoscaling(tmp_path)
    try:
        script = Script(tmp_path)
        options = ("--num", "2", "--epochs", "40", "--only", "conv", "--workers-per-trial", "2")
        process = script.start(*options, "--cpus-per-trial", "1", "--address", made.address)
        wait_for(lambda: made.num_alive() == 5, 300, "four nodes")
        assert process.poll() is None
        wait_for(lambda: len(list(tmp_path.glob(CLAIMS))) == 2, 120, "two teams at once")
        assert process.wait(400) == 0, (tmp_path / "log.txt").read_text()
    finally:
        made.stop()
    plan = load_script(TINY).study(num=2, epochs=40, only="conv")
    for trial in plan.trials:
        rows = script.store().read(trial.config.id).rows
        assert without_times(rows) == undisturbed(trial.config)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_teams_wait_for_their_nodes_and_use_those_that_come_later(
    tmp_path: Path, empty: Cluster
) -> None:
    """A worker to a node: the first team waits for its second one; with the next two nodes, which
    come while it trains, a second team begins. One of them is taken away: without any checkpoint by
    the clock its team saves, and goes on with the node that comes in its place.
    """
    script, log = Script(tmp_path), tmp_path / "log.txt"
    options = {"num": 2, "epochs": 50, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    team = ("--workers-per-trial", "2", "--cpus-per-trial", "1", "--checkpoint-every-s", "1e6")
    begin, left = tmp_path / "begin", tmp_path / "leave.txt"
    leave = f"(until [ -e {begin} ]; do sleep 0.5; done; sh {LEAVE} > {left} 2>&1) &"
    own = on_a_machine_of_its_own(leave)
    process = script.start(*given, *team, "--address", empty.address)
    for said in (
        "none of the cluster has a CPU yet",
        "has place for 1 of 2 workers of a trial yet",
    ):
        wait_for(lambda: said in log.read_text(), 100, said)  # noqa: B023
        empty.grow()
    wait_for(lambda: len(list(tmp_path.glob(CLAIMS))) == 1, 120, "the first team")
    assert "training 1 at a time" in log.read_text()
    empty.grow()
    empty.grow(*own)
    wait_for(lambda: epochs(tmp_path / "mlflow.db") == 2, 120, "the second team's epoch")

    def saved() -> list[Path]:
        folders = {path.parent for path in tmp_path.glob("runs/trials/*/checkpoint-*")}
        return [folder for folder in folders if not script.store().is_done(folder.name)]

    assert not saved()
    begin.touch()
    wait_for(
        lambda: left.exists() and "Stopped all" in left.read_text(), 90, "the end of Ray there"
    )
    assert saved(), left.read_text()  # that of one of the teams, wherever Ray has placed them
    kill_family(empty.nodes.pop().pid)
    empty.grow()
    assert process.wait(500) == 0, log.read_text()
    plan = load_script(TINY).study(**options)
    for trial in plan.trials:
        rows = script.store().read(trial.config.id).rows
        assert without_times(rows) == undisturbed(trial.config)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    served = Metadata()
    with serving(served.server):
        yield served


class Metadata:
    """Answers as AWS does to a spot machine: 404 until it is taken away, and only with a token."""

    def __init__(self) -> None:
        self.is_taken, self.asked = False, 0
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def reply(self, status: int, content: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_PUT(self) -> None:
                lasts = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
                right = self.path == "/latest/api/token" and lasts
                self.reply(200 if right else 400, b"a token")

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != "a token":
                    return self.reply(401)
                served.asked += 1
                at = self.path == "/latest/meta-data/spot/instance-action" and served.is_taken
                self.reply(200 if at else 404, b'{"action": "terminate"}')

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.mark.chaos
def test_nodes_that_come_later_are_used_and_one_is_taken_away(
    tmp_path: Path, empty: Cluster, metadata: Metadata
) -> None:
    """A second node joins while the first one trains, and takes the next trial. It is a spot
    machine on which deploy/leave.sh waits for AWS's word: without any checkpoint by the clock its
    trial saves, Ray ends there, and the trial goes on elsewhere.
    """
    left = tmp_path / "leave.txt"
    watch = f"VITSCALE_METADATA={metadata.url} sh {LEAVE} --spot > {left} 2>&1 &"
    own = on_a_machine_of_its_own(watch)
    empty.grow()
    script, options = Script(tmp_path), {"num": 2, "epochs": 200, "only": "conv"}
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    process = script.start(*given, "--checkpoint-every-s", "1e6", "--address", empty.address)
    alone = "training 1 at a time"
    wait_for(lambda: alone in (tmp_path / "log.txt").read_text(), 120, "a study on one node")
    empty.grow(*own)
    database = tmp_path / "mlflow.db"
    wait_for(lambda: epochs(database) == 2, 120, "an epoch of the second trial")
    second = max(tmp_path.glob(CLAIMS), key=lambda claim: claim.stat().st_mtime).parent
    assert metadata.asked and not left.read_text() and not [*second.glob("checkpoint-*")]
    metadata.is_taken = True
    wait_for(lambda: [*second.glob("checkpoint-*")], 30, "a checkpoint of leaving")
    assert not script.store().is_done(second.name)
    assert re.search(r" trials on this node are told to save: \d+$", left.read_text(), re.MULTILINE)
    wait_for(lambda: "Stopped all" in left.read_text(), 60, "the end of Ray there")
    assert process.wait(400) == 0, (tmp_path / "log.txt").read_text()
    # another trial may have come there in the instant before Ray ended
    assert (tmp_path / "log.txt").read_text().count("(tried again") in (1, 2)
    plan = load_script(TINY).study(**options)
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")


def test_a_store_that_a_node_does_not_share_is_refused_before_the_first_step(
    tmp_path: Path, empty: Cluster
) -> None:
    """The only node with cores has another file system under the same path."""
    runs = tmp_path / "runs"
    runs.mkdir()
    elsewhere = where_hidden([runs])
    script = Script(tmp_path)
    process = script.start("--num", "1", "--address", empty.address)
    wait_for(
        lambda: "waiting for nodes" in (tmp_path / "log.txt").read_text(),
        100,
        "a word about waiting",
    )
    empty.grow(*elsewhere)
    assert process.wait(200) == 2
    (line,) = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "error:" in line]
    assert (
        f"the store must be one folder that all nodes see, but got (store='{runs}', another one "
        "on: "
    ) in line
    assert "(node " in line
    assert not list((runs / "trials").iterdir())


OWN = """
import sys
from typing import Literal
sys.path.insert(0, {tests!r})
from support import own_images
from vitscale import Study, main
def study(scale: Literal["demo"] = "demo") -> Study:
    return own_images.study()
if __name__ == "__main__":
    main(study)
"""


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        ("vitscale", "No module named 'vitscale"),
        ("data", "a dataset must lie at root/name as a prepared set"),
    ],
)
def test_a_node_that_lacks_what_a_trial_needs_is_refused_before_the_first_step(
    tmp_path: Path, empty: Cluster, hidden: str, why: str
) -> None:
    """On the only node with cores the folders of vitscale, or those of the images, are empty."""
    (tmp_path / "own.py").write_text(OWN.format(tests=str(ROOT / "tests")))
    root = own_images.write(tmp_path / "data")
    without = where_hidden([root / "own"] if hidden == "data" else where_vitscale_is())
    empty.grow(*without)
    arguments = ("--address", empty.address, "--data-root", str(root))
    refused = Script(tmp_path, tmp_path / "own.py").run(*arguments, timeout=200)
    assert refused.returncode == 2, refused.stdout
    (line,) = [line for line in refused.stdout.splitlines() if "error:" in line]
    assert "each node must have what a trial needs, but got (" in line and why in line
    assert "(node " in line and not list(tmp_path.glob("runs/trials/*"))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("leaves", "lacks"),
    [
        pytest.param(False, "images", id="stays"),
        pytest.param(True, "images", id="leaves"),
        pytest.param(False, "vitscale", id="without vitscale"),
    ],
)
def test_trials_that_fail_on_one_node_are_trained_by_another(
    tmp_path: Path, empty: Cluster, leaves: bool, lacks: str
) -> None:
    """It joins while the study runs, has place for one trial after the other, and lacks the images,
    or vitscale, without which no process of a trial begins. Or the other node leaves while a trial
    waits for it, and the failing one is mended.
    """
    import sklearn.datasets

    images = Path(sklearn.datasets.__file__).parent / "data"
    without = where_hidden([images] if lacks == "images" else where_vitscale_is())
    empty.grow()
    script, num_epochs = Script(tmp_path), 150
    arguments = ("--num", "2", "--epochs", str(num_epochs), "--only", "conv")
    process = script.start(*arguments, "--address", empty.address)
    said = tmp_path / "log.txt"
    # its line of progress would come too late, where a trial takes as long as such lines are apart
    wait_for(lambda: list(tmp_path.glob(CLAIMS)), 120, "a trial that has begun")
    (busy,) = map(psutil.Process, workers_of(empty.forks.pid))
    busy.suspend()  # or its node may have place too early
    try:
        empty.grow(*without)
        wait_for(lambda: "tried again on another node" in said.read_text(), 200, "who waits")
        tries = said.read_text().count("(tried again")
        time.sleep(25)  # the next try would be 4 s after the last
        assert said.read_text().count("(tried again") == tries
    finally:
        busy.resume()
    if leaves:
        enter = ("nsenter", "--target", str(empty.nodes[2].pid), "--mount")
        subprocess.run([*enter, "umount", images], check=True)
        kill_family(empty.nodes[1].pid)
    assert process.wait(400) == 0, said.read_text()
    plan = load_script(TINY).study(num=2, epochs=num_epochs, only="conv")
    assert_uninterrupted(script.store(), plan, tmp_path / "by_hand")
    warned = re.findall(r"warning: ([\d.]+ \(node \w+\)) failed (\w+) .*: (.*)", said.read_text())
    sign = str(images) if lacks == "images" else "vitscale"
    lacking = [(node, trial) for node, trial, why in warned if sign in why]
    assert len({node for node, _ in lacking}) == 1
    assert max(Counter(lacking).values()) <= 2  # then elsewhere


HUNG = """
import sys, time
if any(name.endswith("default_worker.py") for name in sys.orig_argv):
    time.sleep(600)
"""


def test_a_node_that_does_not_answer_is_named(tmp_path: Path, empty: Cluster) -> None:
    """Its processes do not begin, as where Python lies on a disk that hangs; its raylet lives.

    And one whose clock differs from that of the store.
    """
    (tmp_path / "hung").mkdir()
    (tmp_path / "hung" / "sitecustomize.py").write_text(HUNG)
    quick = "import vitscale.launch.nodes as nodes\nnodes.CHECK_STORE_S = 8.0\n"
    (tmp_path / "own.py").write_text(TINY.read_text().replace("\nBASE", f"\n{quick}BASE", 1))
    clock = apart_clock(tmp_path)
    empty.grow(
        *(
            ["env", *(f"{name}={value}" for name, value in apart_by(clock, 600).items())]
            if clock
            else []
        )
    )
    empty.grow("env", f"PYTHONPATH={tmp_path}/hung")
    script = Script(tmp_path, tmp_path / "own.py")
    process = script.start("--num", "1", "--address", empty.address)
    wait_for(lambda: "training 2 at a time" in (tmp_path / "log.txt").read_text(), 120, "trials")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130
    lines = (tmp_path / "log.txt").read_text().splitlines()
    (line,) = [line for line in lines if "did not answer" in line]
    assert re.search(r"warning: [\d.]+ \(node \w+\) did not answer whether it sees the store", line)
    said = [line for line in lines if "clock" in line]
    if clock:
        (line,) = said
        assert re.search(
            r"warning: the clock of [\d.]+ \(node \w+\) is (60\d|59\d) s ahead of", line
        )


@pytest.mark.parametrize("lacks", ["credentials", "a way to the server", "the right time"])
def test_a_node_that_cannot_use_a_bucket_is_refused_before_the_first_step(
    tmp_path: Path,
    empty: Cluster,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:
    """And not as one with another store; moto takes any credentials, but asks for some."""
    url = f"http://127.0.0.1:{server}"
    point_at(url, monkeypatch)
    given = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
    said = "each node must have what a trial needs, but got ("
    match lacks:
        case "credentials":
            why = "it cannot read the store: credentials must be in the environment"
        case "a way to the server":
            given |= KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
            why = "it cannot read the store: the store's server must do what is asked"
        case _:
            if not (clock := apart_clock(tmp_path)):
                pytest.skip("needs a compiler")
            given |= KEYS | apart_by(clock, 600)
            said, why = "must be as the store's within a lease (60 s), but is ", "s ahead of"
    empty.grow("env", *(f"{name}={value}" for name, value in given.items()))
    arguments = ("--num", "1", "--address", empty.address, "--store", fresh())
    refused = Script(tmp_path).run(*arguments, timeout=200)
    assert refused.returncode == 2, refused.stdout
    (line,) = [line for line in refused.stdout.splitlines() if "error:" in line]
    assert said in line and why in line and "(node " in line
    assert "another one on" not in refused.stdout
