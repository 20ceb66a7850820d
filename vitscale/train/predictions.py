"""What a model predicts for each image of an evaluation set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitscale.train.metrics import TOP
from vitscale.train.parallel import Team


class Top(NamedTuple):
    """The most probable classes of each image, (N, K) each; the first is the prediction."""

    classes: np.ndarray  # int64
    probabilities: np.ndarray  # float32


class Predictions:
    """The predictions of one process, batch by batch, on the device until they are asked for.

    A batch costs nothing more than what its evaluation computes anyway, unless `with_top`, which
    keeps the TOP most probable classes too.
    """

    def __init__(self, with_top: bool = False) -> None:
        self.with_top = with_top
        self._wrong: list[Tensor] = []
        self._top: list[tuple[Tensor, Tensor]] = []

    def add(self, wrong: Tensor, logits: Tensor) -> None:
        """Takes in a batch: wrong (b,) bool, logits (b, classes)."""
        self._wrong.append(wrong)
        if self.with_top:
            probabilities, classes = logits.softmax(1).topk(min(TOP, logits.shape[1]))
            self._top.append((classes, probabilities))

    def wrong(self, team: Team, num: int) -> np.ndarray:
        """(num,) bool in the order of the set, of all processes; waits for the device once."""
        own = torch.cat(self._wrong)
        return _whole(own if team.size == 1 else own.byte(), team, num).numpy().astype(bool)

    def top(self, team: Team, num: int) -> Top:
        """Of all processes, in the order of the set."""
        classes = _whole(torch.cat([batch[0] for batch in self._top]), team, num)
        probabilities = _whole(torch.cat([batch[1] for batch in self._top]), team, num)
        return Top(classes.numpy(), probabilities.numpy())


def _whole(own: Tensor, team: Team, num: int) -> Tensor:
    """The rows of all images, (num, ...) on the CPU, of those of every `team.size`-th image, which
    is how HeldOut deals them out.
    """
    if team.size == 1:
        return own.cpu()
    whole = torch.zeros((num, *own.shape[1:]), dtype=own.dtype, device=own.device)
    whole[team.rank :: team.size] = own
    return team.sum(whole).cpu()
