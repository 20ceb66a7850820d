"""A trial on several workers: Ray Train's TorchTrainer
inside the Tune trial, data-parallel, on any nodes.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from vitscale.launch.claimed import train_claimed
from vitscale.launch.faults import DOES_NOT_FIT, one_line, too_big, verdict
from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Status
from vitscale.record.store import Fenced, Store, Workdir


@dataclass(frozen=True)
class Share:
    """What each worker of a team is told."""

    config: TrainConfig
    workdir: Workdir
    store: Store
    attempt: int
    resources: Resources
    before: str  # what the last try died of, if a machine failed it


def train_on_team(
    config: TrainConfig,
    workdir: Workdir,
    store: Store,
    attempt: int,
    resources: Resources,
    before: str,
) -> Iterator[Event]:
    """Trains a claimed trial on `resources.workers_per_trial` workers, whose news go to Tune;
    yields a failure.

    Raises OSError if a worker or its machine was lost, which is worth another try. `before` as for
    faults.verdict.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    on_gpu = resources.device_name() == "cuda"
    amounts = {"CPU": resources.cpus_per_trial} | (
        {"GPU": resources.gpus_per_trial} if on_gpu else {}
    )
    # Ray Train insists on a folder that all workers see
    with workdir.scratch("ray-train") as notes:
        trainer = TorchTrainer(
            train_share,
            train_loop_config={"share": Share(config, workdir, store, attempt, resources, before)},
            scaling_config=ScalingConfig(
                num_workers=resources.workers_per_trial,
                use_gpu=on_gpu,
                resources_per_worker=amounts,
            ),
            torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
            run_config=RunConfig(
                name=f"attempt-{attempt}",
                storage_path=notes,
                callbacks=[TuneReportCallback()],  # type: ignore[list-item]
                # Tune tries again, from the checkpoint
                failure_config=FailureConfig(max_failures=0),
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as failure:
            error, fault = store.failure(config.id), store.fault(config.id)
            if not error and not fault.startswith(DOES_NOT_FIT):
                raise OSError(
                    f"a worker of the team was lost: {fault or str(failure).splitlines()[0]}"
                ) from failure
            _await_news()
            yield Event(
                config.id, Status.FAILED if error else "lost", facts={"error": error or fault}
            )


def _await_news() -> None:
    """Waits until Tune has taken the last news of the workers.

    They and ours go through one place of Ray's session: if ours is there first, the thread that
    passes theirs on waits for it for ever (ray 2.60, train/_internal/session.py,
    `_get_result_from_queues`).
    """
    from ray.train._internal.session import get_session

    news = getattr(get_session(), "_inter_actor_queue", None)
    while news is not None and not news.empty():
        time.sleep(0.1)
    time.sleep(1.0)  # what was taken last is put into that place at once


def train_share(told: dict[str, Share]) -> None:
    """What each worker of a team does.

    An exception of the trial itself is recorded before it ends the team.
    """
    import ray.train
    import torch
    from ray.train.torch import get_device

    share = told["share"]
    if share.resources.device_name() == "cuda":
        torch.cuda.set_device(get_device())
    try:
        for event in train_claimed(
            share.config, share.workdir, share.store, share.attempt, share.resources
        ):
            ray.train.report({"event": event})
    except Fenced:
        raise
    except Exception as error:
        # another worker of the team was first, or the disk is what failed
        with contextlib.suppress(Fenced, OSError):
            _record(share, error)
        raise


def _record(share: Share, error: Exception) -> None:
    """Records what a worker of the team died of; the first one to fall knows why."""
    line, text = one_line(error), traceback.format_exc()
    what = verdict(error, line, share.before, share.resources)
    if what == "config":
        share.store.fail(share.workdir, line, text)
    elif not share.store.fault(share.config.id):
        share.store.lose(
            share.workdir,
            too_big(share.config, line, share.resources) if what == "unfit" else line,
            text,
        )
