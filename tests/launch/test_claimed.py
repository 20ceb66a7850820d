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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such thresholds")
def test_a_worker_keeps_the_memory_that_a_step_frees_for_the_next_step() -> None:
    """12 MB are 2,900 pages of 4 KiB, for each of 10 steps."""
    printed = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True
    ).stdout
    freed, kept = map(int, printed.split())
    assert freed > 10_000 and kept < 100
