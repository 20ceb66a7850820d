"""A worker process that is told to end (SIGTERM) first saves what it has trained.

Knows neither Ray nor the trainer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
GRACE_S = 25.0  # Kubernetes and SLURM kill after 30
ASK_EVERY_S = 0.5
ASK_MAIN_EVERY_S = 0.1
LINGER_S = 3.0  # in which others learn how the work has ended
# namespace, in the head of a cluster, of the keys that tell a team to end
STOPS = b"vitscale-stops"


def saved_at_exit(work: Callable[[Callable[[], bool]], Iterator[T]]) -> Iterator[T]:
    """The values of `work`, which is given a function that says whether the process is about to
    end; once it says so, `work` has to save and end soon, and may start no thread.

    SIGTERM ends a Ray worker by SystemExit in its main thread, while Tune trains in another one,
    which would die without notice once the interpreter ends. So the end of the process waits for
    the work, up to GRACE_S, before anything that was registered for the end of Python is called,
    such as what ends loader processes; and further SIGTERMs change nothing. If the other thread
    holds a value that nobody has taken yet, the wait itself asks the work to go on. In the main
    thread nothing of this is needed: the exception ends the work.
    """
    main = threading.main_thread()
    if threading.current_thread() is main:
        yield from work(lambda: False)
        return
    over, turn = threading.Event(), threading.Lock()  # turn: of the thread that asks for values
    values = work(lambda: not main.is_alive())

    def is_over_before_main() -> bool:
        while main.is_alive():
            if over.wait(ASK_MAIN_EVERY_S):
                return True
        return False

    def hold() -> None:
        if is_over_before_main():
            return
        if turn.acquire(timeout=GRACE_S):  # and kept: nothing is done after this
            with contextlib.suppress(BaseException):  # it has been saved, or cannot be
                for _ in values:
                    pass
        over.set()

    def limit() -> None:
        if not is_over_before_main() and not over.wait(GRACE_S + 1):
            os._exit(1)

    def end() -> None:
        """After a second SIGTERM, which ends Python's own wait for `hold`."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        over.wait(GRACE_S)

    atexit.register(end)
    # now, since a process that ends starts no thread; Python waits for those that are no daemons
    threading.Thread(target=hold, name="saving", daemon=False).start()
    threading.Thread(target=limit, name="grace", daemon=True).start()
    try:
        while True:
            with turn:
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value
    finally:
        atexit.unregister(end)
        over.set()
        with turn:
            if close := getattr(values, "close", None):
                close()


class Notice:
    """Whether the work of this process has to end soon. For a process that others watch: they would
    replace it before its work is saved.
    """

    def __init__(self) -> None:
        # A handler may be interrupted by the next signal, so it may only set an attribute: a lock
        # that it held would never be free again.
        self._given = False
        self._over = threading.Event()

    def is_given(self) -> bool:
        return self._given

    def give_when(self, is_wanted: Callable[[], bool]) -> None:
        """Gives notice once `is_wanted` says so, which a thread asks every ASK_EVERY_S."""
        self._once(is_wanted, self.give)

    def give(self) -> None:
        self._given = True

    def pass_on(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, in a thread, once notice is given."""
        self._once(self.is_given, tell)

    def _once(self, is_so: Callable[[], bool], act: Callable[[], None]) -> None:
        def ask() -> None:
            while not self._over.wait(ASK_EVERY_S):
                with contextlib.suppress(Exception):  # tried again: whom they ask may be silent
                    if is_so():
                        act()
                        return

        threading.Thread(target=ask, name="notice", daemon=True).start()

    def hold_sigterm(self) -> None:
        """Lets SIGTERM give notice instead of ending the process, which then ends LINGER_S after
        its work, or after GRACE_S in any case. Only the main thread may call this.
        """
        before: Any = signal.getsignal(signal.SIGTERM)

        def hold(number: int, frame: object) -> None:
            if self._over.is_set():
                signal.signal(signal.SIGTERM, before)
                os.kill(os.getpid(), signal.SIGTERM)
            self._given = True

        def limit() -> None:
            while not (self._given or self._over.wait(ASK_EVERY_S)):
                pass
            if not self._given:
                return
            if self._over.wait(GRACE_S):
                time.sleep(LINGER_S)
            self._over.set()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE_S)
            os._exit(1)  # the main thread hangs

        signal.signal(signal.SIGTERM, hold)
        threading.Thread(target=limit, name="grace", daemon=True).start()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """A context: after it, SIGTERM ends the process as before."""
        try:
            yield
        finally:
            self._over.set()
