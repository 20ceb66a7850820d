"""A fault of the machine is no result: the trial is retried elsewhere, or missing with a reason."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT, Script, load_script
from support.mlflow_runs import runs_of_experiment
from support.refusals import refusing

from vitscale.launch import worker
from vitscale.launch.driver import Driver
from vitscale.launch.faults import is_of_the_machine, one_line, too_big, verdict
from vitscale.launch.preflight import Data
from vitscale.launch.progress import Progress
from vitscale.launch.resources import Event, Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Status
from vitscale.record.store import Store
from vitscale.record.table import read_trials
from vitscale.record.workdir import Damaged
from vitscale.train.checkpoint import OtherImages

FAULTY = ROOT / "tests/studies/faulty.py"

SHAPES = "mat1 and mat2 shapes cannot be multiplied (64x16 and 17x16)"
OOM = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB"
MACHINE = [  # as torch 2.15, its libraries and Python word them
    OSError(28, "No space left on device"),
    PermissionError(13, "Permission denied"),
    MemoryError(),
    ModuleNotFoundError("No module named 'timm'"),
    Damaged("rows must be readable"),
    OtherImages("a training must resume on its own images"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error"),
    RuntimeError("Pin memory thread exited unexpectedly"),
    RuntimeError(
        "unable to open shared memory object </torch_1_2_3> in read-write mode: No space left on "
        "device (28)"
    ),
    RuntimeError(
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory."
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
    ),
    RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer"
    ),
]
CONFIG = [
    ValueError("resolution == height == width must hold"),
    KeyError("x"),
    AssertionError(),
    ZeroDivisionError(),
    RuntimeError("CUDA error: device-side assert triggered"),
]


@pytest.mark.parametrize("error", MACHINE, ids=lambda error: one_line(error)[:40])
def test_faults_of_the_machine_are_retried_any_number_of_times(error: Exception) -> None:
    line = one_line(error)
    assert verdict(error, line, line, Resources()) == "again"


@pytest.mark.parametrize("error", CONFIG, ids=lambda error: one_line(error)[:40])
def test_errors_of_the_config_are_no_faults_of_the_machine(error: Exception) -> None:
    assert not is_of_the_machine(error)
    line = one_line(error)
    assert verdict(error, line, line, Resources()) == "config"


def test_an_unknown_error_of_torch_is_of_the_config_only_if_it_recurs() -> None:
    error = RuntimeError(SHAPES)
    assert verdict(error, one_line(error), "", Resources()) == "again"
    assert verdict(error, one_line(error), "RuntimeError: of another kind", Resources()) == "again"
    assert verdict(error, one_line(error), one_line(error), Resources()) == "config"


@pytest.mark.parametrize("address", ["", "192.0.2.1:6379"])
def test_an_unknown_error_recurs_on_a_cluster_only_within_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A later start does not know which node it was, and may place the trial there again."""
    store, config = Store.open(tmp_path), TrainConfig(width=16, heads=2, depth=1)
    where = Resources(address=address)

    def break_down(*_: object) -> None:
        raise RuntimeError(SHAPES)

    monkeypatch.setattr(worker, "train_claimed", break_down)

    def attempt(start: int) -> Event:
        *_, event = train_trial(config.id, config.non_default(), store, "s-demo", start, where)
        return event

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        attempt(1)
    if address:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            attempt(2)
    assert attempt(2).status is Status.FAILED
    assert SHAPES in store.failure(config.id)


def test_data_that_a_node_lacks_are_no_fault_of_the_config(tmp_path: Path) -> None:
    """Raised by the real reader; on another node the files may be there."""
    from vitscale.train.sources.prepared import read_manifest

    (tmp_path / "manifest.json").write_text("{")
    with refusing("manifest.json: JSONDecodeError") as caught:
        read_manifest(tmp_path)
    assert (
        verdict(caught.value, one_line(caught.value), one_line(caught.value), Resources())
        == "again"
    )


class Gpu:
    """torch's view of a device's memory in GiB: free, total, and reserved by this process."""

    def __init__(self, free: float, total: float, own: float) -> None:
        self.mem_get_info = lambda: (int(free * 2**30), int(total * 2**30))
        self.memory_reserved = lambda: int(own * 2**30)


