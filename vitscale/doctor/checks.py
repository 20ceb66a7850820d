"""The list of all checks, in the order in which they run, and what to do about each failure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat

from vitscale.doctor import device, scheduling, software, storage, team, tracking, training
from vitscale.doctor.check import Check, Finding, Machine, passed
from vitscale.doctor.process import Examination
from vitscale.plan.cores import num_cores

WRONG_NUMBERS = (
    "train nothing on this device: update the driver, install the pinned versions (pip install -c "
    "constraints.txt), run the device's own diagnosis (dcgmi diag -r 3), and report what is left"
)
ROUNDING = (
    "a difference of a few times the bound is rounding, and trials of both kinds should not share "
    "a figure; a larger one is wrong: " + WRONG_NUMBERS
)
STORE = (
    "name a folder with --store that this user may write, on a local disk or on a network file "
    "system with hard links, rename and locks (NFS 4, Lustre mounted with -o flock, CephFS); a "
    "bucket must be of a server with conditional writes (Amazon S3, Google, Azure), with "
    "credentials that may read, write, list and delete"
)

FEW_CORES = 4  # with fewer, checks beside others would be late

CHECKS = (
    Check(
        "software",
        "versions",
        software.versions,
        "install what is missing: pip install -c constraints.txt 'vitscale[train]'",
    ),
    Check(
        "software",
        "driver",
        software.driver,
        "install a driver for torch's version of CUDA, or a torch built for the driver's; in a "
        "container, pass the GPUs on (docker run --gpus all)",
    ),
    Check(
        "software",
        "limits",
        software.limits,
        "raise /dev/shm (docker run --shm-size 8g; in Kubernetes an emptyDir of medium Memory), "
        "and open files (ulimit -n 65536), or train without --num-loader-workers",
    ),
    Check("device", "matrix products", device.products, WRONG_NUMBERS, on_each_device=True),
    Check("device", "convolutions", device.convolutions, WRONG_NUMBERS, on_each_device=True),
    Check(
        "device",
        "memory",
        device.memory,
        "end the other processes (nvidia-smi lists them), or use another device",
        on_each_device=True,
    ),
    Check("trainer", "fp32 as on the CPU", training.fp32, WRONG_NUMBERS, on_each_device=True),
    Check("trainer", "bf16", training.bf16, WRONG_NUMBERS, on_each_device=True),
    Check("trainer", "fp16", training.fp16, WRONG_NUMBERS, on_each_device=True),
    Check(
        "trainer",
        "resume",
        training.resume,
        "a resumed training differs by more than what repeated ones differ by: report it",
        on_each_device=True,
    ),
    Check(
        "trainer",
        "deterministic",
        training.deterministic,
        "--deterministic has no use on this device: compare rows of repeated trainings within "
        "rounding; if it names an operation, report it",
        on_each_device=True,
    ),
    Check(
        "trainer",
        "captured",
        training.captured,
        "train without --capture; report it with the name of the GPU",
        on_each_device=True,
    ),
    Check("trainer", "micro-batches", training.micro_batches, ROUNDING, on_each_device=True),
    Check(
        "trainer",
        "loader processes",
        training.loaders,
        "train without --num-loader-workers; a bus error means that /dev/shm is too small",
        on_each_device=True,
    ),
    Check(
        "trainer",
        "team of two",
        team.team,
        "train without --workers-per-trial; NCCL_DEBUG=INFO names the transport that fails, "
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME the interface to use",
    ),
    Check(
        "trainer",
        "compiled",
        training.compiled,
        "train without --compiled; it needs a C++ compiler (apt-get install g++) and, on a GPU, "
        "triton",
        on_each_device=True,
        takes_long=True,
        limit_s=120.0,
    ),
    Check("store", "conditional writes", storage.conditions, STORE, is_beside=True),
    Check("store", "exclusive creation", storage.creation, STORE, is_beside=True),
    Check("store", "atomic replacement", storage.replacement, STORE, is_beside=True),
    Check("store", "locks", storage.locks, STORE, is_beside=True),
    Check(
        "store",
        "clock",
        storage.clock,
        "set the clock by the network (timedatectl set-ntp true; chronyc makestep): studies "
        "compare no clocks, but the times in MLflow and in logs are this machine's, and Amazon and "
        "Google refuse requests of one that is off by 15 minutes",
        is_beside=True,
    ),
    Check("store", "speed", storage.speed, STORE, is_beside=True),
    Check(
        "ray",
        "nodes",
        scheduling.nodes,
        "start nodes with `ray start`, on each the same vitscale, and the store on a path that all "
        "share; --address auto must be given on a node; docs/cluster.md",
        is_beside=True,
    ),
    Check(
        "ray",
        "four trials on a device",
        scheduling.packed,
        "train with --gpus-per-trial 1, or with fewer trials per device",
        takes_long=True,
        limit_s=120.0,
    ),
    Check(
        "mlflow",
        "write and read",
        tracking.write_and_read,
        "start the server (vitscale ui, or mlflow server), set MLFLOW_TRACKING_URI and, if it asks "
        "for them, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; studies run without it, "
        "and `vitscale sync` shows them later",
        is_beside=True,
    ),
)


def devices(machine: Machine) -> Finding:
    """The devices to check: the one that the machine names, else all GPUs, else the CPU."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]
    if machine.device == "cpu":
        names, num_gpus = ["cpu"], 0
    elif machine.device.startswith("cuda:"):
        names = [machine.device]
    return passed(" ".join(names), num_gpus=num_gpus)


COUNT = Check("device", "devices", devices, "install torch: pip install 'vitscale[train]'")


def selected(devices: Sequence[str], quick: bool) -> list[tuple[Check, Sequence[str]]]:
    """(check, its devices) in order; checks that run once have the first device."""
    return [
        (check, devices if check.on_each_device else devices[:1])
        for check in CHECKS
        if not (quick and check.takes_long)
    ]


def examine(machine: Machine, quick: bool) -> Iterator[tuple[Check, str, Finding, float]]:
    """Runs all checks; yields (check, device or nothing, finding, its seconds) in their order.

    `machine.device` is "auto", "cpu", "cuda" or "cuda:1". A check of each device runs on as many at
    a time as there are cores, in a process per device. Where there are cores to spare, those that
    need no device run in a process of their own meanwhile, one after another.
    """
    at_once, beside = ThreadPoolExecutor(num_cores()), ThreadPoolExecutor(1)
    with at_once, beside, ExitStack() as stack:  # which ends the processes before it waits
        first = stack.enter_context(Examination())
        counted = first.find(COUNT, machine)
        num_gpus = int(counted.values.get("num_gpus", 0))
        names = counted.detail.split() if counted.values else ["cpu"]
        others = [stack.enter_context(Examination()) for _ in names[1:]]
        processes = dict(zip(names, [first, *others], strict=True))
        aside = stack.enter_context(Examination())

        def find(
            check: Check, name: str, process: Examination | None = None
        ) -> tuple[Check, str, Finding, float]:
            began_s, process = time.perf_counter(), process or processes[name]
            finding = process.find(check, replace(machine, device=name, num_gpus=num_gpus))
            shown = name if check.on_each_device else ""
            return check, shown, finding, time.perf_counter() - began_s

        checks = selected(names, quick)
        ahead = {
            check.name: beside.submit(find, check, on[0], aside)
            for check, on in checks
            if check.is_beside and num_cores() >= FEW_CORES
        }
        for check, on in checks:
            if check.name in ahead:
                yield ahead[check.name].result()
            else:
                yield from at_once.map(find, repeat(check), on)
