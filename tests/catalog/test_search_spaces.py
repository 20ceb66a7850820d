"""Search spaces against the tables they are copied from,
and the budgets of arms that are compared.
"""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from conftest import ROOT, load_script
from optuna.distributions import FloatDistribution
from support.table_4 import TABLE_4_INTERVALS, TABLE_4_OPTIMA

from search_spaces import demo, xiao2021
from search_spaces.winners import optima, tuned
from vitscale.catalog.datasets import DATASETS
from vitscale.catalog.regnety import REGNETY
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity

# Xiao et al. 2021, Table 1: hidden size, MLP multiplier, heads, blocks of ViT_P, blocks of ViT_C;
# section 3: channels of the 3x3 convolutions of the stem, of which those that double the channels
# have stride 2
TABLE_1 = {
    "1GF": (192, 3.0, 3, 12, 11, [24, 48, 96, 192]),
    "4GF": (384, 3.0, 6, 12, 11, [48, 96, 192, 384]),
    "18GF": (768, 4.0, 12, 12, 11, [64, 128, 128, 256, 256, 512]),
    "36GF": (1024, 4.0, 16, 14, 13, [64, 128, 128, 256, 256, 512]),
}


def ends(interval: dict[str, FloatDistribution]) -> tuple[float, ...]:
    return interval["lr"].low, interval["lr"].high, interval["wd"].low, interval["wd"].high


def test_optima_are_those_of_table_4() -> None:
    expected = {}
    for model, (adamw_lr, adamw_wd, sgd_lr, sgd_wd) in TABLE_4_OPTIMA.items():
        expected[model, "adamw"], expected[model, "sgd"] = (adamw_lr, adamw_wd), (sgd_lr, sgd_wd)
    assert expected == xiao2021.OPTIMA


def test_intervals_are_those_of_table_4() -> None:
    assert {
        key: ends(interval) for key, interval in xiao2021.INTERVALS.items()
    } == TABLE_4_INTERVALS
    for interval in (*xiao2021.INTERVALS.values(), *demo.INTERVALS.values()):
        assert list(interval) == ["lr", "wd"]
        assert all(
            type(axis) is FloatDistribution and axis.log and axis.step is None
            for axis in interval.values()
        )


def test_the_rule_is_an_eighth_and_four_times() -> None:
    """Xiao et al. 2021, appendix E; the lr intervals of Table 4
    follow from round good values, as does one wd.
    """
    assert ends(xiao2021.around(0.8, 0.16)) == pytest.approx((0.1, 3.2, 0.02, 0.64))
    for key, good_lr in {
        ("ViT", "adamw"): 2e-3,
        ("RegNetY", "adamw"): 1e-2,
        ("ViT", "sgd"): 0.8,
        ("RegNetY", "sgd"): 2.0,
    }.items():
        assert ends(xiao2021.around(good_lr, 1.0))[:2] == pytest.approx(TABLE_4_INTERVALS[key][:2])
    assert ends(xiao2021.around(1.0, 0.06))[2:] == pytest.approx(
        TABLE_4_INTERVALS["RegNetY", "adamw"][2:]
    )


@pytest.mark.parametrize("size", TABLE_1)
def test_shapes_are_those_of_table_1(size: str) -> None:
    width, mlp_ratio, heads, blocks_p, blocks_c, channels = TABLE_1[size]
    patchify, conv = (
        TrainConfig(**{**xiao2021.RECIPE, **xiao2021.MODELS[f"{stem}-{size}"]})
        for stem in ("ViT_P", "ViT_C")
    )
    for config, blocks in ((patchify, blocks_p), (conv, blocks_c)):
        assert (config.width, config.mlp_ratio, config.heads, config.depth) == (
            width,
            mlp_ratio,
            heads,
            blocks,
        )
        assert (config.resolution, config.patch_size) == (224, 16)
    doubles = [2 if after != before else 1 for before, after in itertools.pairwise([3, *channels])]
    assert conv.stem_layers == [(c, s, 3) for c, s in zip(channels, doubles, strict=True)]
    assert patchify.stem == "patchify"


