"""On the PYTHONPATH of a driver and its workers: lets trainings fail, for real, as
tests/launch/test_faults.py says.

$FAULTS is a folder: `plan.json` maps a seed to how often its training fails and to what fails it;
every try leaves a line with its process in `<seed>.tries`.
"""

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


def shorten(module) -> None:
    """Makes the pauses before another try short, and known."""
    module.FIRST_PAUSE_S = FIRST_PAUSE_S


def let_fail(module) -> None:
    """Trainings fail as planned, then train."""
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


def sleep(seconds: float, really=time.sleep) -> None:
    """Notes the pauses before trials are tried again."""
    if seconds in [FIRST_PAUSE_S * 4.0**n for n in range(5)]:
        with open(FOLDER / "pauses", "a") as file:
            file.write(f"{seconds / FIRST_PAUSE_S:.0f}\n")
    really(seconds)


if FOLDER.exists():
    sys.path.append(str(Path(__file__).parents[1]))
    from support.patched import change_on_import

    change_on_import({"vitscale.train.loop": let_fail, "vitscale.launch.tune": shorten})
    time.sleep = sleep
