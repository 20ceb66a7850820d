"""The process in which a trial is trained."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# 12 MB in pieces as large as the activations of a small model, which are allocated and freed
STEPS = """
import resource
from vitscale.launch import run_claimed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [bytearray(b"x") * 300_000 for _ in range(40)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

freed = [faults(), faults()][1]
run_claimed.keep_freed_memory()
print(freed, [faults(), faults()][1])
"""


# Three trainings in one process, as a worker's trials: another seed, and another width
COMPILED = """
import tempfile
from pathlib import Path

from torch._dynamo.utils import counters

from vitscale.launch.resources import Resources
from vitscale.launch.run_claimed import reset_process
from vitscale.plan.config import TrainConfig
from vitscale.train.loop import train

config = TrainConfig(width=8, depth=1, heads=2, batch_size=332, epochs=1, warmup_epochs=0.0)
for trial in (config, config.replace(seed=1, lr=2e-3), config.replace(width=16)):
    before = counters["stats"]["unique_graphs"]
    reset_process(Resources(compiled=True), trial.others)
    list(train(trial, Path(tempfile.mkdtemp()), compiled=True))
    print(counters["stats"]["unique_graphs"] - before, end=" ")
"""


@pytest.mark.slow
def test_trials_of_one_shape_are_compiled_once() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "1 0 1 "


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such thresholds")
def test_a_worker_keeps_the_memory_that_a_step_frees_for_the_next_step() -> None:
    """12 MB are 2,900 pages of 4 KiB, for each of 10 steps."""
    printed = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True
    ).stdout
    freed, kept = map(int, printed.split())
    assert freed > 10_000 and kept < 100
