"""Ray Tune schedules the trials it is given, and remembers nothing. The only file that imports Ray to schedule.

Each start makes a fresh Tuner over the trials that are missing; what is done, and where a trial stopped, stands in the
store. Workers are kept between trials, so that torch is imported once a worker and not once a trial.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Elsewhere, Fenced, Row, Store, Workdir

# Ray reads these when it is imported or when a Tuner is made.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # the driver listens itself
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "86400")  # nobody reads Tune's snapshots
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
# Ray asks for a token wherever one exists when a cluster starts, but does not show one by itself when it joins.
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ) or (Path.home() / ".ray" / "auth_token").exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray import tune

MAX_RETRIES = 3  # of a trial whose worker or machine died; an exception of the trial itself is not retried
REPORT_EVERY_S = 1.0


# Tune pickles its callbacks, so what ties them to the driver cannot be one of their attributes.
_events: queue.Queue[Event] = queue.Queue()
_stop = threading.Event()


def run_trials(
    configs: Sequence[TrainConfig],
    store: Store,
    slug: str,
    attempt: int,
    resources: Resources,
    events: queue.Queue[Event],
    stop: threading.Event,
    ray_log: Path,
) -> None:
    """Trains the given trials on Ray, once; puts an Event for every piece of news. Ray must be up (see `cluster`).

    Returns early, within a second or so, when `stop` is set: the trials then stand where their checkpoints are.

    A trial that dies with its worker is tried again from its checkpoint; one that raises is recorded as failed. What
    Ray and Tune print goes to the file `ray_log`.
    """
    global _events, _stop
    _events, _stop = events, stop
    constants = {"store": str(store.root), "slug": slug, "attempt": attempt, "resources": resources}
    bundles = [[(config.id, config.non_default())] for config in configs]
    amounts = {"cpu": resources.cpus_per_trial, "gpu": resources.gpus_per_trial}
    trainable = tune.with_resources(train_bundle, amounts)
    trainable.__name__ = f"vitscale_{slug}"  # trainables of one name overwrite each other on a shared cluster
    with tempfile.TemporaryDirectory(prefix="vitscale-tune-") as scratch, _quiet(ray_log):
        tuner = tune.Tuner(
            trainable,
            param_space={"bundle": tune.grid_search(bundles), **constants},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=resources.max_concurrent or None),
            run_config=tune.RunConfig(
                name=f"attempt-{attempt}",
                storage_path=scratch,
                verbose=0,
                callbacks=[_Relay()],
                failure_config=tune.FailureConfig(max_failures=MAX_RETRIES),
                log_to_file=False,
            ),
        )
        with contextlib.suppress(_Stopped):
            tuner.fit()


@contextlib.contextmanager
def cluster(resources: Resources, ray_log: Path) -> Iterator[int]:
    """Connects to a Ray cluster, or starts one on this machine, and yields how many trials fit at once.

    Raises ValueError if no trial fits: it would wait for ever.
    """
    _refuse_dead(resources.address)
    with _quiet(ray_log):
        try:
            local: dict[str, Any] = {} if resources.address else {"object_store_memory": 256 * 2**20}
            ray.init(
                address=resources.address or "local",
                include_dashboard=False if not resources.address else None,
                log_to_driver=False,
                configure_logging=False,
                **local,
            )
        except ConnectionError as error:
            raise ValueError(f"a Ray cluster must answer at (address={resources.address!r}): {error}") from error
    try:
        yield _slots(resources)
    finally:
        with _quiet(ray_log):
            ray.shutdown()


def _refuse_dead(address: str) -> None:
    """Raises ValueError if nothing answers at host:port: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ValueError(f"a Ray cluster must answer at (address={address!r}): {error}") from error


def _slots(resources: Resources) -> int:
    """How many trials fit at once, node by node: a trial does not span nodes."""
    slots = 0
    for node in ray.nodes():
        if node["Alive"]:
            have = node["Resources"]
            fit = int(have.get("CPU", 0) / resources.cpus_per_trial + 1e-9)
            if resources.gpus_per_trial:
                fit = min(fit, int(have.get("GPU", 0) / resources.gpus_per_trial + 1e-9))
            slots += fit
    if slots == 0:
        total = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        raise ValueError(
            f"a trial must fit on a node, but got (cpus_per_trial={resources.cpus_per_trial:g}, "
            f"gpus_per_trial={resources.gpus_per_trial:g}, cluster={total})"
        )
    return min(slots, resources.max_concurrent) if resources.max_concurrent else slots


