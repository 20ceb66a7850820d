"""The ledger of looks: which reports of a study saw which rows, and what they claimed.

    <root>/studies/<slug>/looks/000001.json   the first look; each file is created once
                                final.json    the final size, as --final-num declared it

A look is a report that saw other rows than every report before it. A report of the same rows that
tests something else is kept beside it, for the names of its tests. Reports can be drawn again
without the ledger; it says only how p values have to be corrected.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from vitscale.plan.trial import Trial
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged, Workdir, read_json

FOLDER, FINAL = "looks", "final.json"
OPEN = "open"  # in place of a final size
NUMBERED = re.compile(r"\d{6}\.json")
T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What one report saw and claimed. Draws or seeds are counted by arm, without references."""

    digest: str  # of the rows seen
    seen: Mapping[str, int]  # arm -> draws or seeds with an outcome
    planned: Mapping[str, int]
    tested: Mapping[str, int] = field(default_factory=dict)  # column of p -> its number
    claimed: Mapping[str, int] = field(default_factory=dict)  # thereof below 5% when corrected
    p: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # column -> test -> p
    time: str = ""


@dataclass(frozen=True)
class FinalSize:
    """The size of a study that was declared before its first look."""

    num: int  # --final-num; 0 for a study without an end
    planned: Mapping[str, int]  # arm -> draws or seeds at that size

    @property
    def is_open(self) -> bool:
        """Whether the study may grow for ever."""
        return self.num == 0

    @property
    def option(self) -> str:
        """As the command line has it."""
        return f"--final-num {OPEN if self.is_open else self.num}"


@dataclass(frozen=True)
class Ledger:
    """The looks of a study so far, each with rows of its own, and its declared size."""

    looks: tuple[Look, ...] = ()
    final: FinalSize | None = None
    again: tuple[Look, ...] = ()  # other reports of the same rows, which tested something else


def sizes(trials: Iterable[Trial]) -> dict[str, int]:
    """Draws or seeds per arm: the trials with a point, or all of an arm that has no points."""
    counts: dict[str, list[int]] = {}
    for trial in trials:
        drawn_and_all = counts.setdefault(trial.arm.name, [0, 0])
        drawn_and_all[0] += trial.point is not None
        drawn_and_all[1] += 1
    return {arm: drawn or every for arm, (drawn, every) in counts.items()}


def read_ledger(store: Store, slug: str) -> Ledger:
    """The looks at a study and its declared size; empty without any.

    Of several at the same rows, the first that tested something counts. A file that cannot be read
    is left out, with a warning that names it.
    """
    folder = _folder(store, slug)
    names = [name for name in folder.names() if NUMBERED.fullmatch(name)]
    looks = [look for name in names if (look := _read(folder, name, Look)) is not None]
    in_order = sorted(looks, key=lambda look: not any(look.tested.values()))
    distinct = {look.digest: look for look in reversed(in_order)}
    return Ledger(
        tuple(look for look in looks if distinct[look.digest] is look),
        _read(folder, FINAL, FinalSize) if folder.exists(FINAL) else None,
        tuple(look for look in looks if distinct[look.digest] is not look),
    )


def _is_known(ledger: Ledger, look: Look) -> bool:
    """Whether the rows were seen before, by reports that made all tests of this one."""
    same = [old for old in (*ledger.looks, *ledger.again) if old.digest == look.digest]
    made = {(column, test) for old in same for column, p in old.p.items() for test in p}
    tests = {(column, test) for column, p in look.p.items() for test in p}
    tested = any(any(old.tested.values()) for old in same) or not any(look.tested.values())
    return bool(same) and tested and tests <= made


def add_look(store: Store, slug: str, look: Look) -> bool:
    """Appends a look unless its rows were seen before, by looks that made all of its tests; returns
    whether it did.

    Each look is a new file that exactly one of several processes creates. Raises OSError.
    """
    folder = _folder(store, slug)
    content = asdict(look) | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    while True:
        if _is_known(read_ledger(store, slug), look):
            return False
        used = [int(name[:6]) for name in folder.names() if NUMBERED.fullmatch(name)]
        name = f"{max(used, default=0) + 1:06d}.json"
        if folder.create(name, json.dumps(content, indent=1).encode()):
            return True


def check_final(ledger: Ledger, final: FinalSize, slug: str) -> None:
    """Raises ValueError unless a size is the declared one, or there was no look yet."""
    if not ledger.looks or (ledger.final and ledger.final.num == final.num):
        return
    before = ledger.final.option if ledger.final else "none"
    num = len(ledger.looks)
    raise ValueError(
        "a final size must be declared before the first look and be kept, but got "
        f"({slug}: {final.option}, declared before its {num} look{'s' * (num > 1)}: "
        f"{before})"
    )


def check_within(ledger: Ledger, trials: Iterable[Trial], slug: str) -> None:
    """Raises ValueError if a plan exceeds the declared size."""
    if ledger.final is None or ledger.final.is_open:
        return
    for arm, num in sizes(trials).items():
        if num > (most := ledger.final.planned.get(arm, num)):
            raise ValueError(
                "a study must stay within its declared final size, but got "
                f"({slug}: {num} planned in arm {arm!r}, {most} with {ledger.final.option})"
            )


def declare(store: Store, slug: str, final: FinalSize) -> None:
    """Records the final size of a study. Raises ValueError if a look was made with another."""
    ledger = read_ledger(store, slug)
    check_final(ledger, final, slug)
    if ledger.final != final:
        _folder(store, slug).write(FINAL, json.dumps(asdict(final), indent=1).encode())


def _folder(store: Store, slug: str) -> Workdir:
    return store.study(slug).within(FOLDER)


def _read(folder: Workdir, name: str, made: type[T]) -> T | None:
    try:
        content: dict[str, Any] = read_json(folder, name)
        names = [item.name for item in fields(made)]  # type: ignore[arg-type]
        values = {name: content[name] for name in names}
        for column, of_tests in values.get("p", {}).items():
            if not all(type(p) is float and 0 <= p <= 1 for p in of_tests.values()):
                raise ValueError(f"p of {column}={of_tests!r:.60}")
        if not isinstance(digest := values.get("digest", ""), str):
            raise ValueError(f"digest={digest!r:.60}")
        for item in ("seen", "planned", "tested", "claimed"):
            if not all(type(num) is int for num in values.get(item, {}).values()):
                raise ValueError(f"{item}={values[item]!r:.60}")
        return made(**values)
    except (Damaged, OSError, KeyError, AttributeError, ValueError) as error:
        warnings.warn(
            "a file of the looks at a study must be as it was written, but got "
            f"({folder.address(name)}: {error})",
            stacklevel=3,
        )
        return None
