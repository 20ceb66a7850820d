"""Evaluation: of a model in the course of its training, and of final weights long after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import WEIGHTS, column
from vitscale.plan.parts import metrics_of
from vitscale.record.outcome import Row
from vitscale.train.batchnorm import reestimate
from vitscale.train.data import EVAL_BATCH, Batches, HeldOut, fingerprint, readers_of
from vitscale.train.device import device_at, products, seed_everything
from vitscale.train.ema import Ema
from vitscale.train.inherit import POSITIONS, resized
from vitscale.train.metrics import NUM_BINS, calibration_gaps, in_top
from vitscale.train.model import build_model, place
from vitscale.train.parallel import Team
from vitscale.train.predictions import Predictions, Top
from vitscale.train.sources import Images
from vitscale.train.step import autocast

T = TypeVar("T")
Forward = Callable[[nn.Module, Tensor], Tensor]  # a model and images -> logits


class Evaluated(NamedTuple):
    """What an evaluation finds."""

    row: Row  # the `evaluation_columns` of the set
    wrong: dict[str, np.ndarray]  # as of vitscale.train.loop.Trained
    digest: str  # fingerprint of the images
    images: np.ndarray  # (N,) index in the set of each image that has a label
    labels: np.ndarray  # (N,)
    top: Top | None


def evaluate_weights(
    state: dict[str, Any],
    config: TrainConfig,
    split: str,
    images: Images,
    device: str,
    *,
    num_loader_workers: int | Literal["auto"] = 0,
    micro_batch: int = 0,
    top_of: str | None = None,
) -> Evaluated:
    """Raw and averaged weights of a state on the images, as the training evaluates them.

    `config` is the trial's, with the resolution and crop to evaluate at. On the same device and
    set, with the same `micro_batch`, the row has the values of the training's last row, bit for
    bit. `top_of` ("" or "ema_"): weights whose most probable classes are kept. Raises ValueError if
    weights do not fit the model at this resolution.
    """
    on, team = device_at(device), Team()
    most = min(EVAL_BATCH, micro_batch or EVAL_BATCH)
    held_out, row, top = HeldOut(images, config, on, team, most), Row(), None
    num_workers, wrong = readers_of(num_loader_workers, images), dict[str, np.ndarray]()
    parts = [state[part] for part in ("model", "ema") if state[part]]
    models = [place(model_with(part, config), config, on) for part in parts]
    predictions = [Predictions(with_top=top_of == weights) for weights in WEIGHTS[: len(models)]]
    if top_of is not None and len(models) == 1:  # no average: raw weights stand for both
        predictions = [Predictions(with_top=True)]
    with products(config):
        evaluated = evaluate_each(models, held_out, config, team, num_workers, predictions)
    for number, weights in enumerate(WEIGHTS):
        of_weights = evaluated[min(number, len(models) - 1)]
        row |= {column(split, weights, quantity): value for quantity, value in of_weights.items()}
    for weights, prediction in zip(WEIGHTS, predictions, strict=False):
        wrong[column(split, weights, "wrong")] = prediction.wrong(team, held_out.num)
        top = prediction.top(team, held_out.num) if prediction.with_top else top
    indices = np.concatenate([batch.numpy() for batch in held_out.batches])
    labels = images.labels.cpu().numpy()[indices]
    return Evaluated(row, wrong, fingerprint(images), indices, labels, top)


def model_with(weights: dict[str, torch.Tensor], config: TrainConfig) -> nn.Module:
    """The model of a config with trained weights; learned position embeddings of another resolution
    are resampled (bicubic, as in timm), fixed ones are made for this one.
    """
    seed_everything(config.seed)
    model = build_model(config)
    own, weights = model.state_dict(), dict(weights)
    if POSITIONS in own and own[POSITIONS].shape != weights[POSITIONS].shape:
        if config.model == "vit" and config.pos_embed == "sincos":
            weights[POSITIONS] = own[POSITIONS]
        else:
            weights[POSITIONS] = resized(weights[POSITIONS], config, model, antialias=True)
    other = [name for name in own if name not in weights or own[name].shape != weights[name].shape]
    if other or own.keys() != weights.keys():
        raise ValueError(
            "weights must fit the model at the resolution of the evaluation, but got (model="
            f"{config.model!r}, resolution={config.resolution}: {(other or ['other names'])[0]})"
        )
    model.load_state_dict(weights)
    return model


# ---- in the course of a training


def evaluate_all(
    model: nn.Module,
    ema: Ema,
    held_out: Mapping[str, HeldOut],
    precise: Batches | None,
    config: TrainConfig,
    team: Team,
    num_loader_workers: int = 0,
    wrong: dict[str, np.ndarray] | None = None,
    before_batch: Callable[[], None] | None = None,
    forward: Forward | None = None,
) -> Row:
    """The `evaluation_columns` of every evaluation set, for the raw and the averaged weights.

    Without averaging, the columns of the averaged weights repeat those of the raw ones. `wrong`, if
    given, receives the images that were wrong, (N,) bool under "val_wrong" and "val_ema_wrong" (raw
    weights alone without averaging). With `precise` batches, the statistics of BatchNorm are first
    estimated on them, for raw and averaged weights each. `before_batch` is called before batches,
    equally often by all processes of a team. `forward` computes logits, by default eagerly.
    """
    modules = [model, ema.module] if ema.on else [model]
    if precise is not None:
        for module in modules:
            images = precise.unmixed(config.precise_bn, num_loader_workers)
            images = _calling(before_batch, images)
            reestimate(module, images, partial(autocast, config, precise.device))
    by_split: dict[str, list[Row]] = {}  # of each split, one row per module
    misses: dict[tuple[str, str], np.ndarray] = {}  # of (split, weights)
    for split, data in held_out.items():
        predictions = [Predictions() for _ in modules] if wrong is not None else None
        by_split[split] = evaluate_each(
            modules, data, config, team, num_loader_workers, predictions, before_batch, forward
        )
        for weights, prediction in zip(WEIGHTS, predictions or (), strict=False):
            misses[split, weights] = prediction.wrong(team, data.num)
    row: Row = {}
    for number, weights in enumerate(WEIGHTS):
        for split, rows in by_split.items():
            quantities = rows[min(number, len(modules) - 1)]
            row |= {column(split, weights, name): value for name, value in quantities.items()}
            if wrong is not None and (split, weights) in misses:
                wrong[column(split, weights, "wrong")] = misses[split, weights]
    return row


def evaluate(
    model: nn.Module,
    data: HeldOut,
    config: TrainConfig,
    team: Team,
    num_loader_workers: int = 0,
    predictions: Predictions | None = None,
) -> Row:
    """The METRICS of vitscale.plan.metrics over all images of an evaluation set, for any team.

    loss: mean cross entropy in nats, against the label. error_pct and top5_error_pct: percentage of
    images whose label is not the class, or not among the five classes, with the largest logits; the
    latter is 0 with five classes or fewer. ece_pct: expected calibration error in percent, over 15
    equal-width bins of the top-1 confidence (Guo et al. 2017), weighted by their images.

    With several accepted labels (ReaL), a prediction is right if it is one of them, and the loss is
    against the original one. `predictions`, if given, receives that of each image.
    """
    of_model = None if predictions is None else [predictions]
    return evaluate_each([model], data, config, team, num_loader_workers, of_model)[0]


@torch.no_grad()
def evaluate_each(
    models: Sequence[nn.Module],
    data: HeldOut,
    config: TrainConfig,
    team: Team,
    num_loader_workers: int = 0,
    predictions: Sequence[Predictions] | None = None,
    before_batch: Callable[[], None] | None = None,
    forward: Forward | None = None,
) -> list[Row]:
    """As `evaluate`, for several models that see each image when it has been read once.

    `before_batch` is called before each batch that all processes of a team have; `forward` as for
    `evaluate_all`.
    """
    forward = forward or partial(logits_of, config)
    own = None
    if config.metrics:
        from vitscale.train.parts import own_metrics

        own = own_metrics(config)
    tallies = [_Tally(data.device, own) for _ in models]
    for model in models:
        model.eval()
    batches = data.iterate(num_loader_workers)
    for images, labels, allowed in _calling(before_batch, batches, data.num_common):
        for number, model in enumerate(models):
            logits = forward(model, images)
            missed = tallies[number].add(logits, labels, allowed)
            if predictions is not None:
                predictions[number].add(missed, logits)
    for model in models:
        model.train()
    rows = [tally.row(team, data.num) for tally in tallies]
    if config.metrics:
        from vitscale.train.parts import check_bounds

        for metric in metrics_of(config.metrics):
            for row in rows:
                check_bounds(metric, row[metric.name], config)
    return rows


def logits_of(config: TrainConfig, model: nn.Module, images: Tensor) -> Tensor:
    """float32 (b, classes) of images (b, C, R, R)."""
    with autocast(config, images.device):
        return model(images).float()


def _calling(
    before: Callable[[], None] | None, items: Iterable[T], most: int | None = None
) -> Iterator[T]:
    """The items; calls `before` before it asks for each of them, or for the first `most`; without
    `most`, also before it finds that there are no more.
    """
    iterator = iter(items)
    for number in itertools.count():
        if before is not None and (most is None or number < most):
            before()
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


class _Tally:
    """Sums over the images that one model has seen; they stay on the device."""

    def __init__(
        self,
        device: torch.device,
        own: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.own, self.own_sums = own, dict[str, Tensor]()
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.wrong = torch.zeros(2, dtype=torch.int64, device=device)  # top-1, top-5
        self.gaps = torch.zeros(NUM_BINS, dtype=torch.float64, device=device)

    def add(self, logits: Tensor, labels: Tensor, allowed: Tensor | None) -> Tensor:
        """Adds a batch; returns which of its images (b,) are wrong."""
        self.loss += F.cross_entropy(logits, labels).double() * len(labels)
        guess = logits.argmax(1)
        right = (guess == labels) if allowed is None else allowed.gather(1, guess[:, None])[:, 0]
        missed = ~right
        self.wrong += torch.stack([missed, ~in_top(logits, labels, allowed)]).sum(1)
        self.gaps += calibration_gaps(logits, right)
        for name, values in self.own(logits, labels).items() if self.own else ():
            self.own_sums[name] = self.own_sums.get(name, 0.0) + values.double().sum()
        return missed

    def row(self, team: Team, num: int) -> Row:
        """The METRICS over all processes; the only place of an evaluation that waits."""
        loss, wrong, gaps = team.sum(self.loss), team.sum(self.wrong), team.sum(self.gaps)
        sums = torch.cat([loss[None], wrong.double(), gaps.abs().sum()[None]])
        loss_sum, num_wrong, num_wrong_top5, gap = sums.tolist()
        own = {name: team.sum(total).item() / num for name, total in sorted(self.own_sums.items())}
        return {
            "loss": loss_sum / num,
            "error_pct": 100.0 * num_wrong / num,
            "top5_error_pct": 100.0 * num_wrong_top5 / num,
            "ece_pct": 100.0 * gap / num,
            **own,
        }