def train_bundle(params: dict[str, Any]) -> None:
    """What a worker does with one Tune trial: trains the trials of its bundle, one after another."""
    store, resources = Store(Path(params["store"])), params["resources"]
    for trial_id, fields in params["bundle"]:
        for event in train_trial(trial_id, fields, store, params["slug"], params["attempt"], resources):
            tune.report({"event": event})


def train_trial(
    trial_id: str, fields: dict[str, Any], store: Store, slug: str, attempt: int, resources: Resources
) -> Iterator[Event]:
    """Trains a trial into the store, from its checkpoint if there is one; yields news about once a second.

    An exception of the trial is recorded and ends in an Event; one of the machine (OSError, a broken GPU) is raised,
    to be retried in another process.
    """
    if store.is_done(trial_id):  # another study trained it in the meantime
        rows, facts = store.read_rows(trial_id)
        yield Event(trial_id, facts["status"], tuple(rows), facts)
        return
    workdir: Workdir | None = None
    try:
        config = TrainConfig(**fields)
        workdir = store.claim(trial_id, fields, slug, attempt)
        yield from _train_claimed(config, workdir, store, attempt, resources)
    except (Elsewhere, Fenced) as reason:
        yield Event(trial_id, "elsewhere", facts={"error": str(reason)})
    except Exception as error:
        if _is_machine_fault(error):
            raise
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        store.fail(workdir or store.trial(trial_id), line, traceback.format_exc())
        yield Event(trial_id, "failed", facts={"error": line})


def _train_claimed(
    config: TrainConfig, workdir: Workdir, store: Store, attempt: int, resources: Resources
) -> Iterator[Event]:
    from vitscale.record.provenance import provenance
    from vitscale.train.loop import train

    device = resources.device_name()
    _reset_process(resources)
    rows: list[Row] = []
    yield Event(config.id, "running")
    reported = time.monotonic()
    for row in train(
        config,
        workdir,
        device,
        data_root=Path(resources.data_root) if resources.data_root else None,
        num_loader_workers=resources.num_loader_workers,
        checkpoint_every_s=resources.checkpoint_every_s,
    ):
        rows.append(row)
        if time.monotonic() - reported > REPORT_EVERY_S:
            yield Event(config.id, "running", tuple(rows))
            reported = time.monotonic()
    status = "diverged" if rows[-1]["diverged"] else "finished"
    facts = {"status": status, "attempt": str(attempt), "device": device, **provenance()}
    store.finish(workdir, rows, facts)
    yield Event(config.id, status, tuple(rows), facts)


def _is_machine_fault(error: Exception) -> bool:
    """Whether another try, elsewhere or later, may succeed with the same config."""
    import torch

    return isinstance(error, (OSError, torch.AcceleratorError)) and not isinstance(error, torch.OutOfMemoryError)


def _reset_process(resources: Resources) -> None:
    """Gives the next trial of a reused worker a process as good as new. The trainer seeds all generators itself."""
    import torch

    torch.set_num_threads(max(1, int(resources.cpus_per_trial)))
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.benchmark = False
    if resources.device_name() == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("a GPU must be visible to torch for (device='cuda'); use --device cpu to train without")
        torch.cuda.empty_cache()


class _Stopped(BaseException):
    """Raised in Tune's loop to leave it; no Exception, lest Tune handles it."""


class _Relay(tune.Callback):
    """Passes news on, and leaves Tune's loop when asked to. Any exception in a callback aborts the whole run."""

    def on_step_begin(self, iteration: int, trials: list, **_: Any) -> None:
        if _stop.is_set():
            raise _Stopped

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **_: Any) -> None:
        if isinstance(event := result.get("event"), Event):
            _events.put(event)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        for trial_id, _fields in trial.config["bundle"]:
            _events.put(Event(trial_id, "failed", facts={"error": _last_line(trial)}))


def _last_line(trial: Any) -> str:
    """What a Tune trial died of, in one line: the exception if a line names it, else the last one."""
    lines = [line.strip() for line in str(trial.get_error()).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return [*lines, *named][-1].removeprefix("ray.exceptions.") if lines else "the worker died"


@contextlib.contextmanager
def _quiet(ray_log: Path) -> Iterator[None]:
    """Sends what Ray and Tune print and log from this process to a file."""
    logger = logging.getLogger("ray")
    handlers, to_file = logger.handlers, logging.FileHandler(ray_log)
    with open(ray_log, "a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        logger.handlers, logger.propagate = [to_file], False
        try:
            yield
        finally:
            logger.handlers = handlers
            to_file.close()
