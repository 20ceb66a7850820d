"""A project: a folder of the user's with `studies/` and `search_spaces/`, as a clone of vitscale is
one.

Only its scripts know what their studies train, so what is asked about a plan by the name of a
script runs that script's `study` function. Scripts are looked up in the current folder alone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitscale.plan.config import shown


def load_script(script: Path) -> ModuleType:
    """A study script as a module; what it imports comes from the folder above `studies/` first."""
    sys.path.insert(0, str(script.resolve().parents[1]))
    spec = importlib.util.spec_from_file_location(f"study_script_{script.stem}", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def made_at(script: Path, scale: str) -> Any:
    """What the `study` function of a script makes at a scale, all else at its defaults.

    Raises ValueError for a script without such a function, and for a scale that it has not.
    """
    make = getattr(load_script(script), "study", None)
    kind = get_type_hints(make).get("scale") if callable(make) else None
    if make is None or kind is None:
        raise ValueError(f"a script must define study(scale=..., ...), but got ({script})")
    if get_origin(kind) is Literal and scale not in get_args(kind):
        raise ValueError(
            f"the scale must be among ({', '.join(get_args(kind))}), but got ({shown(scale)})"
        )
    return make(scale=scale)
