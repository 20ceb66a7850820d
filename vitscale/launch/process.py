"""Signals and standard output of a process that starts studies."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED, EXIT_NOT_SHOWN, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
# Signals so soon after another are the same request: a key that is held down, or a scheduler that
# signals all processes of a job, some of which pass the signal on to the driver.
STORM_S = 2.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # that ask a start to stop


def handle_signals(stop: threading.Event, goes_on: bool = False) -> None:
    """Lets the first SIGINT, SIGTERM or SIGHUP request a graceful stop by setting `stop`.

    Schedulers preempt with SIGTERM, and a terminal that closes sends SIGHUP. Signals that follow
    within STORM_S, as from a key that is held down, are the same request; a later SIGINT or SIGTERM
    ends the process at once, a later SIGHUP does not, since terminals may send two. Under
    `nohup`, SIGHUP stays ignored. The first signal raises no exception, because Ray may swallow one
    that is raised in the middle of its code.

    `goes_on`: a later SIGINT raises KeyboardInterrupt, since the process has more to do than this
    start, as the kernel of a notebook has.
    """
    first_s: list[float] = []
    terminal = 2
    with contextlib.suppress(OSError):
        terminal = os.dup(2)  # stderr itself goes to a log while a cluster is joined

    def request_stop(name: int, _: object) -> None:
        stop.set()
        first_s.append(time.monotonic())
        if name == signal.SIGHUP:
            _detach_from_terminal()
        elif first_s[-1] - first_s[0] > STORM_S:
            if goes_on and name == signal.SIGINT:
                raise KeyboardInterrupt("interrupted at once: the same call resumes")
            # not by print, which this signal may have interrupted
            with contextlib.suppress(OSError):
                os.write(terminal, b"\ninterrupted at once: the same command resumes\n")
            os._exit(EXIT_INTERRUPTED)

    _install(request_stop)


def handle_early_signals() -> None:
    """Lets the same signals end the process with one line, as long as nothing has begun."""

    def exit_now(name: int, _: object) -> NoReturn:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # one line is enough
        if name == signal.SIGHUP:
            _detach_from_terminal()
        print("\ninterrupted before anything was begun", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)

    _install(exit_now)


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Puts this process's handlers back after a block: it may go on, as a notebook does."""
    before = {name: signal.getsignal(name) for name in SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            if threading.current_thread() is threading.main_thread():
                signal.signal(name, handler)


def _install(handler: Callable[[int, Any], None]) -> None:
    if threading.current_thread() is not threading.main_thread():  # Python permits it there alone
        return
    for name in SIGNALS:
        if name != signal.SIGHUP or signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, handler)


def _detach_from_terminal() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and stream.isatty():
            discard(stream)


def discard(stream: TextIO) -> None:
    """Redirects a stream to the null device: writing to what was closed would raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def finish(stream: TextIO) -> None:
    """Leaves out what cannot be written to a stream: Python would end with another status."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


class Output:
    """Standard output for a start, which ends by no failure to write.

    Once nobody reads it any more (`study | head`), the start is asked to stop, as by a terminal
    that closes. What a full disk, or a terminal that is gone, does not take is left out.
    """

    def __init__(self, file: TextIO, stop: threading.Event) -> None:
        self.file, self.stop = file, stop
        self.errors = sys.stderr  # while Ray runs, sys.stderr is its log
        self.is_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        self._in_any_case(lambda: self.file.write(text))
        return len(text)

    def flush(self) -> None:
        self._in_any_case(self.file.flush)

    def finish(self) -> None:
        finish(self.file)

    def _in_any_case(self, put: Callable[[], object]) -> None:
        try:
            put()
        except BrokenPipeError:
            self.stop.set()
            discard(self.file)
            self._warn("interrupted: nobody reads the output any more; the same command resumes")
        except OSError as error:
            if not self.is_warned:
                self.is_warned = True
                self._warn(f"warning: lines of the output cannot be written ({error.strerror})")

    def _warn(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it may be the same file
            print(line, file=self.errors)
