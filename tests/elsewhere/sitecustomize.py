"""On the PYTHONPATH of a driver and its workers: the store's root is where no file can be, and only
the verbs of vitscale.record.workdir lead to its files, which are in $ELSEWHERE.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path

ROOT, ELSEWHERE = Path("/dev/null/store"), os.environ.get("ELSEWHERE", "")


class Patched(importlib.abc.Loader):
    """Loads the module as it is, then moves all files."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        self.loader.exec_module(module)
        module.Workdir._at = lambda self, name="": (
            Path(ELSEWHERE) / self.path.relative_to(ROOT) / name
        )


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "vitscale.record.workdir":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Patched(spec.loader)
        return spec


if ELSEWHERE:
    sys.meta_path.insert(0, Finder())
