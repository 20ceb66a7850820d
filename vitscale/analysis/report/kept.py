"""A report whose inputs and files are as they were when it was drawn, which is not drawn again.

Its inputs are all that its files depend on: the plan, how each trial ended with its rows, the looks
so far, the facts on the page, the code of vitscale, the versions of all installed packages and of
Python. Reports that depend on more are always drawn: those of a kind that a script defines, and
those that read which images each run got wrong. So are those of searches, which are not in NAMES.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from vitscale.analysis.names import NAMES
from vitscale.plan.study import Study, in_short
from vitscale.record.looks import Ledger
from vitscale.record.outcome import Outcome, Rows
from vitscale.record.workdir import Damaged, Workdir, read_json

Names = tuple[str, ...]
Absent = tuple[tuple[int, str], ...]
KEPT = "drawn.json"  # beside the files of a report: what it was made of, and what it says
PACKAGE = Path(__file__).parents[2]
PACKAGES = (".dist-info", ".egg-info")
Summary = Mapping[str, Mapping[str, float]]


class Kept(NamedTuple):
    """What a report says beside its files."""

    headline: list[str]
    summary: dict[str, dict[str, float]]


def inputs(
    study: Study, read: Mapping[str, Outcome], facts: Mapping[str, str]
) -> Callable[[Ledger], str]:
    """A digest of all that a report depends on, given the looks; empty if that is not known."""
    if study.kind not in NAMES:
        return lambda ledger: ""
    digest = hashlib.sha256()
    plan = [in_short(study), dict(facts), [(i, outcome.status) for i, outcome in read.items()]]
    digest.update(json.dumps(plan, sort_keys=True).encode())
    digest.update(repr(sorted(study.measured.items())).encode())
    for outcome in read.values():
        rows = Rows.of(outcome.rows)
        digest.update(_around(tuple(outcome.facts.items()), rows.names, rows.absent))
        digest.update(rows.values)
    for name in chain(code(PACKAGE), packages()):
        digest.update(name.encode())
    without_looks = digest.hexdigest()
    return lambda ledger: _digest(f"{without_looks} {ledger!r}".encode())


@functools.lru_cache(10_000)
def _around(facts: tuple[tuple[str, str], ...], names: Names, absent: Absent) -> bytes:
    """What an outcome has beside the values of its rows, which most outcomes share."""
    return repr((sorted(facts), names, absent)).encode()


def code(folder: Path) -> Iterator[str]:
    """Names and digests of all files of a package, but for what Python compiles."""
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts and path.is_file():
            yield f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def packages() -> Iterator[str]:
    """Python, and all packages that can be imported, with their versions."""
    yield f"{sys.version} {platform.machine()}\n"
    for folder in sys.path:
        if os.path.isdir(folder):
            yield from sorted(f"{name}\n" for name in os.listdir(folder) if name.endswith(PACKAGES))


def read_kept(folder: Workdir, made_of: str) -> Kept | None:
    """What a report says, if it was made of these inputs and all its files are as written."""
    try:
        found = read_json(folder, KEPT) if made_of else {}
        files, kept = dict(found["files"]), Kept(found["headline"], found["summary"])
        if found["seal"] != _seal(made_of, files, kept):
            return None
        whole = all(_digest_of(folder, name) == digest for name, digest in files.items())
    except (Damaged, OSError, KeyError, TypeError, ValueError):
        return None
    return kept if whole else None


def keep(folder: Workdir, made_of: str, headline: Sequence[str], summary: Summary) -> None:
    """Notes what a report that was just written to its folder was made of, if that is known."""
    if not made_of:
        return
    names = [name for name in folder.names() if name != KEPT]
    files = {name: _digest_of(folder, name) for name in names}
    kept = Kept(list(headline), {arm: dict(numbers) for arm, numbers in summary.items()})
    content = {"seal": _seal(made_of, files, kept), "files": files, **kept._asdict()}
    folder.write(KEPT, json.dumps(content, indent=1).encode())


def _seal(made_of: str, files: Mapping[str, str], kept: Kept) -> str:
    return _digest(json.dumps([made_of, files, *kept]).encode())


def _digest_of(folder: Workdir, name: str) -> str:
    digest = hashlib.sha256()
    with folder.open(name) as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
