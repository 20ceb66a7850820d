"""Device operations and waits of single training steps:
GROUP DATA_ROOT OUT.json [deterministic | captured], on the null CUDA device.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import configs
import torch
from device import Counts, counts, launches_of

from vitscale.plan.config import TrainConfig
from vitscale.train import captured, loop
from vitscale.train.deterministic import set_deterministic

FIRST, LAST = 3, 7  # steps counted, from 0: the optimizer has its state by then
NUM_BEFORE = {"captured": 1 + captured.EAGER_STEPS}  # the one that captures is not counted


class Enough(Exception):
    """The steps are counted."""


def steps(
    config: TrainConfig, data_root: Path, first: int = FIRST, **options: Any
) -> list[dict[str, int]]:
    """Of each step: `ops`, `waits`, `h2d` and so on."""
    seen: list[tuple[Counts, int]] = []

    def at_a_step(step: int, config: TrainConfig, lr_at=loop.lr_at) -> float:
        if step >= first:
            seen.append((counts(), launches_of("im2col")))
        if step == LAST:
            raise Enough
        return lr_at(step, config)

    true, loop.lr_at = loop.lr_at, at_a_step
    try:
        with tempfile.TemporaryDirectory() as folder:
            list(
                loop.train(
                    config,
                    Path(folder),
                    "cuda",
                    data_root=data_root,
                    checkpoint_every_s=1e9,
                    **options,
                )
            )
    except Enough:
        pass
    finally:
        loop.lr_at = true
    found = []
    for (before, columns_before), (after, columns) in itertools.pairwise(seen):
        step, unfolded = after.since(before), columns - columns_before
        # cuDNN's older interface has no bf16: torch unfolds each image and multiplies, in place of
        # one convolution forward and one back.
        ops = step.ops - 2 * unfolded + (2 if unfolded else 0)
        found.append({"ops": ops, "waits": step.waits, **step._asdict()})
    return found


def main() -> None:
    group, data_root, out, how = [*sys.argv[1:], ""][:4]
    torch.set_num_threads(1)
    set_deterministic(how == "deterministic")
    captured.CHECKS_INPUTS = True
    options = {"first": NUM_BEFORE.get(how, FIRST), "capture": how == "captured"}
    found = {
        name: steps(config, Path(data_root), **options)
        for name, config in getattr(configs, group).items()
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
