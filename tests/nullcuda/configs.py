"""What is trained on the null CUDA device: every recipe and family of models, on a prepared set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from search_spaces import demo, xiao2021
from search_spaces.recipes import RECIPES
from search_spaces.vit import SHAPES
from vitscale.plan.config import TrainConfig
from vitscale.train.prepare import Request, prepare

NUM, SIZE, CLASSES = 512, 40, 4
SET: dict[str, Any] = {
    "dataset": f"null-{SIZE}",
    "num_images": NUM,
    "num_classes": CLASSES,
    "channels": 3,
}


def write_set(root: Path) -> None:
    """A prepared set of random images in a data root, 40 pixels per side."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, num in (("train", NUM), ("val", 8), ("real", 8)):
        for index in range(num):
            path = root / "files" / split / str(index % CLASSES) / f"{index:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(
                path, compress_level=1
            )
    prepare(Request(str(root / "files"), root, SIZE, dataset="null"))


# ---- device operations per step: demo models at a batch of 32, the papers' at their own resolution
# and a batch of 64

VIT_P = TrainConfig(**demo.RECIPE, **demo.MODELS["ViT_P"])
VIT_C = TrainConfig(**demo.RECIPE, **demo.MODELS["ViT_C"])
DEMO = {
    "demo ViT_P": VIT_P,
    "demo ViT_C": VIT_C,
    "demo SGD": VIT_P.replace(optimizer="sgd"),
    "demo LAMB": VIT_P.replace(optimizer="lamb"),
    "demo clip": VIT_P.replace(clip_norm=1.0),
    "demo drop path": VIT_P.replace(drop_path=0.1),
    "demo dropout": VIT_P.replace(dropout=0.1),
    "demo 2 branches": VIT_P.replace(branches=2),
    "demo 2 branches, drop path": VIT_P.replace(branches=2, drop_path=0.1),
}
BATCH = {"batch_size": 64, "epochs": 1, "warmup_epochs": 0.0, "warmup_steps": 1, "resolution": 224}
VIT_S = TrainConfig(**{**SET, **BATCH, **SHAPES["S"]}, crop="rrc", flip_prob=0.5)


def published(name: str, shape: str) -> TrainConfig:
    """A recipe with a shape of the papers, on the prepared set;
    all but the data, batch and length as it says.
    """
    fields = {
        **RECIPES[name].fields,
        **(SHAPES.get(shape) or xiao2021.MODELS[shape]),
        **SET,
        **BATCH,
    }
    kept = {"norm_batch": 32} if fields.get("norm_batch") else {}
    kept |= {"mix_groups": 2} if fields.get("mix_groups") else {}
    kept |= {"precise_bn": 64} if fields.get("precise_bn") else {}
    return TrainConfig(**{**fields, **kept})


PUBLISHED = {
    "ViT-S fp32": VIT_S,
    "ViT-S bf16": VIT_S.replace(precision="bf16"),
    "ViT-S fp16": VIT_S.replace(precision="fp16"),
    "ViT-S bf16, drop path": VIT_S.replace(precision="bf16", drop_path=0.1),
    "xiao2021, ViT_P-1GF": published("xiao2021", "ViT_P-1GF"),
    "xiao2021, ViT_C-1GF, fp32": published("xiao2021", "ViT_C-1GF").replace(precision="fp32"),
    "xiao2021, RegNetY-1GF, fp32": published("xiao2021", "RegNetY-1GF").replace(precision="fp32"),
    "deit, S": published("deit", "S"),
    "a2, S": published("a2-S", "S"),
    "deit3, S": published("deit3-S", "S"),
    "depth-layerscale, S": published("depth-layerscale-12", "S"),
    "vit, B": published("vit", "B"),
}

# images and stems channels last; fp16, since cuDNN's older interface has no bf16
STEMS = {
    "xiao2021, ViT_C-1GF, fp16": published("xiao2021", "ViT_C-1GF").replace(precision="fp16"),
    "ViT-S, graham, fp16": VIT_S.replace(stem="graham", precision="fp16"),
    "ViT-S, hmlp, layer norm, fp16": VIT_S.replace(stem="hmlp", stem_norm="ln", precision="fp16"),
}
DETERMINISTIC = {
    "demo ViT_P, deterministic": VIT_P,
    "ViT-S, graham, fp16, deterministic": STEMS["ViT-S, graham, fp16"],
}


