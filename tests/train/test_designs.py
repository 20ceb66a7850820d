"""Positions, late class tokens and class attention against definitions and timm's CaiT."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from support.refusals import refusing
from timm.layers import resample_abs_pos_embed
from timm.models.cait import LayerScaleBlockClassAttn
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitscale.catalog.tables import table_rows
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.train.designs import of_axes
from vitscale.train.evaluate import model_with
from vitscale.train.inherit import freeze, inherit
from vitscale.train.model import build_model
from vitscale.train.optim import decay_groups

torch.set_num_threads(1)

TINY: dict[str, Any] = {"width": 16, "depth": 3, "heads": 2, "patch_size": 2}  # 16 patches
IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


TAUGHT: dict[str, Any] = {"distill": "token", "teacher": "0" * 12}


def shaken(**fields: Any) -> Any:
    """A model in evaluation whose weights are all random."""
    torch.manual_seed(0)
    model = build_model(TrainConfig(**{**TINY, **fields})).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model


def test_relative_attention_is_its_formula() -> None:
    """Entry by entry: a query has a product with a key for p - q beside that with the content; the
    class token, which comes first, has none.
    """
    attn = shaken(pos_embed="relative").blocks[0].attn
    x = torch.randn(2, 17, 16)
    q, k, v = (attn.qkv(x)[..., 16 * i : 16 * (i + 1)] for i in range(3))
    expected = torch.zeros(2, 17, 16)
    for image in range(2):
        for head in (slice(0, 8), slice(8, 16)):
            scores = torch.zeros(17, 17)
            for i in range(17):
                for j in range(17):
                    key = k[image, j, head]
                    if i > 0 and j > 0:
                        key = key + attn.pos_embed[i - j + 15]
                    scores[i, j] = q[image, i, head] @ key / 8**0.5
            expected[image, :, head] = scores.softmax(1) @ v[image, :, head]
    torch.testing.assert_close(attn(x), attn.proj(expected))


@pytest.mark.parametrize("layerscale", [0.0, 0.5])
def test_class_blocks_are_those_of_cait(layerscale: float) -> None:
    model = shaken(class_blocks=2, layerscale=layerscale)
    tokens = model.patch_embed(IMAGES) + model.pos_embed
    for block in model.blocks[:3]:
        tokens = block(tokens)
    token = model.cls_token.expand(2, -1, -1)
    for ours in model.blocks[3:]:
        theirs: Any = LayerScaleBlockClassAttn(
            16, 2, qkv_bias=True, norm_layer=lambda dim, **_: nn.LayerNorm(dim, eps=1e-6)
        ).eval()
        state = ours.state_dict()
        for part in ("weight", "bias"):
            three = state.pop(f"attn.qkv.{part}").chunk(3)
            state |= {f"attn.{name}.{part}": w for name, w in zip("qkv", three, strict=True)}
        for number in (1, 2):
            state[f"gamma_{number}"] = state.pop(f"ls{number}.gamma", torch.ones(16))
        theirs.load_state_dict(state)
        token = theirs(tokens, token)
    torch.testing.assert_close(model(IMAGES), model.head(model.norm(token)[:, 0]))


def test_two_dimensional_positions_are_a_column_and_a_row() -> None:
    model = shaken(pos_embed="learned2d")
    (table,) = model.pos_embed
    assert table.shape == (8, 8)
    expected = torch.stack(
        [torch.cat([table[x], table[4 + y]]) for y in range(4) for x in range(4)]
    )
    patches = model.patch_embed(IMAGES)  # in the raster order of these positions
    tokens = torch.cat([model.cls_token.expand(2, -1, -1), patches + expected], 1)
    torch.testing.assert_close(model(IMAGES), model.head(model.norm(model.blocks(tokens))[:, 0]))
    assert torch.equal(of_axes(table), expected)


@pytest.mark.parametrize("pos_embed", ["learned", "learned2d"])
@pytest.mark.parametrize("pos_at", ["stem", "layer", "shared"])
@pytest.mark.parametrize("token_layer", [0, 2])
def test_positions_and_token_enter_where_the_config_says(
    pos_embed: str, pos_at: str, token_layer: int
) -> None:
    model = shaken(pos_embed=pos_embed, pos_at=pos_at, token_layer=token_layer)
    assert len(model.pos_embed) == (3 if pos_at == "layer" else 1)
    x = model.patch_embed(IMAGES)
    for number, block in enumerate(model.blocks):
        if number == token_layer:
            x = torch.cat([model.cls_token.expand(2, -1, -1), x], 1)
        if number == 0 or pos_at != "stem":
            table = model.pos_embed[number if pos_at == "layer" else 0]
            added = of_axes(table) if pos_embed == "learned2d" else table
            rest = x[:, : x.shape[1] - len(added)]
            x = torch.cat([rest, x[:, x.shape[1] - len(added) :] + added], 1)
        x = block(x)
    torch.testing.assert_close(model(IMAGES), model.head(model.norm(x)[:, 0]))


def test_designs_without_another_design_are_the_plain_model() -> None:
    """A learned position in each layer, but for the first at zero, is one after the stem."""
    plain, moved = shaken(), shaken(pos_at="layer")
    state = plain.state_dict()
    state["pos_embed"] = torch.cat([state["pos_embed"], torch.zeros(2, 17, 16)])
    moved.load_state_dict(state)
    torch.testing.assert_close(moved(IMAGES), plain(IMAGES))


def test_new_positions_start_and_decay_as_the_learned_ones() -> None:
    for fields in ({"pos_embed": "relative"}, {"pos_embed": "learned2d"}, {"pos_at": "layer"}):
        torch.manual_seed(0)
        config = TrainConfig(**{**TINY, "depth": 12, **fields})
        model = build_model(config)
        named = {n: p for n, p in model.named_parameters() if n.endswith("pos_embed")}
        values = torch.cat([p.flatten() for p in named.values()])
        assert len(named) == (12 if fields.get("pos_embed") == "relative" else 1)
        count = {"relative": 12 * 31 * 8, "learned2d": 8 * 8}.get(
            str(fields.get("pos_embed")), 12 * 17 * 16
        )
        assert len(values) == count
        assert 0.015 < float(values.detach().std()) < 0.025
        for decayed in (True, False):
            groups = decay_groups(model, config.replace(decay_tokens=decayed))
            held = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
            assert {id(p) in held for p in named.values()} == {decayed}


def test_positions_of_the_axes_are_resized_as_the_grid_that_they_span() -> None:
    small = shaken(pos_embed="learned2d", pos_at="layer")
    config = TrainConfig(**TINY, pos_embed="learned2d", pos_at="layer", resolution=12)
    for antialias in (False, True):
        large: Any = build_model(config)
        if antialias:
            large = model_with(small.state_dict(), config)
        else:
            inherit(large, config, small.state_dict())
        for old, new in zip(small.pos_embed, large.pos_embed, strict=True):
            whole = of_axes(old)[None]
            grid = resample_abs_pos_embed(whole, [6, 6], num_prefix_tokens=0, antialias=antialias)
            torch.testing.assert_close(of_axes(new), grid[0])


def test_positions_of_each_layer_are_resized_by_themselves() -> None:
    """Those of the class token and the distillation token stay; late ones have none."""
    late: dict[str, Any]
    for fields, prefix in (
        ({}, 1),
        (TAUGHT, 2),
        (late := {"token_layer": 1}, 0),
        ({**TAUGHT, **late}, 0),
        ({"class_blocks": 1}, 0),
    ):
        small = shaken(pos_at="layer", **fields)
        large: Any = model_with(
            small.state_dict(), TrainConfig(**{**TINY, **fields}, pos_at="layer", resolution=4)
        )
        for old, new in zip(small.pos_embed, large.pos_embed, strict=True):
            expected = resample_abs_pos_embed(old[None], [2, 2], num_prefix_tokens=prefix)[0]
            assert torch.equal(new, expected) and len(new) == 4 + prefix


def test_relative_positions_of_another_resolution_are_refused_in_one_line() -> None:
    config = TrainConfig(**TINY, pos_embed="relative", resolution=4)
    with refusing(": blocks.0.attn.pos_embed)"):
        model_with(shaken(pos_embed="relative").state_dict(), config)


@pytest.mark.parametrize("trainable", ["attn", "ffn", "head"])
def test_positions_are_trained_with_attention_or_mlps(trainable: str) -> None:
    """Wherever they are; the class blocks have both parts."""
    part: dict[str, Any] = {"init_from": "0123456789ab", "trainable": trainable}
    for fields in ({"pos_embed": "relative"}, {"pos_at": "layer"}, {"class_blocks": 1}, TAUGHT):
        config = TrainConfig(**{**TINY, **fields}, **part)
        model = freeze(build_model(config), config)
        wanted = {"attn": ".attn.", "ffn": ".mlp."}.get(trainable, "head.")
        for name, weight in model.named_parameters():
            placed = trainable != "head" and name.split(".")[-1] == "pos_embed"
            of_head = name.startswith(("head.", "head_dist."))
            assert weight.requires_grad == (wanted in name or placed or of_head)


DEIT_S: dict[str, Any] = {
    "dataset": "imagenet", "channels": 3, "num_classes": 1000, "resolution": 224,
    "patch_size": 16, "width": 384, "heads": 6,
}  # fmt: skip


@pytest.mark.parametrize("row", table_rows("thesis_table3_13"))
def test_costs_are_those_of_table_3_13(row: dict[str, str]) -> None:
    """Thesis, Table 3.13, to the printed digit; 12 + 1 blocks have 4.64 G, printed as 4.7."""
    blocks = int(row["class_attention_layers"])
    config = TrainConfig(
        **DEIT_S,
        depth=int(row["self_attention_layers"]),
        class_blocks=blocks,
        token_layer=0 if blocks else int(row["insertion_layer"] or 0),
        pool={"cls": "token", "average": "avg"}[row["pooling"]],
    )
    cost = complexity(config)
    assert round(cost.params / 1e6) == int(row["params_m"])
    assert abs(cost.flops / 1e9 - float(row["flops_g"])) < 0.065


@pytest.mark.parametrize(("fields", "num"), [({}, 1), (TAUGHT, 2)])
def test_class_blocks_leave_the_patches_as_they_are(fields: dict[str, Any], num: int) -> None:
    """The first tokens become what a whole block makes of them."""
    model = shaken(class_blocks=1, **fields)
    seen: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _, x, y: seen.extend((x[0], y)))
    model(IMAGES)
    x, y = seen
    assert torch.equal(y[:, num:], x[:, num:]) and x.shape[1] == 16 + num
    torch.testing.assert_close(y[:, :num], Block.forward(model.blocks[-1], x)[:, :num])


def test_a_distillation_token_is_that_of_deit() -> None:
    """Both heads against timm's model with the same weights; in evaluation, the softmax outputs of
    its heads are added, as in H. Touvron's thesis, section 3.3, and not its logits.
    """
    shape = {**DEIT_S, "width": 192, "heads": 3}
    config = TrainConfig(**shape, depth=12, weight_init="trunc_normal", **TAUGHT)
    theirs: Any = timm.create_model("deit_tiny_distilled_patch16_224")
    theirs.set_distilled_training(True)
    ours: Any = build_model(config)
    assert (
        0.015 < ours.reg_token.detach().std() < 0.025
        and ours.head_dist.weight.detach().std() > 0.01
    )
    for weight in theirs.parameters():  # positions, norms and biases, too
        nn.init.normal_(weight, std=0.05)
    state = theirs.state_dict()
    state["reg_token"] = state.pop("dist_token")
    ours.load_state_dict(state)
    assert complexity(config).params == sum(weight.numel() for weight in theirs.parameters())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        heads = theirs(images)
        for mine, yours in zip(ours(images), heads, strict=True):
            torch.testing.assert_close(mine, yours, rtol=1e-5, atol=1e-5)
        probs = sum(head.softmax(1) for head in heads) / 2
        torch.testing.assert_close(ours.eval()(images).exp(), probs, rtol=1e-4, atol=1e-7)
    jax = build_model(config.replace(weight_init="jax"))
    assert not any(p.any() for name, p in jax.named_parameters() if name.startswith("head"))
