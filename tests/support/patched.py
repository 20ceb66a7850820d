"""Changes modules as they are imported, in processes that start with a sitecustomize of tests."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

Change = Callable[[ModuleType], None]


class Patched(importlib.abc.Loader):
    """Loads a module as it is, then changes it."""

    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.change(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be changed, by name, with the finders after it."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = changes

    def find_spec(self, name, path, target=None):
        if name not in self.changes:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        spec.loader = Patched(spec.loader, self.changes[name])
        return spec


def change_on_import(changes: Mapping[str, Change]) -> None:
    """Each of these modules is changed: now, or right after it was executed."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, Finder(changes))
