"""A trial on several workers: Ray Train's TorchTrainer inside the Tune trial, data-parallel, on any nodes."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Fenced, Store, Workdir


@dataclass(frozen=True)
class Share:
    """What each worker of a team is told."""

    config: TrainConfig
    workdir: Workdir
    store: Store
    attempt: int
    resources: Resources


def train_on_team(
    config: TrainConfig, workdir: Workdir, store: Store, attempt: int, resources: Resources
) -> Iterator[Event]:
    """Trains a claimed trial on `resources.workers_per_trial` workers, whose news go to Tune; yields a failure.

    Raises OSError if a worker or its machine was lost, which is worth another try.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    on_gpu = resources.device_name() == "cuda"
    amounts = {"CPU": resources.cpus_per_trial} | ({"GPU": resources.gpus_per_trial} if on_gpu else {})
    notes = workdir.path / "ray-train"  # Ray Train insists on a folder that all workers see
    trainer = TorchTrainer(
        train_share,
        train_loop_config={"share": Share(config, workdir, store, attempt, resources)},
        scaling_config=ScalingConfig(
            num_workers=resources.workers_per_trial, use_gpu=on_gpu, resources_per_worker=amounts
        ),
        torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
        run_config=RunConfig(
            name=f"attempt-{attempt}",
            storage_path=str(notes),
            callbacks=[TuneReportCallback()],  # type: ignore[list-item]
            failure_config=FailureConfig(max_failures=0),  # Tune tries again, from the checkpoint
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as failure:
        if not (error := store.failure(config.id)):
            raise OSError(f"a worker of the team was lost: {str(failure).splitlines()[0]}") from failure
        yield Event(config.id, "failed", facts={"error": error})
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def train_share(told: dict[str, Share]) -> None:
    """What each worker of a team does. An exception of the trial itself is recorded before it ends the team."""
    import ray.train
    import torch
    from ray.train.torch import get_device

    from vitscale.launch.worker import one_line, train_claimed

    share = told["share"]
    if share.resources.device_name() == "cuda":
        torch.cuda.set_device(get_device())
    try:
        for event in train_claimed(share.config, share.workdir, share.store, share.attempt, share.resources):
            ray.train.report({"event": event})
    except Exception as error:
        if not _may_be_the_machine(error):
            share.store.fail(share.workdir, one_line(error), traceback.format_exc())
        raise


def _may_be_the_machine(error: Exception) -> bool:
    """Whether another try may succeed. A worker that loses its peers gets a RuntimeError, of which there are others."""
    import torch

    return isinstance(error, (OSError, RuntimeError, Fenced)) and not isinstance(error, torch.OutOfMemoryError)
