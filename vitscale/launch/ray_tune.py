"""Ray Tune schedules the trials it is given, and remembers nothing. The only file that imports Ray
to schedule.

Each start makes a fresh Tuner over the trials that are missing; what is done, and where a trial
stopped, stands in the store. Workers are kept between trials, so that torch is imported once a
worker and not once a trial.
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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import DONE, Status
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
# then Ray ends the driver, without a word
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "300")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves a study on a busy machine
# Ray asks for a token wherever one exists when a cluster starts, but does not show one by itself
# when it joins.
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ) or (
    Path.home() / ".ray" / "auth_token"
).exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray import tune
from ray._private import ray_constants
from ray.autoscaler.sdk import request_resources
from ray.tune.schedulers import FIFOScheduler
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ShouldStop = Callable[[Event], bool]
Log = Callable[[], contextlib.AbstractContextManager[TextIO]]  # opens it, to be added to
# of a trial that a machine fails again and again; with every new row the count begins anew
MAX_RETRIES = 3
FIRST_PAUSE_S = 1.0  # before a trial is tried again; four times as long each time
LOOK_S = 120.0  # for a look at the store from every node
FEW_LOST = 2  # so many lost while none gets on: from then on a trial is tried once more only
# trials that machines fail one after another while none gets on anywhere: then something is broken
MOST_LOST = 10


# Tune pickles its callbacks, so what ties them to the driver cannot be one of their attributes.
_events: queue.Queue[Event] = queue.Queue()
_stop = threading.Event()
_should_stop: ShouldStop | None = None
_stopped: set[str] = set()  # trials that the search has stopped: what else they tell comes too late
_rows: dict[str, int] = {}  # how far each trial got, in rows
_lost: list[str] = []  # why trials were lost since any trial got on


def run_trials(
    configs: Sequence[TrainConfig],
    store: Store,
    slug: str,
    attempt: int,
    resources: Resources,
    events: queue.Queue[Event],
    stop: threading.Event,
    log: Log,
    should_stop: ShouldStop | None = None,
) -> None:
    """Trains the given trials on Ray, once; puts an Event for every piece of news. Ray must be up
    (see `cluster`).

    Returns early, within a second or so, when `stop` is set: the trials then stand where their
    checkpoints are.

    `should_stop` may stop a running trial at its news, for a search; then the event goes on with
    status "stopped".

    A trial that dies with its worker, or that a machine fails, is tried again from its checkpoint
    in another process, after a pause: MAX_RETRIES times without a new row, then it is lost. What
    Ray and Tune print goes to `log`. Raises OSError if MOST_LOST trials are lost one after another
    and none gets on, and HeadLost if the head of the cluster (its GCS) is gone: Ray may answer
    nothing any more then, so Tune has a thread of its own.
    """
    global _events, _stop, _should_stop
    _events, _stop, _should_stop = events, stop, should_stop
    for kept in (_stopped, _rows, _lost):
        kept.clear()
    constants = {
        "store": store,
        "slug": slug,
        "attempt": attempt,
        "nonce": store.nonce(slug),
        "resources": resources,
    }
    bundles = [[(config.id, config.non_default())] for config in configs]
    amounts: dict[str, Any] = {"cpu": resources.cpus_per_trial, "gpu": resources.gpus_per_trial}
    at_once = resources.max_concurrent or None
    # its team's workers hold them, and Tune knows nothing of those
    if resources.workers_per_trial > 1:
        amounts, at_once = {"memory": 1}, _slots(resources)  # no request at all would mean a core
    trainable = tune.with_resources(train_bundle, amounts)
    # trainables of one name overwrite each other on a shared cluster
    trainable.__name__ = f"vitscale_{slug}"
    with (
        tempfile.TemporaryDirectory(prefix="vitscale-tune-", ignore_cleanup_errors=True) as scratch,
        _quiet(log),
    ):
        tuner = tune.Tuner(
            trainable,
            param_space={"bundle": tune.grid_search(bundles), "pause_s": 0.0, **constants},
            tune_config=tune.TuneConfig(
                reuse_actors=True, max_concurrent_trials=at_once, scheduler=_Judged()
            ),
            run_config=tune.RunConfig(
                name=f"attempt-{attempt}",
                storage_path=scratch,
                verbose=0,
                callbacks=[_Relay()],
                failure_config=tune.FailureConfig(max_failures=MAX_RETRIES),
                log_to_file=False,
            ),
        )
        _fit(tuner, 60.0 if resources.address else 10.0)
    if len(_lost) >= MOST_LOST:
        raise OSError(
            f"{len(_lost)} trials were lost one after another, the last one to: {_lost[-1]}"
        )


class HeadLost(OSError):
    """The head of the cluster does not answer: nothing more may be asked of Ray in this process."""


def _fit(tuner: tune.Tuner, patience_s: float) -> None:
    """Runs a Tuner in a thread of its own.

    Raises what it raises, or HeadLost after `patience_s` without the head.
    """
    raised: list[BaseException] = []

    def fit() -> None:
        try:
            with contextlib.suppress(_Stopped):
                tuner.fit()
        except BaseException as error:
            raised.append(error)

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    thread = threading.Thread(target=fit, name="tune", daemon=True)
    thread.start()
    seen = time.monotonic()
    while thread.is_alive():
        thread.join(1)
        if _answers(host, int(port)):
            seen = time.monotonic()
        elif time.monotonic() - seen > patience_s:
            raise HeadLost(f"the head of the Ray cluster (GCS at {host}:{port}) does not answer")
    if raised:
        raise raised[0]


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=2).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def cluster(
    resources: Resources,
    log: Log,
    stop: threading.Event | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Iterator[int]:
    """Connects to a Ray cluster, or starts one on this machine, and yields how many trials fit at
    once.

    One that is started here listens on the loopback alone. Raises ValueError if no trial fits: it
    would wait for ever. A cluster that begins without workers is waited for, until `stop` is set
    (see `_await_slots`): then the yield is 0.
    """
    _check_answers(resources.address)
    with _quiet(log):
        try:
            local: dict[str, Any] = (
                {} if resources.address else {"object_store_memory": 256 * 2**20}
            )
            # Ray would take the loopback for a mistake, but where it believes that there can be no
            # other node.
            ray_constants.ENABLE_RAY_CLUSTER = bool(resources.address)
            ray.init(
                address=resources.address or "local",
                include_dashboard=False if not resources.address else None,
                log_to_driver=False,
                configure_logging=False,
                **local,
            )
        except ConnectionError as error:
            raise ValueError(
                f"a Ray cluster must answer at (address={resources.address!r}): {error}"
            ) from error
    try:
        yield _await_slots(resources, stop or threading.Event(), say)
    except HeadLost:
        node = ray._private.worker._global_node
        if not resources.address and node:  # its processes would wait for their head, and train on
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        raise
    except BaseException:
        _shut_down(log)
        raise
    else:
        _shut_down(log)


def _shut_down(log: Log) -> None:
    with _quiet(log), _no_garbage():
        ray.shutdown()


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Keeps the collector, which any thread may run, from dropping references to Ray's objects
    meanwhile.

    Ray ends the process, with status 1, if one is dropped while it shuts down.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_answers(address: str) -> None:
    """Raises ValueError if nothing answers at host:port: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ValueError(
                f"a Ray cluster must answer at (address={address!r}): {error}"
            ) from error


