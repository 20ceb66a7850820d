"""Runs checks in a process of their own: one that crashes or hangs is a failed check.

A fault of a GPU breaks its process for good, and a full /dev/shm ends it with a signal. The process
is replaced after such a check, and the others go on. What a check prints is kept from the table.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from vitscale.doctor.check import Check, Finding, Machine, failed
from vitscale.launch.faults import one_line
from vitscale.record.mlflow.place import without_user

PATIENCE_S = 10.0  # until a process that has nothing to do is gone
LATE = "too slow, or it hangs: run it again while nothing else runs here; if it is late again"


class Examination:
    """A process for checks, started by the first one. A context: it ends with the process."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._starts, self._is_over = threading.Lock(), False
        self._log = tempfile.NamedTemporaryFile("w+", prefix="vitscale-doctor-")  # noqa: SIM115
        self._folder = tempfile.mkdtemp(prefix="vitscale-doctor-")  # what a killed check leaves

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._starts:  # of another thread
            self._is_over = True
        self._end(kill=kind is not None)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def find(self, check: Check, machine: Machine) -> Finding:
        """What a check finds. An exception, the end of the process, or too long a time: failed."""
        with self._starts:
            if self._is_over:
                return failed("interrupted")
            if self._process is None:
                self._start()
        assert self._process is not None
        try:
            self._pipe.send((check, machine))
            if not self._pipe.poll(check.limit_s):
                self._end(kill=True)
                late = failed(f"no answer within {check.limit_s:g} s")
                return replace(late, advice=f"{LATE}: {check.advice}")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            return failed(self._last_words())
        if isinstance(answer, Finding):
            return answer
        self._end(kill=True)  # an exception may have left a broken device behind
        return failed(str(answer))

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._log.truncate(0)
        self._process = context.Process(target=serve, args=(theirs, self._log.name, self._folder))
        self._process.start()
        theirs.close()

    def _end(self, kill: bool = False) -> None:
        """Ends the process; with `kill` at once, together with all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        self._pipe.close()
        if not kill:
            process.join(PATIENCE_S)
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()

    def _last_words(self) -> str:
        """How the process ended, and the last line that it printed."""
        process = self._process
        assert process is not None
        process.join(PATIENCE_S)
        status = process.exitcode or 0
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self._end(kill=True)
        self._log.seek(0)
        printed = [line for line in self._log.read().splitlines() if line.strip()]
        return f"the check's process ended with {how}: {(printed or ['no message'])[-1][:300]}"


def serve(pipe: Connection, log: str, folder: str) -> None:
    """Answers each (check, machine) with a Finding, or with the exception in one line. `folder`
    is for temporary files.
    """
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.setsid()  # so that Ctrl-C reaches the command alone, which ends this process
    # loader processes are to start as in a study; a spawned process would pass its own way on
    set_start_method(None, force=True)  # None: the system's default
    target = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(target, stream.fileno())
    while True:
        try:
            check, machine = pipe.recv()
        except EOFError:
            return
        pipe.send(answer(check, machine))


def answer(check: Check, machine: Machine) -> Finding | str:
    try:
        return check.run(machine)
    except Exception as error:
        return without_user(one_line(error))
