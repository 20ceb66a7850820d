"""Models against second implementations, closed forms and what their papers claim."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import timm
import torch
from support.refusals import refusing
from timm.layers import DropPath, HybridEmbed, LayerNorm2d
from timm.models.cait import Cait
from timm.models.vision_transformer import Block, ParallelThingsBlock, VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from vitscale.plan.config import TrainConfig
from vitscale.train.blocks import ParallelBlock, run_branches
from vitscale.train.complexity import measured_complexity
from vitscale.train.draws import (
    Seeded,
    SeededDropout,
    SeededDropPath,
    key_of,
    mix,
    normal,
    seed_layers,
    uniform,
)
from vitscale.train.model import build_model
from vitscale.train.stems import build_stem

torch.set_num_threads(1)

TINY: dict[str, Any] = {"width": 16, "depth": 3, "heads": 2, "patch_size": 4}


def built(seed: int = 0, **fields: Any) -> Any:
    torch.manual_seed(seed)
    return build_model(TrainConfig(**fields))


def shaken(model: nn.Module) -> nn.Module:
    """The model with random weights throughout, so that
    nothing is zero or one by its initialisation.
    """
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


# --- ViT ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conv", [False, True], ids=["patchify", "conv"])
def test_the_plain_vit_keeps_its_weights_bit_for_bit(conv: bool) -> None:
    """Results are on disk: the same seed gives the weights, the
    outputs and the random state that it always gave.
    """
    stem = {"stem": "conv", "stem_channels": "4-8", "stem_strides": "2-2"} if conv else {}
    ours, state = built(**TINY, **stem), torch.get_rng_state()
    torch.manual_seed(0)
    embed: dict[str, Any] = {"patch_size": 4}
    if conv:
        layers = ConvStem(1, 3, (4, 8, 16), (3, 3, 1), (2, 2, 1), (1, 1, 0))
        embed = {
            "patch_size": 1,
            "embed_layer": lambda **fields: HybridEmbed(layers, proj=False, **fields),
        }
    theirs = VisionTransformer(
        img_size=8,
        in_chans=1,
        num_classes=10,
        embed_dim=16,
        depth=3,
        num_heads=2,
        weight_init="jax",
        **embed,
    )
    assert torch.equal(state, torch.get_rng_state())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    for model in (ours, theirs):
        nn.init.ones_(model.head.weight)
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(ours(images), theirs(images))


def test_average_pooling_is_normed_after_it_and_has_no_class_token() -> None:
    model = shaken(built(**TINY, pool="avg")).eval()
    x = model.blocks(model.patch_embed(images := torch.randn(2, 1, 8, 8)) + model.pos_embed)
    assert x.shape == (2, 4, 16) and model.cls_token is None
    pooled = nn.functional.layer_norm(
        x.mean(1), (16,), model.fc_norm.weight, model.fc_norm.bias, 1e-6
    )
    torch.testing.assert_close(model(images), model.head(pooled))


def test_positions_leave_out_the_class_token_if_asked() -> None:
    assert built(**TINY).pos_embed.shape == (1, 5, 16)
    model = shaken(built(**TINY, embed_token=False)).eval()
    assert model.pos_embed.shape == (1, 4, 16)
    tokens = model._pos_embed(torch.zeros(1, 4, 16))
    assert torch.equal(tokens[:, :1], model.cls_token) and torch.equal(
        tokens[:, 1:], model.pos_embed
    )


def test_fixed_positions_are_sines_and_cosines_of_both_axes() -> None:
    """Chen et al. 2021 (MoCo v3), up to the order of channels; not
    a parameter, so never trained and never decayed.
    """
    model = built(**TINY, pos_embed="sincos", resolution=12)
    expected = np.zeros((3, 3, 16))
    for y, x, band in np.ndindex(3, 3, 4):
        for axis, position in enumerate((y, x)):
            angle = position / 10_000 ** (band / 4)
            expected[y, x, [4 * axis + band, 8 + 4 * axis + band]] = (
                math.sin(angle),
                math.cos(angle),
            )
    np.testing.assert_allclose(model.pos_embed[0].numpy(), expected.reshape(9, 16), atol=1e-6)
    assert "pos_embed" not in dict(model.named_parameters())
    tokens = model.eval()._pos_embed(torch.zeros(1, 9, 16))
    assert torch.equal(tokens[:, :1], model.cls_token)


def test_without_positions_patches_are_a_set() -> None:
    model = shaken(built(**TINY, pos_embed="none", pool="avg")).eval()
    image = torch.randn(1, 1, 8, 8)
    swapped = torch.cat([image[..., 4:], image[..., :4]], -1)
    torch.testing.assert_close(model(image), model(swapped))
    with_positions = shaken(built(**TINY, pool="avg")).eval()
    assert not torch.allclose(with_positions(image), with_positions(swapped))


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"branch_gain": "scalar"}, {"gain_init": "uniform"}])
def test_gains_are_those_of_the_last_matrix_of_a_branch(
    fields: dict[str, Any], branches: int
) -> None:
    """Thesis, section 3.5.1: the gains can be integrated into the matrix before them."""
    model = built(**TINY, branches=branches, layerscale=0.3, **fields)
    plain, state = shaken(built(**TINY, branches=branches)), model.state_dict()
    shaken_state = plain.state_dict()
    model.load_state_dict({**shaken_state, **{k: v for k, v in state.items() if "gamma" in k}})
    x = torch.randn(4, 1, 8, 8)
    for name, gain in ((k, v) for k, v in state.items() if k.endswith(".gamma")):
        block = name.removesuffix(".gamma")
        inner = {"ls1": "attn.proj", "ls2": "mlp.fc2"}
        if branches > 1:
            last = "attn.proj" if ".attns." in name else "mlp.fc2"
        else:
            last = inner[block[-3:]]
        layer = plain.get_submodule(f"{block.rpartition('.')[0]}.{last}")
        layer.weight.data.mul_(gain.view(-1, 1))
        layer.bias.data.mul_(gain)
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))
    run_branches(model, parallel=True)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)


def test_gains_start_as_told_and_leave_the_other_weights_alone() -> None:
    """With gains of 0 a network is its embedding and head (Bachlechner et al. 2020, ReZero)."""
    fields: dict[str, Any] = {"width": 64, "heads": 4, "depth": 20, "weight_init": "trunc_normal"}
    constant = built(**fields, layerscale=0.2)
    random = built(**fields, layerscale=0.2, gain_init="uniform")
    rezero = built(**fields, layerscale=1.0, gain_init="zero", branch_gain="scalar")
    for name, value in constant.state_dict().items():
        for model in (random, rezero):
            assert name.endswith("gamma") or torch.equal(model.state_dict()[name], value), name
    drawn = torch.cat([v.detach() for k, v in random.named_parameters() if k.endswith("gamma")])
    assert scipy.stats.kstest(drawn.numpy(), scipy.stats.uniform(0, 0.4).cdf).pvalue > 0.01
    scalars = [v for k, v in rezero.named_parameters() if k.endswith("gamma")]
    assert len(scalars) == 40 and all(v.shape == (1,) and not v.any() for v in scalars)
    x = torch.randn(4, 1, 8, 8)
    tokens = rezero._pos_embed(rezero.patch_embed(x))
    assert torch.equal(rezero(x), rezero.head(rezero.norm(tokens)[:, 0]))
    rezero(x).square().sum().backward()
    assert all(v.grad is not None and v.grad.any() for v in scalars)  # they leave 0


@pytest.mark.parametrize("branch_gain", ["channel", "scalar"])
def test_a_gain_of_1e_6_stays_fp32_under_autocast(branch_gain: str) -> None:
    model = built(**TINY, layerscale=1e-6, branch_gain=branch_gain, weight_init="trunc_normal")
    passed: dict[str, Tensor] = {}
    layer = model.blocks[0].ls1
    layer.register_forward_hook(lambda _, x, y: passed.update(x=x[0], y=y))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(4, 1, 8, 8))
    assert layer.gamma.dtype == passed["y"].dtype == torch.float32
    assert passed["x"].dtype == torch.bfloat16
    assert torch.equal(passed["y"], passed["x"].float() * np.float32(1e-6))


def test_weights_are_those_of_deit_if_asked() -> None:
    """Linear layers: a normal of deviation 0.02 cut at +-2, zero
    biases, the head included; LayerScale as given.
    """
    model = built(width=64, depth=4, heads=4, weight_init="trunc_normal", layerscale=0.25)
    weights = (
        torch.cat([m.weight.flatten() for m in model.modules() if isinstance(m, nn.Linear)])
        .detach()
        .numpy()
    )
    assert scipy.stats.kstest(weights, scipy.stats.norm(0, 0.02).cdf).statistic < 0.01
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not any(m.bias.any() for m in model.modules() if isinstance(m, nn.Linear))
    gains = [p for name, p in model.named_parameters() if name.endswith("gamma")]
    assert len(gains) == 8 and all(torch.equal(gain, torch.full((64,), 0.25)) for gain in gains)
    assert not built().head.weight.any() and not any(
        "gamma" in name for name, _ in built().named_parameters()
    )


@pytest.mark.parametrize(
    ("rule", "rates"), [("linear", [0.0, 0.1, 0.2]), ("uniform", [0.2, 0.2, 0.2])]
)
@pytest.mark.parametrize("branches", [1, 2])
def test_drop_path_follows_the_rule(rule: str, rates: list[float], branches: int) -> None:
    model = built(**TINY, drop_path=0.2, drop_path_rule=rule, branches=branches)
    for block, rate in zip(model.blocks, rates, strict=True):
        found = [layer.drop_prob for layer in block.modules() if isinstance(layer, DropPath)]
        assert found == pytest.approx([rate] * 2 * branches if rate else [])


@pytest.mark.parametrize("pos_embed", ["learned", "sincos", "none"])
def test_dropout_follows_positions_and_every_dense_layer_but_qkv(pos_embed: str) -> None:
    """Dosovitskiy et al. 2021, B.1."""
    model = built(**TINY, dropout=0.1, pos_embed=pos_embed)
    active = {
        name for name, layer in model.named_modules() if isinstance(layer, nn.Dropout) and layer.p
    }
    ends = ("attn.proj_drop", "mlp.drop1", "mlp.drop2")
    embedded = "norm_pre" if pos_embed == "none" else "pos_drop"
    assert active == {f"blocks.{i}.{end}" for i in range(3) for end in ends} | {embedded}
    calls: list[str] = []
    getattr(model, embedded).register_forward_hook(lambda *_: calls.append("dropout"))
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append("block"))
    model(torch.randn(1, 1, 8, 8))
    assert calls == ["dropout", "block"]


# --- parallel branches ----------------------------------------------------------------------------


def test_parallel_blocks_are_equation_2() -> None:
    model = shaken(built(**TINY, branches=3, layerscale=0.1)).eval()
    block, x = model.blocks[0], torch.randn(2, 5, 16)
    expected = x + sum(b.ls(b.attn(b.norm(x))) for b in block.attns)
    expected = expected + sum(b.ls(b.mlp(b.norm(expected))) for b in block.ffns)
    torch.testing.assert_close(block(x), expected)
    assert len(block.attns) == len(block.ffns) == 3


def gradients(block: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs, then the gradients of a loss in all parameters and in the input."""
    x = x.clone().requires_grad_()
    y = block(x)
    loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum()
    return [y.detach(), *torch.autograd.grad(loss, [x, *block.parameters()])]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("drop_path", [0.0, 0.4])