def _await_slots(resources: Resources, stop: threading.Event, say: Callable[[str], object]) -> int:
    """`_slots`, once there are any; 0 if `stop` is set before.

    The law: where no node has any of a resource that a trial asks for (no core at all, or no GPU at
    all), a cluster that was not started here may get such nodes yet, as one that scales by itself
    begins: it is asked for them and waited for. Nodes that have it, but too little, are refused.
    """
    asked = False
    while not stop.is_set():
        try:
            slots = _slots(resources)
        except ValueError:
            if not resources.address or not _lacking(resources):
                raise
        else:
            if asked:
                request_resources(bundles=[])
            return slots
        if not asked:
            needed = {"CPU": resources.cpus_per_trial} | {
                name: 1.0 for name in ("GPU",) if resources.gpus_per_trial
            }
            request_resources(bundles=[needed] * resources.workers_per_trial)
            say(
                f"waiting for nodes: none of the cluster has a {_lacking(resources)} yet; Ctrl-C "
                "stops"
            )
            asked = True
        stop.wait(1)
    return 0


def _lacking(resources: Resources) -> str:
    """The resource that a trial asks for and of which no node
    has any, CPU or GPU; empty if there is none.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = [("CPU", resources.cpus_per_trial), ("GPU", resources.gpus_per_trial)]
    return next(
        (name for name, n in wanted if n and not any(node.get(name, 0) for node in nodes)), ""
    )


def check_shared(store: Store, slug: str) -> None:
    """Raises ValueError if a node of the cluster sees another store than the driver; names it."""
    nonce = store.nonce(slug)
    look = ray.remote(num_cpus=0, max_retries=0)(_see)
    asked = {
        look.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(store, slug, nonce): f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})"
        for node in ray.nodes()
        if node["Alive"]
    }
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_S)
    if blind := [asked[answer] for answer in answered if not _saw(answer)]:
        raise ValueError(
            "the store must be one folder that all nodes see, but got "
            f"(store={str(store.root)!r}, another one on: {', '.join(blind)})"
        )


def _see(store: Store, slug: str, nonce: str) -> bool:
    """What a node says of a store."""
    try:
        store.check_shared(slug, nonce, patience_s=30)
    except OSError:
        return False
    return True


def _saw(answer: Any) -> bool:
    """A node that is lost meanwhile is not told apart from one
    that sees the store: each claim asks again.
    """
    try:
        return ray.get(answer)
    except ray.exceptions.RayError:
        return True


def _slots(resources: Resources) -> int:
    """How many trials fit at once, node by node: a worker
    does not span nodes, a team of several may.
    """
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
            f"gpus_per_trial={resources.gpus_per_trial:g}, "
            f"workers_per_trial={resources.workers_per_trial}, cluster={total})"
        )
    return min(slots, resources.max_concurrent) if resources.max_concurrent else slots


def train_bundle(params: dict[str, Any]) -> None:
    """What a worker does with one Tune trial: trains the trials of its bundle, one after another.

    Raises OSError, and leaves no trace, where the store is not the driver's.
    """
    from vitscale.launch.worker import train_trial

    store, resources = params["store"], params["resources"]
    time.sleep(params["pause_s"])
    store.check_shared(params["slug"], params["nonce"])
    for trial_id, fields in params["bundle"]:
        for event in train_trial(
            trial_id, fields, store, params["slug"], params["attempt"], resources
        ):
            tune.report({"event": event})


class _Stopped(BaseException):
    """Raised in Tune's loop to leave it; no Exception, lest Tune handles it."""


