"""A project: a user's folder with `studies/` and `search_spaces/`, such as a clone of vitscale.

Scripts are looked up in the current folder first, then in the project that vitscale ships. Nothing
in `vitscale/` imports them: `vitscale run` starts a script in a process whose path has the script's
project, and `made_at` calls a script's `study` function.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from vitscale.launch.command import RUN, program
from vitscale.plan.parts import study_file
from vitscale.plan.spelling import shown

PACKAGE = Path(__file__).parents[1]
# within the package in a wheel; around it in a clone
SHIPPED = PACKAGE / "project" if (PACKAGE / "project").is_dir() else PACKAGE.parent
COPIED = ("studies/", "search_spaces/")
README = """# Studies with vitscale

`studies/` has one script per question, `search_spaces/` the values that they share. Both are yours
to edit. The commands run in this folder; results are in `runs/`.

    vitscale run                        # list the studies here and those that vitscale ships
    vitscale run lr_wd_edf              # train what is missing; also resumes; --num 32 extends
    vitscale run lr_wd_edf --plan       # print what would be trained and its cost; train nothing
    vitscale run studies/mine.py        # run a study of your own
    vitscale status                     # show the progress of every study
    vitscale report lr_wd_edf-demo      # draw the report of a study so far
    vitscale ui                         # serve the MLflow UI, with a link per study
    vitscale run tune_lr_wd             # search for lr and wd
    vitscale adopt tune_lr_wd-demo      # use its winners in the other studies here

`python studies/lr_wd_edf.py` does the same as `vitscale run lr_wd_edf`: a script finds
`search_spaces` through the link `studies/search_spaces`. `vitscale run` works without that link.
"""


def scripts(root: Path) -> dict[str, Path]:
    """The study scripts of a project, by name."""
    return {path.stem: path for path in sorted((root / "studies").glob("[!_.]*.py"))}


def find_script(study: str) -> Path | None:
    """The script at a path that ends in .py, or of a study's name; None for an unknown name.

    Names are looked up in studies/ of the current folder, in the folder itself, and then among the
    shipped studies. Raises ValueError if there is no file at the path.
    """
    if study.endswith(".py"):
        if not Path(study).is_file():
            raise ValueError(f"the study script must exist, but got ({study!r})")
        return Path(study)
    here = Path(f"{study}.py")
    beside = {study: here} if here.name == str(here) and here.is_file() else {}
    return {**scripts(SHIPPED), **beside, **scripts(Path())}.get(study)


def root_of(script: Path) -> Path:
    """The folder from which a script imports `search_spaces`: the one above its `studies/`."""
    folder = script.resolve().parent
    return folder.parent if folder.name == "studies" else folder


def become(study: str, script: Path, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by a study script.

    PYTHONPATH has the script's project first. The shipped project is last, for scripts outside any
    project. Local Ray workers inherit it.
    """
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([str(root_of(script)), *given, str(SHIPPED)]))
    typed = shlex.join([*program(), "run", study])
    environment = {**os.environ, "PYTHONPATH": path, RUN: typed}
    os.execve(sys.executable, [sys.executable, str(script), *arguments], environment)


def listing() -> list[list[str]]:
    """(name, question, location) of each study that `vitscale run` finds by name."""
    own, shipped = scripts(Path()), scripts(SHIPPED)
    return [
        [name, _question(path), "this folder" if name in own else "vitscale"]
        for name, path in sorted({**shipped, **own}.items())
    ]


def _question(script: Path) -> str:
    """The first paragraph of a script's docstring; "" for a file that cannot be parsed."""
    try:
        text = ast.get_docstring(ast.parse(script.read_text())) or ""
    except (SyntaxError, ValueError):
        return ""
    return " ".join(text.split("\n\n")[0].split())


def copy_project(folder: Path) -> list[Path]:
    """Copies the shipped studies and search spaces, with a README, to a folder; returns the paths.

    Raises ValueError, before anything is written, if one of them exists or the folder cannot be
    written. Modes are not copied: an installed file may be read-only, and the copies are to be
    edited.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"a project needs a folder, but got ({folder}: {error.strerror})"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"a project needs a folder that can be written, but got ({folder})")
    made = [folder / name for name in (*COPIED, "README.md")]
    there = [str(path) for path in made if path.exists()]
    if there:
        raise ValueError(
            f"a project must not overwrite anything, but got ({', '.join(there)}: exists)"
        )
    for name in COPIED:
        for source in sorted((SHIPPED / name).rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = folder / source.relative_to(SHIPPED)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
    made[-1].write_text(README)
    # `python studies/x.py` looks for modules in studies/. `vitscale run` needs no link, so a file
    # system without links is no reason to refuse.
    with contextlib.suppress(OSError):
        (folder / "studies/search_spaces").symlink_to("../search_spaces")
    return made


# the script that is being imported for what it defines; `main` must not run then
importing: ContextVar[Path | None] = ContextVar("importing", default=None)


def load_script(script: Path) -> ModuleType:
    """Imports a study script, with its project first on the module search path.

    Raises ValueError for a script that runs when it is imported.
    """
    sys.path.insert(0, str(root_of(script)))
    spec = importlib.util.spec_from_file_location(f"study_script_{script.stem}", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    token = importing.set(script)
    try:
        with _as_study_file(script):
            spec.loader.exec_module(module)
    finally:
        importing.reset(token)
    return module


@contextlib.contextmanager
def _as_study_file(script: Path) -> Iterator[None]:
    """Lets parts be looked for beside a script that is not the one that runs."""
    token = study_file.set(script)
    try:
        yield
    finally:
        study_file.reset(token)


def made_at(script: Path, scale: str) -> Any:
    """The Study or Search of a script at a scale; all other parameters keep their defaults.

    Raises ValueError for a script without a `study` function, and for a scale that it lacks.
    """
    make = getattr(load_script(script), "study", None)
    kind = get_type_hints(make).get("scale") if callable(make) else None
    if make is None or kind is None:
        raise ValueError(f"a script must define study(scale=..., ...), but got ({script})")
    if get_origin(kind) is Literal and scale not in get_args(kind):
        raise ValueError(
            f"the scale must be among ({', '.join(get_args(kind))}), but got ({shown(scale)})"
        )
    with _as_study_file(script):
        return make(scale=scale)
