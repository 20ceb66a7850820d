"""Several trainings of one ViT as one batched model, for benchmarks/gpu.py.

Weights of all members are stacked, (K, ...) each; a step computes them in one call per operation. A
member has its own images. All share one lr, so that torch's fused AdamW updates the stacked
weights: with an lr for each, a step would take a little longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.train.model import build_model

Weights = Mapping[str, Tensor]
EPSILON = 1e-6  # of the layer norms of timm's ViTs


def stacked(config: TrainConfig, num: int, device: str) -> dict[str, Tensor]:
    """Initial weights of `num` members, (num, ...) each."""
    weights, _ = torch.func.stack_module_state([build_model(config) for _ in range(num)])
    return {name: weight.detach().to(device).requires_grad_() for name, weight in weights.items()}


def logits_of_all(config: TrainConfig, weights: Weights, images: Tensor) -> Tensor:
    """(K, B, classes) of images (K, B, C, R, R), as of a plain ViT with a patchify stem, a class
    token and learned positions.
    """
    num, batch = images.shape[:2]
    side, patch, width = config.resolution // config.patch_size, config.patch_size, config.width

    def linear(x: Tensor, name: str) -> Tensor:  # (K, rows, inputs) -> (K, rows, outputs)
        weight = weights[f"{name}.weight"].flatten(2)
        return torch.baddbmm(weights[f"{name}.bias"][:, None], x, weight.mT)

    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift = weights[f"{name}.weight"][:, None], weights[f"{name}.bias"][:, None]
        return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * scale + shift

    pixels = images.view(num, batch, config.channels, side, patch, side, patch)
    pixels = pixels.permute(0, 1, 3, 5, 2, 4, 6).reshape(num, batch * side**2, -1)
    tokens = linear(pixels, "patch_embed.proj").view(num, batch, side**2, width)
    first = weights["cls_token"].expand(num, batch, 1, width).to(tokens.dtype)
    tokens = torch.cat([first, tokens], 2) + weights["pos_embed"]
    x = tokens.flatten(1, 2)  # (K, B * tokens, width)
    for block in (f"blocks.{number}" for number in range(config.depth)):
        qkv = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        qkv = qkv.view(num * batch, -1, 3, config.heads, width // config.heads)
        attended = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        x = x + linear(attended.transpose(1, 2).reshape(x.shape), f"{block}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + linear(hidden, f"{block}.mlp.fc2")
    return linear(norm(x.view(tokens.shape)[:, :, 0], "norm"), "head")


def step_of(config: TrainConfig, num: int, device: str, is_compiled: bool) -> Callable[[], Tensor]:
    """A training step of `num` members on random images; of one, by its own model. Returns the
    sum of their losses ().
    """
    torch.manual_seed(0)
    shape = (num, config.batch_size, config.channels, config.resolution, config.resolution)
    images = torch.randn(shape, device=device)
    labels = torch.randint(config.num_classes, shape[:2], device=device)
    weights: Weights
    if num == 1:
        model: nn.Module = build_model(config).to(device)
        weights = dict(model.named_parameters())

        def loss_of() -> Tensor:
            return F.cross_entropy(model(images[0]).float(), labels[0])
    else:
        weights = stacked(config, num, device)

        def loss_of() -> Tensor:
            logits = logits_of_all(config, weights, images).float()
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            return losses.view(num, -1).mean(1).sum()

    on_gpu = device == "cuda"
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-4, fused=True, capturable=on_gpu)
    loss_of = torch.compile(loss_of) if is_compiled else loss_of
    dtype = torch.float32 if config.precision == "fp32" else torch.bfloat16

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        # torch must not keep casts of weights from one pass to the next, which a graph would read
        with torch.autocast(device, dtype, dtype != torch.float32, cache_enabled=False):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
