"""Recipes against the tables of the papers, typed here a second time."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from search_spaces import ingredients, recipes, xiao2021
from search_spaces.recipes import RECIPES, Recipe, Value
from search_spaces.vit import SHAPES
from vitscale import catalog
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.plan.fields import DEFAULTS
from vitscale.train.loss import training_loss
from vitscale.train.optim import build_optimizer
from vitscale.train.schedule import lr_at

torch.set_num_threads(1)

# Touvron 2022 (thesis), Table 6.1: ingredient -> columns ViT, DeiT, Wightman et al., ImNet-1k
# (ours); None: a cross. Where Table 3.9 or the text of a paper differs, the recipe follows those,
# and the test of that recipe says so.
TABLE_6_1 = {
    "batch_size": (4096, 1024, 2048, 2048),
    "optimizer": ("adamw", "adamw", "lamb", "lamb"),
    "lr": (3e-3, 1e-3, 5e-3, 3e-3),
    "decay": ("cosine", "cosine", "cosine", "cosine"),
    "wd": (0.1, 0.05, 0.02, 0.02),
    "warmup_epochs": (3.4, 5.0, 5.0, 5.0),
    "label_smoothing": (0.1, 0.1, None, None),
    "repeats": (None, 3, 3, 3),
    "clip_norm": (1.0, None, 1.0, 1.0),
    "crop": ("rrc", "rrc", "rrc", "rrc"),
    "augment": (None, "randaugment", "randaugment", "3augment"),
    "randaugment_magnitude": (None, 9.0, 7.0, None),
    "mixup_alpha": (None, 0.8, 0.2, 0.8),
    "cutmix_alpha": (None, 1.0, 1.0, 1.0),
    "erasing_prob": (None, 0.25, None, None),
    "color_jitter": (None, None, None, 0.3),
    "eval_crop_ratio": (0.875, 0.875, 0.95, 1.0),
    "loss": ("ce", "ce", "bce", "bce"),
}
# what a cross means, if it is not 0
CROSS = {"repeats": 1, "augment": "none", "randaugment_magnitude": 9.0}


def configs(recipe: Recipe) -> list[TrainConfig]:
    """The recipe with the shape of each of its sizes."""
    shapes = [SHAPES.get(size) or xiao2021.MODELS[size] for size in recipe.sizes]
    return [TrainConfig(**{**recipe.fields, **shape}) for shape in shapes]


def column(index: int, **other: Any) -> dict[str, Any]:
    """A column of Table 6.1 as fields, with what the recipe states otherwise."""
    fields = {
        name: row[index] if row[index] is not None else CROSS.get(name, 0.0)
        for name, row in TABLE_6_1.items()
    }
    return {**fields, **other}


def differing(config: TrainConfig, expected: dict[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(config, name)
        for name, value in expected.items()
        if getattr(config, name) != value
    }


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_configs_for_imagenet_at_its_sizes(name: str) -> None:
    made = configs(RECIPES[name])
    assert made and len({config.id for config in made}) == len(made)
    for config in made:
        assert (config.dataset, config.num_train, config.num_classes, config.channels) == (
            "imagenet",
            1281167,
            1000,
            3,
        )
        assert config.resolution >= 224 and (config.crop, config.flip_prob) == ("rrc", 0.5)
        assert (config.warmup_start, config.decay_floor, config.decay) == (0.0, 0.0, "cosine")
        assert lr_at(config.num_warmup_steps - 1, config) == pytest.approx(
            config.peak_lr, rel=1e-12
        )
        assert lr_at(config.num_steps, config) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_has_a_source_and_every_unstated_one_a_reason(name: str) -> None:
    recipe = RECIPES[name]
    assert set(recipe.values) <= set(DEFAULTS) and name == recipe.name
    for field, (value, source, is_stated) in recipe.values.items():
        assert type(value) is type(DEFAULTS[field])
        known = (
            "Xiao et al. 2021",
            "Touvron et al. 2022",
            "Dosovitskiy et al. 2021",
            "thesis, ",
            "ImageNet-1k",
        )
        assert not is_stated or source.startswith(known), (field, source)
    assert all(len(reason) > 10 for reason in recipe.unstated.values())
    assert {"flip_prob", "warmup_start", "decay_floor", "precision"} <= set(recipe.unstated)


def test_a_variant_replaces_values_and_a_recipe_refuses_two_sources() -> None:
    recipe = Recipe("one", ("S",), recipes.stated("a table", lr=0.1, wd=0.2))
    variant = recipe.but("two", recipes.unstated("a guess", wd=0.3))
    assert (recipe.fields, variant.fields) == ({"lr": 0.1, "wd": 0.2}, {"lr": 0.1, "wd": 0.3})
    assert variant.values["lr"] == Value(0.1, "a table") and variant.unstated == {"wd": "a guess"}
    assert (variant.name, variant.sizes, recipe.but("three", {}, ("B",)).sizes) == (
        "two",
        ("S",),
        ("B",),
    )
    with pytest.raises(TypeError, match="lr"):
        dict(**recipes.stated("a table", lr=0.1), **recipes.stated("another", lr=0.2))


# --- shapes ---------------------------------------------------------------------------------------

# Touvron 2022 (thesis), Table 6.14: params (M), FLOPs (B); Touvron et al. 2022, Table 1, has 22.1 M
# and 17.6 B
TABLE_6_14 = {
    "Ti": (5.7, 1.3, 0.0),
    "S": (22.0, 4.6, 0.0),
    "B": (86.6, 17.5, 0.1),
    "L": (304.4, 61.6, 0.4),
    "H": (632.1, 167.4, 0.5),
}


@pytest.mark.parametrize("size", TABLE_6_14)
def test_shapes_cost_what_is_published(size: str) -> None:
    params, flops, _ = TABLE_6_14[size]
    cost = complexity(configs(recipes.DEIT3[size])[0])
    assert cost.params / 1e6 == pytest.approx(params, abs=0.1)
    assert cost.flops / 1e9 == pytest.approx(flops, abs=0.1)


def test_shapes_are_those_of_the_tables() -> None:
    """Depth, width, heads of Touvron et al. 2022, Table 1; width,
    MLP and heads of Dosovitskiy et al. 2021, Table 1.
    """
    table = {
        "Ti": (12, 192, 3),
        "S": (12, 384, 6),
        "B": (12, 768, 12),
        "L": (24, 1024, 16),
        "H": (32, 1280, 16),
        "S18": (18, 384, 6),
        "S24": (24, 384, 6),
        "S36": (36, 384, 6),
    }
    assert {size: (s["depth"], s["width"], s["heads"]) for size, s in SHAPES.items()} == table
    mlp = {size: SHAPES[size]["width"] * SHAPES[size]["mlp_ratio"] for size in "BLH"}
    assert mlp == {"B": 3072, "L": 4096, "H": 5120}
    assert {size: shape["patch_size"] for size, shape in SHAPES.items()} == {
        **dict.fromkeys(table, 16),
        "H": 14,
    }


# --- Xiao et al. 2021 -----------------------------------------------------------------------------

# Section 5.4, and for epochs 5.3; no repeated augmentation, no erasing, no stochastic depth
XIAO_5_4 = {
    "epochs": 50,
    "batch_size": 2048,
    "lr_batch": 2048,
    "warmup_epochs": 5.0,
    "momentum": 0.9,
    "beta1": 0.9,
    "beta2": 0.999,
    "augment": "autoaugment",
    "mixup_alpha": 0.8,
    "cutmix_alpha": 1.0,
    "label_smoothing": 0.1,
    "repeats": 1,
    "erasing_prob": 0.0,
    "drop_path": 0.0,
    "loss": "ce",
    "clip_norm": 0.0,
}
# pycls at 5719de6: OPTIM.EMA_ALPHA, OPTIM.EMA_UPDATE_PERIOD, OPTIM.NESTEROV,
# BN.NUM_SAMPLES_PRECISE, sizes of tests
PYCLS = {
    "ema_alpha": 1e-5,
    "ema_every": 32,
    "ema_after_warmup": True,
    "nesterov": True,
    "precise_bn": 8192,
    "eval_crop_ratio": 0.875,
    "decay_tokens": True,
}


def test_xiao2021_is_section_5_4_and_the_code_where_that_is_silent() -> None:
    config = TrainConfig(**RECIPES["xiao2021"].fields)
    assert differing(config, {**XIAO_5_4, **PYCLS}) == {}
    assert set(PYCLS) <= set(RECIPES["xiao2021"].unstated)
    assert RECIPES["xiao2021"].fields == xiao2021.RECIPE
    assert config.norm_batch * 8 == config.mix_groups * 256 == 2048


def test_a_gpu_of_xiao2021_has_an_eighth_of_the_batch_of_table_2() -> None:
    """Its caption: batch sizes are those of 8 GPUs; BatchNorm's
    statistics and a draw of mixup are of one GPU.
    """
    table = (
        (Path(catalog.__file__).parent / "published" / "xiao2021_table2.csv")
        .read_text()
        .splitlines()
    )
    printed = {row["model"]: int(row["batch_size"]) for row in csv.DictReader(table)}
    assert printed["ViT_C-18GF"] == printed["RegNetY-16GF"] == 1024 and printed["ViT_C-36GF"] == 512
    for name, fields in xiao2021.MODELS.items():
        config = TrainConfig(**{**xiao2021.RECIPE, **fields})
        assert (
            config.norm_batch * 8 == printed[name] and config.mix_groups * config.norm_batch == 2048
        )


def test_images_that_share_a_draw_of_mixup() -> None:
    """Public commands of deit, --batch: 256 images on a GPU for
    DeiT-Ti and S, DeiT III-S and B; 64 for L and H.
    """
    groups = {
        name: TrainConfig(**recipe.fields).batch_size // recipe.fields["mix_groups"]
        for name, recipe in RECIPES.items()
        if "mix_groups" in recipe.fields
    }
    assert {name for name, images in groups.items() if images != 256} == {
        f"deit3-{longer}{size}" for size in "LH" for longer in ("", "600-", "800-")
    }
    assert {images for images in groups.values() if images != 256} == {64}
    assert set(RECIPES) - set(groups) == {"vit"}  # it does not mix
    assert all("mix_groups" in RECIPES[name].unstated for name in groups)


def test_xiao2021_regnets_are_evaluated_at_the_sizes_of_the_code() -> None:
    """Training resolution and size of the shorter side in
    evaluation, of the authors' configuration files.
    """
    sizes = {"RegNetY-1GF": (232, 262), "RegNetY-4GF": (240, 272), "RegNetY-16GF": (256, 292)}
    made = {name: TrainConfig(**{**xiao2021.RECIPE, **xiao2021.MODELS[name]}) for name in sizes}
    assert {
        n: (c.resolution, round(c.resolution / c.eval_crop_ratio)) for n, c in made.items()
    } == sizes


@pytest.mark.parametrize(
    ("name", "optimizer", "lr", "wd"),
    [
        ("xiao2021-peak-cnn", "sgd", 2.54, 2.4e-5),
        ("xiao2021-peak-vit", "adamw", 1.0e-3, 0.24),
        ("xiao2021-peak-vit-36gf", "adamw", 6.0e-4, 0.28),
    ],
)
def test_xiao2021_peak_is_section_6(name: str, optimizer: str, lr: float, wd: float) -> None:
    for config in configs(RECIPES[name]):
        assert (
            differing(
                config, {**XIAO_5_4, "epochs": 400, "optimizer": optimizer, "lr": lr, "wd": wd}
            )
            == {}
        )
        assert config.peak_lr == lr
        assert config.resolution == 224 or optimizer == "sgd"
    whole = set(
        itertools.chain(*(RECIPES[n].sizes for n in RECIPES if n.startswith("xiao2021-peak")))
    )
    assert whole == set(xiao2021.MODELS)


# --- DeiT, A2, DeiT III ---------------------------------------------------------------------------


def test_deit_is_table_3_9() -> None:
    for config in configs(RECIPES["deit"]):
        other = {
            "lr": 0.0005,
            "lr_batch": 512,
            "batch_size": 1024,
            "epochs": 300,
            "drop_path": 0.1,
            "dropout": 0.0,
            "drop_path_rule": "linear",
            "randaugment_std": 0.5,
            "resolution": 224,
        }
        assert differing(config, column(1, **other)) == {}
        assert config.peak_lr == pytest.approx(1e-3, rel=0.01)
        assert (config.layerscale, config.pool, config.embed_token, config.ema_decay) == (
            0.0,
            "token",
            True,
            0.0,
        )


# Touvron et al. 2022, section 2.2: lr and stochastic depth by size
SECTION_2_2 = {"Ti": (4e-3, 0.0), "S": (4e-3, 0.05), "B": (3e-3, 0.1), "L": (3e-3, 0.4)}


@pytest.mark.parametrize("size", SECTION_2_2)
def test_a2_is_table_6_1_with_the_changes_of_section_2_2(size: str) -> None:
    lr, drop_path = SECTION_2_2[size]
    for recipe, epochs, layerscale in (
        (recipes.A2[size], 300, 0.0),
        (recipes.A2_LAYERSCALE[size], 400, 1e-4),
    ):
        (config,) = configs(recipe)
        other = {
            "lr": lr,
            "drop_path": drop_path,
            "drop_path_rule": "uniform",
            "epochs": epochs,
            "resolution": 224,
            "layerscale": layerscale,
            "randaugment_std": 0.5,
            "batch_size": 2048,
        }
        assert differing(config, column(2, **other)) == {}
        assert "0.1" in recipe.values["mixup_alpha"].source  # the texts differ


def test_a2_schedule_at_chosen_steps() -> None:
    (config,) = configs(recipes.A2["S"])
    warmup = 5 * (1_281_167 // config.batch_size)
    assert lr_at(warmup - 1, config) == lr_at(warmup, config) == 4e-3
    # the end of the first of five epochs
    assert lr_at(warmup // 5 - 1, config) == pytest.approx(0.8e-3)
    half, quarter = (
        warmup + (config.num_steps - warmup) // 2,
        warmup + (config.num_steps - warmup) // 4,
    )
    assert lr_at(half, config) == pytest.approx(2e-3, rel=1e-4)  # the number of steps is odd
    assert lr_at(quarter, config) == pytest.approx(4e-3 * (2 + math.sqrt(2)) / 4, rel=1e-4)


@pytest.mark.parametrize("size", TABLE_6_14)
def test_deit3_is_table_6_1_with_the_drop_rates_of_table_6_14(size: str) -> None:
    (config,) = configs(recipes.DEIT3[size])
    other = {
        "epochs": 400,
        "drop_path": TABLE_6_14[size][2],
        "drop_path_rule": "uniform",
        "layerscale": 1e-4,
        "resolution": 224,
        "batch_size": 2048,
        "embed_token": False,
    }
    assert differing(config, column(3, **other)) == {}


def test_longer_deit3_decays_and_drops_more() -> None:
    """Thesis, section 6.4; at 800 epochs, the public commands have 0.2 for B and 0.6 for H."""
    drops = {
        (size, epochs): configs(r)[0].drop_path
        for (size, epochs), r in recipes.DEIT3_LONGER.items()
    }
    assert (drops["B", 800], drops["H", 800]) == (0.2, 0.6)
    for (size, epochs), recipe in recipes.DEIT3_LONGER.items():
        drop_path = round(TABLE_6_14[size][2] + {600: 0.05, 800: 0.10}[epochs], 2)
        (config,), (shorter,) = configs(recipe), configs(recipes.DEIT3[size])
        assert config == shorter.replace(epochs=epochs, wd=0.05, drop_path=drop_path)
    for epochs in (300, 400, 700):
        with pytest.raises(ValueError, match=f"got \\(epochs={epochs}\\)"):
            recipes.longer("S", epochs)


@pytest.mark.parametrize(
    # section 3.5.1; CaiT-S of Table 3.16 at 24 and 36; Table 3.11
    ("depth", "init", "drop_path", "baseline"),
    [(12, 0.1, 0.0, 0.05), (18, 0.1, 0.05, 0.10), (24, 1e-5, 0.1, 0.20), (36, 1e-6, 0.2, 0.25)],
)
def test_depth_study_is_deit_small_with_layerscale(
    depth: int, init: float, drop_path: float, baseline: float
) -> None:
    (scaled,), (plain,) = (
        configs(recipes.DEPTH_LAYERSCALE[depth]),
        configs(recipes.DEPTH_BASELINE[depth]),
    )
    assert (scaled.depth, scaled.width, scaled.layerscale, scaled.drop_path) == (
        depth,
        384,
        init,
        drop_path,
    )
    assert (plain.depth, plain.width, plain.layerscale, plain.drop_path) == (
        depth,
        384,
        0.0,
        baseline,
    )
    deit = configs(RECIPES["deit"])[1].replace(depth=depth, drop_path_rule="uniform")
    assert plain == deit.replace(drop_path=baseline)
    assert scaled == deit.replace(drop_path=drop_path, layerscale=init)


def test_vit_is_table_3_of_dosovitskiy() -> None:
    for config in configs(RECIPES["vit"]):
        other = {
            "wd": 0.3,
            "label_smoothing": 0.0,
            "warmup_epochs": 0.0,
            "warmup_steps": 10_000,
            "dropout": 0.1,
            "epochs": 300,
            "resolution": 224,
            "beta1": 0.9,
            "beta2": 0.999,
            "drop_path": 0.0,
        }
        assert differing(config, column(0, **other)) == {}
        assert config.num_steps == 300 * 312 and lr_at(4_999, config) == pytest.approx(1.5e-3)
        assert lr_at(10_000 + (93_600 - 10_000) // 2, config) == pytest.approx(1.5e-3)
    assert (
        "Adam" in RECIPES["vit"].values["optimizer"].source
        and "3.4" in RECIPES["vit"].values["warmup_steps"].source
    )


# --- what the trainer makes of them ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "tokens_decayed"),
    [
        ("xiao2021-peak-vit", "AdamW", True),
        ("xiao2021-peak-cnn", "SGD", True),
        ("deit", "AdamW", False),
        ("a2-layerscale-S", "Lamb", False),
        ("deit3-S", "Lamb", False),
        ("vit", "AdamW", True),
    ],
)
def test_optimizer_of_a_recipe_decays_what_it_says(
    name: str, kind: str, tokens_decayed: bool
) -> None:
    from timm.models.vision_transformer import VisionTransformer

    config = TrainConfig(**{**RECIPES[name].fields, "resolution": 32})
    model = VisionTransformer(
        img_size=32, patch_size=16, embed_dim=8, depth=2, num_heads=2, init_values=0.1
    )
    optimizer = build_optimizer(model, config)
    assert type(optimizer).__name__ == kind and optimizer.defaults.get("max_grad_norm") is None
    decayed = {
        id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]
    }
    for parameter, value in model.named_parameters():
        token = parameter in ("cls_token", "pos_embed")
        assert (id(value) in decayed) == (tokens_decayed if token else value.ndim > 1), parameter
    assert {group["lr"] for group in optimizer.param_groups} == {config.peak_lr}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, config.wd}


@pytest.mark.parametrize(
    ("name", "binary"), [("xiao2021", False), ("deit", False), ("a2-B", True), ("deit3-B", True)]
)
def test_loss_of_a_recipe_on_mixed_targets(name: str, binary: bool) -> None:
    logits, targets = (
        torch.randn(4, 10),
        0.7 * torch.eye(10)[[3, 1, 1, 9]] + 0.3 * torch.eye(10)[[0, 1, 4, 2]],
    )
    loss = training_loss(logits, targets, TrainConfig(**RECIPES[name].fields), 4)
    p = logits.sigmoid()
    targets = (targets > 0).float() if binary else targets  # a class is there or not
    bce = -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()
    ce = -(targets * F.log_softmax(logits, 1)).sum(1).mean()
    torch.testing.assert_close(loss, bce if binary else ce)


# ---- ingredients: rows of ticks, typed a second time

TICKS = ("RandAugment", "AutoAugment", "mixup", "CutMix", "erasing", "drop path", "repeats",
         "dropout")  # fmt: skip
TABLE_3_8 = {  # optimizer and ticks of each row, top to bottom
    "DeiT-B": ("adamw", "10111110"),
    "DeiT-B SGD": ("sgd", "10111110"),
    "DeiT-B no RandAugment": ("adamw", "00111110"),
    "DeiT-B AutoAugment": ("adamw", "01111110"),
    "DeiT-B no mixup": ("adamw", "10011110"),
    "DeiT-B no CutMix": ("adamw", "10101110"),
    "DeiT-B no mixup, no CutMix": ("adamw", "10001110"),
    "DeiT-B no erasing": ("adamw", "10110110"),
    "DeiT-B no drop path": ("adamw", "10111010"),
    "DeiT-B no repeats": ("adamw", "10111100"),
    "DeiT-B dropout": ("adamw", "10111111"),
}
TABLE_5 = ("01110000", "10111110", "10111010", "10111000", "10110000")  # rows 1 to 5


def ticks(config: TrainConfig) -> str:
    has = (
        config.augment == "randaugment",
        config.augment == "autoaugment",
        config.mixup_alpha == 0.8,
        config.cutmix_alpha == 1.0,
        config.erasing_prob == 0.25,
        config.drop_path == 0.1 and config.drop_path_rule == "linear",
        config.repeats == 3,
        config.dropout > 0,
    )
    assert len(has) == len(TICKS)
    return "".join(str(int(one)) for one in has)


def test_rows_of_table_3_8_have_the_ticks_of_the_thesis() -> None:
    arms = {name: TrainConfig(**ingredients.ARMS[name]) for name in ingredients.TABLE_3_8}
    assert {name: (c.optimizer, ticks(c)) for name, c in arms.items()} == TABLE_3_8
    # whatever has no tick is that of Table 3.9, and averaged weights are errors of all rows
    assert {(c.epochs, c.peak_lr, c.wd, c.ema_decay) for c in arms.values()} == {
        (300, 1e-3, 0.05, 0.99996)
    }


@pytest.mark.parametrize("model", ["ViT_P-4GF", "ViT_P-18GF"])
def test_rows_of_table_5_have_the_ticks_of_xiao2021(model: str) -> None:
    rows = [TrainConfig(**ingredients.table_5(model, row, 100)) for row in ingredients.TABLE_5]
    assert tuple(map(ticks, rows)) == TABLE_5
    assert [bool(c.ema_alpha) for c in rows] == [True, False, False, False, False]
    raised = {"ViT_P-4GF": 0.2, "ViT_P-18GF": 0.5}[model]
    assert [c.wd for c in rows] == [xiao2021.OPTIMA[model, "adamw"][1], *4 * [raised]]
    assert {c.label_smoothing for c in rows} == {0.1}


# thesis, Table 6.4: model, loss, LayerScale, policy, epochs
TABLE_6_4 = [
    *((m, *row) for m in "SB" for row in (
        ("ce", False, "randaugment", 300), ("bce", False, "randaugment", 300),
        ("bce", True, "randaugment", 300), ("bce", True, "randaugment", 400),
        ("bce", True, "3augment", 400))),
    ("L", "bce", False, "randaugment", 300), ("L", "bce", False, "randaugment", 400),
    ("L", "bce", True, "randaugment", 400), ("L", "bce", True, "3augment", 400),
]  # fmt: skip


def test_rows_of_tables_6_2_to_6_4_are_those_of_the_thesis() -> None:
    items, arms = ingredients.ITEMS, ingredients.ARMS
    by = {item: [TrainConfig(**arms[arm]) for arm in items[item].arms] for item in items}
    sizes = {int(str(SHAPES[size]["width"])): size for size in "SBL"}
    assert [
        (sizes[c.width], c.loss, c.layerscale > 0, c.augment, c.epochs) for c in by["thesis_6_4"]
    ] == TABLE_6_4
    assert [(c.color_jitter, c.augment, c.augment_ops) for c in by["thesis_6_2"]] == [
        (0.3, "none", ""),
        (0.3, "3augment", "gray"),
        (0.3, "3augment", "gray-blur"),
        (0.3, "3augment", ""),
        (0.0, "3augment", ""),
    ]
    policies = ["autoaugment", "randaugment", "trivialaugment", "3augment"]
    assert [c.augment for c in by["thesis_6_3"]] == 3 * policies
    assert [(c.model, c.width) for c in by["thesis_6_3"][::4]] == [
        ("timm:resnet50", DEFAULTS["width"]),
        ("vit", 768),
        ("vit", 1024),
    ]
    for item in ("thesis_src", "xiao_decay"):
        (base, changed), field = by[item], {"thesis_src": "crop", "xiao_decay": "decay_gains"}[item]
        assert base.replace(**{field: getattr(changed, field)}) == changed != base
