"""Every choice of every field is built and trained, and none of them is another one in disguise.

That a builder has a branch for each choice is a type error otherwise (`match` with `assert_never`).
Here the choices run: a choice without a case fails, as does one that trains what another one
trains.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from support.scripts import make_search
from torch.utils.flop_counter import FlopCounterMode

from vitscale.launch.optuna_search import Rounds
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.plan.fields import choices
from vitscale.plan.parents import AT_END
from vitscale.plan.profile import ProfileConfig, processor
from vitscale.plan.search import SAMPLERS, Sampler
from vitscale.record.store import Store
from vitscale.train.loop import TIMING, train
from vitscale.train.model import build_model
from vitscale.train.profile import build_pass

torch.set_num_threads(1)

BASE = TrainConfig(
    width=8,
    depth=2,
    heads=2,
    patch_size=4,
    batch_size=64,
    subset_images=128,
    epochs=3,
    warmup_epochs=1.0,
    lr=0.01,
)
RGB: dict[str, Any] = {
    "dataset": "rgb",
    "channels": 3,
    "num_images": 32,
    "num_classes": 4,
    "subset_images": 0,
    "batch_size": 16,
    "crop": "rrc",
    "resolution": 16,
}
CONV: dict[str, Any] = {"stem": "conv", "stem_channels": "4-8", "stem_strides": "2-2"}
# digits have a minival of their own
HELD_OUT: dict[str, Any] = {**RGB, "minival_images": 4, "eval_split": "minival"}


def alike(names: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Choices that need the same other fields."""
    return {name: fields for name in names.split()}


PARENT = BASE.replace(seed=1, ema_decay=0.9)
CHILD: dict[str, Any] = {"init_from": PARENT.id}
SCALED = PARENT.replace(layerscale=0.1)
SCALED_CHILD: dict[str, Any] = {"init_from": SCALED.id, "layerscale": 0.1}
# field -> choice -> what else must be so for the choice to be legal, and to make a difference: with
# patches of 4 pixels an hMLP stem is patchify_bn.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "minival_rule": alike("stratified last", **HELD_OUT),
    "crop": {**alike("rrc src"), "pad": {"crop_padding": 1}},
    "augment": alike("none autoaugment randaugment trivialaugment 3augment", **RGB),
    "stem": {
        **alike(
            "patchify patchify_bn patchify_gelu patchify_bn_gelu patchify_bn_relu graham hmlp",
            **RGB,
            patch_size=8,
        ),
        "conv": {**RGB, "patch_size": 8, "stem_channels": "4-8", "stem_strides": "4-2"},
    },
    "stem_norm": alike("bn ln", **CONV),
    "pool": alike("token avg"),
    "pos_embed": alike("learned learned2d relative sincos none"),
    "pos_at": alike("stem layer shared"),
    "branch_gain": alike("channel scalar", layerscale=0.1),
    # one value for all three, as zero demands it
    "gain_init": alike("constant uniform zero", layerscale=1.0),
    "weight_init": alike("jax trunc_normal"),
    "optimizer": alike("adamw adam sgd lamb lion"),
    # at a fifth, one of 6 steps would cool down, and its first is at the peak
    "decay": {**alike("cosine linear constant"), "cooldown": {"cooldown_share": 0.5}},
    "cooldown_shape": alike("linear 1-sqrt", decay="cooldown", cooldown_share=0.6),
    "loss": alike("ce bce"),
    "bce_targets": alike("soft present", loss="bce", mixup_alpha=1.0),
    "drop_path_rule": alike("uniform linear", drop_path=0.3),
    "precision": alike("fp32 bf16 fp16 tf32"),
    "init_weights": alike("raw ema", **CHILD),
    "init_head": alike("keep zero random", **CHILD, weight_init="trunc_normal"),
    "trainable": alike("all attn ffn head", **CHILD),
    "init_parts": alike("all layerscale", **SCALED_CHILD),
    "frozen": alike("none layerscale", **SCALED_CHILD),
    # without mixing, a teacher that is right on all images says what the labels say
    "distill": {"none": {}, **alike("soft hard token", teacher=PARENT.id, mixup_alpha=0.8)},
}
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "profile": alike("inference training"),
    "layout": alike("seq par", profile="training", branches=2),
}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of random RGB images, 16 pixels per
    side: policies need colour, which digits lack.
    """
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, num in (("train", 32), ("val", 8)):
        for index in range(num):
            path = root / "rgb" / split / str(index % 4) / f"{index:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Id -> folder of a training that has ended."""
    folders = {config.id: tmp_path_factory.mktemp("parent") for config in (PARENT, SCALED)}
    for config in (PARENT, SCALED):
        list(train(config, folders[config.id], pins=(AT_END,)))
    return folders