@pytest.mark.parametrize("branches", [1, 2, 3, 4])
def test_branches_in_one_go_give_what_they_give_one_after_another(
    branches: int, drop_path: float, dropout: float
) -> None:
    torch.manual_seed(1)
    block = shaken(
        ParallelBlock(
            16, 2, branches, qkv_bias=True, init_values=0.3, proj_drop=dropout, drop_path=drop_path
        )
    )
    draws = seed_layers(block, 7)
    x = torch.randn(6, 5, 16)
    for mode in (True, False):
        block.train(mode)
        draws.at(3, torch.arange(6))
        run_branches(block, parallel=False)
        expected = gradients(block, x)
        run_branches(block, parallel=True)
        for a, b in zip(gradients(block, x), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())


def test_both_modes_share_weights_and_timms_block_takes_them() -> None:
    block = shaken(ParallelBlock(16, 2, 2, qkv_bias=True, init_values=0.3)).eval()
    theirs = ParallelThingsBlock(16, 2, 2, qkv_bias=True, init_values=0.3).eval()
    theirs.load_state_dict(block.state_dict())
    run_branches(block, parallel=True)
    theirs.load_state_dict(block.state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(block(x), theirs(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_stacked_weights_are_kept_only_while_they_are_true() -> None:
    """A loaded, an averaged and a copied block must not compute with the weights of before."""
    block, other = (shaken(ParallelBlock(16, 2, 2, qkv_bias=True)).eval() for _ in range(2))
    run_branches(block, parallel=True)
    x = torch.randn(2, 5, 16)
    before, stacked = block(x), block._stacked
    assert torch.equal(block(x), before) and block._stacked is stacked and stacked is not None
    twin = copy.deepcopy(block)
    for p, q in zip(block.parameters(), other.parameters(), strict=True):
        p.lerp_(q, 1.0)
    torch.testing.assert_close(block(x), other(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, block(x), atol=0.1)
    torch.testing.assert_close(twin(x), before)
    twin.load_state_dict(block.state_dict())
    torch.testing.assert_close(twin(x), block(x))
    assert twin.train()._stacked is not None and twin(x) is not None and twin._stacked is None


def test_models_without_branches_take_either_mode() -> None:
    model = built(**TINY)
    run_branches(model, parallel=True)
    assert all(type(block) is Block for block in model.blocks)


# --- stems ----------------------------------------------------------------------------------------

STEMS = [("patchify" + after, "bn") for after in ("", "_bn", "_gelu", "_bn_gelu", "_bn_relu")]
STEMS += [(stem, norm) for stem in ("conv", "graham", "hmlp") for norm in ("bn", "ln")]


@pytest.mark.parametrize(("stem", "stem_norm"), STEMS)
def test_every_stem_gives_a_token_for_each_patch(stem: str, stem_norm: str) -> None:
    fields = (
        {"stem_channels": "8-12", "stem_strides": "2-8", "stem_kernels": "3-8"}
        if stem == "conv"
        else {}
    )
    config = {
        **TINY,
        "patch_size": 16,
        "resolution": 48,
        "depth": 1,
        "stem": stem,
        "stem_norm": stem_norm,
        **fields,
    }
    model = shaken(built(**config))
    images = torch.randn(2, 1, 48, 48)
    assert model.patch_embed(images).shape == (2, 9, 16) and model(images).shape == (2, 10)
    norms = [
        type(m)
        for m in model.patch_embed.modules()
        if isinstance(m, (nn.BatchNorm2d, nn.LayerNorm))
    ]
    counts = {"conv": 2, "graham": 4, "hmlp": 3}
    assert len(norms) == counts.get(stem, stem.count("_bn"))
    assert all(
        issubclass(norm, nn.LayerNorm if stem_norm == "ln" else nn.BatchNorm2d) for norm in norms
    )


def test_patchify_with_norm_and_relu_is_the_sentence_of_the_paper() -> None:
    """Xiao et al. 2021, appendix A: BN and ReLU after the patchify stem. Here BN is written out."""
    stem = build_stem(TrainConfig(stem="patchify_bn_relu", width=16, patch_size=8, resolution=32))
    images = torch.randn(6, 1, 32, 32)
    patches = nn.functional.unfold(images, 8, stride=8)
    tokens = stem[0].weight.flatten(1) @ patches + stem[0].bias[:, None]
    mean, var = (f(tokens, (0, 2), keepdim=True) for f in (torch.mean, torch.var))
    n = 6 * 16
    expected = torch.relu((tokens - mean) / (var * (n - 1) / n + stem[1].eps).sqrt())
    assert torch.allclose(stem(images).flatten(2), expected, atol=1e-5)


def test_the_stem_of_graham_is_the_published_list() -> None:
    """Graham et al. 2021 at 384: 3-48-96-192-384, four 3x3
    convolutions of stride 2 (LeViT-384), without biases.
    """
    stem = build_stem(TrainConfig(stem="graham", width=384, heads=6, patch_size=16, resolution=32))
    theirs = timm.create_model("levit_384").stem
    ours, published = ([m for m in s.modules() if isinstance(m, nn.Conv2d)] for s in (stem, theirs))
    assert [(m.out_channels, m.kernel_size, m.stride, m.padding, m.bias) for m in ours] == [
        (m.out_channels, m.kernel_size, m.stride, m.padding, m.bias) for m in published
    ]
    assert [type(m) for m in stem] == [nn.Conv2d, nn.BatchNorm2d, nn.GELU] * 3 + [
        nn.Conv2d,
        nn.BatchNorm2d,
    ]


def test_the_hmlp_stem_is_the_listing() -> None:
    """Touvron et al. 2022, appendix C."""
    stem = build_stem(TrainConfig(stem="hmlp", width=64, patch_size=16, resolution=32, channels=1))
    norm, gelu = nn.BatchNorm2d, nn.GELU
    listing = nn.Sequential(
        nn.Conv2d(1, 16, 4, 4),
        norm(16),
        gelu(),
        nn.Conv2d(16, 16, 2, 2),
        norm(16),
        gelu(),
        nn.Conv2d(16, 64, 2, 2),
        norm(64),
    )
    listing.load_state_dict(stem.state_dict())
    images = torch.randn(4, 1, 32, 32)
    assert torch.equal(stem(images), listing(images))


@pytest.mark.parametrize(
    ("stem_norm", "training"),
    [("bn", False), ("ln", False), ("ln", True)],
    ids=["BN in evaluation", "LN", "LN, training"],
)
def test_masking_before_an_hmlp_is_masking_after_it(stem_norm: str, training: bool) -> None:
    """Touvron et al. 2022, section 5: what an unmasked patch
    becomes does not depend on the masked ones.
    """
    config = TrainConfig(
        stem="hmlp", stem_norm=stem_norm, width=16, heads=2, patch_size=8, resolution=32
    )
    stem = shaken(build_stem(config)).train(training)
    images, mask = torch.randn(5, 1, 32, 32), torch.rand(5, 1, 4, 4) < 0.6
    pixels = mask.repeat_interleave(8, 2).repeat_interleave(8, 3)
    before, after = stem(images.masked_fill(pixels, 0.0)), stem(images)
    torch.testing.assert_close(before.masked_fill(mask, 0.0), after.masked_fill(mask, 0.0))
    assert not torch.allclose(before, after)


def test_masking_before_a_conv_stem_is_not_masking_after_it() -> None:
    stem = shaken(
        build_stem(TrainConfig(stem="graham", width=16, heads=2, patch_size=8, resolution=32))
    ).eval()
    images, mask = torch.randn(2, 1, 32, 32), torch.tensor([True, False]).repeat(8).view(1, 1, 4, 4)
    pixels = mask.repeat_interleave(8, 2).repeat_interleave(8, 3)
    before, after = stem(images.masked_fill(pixels, 0.0)), stem(images)
    assert not torch.allclose(before.masked_fill(mask, 0.0), after.masked_fill(mask, 0.0))


def test_the_conv_stem_takes_other_kernels_and_norms() -> None:
    """Xiao et al. 2021, appendix A: a kernel equal to its
    stride sees each pixel once, without padding.
    """
    stem = build_stem(
        TrainConfig(
            stem="conv",
            patch_size=8,
            resolution=16,
            stem_channels="4-6",
            stem_strides="2-4",
            stem_kernels="3-4",
            stem_norm="ln",
        )
    )
    convs = [m for m in stem.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.kernel_size[0], m.stride[0], m.padding[0], m.bias is None) for m in convs] == [
        (3, 2, 1, True),
        (4, 4, 0, True),
        (1, 1, 0, False),
    ]
    x = convs[0](images := torch.randn(2, 1, 16, 16))
    norm = LayerNorm2d(4, eps=1e-5)
    torch.testing.assert_close(stem[0](images), norm(x).relu())


# --- other models ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "rates"), [("uniform", [0.3] * 18), ("linear", list(np.linspace(0, 0.3, 18))[1:])]
)
def test_regnety_drops_paths(rule: str, rates: list[float]) -> None:
    with torch.device("meta"):
        model = build_model(TrainConfig(model="regnety-1gf", drop_path=0.3, drop_path_rule=rule))
    found = [layer.drop_prob for layer in model.modules() if isinstance(layer, DropPath)]
    assert found == pytest.approx(rates)


def test_the_last_norm_of_a_regnety_block_starts_at_one_and_timms_at_zero() -> None:
    """pycls, BN.ZERO_INIT_FINAL_GAMMA: False."""
    ours, theirs = (
        built(model="regnety-1gf", resolution=32),
        timm.create_model("regnety_008", num_classes=10),
    )
    for model, gain in ((ours, 1.0), (theirs, 0.0)):
        last = [module.conv3.bn.weight for module in model.modules() if hasattr(module, "conv3")]
        assert len(last) > 10 and all((weight == gain).all() for weight in last)
    assert all((m.weight == 1).all() for m in ours.modules() if isinstance(m, nn.BatchNorm2d))


def test_a_timm_model_is_the_one_that_timm_makes() -> None:
    """The classes and channels of the config; nothing else differs."""
    ours = built(model="timm:resnet18", resolution=32)
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=10, in_chans=1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    with torch.device("meta"):
        vit = build_model(TrainConfig(model="timm:vit_tiny_patch16_224", resolution=48))
        swin = build_model(TrainConfig(model="timm:swin_tiny_patch4_window7_224", resolution=56))
    assert vit.pos_embed.shape == (1, 10, 192)
    # timm's own default is 0.1
    assert not any(isinstance(layer, DropPath) for layer in swin.modules())


def test_arguments_of_a_timm_model_replace_those_of_its_name() -> None:
    """CaiT-B12: the class itself with these arguments. Its multiply-adds are those of Touvron 2022
    (thesis), Table 6.13.
    """
    args = "depth=12,embed_dim=768,init_values=0.0001,num_heads=16"
    config = TrainConfig(
        model="timm:cait_s24_224", timm_args=args, resolution=224, dataset="imagenet",
        channels=3, num_classes=1000, drop_path=0.1,
    )  # fmt: skip
    with torch.device("meta"):
        ours = build_model(config)
        theirs = Cait(depth=12, embed_dim=768, init_values=1e-4, num_heads=16)
    shapes = [{n: p.shape for n, p in m.state_dict().items()} for m in (ours, theirs)]
    assert shapes[0] == shapes[1] and (len(ours.blocks), len(ours.blocks_token_only)) == (12, 2)
    assert {layer.drop_prob for layer in ours.modules() if isinstance(layer, DropPath)} == {0.1}
    assert round(measured_complexity(config).flops / 1e9, 1) == 18.2
    small = TrainConfig(model="timm:cait_xxs24_224", timm_args="depth=1,init_values=0.5")
    assert (build_model(small).blocks[0].gamma_1 == 0.5).all()
    with pytest.raises(ValueError, match=r"timm_args='wings=2', .* unexpected keyword"):
        build_model(config.replace(timm_args="wings=2"))


# timm name, blocks with a drop path under the uniform rule, and under timm's own: linear, so that
# the first has none; the class attention of CaiT never has one, and its other blocks know no linear
# rule.
DROPPED = [
    ("resnet18", 8, 7),
    ("convnext_tiny", 18, 17),
    ("deit3_small_patch16_224", 24, 22),
    ("swin_tiny_patch4_window7_224", 24, 22),
    ("cait_xxs24_224", 24, 0),
]


@pytest.mark.parametrize(("name", "uniform_count", "linear_count"), DROPPED)
def test_drop_path_of_timm_models_follows_the_rule(
    name: str, uniform_count: int, linear_count: int
) -> None:
    for rule, count in (("uniform", uniform_count), ("linear", linear_count)):
        config = TrainConfig(
            model=f"timm:{name}", resolution=224, drop_path=0.2, drop_path_rule=rule
        )
        if not count:
            with refusing(f"timm:{name}", "drop_path=0.2"):
                build_model(config)
            continue
        with torch.device("meta"):
            model = build_model(config)
        rates = [layer.drop_prob for layer in model.modules() if isinstance(layer, DropPath)]
        assert len(rates) == count and max(rates) == pytest.approx(0.2)
        assert rule == "linear" or set(rates) == {0.2}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "timm:resnet5"}, "must name a model of timm.*resnet50"),
        ({"model": "timm:resnet50.a1_in1k"}, "must name a model of timm"),
        ({"model": "timm:hf-hub:someone/something"}, "must name a model of timm"),
        (
            {"model": "timm:vgg11", "drop_path": 0.1},
            "drop_path=0.1.*unexpected keyword argument 'drop_path_rate'",
        ),
    ],
)
def test_a_timm_model_that_cannot_be_is_refused_in_one_line(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught, torch.device("meta"):
        build_model(TrainConfig(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine", "resnet18"])
def test_a_model_that_only_this_process_knows_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a script registers, or puts in the place of timm's: workers do not run the script.
    Put here as timm.models.register_model does, which cannot be undone.
    """

    def mine(pretrained: bool = False, **options: Any) -> torch.nn.Module:
        return timm.models.resnet.resnet34(**options)

    monkeypatch.setitem(timm.models._registry._model_entrypoints, name, mine)
    said = rf"\(model='timm:{name}', defined in {__name__}\)"
    with pytest.raises(ValueError, match=said), torch.device("meta"):
        build_model(TrainConfig(model=f"timm:{name}", resolution=32))


# --- draws ----------------------------------------------------------------------------------------


def numpy_mix(words: np.ndarray) -> np.ndarray:
    """lowbias32, Wellons 2018, as printed, in unsigned arithmetic."""
    words = words.astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    return words ^ (words >> np.uint32(16))


def test_the_hash_is_that_of_numpy() -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, 10_000).astype(np.int32)
    assert np.array_equal(
        mix(torch.from_numpy(words)).numpy().view(np.uint32), numpy_mix(words.view(np.uint32))
    )


def test_numbers_are_uniform_normal_and_reproducible() -> None:
    positions = torch.arange(400)
    u, z = uniform(key_of(1, 2), positions, (25, 40)), normal(key_of(1, 2), positions, (25, 40))
    assert u.shape == z.shape == (400, 25, 40) and u.min() >= 0 and u.max() < 1
    assert scipy.stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.001
    assert scipy.stats.kstest(z.flatten().numpy(), "norm").pvalue > 0.001
    assert torch.equal(uniform(key_of(1, 2), positions[7:9], (25, 40)), u[7:9])
    keys = {
        key_of(*numbers)
        for numbers in [(1,), (1, 0), (0, 1), (1, 2), (2, 1), (2**32,), (2**62,), (0,), ()]
    }
    assert len(keys) == 9 and all(-(2**31) <= key < 2**31 for key in keys)


def test_numbers_of_samples_elements_and_keys_are_independent() -> None:
    """Correlations of 10,000 pairs have a deviation of 0.01."""
    u = torch.stack(
        [uniform(key_of(0, step), torch.arange(20), (10_000,)) for step in range(5)]
    ).flatten(0, 1)
    correlations = torch.corrcoef(u).fill_diagonal_(0)
    assert correlations.abs().max() < 0.05 and correlations[0, 1:].std().item() == pytest.approx(
        0.01, rel=0.3
    )
    neighbours = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    assert abs(neighbours) < 0.005
    # consecutive samples: no runs, no cycles
    bits = (uniform(0, torch.arange(4096), (1,)).flatten() * 2).int().numpy()
    runs = 1 + np.count_nonzero(np.diff(bits))
    assert abs(runs - 2048) < 4 * 32  # 4 deviations of a fair coin's number of runs


def layers_of(seed: int, drop_path: float = 0.3, dropout: float = 0.2) -> tuple[Any, Any]:
    model = shaken(built(**TINY, drop_path=drop_path, dropout=dropout))
    return model, seed_layers(model, seed)


def test_masks_do_not_depend_on_the_cut_nor_on_the_global_generator() -> None:
    model, draws = layers_of(5)
    images = torch.randn(12, 1, 8, 8)
    draws.at(9, torch.arange(12))
    torch.manual_seed(1)
    state, whole = torch.get_rng_state(), model(images)
    assert torch.equal(state, torch.get_rng_state())
    parts = torch.empty_like(whole)
    for part in (
        torch.tensor([0, 11, 5]),
        torch.tensor([1, 2, 3, 4, 6]),
        torch.tensor([7, 8, 9, 10]),
    ):
        draws.at(9, part)
        torch.manual_seed(2)
        parts[part] = model(images[part])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)


def test_masks_depend_on_seed_step_layer_and_sample() -> None:
    images = torch.randn(1, 1, 8, 8).expand(6, -1, -1, -1)
    outputs = []
    for seed, step, first in ((5, 9, 0), (5, 10, 0), (6, 9, 0), (5, 9, 100)):
        torch.manual_seed(0)
        model, draws = layers_of(seed)
        draws.at(step, torch.arange(first, first + 6))
        outputs.append(model(images).detach())
    rows = torch.cat(outputs)
    assert len({tuple(row.tolist()) for row in rows}) == 24
    masks = [
        layer(torch.ones(6, 50)) for layer in model.modules() if isinstance(layer, SeededDropout)
    ]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(masks) == 10


@pytest.mark.parametrize(
    ("layer", "theirs"),
    [(SeededDropout, nn.Dropout(0.3)), (SeededDropPath, StochasticDepth(0.3, "row"))],
)
def test_seeded_layers_have_the_statistics_of_torchs(
    layer: type[Seeded], theirs: nn.Module
) -> None:
    """Shares of zeros and the factor of the rest; what is
    zeroed is an element, or a sample as a whole.
    """
    model = nn.Sequential(nn.Dropout(0.3) if layer is SeededDropout else DropPath(0.3))
    draws = seed_layers(model, 0)
    assert type(model[0]) is layer
    x = torch.ones(4000, 5, 4)
    draws.at(0, torch.arange(4000))
    ours, reference = model(x), theirs.train()(x)
    assert ours.unique().tolist() == pytest.approx(reference.unique().tolist())
    assert (ours == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)
    whole = [bool((y.flatten(1) == y[:, :1, 0]).all()) for y in (ours, reference)]
    assert whole == [layer is SeededDropPath] * 2
    assert torch.equal(model.eval()(x), x)


def test_seeding_replaces_what_draws_and_nothing_else() -> None:
    plain = built(**TINY)
    before = list(plain.modules())
    seed_layers(plain, 0)
    assert list(plain.modules()) == before
    model, _ = layers_of(0)
    seeded = [layer for layer in model.modules() if isinstance(layer, Seeded)]
    assert len(seeded) == 1 + 3 * 3 + 3 * 2 and {layer.layer for layer in seeded} == set(
        range(1, 17)
    )
    assert not any(
        isinstance(layer, DropPath) or (type(layer) is nn.Dropout and layer.p)
        for layer in model.modules()
    )
    with refusing("layer=Dropout2d(p=0.5"):
        seed_layers(nn.Sequential(nn.Dropout2d(0.5)), 0)


def test_seeding_again_takes_the_other_seed() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    masks = []
    for seed in (1, 2, 1):
        seed_layers(model, seed).at(0, torch.arange(8))
        masks.append(model(torch.ones(8, 32)))
    assert torch.equal(masks[0], masks[2]) and not torch.equal(masks[0], masks[1])


def test_a_timm_model_with_drop_path_is_seeded() -> None:
    model = built(model="timm:resnet18", resolution=32, drop_path=0.5).train()
    draws = seed_layers(model, 0)
    layer = model.layer1[0].drop_path
    draws.at(0, torch.arange(64))
    kept = layer(torch.ones(64, 2, 3, 3))
    assert set(kept.flatten(1).sum(1).tolist()) == {0.0, 36.0} and isinstance(layer, SeededDropPath)


def test_a_compiled_model_draws_what_the_plain_one_draws() -> None:
    """As one graph that a further step does not rebuild."""
    model, draws = layers_of(3)
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for step in range(3):
        draws.at(step, torch.arange(4) + 10 * step)
        images = torch.randn(4, 1, 8, 8)
        torch.testing.assert_close(compiled(images), model(images))
    assert len(graphs) == 1
