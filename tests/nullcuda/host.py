"""What goes from the host to a GPU, and what must not:
DATA_ROOT OUT.json, on the null CUDA device.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import numpy as np
import torch
from device import counts

from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import ProfileConfig
from vitscale.train.augment import plan_augment
from vitscale.train.data import Batches, HeldOut, resident
from vitscale.train.device import device_at
from vitscale.train.ema import Ema
from vitscale.train.evaluate import evaluate, evaluate_all
from vitscale.train.model import build_model
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.parallel import Team
from vitscale.train.profile import profile
from vitscale.train.sources import load_split

ARRAYS: list[Any] = [
    np.arange(7),
    np.arange(11) % 3 == 1,
    np.linspace(0, 1, 5, dtype=np.float32),
    np.empty(0, np.float32),
    np.arange(12, dtype=np.uint8).reshape(3, 4).T,
    np.arange(3) * 0.5,
    np.ones((2, 3, 1), np.float32),
    np.int64([[-1, 2**40]]),
]


def arrivals(device: torch.device) -> tuple[dict[str, bool], int]:
    """Whether each array is on the device as it was, and how many copies it took them all."""
    packed = PackedCopy(device)
    given = [packed.add(array) for array in ARRAYS]
    before = counts()
    packed.send()
    copies = counts().since(before).h2d
    tensors = [tensor() for tensor in given]
    same = {}
    for place, (array, tensor) in enumerate(zip(ARRAYS, tensors, strict=True)):
        same[f"{place} {array.dtype}"] = tensor.is_cuda and np.array_equal(
            tensor.cpu().numpy(), array
        )
    return same, copies


def of_policies(device: torch.device) -> dict[str, list[tuple[int, int]]]:
    """The different (operations, waits) of five draws of each policy."""
    config, found = configs.VIT.replace(augment="none"), {}
    kinds: dict[str, dict[str, Any]] = {
        name: {"augment": name}
        for name in ("randaugment", "autoaugment", "trivialaugment", "3augment")
    }
    for name, fields in {**kinds, "jitter": {"color_jitter": 0.3}}.items():
        changed, seen = config.replace(**fields), set()
        images = torch.zeros(config.batch_size, 3, 32, 32, device=device)
        for seed in range(5):
            before = counts()
            everyone, rng = np.arange(len(images)), np.random.default_rng(seed)
            packed = PackedCopy(device)
            step = plan_augment(packed, (32, 32), changed, everyone, rng)
            packed.send()
            step(images)
            asked = counts().since(before)
            seen.add((asked.ops, asked.waits))
        found[name] = sorted(seen)
    return found


def on_gpu(state: dict[str, Any]) -> list[str]:
    """Names of what would go to a loader's process from the GPU."""
    return [
        name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_cuda
    ]


def of_evaluations(config: TrainConfig, data_root: Path, device: torch.device) -> dict[str, Any]:
    """(copies to the device, operations, waits) of an evaluation of raw and averaged weights, in
    one pass and in a pass for each, which is how it was done before.
    """
    model = build_model(config).to(device)
    ema, images = Ema(model, config), load_split(config, "val", data_root)
    data = HeldOut(resident(images, device), config, device, Team(), 2)

    def counted(evaluation: Callable[[], object]) -> tuple[int, int, int]:
        evaluation()  # the first one of a process allocates
        before = counts()
        evaluation()
        asked = counts().since(before)
        return asked.h2d, asked.ops, asked.waits

    modules = [model, ema.module] if ema.on else [model]
    return {
        "one pass": counted(lambda: evaluate_all(model, ema, {"val": data}, None, config, Team())),
        "each": counted(lambda: [evaluate(module, data, config, Team()) for module in modules]),
    }


def main() -> None:
    data_root, out = sys.argv[1:]
    device, config = device_at("cuda"), configs.VIT
    arrived, copies = arrivals(device)
    images = load_split(config, "train", Path(data_root))
    datasets = [Batches(images, config, device), HeldOut(images, config, device, Team(), 64)]
    again = [pickle.loads(pickle.dumps(dataset)) for dataset in datasets]
    alike = [torch.equal(a[0][0], b[0][0]) for a, b in zip(datasets, again, strict=True)]
    for kind, branches in (("inference", 1), ("training", 2)):
        measured = ProfileConfig(
            profile=kind,
            hardware="Null GPU",
            width=16,
            heads=2,
            depth=1,
            branches=branches,
            timed_runs=2,
            layout="par" if branches > 1 else "seq",
        )
        profiled = [row["epoch"] for row in profile(measured, "cuda")]
    found = {
        "profiled": profiled,
        "arrived": arrived,
        "copies": copies,
        "read_alike": all(alike),
        "pickled_on_gpu": [name for dataset in datasets for name in on_gpu(dataset.__getstate__())],
        "policies": of_policies(device),
        "evaluations": [
            of_evaluations(config.replace(ema_decay=decay), Path(data_root), device)
            for decay in (0.0, 0.9)
        ],
        "devices": [str(device_at(name)) for name in ("cuda", "cuda:0", "cpu")],
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # torch's threads of a device end with its driver, which this one has not: C++ may abort on them
    os._exit(0)