# Xiao et al. 2021, Table 3 (appendix A): multiply-adds, parameters and activations of the stem, in
# millions
TABLE_3 = {
    "P": ("58", "0.3", "0.1"),
    "C": ("435", "1.0", "1.2"),
    "S1": ("422", "0.8", "1.3"),
    "S2": ("422", "0.7", "1.1"),
    "S3": ("458", "0.7", "1.6"),
    "S4": ("407", "0.6", "2.9"),
}


@pytest.mark.parametrize("stem", TABLE_3)
def test_stems_cost_what_table_3_prints(stem: str) -> None:
    """Of P 0.8 M activations are printed: 196 x 384 are 0.08 M."""
    assert stem_cost(xiao2021.STEMS_4GF[stem]) == TABLE_3[stem]


def test_only_52_channels_give_the_printed_cost_of_s1() -> None:
    s1 = xiao2021.STEMS_4GF["S1"]
    printed = [
        num
        for num in range(40, 60)
        if stem_cost({**s1, "stem_channels": f"{num}-104-208-416"}) == TABLE_3["S1"]
    ]
    assert printed == [52] and s1["stem_channels"] == "52-104-208-416"


def stem_cost(fields: dict[str, object]) -> tuple[str, str, str]:
    """What a stem of the 4GF model costs, rounded as printed: what
    it adds to a model in place of the patchify stem.
    """
    base = {**xiao2021.RECIPE, **xiao2021.MODELS["ViT_P-4GF"]}
    cost, patchify = complexity(TrainConfig(**{**base, **fields})), complexity(TrainConfig(**base))
    flops = cost.flops - patchify.flops + 196 * 16 * 16 * 3 * 384
    params = cost.params - patchify.params + 16 * 16 * 3 * 384 + 384
    acts = cost.acts - patchify.acts + 196 * 384
    return f"{flops / 1e6:.0f}", f"{params / 1e6:.1f}", f"{acts / 1e6:.1f}"


def test_recipe_is_that_of_the_paper() -> None:
    """Xiao et al. 2021, section 5: batch 2048, 5 epochs of
    warm-up, mixup 0.8, CutMix 1.0, label smoothing 0.1.
    """
    config = TrainConfig(**xiao2021.RECIPE)
    assert (config.batch_size, config.epochs, config.warmup_epochs) == (2048, 50, 5.0)
    assert (config.mixup_alpha, config.cutmix_alpha, config.label_smoothing) == (0.8, 1.0, 0.1)
    assert config.ema_alpha > 0 and config.clip_norm == 0 and config.augment == "autoaugment"
    draws = load_script(ROOT / "studies" / "lr_wd_edf.py").SCALES["imagenet"].num_draws
    assert draws == 64 and sum(map(len, xiao2021.PANELS.values())) == 9


def test_every_model_of_a_panel_has_an_optimum_inside_its_interval() -> None:
    for model in itertools.chain(*xiao2021.PANELS.values()):
        for optimizer in ("adamw", "sgd"):
            lr, wd = xiao2021.OPTIMA[model, optimizer]
            interval = xiao2021.INTERVALS["RegNetY" if "Reg" in model else "ViT", optimizer]
            lr_low, lr_high, wd_low, wd_high = ends(interval)
            assert lr_low < lr < lr_high and wd_low < wd < wd_high


