"""Schedules trials on Ray Tune, which keeps no state between starts.

Each start makes a fresh Tuner over the missing trials. Which trials are done, and where the others
stopped, is in the store. Worker processes are reused between trials, so torch is imported once per
worker and not once per trial. This is the only file that imports Ray to schedule.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO, TypeVar

from vitscale.launch.faults import is_of_unknown_cause
from vitscale.launch.graceful_exit import GRACE_S, STOPS
from vitscale.launch.preflight import check_answers, check_ray_folder, clock_apart, has_token
from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_cores
from vitscale.plan.data import check_readable
from vitscale.plan.study import Study
from vitscale.record.outcome import DONE, Status
from vitscale.record.provenance import provenance
from vitscale.record.store import Store
from vitscale.record.study_files import NotShared

# Ray reads these when it is imported or when a Tuner is made.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # the driver handles signals
# a trial that a search has stopped may still be writing its checkpoint: the next one waits for that
os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", "600")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "86400")  # Tune's snapshots are not used
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
# after this time without its head, Ray ends the driver without a message
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "300")
# Ray's default niceness of 15 would starve a study on a busy machine
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray cannot be imported without a home, which a user id without a name may lack
if os.path.expanduser("~") == "~":
    os.environ["HOME"] = "/nonexistent"
# A cluster that starts where a token exists requires it, but Ray does not send the token by itself
# when a driver joins.
if has_token():
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray import tune
from ray._private import ray_constants
from ray._private.services import get_ray_address_from_environment
from ray._private.state import actors
from ray.experimental.internal_kv import _internal_kv_put
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.util.placement_group import (
    PlacementGroup,
    PlacementGroupID,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

T = TypeVar("T")
ShouldStop = Callable[[Event], bool]
Log = Callable[[], contextlib.AbstractContextManager[TextIO]]  # opens the log for appending
# retries of a trial after machine failures; what it trains meanwhile resets the count
MAX_RETRIES = 3
FIRST_PAUSE_S = 1.0  # before the first retry; four times as long before each further one
CHECK_STORE_S = 120.0  # time for all nodes to answer what they have
# trials lost in a row, while none makes progress, after which each trial is retried only once
LOST_BEFORE_ONE_RETRY = 2
# trials lost in a row, while none makes progress, after which the start ends: something is broken
MAX_LOST = 10
# failures of a trial on a node, without progress between them, after which it avoids the node
MAX_ON_A_NODE = 2
# If as many trials failed on a node since any made progress there, each that fails avoids it.
MAX_TRIALS_ON_A_NODE = 3
# nodes on which a trial may fail without its retries being fewer, while it has others to go to
MAX_NODES = 3
NODE_ID = "ray.io/node-id"  # the label of a node that Ray sets
LOOK_S = 5.0  # how often trials that avoid nodes are looked at


# Tune pickles its callbacks, so their links to the driver cannot be attributes.
_events: queue.Queue[Event] = queue.Queue()
_stop = threading.Event()
_should_stop: ShouldStop | None = None
_have_ended: Callable[[Collection[Any]], bool] | None = None  # for teams, as _last_steps
_look_after_teams: Callable[[Collection[Any]], None] | None = None  # as _looking
_stopped: set[str] = set()  # trials that the search has stopped: their later events are dropped
_begun: set[str] = set()  # trials that have reported since they were last begun
_rows: dict[str, int] = {}  # number of rows of each trial so far
_from_step: dict[str, int] = {}  # the step from which each trial was last begun
_lost: list[str] = []  # errors of the trials lost since any trial made progress
_places: _Places | None = None  # where trials fail; on a cluster only
_unready: set[str] = set()  # Tune's trials that failed before their process took them
_told: set[str] = set()  # Tune's trials whose loss was told
_anew: set[str] = set()  # trials that the driver begins anew: Tune gave them up without a try
# how often it did, since they made progress; unlike the others, kept from one run to the next
_times_anew: Counter[str] = Counter()
_in_run: set[str] = set()  # the trials of this run
_done: set[str] = set()  # those of them that have a result
_of_trial: dict[str, set[str]] = {}  # Tune's trial -> its trials


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
    pins: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> set[str]:
    """Trains the given trials on Ray, once, and puts their Events into `events`.

    `pins`: trial id -> the steps at which it keeps its state for trials that start there.

    Ray must be initialized (see `cluster`). Returns early, within about a second, when `stop` is
    set; interrupted trials resume from their checkpoints. Trials of several workers save first,
    for which they have GRACE_S.

    For a search, `should_stop` is asked at each event of a running trial whether to stop it; if so,
    the event is passed on with the status "stopped".

    A trial whose worker dies, or that a machine fails, is retried from its checkpoint in another
    process, after a pause: up to MAX_RETRIES times without a new row, and without a checkpoint of a
    later step, after which it is lost. Once it has failed on a node twice so, another node of a
    cluster retries it, if there is one, and after failures of MAX_TRIALS_ON_A_NODE trials there
    each trial that fails avoids it. Returns the trials that another run must begin: those that wait
    for nodes that have left, those behind them in the queue, and those that Tune gave up without a
    try. The output of Ray and Tune goes to `log`. Raises
    OSError if MAX_LOST trials are lost in a row while no other trial makes progress, and HeadLost
    if the head of the cluster (its GCS) is gone. Ray may then never answer again, so Tune runs in a
    thread of its own.
    """
    global _events, _stop, _should_stop, _have_ended, _look_after_teams, _places
    _events, _stop, _should_stop = events, stop, should_stop
    nonce, in_teams = store.nonce(slug), resources.workers_per_trial > 1
    _have_ended = _last_steps(nonce) if in_teams else None
    for state in (_stopped, _begun, _rows, _from_step, _lost, _unready, _told, _anew, _done):
        state.clear()
    _in_run.clear()
    _in_run.update(config.id for config in configs)
    _of_trial.clear()
    # Ray Train places the workers of a team
    _places = _Places(resources) if resources.address and not in_teams else None
    constants = {
        "store": store,
        "slug": slug,
        "attempt": attempt,
        "nonce": nonce,
        "resources": resources,
    }
    bundles = [
        [(config.id, config.non_default(), sorted(pins.get(config.id, ())))] for config in configs
    ]
    amounts: dict[str, Any] = {"cpu": resources.cpus_per_trial, "gpu": resources.gpus_per_trial}
    amounts |= resources.placement()
    _Queue.most = resources.max_concurrent or 0
    # The workers of a team hold the cores and GPUs, of which Tune knows nothing. One byte of memory
    # represents the trial itself: without any request, Tune would ask for a core.
    if in_teams:
        amounts, _Queue.most = {"memory": 1}, 1
        with contextlib.suppress(ValueError):  # nodes have left: one team waits for others
            _Queue.most = _slots(resources)
    trainable = tune.with_resources(train_bundle, amounts)
    trainable.__mixins__ = (_Leader,) if in_teams else ()
    # trainables of the same name would overwrite each other on a shared cluster
    trainable.__name__ = f"vitscale_{slug}"
    with (
        tempfile.TemporaryDirectory(prefix="vitscale-tune-", ignore_cleanup_errors=True) as scratch,
        _quiet(log),
        _looking(resources, len(configs))
        if in_teams
        else contextlib.nullcontext() as _look_after_teams,
    ):
        tuner = tune.Tuner(
            trainable,
            param_space={"bundle": tune.grid_search(bundles), "pause_s": 0.0, **constants},
            tune_config=tune.TuneConfig(
                # the leader of a team that a search stops waits for its workers
                reuse_actors=not in_teams,
                search_alg=_Queue(),
                scheduler=_Scheduler(),
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
        _watched(lambda: _fit(tuner), resources)
    if len(_lost) >= MAX_LOST:
        raise OSError(
            f"{len(_lost)} trials were lost one after another, the last one to: {_lost[-1]}"
        )
    if _places is not None and _places.is_stuck:
        return {config.id for config in configs} - _places.ended | _anew
    return set(_anew)


def _last_steps(nonce: str) -> Callable[[Collection[Any]], bool]:
    """Whether all trials of Tune whose workers ran when this was first asked have ended, or GRACE_S
    are over since. Teams that wait for nodes, or begin, have nothing to save.
    """
    asked_s: list[float] = []
    running: list[Any] = []

    def have_ended(trials: Collection[Any]) -> bool:
        if not asked_s:
            _stop_teams(nonce)
            asked_s.append(time.monotonic())
            running.extend(trial for trial in trials if _ids(trial) & _begun)
            for trial in trials:
                trial.max_failures = trial.num_failures  # an ended one is not tried again
        running[:] = [trial for trial in running if trial.status == Trial.RUNNING]
        is_late = time.monotonic() - asked_s[0] > GRACE_S
        return is_late or not running

    return have_ended


@contextlib.contextmanager
def _looking(resources: Resources, num_trials: int) -> Iterator[Callable[[Collection[Any]], None]]:
    """A function of Tune's trials that, every two seconds, counts how many teams fit on the
    cluster, which may have grown; asks it for nodes for one more, if there is a trial for it; and
    removes the placement groups of this job whose creators have died: what the workers of a team
    held whose controller was killed. Ray keeps them until the end of the job, and the next team
    would wait for ever.
    """
    from ray._private.state import state
    from ray.core.generated import gcs_pb2

    Group: Any = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
    own, asked_s = ray.get_runtime_context().get_job_id(), time.monotonic()
    most = min(num_trials, resources.max_concurrent or num_trials)  # teams at once
    demand: list[PlacementGroup] = []  # for one more team; Tune's own trials ask for nothing

    def is_driver(group: Any) -> bool:
        """Whether Tune has made it, and no actor, which Ray calls dead, too."""
        return not group.creator_actor_id.strip(b"\xff")

    def ask_for_nodes(num_ended: int) -> None:
        """A demand that is met makes place for the team: it may be of a node that has come, or of
        a team that has ended.
        """
        more = resources.address and min(most, num_trials - num_ended) > _Queue.most
        if demand and (not more or demand[0].wait(0)):
            remove_placement_group(demand.pop())
        elif more and not demand:
            demand.append(_ask_for_nodes(resources))

    def look(trials: Collection[Any]) -> None:
        nonlocal asked_s
        if time.monotonic() - asked_s < 2.0:
            return
        asked_s = time.monotonic()
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # nothing fits any more
            _Queue.most = _slots(resources)
        with contextlib.suppress(ray.exceptions.RayError):
            ask_for_nodes(sum(trial.is_finished() for trial in trials))
            for text in state._connect_and_get_accessor().get_placement_group_table():
                group = Group.FromString(text)
                is_of_team = group.creator_job_id.hex() == own and not is_driver(group)
                if is_of_team and group.creator_actor_dead and group.state != Group.REMOVED:
                    found = PlacementGroupID(group.placement_group_id)
                    remove_placement_group(PlacementGroup(found))

    try:
        yield look
    except HeadLost:  # nobody answers
        demand.clear()
        raise
    finally:
        for group in demand:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(group)


def _stop_teams(nonce: str) -> None:
    """Lets the teams of a driver save and end. Ray would kill them: it ends the process that leads
    a team, and its workers with that one. The key stays: each start has a nonce of its own.
    """
    with contextlib.suppress(ray.exceptions.RayError):  # without a head, nothing is left to stop
        _internal_kv_put(nonce.encode(), b"stop", namespace=STOPS)


class HeadLost(OSError):
    """The head of the cluster, or the only node of a local one, does not answer: this process must
    not call Ray any more.
    """


def _fit(tuner: tune.Tuner) -> None:
    with contextlib.suppress(_Stopped):
        tuner.fit()


def _watched(ask: Callable[[], T], resources: Resources) -> T:
    """What a function gives that asks Ray, in a thread of its own: it may never answer.

    Raises the function's exception, or HeadLost after a while without the head, or without the only
    node of a cluster that was started for the study: Tune would wait for another one.
    """
    patience_s, is_local = 60.0 if resources.address else 10.0, not resources.address
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(ask())
        except BaseException as error:
            raised.append(error)

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    silent = f"the head of the Ray cluster (GCS at {host}:{port}) does not answer"
    thread = threading.Thread(target=run, name="asks Ray", daemon=True)
    thread.start()
    seen = time.monotonic()
    while thread.is_alive():
        thread.join(1)
        if not _answers(host, int(port)):
            lost = silent
        elif is_local and _is_raylet_gone():
            lost = "the only node of the Ray cluster (its raylet) has ended"
        else:
            seen = time.monotonic()
        if time.monotonic() - seen > patience_s:
            raise HeadLost(lost)
    if raised:
        # without a head: the cause of what Ray raised, and nothing may be asked any more
        if not isinstance(raised[0], ValueError) and not _answers(host, int(port)):
            raise HeadLost(silent) from raised[0]
        raise raised[0]
    return found[0]


def _is_raylet_gone() -> bool:
    """Whether the raylet that this process has started has ended."""
    node = ray._private.worker._global_node
    return node is not None and any(name == "raylet" for name, _ in node.dead_processes())


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=2).close()
    except OSError:
        return False
    return True


def check_cluster(address: str) -> None:
    """Raises ValueError if no Ray answers at host:port or, for auto, where Ray would look."""
    if address == "auto":
        try:
            address = get_ray_address_from_environment(address, None)
        except ConnectionError as error:
            raise ValueError(
                "a Ray cluster must run on this machine, but got none (address='auto'): start one "
                "by `ray start --head`, name another one's, or leave --address out"
            ) from error
    check_answers(address)


@contextlib.contextmanager
def cluster(
    resources: Resources,
    log: Log,
    stop: threading.Event | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Iterator[int]:
    """Connects to a Ray cluster, or starts one here, and yields the number of trials at once.

    A cluster started here listens on the loopback interface only. Raises ValueError if no trial
    fits, which would wait forever. A cluster that has no workers yet is waited for (see
    `_await_slots`); if `stop` is set meanwhile, 0 is yielded.
    """
    if resources.address:
        check_cluster(resources.address)
    joining = _library_errors() if resources.address else contextlib.nullcontext(str)
    with _quiet(log), _own_handler(), joining as said:
        try:
            local = {} if resources.address else _local()
            # Ray replaces the loopback address unless it believes that there can be no other node.
            ray_constants.ENABLE_RAY_CLUSTER = bool(resources.address)
            ray.init(
                address=resources.address or "local",
                include_dashboard=False if not resources.address else None,
                log_to_driver=False,
                configure_logging=False,
                **local,
            )
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            if not resources.address:  # nothing that another command would mend
                raise
            raise ValueError(_not_joined(resources.address, error, said())) from error
    told = stop or threading.Event()
    try:
        yield _watched(lambda: _await_slots(resources, told, report), resources)
    except HeadLost:
        node = ray._private.worker._global_node
        if not resources.address and node:  # its processes would keep training without their head
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        raise
    except BaseException:
        _shut_down(log)
        raise
    else:
        _shut_down(log)


def _local() -> dict[str, Any]:
    """How to start a cluster here. Without a token it gets one of its own: Ray would write one to
    the home of the user, which may be read-only, or none.
    """
    if not has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {
        "object_store_memory": 256 * 2**20,
        "num_cpus": num_cores(),
        "_temp_dir": str(check_ray_folder()),
    }


@contextlib.contextmanager
def _library_errors() -> Iterator[Callable[[], str]]:
    """Sends what libraries in C++ write to the process's stderr to that of Python, once a block has
    ended; yields what gives it until then.
    """
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:

        def said() -> str:
            return os.pread(file.fileno(), 2**20, 0).decode(errors="replace")

        with contextlib.suppress(OSError):  # this process may have none
            before = os.dup(2)
            stack.callback(lambda: sys.stderr.write(said()))
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, 2)
            os.dup2(file.fileno(), 2)
        yield said


def _not_joined(address: str, error: Exception, said: str) -> str:
    """Why this process could not join a cluster, in one line. `said`: what Ray wrote meanwhile."""
    text = " ".join(str(error).split())
    if text.startswith("Version mismatch: "):
        law = "a driver must have the versions of Ray and Python that its cluster has"
    elif isinstance(error, ray.exceptions.AuthenticationError) or "AuthToken" in said:
        law = "a driver must have the token of its cluster (RAY_AUTH_TOKEN, ~/.ray/auth_token)"
    else:
        law = "a Ray cluster must answer"
    return f"{law}, but got (address={address!r}): {text}"


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Keeps this process's handler of SIGTERM, which ray.init replaces in the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _shut_down(log: Log) -> None:
    with _quiet(log), _no_garbage():
        ray.shutdown()


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Keeps the garbage collector from dropping references to Ray objects.

    Ray ends the process with status 1 if one is dropped, in any thread, while Ray shuts down.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _await_slots(
    resources: Resources, stop: threading.Event, report: Callable[[str], object]
) -> int:
    """Waits until at least one trial fits, and returns `_slots`; 0 if `stop` is set before.

    A cluster that was not started here may scale by itself. If something is lacking that further
    nodes may bring (see `_lacking`), it is asked for such nodes, and they are waited for. Raises
    ValueError if they have not come by `cluster_timeout_s`, or if nodes have what a trial needs,
    but too little of it.
    """
    said, began_s, asked = "", time.monotonic(), None
    try:
        while not stop.is_set():
            nodes = ray.nodes()
            try:
                return _slots(resources, nodes)
            except ValueError:
                if not resources.address or not (lacking := _lacking(resources, nodes)):
                    raise
            if asked is None:
                asked = _ask_for_nodes(resources)
            if said != lacking:
                said = lacking
                report(
                    f"waiting for nodes, at most {resources.cluster_timeout_s:g} s "
                    f"(--cluster-timeout-s): {lacking} yet; Ctrl-C stops"
                )
            if time.monotonic() - began_s >= resources.cluster_timeout_s:
                raise ValueError(
                    "nodes on which a trial fits must join the cluster in time, but got "
                    f"(cluster_timeout_s={resources.cluster_timeout_s:g}, {lacking}); "
                    "the same command waits again"
                )
            stop.wait(1)
        return 0
    finally:
        if asked is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(asked)


def _ask_for_nodes(resources: Resources) -> PlacementGroup:
    """What the workers of one trial need, as a demand that a cluster which scales by itself sees.

    Unlike Ray's request_resources, of which a cluster has one, it adds to that of other drivers,
    and ends with this one.
    """
    needed = {"CPU": resources.cpus_per_trial} | resources.placement()
    if resources.gpus_per_trial:
        needed["GPU"] = resources.gpus_per_trial
    return placement_group([needed] * resources.workers_per_trial)


def _lacking(resources: Resources, nodes: Sequence[Mapping[str, Any]]) -> str:
    """What the cluster lacks that further nodes may bring: a resource that no node has, any node
    but the head, or nodes for all workers of a team. Empty if nodes are too small for a trial.
    """
    nodes = [node for node in nodes if node["Alive"]]
    wanted = [
        ("CPU", resources.cpus_per_trial),
        ("GPU", resources.gpus_per_trial),
        *resources.placement().items(),
    ]
    for name, amount in wanted:
        if amount and not any(node["Resources"].get(name, 0) for node in nodes):
            return f"none of the cluster has a {name}"
    num, fit = resources.workers_per_trial, sum(_workers_on(node, resources) for node in nodes)
    if fit:
        return f"the cluster has place for {fit} of {num} workers of a trial" if fit < num else ""
    is_head_alone = all("node:__internal_head__" in node["Resources"] for node in nodes)
    return "no trial fits on the head, and no other node is there" if is_head_alone else ""


def awaited(resources: Resources) -> str:
    """What a cluster that has shrunk lacks, so that trials wait; empty if one fits, and where Ray
    was started for the study, whose only node cannot leave.
    """

    def ask() -> str:
        nodes = ray.nodes()
        try:
            _slots(resources, nodes)
        except ValueError as refusal:
            return _lacking(resources, nodes) or str(refusal)
        return ""

    return _watched(ask, resources) if resources.address else ""


def check_nodes(store: Store, study: Study, resources: Resources) -> list[str]:
    """Raises ValueError naming nodes of the cluster on which trials would fail.

    They see another store than the driver; or a trial fits on them, and they lack vitscale or a
    dataset; or a team may be led from them, which any node may do, and they lack vitscale or cannot
    read the store. Returns warnings: of nodes on which a trial fits and that have not answered in
    time, and of nodes whose clocks differ from the store's. Raises HeadLost.
    """
    return _watched(lambda: _check_nodes(store, study, resources), resources)


def _check_nodes(store: Store, study: Study, resources: Resources) -> list[str]:
    configs = [trial.config for trial in study.trials]
    datasets = sorted({config.dataset for config in configs if config.reads_images})
    asked = (store, study.slug, store.nonce(study.slug), datasets, resources.data_root)
    used = {_label(node) for node in ray.nodes() if _workers_on(node, resources)}
    answers = ask_nodes(_see, *asked, timeout_s=CHECK_STORE_S)
    # a node that was lost meanwhile is not blind, since each claim checks again
    seen = {node: saw for node, saw in answers.items() if isinstance(saw, Sight)}
    if blind := [node for node, saw in seen.items() if not saw.store]:
        raise ValueError(
            "the store must be one folder that all nodes see, but got "
            f"(store={str(store.root)!r}, another one on: {', '.join(blind)})"
        )
    lacking = {node for node, saw in seen.items() if saw.lacks_data}
    leading = answers.keys() - lacking if resources.workers_per_trial > 1 else set()
    failed = [
        (node, why)
        for node, saw in answers.items()
        if (why := _why(saw)) and node in used | leading
    ]
    if failed:
        node, why = failed[0]
        more = f", and {len(failed) - 1} more nodes" if failed[1:] else ""
        raise ValueError(
            f"each node must have what a trial needs, but got ({node}: {why}{more}); "
            "`vitscale doctor --address` asks all nodes"
        )
    silent = (
        f"{node} did not answer whether it sees the store and the data; a trial there waits until "
        "it does"
        for node in sorted(used - answers.keys())
    )
    apart = [
        clock_apart(f"of {node}", saw.clock_ahead_s, store.in_bucket and node in used | leading)
        for node, saw in seen.items()
    ]
    return [*silent, *filter(None, apart), *_of_other_code(answers, used)]


def _of_other_code(answers: Mapping[str, Any], used: Collection[str]) -> Iterator[str]:
    """A warning of nodes whose trials would be of other code, or other packages, than the driver's.
    One of another version may not even answer as this one asks.
    """
    here = _code()
    codes: dict[str, str] = {}
    for node, saw in answers.items():
        if node in used and not isinstance(saw, ray.exceptions.RayError):
            code = saw.code if isinstance(saw, Sight) else "another version of vitscale"
            codes |= {node: code} if code not in ("", here) else {}
    if codes:
        node, code = next(iter(codes.items()))
        more = f", and {len(codes) - 1} more nodes" if codes.keys() - {node} else ""
        yield f"{node}{more} will train with other code or packages ({code}; here: {here})"


class Sight(NamedTuple):
    """What a node sees of what trials need."""

    store: bool = True  # the driver's, and not another one
    reason: str = ""  # why it cannot read the store or a dataset, in one line
    lacks_data: bool = False  # a dataset, which it needs only where trials fit
    clock_ahead_s: float = 0.0  # of the store's
    code: str = ""  # the commit of vitscale, and versions of packages


def _why(answer: Sight | ray.exceptions.RayError) -> str:
    """Why a node is of no use, in one line; empty if it is, or if it was lost meanwhile."""
    if isinstance(answer, ray.exceptions.RayTaskError):
        return str(answer).strip().splitlines()[-1]
    return answer.reason if isinstance(answer, Sight) else ""


def ask_nodes(
    question: Callable[..., T], *arguments: Any, timeout_s: float
) -> dict[str, T | ray.exceptions.RayError]:
    """Node -> the answer of a function that runs on each node of the cluster, or how it failed.

    Nodes that do not answer in time are left out.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(question)
    nodes = {
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(*arguments): _label(node)
        for node in ray.nodes()
        if node["Alive"]
    }
    answers, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=timeout_s)
    return {nodes[answer]: _answer(answer) for answer in answers}


