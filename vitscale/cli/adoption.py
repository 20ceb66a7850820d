"""Winners of a search: read by a study of your own, or adopted for the project's other studies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitscale.cli.project import PACKAGE, made_at
from vitscale.cli.stores import existing, read_plan
from vitscale.plan.search import Search
from vitscale.plan.spelling import Named, shown
from vitscale.plan.study import Study
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir


def winners(study: str, store: str = "") -> dict[str, dict[str, Any]]:
    """Arm -> values, such as {"lr": ..., "wd": ...}, of its best point in a completed search.

    `study` is the search's directory in the store, such as "tune_lr_wd-demo"; `store` is a folder,
    by default $VITSCALE_STORE or runs. The best point has the lowest mean error on minival over its
    seeds; as the best of many points, its error is optimistic. Raises ValueError for a study that
    is not in the store, is not a search, or is not complete, and for an arm of which no point
    finished.
    """
    plan, result = read_result(store, study)
    if lost := [arm for arm in plan.arms if arm not in result["winners"]]:
        raise ValueError(
            f"each arm of {study} must have a point that finished, but got none (arms={lost})"
        )
    best = {arm: Named(winner["values"], "an axis") for arm, winner in result["winners"].items()}
    return Named(best, f"an arm of {study}")


def read_result(root: str, slug: str) -> tuple[Study, dict[str, Any]]:
    """(study, result) of a completed search. Raises ValueError for any other study."""
    from vitscale.analysis.results import Results
    from vitscale.analysis.search.files import search_result
    from vitscale.launch.optuna_search import check_ended
    from vitscale.record.table import outcomes, read_trials

    store = existing(root, option="store, --store")
    study = read_plan(store, slug)
    check_ended(study, store)
    return study, search_result(Results(study, outcomes(study, read_trials(study, store))))


def adopt(root: str, slug: str) -> list[str]:
    """Writes the winners of a search to the project's winners file; returns lines on what changed.

    The project is the current folder. The search's script in its studies/ defines the winners file,
    which the other studies read, and the configs that they train. Raises ValueError, before
    anything is written, unless the stored search trained the same configs.
    """
    store = existing(root)
    study, result = read_result(root, slug)
    search = _own_search(store, study)
    try:
        path = _target(search)
        _check_complete(search, result)
    except ValueError as error:
        raise ValueError(
            f"{error}; in a study of your own, vitscale.winners({slug!r}) returns them"
        ) from error
    check_adoptable(study, search)
    before = json.loads(path.read_text()) if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    Workdir(path.parent).write(path.name, f"{json.dumps(result, indent=1)}\n".encode())
    previous = {} if before is None else before["winners"]
    lines = [
        f"{arm}: {_pairs(winner)}"
        + (f" (before: {_pairs(previous[arm])})" if arm in previous else "")
        for arm, winner in result["winners"].items()
    ]
    lines.append(f"wrote {path}; studies at scale {study.scale} use these values from now on")
    if before is not None:
        lines.append(
            f"they replace the winners of {before['search']}; `git checkout {path}` restores the "
            "committed version"
        )
    return lines


def _pairs(winner: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in winner["values"].items())


def _own_search(store: Store, study: Study) -> Search:
    """The search as the project's script defines it now, at the scale of the stored search.

    Only a file name is taken from the store, so nothing outside `studies/` is run.
    """
    name = str(store.plan(study.slug).get("script", ""))
    script = Path.cwd() / "studies" / name
    if Path(name).name != name or not script.is_file() or script.is_relative_to(PACKAGE):
        raise ValueError(
            "`vitscale adopt` must be run in a project folder with the search's script in "
            f"studies/, but got (folder={str(Path.cwd())!r}, script={shown(name)}); `vitscale "
            "init` creates a project; in a study of your own, "
            f"vitscale.winners({study.slug!r}) returns the winners"
        )
    made = made_at(script, study.scale)
    if not isinstance(made, Search):
        raise ValueError(f"the script must define a search, but got ({script}: {shown(made)})")
    return made


def _target(search: Search) -> Path:
    """The winners file, in the current folder."""
    if not search.winners_file:
        raise ValueError(
            "a search must have a winners_file for other studies to read, but got none "
            f"(search={search.slug})"
        )
    return Path.cwd() / search.winners_file


def _check_complete(search: Search, result: Mapping[str, Any]) -> None:
    """Raises ValueError unless each arm has a winner with the axes of its search space."""
    adopted = {arm: set(winner["values"]) for arm, winner in result["winners"].items()}
    axes = {arm: set(space) for arm, space in search.spaces.items()}
    if adopted != axes:
        arms = [arm for arm in {**axes, **adopted} if axes.get(arm) != adopted.get(arm)]
        raise ValueError(
            f"exactly the arms of {search.slug} must have a winner, each with its own axes, "
            f"but got (arms={arms})"
        )


def check_adoptable(study: Study, search: Search) -> None:
    """Raises ValueError unless the stored search trained what the project's search would train.

    The fields that the search varies are not compared.
    """
    configs = {arm.name: config for arm, config in search.configs.items()}
    for trial in study.trials:
        ours, axes = configs[trial.arm.name], search.spaces[trial.arm.name]
        searched = {name: ours.axis(name) for name in (*axes, "seed")}
        theirs = trial.config.replace(**searched)
        other = ", ".join(
            f"{name}={getattr(theirs, name)!r} instead of {value!r}"
            for name, value in ours.asdict().items()
            if getattr(theirs, name) != value
        )
        if other:
            raise ValueError(
                f"a search must train the configs of the studies at scale {study.scale}, but got "
                f"(arm={trial.arm.name!r}: {other}); in a study of your own, "
                f"vitscale.winners({study.slug!r}) returns its values"
            )
