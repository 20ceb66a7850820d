"""Data-parallel training of one trial on several workers, on any nodes.

Ray Train's TorchTrainer runs inside the Tune trial.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
import traceback
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_exists, _internal_kv_put
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, report
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.tune.integration.ray_train import TuneReportCallback

from vitscale.launch.faults import (
    DOES_NOT_FIT,
    NO_START,
    REFUSED,
    not_deterministic,
    one_line,
    too_big,
    verdict,
)
from vitscale.launch.graceful_exit import STOPS, Notice
from vitscale.launch.resources import Event, Resources
from vitscale.launch.run_claimed import train_claimed
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Status
from vitscale.record.store import Store
from vitscale.record.workdir import Fenced, Left, Workdir

_notice = Notice()  # of this process, a worker's or a leader's, which serves one team


@dataclass(frozen=True)
class TeamTask:
    """The task that every worker of a team receives."""

    config: TrainConfig
    workdir: Workdir
    store: Store
    attempt: int
    resources: Resources
    before: str  # the error line of the previous attempt, if a machine failed it
    pins: Collection[int]  # as in train_claimed
    stops: tuple[str, str]  # keys of STOPS that end the team: of its leader, of the study's driver


def train_on_team(
    config: TrainConfig,
    workdir: Workdir,
    store: Store,
    attempt: int,
    resources: Resources,
    before: str,
    pins: Collection[int],
    slug: str,
) -> Iterator[Event]:
    """Trains a claimed trial on `resources.workers_per_trial` workers, which report to Tune.

    Yields an Event only if the trial fails. Raises OSError if a process of the team or its machine
    was lost, in which case a retry is worthwhile. `before` is that of faults.verdict. Told to end
    by SIGTERM (see hold_sigterm), this process, the team's leader, tells the workers, who save, and
    lives on until they have ended: without it they would be killed. Raises Left if it or the driver
    has stopped the team, and Fenced if another worker has claimed the trial.
    """
    # Ray Train would give up a team for which there is no place yet
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "1e9")
    own, nonce = uuid.uuid4().hex, store.nonce(slug)
    task = TeamTask(config, workdir, store, attempt, resources, before, pins, (own, nonce))
    with _notice.work():
        _notice.pass_on(lambda: _stop(own))
        try:
            yield from _fitted(task)
        finally:
            with contextlib.suppress(ray.exceptions.RayError):
                _internal_kv_del(own.encode(), namespace=STOPS)


def hold_sigterm() -> None:
    """Lets SIGTERM give notice to the team's next work in this process, a worker's or a leader's,
    whose end others would notice before the team has agreed to save. Ray Train would see that of a
    worker within two seconds; Ray kills all that a leader has started. Call it in the main thread.
    """
    _notice.hold_sigterm()


def _stop(key: str) -> None:
    _internal_kv_put(key.encode(), b"stop", namespace=STOPS)


def _is_stopped(task: TeamTask) -> bool:
    """Whether the team has been told to end; False, too, while the cluster's head is silent."""
    try:
        return any(_internal_kv_exists(key.encode(), namespace=STOPS) for key in task.stops)
    except ray.exceptions.RayError:
        return False


class TellingTorch(TorchConfig):
    """Ray Train's setup of torch, which also lets a team end in good order."""

    @property
    def backend_cls(self) -> type:
        return TellingBackend


class TellingBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    """Its methods run in the process of Ray Train's controller."""

    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        """Holds SIGTERM in the workers, and takes none here, where it would end them at once: the
        controller ends with the leader. Only the main thread could replace the handler by signal,
        and it runs no Python; faulthandler can do it from here.
        """
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(hold_sigterm)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        faulthandler.register(signal.SIGTERM, file=nowhere, all_threads=False)


