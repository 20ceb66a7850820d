"""A worker process that is told to end (SIGTERM) first saves what it has trained.

Knows neither Ray nor the trainer.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
GRACE_S = 25.0  # Kubernetes and SLURM kill after 30
HELD_UP_S = 2.0  # without being asked for the next value


def saved_at_exit(work: Callable[[Callable[[], bool]], Iterator[T]]) -> Iterator[T]:
    """The values of `work`, which is given a function that says whether the process is about to
    end; that end waits for the work, up to GRACE_S.

    SIGTERM ends a Ray worker by SystemExit in its main thread, while Tune trains in another one,
    which would die without notice once the interpreter ends. A thread that Tune no longer asks for
    its next value is not waited for. In the main thread itself nothing is needed: the exception
    ends the work.
    """
    if threading.current_thread() is threading.main_thread():
        yield from work(lambda: False)
        return
    asked, left, held_up = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        began = working = time.monotonic()
        while not left.wait(0.02) and time.monotonic() < min(began + GRACE_S, working + HELD_UP_S):
            if not held_up.is_set():
                working = time.monotonic()

    atexit.register(wait)
    try:
        for value in work(asked.is_set):
            held_up.set()
            yield value
            held_up.clear()
    finally:
        left.set()
        atexit.unregister(wait)
