"""A thread of the driver that writes the MLflow view while a study runs.

It retries what it could not write, so a tracking server that is slow or down neither stops nor
slows down training.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from vitscale.plan.study import Study
from vitscale.record.mlflow.client import TakenOver, client_of
from vitscale.record.mlflow.contents import Colors
from vitscale.record.mlflow.place import without_user
from vitscale.record.mlflow.view import View
from vitscale.record.outcome import Outcome
from vitscale.record.store import Store

RETRY_EVERY_S = 5.0
PATIENCE_S = 30.0
SAVE_EVERY_S = 30.0
WRITE_EVERY_S = 2.0  # a row is in the UI about this long after it was reported


class Mirror:
    """A thread that writes the view of a running study. `put` never blocks and never raises."""

    def __init__(
        self,
        study: Study,
        uri: str,
        store: Store,
        colors: Colors | None = None,
        warn: Callable[[str], None] = lambda error: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.study, self.uri, self.store, self.colors = study, uri, store, colors
        self.may_write = may_write  # is asked before each request
        self.warn = warn  # is called once, with the first error
        self.saved = time.monotonic()
        self.latest: dict[str, Outcome] = {}  # outcomes that are not written yet
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.view: View | None = None
        self.error = ""  # of the last attempt; empty if it succeeded
        self.warned = False
        self.thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> Mirror:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()

    def put(self, trial_id: str, outcome: Outcome) -> None:
        """Queues the latest outcome of a trial, in place of one that is queued already."""
        with self.lock:
            self.latest[trial_id] = outcome

    def finish(self, final_update: Callable[[View], None]) -> str:
        """Writes the queued outcomes, then calls `final_update`; returns "" or the error.

        Waits as long as the server accepts at least one outcome per PATIENCE_S.
        """
        self.closing.set()
        left = -1
        while self.thread.is_alive() and len(self.latest) != left:
            left = len(self.latest)
            self.thread.join(PATIENCE_S)
        if self.thread.is_alive():
            return self.error or f"no answer within {PATIENCE_S:.0f} s"
        if not self.error:
            self._attempt(lambda: final_update(self._connected()))
            self._save()
        return self.error

    def _run(self) -> None:
        import mlflow  # noqa: F401  takes seconds, in parallel with the first steps of the driver

        if self.uri.startswith("http"):  # a wrong password is said now, and not after the training
            self._attempt(lambda: client_of(self.uri).search_experiments(max_results=1))
        while not self.closing.wait(RETRY_EVERY_S if self.error else WRITE_EVERY_S):
            self._attempt(self._write)
        self._attempt(self._write)

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
            self.error = ""
        except Exception as error:  # the view must never stop training, whatever the server answers
            self.error = without_user(f"{type(error).__name__}: {error}".splitlines()[0])
            if not self.warned and not isinstance(error, TakenOver):
                self.warned = True
                self.warn(self.error)
            self._save()
            self.view = None  # it may have written a part: read the server again

    def _save(self) -> None:
        """Writes the cache of runs; if that fails, the next start reads them from the server.

        Not once another start writes it: this one knows nothing of the runs that are that one's.
        """
        self.saved = time.monotonic()
        with contextlib.suppress(OSError):
            if self.view is not None and self.may_write():
                self.view.save()

    def _connected(self) -> View:
        self.view = self.view or View(
            self.study, self.uri, self.store, self.colors, may_write=self.may_write
        )
        if self.view.contents.study is not self.study:  # a search has grown
            self.view.extend(self.study)
        return self.view

    def _write(self) -> None:
        with self.lock:
            news = list(self.latest.items())
        if not news:
            return
        is_first, view = self.view is None, self._connected()
        if is_first:
            view.begin()
        for trial_id, outcome in news:
            view.runs.show(trial_id, outcome)
            with self.lock:
                if self.latest.get(trial_id) is outcome:
                    del self.latest[trial_id]
            if time.monotonic() - self.saved > SAVE_EVERY_S:
                self._save()
        view.runs.rename(most=20)  # a slow server must stay free for news
        view.runs.mark_unplanned(most=100)
