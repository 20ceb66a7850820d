"""The command that starts a study, as it was given: the same one resumes and redraws."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

RUN = "VITSCALE_RUN"  # how `vitscale run` was given, for the script that replaces it


class Command(NamedTuple):
    text: str  # for a shell; a call of Python where no script is started
    script: str  # the name of its file; empty without one


_named: ContextVar[Command | None] = ContextVar("command", default=None)


def command() -> Command:
    """The command of this study, by `name_command`, else that of this process."""
    return _named.get() or _of_process()


def name_command(make_study: Callable[..., Any], arguments: Sequence[str] | None) -> None:
    """Names the command of main(make_study, arguments). Those of another process, such as the
    kernel of a notebook, or of a study that this one starts, are not its.
    """
    _named.set(_of_process() if arguments is None else _of_call(make_study, arguments))
    os.environ.pop(RUN, None)


def name_call(call: str) -> None:
    """Names a call of Python, unless it is in a script, whose command is that of this process."""
    in_script = hasattr(sys.modules["__main__"], "__file__")
    _named.set(_of_process() if in_script else _outside_scripts(call))


def program() -> list[str]:
    """What was typed before the arguments."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec and spec.name != "__main__":
        return ["python", "-m", spec.name.removesuffix(".__main__")]
    script = Path(sys.argv[0])
    return [script.name] if script.name == "vitscale" else ["python", str(script)]


def _of_process() -> Command:
    typed = shlex.split(os.environ.get(RUN, "")) or program()
    return Command(shlex.join([*typed, *sys.argv[1:]]), Path(sys.argv[0]).name)


def _of_call(make_study: Callable[..., Any], arguments: Sequence[str]) -> Command:
    module = sys.modules.get(make_study.__module__)
    script = Path(getattr(module, "__file__", None) or "")  # a notebook has none
    if not script.is_file():
        return _outside_scripts(f"main({make_study.__name__}, {list(arguments)})")
    if script.is_relative_to(Path.cwd()):
        script = script.relative_to(Path.cwd())
    return Command(shlex.join(["python", str(script), *arguments]), script.name)


def _outside_scripts(call: str) -> Command:
    return Command(f"{call}  # in Python: the study is in no script", "")
