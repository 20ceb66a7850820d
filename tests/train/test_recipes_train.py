"""Every recipe and family of models trains on image files,
and resumes to the bit with all ingredients on.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.refusals import refusing
from support.zoo import NUM, write_zoo

from search_spaces import xiao2021
from search_spaces.recipes import RECIPES
from search_spaces.vit import SHAPES
from vitscale.launch.faults import one_line
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.train import loop
from vitscale.train.checkpoint import OtherImages
from vitscale.train.loop import TIMING, train

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "dataset": "zoo",
    "num_images": NUM,
    "num_classes": 3,
    "channels": 3,
    "resolution": 32,
    "batch_size": 8,
    "epochs": 1,
    "warmup_epochs": 0.0,
    "warmup_steps": 1,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zoo(tmp_path_factory.mktemp("data"))


def timeless(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def assert_trains(config: TrainConfig, root: Path, folder: Path) -> None:
    """A few steps: finite, with a gradient in every weight
    that has one, and other weights than before.
    """
    (row,) = train(config, folder, data_root=root)
    assert row["diverged"] == 0 and row["step"] == config.num_steps >= 3
    assert all(math.isfinite(value) for value in row.values())
    state = torch.load(max(folder.glob("checkpoint-*")), weights_only=True)
    moments = [
        m
        for m in state["optimizer"]["state"].values()
        if any(t.abs().sum() > 0 for t in m.values() if t.ndim)
    ]
    assert len(moments) > 0.8 * len(state["optimizer"]["state"]) > 5


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(name: str, root: Path, tmp_path: Path) -> None:
    """With a small model of its family, on few and small images; all else as the recipe says."""
    recipe = RECIPES[name]
    shape = SHAPES.get(recipe.sizes[0]) or xiao2021.MODELS[recipe.sizes[0]]
    small = {"width": 48, "heads": 3, "depth": 2} if shape.get("model", "vit") == "vit" else {}
    kept = {"norm_batch": 4} if recipe.fields.get("norm_batch") else {}
    kept |= {"mix_groups": 2} if recipe.fields.get("mix_groups") else {}
    kept |= {"precise_bn": 16} if recipe.fields.get("precise_bn") else {}
    if shape.get("patch_size") == 14:
        small["patch_size"] = 16
    fields = {**recipe.fields, **shape, **small, **SMALL, **kept}
    if shape.get("stem") == "conv":
        fields |= {"stem_channels": "6-12-24-48", "stem_strides": "2-2-2-2"}
    assert_trains(TrainConfig(**fields), root, tmp_path)


FAMILIES = {
    "deit_tiny_patch16_224": 32,
    "resnet18": 32,
    "convnext_atto": 32,
    "efficientnet_b0": 32,
    "resnet50": 32,
    "cait_xxs24_224": 32,
    "resmlp_12_224": 32,
    "swin_tiny_patch4_window7_224": 56,
    "regnetz_005": 32,
}
QUICK = ("deit_tiny_patch16_224", "resnet18")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_of_timm_trains(name: str, root: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        model=f"timm:{name}",
        **{**SMALL, "resolution": FAMILIES[name]},
        crop="rrc",
        drop_path=0.1,
        lr=1e-4,
        mixup_alpha=0.8,
        ema_decay=0.5,
    )
    assert_trains(config, root, tmp_path)


def test_a_training_does_not_go_on_with_the_images_of_another_dataset(
    root: Path, tmp_path: Path
) -> None:
    """Of the same name: a store outlives the folder that its trials were trained on."""
    config = TrainConfig(
        **{**SMALL, "epochs": 2}, patch_size=8, width=16, heads=2, depth=1, crop="rrc"
    )
    training = train(config, tmp_path / "trial", data_root=root, checkpoint_every_s=0.0)
    next(training)
    next(training)
    training.close()
    shutil.copytree(root / "zoo", tmp_path / "zoo")
    for path in (tmp_path / "zoo" / "train").glob("*/*.jpg"):
        Image.new("RGB", (60, 50), (9, 9, 9)).save(path)
    with refusing("dataset='zoo'", error=OtherImages):
        next(train(config, tmp_path / "trial", data_root=tmp_path))
    assert len(list(train(config, tmp_path / "trial", data_root=root))) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_image_is_named_whoever_reads_it(
    num_workers: int, root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root / "zoo", tmp_path / "zoo")
    damaged = min((tmp_path / "zoo" / "val" / "dog").glob("*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:300])
    config = TrainConfig(**SMALL, patch_size=8, width=16, heads=2, depth=1, crop="rrc")
    with pytest.raises(ValueError) as error:
        list(train(config, tmp_path / "trial", data_root=tmp_path, num_loader_workers=num_workers))
    assert one_line(error.value).startswith(
        f"ValueError: an image must be whole, but got ({damaged}"
    )


def test_a_minival_may_not_take_all_images_of_a_class(root: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        **SMALL, patch_size=8, width=16, heads=2, depth=1, crop="rrc", minival_images=8
    )
    with refusing("minival_images=8", "class 2: none"):
        next(train(config.replace(minival_rule="last"), tmp_path / "a", data_root=root))
    assert (
        len(list(train(config.replace(eval_split="minival"), tmp_path / "b", data_root=root))) == 1
    )


# Between them, everything that draws, averages, cuts, mixes or keeps a state.
VIT = TrainConfig(
    **{**SMALL, "epochs": 2, "warmup_steps": 2},
    patch_size=8,
    width=16,
    heads=2,
    depth=2,
    branches=2,
    layerscale=1e-2,
    dropout=0.1,
    drop_path=0.2,
    drop_path_rule="linear",
    weight_init="trunc_normal",
    embed_token=False,
    crop="rrc",
    flip_prob=0.5,
    augment="randaugment",
    color_jitter=0.3,
    erasing_prob=0.5,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    mix_prob=0.8,
    repeats=3,
    optimizer="lamb",
    loss="bce",
    label_smoothing=0.1,
    clip_norm=1.0,
    decay="linear",
    decay_floor=0.1,
    ema_alpha=0.1,
    ema_every=2,
    ema_after_warmup=True,
    more_evals="v2",
    minival_images=3,
    lr=1e-2,
)
CNN = TrainConfig(
    **{**SMALL, "epochs": 2},
    model="timm:resnet18",
    drop_path=0.1,
    crop="src",
    augment="3augment",
    optimizer="adam",
    ema_decay=0.5,
    precise_bn=16,
    norm_batch=4,
    subset_images=18,
    decay="constant",
    lr=1e-4,
)
HMLP = VIT.replace(
    stem="hmlp",
    pool="avg",
    pos_embed="sincos",
    embed_token=True,
    branches=1,
    augment="autoaugment",
    optimizer="adamw",
)


@pytest.mark.parametrize("config", [VIT, CNN, HMLP], ids=["vit", "cnn", "hmlp"])
def test_an_interruption_at_any_step_changes_nothing(
    config: TrainConfig, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed at its checkpoint in the middle of an epoch, by loader
    workers or without: rows and weights to the bit.
    """
    monkeypatch.setattr(loop, "OFTEN_SHARE", math.inf)
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = list(train(config, tmp_path / "whole", data_root=root))
    training = train(
        config, tmp_path / "cut", data_root=root, checkpoint_every_s=0.0, num_loader_workers=2
    )
    next(training)
    training.close()
    newest = max(path.name for path in (tmp_path / "cut").glob("checkpoint-*"))
    assert 0 < int(newest.split("-")[1]) < config.steps_per_epoch
    torch.manual_seed(9), np.random.seed(9)  # whatever another training in the process draws
    rows = list(train(config, tmp_path / "cut", data_root=root))
    assert timeless(rows) == timeless(whole) and len(rows) == 2
    last, other = (
        torch.load(max((tmp_path / name).glob("checkpoint-*")), weights_only=True)
        for name in ("whole", "cut")
    )
    for part in ("model", "ema"):
        assert all(torch.equal(value, other[part][name]) for name, value in last[part].items())
    if config.more_evals:
        assert {"val_error_pct", "v2_error_pct", "v2_ema_error_pct"} <= set(rows[0])
