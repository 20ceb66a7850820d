"""Transformer blocks with parallel branches, computed one after another or as one."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import ParallelThingsBlock
from torch import Tensor, nn
from torch.nn import functional as F


def run_branches(model: nn.Module, parallel: bool) -> None:
    """Sets whether the branches of a model's parallel blocks are computed as one.

    The weights, their names and, up to rounding, the results stay the same. Models without such
    blocks are left unchanged.
    """
    for block in model.modules():
        if isinstance(block, ParallelBlock):
            block.parallel = parallel


class ParallelBlock(ParallelThingsBlock):
    """x += sum of the attentions of x, then x += sum of the MLPs of x, for x (B, N, C).

    Touvron et al. 2022, equation 2. Each branch has its own norm, LayerScale and drop path, as in
    timm's block, whose parameters these are.
    """

    attns: Any  # of Sequential(norm, attn, ls, drop_path)
    ffns: Any  # of Sequential(norm, mlp, ls, drop_path)

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.parallel = False
        self._stacked: tuple[tuple[tuple[int, int], ...], dict[str, Tensor]] | None = None

    def forward(self, x: Tensor, **masks: Any) -> Tensor:  # type: ignore[override]
        if not self.parallel or masks:
            return super().forward(x, **masks)
        weights, norm = self._weights(), self.attns[0].norm
        x = x + self._attend(F.layer_norm(x, norm.normalized_shape, eps=norm.eps), weights)
        return x + self._feed(F.layer_norm(x, norm.normalized_shape, eps=norm.eps), weights)

    def _attend(self, x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """The sum of all attention branches of x, which is normalized already."""
        first, (num, tokens, _) = self.attns[0].attn, x.shape
        qkv = (
            F.linear(x, w["qkv"], w["qkv_bias"])
            .view(num, tokens, 3, -1, first.head_dim)
            .permute(2, 0, 3, 1, 4)
        )
        q, k, v = qkv.unbind(0)
        values = F.scaled_dot_product_attention(q, k, v)  # over the heads of all branches
        values = values.transpose(1, 2).reshape(num, tokens, self.num_parallel, -1)
        return _sum(
            values,
            w["proj"],
            w["proj_bias"],
            [branch.attn.proj_drop for branch in self.attns],
            self.attns,
        )

    def _feed(self, x: Tensor, w: dict[str, Tensor]) -> Tensor:
        """The sum of all MLP branches of x, which is normalized already."""
        hidden = (
            self.ffns[0]
            .mlp.act(F.linear(x, w["fc1"], w["fc1_bias"]))
            .unflatten(-1, (self.num_parallel, -1))
        )
        drops = [branch.mlp.drop1 for branch in self.ffns]
        if _are_active(drops):
            hidden = torch.stack(
                [drop(h) for drop, h in zip(drops, hidden.unbind(2), strict=True)], 2
            )
        return _sum(
            hidden, w["fc2"], w["fc2_bias"], [branch.mlp.drop2 for branch in self.ffns], self.ffns
        )

    def _weights(self) -> dict[str, Tensor]:
        """The concatenated weights of all branches.

        In evaluation without gradients they are cached until a parameter changes.
        """
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            self._stacked = None
            return self._side_by_side()
        versions = tuple((p.data_ptr(), p._version) for p in self.parameters())
        if self._stacked is None or self._stacked[0] != versions:
            self._stacked = versions, self._side_by_side()
        return self._stacked[1]

    def _side_by_side(self) -> dict[str, Tensor]:
        """Concatenates the weights of all branches.

        Input layers absorb the norm's affine parameters, and output layers absorb LayerScale.
        """
        inner = {
            "qkv": [(b.norm, b.attn.qkv) for b in self.attns],
            "fc1": [(b.norm, b.mlp.fc1) for b in self.ffns],
        }
        outer = {
            "proj": [(b.ls, b.attn.proj) for b in self.attns],
            "fc2": [(b.ls, b.mlp.fc2) for b in self.ffns],
        }
        weights = {}
        for name, pairs in inner.items():
            weights[name] = torch.stack([layer.weight * norm.weight for norm, layer in pairs])
            bias = torch.stack(
                [(layer.weight * norm.bias).sum(1) + layer.bias for norm, layer in pairs]
            )
            if name == "qkv":  # ordered by q, k, v, then by branch, then by head
                weights[name] = weights[name].unflatten(1, (3, -1)).transpose(0, 1)
                bias = bias.unflatten(1, (3, -1)).transpose(0, 1)
            weights[name], weights[f"{name}_bias"] = (
                weights[name].reshape(-1, weights[name].shape[-1]),
                bias.flatten(),
            )
        for name, pairs in outer.items():
            weights[name] = torch.stack([_scaled(layer.weight, scale) for scale, layer in pairs])
            weights[f"{name}_bias"] = torch.stack(
                [_scaled(layer.bias, scale) for scale, layer in pairs]
            )
        return weights


def _scaled(weight: Tensor, scale: nn.Module) -> Tensor:
    """A weight (C, ...) or bias (C,) multiplied by the LayerScale that follows it, if any."""
    gain = getattr(scale, "gamma", None)
    return weight if gain is None else weight * gain.view(-1, *[1] * (weight.ndim - 1))


def _are_active(layers: list[nn.Module]) -> bool:
    """Whether any of these dropout or drop path layers is active."""
    rates = [
        getattr(layer, "p", 0) or getattr(layer, "rate", 0) or getattr(layer, "drop_prob", 0)
        for layer in layers
    ]
    return any(layer.training and rate > 0 for layer, rate in zip(layers, rates, strict=True))


def _sum(x: Tensor, weight: Tensor, bias: Tensor, drops: list[nn.Module], branches: Any) -> Tensor:
    """Linear layer, dropout and drop path, summed over branches: x (B, N, P, F) -> (B, N, C).

    `weight` is (P, C, F) and `bias` (P, C), for P branches.
    """
    paths = [branch.drop_path for branch in branches]
    # Dropout acts on the output of each branch, so one matrix product cannot sum the branches.
    if _are_active(drops):
        each = torch.einsum("bnpf,pcf->pbnc", x, weight) + bias[:, None, None]
        return torch.stack(
            [path(drop(y)) for path, drop, y in zip(paths, drops, each, strict=True)]
        ).sum(0)
    if _are_active(paths):
        kept = torch.cat([path(bias.new_ones(len(x), 1)) for path in paths], 1)
        x = x * kept[:, None, :, None].to(x.dtype)
        bias = kept[..., None] * bias
    y = F.linear(x.flatten(2), weight.transpose(0, 1).flatten(1))
    return y + bias.sum(-2, keepdim=True)  # (1, C), or (B, 1, C)
