"""Xiao et al. 2021, Early Convolutions Help Transformers See Better: models, tuned optima,
intervals, recipe.
"""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import FloatDistribution

from search_spaces.recipes import XIAO2021
from vitscale.catalog.epoch_times import DEVICES
from vitscale.catalog.tables import table_rows

# Table 1, at 224 pixels and patch 16: hidden size, MLP multiplier, heads, blocks of ViT_P. ViT_C
# has one block less.
_SHAPES = {
    "1GF": {"width": 192, "mlp_ratio": 3.0, "heads": 3, "depth": 12},
    "4GF": {"width": 384, "mlp_ratio": 3.0, "heads": 6, "depth": 12},
    "18GF": {"width": 768, "mlp_ratio": 4.0, "heads": 12, "depth": 12},
    "36GF": {"width": 1024, "mlp_ratio": 4.0, "heads": 16, "depth": 14},
}
# Section 3: 3x3 convolutions, each with BatchNorm and ReLU, then a plain 1x1 to the hidden size. A
# stride of 2 doubles the channels and a stride of 1 keeps them; that fixes the strides, which the
# text does not list.
_STEMS = {
    "1GF": {"stem_channels": "24-48-96-192", "stem_strides": "2-2-2-2"},
    "4GF": {"stem_channels": "48-96-192-384", "stem_strides": "2-2-2-2"},
    "18GF": {"stem_channels": "64-128-128-256-256-512", "stem_strides": "2-2-1-2-1-2"},
}
_STEMS["36GF"] = _STEMS["18GF"]
# Appendix A, Table 3: stems of the 4GF model, "C" that of ViT_C-4GF; each ends in a plain 1x1 to
# 384 channels, and all but P stand before a block less. Of S1 the copy at hand has 42 channels for
# 52: only 52 gives the printed 422 M multiply-adds, 0.8 M parameters and 1.3 M activations, and
# doubles to 104, 208 and 416.
STEMS_4GF: dict[str, dict[str, object]] = {
    "P": {},
    "C": {"stem": "conv", **_STEMS["4GF"]},
    "S1": {
        "stem": "conv",
        "stem_channels": "52-104-208-416",
        "stem_strides": "2-2-2-2",
        "stem_kernels": "3-3-3-2",
    },
    "S2": {
        "stem": "conv",
        "stem_channels": "32-64-128-256",
        "stem_strides": "2-2-1-4",
        "stem_kernels": "3-3-3-4",
    },
    "S3": {
        "stem": "conv",
        "stem_channels": "17-34-68-136",
        "stem_strides": "2-1-1-8",
        "stem_kernels": "3-3-3-8",
    },
    "S4": {
        "stem": "conv",
        "stem_channels": "8-16-32-64",
        "stem_strides": "1-1-1-16",
        "stem_kernels": "3-3-3-16",
    },
}

MODELS: dict[str, dict[str, object]] = {
    f"ViT_P-{size}": {"patch_size": 16, "resolution": 224, **shape}
    for size, shape in _SHAPES.items()
}
MODELS |= {
    f"ViT_C-{size}": {
        **MODELS[f"ViT_P-{size}"],
        "depth": shape["depth"] - 1,
        "stem": "conv",
        **_STEMS[size],
    }
    for size, shape in _SHAPES.items()
}
# Table 2; trained at resolutions of their own, which the text leaves to its references. These, and
# the size to which the shorter side is brought before the centre crop of an evaluation, are those
# of the authors' code.
MODELS |= {
    "RegNetY-1GF": {"model": "regnety-1gf", "resolution": 232, "eval_crop_ratio": 232 / 262},
    "RegNetY-4GF": {"model": "regnety-4gf", "resolution": 240, "eval_crop_ratio": 240 / 272},
    "RegNetY-16GF": {"model": "regnety-16gf", "resolution": 256, "eval_crop_ratio": 256 / 292},
}
# Images on each GPU. Table 2 prints the batch that 8 GPUs hold, and larger models took more of them
# to 2048 images (its caption, and appendix D): a GPU takes BatchNorm's statistics over its own
# images, and draws its own mixup.
BATCHES = {row["model"]: int(row["batch_size"]) for row in table_rows("xiao2021_table2")}