class Trainer(TorchTrainer):
    """Without Ray Train's process that frees what a killed controller held: it asks a dashboard,
    and without one it frees nothing and never ends. The driver does it (Teams in placement.py).
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]
        return [c for c in callbacks if not isinstance(c, PlacementGroupCleanerCallback)]


def _fitted(task: TeamTask) -> Iterator[Event]:
    config, store, resources = task.config, task.store, task.resources
    if _notice.is_given() or _is_stopped(task):
        raise Left("its team was told to end before it had trained")
    on_gpu = resources.device_name() == "cuda"
    amounts = {"CPU": resources.cpus_per_trial} | (
        {"GPU": resources.gpus_per_trial} if on_gpu else {}
    )
    # Ray Train requires a folder that all workers see
    with task.workdir.scratch("ray-train") as (notes, file_system):
        trainer = Trainer(
            train_member,
            train_loop_config={"task": task},
            scaling_config=ScalingConfig(
                num_workers=resources.workers_per_trial,
                use_gpu=on_gpu,
                resources_per_worker=amounts | resources.placement(),
            ),
            torch_config=TellingTorch(backend="nccl" if on_gpu else "gloo"),
            run_config=RunConfig(
                name=f"attempt-{task.attempt}",
                storage_path=notes,
                storage_filesystem=file_system,
                callbacks=[TuneReportCallback()],  # type: ignore[list-item]
                # Tune retries the trial, from its checkpoint; also if its node is taken away, and
                # if a worker dies while the team begins, where Ray Train would keep the others,
                # and their cores, and wait for as many more
                failure_config=FailureConfig(
                    max_failures=0,
                    max_preemption_failures=0,  # type: ignore[call-arg]
                    controller_failure_limit=0,
                ),
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as failure:
            if _is_stopped(task):
                raise Left("its team was told to end") from failure
            error, fault = store.failure(config.id), store.fault(config.id)
            holder, _ = task.workdir.look()
            if holder and holder.get("token") != task.workdir.token:
                _await_news()
                raise Fenced(f"another attempt has claimed {config.id}") from failure
            if not error and not fault.startswith((DOES_NOT_FIT, NO_START, REFUSED)):
                cause = _cause(failure, fault)
                raise OSError(f"a worker of the team was lost: {cause}") from failure
            _await_news()
            yield Event(
                config.id, Status.FAILED if error else "lost", facts={"error": error or fault}
            )
        except ray.exceptions.RayError as death:
            raise OSError(f"the controller of the team was lost: {one_line(death)}") from death


def _cause(failure: TrainingFailedError, fault: str) -> str:
    """What ended a team, in a line: how a worker was lost, rather than that others missed it, which
    a fault may say that one of them has recorded.
    """
    errors = [*getattr(failure, "worker_failures", {}).values()]
    errors = errors or [getattr(failure, "controller_failure", failure)]
    errors = [getattr(error, "health_check_failure", error) for error in errors]
    deaths = [error for error in errors if isinstance(error, ray.exceptions.RayActorError)]
    return one_line(deaths[0]) if deaths else fault or one_line(errors[0])


def _await_news() -> None:
    """Waits until Tune has taken the last events of the workers.

    Their events and ours pass through the same queue of Ray's session. If ours arrives first, the
    thread that forwards theirs blocks forever (ray 2.60, train/_internal/session.py,
    `_get_result_from_queues`).
    """
    from ray.train._internal.session import get_session

    pending = getattr(get_session(), "_inter_actor_queue", None)
    while pending is not None and not pending.empty():
        time.sleep(0.1)
    time.sleep(1.0)  # the item taken last is forwarded right after it leaves this queue


def train_member(loop_config: dict[str, TeamTask]) -> None:
    """Runs on each worker of a team: trains, and reports events to Ray Train.

    An exception of the trial itself is recorded before it ends the team.
    """
    import torch

    task = loop_config["task"]
    if task.resources.device_name() == "cuda":
        torch.cuda.set_device(get_device())
    if torch.distributed.get_rank() == 0:
        _notice.give_when(lambda: _is_stopped(task))
    try:
        with _notice.work():
            for event in train_claimed(
                task.config,
                task.workdir,
                task.store,
                task.attempt,
                task.resources,
                task.pins,
                is_leaving=_notice.is_given,
            ):
                _report(event)
    except (Fenced, Left):
        raise
    except Exception as error:
        if not torch.distributed.is_initialized():
            raise  # Ray Train has ended the team, as it has lost another worker
        # another worker of the team has recorded its error first, or the disk is the cause
        with contextlib.suppress(Fenced, OSError):
            _record(task, error)
        raise


def _report(event: Event) -> None:
    """Reports to Ray Train. If that has lost the process that lets workers wait for each other, the
    team saves and ends, unless it has ended: then OSError is raised.
    """
    try:
        report({"event": event})
    except ray.exceptions.RayError as death:
        if event.status is not Status.RUNNING:
            raise OSError(f"a process of the team was lost: {one_line(death)}") from death
        _notice.give()


def _record(task: TeamTask, error: Exception) -> None:
    """Records the exception that ended a worker; the first worker to fail has the cause."""
    line, text = one_line(error), traceback.format_exc()
    action = verdict(error, line, task.before, task.resources)
    if action == "config":
        task.store.fail(task.workdir, line, text)
    elif not task.store.fault(task.config.id):
        if action == "unfit":
            line = too_big(task.config, line, task.resources)
        if action == "refused":
            line = not_deterministic(task.config, line)
        task.store.lose(task.workdir, line, text)
