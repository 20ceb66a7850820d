"""One process of a team that trains a trial: RANK SIZE MEETING WORKDIR CONFIG ROWS [EPOCHS].

Writes the rows that it was given to ROWS-RANK.json; stops after EPOCHS rows if told to. With
TEAM_DEVICE=cuda, each process has the GPU of its rank; with TEAM_CAPTURES, its steps are captured,
and it raises an error if they are not. With TOLD_TO_END=RANK, the process of that
rank is told to end once it has its first row, and no checkpoint is written by the clock. With
EVAL_BATCH, the size of the batches of an evaluation, it is told in the middle of one.
"""

import contextlib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.record.workdir import Left
from vitscale.train import loop, parallel
from vitscale.train.loop import train


def main(*arguments: str, **variables: str) -> None:
    os.environ.update(variables)
    rank, size, meeting, workdir, config, rows, *rest = arguments
    torch.set_num_threads(1)
    loop.OFTEN_SHARE = loop.CHECKPOINT_SHARE = float("inf")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=60),
    )
    device = os.environ.get("TEAM_DEVICE", "cpu")
    if device == "cuda":
        torch.cuda.set_device(int(rank))
    parallel.ASK_EVERY_S = 0.2
    told, seen = os.environ.get("TOLD_TO_END"), list[Row]()
    if cut := "EVAL_BATCH" in os.environ:
        loop.EVAL_BATCH, parallel.ASK_EVERY_S = int(os.environ["EVAL_BATCH"]), 1e9
    training = train(
        TrainConfig(**json.loads(config)),
        Path(workdir),
        device,
        checkpoint_every_s=1e9 if told else 0.0,
        capture="TEAM_CAPTURES" in os.environ,
        is_leaving=lambda: told == rank and bool(seen) and (not cut or is_evaluating()),
    )
    with contextlib.suppress(Left):
        for row in itertools.islice(captured(training), int(rest[0]) if rest else None):
            seen.append(row)
    training.close()
    Path(f"{rows}-{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def captured(training: Generator[Row, None, loop.Trained]) -> Iterator[Row]:
    status = (yield from training).captured
    assert status == ("yes" if "TEAM_CAPTURES" in os.environ else ""), status


def is_evaluating() -> bool:
    """Whether the caller was called by an evaluation."""
    return any(frame.f_code.co_name == "evaluate_each" for frame, _ in traceback.walk_stack(None))


if __name__ == "__main__":
    main(*sys.argv[1:])