class _Judged(FIFOScheduler):
    """Trials in the order given; a search may stop one."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        event = result.get("event")
        if _should_stop is not None and isinstance(event, Event) and _should_stop(event):
            _stopped.add(event.trial_id)
            _events.put(replace(event, status=Status.STOPPED))
            return FIFOScheduler.STOP
        return FIFOScheduler.CONTINUE


class _Relay(tune.Callback):
    """Passes news on, and leaves Tune's loop when asked to.

    Any exception in a callback aborts the whole run.
    """

    def on_step_begin(self, iteration: int, trials: list, **_: Any) -> None:
        if _stop.is_set() or len(_lost) >= MOST_LOST:
            raise _Stopped

    def on_trial_result(
        self, iteration: int, trials: list, trial: Any, result: dict, **_: Any
    ) -> None:
        if not isinstance(event := result.get("event"), Event):
            return
        if event.status in (*DONE, Status.FAILED):
            _lost.clear()
        if len(event.rows) > _rows.get(event.trial_id, 0):  # it gets on
            _rows[event.trial_id] = len(event.rows)
            _lost.clear()
            trial.max_failures = trial.num_failures + MAX_RETRIES
        if event.trial_id not in _stopped:
            _events.put(event)

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        tries = MAX_RETRIES - (trial.max_failures - trial.num_failures)
        trial.config["pause_s"] = FIRST_PAUSE_S * 4.0 ** (tries - 1) if tries > 0 else 0.0
        for trial_id, _fields in trial.config["bundle"]:
            facts = {"error": _last_line(trial), "tries": f"{tries} of {MAX_RETRIES}"}
            _events.put(Event(trial_id, "again", facts=facts))
        if len(_lost) >= FEW_LOST:
            trial.max_failures = trial.num_failures

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        for trial_id, _fields in trial.config["bundle"]:
            _lost.append(_last_line(trial))
            _events.put(Event(trial_id, "lost", facts={"error": _lost[-1]}))


def _last_line(trial: Any) -> str:
    """What a Tune trial died of last, in one line: the exception
    if a line names it, else how the worker died.
    """
    try:
        # here; what trial.get_error() reads is copied later
        told = Path(trial.error_file).read_text()
    except (OSError, TypeError):
        return "the worker died: it left no word"
    lines = [
        line.strip() for line in told.rpartition("Failure # ")[2].splitlines()[1:] if line.strip()
    ]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    if named:
        return named[-1].removeprefix("ray.exceptions.")
    how = (
        lines[-1].partition(" Some common causes")[0].rpartition("Worker exit detail: ")[2]
        if lines
        else ""
    )
    return f"the worker died: {how}"


@contextlib.contextmanager
def _quiet(log: Log) -> Iterator[None]:
    """Sends what Ray and Tune print and log from this process to a log."""
    logger = logging.getLogger("ray")
    handlers = logger.handlers
    with log() as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        logger.handlers, logger.propagate = [logging.StreamHandler(file)], False
        try:
            yield
        finally:
            logger.handlers = handlers
