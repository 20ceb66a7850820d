"""Ray Tune schedules the trials it is given, and remembers nothing. The only file that imports Ray to schedule.

Each start makes a fresh Tuner over the trials that are missing; what is done, and where a trial stopped, stands in the
store. Workers are kept between trials, so that torch is imported once a worker and not once a trial.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Store

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
from ray.tune.schedulers import FIFOScheduler

Judge = Callable[[Event], bool]
MAX_RETRIES = 3  # of a trial whose worker or machine died; an exception of the trial itself is not retried


# Tune pickles its callbacks, so what ties them to the driver cannot be one of their attributes.
_events: queue.Queue[Event] = queue.Queue()
_stop = threading.Event()
_judge: Judge | None = None
_stopped: set[str] = set()  # trials that the judge has stopped: what else they tell comes too late


def run_trials(
    configs: Sequence[TrainConfig],
    store: Store,
    slug: str,
    attempt: int,
    resources: Resources,
    events: queue.Queue[Event],
    stop: threading.Event,
    ray_log: Path,
    judge: Judge | None = None,
) -> None:
    """Trains the given trials on Ray, once; puts an Event for every piece of news. Ray must be up (see `cluster`).

    Returns early, within a second or so, when `stop` is set: the trials then stand where their checkpoints are.

    `judge` may stop a running trial at its news, for a search; then the event goes on with status "stopped".

    A trial that dies with its worker is tried again from its checkpoint; one that raises is recorded as failed. What
    Ray and Tune print goes to the file `ray_log`.
    """
    global _events, _stop, _judge
    _events, _stop, _judge = events, stop, judge
    _stopped.clear()
    constants = {"store": str(store.root), "slug": slug, "attempt": attempt, "resources": resources}
    bundles = [[(config.id, config.non_default())] for config in configs]
    amounts: dict[str, Any] = {"cpu": resources.cpus_per_trial, "gpu": resources.gpus_per_trial}
    at_once = resources.max_concurrent or None
    if resources.workers_per_trial > 1:  # its team's workers hold them, and Tune knows nothing of those
        amounts, at_once = {"memory": 1}, _slots(resources)  # no request at all would mean a core
    trainable = tune.with_resources(train_bundle, amounts)
    trainable.__name__ = f"vitscale_{slug}"  # trainables of one name overwrite each other on a shared cluster
    with tempfile.TemporaryDirectory(prefix="vitscale-tune-") as scratch, _quiet(ray_log):
        tuner = tune.Tuner(
            trainable,
            param_space={"bundle": tune.grid_search(bundles), **constants},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=at_once, scheduler=_Judged()),
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
        with _quiet(ray_log), _no_garbage():
            ray.shutdown()


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Keeps the collector, which any thread may run, from dropping references to Ray's objects meanwhile.

    Ray ends the process, with status 1, if one is dropped while it shuts down.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refuse_dead(address: str) -> None:
    """Raises ValueError if nothing answers at host:port: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ValueError(f"a Ray cluster must answer at (address={address!r}): {error}") from error


def _slots(resources: Resources) -> int:
    """How many trials fit at once, node by node: a worker does not span nodes, a team of several may."""
    slots = 0
    for node in ray.nodes():
        if node["Alive"]:
            have = node["Resources"]
            fit = int(have.get("CPU", 0) / resources.cpus_per_trial + 1e-9)
            if resources.gpus_per_trial:
                fit = min(fit, int(have.get("GPU", 0) / resources.gpus_per_trial + 1e-9))
            slots += fit
    slots //= resources.workers_per_trial
    if slots == 0:
        total = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        raise ValueError(
            f"a trial must fit on a node, but got (cpus_per_trial={resources.cpus_per_trial:g}, "
            f"gpus_per_trial={resources.gpus_per_trial:g}, workers_per_trial={resources.workers_per_trial}, "
            f"cluster={total})"
        )
    return min(slots, resources.max_concurrent) if resources.max_concurrent else slots


def train_bundle(params: dict[str, Any]) -> None:
    """What a worker does with one Tune trial: trains the trials of its bundle, one after another."""
    from vitscale.launch.worker import train_trial

    store, resources = Store(Path(params["store"])), params["resources"]
    for trial_id, fields in params["bundle"]:
        for event in train_trial(trial_id, fields, store, params["slug"], params["attempt"], resources):
            tune.report({"event": event})


class _Stopped(BaseException):
    """Raised in Tune's loop to leave it; no Exception, lest Tune handles it."""


class _Judged(FIFOScheduler):
    """Trials in the order given; a search may stop one."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        event = result.get("event")
        if _judge is not None and isinstance(event, Event) and _judge(event):
            _stopped.add(event.trial_id)
            _events.put(replace(event, status="stopped"))
            return FIFOScheduler.STOP
        return FIFOScheduler.CONTINUE


class _Relay(tune.Callback):
    """Passes news on, and leaves Tune's loop when asked to. Any exception in a callback aborts the whole run."""

    def on_step_begin(self, iteration: int, trials: list, **_: Any) -> None:
        if _stop.is_set():
            raise _Stopped

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **_: Any) -> None:
        if isinstance(event := result.get("event"), Event) and event.trial_id not in _stopped:
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
