"""On the PYTHONPATH of a driver and its workers: lets trainings fail, for real, as
tests/test_faults.py says.

$FAULTS is a folder: `plan.json` maps a seed to how often its training fails and to what fails it;
every try leaves a line with its process in `<seed>.tries`.
"""

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

FIRST_PAUSE_S = 0.013  # and no other sleep is as long
FOLDER = Path(os.environ.get("FAULTS", "/nonexistent"))


def fail(what: str) -> None:
    """Raises what torch, Python or the kernel would."""
    import torch

    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    kinds = {
        "oom": torch.OutOfMemoryError,
        "runtime": RuntimeError,
        "value": ValueError,
        "os": PermissionError,
    }
    kind, _, text = what.partition(" ")
    raise kinds[kind](text) if kind != "os" else PermissionError(13, "Permission denied", text)


class Patched(importlib.abc.Loader):
    """Loads a module as it is, then changes it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        self.loader.exec_module(module)
        if module.__name__ == "vitscale.launch.ray_tune":
            module.FIRST_PAUSE_S = FIRST_PAUSE_S
            return
        train = module.train

        def failing(config, *arguments, **named):
            planned = json.loads((FOLDER / "plan.json").read_text())
            tries = FOLDER / f"{config.seed}.tries"
            with open(tries, "a") as file:
                file.write(f"{os.getpid()}\n")
            times, what = planned.get(str(config.seed), (0, ""))
            if len(tries.read_text().splitlines()) <= times:
                fail(what)
            return (yield from train(config, *arguments, **named))

        module.train = failing


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in ("vitscale.train.loop", "vitscale.launch.ray_tune"):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        spec.loader = Patched(spec.loader)
        return spec


def sleep(seconds: float, really=time.sleep) -> None:
    """Notes the pauses before trials are tried again."""
    if seconds in [FIRST_PAUSE_S * 4.0**n for n in range(5)]:
        with open(FOLDER / "pauses", "a") as file:
            file.write(f"{seconds / FIRST_PAUSE_S:.0f}\n")
    really(seconds)


if FOLDER.exists():
    sys.meta_path.insert(0, Finder())
    time.sleep = sleep