def _label(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})"


def _answer(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except ray.exceptions.RayError as error:
        return error


def resources_of_nodes() -> list[str]:
    """One line per node of the cluster: its address, cores, GPUs with their type, memory."""
    lines = []
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            gpus = f"{has.get('GPU', 0):g} GPUs{''.join(f' {kind}' for kind in _types(has))}"
            memory = f"{has.get('memory', 0) / 2**30:.0f} GiB"
            lines.append(
                f"{node['NodeManagerAddress']} {has.get('CPU', 0):g} cores, {gpus}, {memory}"
            )
    return lines


def _see(store: Store, slug: str, nonce: str, datasets: Sequence[str], data_root: str) -> Sight:
    """Runs on a node; the driver waits for CHECK_STORE_S."""
    store = store.impatient()
    try:
        store.check_shared(slug, nonce, patience_s=30)
    except NotShared:
        return Sight(store=False)
    except OSError as error:  # a bucket, say, without credentials there
        return Sight(reason=f"it cannot read the store: {error}")
    try:  # what a worker writes first: nodes may run as another user
        store.check_permitted(slug)
        store.check_trials_writable()
    except (OSError, ValueError) as error:
        return Sight(reason=f"it cannot write to the store: {error}")
    try:
        for dataset in datasets:
            check_readable(dataset, data_root)
    except ValueError as error:
        return Sight(reason=str(error), lacks_data=True)
    return Sight(clock_ahead_s=store.clock_ahead_s(slug), code=_code())


def _code() -> str:
    """What decides the numbers of a trial, beside its config and device."""
    found = provenance()
    return f"commit {found['commit'] or 'unknown'}; {found['versions']}"


def _slots(resources: Resources, nodes: Sequence[Mapping[str, Any]] | None = None) -> int:
    """How many trials fit at once, on the nodes of the cluster or on given ones.

    Each worker must fit on one node; the workers of a team may be on several. Raises ValueError if
    no trial fits.
    """
    nodes = ray.nodes() if nodes is None else nodes
    slots = sum(_workers_on(node, resources) for node in nodes)
    slots //= resources.workers_per_trial
    if slots == 0:
        total = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        raise ValueError(
            f"a trial must fit on a node, but got (cpus_per_trial={resources.cpus_per_trial:g}, "
            f"gpus_per_trial={resources.gpus_per_trial:g}, "
            f"workers_per_trial={resources.workers_per_trial}, "
            f"accelerator_type={resources.accelerator_type!r}, cluster={total})"
        )
    return min(slots, resources.max_concurrent) if resources.max_concurrent else slots


def _workers_on(node: Mapping[str, Any], resources: Resources) -> int:
    """How many workers of trials fit on a node."""
    has = node["Resources"]
    if not node["Alive"] or not resources.placement().keys() <= has.keys():
        return 0
    num = int(has.get("CPU", 0) / resources.cpus_per_trial + 1e-9)
    if resources.gpus_per_trial:
        num = min(num, _on_gpus(has.get("GPU", 0), resources.gpus_per_trial))
    return num


def _on_gpus(num_gpus: float, share: float) -> int:
    """How many workers the GPUs of a node take: one that needs a part of a GPU gets it from one."""
    if share < 1:
        return int(num_gpus) * int(1 / share + 1e-9)
    return int(num_gpus / share + 1e-9)


def kinds_of_gpus(resources: Resources) -> list[str]:
    """The types of GPUs that nodes of the cluster have, by Ray's names. Raises HeadLost."""
    found = set()
    for node in _watched(ray.nodes, resources):
        if node["Alive"] and node["Resources"].get("GPU", 0):
            found |= set(_types(node["Resources"])) or {"of no name"}
    return sorted(found)


def _types(has: Mapping[str, float]) -> list[str]:
    return [name.partition(":")[2] for name in has if name.startswith("accelerator_type:")]


def train_bundle(params: dict[str, Any]) -> None:
    """Runs one Tune trial on a worker: trains the trials of its bundle, one after another.

    Raises OSError, before it writes anything, if the worker's store is not the driver's.
    """
    from vitscale.launch.worker import train_trial

    store, resources = params["store"], params["resources"]
    time.sleep(params["pause_s"])
    store.check_shared(params["slug"], params["nonce"])
    for trial_id, fields, pins in params["bundle"]:
        for event in train_trial(
            trial_id, fields, store, params["slug"], params["attempt"], resources, pins
        ):
            tune.report({"event": event})


class _Leader:
    """A mixin of Tune's trainable: SIGTERM does not end the leader of a team at once."""

    def setup(self, config: dict[str, Any]) -> None:  # in the main thread
        from vitscale.launch.ray_team import hold_sigterm

        hold_sigterm()
        super().setup(config)  # type: ignore[misc]


class _Queue(BasicVariantGenerator):
    """Begins a trial once what it needs is done, and `most` at once: of teams as many as there is
    place for now, since Tune does not know what a team takes.
    """

    most = 0  # no limit but the resources

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []  # trials that wait for others

    def next_trial(self) -> Any:
        self.max_concurrent = self.most + len(self.held) if self.most else 0
        for place, trial in enumerate(self.held):
            if not self._waits(trial) and self._has_place():
                return self.held.pop(place)
        while (trial := super().next_trial()) is not None and self._waits(trial):
            self.held.append(trial)
            self.max_concurrent += bool(self.most)
        return trial

    def is_finished(self) -> bool:
        """Not while a trial waits for one that runs; one whose parent has failed waits for none."""
        return super().is_finished() and not any(map(self._may_begin, self.held))

    def _has_place(self) -> bool:
        begun = len(self._live_trials) - len(self.held)
        return not self.most or begun < self.most

    def _waits(self, trial: Any) -> bool:
        return not _needs(trial) <= _done

    def _may_begin(self, trial: Any) -> bool:
        held = {one.trial_id for one in self.held}
        runs = set().union(*(_of_trial.get(i, set()) for i in self._live_trials - held))
        return _needs(trial) <= _done | runs


def _needs(trial: Any) -> set[str]:
    """Ids of the trainings of this run that must be done before Tune's trial begins."""
    _of_trial[trial.trial_id] = _ids(trial)
    fields = [bundle[1] for bundle in trial.config["bundle"]]
    starts = {of.get(name, "") for of in fields for name in ("trunk", "init_from")}
    return starts & _in_run


class _Stopped(BaseException):
    """Raised to leave Tune's loop: a BaseException, so that Tune does not catch it."""


class _Scheduler(FIFOScheduler):
    """First in, first out; a search may stop a running trial, and trials avoid nodes."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        event = result.get("event")
        if _should_stop is not None and isinstance(event, Event) and _should_stop(event):
            _stopped.add(event.trial_id)
            _events.put(replace(event, status=Status.STOPPED))
            return FIFOScheduler.STOP
        return FIFOScheduler.CONTINUE

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Before the trial is queued again, if it is: only now may what it requests change.

        Where the process that takes it from the trial before has died, Tune counts two failures,
        the second one of a pending trial, and gives it up.
        """
        if trial.status == Trial.PENDING:
            _unready.add(trial.trial_id)
        if _places is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                _places.note_failure(trial)


class _Places:
    """Where the trials of one run fail, so that others of a cluster's nodes retry them."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.is_stuck = False
        self.ended: set[str] = set()  # trials, once it is stuck
        # by Tune's trial:
        self.actors: dict[str, str] = {}  # that last ran it
        self.names: dict[str, str] = {}  # of the node on which it last failed
        self.failures: dict[str, Counter[str]] = {}  # by node, since it made progress
        self.avoided: dict[str, set[str]] = {}  # nodes that its next try avoids
        self.nodes: dict[str, str] = {}  # of actors that made progress
        # node -> Tune's trials that failed there before they made progress, since any did
        self.on_node: dict[str, set[str]] = {}
        self.looked_s = time.monotonic()

    def fitting(self) -> set[str]:
        """The nodes there are on which a trial fits."""
        return {node["NodeID"] for node in ray.nodes() if _workers_on(node, self.resources)}

    def note_progress(self, trial: Any) -> None:
        """A trial gets on, and so does its node."""
        self.failures.pop(trial.trial_id, None)
        if actor := self.actors.get(trial.trial_id):
            if actor not in self.nodes and (facts := actors(actor)):
                self.nodes[actor] = facts["Address"]["NodeID"]
            self.on_node.pop(self.nodes.get(actor, ""), None)

    def note_failure(self, trial: Any) -> None:
        """Where one has failed MAX_ON_A_NODE times, or once of unknown cause, or where several have
        and none got on, its next try is elsewhere, if it can be.
        """
        self.names.pop(trial.trial_id, None)
        # none is known where its process has not begun
        actor = self.actors.pop(trial.trial_id, "") or _actor_of(trial)
        if not actor or not (facts := actors(actor)) or not facts["Address"]["NodeID"]:
            return
        node, address = facts["Address"]["NodeID"], facts["Address"]["IPAddress"]
        self.names[trial.trial_id] = _label({"NodeID": node, "NodeManagerAddress": address})
        failures = self.failures.setdefault(trial.trial_id, Counter())
        failures[node] += 1
        if actor not in self.nodes:  # else the node worked, and may have lost all its workers once
            self.on_node.setdefault(node, set()).add(trial.trial_id)
        if trial.status != Trial.ERROR:  # it is not queued again
            return
        # a second one of unknown cause is the config's, unless it is of the same node
        most = 1 if is_of_unknown_cause(_last_line(trial)) else MAX_ON_A_NODE
        bad = {node for node, times in failures.items() if times >= most}
        bad |= {n for n, trials in self.on_node.items() if len(trials) >= MAX_TRIALS_ON_A_NODE}
        bad = bad if self.fitting() - bad else set()
        self.avoided[trial.trial_id] = bad
        labels = [{NODE_ID: f"!in({','.join(sorted(bad))})"}]
        which: dict[str, Any] = {"bundle_label_selector": labels} if bad else {}
        bundles = trial.placement_group_factory.bundles
        trial.update_resources(tune.PlacementGroupFactory(bundles, **which))

    def gives_more(self, trial: Any) -> bool:
        """Whether a trial that has just failed has another node to try, and has not tried many."""
        failures = self.failures.get(trial.trial_id, ())
        return bool(self.avoided.get(trial.trial_id)) and len(failures) <= MAX_NODES

    def look(self, trials: Collection[Any]) -> None:
        """Notes that no trial runs or can, since each avoids all nodes that are left. Without any
        node, they wait for one to come.
        """
        if time.monotonic() - self.looked_s < LOOK_S:
            return
        self.looked_s = time.monotonic()
        waiting = [trial for trial in trials if not trial.is_finished()]
        if waiting and all(
            trial.status == Trial.PENDING and self.avoided.get(trial.trial_id) for trial in waiting
        ):
            nodes = self.fitting()
            self.is_stuck = bool(nodes) and all(
                nodes <= self.avoided[trial.trial_id] for trial in waiting
            )
            ended = [_ids(trial) for trial in trials if trial.is_finished()]
            self.ended = set().union(*ended)


class _Relay(tune.Callback):
    """Passes events to the driver, and leaves Tune's loop when asked to.

    Any exception in a callback aborts the whole run.
    """

    def on_step_begin(self, iteration: int, trials: list, **_: Any) -> None:
        if len(_lost) >= MAX_LOST:
            raise _Stopped
        if _stop.is_set() and (_have_ended is None or _have_ended(trials)):
            raise _Stopped
        if _look_after_teams is not None:
            _look_after_teams(trials)
        if _places is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                _places.look(trials)
            if _places.is_stuck:
                raise _Stopped

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        if _places is not None:
            _places.actors[trial.trial_id] = trial.temporary_state.ray_actor._actor_id.hex()

    def on_trial_result(
        self, iteration: int, trials: list, trial: Any, result: dict, **_: Any
    ) -> None:
        if not isinstance(event := result.get("event"), Event):
            return
        _begun.add(event.trial_id)
        if event.status in (*DONE, Status.FAILED):
            _lost.clear()
        if event.status in DONE:
            _done.add(event.trial_id)
        is_further = event.from_step > _from_step.setdefault(event.trial_id, event.from_step)
        if is_further or len(event.rows) > _rows.get(event.trial_id, 0):  # it makes progress
            _rows[event.trial_id] = max(len(event.rows), _rows.get(event.trial_id, 0))
            _from_step[event.trial_id] = max(event.from_step, _from_step[event.trial_id])
            _lost.clear()
            trial.max_failures = trial.num_failures + MAX_RETRIES
            _times_anew.pop(event.trial_id, None)
            if _places is not None:
                with contextlib.suppress(ray.exceptions.RayError):
                    _places.note_progress(trial)
        if event.trial_id not in _stopped:
            _events.put(event)

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        if _stop.is_set():
            return
        _begun.difference_update(_ids(trial))
        tries = MAX_RETRIES - (trial.max_failures - trial.num_failures)
        trial.config["pause_s"] = FIRST_PAUSE_S * 4.0 ** (tries - 1) if tries > 0 else 0.0
        for trial_id in _ids(trial):
            facts = _failure(trial) | {"tries": f"{tries} of {MAX_RETRIES}"}
            _events.put(Event(trial_id, "again", facts=facts))
        if _places is not None and _places.gives_more(trial):
            # what was tried on nodes that are avoided now does not count
            trial.max_failures = trial.num_failures + MAX_RETRIES
        elif len(_lost) >= LOST_BEFORE_ONE_RETRY:
            trial.max_failures = trial.num_failures

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        if _stop.is_set():
            return
        _told.add(trial.trial_id)
        if trial.trial_id in _unready and self.begins_anew(trial):
            return
        for trial_id in _ids(trial):
            facts = _failure(trial)
            _lost.append(facts["error"])
            _events.put(Event(trial_id, "lost", facts=facts))

    def on_experiment_end(self, trials: list, **_: Any) -> None:
        """Tune gives a trial up in silence whose worker does not get free of the one before."""
        for trial in trials:
            silent = trial.status == Trial.ERROR and trial.trial_id not in _told
            if silent and not _stop.is_set() and not self.begins_anew(trial):
                for trial_id in _ids(trial):
                    _events.put(Event(trial_id, "lost", facts=_failure(trial)))

    def begins_anew(self, trial: Any) -> bool:
        """Leaves the trials of Tune's to the driver, which begins them in another run; False if it
        has done so too often.
        """
        ids = _ids(trial)
        if max(_times_anew[trial_id] for trial_id in ids) >= MAX_RETRIES:
            return False
        _times_anew.update(ids)
        _anew.update(ids)
        for trial_id in ids:
            tries = f"{_times_anew[trial_id]} of {MAX_RETRIES}"
            _events.put(Event(trial_id, "again", facts=_failure(trial) | {"tries": tries}))
        return True


def _actor_of(trial: Any) -> str:
    """The actor whose process has died, from the last failure of a Tune trial; empty if it names
    none.
    """
    found = re.search(r"actor_id[=:] ?([0-9a-f]{32})\b", _last_failure(trial))
    return found[1] if found else ""


def _failure(trial: Any) -> dict[str, str]:
    """The last failure of a Tune trial, and on which node of a cluster it was."""
    facts = {"error": _last_line(trial)}
    if _places is not None:
        if node := _places.names.get(trial.trial_id):
            facts["node"] = node
        if _places.avoided.get(trial.trial_id):
            facts["elsewhere"] = "yes"
    return facts


def _ids(trial: Any) -> set[str]:
    """The trials of a Tune trial."""
    return {trial_id for trial_id, *_ in trial.config["bundle"]}


def _last_failure(trial: Any) -> str:
    """What Tune wrote of the last failure of a trial of its own; empty if it could not."""
    try:
        # the original; trial.get_error() reads a copy that is made later
        return Path(trial.error_file).read_text().rpartition("Failure # ")[2]
    except (OSError, TypeError):
        return ""


def _last_line(trial: Any) -> str:
    """The last failure of a Tune trial in one line: its exception, or how its worker died."""
    lines = [line.strip() for line in _last_failure(trial).splitlines()[1:] if line.strip()]
    if not lines:
        return "the worker died: it left no message"
    exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    if exceptions:
        return exceptions[-1].removeprefix("ray.exceptions.")
    detail = lines[-1].partition(" Some common causes")[0].rpartition("Worker exit detail: ")[2]
    return f"the worker died: {detail}"


@contextlib.contextmanager
def _quiet(log: Log) -> Iterator[None]:
    """Redirects what Ray and Tune print and log in this process to a log."""
    logger = logging.getLogger("ray")
    handlers = logger.handlers
    with log() as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        logger.handlers, logger.propagate = [logging.StreamHandler(file)], False
        try:
            yield
        finally:
            logger.handlers = handlers
