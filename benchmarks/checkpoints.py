"""What share of a training's time do its checkpoints take?

Trains a ViT on digits for some seconds, by the real trainer, with a checkpoint as often as asked,
and compares within the run: the time for which the training waited for a checkpoint, and how much
longer a step takes while one is being written. Their sum is the share of the time. The trainer
limits what it can measure itself (CHECKPOINT_SHARE, on a CPU OFTEN_SHARE), which is lifted here
unless --law is given. `--in-thread no` writes as a training on a CPU does, and as all did before;
`yes` on a CPU tries what trainings there do not do.

    python benchmarks/checkpoints.py --width 384 --depth 12 --heads 6 --every-s 2 --seconds 60

On the null CUDA device (tests/nullcuda) steps take the host's time alone, and a copy from the
device the time of a copy in memory, in the thread of the training.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from vitscale.plan.config import TrainConfig
from vitscale.train import loop, saver


class Enough(Exception):
    """The time is over."""


class Copies:
    """Copies of a CPU's tensors, in new memory: what a thread would need there."""

    def synchronize(self) -> None:
        """As that of an event: they are done."""

    def elapsed_time(self, other: Any) -> float:
        return 0.0

    def take(self, state: dict[str, Any]) -> tuple[dict[str, Any], tuple[Copies, Copies]]:
        return saver._copied(state, torch.clone), (self, self)


class Watched(saver.Saver):
    """A saver whose waits are counted, and that knows whether it writes."""

    in_thread = True
    waits_s: ClassVar[list[float]] = []
    writes_s: ClassVar[list[float]] = []
    now: ClassVar[Watched | None] = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if not self.in_thread:
            self.copies = None
        elif self.copies is None:
            self.copies = Copies()  # type: ignore[assignment]
        Watched.now = self

    def save(self, write: saver.Write, step: int, state: Callable[[], dict[str, Any]]) -> None:
        def timed(*arguments: Any) -> None:
            began = time.perf_counter()
            write(*arguments)
            self.writes_s.append(time.perf_counter() - began)

        super().save(timed, step, state)
        self.waits_s.append(self.wait_s)


def steps_of(config: TrainConfig, device: str, every_s: float, seconds: float) -> list[Any]:
    """(seconds, whether a checkpoint was being written at its start or end, checkpoints begun) of
    each step, beginning with the tenth, but for those that an evaluation follows.
    """
    seen: list[tuple[float, bool, int]] = []

    def at_a_step(step: int, config: TrainConfig, lr_at: Any = loop.lr_at) -> float:
        pending = Watched.now.pending if Watched.now is not None else None
        writes = pending is not None and not pending.done()
        seen.append((time.perf_counter(), writes, len(Watched.waits_s)))
        if seen[-1][0] - seen[0][0] > seconds:
            raise Enough
        return float(lr_at(step, config))

    with (
        mock.patch.object(loop, "lr_at", at_a_step),
        mock.patch.object(loop, "Saver", Watched),
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(Enough),
    ):
        list(loop.train(config, Path(folder), device, checkpoint_every_s=every_s))
    later = seen[10:]
    return [
        (then - now, before or after, num - begun)
        for step, ((now, before, begun), (then, after, num)) in enumerate(
            itertools.pairwise(later), start=10
        )
        if (step + 1) % config.steps_per_epoch
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("width", 192), ("depth", 6), ("heads", 3), ("batch-size", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--in-thread", choices=("yes", "no"), default="yes")
    parser.add_argument("--law", action="store_true", help="keep the limits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.law:
        loop.OFTEN_SHARE = loop.CHECKPOINT_SHARE = math.inf
    Watched.in_thread = options.in_thread == "yes"
    config = TrainConfig(
        width=options.width,
        depth=options.depth,
        heads=options.heads,
        batch_size=options.batch_size,
        epochs=100_000,
        ema_decay=0.99,
    )
    steps = steps_of(config, options.device, options.every_s, options.seconds)
    usual = [s for s, writes, begun in steps if not writes and not begun]
    beside = [s for s, writes, begun in steps if writes and not begun]
    total, mean = sum(s for s, _, _ in steps), statistics.mean(usual)
    slowed = sum(beside) - mean * len(beside)
    waited = sum(s - mean for s, _, begun in steps if begun)
    print(
        f"{options.device}, in a thread: {options.in_thread}; {len(Watched.waits_s)} checkpoints "
        f"in {total:.1f} s, {len(steps)} steps of {1e3 * mean:.1f} ms\n"
        f"a checkpoint: the training waits {1e3 * statistics.median(Watched.waits_s):.0f} ms, "
        f"written in {1e3 * statistics.median(Watched.writes_s):.0f} ms; steps beside it take "
        f"{statistics.mean(beside) / mean if beside else 1:.2f} times as long (n={len(beside)})\n"
        f"share of the time: {100 * waited / total:.2f}% waiting, {100 * slowed / total:.2f}% "
        f"slower steps, {100 * (waited + slowed) / total:.2f}% in all"
    )


if __name__ == "__main__":
    main()
