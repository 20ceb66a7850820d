"""Fine-tuning at another resolution: the arms of H. Touvron's thesis, 2022, Tables 3.8, 3.10 and
6.6. Fine-tuning on other data: Touvron et al. 2022, Table 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.ingredients import ARMS, TABLE_3_8, arm_3_8
from search_spaces.recipes import A2_LAYERSCALE, DEIT, DEIT3, DEIT3_LONGER
from search_spaces.vit import SHAPES
from vitscale.catalog.tables import printed_errors

Fields = dict[str, Any]


def at_384(name: str) -> str:
    """The name of an arm that is fine-tuned at 384 pixels."""
    return f"{name} at 384"


# Section 6.3.6, which is about a higher resolution and follows that of chapter 3. Warm-up is that
# of the training, and a share of mixup holds for groups of 64 images, as there.
FINE_TUNING: Fields = {"epochs": 20, "batch_size": 512, "repeats": 1, "warmup_epochs": 5.0}
LR, WD = 1e-5, 0.1  # of AdamW
LR_SGD = 1e-2  # of the four of Dosovitskiy et al. 2021, Table 4, where SGD has no weight decay
_CHANGES: Fields = {
    **FINE_TUNING, "mix_groups": 8, "optimizer": "adamw", "lr": LR, "wd": WD,
}  # fmt: skip
_EVALS = {"more_evals": "v2,real"}
_SETS = {name: f"{name}_top1_pct" for name in ("val", "v2", "real")}


@dataclass(frozen=True)
class Tuned:
    """An arm: a training, and the fields that its fine-tuning changes; none: the training."""

    model: str
    pixels: int  # along which the table varies
    first: Fields
    changes: Fields


@dataclass(frozen=True)
class Table:
    """A table: its arms by name, the pairs that are compared, and its errors by set and arm."""

    source: str
    question: str
    arms: Mapping[str, Tuned]
    pairs: tuple[tuple[str, str], ...]
    printed: Mapping[str, Mapping[str, float]]
    notes: str
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_SEEDS = "One run per arm, as in the table, shows no difference: --num adds seeds."
_DEIT_B = {**SHAPES["B"], **DEIT.fields, **_EVALS}
# Section 3.4.5: 25 epochs at 384 pixels. For the rest it refers to a paper on EfficientNets.
AT_384: Fields = {**_CHANGES, "resolution": 384, "epochs": 25}
OF_384 = (
    "Fine-tuning at 384 pixels has 25 epochs (section 3.4.5) and the rest of section 6.3.6, since "
    "chapter 3 refers to another paper; a teacher at 384 pixels is fine-tuned in the same way, "
    "which the text leaves to a reference. "
)
_OTHERWISE: dict[str, Fields] = {  # the first arm of the table, fine-tuned in other ways
    "DeiT-B, SGD at 384": {
        **AT_384, "optimizer": "sgd", "momentum": 0.9, "nesterov": True, "lr": LR_SGD, "wd": 0.0,
    },
    "DeiT-B averaged": {**AT_384, "init_weights": "ema"},
}  # fmt: skip
_TUNED_384 = {
    **{
        arm: Tuned(
            arm,
            384,
            ARMS[arm],
            {**AT_384, "mix_groups": min(AT_384["mix_groups"], ARMS[arm]["mix_groups"])},
        )
        for arm in TABLE_3_8
    },
    **{arm: Tuned("DeiT-B", 384, ARMS["DeiT-B"], changes) for arm, changes in _OTHERWISE.items()},
}


def _arm_at_384(row: Mapping[str, str]) -> str:
    if row["ema"] == "1":
        return "DeiT-B averaged"
    return "DeiT-B, SGD at 384" if row["optimizer_384"] == "sgd" else arm_3_8(row)


THESIS_3_8 = Table(
    "H. Touvron's thesis, 2022, Table 3.8",
    "Which ingredients of a recipe move the error after fine-tuning at 384 pixels?",
    _TUNED_384,
    tuple((arm, "DeiT-B") for arm in _TUNED_384 if arm != "DeiT-B"),
    printed_errors("thesis_table3_8", _arm_at_384, {"val": "top1_384_pct"}),
    "Parents are the trainings of recipe_ingredients, and their children keep the ingredients. "
    "Section 3.4.5 states 25 epochs and AdamW or SGD, and no lr: the rest is that of section "
    "6.3.6, which follows it, and SGD has an lr of Dosovitskiy et al. 2021, Table 4. Whether the "
    "row with averaged weights starts from them is not stated; here it does. " + _SEEDS,
)
_AT = {
    f"{pixels} pixels": Tuned(
        "DeiT-B",
        pixels,
        _DEIT_B,
        {} if pixels == 224 else {**AT_384, "resolution": pixels},
    )
    for pixels in (160, 224, 320, 384)
}
THESIS_3_10 = Table(
    "H. Touvron's thesis, 2022, Table 3.10",
    "At which resolution should a model be fine-tuned?",
    _AT,
    tuple((arm, "224 pixels") for arm in _AT if arm != "224 pixels"),
    printed_errors("thesis_table3_10", lambda row: f"{row['resolution']} pixels", _SETS),
    "224 pixels is the training itself, whose error the table prints in this row. Chapter 3 states "
    "25 epochs, for 384 pixels, and AdamW or SGD, and no lr: the rest is that of section 6.3.6, "
    "which follows it. " + _SEEDS,
)


def _name(model: str, epochs: object, pixels: object) -> str:
    return f"{model}, {epochs} epochs at {pixels}"


def _of_table_6_6() -> dict[str, Tuned]:
    """Each model and length at lower resolutions, with 20 epochs at 224 pixels, and at 224."""
    arms: dict[str, Tuned] = {}
    rows = [(size, epochs) for size in ("B", "L", "H") for epochs in (400, 800)]
    for size, epochs in rows:
        recipe = DEIT3[size] if epochs == 400 else DEIT3_LONGER[size, epochs]
        model, fields = f"ViT-{size}", {**SHAPES[size], **recipe.fields}
        for pixels in (126, 154, 182) if size == "H" else (128, 160, 192):
            arms[_name(model, epochs, pixels)] = _at_224(
                f"{model}, {epochs} epochs", pixels, fields
            )
        direct = Tuned(f"{model}, {epochs} epochs", 224, {**fields, **_EVALS}, {})
        arms[_name(model, epochs, 224)] = direct
    # "the same stochastic depth drop-rate as for the ViT-H"
    for model, shape in {
        "ViT-H-52": {"depth": 52},
        "ViT-H-26x2": {"depth": 26, "branches": 2},
    }.items():
        fields = {**SHAPES["H"], **DEIT3["H"].fields, **shape}
        arms[_name(model, 400, 126)] = _at_224(f"{model}, 400 epochs", 126, fields)
    return arms


def _at_224(model: str, pixels: int, fields: Fields) -> Tuned:
    changes = {**_CHANGES, "resolution": 224, **_EVALS}
    return Tuned(model, pixels, {**fields, "resolution": pixels}, changes)


_LOWER = _of_table_6_6()
THESIS_6_6 = Table(
    "H. Touvron's thesis, 2022, Table 6.6",
    "Does training at a lower resolution pay, with a short fine-tuning at 224 pixels?",
    _LOWER,
    (
        *(
            (arm, f"{arm.rsplit(' ', 1)[0]} 224")
            for arm, entry in _LOWER.items()
            if entry.changes and "H-" not in arm
        ),
        (_name("ViT-H-52", 400, 126), _name("ViT-H", 400, 126)),
        (_name("ViT-H-26x2", 400, 126), _name("ViT-H-52", 400, 126)),
    ),
    printed_errors(
        "thesis_table6_6",
        lambda row: _name(row["model"], row["epochs"], row["resolution"]),
        _SETS,
    ),
    "Arms at 224 pixels are trained there from the start. Section 6.3.6 has the fine-tuning at a "
    "higher resolution than 224 pixels; that of this table is taken to be the same. 800 epochs "
    "have the weight decay and drop path of section 6.4. " + _SEEDS,
    {
        size: tuple(arm for arm in _LOWER if arm.startswith(size))
        for size in ("ViT-B", "ViT-L", "ViT-H")
    },
)

# Touvron et al. 2022, Table 9: column of Table 6 -> data set, its training images, its classes
_DATA: dict[str, tuple[str, int, int]] = {
    "inat18": ("inat18", 437_513, 8142),
    "inat19": ("inat19", 265_240, 1010),
    "cifar10": ("cifar10", 0, 10),
    "cifar100": ("cifar100", 0, 100),
    "cars": ("cars", 8144, 196),
    "flowers": ("flowers102", 2040, 102),
}
_PARTS = {"full": "all", "attn": "attn", "ffn": "ffn"}


def _elsewhere(size: str, column: str, part: str) -> Tuned:
    """Thesis, section 3.7.1.3: a tenth or a hundredth of the lr, and 360 or 1,000 epochs."""
    dataset, num_images, num_classes = _DATA[column]
    first = {**SHAPES[size], **A2_LAYERSCALE[size].fields}
    changes = {
        "dataset": dataset,
        "num_images": num_images,
        "num_classes": num_classes,
        "init_head": "zero",
        "trainable": _PARTS[part],
        "batch_size": 512,
        "mix_groups": 2,
        "lr": round(first["lr"] / (100 if column.startswith("cifar") else 10), 8),
        "epochs": 360 if column.startswith("inat") else 1000,
    }
    return Tuned(f"ViT-{size}", 224, first, changes)


def _errors_on(column: str) -> dict[str, float]:
    def arm(row: Mapping[str, str]) -> str:
        return f"{row['model']} {row['part']}, {column}"

    return printed_errors("touvron2022_table6", arm, {"val": f"{column}_top1_pct"})["val"]


_TRANSFER = {
    f"ViT-{size} {part}, {column}": _elsewhere(size, column, part)
    for column in _DATA
    for size in "SBL"
    for part in _PARTS
}
TOUVRON_TABLE6 = Table(
    "Touvron et al. 2022, Table 6",
    "Is it enough to fine-tune the attention for another set of images?",
    _TRANSFER,
    tuple(
        (arm, arm.replace(f" {part}", " full"))
        for part in ("attn", "ffn")
        for arm in _TRANSFER
        if f" {part}," in arm
    ),
    {"val": {arm: error for column in _DATA for arm, error in _errors_on(column).items()}},
    "inat18, inat19, cars and flowers102 are folders of yours, with the images of Table 9. Table 6 "
    "states no recipe. As for CaiT (thesis, section 3.7.1.3) it is that of the first training with "
    "a tenth of its lr, for CIFAR a hundredth, and 1,000 epochs, for iNaturalist 360. Batches of "
    "512 (Flowers has 2,040 images) and a head of zeros are ours. " + _SEEDS,
    {column: tuple(arm for arm in _TRANSFER if arm.endswith(f", {column}")) for column in _DATA},
)
TABLES = {
    "touvron_table6": TOUVRON_TABLE6,
    "thesis_3_8": THESIS_3_8,
    "thesis_3_10": THESIS_3_10,
    "thesis_6_6": THESIS_6_6,
}