@pytest.mark.parametrize(
    ("gpus", "free", "own", "expected"),
    [(0.25, 60.0, 18.0, "alone"), (1.0, 0.1, 78.0, "unfit"), (1.0, 0.1, 38.0, "again")],
    ids=["a part of a device", "a device of its own", "beside a stranger"],
)
def test_out_of_memory_is_retried_alone_before_the_model_is_called_too_big(
    monkeypatch: pytest.MonkeyPatch, gpus: float, free: float, own: float, expected: str
) -> None:
    """No GPU here can run out of memory, so its size is simulated; the exception is torch's own."""
    import torch

    gpu = Gpu(free, 79.1, own)
    monkeypatch.setattr(torch.cuda, "mem_get_info", gpu.mem_get_info)
    monkeypatch.setattr(torch.cuda, "memory_reserved", gpu.memory_reserved)
    resources = Resources(gpus_per_trial=gpus, micro_batch=64)
    error = torch.OutOfMemoryError(OOM)
    assert verdict(error, one_line(error), "", resources) == expected
    assert resources.alone().gpus_per_trial == 1.0
    line = too_big(TrainConfig(batch_size=512), one_line(error), resources)
    assert (
        "but got (device_memory=79.1 GiB, batch_size=512, micro_batch=64); a smaller --micro-batch"
        in line
    )


def driver(folder: Path) -> Driver:
    """A driver of the study that has started nothing."""
    store = Store.open(folder)
    return Driver(load_script(FAULTY).study(), store, Resources(), 1, threading.Event(), Data(""))


def test_rows_that_the_driver_cannot_see_are_reported_and_the_trial_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, trial_id = driver(tmp_path), ids()[0]
    progress = Progress(one.study, dict.fromkeys(ids().values(), "missing"))
    one._dispatch(
        Event(trial_id, Status.FINISHED, ({"epoch": 1.0, "step": 1.0},), {"machine": "node-b"}),
        progress,
    )
    assert (
        f"{trial_id} is finished, but its rows, of a worker on node-b, are not in the store "
        f"{tmp_path}"
    ) in (capsys.readouterr().out.replace("\n", " "))
    outcome = one._with_reasons(read_trials(one.study, one.store))[trial_id]
    assert outcome.status == "missing" and "which all nodes must share" in outcome.error
    assert one.mirror.latest[trial_id].status == "running"  # not finished, in MLflow either


def tune_run(resources: Resources) -> Any:
    from vitscale.launch import tune

    store = SimpleNamespace(nonce=lambda slug: "")
    return tune.Run([], store, "", 1, resources, queue.Queue(), threading.Event(), nullcontext)


def test_the_start_ends_after_many_lost_trials(tmp_path: Path) -> None:
    """Ten in succession; a row of any trial shows that machines work."""
    from vitscale.launch import tune

    error_file = tmp_path / "error.txt"
    error_file.write_text("Failure # 1 (at noon)\nFailure # 2 (later)\nOSError: no disk\n")
    trial = SimpleNamespace(
        trial_id="t1",
        config={"trial": ("t1", {})},
        error_file=str(error_file),
        num_failures=4,
        max_failures=3,
    )
    run = tune_run(Resources())
    news = run.events
    for num in range(1, 20):
        run.on_step_begin(0, [])
        run.on_trial_error(0, [], trial)
        assert news.get_nowait() == Event("t1", "lost", facts={"error": "OSError: no disk"})
        other = SimpleNamespace(
            trial_id="t3",
            config={"trial": ("t3", {})},
            error_file=str(error_file),
            num_failures=1,
            max_failures=3,
        )
        run.on_trial_recover(0, [], other)
        assert news.get_nowait().status == "again"
        # nothing gets on: once more only
        assert other.max_failures == (3 if len(run.losses) < 2 else 1)
        if num == 9:
            run.on_trial_result(0, [], trial, {"event": Event("t2", "running", ({"epoch": 1.0},))})
            assert (
                news.get_nowait().status == "running" and trial.max_failures == 4 + tune.MAX_RETRIES
            )
    with pytest.raises(tune._Stopped):
        run.on_step_begin(0, [])


