"""The code and commands of the README and the guides, and the environment that they are run in."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from PIL import Image

BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.DOTALL)


def environment_of_a_user() -> dict[str, str]:
    """That of this Python, without what the caller's environment sets."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "VITSCALE_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return environment


def run(command: str, place: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a command line in the environment of this Python,
    without what the caller's environment sets.
    """
    return subprocess.run(
        shlex.split(command),
        cwd=place,
        env=environment_of_a_user(),
        text=True,
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def write_digits(folder: Path, num_train: int = 500, num_val: int = 300) -> None:
    """Class folders of PNGs, on which an early convolution helps: scikit-learn's digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for index in range(num_train + num_val):
        split = "train" if index < num_train else "val"
        path = folder / split / f"digit {digits.target[index]}" / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[index] * 15).astype("uint8")).save(path)


def python_of(page: Path) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]
