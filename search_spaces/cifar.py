"""The cifar scale: ViT_P and ViT_C for 32x32 pixels, on CIFAR-10, for one GPU and hours.

Values that are not stated to follow Xiao et al. 2021 are our own, chosen before any training.
The notes of a study at this scale state whether lr and wd are such choices or were found by a
search.
"""

from search_spaces import demo
from search_spaces.winners import LABELS, found_or_chosen, good_values
from search_spaces.xiao2021 import around

# 64 tokens of 4x4 pixels, as many as fit 8x8 patches of the demo's ratio; hidden size, heads and
# MLP multiplier of the paper's 1GF models (Table 1) at half their depth. ViT_C has one block less
# and a stem by the rule of section 3 (a stride of 2 doubles the channels, a plain 1x1 follows),
# which costs about a block. A test holds the two within 3% in FLOPs and 6% in parameters.
MODELS: dict[str, dict[str, object]] = {
    "ViT_P": {"patch_size": 4, "width": 192, "heads": 3, "mlp_ratio": 3.0, "depth": 6},
    "ViT_C": {"patch_size": 4, "width": 192, "heads": 3, "mlp_ratio": 3.0, "depth": 5,
              "stem": "conv",
              "stem_channels": "48-96-192", "stem_strides": "1-2-2"},
}  # fmt: skip

# The usual augmentation of CIFAR (pad by 4, crop back, flip) and the paper's label smoothing; no
# policy and no mixing, which short schedules of small models do not repay. The averaged weights
# reach back 1.7 epochs, as in the demo 1.6.
RECIPE: dict[str, object] = {
    "dataset": "cifar10", "resolution": 32, "channels": 3, "num_classes": 10, "batch_size": 256,
    "epochs": 30,
    "crop_padding": 4, "flip_prob": 0.5, "label_smoothing": 0.1, "ema_decay": 0.997,
    "precision": "bf16",
}  # fmt: skip
HELD_OUT: dict[str, object] = {"minival_images": 5_000}  # as in the search for lr and wd

PANELS = {"": ("ViT_P", "ViT_C")}  # panel of the figure -> models

# lr and wd of `studies/tune_lr_wd.py --scale cifar`, once `vitscale adopt tune_lr_wd-cifar` has
# written them; until then round values that are usual for small ViTs and for SGD at this batch.
_CHOSEN = {"adamw": (1e-3, 0.1), "sgd": (0.1, 1e-4)}
OPTIMA, FOUND = found_or_chosen("cifar", MODELS, _CHOSEN)
INTERVALS = {("ViT", optimizer): around(*good_values(OPTIMA, optimizer)) for optimizer in LABELS}
# of the studies of lengths of training
STABILITY_NOTES = (
    FOUND + "They serve for all lengths: a gap at these values may be none at better ones."
)

# Architecture and recipe. CIFAR-10 has no second test set here, so the question of another one is
# left to other scales.
CELLS: dict[tuple[str, str], dict[str, object]] = {
    (model, label): {**RECIPE, **MODELS[model], "optimizer": optimizer, "lr": lr, "wd": wd}
    for label, optimizer in (("AdamW", "adamw"), ("SGD", "sgd"))
    for model in MODELS
    for lr, wd in [OPTIMA[model, optimizer]]
}

# Depth, width and branches: the shapes of the demo at 4 times the width, with heads of 32 channels
# and 64 patches of 4x4 pixels. The weights themselves are reported, as in Touvron et al. 2022. A
# minival held out of the training set chooses each shape's lr; there is no second test set here.
SHAPE_PANELS = demo.shape_panels(longer=40)  # epochs: a third more, as 400 are to 300
SHAPE_PAIRS = demo.shape_pairs(without_layerscale=True)
SHAPE_SIZES: dict[str, dict[str, object]] = {
    size: {**RECIPE, "patch_size": 4, "width": 4 * width, "heads": width // 8, "mlp_ratio": 4.0,
           "ema_decay": 0.0,
           "wd": 0.1, "minival_images": 5000, "more_evals": "minival"}
    for size, width in demo.SHAPE_WIDTHS.items()
}  # fmt: skip
