"""Readable names for the trials of a study: a folder of links by arm and point, for people.

Nothing in vitscale finds a trial by one, so a file system without links loses only these.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vitscale.record.store import Store

FOLDER = "trials"  # in the folder of a study
MOST_BYTES = 200  # of a name; file systems take 255
# beside letters and digits of any script; the others are separators or special to shells somewhere
UNSAFE = re.compile(r"[^\w .,+()=@%-]")


def point_name(entry: Mapping[str, Any]) -> str:
    """A trial of a plan among those of its arm: "007", or "reference seed 1000"."""
    if entry.get("point") is not None:
        return f"{entry['point']:03d}"
    config = entry.get("config", {})
    return "reference" if "profile" in config else f"reference seed {config.get('seed', 0)}"


def point_names(trials: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Trial id -> its name within its arm; with the id where only that distinguishes two."""
    counts = Counter((entry["arm"], point_name(entry)) for entry in trials)
    return {
        entry["id"]: point_name(entry)
        + (f" {entry['id']}" if counts[entry["arm"], point_name(entry)] > 1 else "")
        for entry in trials
    }


def link_paths(trials: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Trial id -> the path of its link: arm and point, as names that every file system takes."""
    arms = _folders(dict.fromkeys(str(entry["arm"]) for entry in trials))
    names = point_names(trials)
    return {
        entry["id"]: f"{arms[str(entry['arm'])]}/{_safe(names[entry['id']])}" for entry in trials
    }


def _folders(arms: Mapping[str, None]) -> dict[str, str]:
    """Arm -> a folder of its own, also where names differ in case or in unsafe characters only."""
    counts = Counter(_safe(arm).casefold() for arm in arms)
    return {
        arm: _safe(arm)
        + (f" {_digest(arm)}" if counts[_safe(arm).casefold()] > 1 or _is_cut(arm) else "")
        for arm in arms
    }


def _safe(name: str) -> str:
    """The name without what separates or hides files."""
    kept = UNSAFE.sub("_", name).encode()[:MOST_BYTES].decode(errors="ignore").strip()
    return f"_{kept.lstrip('.')}" if kept.startswith(".") or not kept else kept


def _is_cut(name: str) -> bool:
    return len(UNSAFE.sub("_", name).encode()) > MOST_BYTES


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]


def update_links(store: Store, slug: str, trials: Sequence[Mapping[str, Any]]) -> None:
    """Brings the links of a study in line with the entries of its plan.

    Only links are removed. What cannot be linked is left out without a word.
    """
    folder = store.study(slug).within(FOLDER)
    wanted = {path: f"../../../../trials/{i}" for i, path in link_paths(trials).items()}
    # UnicodeError: a locale without UTF-8
    with contextlib.suppress(OSError, UnicodeError):
        there = folder.links()
        right = {path for path, target in wanted.items() if there.get(path) == target}
        for path in there.keys() - right:
            folder.remove_link(path)
        for path in wanted.keys() - right:
            with contextlib.suppress(FileExistsError):  # a user's own file
                folder.link(path, wanted[path])
