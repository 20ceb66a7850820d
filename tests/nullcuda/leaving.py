"""A process that is told to end (SIGTERM) while it trains on the null CUDA device:
DATA_ROOT FOLDER [held | loaders].

It says "row" at each row; with `held`, it takes the first one and asks for no more. With `loaders`,
a process reads the images into pinned memory, and "row" is said in the middle of the first
evaluation, which goes on a second later.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import configs
import torch
from support.team_worker import is_evaluating

from vitscale.launch.graceful_exit import saved_at_exit
from vitscale.train import data, loop

LONG = configs.VIT.replace(epochs=2000, subset_images=192)  # 3 steps an epoch


def main() -> None:
    data_root, folder, *how = sys.argv[1:]
    atexit.register(os._exit, 0)  # registered first, it runs last; as in host.py
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch.set_num_threads(1)

    asked = itertools.count(1)

    def train(is_leaving):  # type: ignore[no-untyped-def]
        def is_told() -> bool:
            answer = is_leaving()
            if how == ["loaders"] and is_evaluating() and next(asked) == 3:  # of 8 batches
                print("row", flush=True)
                time.sleep(1.0)
            return answer

        options = {"checkpoint_every_s": 1e9, "is_leaving": is_told}
        if how == ["loaders"]:
            loop.EVAL_BATCH, data.RESIDENT_SHARE = 1, 0.0
            options["num_loader_workers"] = 1
        return loop.train(LONG, Path(folder), "cuda", data_root=Path(data_root), **options)

    def consume(rows: Iterator[object]) -> None:
        for _ in rows:
            print("row", flush=True)
            if how == ["held"]:
                threading.Event().wait()

    threading.Thread(target=consume, args=(saved_at_exit(train),), daemon=True).start()
    while True:
        threading.Event().wait(0.1)  # not signal.pause, which misses a signal just before it


if __name__ == "__main__":
    main()