# The other CNNs of Table 2 at peak performance, at the sizes of the authors' configuration files
# (EfficientNets: those of their baselines). RegNetZ is not among them: the paper leaves its models
# to a reference. Section 6 scales lr with the batch (appendix E), which is smaller for
# EfficientNet-B4 and B5; the others took more GPUs.
PEAK_MODELS: dict[str, dict[str, object]] = {
    "RegNetY-32GF": {"model": "regnety-32gf", "resolution": 268, "eval_crop_ratio": 268 / 304},
    **{f"ResNet-{depth}": {"model": f"timm:resnet{depth}", "resolution": 224}
       for depth in (50, 101, 152, 200)},
    "EffNet-B2": {"model": "timm:efficientnet_b2", "resolution": 260, "eval_crop_ratio": 260 / 298},
    "EffNet-B4": {"model": "timm:efficientnet_b4", "resolution": 380, "batch_size": 512,
                  "eval_crop_ratio": 380 / 434},
    "EffNet-B5": {"model": "timm:efficientnet_b5", "resolution": 456, "batch_size": 256,
                  "eval_crop_ratio": 456 / 522},
}  # fmt: skip


def on_gpus(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model with BatchNorm's images and the groups of mixup of its GPUs."""
    images = BATCHES[name] // DEVICES
    groups = fields.get("batch_size", 2048) // images
    return {**fields, "norm_batch": images, "mix_groups": groups}


MODELS = {name: on_gpus(name, fields) for name, fields in MODELS.items()}
PEAK_MODELS = MODELS | {name: on_gpus(name, fields) for name, fields in PEAK_MODELS.items()}

# Figures 4 and 5: the models of a panel.
PANELS = {
    "1GF": ("ViT_P-1GF", "ViT_C-1GF", "RegNetY-1GF"),
    "4GF": ("ViT_P-4GF", "ViT_C-4GF", "RegNetY-4GF"),
    "18GF": ("ViT_P-18GF", "ViT_C-18GF", "RegNetY-16GF"),
}

# Table 4, left (appendix E): optimum (lr, wd) at 50 epochs; lr at batch 2048.
OPTIMA = {
    ("RegNetY-1GF", "adamw"): (3.8e-3, 0.1),
    ("RegNetY-4GF", "adamw"): (3.8e-3, 0.1),
    ("RegNetY-16GF", "adamw"): (3.8e-3, 0.1),
    ("ViT_P-1GF", "adamw"): (2.0e-3, 0.20),
    ("ViT_P-4GF", "adamw"): (2.0e-3, 0.20),
    ("ViT_P-18GF", "adamw"): (1.0e-3, 0.24),
    ("ViT_C-1GF", "adamw"): (2.5e-3, 0.19),
    ("ViT_C-4GF", "adamw"): (1.0e-3, 0.24),
    ("ViT_C-18GF", "adamw"): (1.0e-3, 0.24),
    ("RegNetY-1GF", "sgd"): (2.54, 2.4e-5),
    ("RegNetY-4GF", "sgd"): (2.54, 2.4e-5),
    ("RegNetY-16GF", "sgd"): (2.54, 2.4e-5),
    ("ViT_P-1GF", "sgd"): (1.9, 1.3e-5),
    ("ViT_P-4GF", "sgd"): (1.9, 1.3e-5),
    ("ViT_P-18GF", "sgd"): (1.1, 1.2e-5),
    ("ViT_C-1GF", "sgd"): (1.9, 1.3e-5),
    ("ViT_C-4GF", "sgd"): (1.3, 2.2e-5),
    ("ViT_C-18GF", "sgd"): (1.1, 2.7e-5),
}


# Appendix A and B: stems S1 to S4 (Table 3), BN and ReLU after the patchify stem, layer norm in the
# convolutional one (Figure 7), and deeper models (Figure 8). The images on a GPU of a deeper one
# are not printed: those of 18GF.
TABLE_3 = ("ViT_P-4GF", "ViT_C-4GF", "S1", "S2", "S3", "S4")
FIGURE_7 = {
    "patchify": ("ViT_P-4GF", "ViT_P(bn)-4GF"),
    "convolutions": ("ViT_C-4GF", "ViT_C(ln)-4GF"),
}
FIGURE_8 = {
    "16GF": ("ViT_P-16GF", "ViT_C-16GF"),
    "patchify": ("ViT_P-16GF", "ViT_P-4GF", "ViT_P-18GF"),
    "convolutions": ("ViT_C-16GF", "ViT_C-4GF", "ViT_C-18GF"),
}
TABLE_3_ERRORS = {
    f"{row['model'] or row['stem']} {label}": float(row[column])
    for row in table_rows("xiao2021_table3")
    for label, column in (("AdamW", "error_adamw_pct"), ("SGD", "error_sgd_pct"))
}
FIGURE_7_ERRORS = {  # after 100 epochs
    "ViT_P-4GF": 23.2,
    "ViT_P(bn)-4GF": 23.3,
    "ViT_C-4GF": 20.9,
    "ViT_C(ln)-4GF": 21.1,
}
_DEEPER = {name: MODELS["ViT_P-18GF"][name] for name in ("norm_batch", "mix_groups")}
_APPENDIX: dict[str, tuple[str, dict[str, object]]] = {  # -> (like which model, but)
    "ViT_P(bn)-4GF": ("ViT_P-4GF", {"stem": "patchify_bn_relu"}),
    "ViT_C(ln)-4GF": ("ViT_C-4GF", {"stem_norm": "ln"}),
    "ViT_P-16GF": ("ViT_P-4GF", {"depth": 48, **_DEEPER}),
    "ViT_C-16GF": ("ViT_C-4GF", {"depth": 47, **_DEEPER}),
    **{name: ("ViT_C-4GF", STEMS_4GF[name]) for name in ("S1", "S2", "S3", "S4")},
}


def at_optimum(model: str, optimizer: str) -> dict[str, object]:
    """Fields of a model at its optimum of Table 4; those of the appendix, whose own are tuned and
    not printed, at that of the 4GF model that they are changed from.
    """
    like, but = _APPENDIX.get(model, (model, {}))
    lr, wd = OPTIMA[like, optimizer]
    return {**MODELS[like], **but, "optimizer": optimizer, "lr": lr, "wd": wd}


def interval(lr: tuple[float, float], wd: tuple[float, float]) -> dict[str, FloatDistribution]:
    """Log-uniform lr and wd.

    The paper does not name the distribution; log-uniform is that of the authors' code.
    """
    return {"lr": FloatDistribution(*lr, log=True), "wd": FloatDistribution(*wd, log=True)}


# Table 4, right: one interval a family and optimizer, for all sizes and both stems. Appendix E
# builds them from a good value times 1/8 and times 4: models train with smaller values, but not
# with larger ones.
INTERVALS = {
    ("ViT", "adamw"): interval((2.5e-4, 8.0e-3), (0.02, 0.8)),
    ("ViT", "sgd"): interval((0.1, 3.2), (4.0e-6, 1.2e-4)),
    ("RegNetY", "adamw"): interval((1.25e-3, 4.0e-2), (0.0075, 0.24)),
    ("RegNetY", "sgd"): interval((0.25, 8.0), (3.0e-6, 8.0e-5)),
}


def around(lr: float, wd: float) -> dict[str, FloatDistribution]:
    """The interval by the rule of appendix E around good values: times 1/8 and times 4."""
    return interval((lr / 8, lr * 4), (wd / 8, wd * 4))


# each value with its source in search_spaces/recipes.py
RECIPE: dict[str, object] = {**XIAO2021.fields}
# The text names no held-out images. 0.8% of the training set, as in our search for lr and wd.
HELD_OUT: dict[str, object] = {"minival_images": 10_000}

NOTES = (
    "The paper's models, intervals, optima and recipe. Where its text is silent (crops, the decay "
    "of the averaged weights) the values are those of the authors' code. BatchNorm's statistics "
    "and the draws of mixup are over the images of one of their GPUs: 256, and 128 for the 16GF "
    "and 18GF models (Table 2). 10,000 training images are held out, which the paper does not "
    "mention. The code's colour jitter along principal components and its "
    "initialisation of the stems are not reproduced."
)

# of the studies of lengths of training, Figures 2 and 3
STABILITY_NOTES = (
    "lr and wd are the optima of Table 4, found at 50 epochs for each model and optimizer, and "
    "serve for all lengths, as in the paper. One run a cell, seed 0: no interval. " + NOTES
)
