"""The demo scale: ViT_P and ViT_C small enough for a laptop, on scikit-learn's digits."""

from search_spaces.touvron2022 import Shape, split, trained
from search_spaces.winners import LABELS, good_values, in_words, optima, tuned
from search_spaces.xiao2021 import around

# 16 tokens of 2x2 pixels; ViT_C has one block less than ViT_P, and a stem of about the cost of a
# block, as in Xiao et al. 2021, section 3. A test holds the two within 3% in FLOPs and 6% in
# parameters.
MODELS: dict[str, dict[str, object]] = {
    "ViT_P": {"width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 3},
    "ViT_C": {"width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 2, "stem": "conv",
              "stem_channels": "36-72", "stem_strides": "1-2"},
}  # fmt: skip

# No augmentation: 8x8 digits leave no room to shift, and are not symmetric.
RECIPE: dict[str, object] = {"dataset": "digits", "batch_size": 32, "epochs": 20, "ema_decay": 0.98}
HELD_OUT: dict[str, object] = {}  # digits have a minival of their own

PANELS = {"": ("ViT_P", "ViT_C")}  # panel of the figure -> models

# The winners of studies/tune_lr_wd.py with their provenance are data: tuned/demo.json. Each is the
# best of its arm's points on the 200 images of minival, where one image is half a point: others are
# as good within the noise of seeds.
_FOUND = tuned("demo")
assert _FOUND is not None, "search_spaces/tuned/demo.json belongs to the package"
OPTIMA = optima(_FOUND, MODELS)

# One interval an optimizer for both models, as in the paper: its rule around the geometric mean of
# the winners.
GOOD = {optimizer: good_values(OPTIMA, optimizer) for optimizer in LABELS}
INTERVALS = {("ViT", optimizer): around(*pair) for optimizer, pair in GOOD.items()}

FOUND = in_words(_FOUND)  # how OPTIMA were found: a sentence for notes
# of the studies of lengths of training
STABILITY_NOTES = FOUND + (
    "They serve for all lengths: part of a gap at another length may be an lr that does "
    "not suit it. The shortest schedule warms up for half of its epochs. Models of 0.07 M "
    "parameters on 997 images of 8x8 pixels: no evidence about the paper's models on "
    "ImageNet."
)

# Architecture and recipe, at lr and wd of OPTIMA; each trial also reports the error on the 200
# images of the test set.
CELLS: dict[tuple[str, str], dict[str, object]] = {
    (model, label): {
        **RECIPE,
        **MODELS[model],
        "optimizer": optimizer,
        "lr": lr,
        "wd": wd,
        "more_evals": "test",
    }
    for label, optimizer in (("AdamW", "adamw"), ("SGD", "sgd"))
    for model in MODELS
    for lr, wd in [OPTIMA[model, optimizer]]
}


# Depth, width and branches: the figures of Touvron et al. 2022 at a third of their pairs and fewer.
# Widths double as from S to B, heads have one number of channels, and 8 narrow pairs cost what 2 of
# twice the width do, within 7% in parameters and multiply-adds, which a test holds. These are all
# of them, for the scale cifar; the demo has fewer.
def shape_panels(longer: int) -> dict[str, tuple[Shape, ...]]:
    """Title -> the shapes of a figure; those of Table 2 are also trained for `longer` epochs."""
    return {
        "branches": split("S", 12, 4),
        "widths": (*split("Ti", 4), *split("S", 4), *split("B", 4)),
        "depths": (*split("S", 4), *split("S", 8), *split("S", 12), *split("B", 2), *split("B", 4)),
        "LayerScale and epochs": trained(split("S", 12), longer),
        "blocks or width": (
            *split("S", 8),
            Shape("B", 2),
            *split("S", 12, layerscale=True),
            Shape("B", 3, 1, True),
        ),
    }


def shape_pairs(*, without_layerscale: bool) -> tuple[tuple[Shape, Shape], ...]:
    """More blocks, and a wider model of about equal cost: 12 pairs with LayerScale, and 8
    without.
    """
    eight = tuple((deep, Shape("B", 2)) for deep in split("S", 8)) if without_layerscale else ()
    return *eight, *((deep, Shape("B", 3, 1, True)) for deep in split("S", 12, layerscale=True))


# Nine shapes with five seeds each cost what twenty-one with two do, and two seeds can show nothing
# after a correction for the number of comparisons, whatever the difference; vitscale.analysis.power
# says what five can.
SHAPE_PANELS: dict[str, tuple[Shape, ...]] = {
    "branches": split("S", 12, 4),
    "depths": (*split("S", 4), *split("S", 12)),
    "LayerScale": (*split("S", 12), *split("S", 12, layerscale=True)),
    "blocks or width": (*split("S", 12, layerscale=True), Shape("B", 3, 1, True)),
}
SHAPE_PAIRS = shape_pairs(without_layerscale=False)
SHAPE_WIDTHS = {"Ti": 16, "S": 24, "B": 48}
# A larger batch and fewer epochs than RECIPE, so that a training of 12 pairs takes as long as one
# of its 3. The weights themselves are reported, as in the paper.
SHAPE_SIZES: dict[str, dict[str, object]] = {
    size: {"dataset": "digits", "batch_size": 64, "epochs": 10, "warmup_epochs": 2.0, "wd": 0.1,
           "width": width,
           "heads": width // 8, "mlp_ratio": 4.0, "more_evals": "minival,test"}
    for size, width in SHAPE_WIDTHS.items()
}  # fmt: skip

# Stems: digits at 32 pixels in patches of 8, so that a token is 2x2 pixels of an 8x8 image, as
# everywhere here, and stems of several layers are themselves. Crops are the whole image: a pure
# resize. wd is the mean of what was found for ViT_P and ViT_C. The convolutions cost 23% and 26%
# more than patchify, a block 32%, hMLP 0.06%, which a test holds.
STEM_BASE: dict[str, object] = {
    **RECIPE, **MODELS["ViT_P"], "optimizer": "adamw", "wd": GOOD["adamw"][1],
    "resolution": 32, "patch_size": 8, "crop": "rrc", "crop_scale_min": 1.0,
}  # fmt: skip
# lr: the lowest mean error on minival of two trainings with seeds 0 and 1, of 2.5e-3, 5e-3, 1e-2
# and 2e-2; on 200 images, others are as good within the noise.
STEMS: dict[str, dict[str, object]] = {
    "patchify": {"lr": 5e-3},
    "patchify, 4 blocks": {"depth": 4, "lr": 1e-2},
    "patchify BN": {"stem": "patchify_bn", "lr": 5e-3},
    "conv": {"stem": "conv", "stem_channels": "12-24-48", "stem_strides": "2-2-2", "lr": 1e-2},
    "Graham": {"stem": "graham", "lr": 1e-2},
    "hMLP": {"stem": "hmlp", "lr": 2.5e-3},
    "hMLP LN": {"stem": "hmlp", "stem_norm": "ln", "lr": 2.5e-3},
}

# Fine-tuning (part, optimizer) -> lr: the lowest mean error on minival of two parents with seeds 0
# and 1, of four or five values each. No weight decay with SGD, and 0.1 with AdamW.
FINETUNE_LR: dict[tuple[str, str], float] = {
    ("full", "AdamW"): 0.01, ("attn", "AdamW"): 0.01, ("ffn", "AdamW"): 0.02,
    ("head", "AdamW"): 0.04,
    ("full", "SGD"): 0.02, ("attn", "SGD"): 0.03, ("ffn", "SGD"): 0.1, ("head", "SGD"): 0.1,
}  # fmt: skip

# lr of ViT_P and ViT_C at half and twice the width of MODELS, with its wd: the lowest mean
# minival_ema_error_pct of seeds 0 and 1, of 1.25e-3, 2.5e-3, 5e-3, 0.01 and 0.02. ViT_C is best at
# the edges, but its error is flat there: 1.5 to 3.5% at width 24, and 1.5 to 2.5% at width 96 below
# 0.02. ViT_P has 3.0 to 12.3% and 3.5 to 26.5%.
PEAK_LR: dict[tuple[str, int], float] = {
    ("ViT_P", 24): 0.01, ("ViT_P", 96): 0.0025, ("ViT_C", 24): 0.02, ("ViT_C", 96): 0.00125,
}  # fmt: skip
