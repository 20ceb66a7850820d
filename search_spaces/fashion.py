"""The fashion scale: ViT_P and ViT_C on Fashion-MNIST, small enough for hours of two cores.

10,000 test images show differences that the 400 of the demo cannot. Values that are not stated to
follow Xiao et al. 2021 are our own, chosen before any training.
"""

from search_spaces.winners import LABELS, found_or_chosen, good_values
from search_spaces.xiao2021 import around

# 49 tokens of 4x4 pixels; ViT_C has one block less and a stem of about the cost of a block (Xiao et
# al. 2021, section 3), with the demo's channels as multiples of the width. A test holds the two
# within 3% in FLOPs and 6% in parameters.
MODELS: dict[str, dict[str, object]] = {
    "ViT_P": {"patch_size": 4, "width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 4},
    "ViT_C": {"patch_size": 4, "width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 3,
              "stem": "conv", "stem_channels": "36-72", "stem_strides": "2-2"},
}  # fmt: skip

# No augmentation: nothing is seen more than three times. The averaged weights reach back a twelfth
# of the training, as in the demo; the warm-up is a sixth.
RECIPE: dict[str, object] = {
    "dataset": "fashion_mnist", "resolution": 28, "batch_size": 128, "epochs": 3,
    "warmup_epochs": 0.5, "ema_decay": 0.99,
}  # fmt: skip
HELD_OUT: dict[str, object] = {"minival_images": 10_000}  # as many as the test set has

PANELS = {"": ("ViT_P", "ViT_C")}  # panel of the figure -> models

# lr and wd of `studies/tune_lr_wd.py --scale fashion`, once `vitscale adopt tune_lr_wd-fashion` has
# written them; until then round values that are usual for small ViTs and for SGD at this batch.
_CHOSEN = {"adamw": (3e-3, 0.1), "sgd": (0.1, 1e-4)}
OPTIMA, FOUND = found_or_chosen("fashion", MODELS, _CHOSEN)
INTERVALS = {("ViT", optimizer): around(*good_values(OPTIMA, optimizer)) for optimizer in LABELS}

# Fine-tuning (part, optimizer) -> lr: the lowest mean error on minival of two parents with seeds 0
# and 1, of 0.003, 0.006, 0.012 and 0.024; ffn without the first, the head of 0.02 and 0.06.
FINETUNE_LR: dict[tuple[str, str], float] = {
    ("full", "AdamW"): 0.006, ("attn", "AdamW"): 0.006, ("ffn", "AdamW"): 0.012,
    ("head", "AdamW"): 0.06,
}  # fmt: skip
