"""Models, batches, resolutions and layouts that are profiled at each scale, with their sources."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from search_spaces import xiao2021
from search_spaces.space import family
from search_spaces.touvron2022 import LAYERSCALE, SHAPE_PAIRS
from search_spaces.vit import SHAPES
from vitscale.catalog.epoch_times import DEVICES

# as torch names the V100 with 32 GB of the texts; of two forms of it, one
PAPERS_GPU = "Tesla V100-SXM2-32GB"
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # Touvron et al. 2022, Table 4
LAYOUTS = ("seq", "par")
Profile = Literal["inference", "training"]
PROFILES: tuple[Profile, ...] = get_args(Profile)


class Part(NamedTuple):
    """Models along axes, which are fields of a profile; the last axis varies fastest."""

    source: str
    profile: Profile
    models: dict[str, dict[str, Any]]
    axes: dict[str, tuple[Any, ...]]


def _parallel(
    base: dict[str, Any], widths: dict[str, int], heads: int, depth: int
) -> dict[str, dict[str, Any]]:
    """Models with two branches per block, and heads of one size."""
    return {
        f"{name}{depth}x2": {
            **base,
            "width": width,
            "heads": width // heads,
            "depth": depth,
            "branches": 2,
        }
        for name, width in widths.items()
    }


# Half precision, which the texts do not state or call mixed: by the multiply-adds of Table 3 of
# Touvron et al. 2022, its 286 images/s of B18x2 are 30 TFLOP/s, and the 11.5 minutes that an epoch
# of ViT_P-18GF takes in Table 1 of Xiao et al. 2021 are 24 TFLOP/s on each of 8 GPUs. A V100 has
# 15.7 in fp32. It has no bf16, so theirs was fp16.
_IMAGENET: dict[str, Any] = {
    "dataset": "imagenet",
    "channels": 3,
    "num_classes": 1000,
    "precision": "fp16",
}
_VITS = {size: {**_IMAGENET, **shape, "layerscale": LAYERSCALE} for size, shape in SHAPES.items()}


# an eighth of the batch is one part on one device
_NOT_TIMED = ("eval_crop_ratio", "norm_batch", "mix_groups")


def _xiao2021() -> dict[str, dict[str, Any]]:
    """Models of Tables 1 and 2 with the better optimizer and an eighth of the printed batch, as
    on each of 8 GPUs.
    """
    models: dict[str, dict[str, Any]] = {}
    for name, fields in xiao2021.MODELS.items():
        shape = {key: value for key, value in fields.items() if key not in _NOT_TIMED}
        optimizer = (
            {"optimizer": "sgd", "nesterov": True}
            if family(fields) == "RegNetY"
            else {"optimizer": "adamw"}
        )
        models[name] = {
            **_IMAGENET,
            **shape,
            **optimizer,
            "batch_size": xiao2021.BATCHES[name] // DEVICES,
            "label_smoothing": 0.1,
        }
    return models


_S18 = {f"{size}18x2": {**_IMAGENET, **SHAPES[size], "depth": 18, "branches": 2} for size in "SB"}
# Table 3 prints their peak memory, of inference by its size, and no protocol. That of B12x1 and
# L24x1, 2,077 and 3,788 MB, is what the thesis prints for ViT-B and ViT-L at batch 256 (2,078 and
# 3,789), so that is taken for all of them. L24x1, with LayerScale, is L of the thesis.
_TABLE_3 = {
    f"{shape.name}": {**_IMAGENET, **SHAPES[shape.size], "depth": shape.depth,
                      "branches": shape.branches,
                      "layerscale": LAYERSCALE * shape.layerscale}
    for shape in dict.fromkeys(shape for pair in SHAPE_PAIRS for shape in pair)
    if shape.size != "L" and not shape.ladder
}  # fmt: skip
IMAGENET = (
    Part("Touvron et al. 2022, Table 4", "inference", _S18,
         {"resolution": (224,), "batch_size": BATCHES, "layout": LAYOUTS}),
    Part("H. Touvron's thesis, 2022, Tables 6.7 and 6.8", "inference",
         {size: _VITS[size] for size in "SBL"},
         {"batch_size": (256,), "resolution": (224, 384)}),
    Part("H. Touvron's thesis, 2022, Tables 6.7 and 3.5", "inference",
         {size: _VITS[size] for size in ("Ti", "H")},
         {"batch_size": (256,), "resolution": (224,)}),
    Part("Touvron et al. 2022, Table 3", "inference", _TABLE_3,
         {"batch_size": (256,), "resolution": (224,), "layout": ("seq",)}),
    Part("Xiao et al. 2021, Tables 1 and 2", "training", _xiao2021(), {"layout": ("seq",)}),
)  # fmt: skip

# The axes of Table 4, and training, on models of the same form: 12 pairs in 6 blocks, two widths.
_CIFAR = _parallel({"dataset": "cifar10", "channels": 3, "patch_size": 4, "precision": "bf16"},
                   {"S": 192, "B": 384},
                   heads=64, depth=6)  # fmt: skip
CIFAR = tuple(
    Part("chosen", profile, _CIFAR, axes)
    for profile in PROFILES
    for axes in ({"resolution": (32,), "batch_size": (*BATCHES, 256, 1024), "layout": LAYOUTS},
                 {"resolution": (32, 64, 96), "batch_size": (64,), "layout": LAYOUTS})
)  # fmt: skip
_DEMO = _parallel({"dataset": "digits", "patch_size": 2}, {"S": 32, "B": 96}, heads=16, depth=6)
DEMO = tuple(
    Part("chosen", profile, _DEMO, axes)
    for profile in PROFILES
    for axes in ({"resolution": (8,), "batch_size": BATCHES, "layout": LAYOUTS},
                 {"resolution": (8, 16), "batch_size": (8,), "layout": LAYOUTS})
)  # fmt: skip
