"""A program of tests/nullcuda that also runs on a real GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

NULL = ROOT / "tests" / "nullcuda"


def saved_when_told(null: dict[str, str], data_root: Path, folder: Path, how: str) -> Path:
    """The only file that leaving.py has written when it was told to end; on a real GPU, too."""
    command = [sys.executable, str(NULL / "leaving.py"), str(data_root), str(folder), how]
    paths = ":".join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **null, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"row\n"
    assert not list(folder.iterdir()), "nothing by the clock"
    process.terminate()
    process.communicate(timeout=60)
    (saved,) = folder.iterdir()
    return saved