# ---- interrupted and resumed: all that keeps a state, draws, mixes or waits, every kind of model;
# 4 steps per epoch

SMALL: dict[str, Any] = {
    **SET,
    "resolution": 32,
    "batch_size": 64,
    "subset_images": 256,
    "epochs": 2,
    "warmup_epochs": 0.0,
    "warmup_steps": 2,
    "crop": "rrc",
    "lr": 1e-4,
}
TINY: dict[str, Any] = {"patch_size": 8, "width": 24, "heads": 3, "depth": 2}
VIT = TrainConfig(**SMALL, **TINY)
CONV = VIT.replace(stem="conv", stem_channels="6-12-24", stem_strides="2-2-2")
RESNET = TrainConfig(**SMALL, model="timm:resnet18")
RESUMED = {
    "adamw": VIT,
    "adam": VIT.replace(optimizer="adam"),
    "sgd": VIT.replace(optimizer="sgd", nesterov=True),
    "lion": VIT.replace(optimizer="lion"),
    "lamb, clip": VIT.replace(optimizer="lamb", clip_norm=1.0),
    "bf16": VIT.replace(precision="bf16"),
    "fp16": VIT.replace(precision="fp16"),
    "fp16, clip": VIT.replace(precision="fp16", optimizer="sgd", clip_norm=1.0),
    "conv stem": CONV,
    "graham stem": VIT.replace(patch_size=16, stem="graham"),
    "hMLP stem": VIT.replace(patch_size=16, stem="hmlp"),
    "hMLP stem, layer norm": VIT.replace(patch_size=16, stem="hmlp", stem_norm="ln"),
    "precise BatchNorm": CONV.replace(precise_bn=128, ema_decay=0.9),
    "BatchNorm of parts": RESNET.replace(norm_batch=32, precise_bn=128),
    "randaugment": VIT.replace(augment="randaugment", color_jitter=0.3),
    "autoaugment": VIT.replace(augment="autoaugment"),
    "trivialaugment": VIT.replace(augment="trivialaugment"),
    "3augment, src": VIT.replace(augment="3augment", crop="src", flip_prob=0.5),
    "pad": VIT.replace(crop="pad", resolution=SIZE, crop_padding=2),
    "mixup": VIT.replace(mixup_alpha=0.8, label_smoothing=0.1),
    "cutmix": VIT.replace(cutmix_alpha=1.0, mix_prob=0.5),
    "erasing": VIT.replace(erasing_prob=0.5),
    "bce": VIT.replace(loss="bce", bce_targets="present", mixup_alpha=0.8),
    "dropout": VIT.replace(dropout=0.1),
    "drop path": VIT.replace(drop_path=0.2, layerscale=1e-2, precision="bf16"),
    "branches": VIT.replace(branches=2, drop_path=0.1, drop_path_rule="linear"),
    "sine-cosine, average": VIT.replace(pos_embed="sincos", pool="avg"),
    "repeats, averages": VIT.replace(repeats=2, ema_alpha=1e-3, ema_every=2, ema_after_warmup=True),
    "real": VIT.replace(more_evals="real"),
    "resnet": RESNET,
    "regnety": TrainConfig(**SMALL, model="regnety-1gf"),
    "convnext": TrainConfig(**SMALL, model="timm:convnext_atto", drop_path=0.1),
    "swin": TrainConfig(
        **{**SMALL, "resolution": 56}, model="timm:swin_tiny_patch4_window7_224", drop_path=0.1
    ),
}


def small(name: str, **fields: Any) -> TrainConfig:
    """A recipe of the papers with a small shape; data, batch, length and lr as above."""
    return TrainConfig(**{**RECIPES[name].fields, **SMALL, **TINY, **fields})


PARTS = {"mix_groups": 2}
RESUMED |= {
    "recipe xiao2021": small(
        "xiao2021",
        **PARTS,
        stem="conv",
        stem_channels="6-12-24",
        stem_strides="2-2-2",
        norm_batch=32,
        precise_bn=64,
    ),
    **{
        f"recipe {name}": small(name, **PARTS)
        for name in ("deit", "a2-S", "deit3-S", "depth-layerscale-12")
    },
    "recipe vit": small("vit"),
}
