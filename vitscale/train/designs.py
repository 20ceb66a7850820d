"""Parts of a ViT that the plain one lacks: positions in each block or in attention, a class token
that enters later, class attention, and a distillation token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers import Attention, trunc_normal_
from timm.models.vision_transformer import Block, VisionTransformer, get_init_weights_vit
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


class DesignedViT(VisionTransformer):
    """A ViT that adds positions and its class token before the blocks that the config names.

    `pos_embed` is (L, T, C), for L layers of their own, or one. With learned2d it is (L, 2 side,
    C / 2): a vector per column, then one per row.

    With distill "token" a distillation token follows the class token, with a head of its own
    (Touvron et al. 2021, DeiT); it is timm's one register token, `reg_token`. In training the
    output is a pair of logits (B, num_classes): those of the class token and those of the
    distillation token. In evaluation it is the logarithm of the mean of both softmaxes (B,
    num_classes): H. Touvron's thesis (2022, section 3.3) adds the softmax outputs, while DeiT's
    code and timm average the logits. The text is followed, and a cross entropy or a confidence of
    this output is that of the averaged probabilities.
    """

    def __init__(self, config: TrainConfig, **parts: Any) -> None:
        distilled = config.distill == "token"
        super().__init__(**parts, reg_tokens=int(distilled))
        self.head_dist = nn.Linear(self.embed_dim, self.num_classes) if distilled else None
        if self.head_dist is not None:
            get_init_weights_vit(parts["weight_init"])(self.head_dist, "head_dist")
            trunc_normal_(self.reg_token, std=0.02)  # as timm's dist_token
        self.pos_at, self.side = config.pos_at, config.resolution // config.patch_size
        self.of_axes = config.pos_embed == "learned2d"
        # the block before which the class token enters; without one, none is reached
        late = config.depth if config.class_blocks else config.token_layer
        self.token_at = late if config.pool == "token" else -1
        self.num_placed = config.depth  # blocks that may have positions
        if self.of_axes or self.pos_at == "layer":
            timms: Any = self.pos_embed
            _, num, width = timms.shape
            shape = (2 * self.side, width // 2) if self.of_axes else (num, width)
            layers = config.depth if self.pos_at == "layer" else 1
            # in every layer as timm's after the stem
            self.pos_embed = nn.Parameter(trunc_normal_(torch.empty(layers, *shape), std=0.02))

    def positions(self, block: int) -> Tensor | None:
        """What is added to the last T tokens before a block, (1, T, C), or None."""
        if self.pos_embed is None or block >= (1 if self.pos_at == "stem" else self.num_placed):
            return None
        table: Tensor = self.pos_embed[block if self.pos_at == "layer" else 0]
        return (of_axes(table) if self.of_axes else table)[None]

    def forward_features(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        x = self.patch_embed(x)
        for number, block in enumerate(self.blocks):
            if number == self.token_at:
                both = (self.cls_token, self.reg_token)
                tokens = [token.expand(len(x), -1, -1) for token in both if token is not None]
                x = torch.cat([*tokens, x], 1)
            if (at := self.positions(number)) is not None:
                x = x + F.pad(at, (0, 0, x.shape[1] - at.shape[1], 0))
            if number == 0:
                x = self.norm_pre(self.pos_drop(x))
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def forward_head(self, x: Tensor, *args: Any, **fields: Any) -> Any:
        if self.head_dist is None:
            return super().forward_head(x, *args, **fields)
        both = self.head(x[:, 0]), self.head_dist(x[:, 1])
        if self.training:
            return both
        ours, theirs = (F.log_softmax(logits, 1, dtype=torch.float32) for logits in both)
        return torch.logaddexp(ours, theirs) - math.log(2)

    def get_classifier(self) -> Any:
        return self.head if self.head_dist is None else (self.head, self.head_dist)


def of_axes(table: Tensor) -> Tensor:
    """The positions (side * side, C) of half a vector per column and half a vector per row, (2
    side, C / 2).
    """
    columns, rows = table.chunk(2)
    side = len(rows)
    both = [columns.expand(side, -1, -1), rows[:, None].expand(-1, side, -1)]
    return torch.cat(both, -1).flatten(0, 1)


class RelativeAttention(Attention):
    """Attention with a learned key for each offset of two patches in raster order.

    Dosovitskiy et al. 2021, appendix D.4: the products of the queries with these keys are added to
    those with the keys of content. The text does not say who shares a key, nor what offset the
    class token has: all heads of a layer share it, as in Shaw et al. 2018, and the class token has
    none.
    """

    num_patches: int  # of a subclass for the resolution, since timm calls the class itself

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        keys = torch.empty(2 * self.num_patches - 1, self.head_dim)
        self.pos_embed = nn.Parameter(trunc_normal_(keys, std=0.02))

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        q, k, v = _heads(self.qkv(x).unflatten(-1, (3, -1)), self.num_heads).unbind(0)
        prefix = x.shape[1] - self.num_patches
        numbers = torch.arange(self.num_patches, device=x.device)
        keys = self.pos_embed[numbers[:, None] - numbers + self.num_patches - 1]
        bias = torch.einsum("bhqd,qkd->bhqk", q[:, :, prefix:], keys.to(q.dtype))
        scores = q @ k.transpose(-2, -1) + F.pad(bias, (prefix, 0, prefix, 0))
        values = (scores * self.scale).softmax(-1) @ v
        y: Tensor = self.proj_drop(self.proj(values.transpose(1, 2).flatten(2)))
        return y


class ClassBlock(Block):
    """A block that updates the first tokens alone, which attend to themselves and the others.

    Touvron et al. 2021, CaiT. Parameters and their names are those of a block.
    """

    num_tokens = 1  # that are updated

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        tokens, others = x[:, : self.num_tokens], x[:, self.num_tokens :]
        tokens = tokens + self.drop_path1(self.ls1(self._attend(self.norm1(x))))
        tokens = tokens + self.drop_path2(self.ls2(self.mlp(self.norm2(tokens))))
        return torch.cat([tokens, others], 1)

    def _attend(self, x: Tensor) -> Tensor:
        attn: Any = self.attn
        width, heads = x.shape[-1], attn.num_heads
        weight, bias = attn.qkv.weight, attn.qkv.bias
        first = x[:, : self.num_tokens]
        q = _heads(F.linear(first, weight[:width], bias[:width])[:, :, None], heads)[0]
        both = F.linear(x, weight[width:], bias[width:]).unflatten(-1, (2, -1))
        k, v = _heads(both, heads).unbind(0)
        values = F.scaled_dot_product_attention(q, k, v)
        y: Tensor = attn.proj_drop(attn.proj(values.transpose(1, 2).flatten(2)))
        return y


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, P, C) -> (P, B, heads, N, C / heads)."""
    return x.unflatten(-1, (heads, -1)).permute(2, 0, 3, 1, 4)