def trained(config: TrainConfig, folder: Path, data_root: Path, parents: dict[str, Path]) -> str:
    """A digest of the rows and of the final weights of a training."""
    folder.mkdir()
    rows = [
        {k: v for k, v in row.items() if k not in TIMING}
        for row in train(
            config,
            folder,
            data_root=data_root,
            parent=parents.get(config.init_from),
            teacher=(PARENT, parents[PARENT.id]) if config.teacher else None,
        )
    ]
    assert len(rows) == config.epochs and not any(row["diverged"] for row in rows)
    weights = torch.load(max(folder.glob("checkpoint-*")), weights_only=True)["model"]
    digest = hashlib.sha256(repr(rows).encode())
    for tensor in weights.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def test_every_choice_has_a_case() -> None:
    assert {field: set(cases) for field, cases in CASES.items()} == {
        f: set(c) for f, c in choices(TrainConfig).items()
    }
    both = {**CASES, **PROFILES}
    assert {field: set(cases) for field, cases in both.items()} == {
        f: set(c) for f, c in choices(ProfileConfig).items()
    }


@pytest.mark.parametrize("field", choices(TrainConfig))
def test_every_choice_trains_something_of_its_own(
    field: str, tmp_path: Path, data_root: Path, parents: dict[str, Path]
) -> None:
    """The cost in closed form is that of the model which is built."""
    digests = {}
    for choice in choices(TrainConfig)[field]:
        assert choice in CASES.get(field, {}), (
            f"a case must be there for each choice, but got none ({field}={choice})"
        )
        config = BASE.replace(**{**CASES[field][choice], field: choice})
        assert complexity(config).params == sum(p.numel() for p in build_model(config).parameters())
        if choice == "tf32":  # which a CPU does not have: test_nullcuda.py
            with pytest.raises(OSError, match=r"compute capability >= 8\.0 must hold"):
                trained(config, tmp_path / choice, data_root, parents)
            continue
        digests[choice] = trained(config, tmp_path / choice, data_root, parents)
    assert len(set(digests.values())) == len(digests) >= 2, digests


@pytest.mark.parametrize(
    ("field", "choice"), [(f, c) for f in PROFILES for c in choices(ProfileConfig)[f]]
)
def test_every_kind_of_profile_makes_a_pass(field: str, choice: str) -> None:
    """A pass computes what the model costs, and of training three times that."""
    fields = {"profile": "training", **PROFILES[field][choice], field: choice}
    config = ProfileConfig(width=8, depth=1, heads=2, batch_size=4, hardware=processor(1), **fields)
    once = build_pass(config, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        once()
    forward = 2 * complexity(config).flops * config.batch_size
    passes = counter.get_total_flops() / forward
    assert passes == pytest.approx(3 if config.profile == "training" else 1, rel=0.15)


def test_every_sampler_of_a_search_is_another(tmp_path: Path) -> None:
    assert set(SAMPLERS) == set(get_args(Sampler))
    kinds = set()
    for name in SAMPLERS:
        search = make_search(sampler=name)
        kinds.add(
            type(Rounds(search, Store.open(tmp_path / name))._sampler(next(iter(search.arms)).name))
        )
    assert len(kinds) == len(SAMPLERS)
