"""Published training recipes on ImageNet-1k as fields of TrainConfig, each value with its source.

What the text of a paper leaves open is `unstated`, with the reason for the value chosen: as a rule
that of the authors' public code, and for the ends of the learning rate schedule the plain reading
of the text. A recipe leaves the shape of the model open: `TrainConfig(**{**RECIPES["deit"].fields,
**search_spaces.vit.SHAPES["S"]})`.

The thesis is that of Touvron, 2022; its chapters 3 and 6 are DeiT, LayerScale and DeiT III.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Scalar = str | int | float  # and bool, which is an int


class Value(NamedTuple):
    """The value of a field, and the paper and place that state it; of one that is not stated, the
    reason for the choice.
    """

    value: Scalar
    source: str
    stated: bool = True


Values = dict[str, Value]


@dataclass(frozen=True)
class Recipe:
    """Fields of TrainConfig with their sources, for models of some sizes.

    `sizes` are keys of search_spaces.vit.SHAPES or of search_spaces.xiao2021.MODELS.
    """

    name: str
    sizes: tuple[str, ...]
    values: Values

    @property
    def fields(self) -> dict[str, Any]:
        """Field -> value, for TrainConfig."""
        return {field: entry.value for field, entry in self.values.items()}

    @property
    def unstated(self) -> dict[str, str]:
        """Field -> reason, for the values that no paper states."""
        return {field: entry.source for field, entry in self.values.items() if not entry.stated}

    def but(self, name: str, values: Values, sizes: tuple[str, ...] = ()) -> Recipe:
        """A variant: changed or added values, and other sizes if given."""
        return replace(self, name=name, values={**self.values, **values}, sizes=sizes or self.sizes)


def stated(source: str, **fields: Scalar) -> Values:
    return {field: Value(value, source) for field, value in fields.items()}


def unstated(reason: str, **fields: Scalar) -> Values:
    return {field: Value(value, reason, stated=False) for field, value in fields.items()}


# dict(**a, **b) refuses a field that two sources of one recipe state.

_IMAGENET = stated(
    "ImageNet-1k (Russakovsky et al. 2015)", dataset="imagenet", num_classes=1000, channels=3
)
_SCHEDULE_ENDS = unstated(
    "the text says linear warm-up and cosine decay and no more; public codes start between 0 and "
    "a tenth of the peak, and end between 0 and a hundredth",
    warmup_start=0.0,
    decay_floor=0.0,
)
_MIXING = unstated(
    (
        "as in the authors' code: each group of images is mixed, by either method with the same "
        "probability"
    ),
    mix_prob=1.0,
    cutmix_share=0.5,
)
_GROUPS = (
    "no text says over how many images a share is drawn; the authors' code draws one in each "
    "process, "
)
_BF16 = unstated(
    "mixed precision; bf16 in place of fp16, which would need a loss scale", precision="bf16"
)

# --- Xiao et al. 2021, Early Convolutions Help Transformers See Better ----------------------------

# The authors' code also jitters the colours along their principal components (standard deviation
# 0.1), sets the learning rate once an epoch, and initialises in ways of its own: none of that is in
# the text, nor here.
_XIAO = "Xiao et al. 2021, section 5.4"
_XIAO_CODE = "the default of the authors' code (pycls)"

XIAO2021 = Recipe(
    "xiao2021",
    ("ViT_P-1GF", "ViT_P-4GF", "ViT_P-18GF", "ViT_C-1GF", "ViT_C-4GF", "ViT_C-18GF",
     "RegNetY-1GF", "RegNetY-4GF", "RegNetY-16GF"),
    dict(
        **_IMAGENET,
        **stated("Xiao et al. 2021, section 5.3: for the distributions over lr and wd", epochs=50),
        **stated(
            _XIAO, batch_size=2048, warmup_epochs=5.0, decay="cosine", momentum=0.9, beta1=0.9,
            beta2=0.999,
            augment="autoaugment", mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1,
            repeats=1,
        ),
        **stated("Xiao et al. 2021, Table 5: neither, nor repeats, in the default setup",
                 erasing_prob=0.0, drop_path=0.0),
        **stated("Xiao et al. 2021, Table 4: learning rates are for a batch of 2048",
                 lr_batch=2048),
        **unstated("label smoothing and the code imply it", loss="ce"),
        **unstated(_XIAO_CODE, crop="rrc", crop_scale_min=0.08, flip_prob=0.5, nesterov=True),
        **unstated("the nearest to the authors' code: zero head, Xavier-uniform MLPs",
                   weight_init="jax"),
        **unstated("the code crops 224 pixels from a shorter side of 256",
                   eval_crop_ratio=224 / 256),
        **unstated("the text excludes norm gains and biases and nothing else, and so does the code",
                   decay_tokens=True),
        **unstated("the text names no clipping, and the code has none", clip_norm=0.0),
        **unstated(
            (
                "inference takes an average of the weights; no text gives its decay, the code "
                "derives it so"
            ),
            ema_alpha=1e-5, ema_every=32, ema_after_warmup=True,
        ),
        **unstated(f"{_XIAO_CODE}, before each evaluation", precise_bn=8192),
        **unstated(
            "the code takes BatchNorm's statistics on each GPU, and Table 2 has 2048 images on 8 "
            "for models up to 4GF; others have their own number in search_spaces.xiao2021",
            norm_batch=256,
        ),
        **unstated(f"{_GROUPS}with as many images as BatchNorm's statistics have", mix_groups=8),
        **_SCHEDULE_ENDS, **_MIXING, **_BF16,
    ),
)  # fmt: skip

_PEAK = "Xiao et al. 2021, section 6"
_XIAO_PEAK = XIAO2021.but("xiao2021-peak", stated(_PEAK, epochs=400))
XIAO2021_PEAK_CNN = _XIAO_PEAK.but(
    "xiao2021-peak-cnn",
    stated(_PEAK, optimizer="sgd", lr=2.54, wd=2.4e-5),
    ("RegNetY-1GF", "RegNetY-4GF", "RegNetY-16GF"),
)
XIAO2021_PEAK_VIT = _XIAO_PEAK.but(
    "xiao2021-peak-vit",
    stated(_PEAK, optimizer="adamw", lr=1.0e-3, wd=0.24, resolution=224),
    ("ViT_P-1GF", "ViT_P-4GF", "ViT_P-18GF", "ViT_C-1GF", "ViT_C-4GF", "ViT_C-18GF"),
)
XIAO2021_PEAK_36GF = XIAO2021_PEAK_VIT.but(
    "xiao2021-peak-vit-36gf",
    # A later branch of the code has 7e-4 and 0.24.
    stated(_PEAK, lr=6.0e-4, wd=0.28),
    ("ViT_P-36GF", "ViT_C-36GF"),
)

# --- the recipes of Touvron et al. ----------------------------------------------------------------

_TOUVRON_CODE = unstated(
    "as in the authors' public code (deit)",
    crop_scale_min=0.08, beta1=0.9, beta2=0.999, epsilon=1e-8, decay_tokens=False,
)  # fmt: skip
_NO_AVERAGE = unstated("the papers report the weights themselves", ema_decay=0.0)
_NO_POSITION = unstated(
    "in the authors' code (models_v2) the class token has no position", embed_token=False
)
_INIT = unstated(
    "a truncated normal distribution as in DeiT (thesis, section 3.4.5)", weight_init="trunc_normal"
)
_PRESENT = unstated(
    (
        "in the authors' public code (deit) a class of a mixed image is there or not, whatever "
        "its share"
    ),
    bce_targets="present",
)
_REPEATS = stated("thesis, section 3.4.5: three augmentations of each image", repeats=3)
_REPEATS_AS_DEIT = unstated(
    "Table 6.1 says that there is repeated augmentation; three of each image are DeiT's (thesis, "
    "section 3.4.5)",
    repeats=3,
)

# DeiT (Touvron et al. 2021), as the thesis prints it.
_T39 = "thesis, Table 3.9, column DeiT-B"
DEIT = Recipe(
    "deit",
    ("Ti", "S", "B"),
    dict(
        **_IMAGENET,
        **stated(
            _T39, epochs=300, optimizer="adamw", lr=5e-4, lr_batch=512, decay="cosine", wd=0.05,
            warmup_epochs=5.0,
            label_smoothing=0.1, dropout=0.0, drop_path=0.1, clip_norm=0.0, augment="randaugment",
            randaugment_magnitude=9.0, randaugment_std=0.5, mixup_alpha=0.8, cutmix_alpha=1.0,
            erasing_prob=0.25,
        ),
        **stated(_T39, batch_size=1024), **_REPEATS,
        **stated("thesis, Table 3.11: its drop rate of 0.1 is progressive in depth",
                 drop_path_rule="linear"),
        **stated("thesis, Table 6.1, column DeiT", crop="rrc", eval_crop_ratio=0.875,
                 color_jitter=0.0, loss="ce"),
        **stated("thesis, Table 6.1, column DeiT: no LayerScale", layerscale=0.0),
        **unstated("Table 6.1 says that there is a flip", flip_prob=0.5),
        **unstated("RandAugment 9/0.5 is rand-m9-mstd0.5 in the code, with two operations",
                   randaugment_ops=2),
        **unstated(
            (
                f"{_GROUPS}256 images in its commands; section 3.4.5 of the thesis has 4 GPUs for "
                "Ti and S"
            ), mix_groups=4
        ),
        **stated("thesis, Table 3.1", resolution=224),
        **stated("thesis, section 3.4.5: a truncated normal distribution",
                 weight_init="trunc_normal"),
        **_TOUVRON_CODE, **_NO_AVERAGE, **_SCHEDULE_ENDS, **_MIXING, **_BF16,
    ),
)  # fmt: skip

# Touvron et al. 2022, Three things everyone should know about Vision Transformers: procedure A2 of
# Wightman et al. 2021 with a loss, learning rates, drop rates and lengths of its own.
_THREE = "Touvron et al. 2022, section 2.2"
_T61_A2 = "thesis, Table 6.1, column Wightman et al."
_A2 = Recipe(
    "a2",
    ("Ti", "S", "B", "L"),
    dict(
        **_IMAGENET,
        **stated(_THREE, loss="bce", epochs=300, layerscale=0.0),
        **stated("Touvron et al. 2022, section 2.3", resolution=224),
        **stated(
            _T61_A2, optimizer="lamb", decay="cosine", wd=0.02, warmup_epochs=5.0,
            label_smoothing=0.0, dropout=0.0,
            clip_norm=1.0, crop="rrc", augment="randaugment", randaugment_magnitude=7.0,
            randaugment_std=0.5,
            cutmix_alpha=1.0, erasing_prob=0.0, color_jitter=0.0, eval_crop_ratio=0.95,
        ),
        **stated(f"{_T61_A2}; public A2 recipes have 0.1, and 0.2 in A1", mixup_alpha=0.2),
        **stated(_T61_A2, batch_size=2048), **_REPEATS_AS_DEIT, **_PRESENT,
        **unstated("Table 6.1 says that there is a flip", flip_prob=0.5),
        **unstated("RandAugment 7/0.5 is rand-m7-mstd0.5 in the code, with two operations",
                   randaugment_ops=2),
        **unstated(f"{_GROUPS}256 images in the command for ViT-S and ViT-B of DeiT III",
                   mix_groups=8),
        **unstated(
            (
                "the same in all blocks, as in DeiT III and in the LayerScale paper, after which "
                "section 2.2 adjusts it"
            ),
            drop_path_rule="uniform",
        ),
        **_INIT, **_NO_POSITION, **_TOUVRON_CODE, **_NO_AVERAGE, **_SCHEDULE_ENDS, **_MIXING,
        **_BF16,
    ),
)  # fmt: skip
_A2_SIZES = {
    "Ti": stated(_THREE, lr=4e-3, drop_path=0.0),
    "S": stated(_THREE, lr=4e-3, drop_path=0.05),
    "B": stated(_THREE, lr=3e-3, drop_path=0.1),
    "L": stated(_THREE, lr=3e-3, drop_path=0.4),
}
_A2_LAYERSCALE = {
    **stated(_THREE, epochs=400),
    **unstated(
        "1e-4 for all models in the thesis, section 6.2.1, and in the authors' code",
        layerscale=1e-4,
    ),
}
A2 = {size: _A2.but(f"a2-{size}", values, (size,)) for size, values in _A2_SIZES.items()}
A2_LAYERSCALE = {size: A2[size].but(f"a2-layerscale-{size}", _A2_LAYERSCALE) for size in A2}

# DeiT III on ImageNet-1k, as the thesis prints it. The public commands (README_revenge) are those
# of 800 epochs.
_T61 = "thesis, Table 6.1, column ImNet-1k"
_T614 = "thesis, Table 6.14"
_DEIT3 = Recipe(
    "deit3",
    ("Ti", "S", "B", "L", "H"),
    dict(
        **_IMAGENET,
        **stated("thesis, section 6.3.1", epochs=400, resolution=224),
        **stated(f"{_T61}; the command for ViT-S has 4e-3", lr=3e-3),
        **stated(
            _T61, optimizer="lamb", decay="cosine", wd=0.02, warmup_epochs=5.0,
            label_smoothing=0.0, dropout=0.0,
            clip_norm=1.0, crop="rrc", augment="3augment", mixup_alpha=0.8, cutmix_alpha=1.0,
            erasing_prob=0.0,
            color_jitter=0.3, eval_crop_ratio=1.0, loss="bce",
        ),
        **stated(_T61, batch_size=2048), **_REPEATS_AS_DEIT, **_PRESENT,
        **unstated("Table 6.1 says that there is a flip", flip_prob=0.5),
        **stated("thesis, section 6.2.1", layerscale=1e-4, drop_path_rule="uniform"),
        **unstated(f"{_GROUPS}256 images in the commands for ViT-S and ViT-B", mix_groups=8),
        **_INIT, **_NO_POSITION, **_TOUVRON_CODE, **_NO_AVERAGE, **_SCHEDULE_ENDS, **_MIXING,
        **_BF16,
    ),
)  # fmt: skip
_DEIT3_GROUPS = unstated(f"{_GROUPS}64 images in the commands for ViT-L and ViT-H", mix_groups=32)
_DEIT3_DROP_PATH = {"Ti": 0.0, "S": 0.0, "B": 0.1, "L": 0.4, "H": 0.5}
DEIT3 = {
    size: _DEIT3.but(
        f"deit3-{size}",
        {**stated(_T614, drop_path=p), **(_DEIT3_GROUPS if size in "LH" else {})},
        (size,),
    )
    for size, p in _DEIT3_DROP_PATH.items()
}


def longer(size: str, epochs: int) -> Recipe:
    """DeiT III beyond 400 epochs: weight decay 0.05, and a drop rate that is higher by 0.05 for
    every 200 epochs.

    The rule is that of the thesis, section 6.4. The public commands for 800 epochs follow it for
    B (0.2) and H (0.6), and are 0.05 below it for S (0.05) and L (0.45). Raises ValueError for
    lengths other than 600, 800, 1000, ...
    """
    if epochs <= 400 or epochs % 200:
        raise ValueError(f"epochs in (600, 800, 1000, ...) must hold, but got (epochs={epochs})")
    drop_path = round(_DEIT3_DROP_PATH[size] + 0.05 * (epochs - 400) / 200, 2)
    values = stated("thesis, section 6.4", epochs=epochs, wd=0.05, drop_path=drop_path)
    return DEIT3[size].but(f"deit3-{epochs}-{size}", values)


DEIT3_LONGER = {(size, epochs): longer(size, epochs) for epochs in (600, 800) for size in DEIT3}

# LayerScale and depth (thesis, section 3.5.2): DeiT-S of 12 to 36 blocks with the DeiT recipe, drop
# rates uniform.
_T311 = "thesis, Table 3.11"
_DEPTH = DEIT.but(
    "depth", stated(f"{_T311}: a uniform drop rate", drop_path_rule="uniform"), ("S",)
)
_LAYERSCALE_INIT = {12: 0.1, 18: 0.1, 24: 1e-5, 36: 1e-6}
_BASELINE_DROP_PATH = {12: 0.05, 18: 0.10, 24: 0.20, 36: 0.25}
# Printed as min(0.1 * depth / 12 - 1, 0), which is never positive; this is what the drop rates of
# CaiT-S in Table 3.16 follow: 0.1, 0.2 and 0.3 at 24, 36 and 48 blocks.
_CAIT_DROP_PATH = {depth: round(0.1 * (depth / 12 - 1), 2) for depth in _LAYERSCALE_INIT}
_DEPTH_SIZE = {12: ("S",), 18: ("S18",), 24: ("S24",), 36: ("S36",)}
DEPTH_LAYERSCALE = {
    depth: _DEPTH.but(
        f"depth-layerscale-{depth}",
        {
            **stated("thesis, section 3.5.1", layerscale=init),
            **unstated(
                "adapted to each method, not printed; the rule for CaiT-S",
                drop_path=_CAIT_DROP_PATH[depth],
            ),
        },
        _DEPTH_SIZE[depth],
    )
    for depth, init in _LAYERSCALE_INIT.items()
}
DEPTH_BASELINE = {
    depth: _DEPTH.but(
        f"depth-baseline-{depth}", stated(_T311, drop_path=drop_path), _DEPTH_SIZE[depth]
    )
    for depth, drop_path in _BASELINE_DROP_PATH.items()
}

# --- Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, trained from scratch on ImageNet -----

# Their head has a hidden layer (tanh) in this training, which the models here have not.
_T3 = "Dosovitskiy et al. 2021, Table 3"
VIT = Recipe(
    "vit",
    ("B", "L"),
    dict(
        **_IMAGENET,
        **stated(_T3, epochs=300, lr=3e-3, decay="cosine", dropout=0.1, batch_size=4096,
                 clip_norm=1.0, resolution=224),
        **stated(f"{_T3}; 0.3 in the thesis, Table 3.9, but 0.1 in its Table 6.1", wd=0.3),
        **stated(
            (
                f"{_T3}: 10,000 steps, which are 32 epochs of ImageNet; the thesis, Table 3.9, "
                "has 3.4 epochs"
            ),
            warmup_steps=10_000, warmup_epochs=0.0,
        ),
        **stated("Dosovitskiy et al. 2021, section 4.1", beta1=0.9, beta2=0.999),
        **stated(
            (
                "thesis, Table 3.9; section 4.1 of Dosovitskiy et al. 2021 says Adam, and not how "
                "the decay enters"
            ),
            optimizer="adamw",
        ),
        **stated("thesis, Table 3.9; its Table 6.1 has 0.1", label_smoothing=0.0),
        **stated("thesis, Table 3.9", drop_path=0.0, repeats=1, augment="none", mixup_alpha=0.0,
                 cutmix_alpha=0.0,
                 erasing_prob=0.0),
        **stated("thesis, Table 6.1, column ViT", crop="rrc", color_jitter=0.0, layerscale=0.0,
                 eval_crop_ratio=0.875,
                 loss="ce"),
        **unstated("Table 6.1 of the thesis says that there is a flip", flip_prob=0.5),
        **unstated("the usual share of the area", crop_scale_min=0.08),
        **unstated("neither text names an exception", decay_tokens=True),
        **unstated("as the authors' code initialises", weight_init="jax"),
        **unstated("averages are named for fine-tuning alone", ema_decay=0.0),
        **_SCHEDULE_ENDS, **_BF16,
    ),
)  # fmt: skip

# Of Figures 8 and 9 and Table 8: pre-training on JFT-300M, which is not public. It is not in
# RECIPES, which are of ImageNet-1k.
_T3_JFT = f"{_T3}, JFT-300M, ViT-B"
VIT_JFT = VIT.but(
    "vit-jft",
    {
        **stated(_T3_JFT, lr=8e-4, wd=0.1, decay="linear", dropout=0.0),
        **stated(f"{_T3}: clipping is named for ImageNet alone", clip_norm=0.0),
        **unstated(
            "ImageNet-1k stands in for JFT-300M; 7 epochs of that would be 1,660 of this, and a "
            "tenth of the steps is a warm-up in place of its 10,000 of 518,000",
            epochs=90, warmup_epochs=9.0, warmup_steps=0,
        ),
    },
    ("B",),
)  # fmt: skip

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        XIAO2021, XIAO2021_PEAK_CNN, XIAO2021_PEAK_VIT, XIAO2021_PEAK_36GF, DEIT, *A2.values(),
        *A2_LAYERSCALE.values(),
        *DEIT3.values(), *DEIT3_LONGER.values(), *DEPTH_LAYERSCALE.values(),
        *DEPTH_BASELINE.values(), VIT,
    )
}  # fmt: skip
