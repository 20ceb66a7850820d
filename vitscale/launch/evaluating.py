"""Evaluations of trials that were trained before: one trial after another, in this process.

Not through Ray: an evaluation takes seconds, has no state worth a checkpoint, and is one file that
is there or not, so that the same command resumes. Several commands may share the arms of a study
between devices.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitscale.launch.preflight import READ
from vitscale.launch.resources import Resources
from vitscale.launch.run_claimed import reset_process
from vitscale.plan.config import TrainConfig
from vitscale.plan.evaluation import Evaluation
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.misclassified import WRONG, Misclassified, encode
from vitscale.record.outcome import Outcome, Status
from vitscale.record.sources import check_trusted
from vitscale.record.store import Store
from vitscale.record.trial_files import PREDICTIONS
from vitscale.record.workdir import CHECKPOINT

if TYPE_CHECKING:
    from vitscale.train.evaluate import Evaluated
    from vitscale.train.sources import Images


@dataclass(frozen=True)
class Result:
    """What became of the evaluation of a trial."""

    trial: Trial
    evaluation: Evaluation
    status: Literal["done", "known", "diverged", "failed", "missing", "no weights"]
    outcome: Outcome | None = None  # with one row


def evaluate_study(
    study: Study,
    store: Store,
    evaluations: Sequence[Evaluation],
    resources: Resources,
    *,
    arms: str = "*",
    predictions: bool = False,
    trusted: Sequence[str] = (),
) -> Iterator[Result]:
    """Evaluates every finished trial of the arms; what is known is not computed again.

    `trusted`: as of `check_trusted`. Raises ValueError for profiles, an evaluation set that is not
    there or has other classes, a resolution that a model cannot have, if no arm fits, and for a
    part that is not trusted.
    """
    if study.measures:
        raise ValueError(f"trainings have weights, profiles none, but got (study={study.slug!r})")
    trials = [
        trial
        for trial in study.trials
        if (trial.arm.name == arms if arms in study.arms else fnmatchcase(trial.arm.name, arms))
    ]
    if not trials:
        law = f"an arm must be of the study ({', '.join(study.arms)})"
        raise ValueError(f"{law}, but got ({arms!r})")
    check_trusted((trial.config for trial in trials), trusted, store)
    weights = study.column.weights
    for evaluation in evaluations:
        for config in {_geometry(trial.config): trial.config for trial in trials}.values():
            evaluation.applied(config)  # refused before anything is computed
    process = _One(store, resources, weights if predictions else None)
    reset_process(resources)
    for evaluation in evaluations:
        for trial in trials:
            yield process.result(trial, evaluation)


def _geometry(config: TrainConfig) -> tuple[Any, ...]:
    return (config.model, config.resolution, config.patch_size, config.crop, config.crop_padding)


class _One:
    """Evaluates one trial at a time; keeps the images of the last."""

    def __init__(self, store: Store, resources: Resources, top_of: str | None) -> None:
        self.store, self.resources, self.top_of = store, resources, top_of
        self.root = Path(resources.data_root) if resources.data_root else None
        self.key: tuple[Any, ...] = ()
        self.loaded: Images | None = None

    def result(self, trial: Trial, evaluation: Evaluation) -> Result:
        config = trial.config
        if not self.store.is_done(config.id):
            failed = self.store.outcome(config.id).status is Status.FAILED
            return Result(trial, evaluation, "failed" if failed else "missing")
        if self.store.peek(config.id).status is Status.DIVERGED:
            return Result(trial, evaluation, "diverged")
        earlier = self._known(config, evaluation)
        if earlier is not None:
            return Result(trial, evaluation, "known", earlier)
        return self._evaluated(trial, evaluation)

    def _known(self, config: TrainConfig, evaluation: Evaluation) -> Outcome | None:
        """An evaluation that is in the store, of the weights that are there now, with predictions
        if they are asked for.
        """
        workdir, own_id = self.store.trial(config.id), evaluation.id(config)
        earlier = self.store.evaluations(config.id).get(own_id)
        now = workdir.names(CHECKPOINT)[-1:]
        if earlier is None or (now and earlier.facts.get("weights", now[0]) != now[0]):
            return None
        if self._other_images(config, evaluation, earlier):
            return None
        lacks = self.top_of is not None and not workdir.exists(f"{PREDICTIONS}{own_id}.parquet")
        return None if lacks else earlier

    def _evaluated(self, trial: Trial, evaluation: Evaluation) -> Result:
        import torch

        from vitscale.record.provenance import provenance
        from vitscale.train import checkpoint
        from vitscale.train.evaluate import evaluate_weights

        config, workdir = trial.config, self.store.trial(trial.config.id)
        state = checkpoint.load(workdir, torch.device("cpu"), config.id)
        if state is None or "model" not in state:
            return Result(trial, evaluation, "no weights")
        (name,) = workdir.names(CHECKPOINT)[-1:]
        evaluated = evaluate_weights(
            state,
            evaluation.applied(config),
            evaluation.split,
            self._images(config, evaluation),
            self.resources.device_name(),
            num_loader_workers=self.resources.num_loader_workers,
            micro_batch=self.resources.micro_batch,
            top_of=self.top_of,
        )
        bits, content = encode(Misclassified(evaluated.wrong, {evaluation.split: evaluated.digest}))
        arguments = {k: str(value) for k, value in evaluation.arguments(config).items()}
        facts = {
            "name": evaluation.name,
            **arguments,
            "images": evaluated.digest,
            "weights": name,
            "device": self.resources.device_name(),
            **provenance(),
            WRONG: bits,
        }
        last = self.store.read(config.id).rows[-1]
        row = {**evaluated.row, "epoch": last["epoch"], "step": last["step"], "unix_s": time.time()}
        outcome, own_id = Outcome(Status.FINISHED, (row,), facts), evaluation.id(config)
        beside = {bits: content}
        if evaluated.top is not None:
            beside[f"{PREDICTIONS}{own_id}.parquet"] = _predictions(evaluated)
        self.store.add_evaluation(config.id, own_id, outcome, beside)
        return Result(trial, evaluation, "done", outcome)

    def _other_images(self, config: TrainConfig, evaluation: Evaluation, earlier: Outcome) -> bool:
        """Whether the images of an evaluation differ from those that are there now, if any are."""
        from vitscale.train.data import fingerprint

        try:
            images = self._images(config, evaluation)
        except ValueError:  # such as no data root: what is known can be shown
            return False
        return earlier.facts.get("images") != fingerprint(images)

    def _images(self, config: TrainConfig, evaluation: Evaluation) -> Images:
        """The images of the evaluation, on the GPU if they fit."""
        from vitscale.train.data import resident
        from vitscale.train.device import device_at
        from vitscale.train.sources import load_other, load_split

        key = (evaluation, *(getattr(config, name) for name in READ))
        if self.loaded is None or key != self.key:
            other, split = evaluation.dataset, evaluation.split
            if other is None or other == config.dataset:
                images = load_split(config, split, self.root)
            else:
                images = load_other(other, split, config, self.root)
            device = device_at(self.resources.device_name())
            self.key, self.loaded = key, resident(images, device)
        return self.loaded


def _predictions(evaluated: Evaluated) -> bytes:
    """A parquet file: index of the image in its set, label, predicted class, the most probable
    classes and their probabilities.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert evaluated.top is not None
    columns = {
        "image": evaluated.images,
        "label": evaluated.labels,
        "predicted": evaluated.top.classes[:, 0],
        "top_classes": list(evaluated.top.classes),
        "top_probabilities": list(evaluated.top.probabilities),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def on_device(device: str, resources: Resources) -> Resources:
    """Resources of an evaluation: a whole GPU, or the CPU."""
    return replace(resources, device=device, gpus_per_trial=1.0 if device == "cuda" else 0.0)
