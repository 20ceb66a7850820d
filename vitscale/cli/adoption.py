"""Winners of a search: for a study of one's own, and, by
`vitscale adopt`, for the studies of a scale.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from vitscale.cli.stores import existing, read_plan
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import Study
from vitscale.record.store import Workdir


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
    """Writes the winners of a search where the studies of its scale read them; returns lines that
    say what changed.

    Raises ValueError, before anything is written, unless the search trained what the studies of its
    scale do, as long as their searches are, and the studies read their values from a source tree.
    """
    from search_spaces.winners import check_complete, optima, tuned

    study, result = read_result(root, slug)
    try:
        check_complete(study.scale, optima(result))
    except ValueError as error:
        raise ValueError(
            f"{error}; in a study of your own, vitscale.winners({slug!r}) gives them"
        ) from error
    check_adoptable(study)
    path = _target(study.scale)
    before = tuned(study.scale)
    Workdir(path.parent).write(path.name, f"{json.dumps(result, indent=1)}\n".encode())
    had = {} if before is None else optima(before)
    lines = [
        f"{model} {optimizer}: lr {lr:g}, wd {wd:g}{_before(had.get((model, optimizer)))}"
        for (model, optimizer), (lr, wd) in optima(result).items()
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


def _before(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f" (before: lr {pair[0]:g}, wd {pair[1]:g})"


def check_adoptable(study: Study) -> None:
    """Raises ValueError unless all that the trials of a search
    share is what the scale's own search would train.
    """
    from search_spaces.winners import OPTIMIZERS

    space = import_module(f"search_spaces.{study.scale}")
    base = TrainConfig(**{**space.RECIPE, **space.TUNING})
    for trial in study.trials:
        model, _, label = trial.arm.rpartition(" ")
        ours = base.replace(**space.MODELS.get(model, {}), optimizer=OPTIMIZERS[label])
        theirs = trial.config.replace(lr=ours.lr, wd=ours.wd, seed=ours.seed)
        other = [name for name, value in ours.asdict().items() if getattr(theirs, name) != value]
        if model not in space.MODELS or other:
            says = ", ".join(
                f"{name}={getattr(theirs, name)!r} instead of {getattr(ours, name)!r}"
                for name in other
            )
            raise ValueError(
                f"a search must train what the studies of scale {study.scale} do, but got "
                f"(arm={trial.arm!r}: {says or 'no such model'}); in a study of your own, "
                f"vitscale.winners({study.slug!r}) gives its values"
            )


def _target(scale: str) -> Path:
    """The file that studies read.

    Raises ValueError where it belongs to an installed package, or may not be written.
    """
    from importlib.resources import files

    folder = Path(str(files("search_spaces") / "tuned"))
    root = folder.parents[1]
    own = (
        (root / "pyproject.toml").is_file()
        and (root / "studies").is_dir()
        and not any(root.glob("*.dist-info"))
    )
    if not own or not os.access(folder, os.W_OK):
        raise ValueError(
            "winners must be adopted in a clone of vitscale that may be written, whose studies "
            f"read them, but got ({folder}); in a study of your own, vitscale.winners(SEARCH) "
            "gives them"
        )
    return folder / f"{scale}.json"
