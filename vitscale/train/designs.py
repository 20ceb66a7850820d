"""Parts of a ViT that the plain one lacks: positions in each block or in attention, a class token
that enters later, and class attention.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import Attention, trunc_normal_
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig


class DesignedViT(VisionTransformer):
    """A ViT that adds positions and its class token before the blocks that the config names.

    `pos_embed` is (L, T, C), for L layers of their own, or one. With learned2d it is (L, 2 side,
    C / 2): a vector per column, then one per row.
    """

    def __init__(self, config: TrainConfig, **parts: Any) -> None:
        super().__init__(**parts)
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
                token: Any = self.cls_token
                x = torch.cat([token.expand(len(x), -1, -1), x], 1)
            if (at := self.positions(number)) is not None:
                x = x + F.pad(at, (0, 0, x.shape[1] - at.shape[1], 0))
            if number == 0:
                x = self.norm_pre(self.pos_drop(x))
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed


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
    """A block that updates the first token alone, which attends to itself and the others.

    Touvron et al. 2021, CaiT. Parameters and their names are those of a block.
    """

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        token, others = x[:, :1], x[:, 1:]
        token = token + self.drop_path1(self.ls1(self._attend(self.norm1(x))))
        token = token + self.drop_path2(self.ls2(self.mlp(self.norm2(token))))
        return torch.cat([token, others], 1)

    def _attend(self, x: Tensor) -> Tensor:
        attn: Any = self.attn
        width, heads = x.shape[-1], attn.num_heads
        weight, bias = attn.qkv.weight, attn.qkv.bias
        q = _heads(F.linear(x[:, :1], weight[:width], bias[:width])[:, :, None], heads)[0]
        both = F.linear(x, weight[width:], bias[width:]).unflatten(-1, (2, -1))
        k, v = _heads(both, heads).unbind(0)
        values = F.scaled_dot_product_attention(q, k, v)
        y: Tensor = attn.proj_drop(attn.proj(values.transpose(1, 2).flatten(2)))
        return y


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, P, C) -> (P, B, heads, N, C / heads)."""
    return x.unflatten(-1, (heads, -1)).permute(2, 0, 3, 1, 4)