def test_an_error_that_looks_like_markup_is_printed_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of Gloo start with a path in brackets, which rich would parse as a closing tag."""
    one, error = driver(tmp_path), "RuntimeError: [/__w/gloo/pair.cc:545] Read error :smile:"
    one._dispatch(
        Event(ids()[0], "again", facts={"error": error}),
        Progress(one.study, dict.fromkeys(ids().values(), "")),
    )
    assert error in capsys.readouterr().out


def test_the_display_names_waiting_trials_and_what_they_wait_for(tmp_path: Path) -> None:
    one, trial_ids = driver(tmp_path), ids()
    progress = one.progress = Progress(one.study, dict.fromkeys(trial_ids.values(), "missing"))
    with one.store.drive("other-demo"):
        one.store.claim(trial_ids[0], {}, "other-demo", 1)
        assert one._is_held(trial_ids[0]) and not one._is_held(trial_ids[1])
        assert "1 waiting for other-demo" in progress.line()
    assert not one._is_held(trial_ids[0])  # its driver is gone
    for seed, status in ((0, "running"), (1, "again"), (2, "crowded"), (3, "lost")):
        progress.update(Event(trial_ids[seed], status))
    assert (
        "1 running, 0 diverged, 0 failed, 2 tried again, 1 lost to machines, ETA" in progress.line()
    )


# seed -> how many tries fail, and what fails them: see tests/faulty/sitecustomize.py
FAULTS = {
    1: (1, f"oom {OOM}"),
    2: (1, "runtime CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    3: (99, "killed"),
    4: (99, f"runtime {SHAPES}"),
    5: (99, "os /dev/shm/torch_1"),
    6: (99, "value no such thing"),
    7: (1, "runtime of a kind that nobody knows"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """A study whose trainings fail, in real worker processes, and its output in out.txt."""
    folder = tmp_path_factory.mktemp("faulty")
    script = Script(folder, FAULTY, is_lean=True)
    script.environment["PYTHONPATH"] = f"{ROOT}/tests/faulty:{ROOT}"
    script.environment["FAULTS"] = str(folder)
    (folder / "plan.json").write_text(json.dumps(FAULTS))
    result = script.run("--max-concurrent", "2", timeout=500)
    (folder / "out.txt").write_text(result.stdout)
    assert result.returncode == 1, result.stdout
    return script


def ids() -> dict[int, str]:
    return {t.config.seed: t.config.id for t in load_script(FAULTY).study().trials}


@pytest.mark.slow
def test_only_what_the_config_causes_has_failed(faulty: Script) -> None:
    out = (faulty.folder / "out.txt").read_text()
    assert "4 finished, 0 diverged, 2 failed, 2 missing of 8" in out
    assert (
        f"missing  one {ids()[5]}: PermissionError: [Errno 13] Permission denied: "
        "'/dev/shm/torch_1'"
    ) in out
    assert f"missing  one {ids()[3]}: the worker died: " in out
    assert faulty.store().trial(ids()[3]).address("fault.log") in out
    assert f"failed  one {ids()[4]}: RuntimeError: {SHAPES}" in out
    assert f"failed  one {ids()[6]}: ValueError: no such thing" in out
    assert "the same command tries them again" in out
    assert (
        f"warning: a machine failed {ids()[1]} (tried again, 1 of 3): torch.OutOfMemoryError: {OOM}"
    ) in out


@pytest.mark.slow
def test_every_retry_is_in_another_process(faulty: Script) -> None:
    tries = {seed: (faulty.folder / f"{seed}.tries").read_text().split() for seed in range(8)}
    assert {seed: len(pids) for seed, pids in tries.items()} == {
        0: 1,
        1: 2,
        2: 2,
        3: 4,
        4: 2,
        5: 4,
        6: 1,
        7: 2,
    }
    assert all(len(set(pids)) == len(pids) for pids in tries.values())
    pauses = Counter((faulty.folder / "pauses").read_text().split())
    assert pauses == {"1": 6, "4": 2, "16": 2}  # times the first one


@pytest.mark.slow
def test_faults_are_excluded_from_figures_and_denominators(faulty: Script) -> None:
    table = pd.read_parquet(
        faulty.folder / "runs/studies/faulty-demo/report/trials.parquet"
    ).set_index("seed")
    assert table["value"].isna().to_dict() == {seed: seed in (3, 5) for seed in range(8)}
    assert table.loc[[4, 6], "value"].tolist() == [100.0, 100.0]
    summary = pd.read_parquet(faulty.folder / "runs/studies/faulty-demo/report/edf_summary.parquet")
    # seeds 0 to 2
    assert (summary["n"].item(), summary["missing"].item(), summary["not_counted"].item()) == (
        3,
        2,
        3,
    )


@pytest.mark.slow
def test_mlflow_shows_faults_with_their_reason_and_without_an_error(faulty: Script) -> None:
    runs = runs_of_experiment(faulty.environment["MLFLOW_TRACKING_URI"], "faulty-demo", "trial")
    for seed in (3, 5):
        run = runs[ids()[seed]]
        assert run.info.status == "KILLED"
        assert run.data.tags["vitscale.status"] == "missing" and run.data.tags["vitscale.error"]
        assert not {"final_error_pct", "failed"} & set(run.data.metrics)
    assert (
        runs[ids()[4]].info.status == "FAILED"
        and runs[ids()[4]].data.metrics["final_error_pct"] == 100
    )


@pytest.mark.slow
def test_the_same_command_retries_faults(faulty: Script) -> None:
    """After the machine has recovered; must run last."""
    (faulty.folder / "plan.json").write_text("{}")
    result = faulty.run(timeout=500)
    assert result.returncode == 0, result.stdout
    assert "8 trials, 4 done, 4 to do" in result.stdout
    assert "8 finished, 0 diverged, 0 failed, 0 missing of 8" in result.stdout
    assert not list(faulty.folder.glob("runs/trials/*/*.log"))
    runs = runs_of_experiment(faulty.environment["MLFLOW_TRACKING_URI"], "faulty-demo", "trial")
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert not any("vitscale.error" in run.data.tags for run in runs.values())


def test_a_trial_that_tune_gives_up_without_a_try_begins_anew(tmp_path: Path) -> None:
    """Where a worker dies between two trials, Tune counts two failures of the second and ends it,
    and where one does not get free, it ends it in silence.
    """
    from ray.tune.experiment import Trial

    from vitscale.launch import tune

    (error_file := tmp_path / "error.txt").write_text("Failure # 1 (at noon)\nOSError: gone\n")
    trial = SimpleNamespace(
        trial_id="t", config={"trial": ("t1", {})}, error_file=str(error_file), status="PENDING"
    )
    run = tune_run(Resources())
    scheduler, news = tune._Scheduler(run), run.events
    for num in range(1, tune.MAX_RETRIES + 1):
        trial.status = Trial.PENDING
        scheduler.on_trial_error(None, trial)
        trial.status = Trial.ERROR
        if num == 1:
            run.on_trial_error(0, [], trial)
        else:
            run.errored.clear()
        run.on_experiment_end([trial])
        event = news.get_nowait()
        assert (event.status, event.facts["tries"]) == ("again", f"{num} of 3") and news.empty()
        assert run.left == {"t1"}
    run.errored.clear()
    run.on_experiment_end([trial])
    assert news.get_nowait().status == "lost"  # not for ever


@pytest.mark.parametrize(
    "text",
    [
        "Unable to find a valid cuDNN algorithm to run convolution",
        "FIND was unable to find an engine to execute this computation",
        "cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0)",
        "Triton Error [CUDA]: device kernel image is invalid",
        "Failed to find C compiler. Please specify via CC environment variable.",
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx",
        "uncorrectable ECC error encountered",
        "Socket Timeout",
    ],
)
def test_what_a_node_lacks_or_breaks_is_no_fault_of_a_config(text: str) -> None:
    """Also the second time on the same node."""
    line = f"RuntimeError: {text}"
    assert verdict(RuntimeError(text), line, line, Resources(gpus_per_trial=1)) == "again"


class Nodes:
    """A cluster of nodes, each with place for any trial: what Places asks Ray and Tune."""

    def __init__(self, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        from vitscale.launch import placement

        self.node_of_actor: dict[str, str] = {}  # actor -> node
        self.run = tune_run(Resources(address="192.0.2.1:6379"))
        self.places = self.run.places
        monkeypatch.setattr(self.places, "fitting", lambda: set(names))
        monkeypatch.setattr(placement, "actors", self.facts)

    def facts(self, actor: str) -> dict[str, dict[str, str]]:
        return {"Address": {"NodeID": self.node_of_actor[actor], "IPAddress": "192.0.2.1"}}

    def trial(self, name: str) -> SimpleNamespace:
        factory = SimpleNamespace(bundles=[{"CPU": 1}])
        trial = SimpleNamespace(trial_id=name, config={"trial": (name, {})}, error_file=None)
        trial.placement_group_factory, trial.update_resources = factory, lambda resources: None
        trial.num_failures, trial.max_failures, trial.status = 0, 3, "RUNNING"
        return trial

    def begins(self, trial: SimpleNamespace, node: str) -> None:
        actor = f"actor-{len(self.node_of_actor)}"
        self.node_of_actor[actor], self.places.actors[trial.trial_id] = node, actor

    def fails(self, trial: SimpleNamespace) -> bool:
        """As Tune treats a failure; whether the trial is tried again."""
        from vitscale.launch import tune

        scheduler = tune._Scheduler(self.run)
        trial.num_failures += 1
        if trial.num_failures > trial.max_failures:
            scheduler.on_trial_error(None, trial)
            self.run.on_trial_error(0, [], trial)
            return False
        trial.status = "ERROR"
        scheduler.on_trial_error(None, trial)
        trial.status = "PENDING"
        self.run.on_trial_recover(0, [], trial)
        trial.status = "RUNNING"
        return True


def test_trials_leave_broken_nodes_before_their_tries_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of four nodes are broken, always have place, and get each trial first."""
    nodes = Nodes(["bad 1", "bad 2", "good 1", "good 2"], monkeypatch)
    taken = []
    for num in range(12):
        trial, tries = nodes.trial(f"t{num}"), 0
        while True:
            avoided = nodes.places.avoided.get(trial.trial_id, set())
            node = next(n for n in ("bad 1", "bad 2", "good 1") if n not in avoided)
            nodes.begins(trial, node)
            if node == "good 1":
                nodes.places.note_progress(trial)
                break
            tries += 1
            assert nodes.fails(trial), (num, tries)
        taken.append(tries)
    assert taken[0] == 4 and max(taken) <= 4 and taken[-1] == 1


