"""The files of a store's trials: a trial is done once its rows.parquet exists."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from vitscale.record.misclassified import WRONG, Misclassified
from vitscale.record.misclassified import decode as decode_misclassified
from vitscale.record.object_store import Unavailable
from vitscale.record.outcome import Outcome, Status
from vitscale.record.rows import decode, decode_facts, encode
from vitscale.record.store_folder import StoreFolder, whoami
from vitscale.record.workdir import (
    CHECKPOINT,
    CLAIM,
    SLUG,
    Damaged,
    Fenced,
    FileState,
    Workdir,
    claim_of,
    read_json,
    read_text,
)

ROWS = "rows.parquet"
EVALUATION = "evaluation-"
PREDICTIONS = "predictions-"
FAILURE = "failure.log"
FAULT = "fault.log"
SET_ASIDE, DELETED = ".set-aside-", ".deleted-"  # between a trial's id and a time or random digits
TRIAL_ID = re.compile(r"[0-9a-f]{12}")  # of vitscale.plan.config


class ClaimedByOther(RuntimeError):
    """Another study that is running now trains this trial."""

    def __init__(self, study: str, trial_id: str) -> None:
        super().__init__(f"study {study} trains {trial_id} now")
        self.study = study


class TrialFiles(StoreFolder):
    """The trials, which all studies of a store share."""

    def trial_ids(self) -> list[str]:
        """Trials that have a folder, sorted."""
        return [name for name in self.trials.names() if TRIAL_ID.fullmatch(name)]

    def is_done(self, trial_id: str) -> bool:
        """Whether a trial has finished or diverged; true for a dangling link, which is damaged."""
        return self.trial(trial_id).exists(ROWS)

    def done_of(self, trial_ids: Collection[str]) -> set[str]:
        """Those of some trials that are done."""
        return set(self.trials.states(ROWS, trial_ids))

    def claim(self, trial_id: str, config: Mapping[str, Any], study: str, attempt: int) -> Workdir:
        """Makes this worker the only one that may write to the trial, until the next claim.

        Raises ClaimedByOther if another study with a live driver has claimed the trial, and Fenced
        if a later attempt of this study has.
        """
        folder, workdir = self.trial(trial_id), None
        token = f"{study}/{attempt}/{uuid.uuid4().hex}"
        claim = {"token": token, "study": study, "attempt": attempt, **whoami()}
        while workdir is None:
            holder, seen = folder.look()
            if holder and holder["study"] == study and holder["attempt"] > attempt:
                raise Fenced(
                    f"attempt {holder['attempt']} has claimed {trial_id}, this is attempt {attempt}"
                )
            if holder and holder["study"] != study and self.driver_is_alive(holder["study"]):
                raise ClaimedByOther(holder["study"], trial_id)
            workdir = folder.take(claim, seen)
        there = folder.names()
        for name in there:
            # of a killed worker; the last two are of an earlier attempt: from now on the trial runs
            if (name.startswith(".") and name.endswith(".tmp")) or name in (FAILURE, FAULT):
                folder.remove(name)
        if "config.json" not in there:
            folder.write("config.json", json.dumps(dict(config), indent=1, sort_keys=True).encode())
        return workdir

    def finish(
        self, workdir: Workdir, outcome: Outcome, beside: Mapping[str, bytes] | None = None
    ) -> bool:
        """Commits a finished or diverged trial; False if another worker was first.

        Status and facts travel in the metadata of the parquet file, so that both are one commit;
        the file is sealed (vitscale.record.rows). `beside`: files that are named by their content
        and referred to by facts; they are written first.
        """
        for name, content in (beside or {}).items():
            workdir.write(name, content)
        first = workdir.create(ROWS, encode(workdir.name, outcome))
        for name in workdir.names(CHECKPOINT)[:-1]:  # the last one may hold the final weights
            workdir.remove(name)
        workdir.remove(CLAIM)
        return first

    def states(self, trial_ids: Collection[str]) -> dict[str, FileState]:
        """The state of the rows of each done trial.

        Removes what is left of claims to them, by workers that were killed right after the commit,
        where this user may: they harm nobody.
        """
        rows, claims = self.trials.states_of((ROWS, CLAIM), trial_ids)
        for trial_id in rows.keys() & claims.keys():
            with contextlib.suppress(OSError):
                self.trial(trial_id).remove(CLAIM)
        return rows

    def read(self, trial_id: str) -> Outcome:
        """The outcome of a done trial. Raises Damaged, or Unavailable for a bucket."""
        with _naming(self.trial(trial_id).address(ROWS)):
            return decode(self.trial(trial_id).read(ROWS), trial_id)

    def peek(self, trial_id: str) -> Outcome:
        """The outcome of a done trial without its rows, which is faster to read. Raises Damaged."""
        with _naming(self.trial(trial_id).address(ROWS)), self.trial(trial_id).open(ROWS) as file:
            return decode_facts(file, trial_id)

    def misclassified(self, trial_id: str, outcome: Outcome) -> Misclassified | None:
        """The images that the final weights of a done trial misclassify. Raises Damaged.

        None for a trial that diverged, or that was trained by an older version.
        """
        name, workdir = outcome.facts.get(WRONG, ""), self.trial(trial_id)
        if not name:
            return None
        with _naming(workdir.address(name), "wrong images"):
            return decode_misclassified(name, workdir.read(name))

    def outcome(
        self,
        trial_id: str,
        read: Callable[[str], Outcome] | None = None,
        done: bool | None = None,
        others: Collection[str] = (FAILURE, FAULT),
    ) -> Outcome:
        """How a trial ended: decided by rows.parquet, else failure.log, else fault.log.

        `read` reads a done trial (default: `Store.read`). `done`: what is known of that. `others`:
        which of the other files it may have, since in a bucket each look takes a request. A damaged
        file is ignored, with a warning that names it. Raises Unavailable for a bucket.
        """
        try:
            if done or (done is None and self.is_done(trial_id)):
                return (read or self.read)(trial_id)
        except Unavailable:
            raise
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        try:
            if FAILURE in others and (error := self.failure(trial_id)):
                return Outcome(Status.FAILED, facts={"error": error})
            if FAULT in others and (fault := self.fault(trial_id)):
                return Outcome(Status.MISSING, facts={"error": fault})
        except Unavailable:
            raise
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
        return Outcome(Status.MISSING)

    def others_of(self, trial_ids: Collection[str]) -> dict[str, list[str]]:
        """Trial -> which it has of the files that `outcome` reads beside rows, by one look."""
        failures, faults = self.trials.states_of((FAILURE, FAULT), trial_ids)
        return {i: [FAILURE] * (i in failures) + [FAULT] * (i in faults) for i in trial_ids}

    def failure(self, trial_id: str) -> str:
        """Why a trial failed, in one line; empty if it has not failed."""
        return read_text(self.trial(trial_id), FAILURE, errors="replace").partition("\n")[0]

    def fault(self, trial_id: str, start: tuple[str, int] | None = None) -> str:
        """The last fault of a machine in one line; empty if none since the trial's last start, or
        if it was not in this one (study, number).
        """
        text = read_text(self.trial(trial_id), FAULT, errors="replace")
        line, who, *_ = [*text.split("\n", 2), "", ""]
        if start is not None:
            try:
                return line if json.loads(who)["start"] == [*start] else ""
            except (ValueError, TypeError, KeyError, RecursionError):  # an older one, or damaged
                return ""
        return line

    def fail(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records why a trial failed, its one line first, and releases it; keeps checkpoints."""
        self._end(workdir, FAILURE, error, traceback)

    def lose(self, workdir: Workdir, error: str, traceback: str) -> None:
        """Records a fault of the machine and releases the trial, which stays without an outcome."""
        self._end(workdir, FAULT, error, traceback)

    def _end(self, workdir: Workdir, name: str, error: str, traceback: str) -> None:
        claim = workdir.look()[0]
        who = json.dumps({**whoami(), "start": [claim.get("study"), claim.get("attempt")]})
        workdir.write(name, f"{error}\n{who}\n\n{traceback}".encode())
        workdir.release()

    def holder(self, trial_id: str) -> str:
        """The study that has claimed a trial; empty if none has."""
        return str(claim_of(self.trial(trial_id)).get("study", ""))

    def running_holder(self, trial_id: str) -> str:
        """The study that has claimed a trial and runs now; empty if there is none."""
        holder = self.holder(trial_id)
        return holder if holder and self.driver_is_alive(holder) else ""

    def check_claim(self, trial_id: str) -> None:
        """Raises Damaged for a malformed claim; such a claim has no effect, but is reported."""
        claim, where = read_json(self.trial(trial_id), CLAIM), self.trial(trial_id).address(CLAIM)
        study, attempt = claim.get("study"), claim.get("attempt")
        if claim and not (
            isinstance(study, str) and SLUG.fullmatch(study) and isinstance(attempt, int)
        ):
            raise Damaged(
                f"a claim must name a study and its attempt, but got ({where}: {study!r:.60}, "
                f"{attempt!r:.60})"
            )

    def evaluated(self) -> set[str]:
        """The trials that have an evaluation after their training."""
        return self.trials.having_any(EVALUATION)

    def evaluations(self, trial_id: str) -> dict[str, Outcome]:
        """The evaluations of a trial by their ids, with one row each.

        A damaged file is ignored, with a warning that names it.
        """
        evaluations, workdir = {}, self.trial(trial_id)
        for name in workdir.names(EVALUATION):
            evaluation_id = name.removeprefix(EVALUATION).removesuffix(".parquet")
            try:
                with _naming(workdir.address(name)):
                    evaluations[evaluation_id] = decode(workdir.read(name), trial_id)
            except Damaged as damage:
                warnings.warn(str(damage), stacklevel=2)
        return evaluations

    def add_evaluation(
        self, trial_id: str, evaluation_id: str, outcome: Outcome, beside: Mapping[str, bytes]
    ) -> None:
        """Commits a sealed evaluation in place of an earlier one. `beside` as in `finish`."""
        workdir = self.trial(trial_id)
        for name, content in beside.items():
            workdir.write(name, content)
        workdir.write(f"{EVALUATION}{evaluation_id}.parquet", encode(trial_id, outcome))

    def set_aside(self, trial_id: str) -> str:
        """Renames a damaged rows.parquet, so that the trial resumes; returns the new name."""
        aside = f"{ROWS}.damaged-{int(time.time())}"
        self.trial(trial_id).rename(ROWS, aside)
        return aside

    def set_trial_aside(self, trial_id: str, stamp: str) -> bool:
        """Moves a whole trial out of the way, so that it is trained again; False if it has gone."""
        return self._move_trial(trial_id, f"{trial_id}{SET_ASIDE}{stamp}")

    def mark_deleted(self, trial_id: str) -> str:
        """Takes a trial out of the store in one step; the name of what `trials` must discard.

        Empty if it has gone. A process killed in between leaves a folder that is not a trial.
        """
        name = f"{trial_id}{DELETED}{uuid.uuid4().hex[:8]}"
        return name if self._move_trial(trial_id, name) else ""

    def _move_trial(self, trial_id: str, name: str) -> bool:
        try:
            self.trials.rename(trial_id, name)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def _naming(address: str, what: str = "rows") -> Iterator[None]:
    """Raises Damaged, with the address, for any exception that a damaged file causes.

    Not for one of the machine, such as a server of files that does not answer, a permission or too
    little memory: what was read would be trained again. pyarrow's own errors have no errno.
    """
    try:
        yield
    except (Unavailable, MemoryError):  # pyarrow's is one, too
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in (None, errno.EIO, errno.ENOENT):
            raise
        reason = (str(error) or repr(error)).splitlines()[0]
        raise Damaged(f"{what} must be readable parquet, but got ({address}: {reason})") from error