def test_optima_of_the_demo_are_the_winners_of_its_search() -> None:
    """As written with their provenance: lowest of their arm's
    points, from the space that the study searches.
    """
    found = json.loads((ROOT / "search_spaces" / "tuned" / "demo.json").read_text())
    assert found["search"] == "tune_lr_wd-demo" and found["metric"] == "minival_ema_error_pct"
    assert set(demo.OPTIMA) == {
        (model, optimizer) for model in demo.MODELS for optimizer in ("adamw", "sgd")
    }
    # as its page says
    search = load_script(ROOT / "studies" / "tune_lr_wd.py").study("demo", num=20)
    for arm, winner in found["winners"].items():
        assert arm == f"{winner['model']} {'AdamW' if winner['optimizer'] == 'adamw' else 'SGD'}"
        assert demo.OPTIMA[winner["model"], winner["optimizer"]] == tuple(winner["values"].values())
        assert winner["num_points"] == search.num and winner["seeds"] == list(search.seeds)
        assert 0 <= winner["value"] <= winner["runner_up"]["value"]
        base = {a.name: config for a, config in search.configs.items()}[arm].replace(
            **winner["values"]
        )
        assert winner["trial_ids"] == [base.replace(seed=seed).id for seed in search.seeds]


def test_a_winners_file_without_models_and_optimizers_is_read_by_its_arms() -> None:
    """As `vitscale adopt` wrote it before arms had factors: a user's project may hold one."""
    found = tuned("demo")
    assert found is not None
    for winner in found["winners"].values():
        del winner["model"], winner["optimizer"]
    assert optima(found, demo.MODELS) == demo.OPTIMA
    with pytest.raises(ValueError, match=r"got \(arm='ViT_P AdamW'\); remove .* and adopt the"):
        optima(found, ["ViT_C"])


def test_intervals_of_the_demo_are_the_rule_of_appendix_e() -> None:
    """From 1/8 to 4 times the geometric mean of both models' winners, to two digits."""
    for optimizer in ("adamw", "sgd"):
        pairs = [pair for (_, name), pair in demo.OPTIMA.items() if name == optimizer]
        lr, wd = (float(f"{np.sqrt(np.prod(values)):.2g}") for values in zip(*pairs, strict=True))
        assert ends(demo.INTERVALS["ViT", optimizer]) == pytest.approx(
            (lr / 8, lr * 4, wd / 8, wd * 4)
        )


def test_the_arms_of_the_demo_hold_one_budget() -> None:
    patchify, conv = (
        complexity(TrainConfig(**demo.RECIPE, **demo.MODELS[m])) for m in ("ViT_P", "ViT_C")
    )
    assert conv.flops == pytest.approx(patchify.flops, rel=0.03)
    assert conv.params == pytest.approx(patchify.params, rel=0.06)


@pytest.mark.parametrize("size", TABLE_1)
def test_the_arms_of_the_paper_hold_one_budget(size: str) -> None:
    """Section 3: a stem costs about one block, which ViT_C has less of."""
    patchify, conv = (
        complexity(TrainConfig(**{**xiao2021.RECIPE, **xiao2021.MODELS[f"{stem}-{size}"]}))
        for stem in ("ViT_P", "ViT_C")
    )
    assert conv.flops == pytest.approx(patchify.flops, rel=0.03)
    assert conv.params == pytest.approx(patchify.params, rel=0.06)


def test_values_of_search_spaces_are_fields_of_the_config() -> None:
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    for space in (demo, xiao2021):
        for fields in (space.RECIPE, *space.MODELS.values(), *space.INTERVALS.values()):
            assert set(fields) <= known


def test_datasets_are_the_published_ones() -> None:
    """Krizhevsky 2009: 50,000 images; Xiao et al. 2017: 60,000; Russakovsky et al. 2015: 1,281,167
    in 1,000 classes.
    """
    facts = {name: (d.num_train, d.num_classes, d.channels) for name, d in DATASETS.items()}
    assert facts == {
        "digits": (1797 - 200 - 400 - 200, 10, 1),
        "cifar10": (50_000, 10, 3),
        "cifar100": (50_000, 100, 3),
        "fashion_mnist": (60_000, 10, 1),
        "imagenet": (1_281_167, 1000, 3),
    }


def test_regnety_stages_are_whole_groups() -> None:
    for shape in REGNETY.values():
        assert all(width % shape.group_width == 0 for width in shape.widths)
        assert list(shape.widths) == sorted(shape.widths)
