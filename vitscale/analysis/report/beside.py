"""Work that is done in processes beside this one: figures, the largest file, a look at a store."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from typing import BinaryIO, Generic, TypeVar

from matplotlib.figure import Figure

from vitscale.analysis.report.save import as_files
from vitscale.plan.cores import num_cores

T = TypeVar("T")
Files = dict[str, bytes]  # ending -> content
Writing = Callable[[BinaryIO], object]  # writes to a file
BACKENDS = {"png": "agg", "svg": "svg", "pdf": "pdf"}


def num_beside() -> int:
    """Processes that work beside this one: as many as cores, where a fork is safe."""
    num = num_cores() if sys.platform == "linux" else 1
    return num if num > 1 and threading.active_count() == 1 else 0


class Beside:
    """Does pieces of work, each in a process beside this one, at most `num` at once; 0: here.

    The processes are forks, which take neither imports nor copies of figures. So this process must
    have no other thread of Python, which could hold a lock at that instant, and no Ray. Threads of
    numpy and pyarrow are idle by then.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.running: deque[Begun] = deque()

    def start(self, work: Callable[[], T]) -> Begun[T]:
        """Begins with a piece, whose inputs must stay as they are."""
        begun = Begun(work)
        if self.num:
            if len(self.running) == self.num:
                self.running.popleft().receive()
            self.running.append(begun)
            begun.fork()
        return begun

    def draw(self, figure: Figure, endings: Collection[str]) -> Begun[Files]:
        """Begins to draw a figure."""
        for ending in BACKENDS.keys() & set(endings):  # here, and not in every process
            importlib.import_module(f"matplotlib.backends.backend_{BACKENDS[ending]}")
        return self.start(lambda: as_files(figure, endings))

    def write(self, writing: Writing) -> Writing:
        """Begins to write a file; returns what writes the same to another one."""
        spool: BinaryIO | None = None
        with contextlib.suppress(OSError):  # as of a disk that is full
            spool = tempfile.TemporaryFile() if self.num else None  # noqa: SIM115
        if spool is None:
            return writing

        def to_spool() -> bool:
            writing(spool)
            spool.flush()
            return True

        begun = self.start(to_spool)

        def write(file: BinaryIO) -> None:
            with spool:
                if begun.receive():
                    spool.seek(0)
                    shutil.copyfileobj(spool, file, 2**20)
                else:
                    writing(file)

        return write


class Begun(Generic[T]):
    """A piece of work that was begun."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.made: T | None = None
        self.pipe: Connection | None = None

    def __call__(self) -> T:
        """Its result; made here if no process has sent it, which also raises its error."""
        made = self.receive()
        return self.work() if made is None else made

    def fork(self) -> None:
        forked = multiprocessing.get_context("fork")
        self.pipe, sender = forked.Pipe(duplex=False)
        gc.freeze()  # else a collection in the new process would copy all objects that it visits
        with warnings.catch_warnings():  # Python 3.12 warns of any thread
            warnings.simplefilter("ignore", DeprecationWarning)
            forked.Process(target=self._send, args=(sender,), daemon=True).start()
        gc.unfreeze()
        sender.close()

    def receive(self) -> T | None:
        """Waits for what the process sends: None if it failed, or was killed, or there is none."""
        if self.pipe:
            with contextlib.suppress(EOFError), self.pipe as pipe:
                self.made = pipe.recv()
            self.pipe = None
        return self.made

    def _send(self, sender: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this one ends with its parent
        with contextlib.suppress(Exception):
            sender.send(self.work())
