"""A process that is told to end (SIGTERM) while it trains on the null CUDA device:
DATA_ROOT FOLDER [held].

It says "row" at each row; with `held`, it takes the first one and asks for no more.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import configs
import torch

from vitscale.launch.leaving import saved_at_exit
from vitscale.train import loop

LONG = configs.VIT.replace(epochs=2000, subset_images=192)  # 3 steps an epoch


def main() -> None:
    data_root, folder, *held = sys.argv[1:]
    atexit.register(os._exit, 0)  # registered first, it runs last; as in host.py
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch.set_num_threads(1)

    def train(is_leaving):  # type: ignore[no-untyped-def]
        options = {"checkpoint_every_s": 1e9, "is_leaving": is_leaving}
        return loop.train(LONG, Path(folder), "cuda", data_root=Path(data_root), **options)

    def consume(rows: Iterator[object]) -> None:
        for _ in rows:
            print("row", flush=True)
            if held:
                threading.Event().wait()

    threading.Thread(target=consume, args=(saved_at_exit(train),), daemon=True).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
