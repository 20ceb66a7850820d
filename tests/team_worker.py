"""One process of a team that trains a trial: RANK SIZE MEETING WORKDIR CONFIG ROWS [EPOCHS].

Writes the rows that it was given to ROWS-RANK.json; stops after EPOCHS rows if told to. With
TEAM_DEVICE=cuda, each process has the GPU of its rank.
"""

import itertools
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from vitscale.plan.config import TrainConfig
from vitscale.train import loop
from vitscale.train.loop import train


def main(*arguments: str) -> None:
    rank, size, meeting, workdir, config, rows, *rest = arguments
    torch.set_num_threads(1)
    loop.CHECKPOINT_SHARE = loop.THREAD_SHARE = float("inf")
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
    training = train(
        TrainConfig(**json.loads(config)), Path(workdir), device, checkpoint_every_s=0.0
    )
    seen = list(itertools.islice(training, int(rest[0]) if rest else None))
    training.close()
    Path(f"{rows}-{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
