"""Winners of a search: for a study of one's own, and, by `vitscale adopt`, for the other studies
of the project.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitscale.cli.project import PACKAGE, made_at
from vitscale.cli.stores import existing, read_plan
from vitscale.plan.config import shown
from vitscale.plan.search import Search
from vitscale.plan.study import Study
from vitscale.record.store import Store, Workdir


def winners(study: str, store: str = "") -> dict[str, dict[str, Any]]:
    """Arm -> the values, such as {"lr": ..., "wd": ...}, of its best point in a search that has
    ended.

    `study` is its directory in the store, such as "tune_lr_wd-demo"; `store` is a folder, by
    default $VITSCALE_STORE or runs. The best point has the lowest mean error on minival over its
    seeds: the best of many is lucky, too. Raises ValueError for a study that is not there, is no
    search or has not ended.
    """
    result = read_result(store or os.environ.get("VITSCALE_STORE", "runs"), study)[1]
    return {arm: dict(winner["values"]) for arm, winner in result["winners"].items()}


def read_result(root: str, slug: str) -> tuple[Study, dict[str, Any]]:
    """(the study of a search that has ended, what it found). Raises ValueError otherwise."""
    from vitscale.analysis.results import Results
    from vitscale.launch.optuna_search import check_ended, found
    from vitscale.record.table import outcomes, read_trials

    store = existing(root)
    study = read_plan(store, slug)
    check_ended(study, store)
    return study, found(Results(study, outcomes(study, read_trials(study, store))))


def adopt(root: str, slug: str) -> list[str]:
    """Writes the winners of a search to the file of the user's project from which its studies read
    them; returns lines that say what changed.

    The project is the current folder; the search's script in its studies/ says what the studies
    train and which file it is. Raises ValueError, before anything is written, unless the stored
    search trained just that.
    """
    store = existing(root)
    search = _own_search(store, read_plan(store, slug))
    study, result = read_result(root, slug)
    try:
        path = _target(search)
        _check_complete(search, result)
    except ValueError as error:
        raise ValueError(
            f"{error}; in a study of your own, vitscale.winners({slug!r}) gives them"
        ) from error
    check_adoptable(study, search)
    before = json.loads(path.read_text()) if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    Workdir(path.parent).write(path.name, f"{json.dumps(result, indent=1)}\n".encode())
    had = {} if before is None else before["winners"]
    lines = [
        f"{arm}: {_pairs(winner)}" + (f" (before: {_pairs(had[arm])})" if arm in had else "")
        for arm, winner in result["winners"].items()
    ]
    lines.append(
        f"written {path}; studies at scale {study.scale} train at these values from now on"
    )
    if before is not None:
        lines.append(
            f"those of {before['search']} are replaced; `git checkout {path}` brings back what "
            "was committed"
        )
    return lines


def _pairs(winner: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in winner["values"].items())


def _own_search(store: Store, study: Study) -> Search:
    """What the script of a stored search would search for now, at its scale, in the project.

    Only a file name is taken from the store, so that nothing outside of `studies/` is run.
    """
    name = str(store.plan(study.slug).get("script", ""))
    script = Path.cwd() / "studies" / name
    if Path(name).name != name or not script.is_file() or script.is_relative_to(PACKAGE):
        raise ValueError(
            "winners must be adopted in the folder of a project, with the script of the search in "
            f"its studies/, but got (folder={str(Path.cwd())!r}, script={shown(name)}); `vitscale "
            "init` makes a project, and in a study of your own, "
            f"vitscale.winners({study.slug!r}) gives them"
        )
    made = made_at(script, study.scale)
    if not isinstance(made, Search):
        raise ValueError(f"the script must make a search, but got ({script}: {shown(made)})")
    return made


def _target(search: Search) -> Path:
    """The file that studies read, in the current folder."""
    if not search.winners_file:
        raise ValueError(
            "a search must have a winners_file, which other studies read, but got none "
            f"(search={search.slug})"
        )
    return Path.cwd() / search.winners_file


def _check_complete(search: Search, result: Mapping[str, Any]) -> None:
    """Raises ValueError unless there is a winner of each arm, with the axes of its space."""
    found = {arm: set(winner["values"]) for arm, winner in result["winners"].items()}
    axes = {arm: set(space) for arm, space in search.spaces.items()}
    if found != axes:
        arms = [arm for arm in {**axes, **found} if axes.get(arm) != found.get(arm)]
        raise ValueError(
            f"a winner must be found of each arm of {search.slug} and of no other, with its axes, "
            f"but got (arms={arms})"
        )


def check_adoptable(study: Study, search: Search) -> None:
    """Raises ValueError unless all that the trials of a stored search share is what the search of
    the project would train.
    """
    configs = {arm.name: config for arm, config in search.configs.items()}
    for trial in study.trials:
        ours, axes = configs[trial.arm.name], search.spaces[trial.arm.name]
        searched = {name: getattr(ours, name) for name in (*axes, "seed")}
        theirs = trial.config.replace(**searched)
        other = ", ".join(
            f"{name}={getattr(theirs, name)!r} instead of {value!r}"
            for name, value in ours.asdict().items()
            if getattr(theirs, name) != value
        )
        if other:
            raise ValueError(
                f"a search must train what the studies of scale {study.scale} do, but got "
                f"(arm={trial.arm.name!r}: {other}); in a study of your own, "
                f"vitscale.winners({study.slug!r}) gives its values"
            )
