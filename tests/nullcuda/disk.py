"""Images that do not fit on a GPU: DATA_ROOT OUT.json, on the null CUDA device.

There, every pair of events is one millisecond apart: seconds waited count batches.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import configs
import torch
from device import counts

from vitscale.launch import run_claimed
from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.train import data, loop
from vitscale.train.data import Batches
from vitscale.train.device import device_at
from vitscale.train.sources import load_split

RRC = configs.VIT.replace(ema_decay=0.0)


def trained(config: TrainConfig, root: Path, readers: int, resident_share: float) -> dict[str, Any]:
    """Batches waited for until each row, waits of the host in steps, and what products are in."""
    waits: list[int] = []
    tf32: set[tuple[bool, bool]] = set()

    def at_a_step(step: int, config: TrainConfig, lr_at=loop.lr_at) -> float:
        waits.append(counts().waits)
        tf32.add((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return lr_at(step, config)

    true, loop.lr_at, data.RESIDENT_SHARE = loop.lr_at, at_a_step, resident_share
    try:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"data_root": root, "num_loader_workers": readers}
            rows = list(loop.train(config, Path(folder), "cuda", **options))
    finally:
        loop.lr_at = true
    return {
        "batches": [round(1e3 * row["wait_data_s"], 6) for row in rows],
        # within an epoch: its end reads the loss
        "waits": waits[config.steps_per_epoch - 1] - waits[1],
        "tf32": sorted(tf32),
    }


def main() -> None:
    root, out = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    runs = {
        "resident": trained(RRC, root, 0, 0.5),
        "read here": trained(RRC, root, 0, 0.0),
        "readers": trained(RRC, root, 2, 0.0),
        "bf16": trained(RRC.replace(precision="bf16"), root, 0, 0.5),
        "tf32": trained(RRC.replace(precision="tf32"), root, 0, 0.5),
    }
    left = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    batches = Batches(load_split(RRC, "train", root), RRC, device_at("cuda"))
    sent, _ = batches[0]
    shares = {}
    for gpu in (1.0, 0.5, 0.125):
        run_claimed.reset_process(Resources(gpus_per_trial=gpu))
        shares[str(gpu)] = torch.cuda.get_per_process_memory_fraction()
    found = {
        **runs,
        "left as before": left == before,
        "sent": [sent.device.type, str(sent.dtype), *sent.shape],
        "finished": list(batches.finish(0, *batches[0])[0].shape),
        "shares": shares,
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # torch's threads of a device end with its driver, which this one has not: C++ may abort on them
    os._exit(0)
