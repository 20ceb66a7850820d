"""The files of a store's studies: the plan, the lock of the driver, the number of starts."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitscale.record.store_folder import LOCK, StoreFolder, lock_or_refuse, whoami
from vitscale.record.trial_files import TRIAL_ID
from vitscale.record.workdir import CLAIM, Damaged, Workdir, claim_of, read_json, read_text

PLAN = "plan.json"
ASKED = "asked.json"
NONCE = "nonce"


class NotShared(OSError):
    """This machine sees another store than the driver, or none."""


class Overtaken(ValueError):
    """Another start of the study has taken over while this process was suspended."""


class StudyFiles(StoreFolder):
    """The studies of a store, by slug."""

    def slugs(self) -> list[str]:
        """The studies that have a plan, by slug."""
        return [slug for slug in self.studies.names() if self.study(slug).exists(PLAN)]

    def plan(self, slug: str) -> dict[str, Any]:
        """The plan of a study's last start, as plain values; empty if there is none.

        Its configs, which may be of another version, are not checked. Raises Damaged.
        """
        folder = self.study(slug)
        plan = read_json(folder, PLAN)
        if not plan and not folder.exists(PLAN):
            return {}
        if reason := _not_the_plan(plan, slug):
            where = folder.address(PLAN)
            raise Damaged(
                f"a plan must be as the start of its study wrote it, but got ({where}: {reason})"
            )
        return plan

    def asked(self, slug: str) -> dict[str, Any]:
        """The points and stops of a search so far; empty for other studies. Raises Damaged."""
        asked, where = read_json(self.study(slug), ASKED), self.study(slug).address(ASKED)
        for name in ("points", "stopped"):
            lists = asked.get(name, {})
            if not isinstance(lists, dict) or not all(
                isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
                for entries in lists.values()
            ):
                raise Damaged(
                    f"the record of a search must be as it was written, but got ({where}: {name})"
                )
        return asked

    @contextlib.contextmanager
    def drive(self, slug: str) -> Iterator[int]:
        """Holds the study's lock and yields the number of this attempt.

        Raises ValueError if the study has a running driver, and Overtaken.
        """
        with lock_or_refuse(
            self.study(slug).hold(LOCK, json.dumps(whoami())),
            lambda held: f"one driver may run a study, but got (study={slug!r}, running: {held})",
        ):
            attempt = 0

            def number() -> bytes:
                nonlocal attempt
                before = self.num_starts(slug)
                if not before or isinstance(self.root, Path):  # in a bucket, it takes requests
                    before = max(before, *self._attempts(slug))
                attempt = 1 + before
                return str(attempt).encode()

            self.write_driving(slug, "attempt", number)
            self.write_driving(slug, NONCE, lambda: uuid.uuid4().hex.encode())
            yield attempt

    def num_starts(self, slug: str) -> int:
        """How often a study was started."""
        return _number(self.study(slug), "attempt")

    def _attempts(self, slug: str) -> list[int]:
        """Attempts of a study in claims, which can exceed its counter: that may be lost."""
        claims = (claim_of(self.trial(trial_id)) for trial_id in self.trials.having(CLAIM))
        return [0, *(claim["attempt"] for claim in claims if claim.get("study") == slug)]

    def write_driving(self, slug: str, name: str, make: Callable[[], bytes | None]) -> None:
        """Writes a file of a study that this process drives; `make`, which may read what is there,
        gives its content, or None to leave it. Raises Overtaken, and never overwrites what another
        start has written after it took over.

        The version is asked for first, and then whether the study is still ours: what a later start
        has written by then is seen as such, and what it writes afterwards is another version, if
        its content is its own: a tag is often a digest.
        """
        folder = self.study(slug)
        while True:
            version, content = folder.version(name), make()
            self.check_drives(slug)
            if content is None or folder.write_over(name, content, version):
                return

    def check_drives(self, slug: str) -> None:
        """Raises Overtaken if another start may have taken over the study that this one drives."""
        if not self.still_drives(slug):
            raise Overtaken("another start of the study has taken it over")

    def still_drives(self, slug: str) -> bool:
        """Whether no other start can have taken over the study that this process drives."""
        return self.study(slug).still_holds(LOCK)

    def nonce(self, slug: str) -> str:
        """The nonce that the study's running driver wrote to the store; empty without one."""
        return read_text(self.study(slug), NONCE, errors="replace")

    def check_shared(self, slug: str, nonce: str, patience_s: float = 0.0) -> None:
        """Raises NotShared unless this machine sees the driver's nonce, so that both share a store.

        Some network file systems show new files late: if the study exists, checks again for up to
        `patience_s` seconds.
        """
        end = time.monotonic() + patience_s
        while self.nonce(slug) != nonce:
            if time.monotonic() >= end or not self.study(slug).exists():
                raise NotShared(
                    "the store must be one folder that all nodes see, but got "
                    f"(store={str(self.root)!r}, which is another one on {socket.gethostname()})"
                )
            time.sleep(1)

    def clock_ahead_s(self, slug: str) -> float:
        """As Workdir.clock_ahead_s, of the driver or a worker of a study; 0 if it cannot write."""
        try:
            return self.study(slug).clock_ahead_s()
        except OSError:
            return 0.0


def _number(workdir: Workdir, name: str) -> int:
    """The number in a file; 0 if there is no file, or no number in it."""
    try:
        text = workdir.read(name).strip()
    except (FileNotFoundError, Damaged):
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _not_the_plan(plan: Mapping[str, Any], slug: str) -> str:
    """Why an object is not the plan of a study; empty if it is.

    The ids of trials become paths, so they are checked.
    """
    trials = plan.get("trials")
    if f"{plan.get('name')}-{plan.get('scale')}" != slug:
        return f"of a study {plan.get('name')!r:.60} at scale {plan.get('scale')!r:.60}"
    if (
        not isinstance(trials, list)
        or not trials
        or not all(isinstance(trial, dict) for trial in trials)
    ):
        return "no list of trials"
    ids = [trial.get("id") for trial in trials]
    wrong = [name for name in ids if not isinstance(name, str) or not TRIAL_ID.fullmatch(name)]
    return f"a trial's id {wrong[0]!r:.60}" if wrong else ""
