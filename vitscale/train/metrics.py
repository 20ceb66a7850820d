"""What an evaluation counts of a batch, on its device and without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor

TOP = 5
NUM_BINS = 15  # of the confidence: Guo et al. 2017, section 5


def in_top(logits: Tensor, labels: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Whether one of the accepted classes is among the TOP largest of logits (B, classes): (B,)
    bool.

    Accepted is the label (B,), or each of `allowed` (B, classes). Of equal logits the lower class
    comes first, as for argmax, so that a model whose logits are all equal does not pass for a good
    one; a logit that is NaN is in no top. With TOP classes or fewer, every class is among them.
    """
    best = labels if allowed is None else logits.masked_fill(~allowed, -torch.inf).argmax(1)
    own, classes = (
        logits.gather(1, best[:, None]),
        torch.arange(logits.shape[1], device=logits.device),
    )
    behind = (logits < own) | ((logits == own) & (classes > best[:, None]))
    return behind.sum(1) >= logits.shape[1] - TOP


def calibration_gaps(logits: Tensor, right: Tensor) -> Tensor:
    """Right predictions minus confidences, summed over the samples of each bin of confidence:
    (NUM_BINS,) float64.

    Of logits (B, classes) and whether the prediction is right (B,). The expected calibration error
    of a set (Guo et al. 2017, equation 3) is the sum of the absolute gaps of its bins over the
    number of its samples: gaps of batches, and of processes, add up. Bin m of M holds confidences
    in ((m - 1) / M, m / M], the largest softmax probability each.
    """
    confidence = logits.softmax(1).amax(1).double()
    inner_edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64, device=logits.device)[
        1:-1
    ]
    bins = torch.bucketize(confidence, inner_edges)
    inside = bins[:, None] == torch.arange(NUM_BINS, device=logits.device)
    # No index_add: on a GPU it adds in an order that changes from run to run.
    return torch.where(inside, (right.double() - confidence)[:, None], 0.0).sum(0)
