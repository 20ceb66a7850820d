"""Per-batch counts of an evaluation, computed on the device without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor

TOP = 5
NUM_BINS = 15  # bins of the confidence: Guo et al. 2017, section 5


def in_top(logits: Tensor, labels: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Whether an accepted class is among the TOP largest logits (B, classes): (B,) bool.

    Accepted is the label (B,), or any of `allowed` (B, classes). Among equal logits the lower class
    comes first, as in argmax, so that a model whose logits are all equal does not look good; a NaN
    logit is never in the top. With TOP classes or fewer, every class is in the top.
    """
    best = labels if allowed is None else logits.masked_fill(~allowed, -torch.inf).argmax(1)
    own, classes = (
        logits.gather(1, best[:, None]),
        torch.arange(logits.shape[1], device=logits.device),
    )
    behind = (logits < own) | ((logits == own) & (classes > best[:, None]))
    return behind.sum(1) >= logits.shape[1] - TOP


def calibration_gaps(logits: Tensor, right: Tensor) -> Tensor:
    """Correct predictions minus confidences, summed per confidence bin: (NUM_BINS,) float64.

    Takes logits (B, classes) and whether the prediction is correct (B,). The expected calibration
    error of a set (Guo et al. 2017, equation 3) is the sum of the absolute gaps of its bins over
    its number of samples, so gaps of batches and of processes add up. Bin m of M contains
    confidences in ((m - 1) / M, m / M]; the confidence is the largest softmax probability.
    """
    confidence = logits.softmax(1).amax(1).double()
    inner_edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64, device=logits.device)[
        1:-1
    ]
    bins = torch.bucketize(confidence, inner_edges)
    inside = bins[:, None] == torch.arange(NUM_BINS, device=logits.device)
    # not index_add, whose order of additions on a GPU changes from run to run
    return torch.where(inside, (right.double() - confidence)[:, None], 0.0).sum(0)
