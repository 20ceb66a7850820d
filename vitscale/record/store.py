"""The store: one directory per trial, shared by all studies; a trial is done once its rows.parquet
exists.

    <root> is a folder, or a bucket and a prefix (vitscale.record.bucket)

    <root>/store-id                            a random name; identifies it on a shared MLflow
           planning.lock                       shared by starts, held by `vitscale clean`
           parts/<digest>.json                 the source of a part (vitscale.plan.parts)
           trials/<id>.set-aside-<time>/       a trial that was trained again by other code
                  <id>.deleted-<random>/       what `vitscale clean` was about to remove
           trials/<id>/config.json             the fields that differ from their defaults
                       claim.json              the worker that trains it now
                       checkpoint-<step>-<digest>.pt
                       pinned-<step>-<digest>.pt  from which other trials start
                       failure.log             why the config failed, with the traceback
                       fault.log               the last fault of a machine: not a result
                       wrong-<digest>.parquet  which images the final weights got wrong
                       rows.parquet            written last, atomically and exclusively
                       evaluation-<id>.parquet  of an evaluation after the training, as rows.parquet
                       predictions-<id>.parquet  its predictions, on request
    <root>/studies/<slug>/plan.json            the plan of the last start
                          attempt              number of starts so far
                          nonce                of this start; a node without it sees another store
                          driver.lock          held by the running driver
                          trials/<arm>/<point> links to its trials, for people
                          looks/               which rows each report saw, see look_ledger.py
                          outcomes.parquet     a copy of outcomes (vitscale.record.index)
                          asked.json           of a search: points it asked for, and what it stopped

Every file is written whole or not at all. trial_files.py and study_files.py say what the files
mean; how they are read and written is the affair of vitscale.record.workdir alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from vitscale.record.object_store import WRITABLE
from vitscale.record.store_folder import LOCK, lock_or_refuse, whoami
from vitscale.record.study_files import StudyFiles
from vitscale.record.trial_files import TrialFiles

PLANNING = "planning.lock"
PLANNING_PATIENCE_S, CLEANING_PATIENCE_S = 60.0, 10.0


class Store(TrialFiles, StudyFiles):
    """A folder of trials and studies, and what concerns both."""

    def check_permitted(self, slug: str) -> None:
        """Raises ValueError, or OSError for a bucket, if this user may not write what a start of
        the study would write beside trials, such as what another user has made.
        """
        of_study = ("", LOCK, "ray.log", "looks", "report", "trials")
        _refuse([*self.folder.refused("", PLANNING), *self.study(slug).refused(*of_study)])

    def check_trials_writable(self) -> None:
        """Raises OSError unless this process can create a file beside the trials."""
        name = f"{WRITABLE}{uuid.uuid4().hex}"
        self.trials.create(name, b"")
        self.trials.remove(name)

    def check_trials_permitted(self, trial_ids: Iterable[str]) -> None:
        """Raises as `check_permitted` if this user may not write in the folders of some trials."""
        _refuse(self.trials.refused(*trial_ids))

    def planning(self) -> AbstractContextManager[None]:
        """Held from a start's look at what is done until its plan names that: no trial is deleted
        in between. Starts share it. Raises ValueError if trials are being deleted all the time.
        """
        return lock_or_refuse(
            self.folder.share(PLANNING, PLANNING_PATIENCE_S),
            lambda held: (
                "a study may start once trials are deleted, but got "
                f"(store={str(self.root)!r}, deleting: {held})"
            ),
        )

    def cleaning(self) -> AbstractContextManager[None]:
        """Held while trials that no plan names are taken out of the store: no study can begin to
        rely on one. Raises ValueError while a study starts.
        """
        return lock_or_refuse(
            self.folder.hold(PLANNING, json.dumps(whoami()), CLEANING_PATIENCE_S),
            lambda held: (
                "no study may start while trials are deleted, but got "
                f"(store={str(self.root)!r}: one starts now, or another clean runs); try again"
            ),
        )

    def check_cleaning(self) -> None:
        """Raises ValueError if a study may have started since `cleaning`, as in a bucket while this
        process was suspended.
        """
        if not self.folder.still_holds(PLANNING):
            raise ValueError(
                "no study may start while trials are deleted, but got "
                f"(store={str(self.root)!r}: one may have started); try again"
            )

    def still_plans(self) -> bool:
        """Whether no trial can have been deleted since `planning`."""
        return self.folder.still_holds(PLANNING)

    def check_planning(self) -> None:
        """Raises ValueError if trials may have been deleted since `planning`, as in a bucket while
        this process was suspended.
        """
        if not self.still_plans():
            raise ValueError(
                "no trial may be deleted while a study starts, but got "
                f"(store={str(self.root)!r}: this process did not run for a while); try again"
            )


def _refuse(refused: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError naming the first of some (address, owner) that may not be written."""
    if refused:
        (address, owner), more = refused[0], len(refused) - 1
        raise ValueError(
            "what a start writes must be writable by this user, but got "
            f"({address!r}, of {owner}{f', and {more} more' if more else ''})"
        )