def test_a_node_that_lost_all_its_workers_once_is_not_avoided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All had got on there; and where all nodes fail trials, none is avoided."""
    nodes = Nodes(["a", "b"], monkeypatch)
    trials = [nodes.trial(f"t{num}") for num in range(8)]
    for trial in trials:
        nodes.begins(trial, "a")
        nodes.places.note_progress(trial)
    assert all(nodes.fails(trial) for trial in trials)
    assert not any(nodes.places.avoided.values())
    for num, trial in enumerate(trials):
        nodes.begins(trial, "ab"[num % 2])
        assert nodes.fails(trial)
    assert not nodes.places.avoided[trials[-1].trial_id]


@pytest.mark.parametrize(
    ("text", "avoided"),
    [("shape '[8]' is invalid", {"a"}), ("CUDA error: misaligned address", set())],
)
def test_what_may_be_of_the_config_or_of_the_node_is_tried_on_another_node(
    text: str, avoided: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the second one of unknown cause counts as the config's."""
    nodes = Nodes(["a", "b"], monkeypatch)
    trial = nodes.trial("t")
    (error_file := tmp_path / "error.txt").write_text(
        f"Failure # 1 (at noon)\nRuntimeError: {text}\n"
    )
    trial.error_file = str(error_file)
    nodes.begins(trial, "a")
    assert nodes.fails(trial) and nodes.places.avoided["t"] == avoided


def test_a_trial_that_fails_everywhere_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes([f"node {num}" for num in range(100)], monkeypatch)
    trial, tries = nodes.trial("t"), 1
    while True:
        avoided = nodes.places.avoided.get("t", set())
        nodes.begins(trial, next(f"node {n}" for n in range(100) if f"node {n}" not in avoided))
        if not nodes.fails(trial):
            break
        tries += 1
    assert 4 < tries <= 12
