"""Final weights of a trial on an evaluation set, long after the training."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import WEIGHTS, column
from vitscale.record.outcome import Row
from vitscale.train.answers import Answers, Top
from vitscale.train.data import EVAL_BATCH, HeldOut, fingerprint, num_readers
from vitscale.train.loop import device_at, evaluate_each, seed_everything
from vitscale.train.model import build_model, place
from vitscale.train.parallel import Team
from vitscale.train.sources import Images


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
    # else fp32 convolutions would not be
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    most = min(EVAL_BATCH, micro_batch or EVAL_BATCH)
    held_out, row, top = HeldOut(images, config, on, team, most), Row(), None
    num_workers, wrong = num_readers(num_loader_workers, images), dict[str, np.ndarray]()
    parts = [state[part] for part in ("model", "ema") if state[part]]
    models = [place(model_with(part, config), config, on) for part in parts]
    answers = [Answers(with_top=top_of == weights) for weights in WEIGHTS[: len(models)]]
    if top_of is not None and len(models) == 1:  # no average: raw weights stand for both
        answers = [Answers(with_top=True)]
    found = evaluate_each(models, held_out, config, team, num_workers, answers)
    for number, weights in enumerate(WEIGHTS):
        of_weights = found[min(number, len(models) - 1)]
        row |= {column(split, weights, quantity): value for quantity, value in of_weights.items()}
    for weights, answer in zip(WEIGHTS, answers, strict=False):
        wrong[column(split, weights, "wrong")] = answer.wrong(team, held_out.num)
        top = answer.top(team, held_out.num) if answer.with_top else top
    indices = np.concatenate([batch.numpy() for batch in held_out.batches])
    labels = images.labels.cpu().numpy()[indices]
    return Evaluated(row, wrong, fingerprint(images), indices, labels, top)


def model_with(weights: dict[str, torch.Tensor], config: TrainConfig) -> nn.Module:
    """The model of a config with trained weights; learned position embeddings of another resolution
    are resampled (bicubic, as in timm), fixed ones are made for this one.
    """
    from timm.layers import resample_abs_pos_embed

    seed_everything(config.seed)
    model = build_model(config)
    own, weights = model.state_dict(), dict(weights)
    if "pos_embed" in own and own["pos_embed"].shape != weights["pos_embed"].shape:
        if config.model == "vit" and config.pos_embed == "sincos":
            weights["pos_embed"] = own["pos_embed"]
        else:
            embed: Any = model
            weights["pos_embed"] = resample_abs_pos_embed(
                weights["pos_embed"],
                new_size=list(embed.patch_embed.grid_size),
                num_prefix_tokens=0 if embed.no_embed_class else embed.num_prefix_tokens,
            )
    other = [name for name in own if name not in weights or own[name].shape != weights[name].shape]
    if other or own.keys() != weights.keys():
        raise ValueError(
            "weights must fit the model at the resolution of the evaluation, but got (model="
            f"{config.model!r}, resolution={config.resolution}: {(other or ['other names'])[0]})"
        )
    model.load_state_dict(weights)
    return model
