"""Studies of scripts, and demos that are shortened."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from conftest import ROOT, Script, load_script

from vitscale.plan.study import Study

SEARCH = ROOT / "tests" / "studies" / "tiny_search.py"
make_search = load_script(SEARCH).study


def script(name: str) -> ModuleType:
    return load_script(ROOT / "studies" / f"{name}.py")


def plan(name: str, scale: str, **options: object) -> Study:
    return script(name).study(scale, **options)


def shortened(
    folder: Path, name: str, recipe: dict[str, object] | None = None, **values: object
) -> Script:
    """The study's own script in `folder`, with other values in its demo scale, and in the recipe of
    the search space.
    """
    source = (ROOT / "studies" / f"{name}.py").read_text()
    body, end = source.split('if __name__ == "__main__":')
    changed = f'SCALES["demo"] = replace(SCALES["demo"], **{values!r})\n'
    changed += f"demo.RECIPE.update({recipe!r})\n" if recipe else ""
    path = folder / f"{name}.py"
    path.write_text(
        f'from dataclasses import replace\n{body}{changed}if __name__ == "__main__":{end}'
    )
    return Script(folder, path, is_lean=True)
