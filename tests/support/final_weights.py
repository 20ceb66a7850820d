"""Trials trained in a store without Ray, their final state, and predictions made from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study, to_json
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN
from vitscale.record.workdir import Workdir
from vitscale.train import checkpoint
from vitscale.train.model import build_model
from vitscale.train.sources import load_split

TINY = TrainConfig(
    width=16,
    depth=1,
    heads=2,
    patch_size=4,
    batch_size=64,
    epochs=2,
    warmup_epochs=0.5,
    ema_decay=0.9,
    more_evals="test",
)


def predicted(config: TrainConfig, weights: dict[str, torch.Tensor], split: str) -> np.ndarray:
    """(N,) bool: wrong predictions, in one batch, by a model that is built and fed here."""
    model = build_model(config)
    model.load_state_dict(weights)
    images, train_images = load_split(config, split, None), load_split(config, "train", None)
    assert images.pixels is not None and train_images.pixels is not None
    pixels, whole = (source.pixels.float() / source.white for source in (images, train_images))
    with torch.no_grad():
        logits = model.eval()((pixels - whole.mean()) / whole.std(correction=0))
    return (logits.argmax(1) != images.labels).numpy()


def final_state(folder: Workdir) -> dict:
    state = checkpoint.load(folder, torch.device("cpu"))
    assert state is not None
    return state


def train_all(study: Study, folder: Path, **given: bool) -> Store:
    import json

    store = Store.open(folder)
    store.study(study.slug).write(PLAN, json.dumps(to_json(study)).encode())
    for trial in study.trials:
        config = trial.config
        events = train_trial(
            config.id, config.non_default(), store, study.slug, 1, Resources(**given)
        )
        list(events)
    return store
