"""Figures as files, several at once."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection

from matplotlib.figure import Figure

from vitscale.analysis.report.save import as_files

Files = dict[str, bytes]  # ending -> content
BACKENDS = {"png": "agg", "svg": "svg", "pdf": "pdf"}


class Drawings:
    """Draws figures as files: each in a process beside this one, at most `num` at once; 0: here.

    The processes are forks, which take neither imports nor copies of figures. So this process must
    have no other thread of Python, which could hold a lock at that instant, and no Ray. Threads of
    numpy and pyarrow are idle by then, and drawing does not need them.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.running: deque[_Drawing] = deque()

    def start(self, figure: Figure, endings: Collection[str]) -> Callable[[], Files]:
        """Begins to draw a figure, which must stay as it is; returns what waits for its files."""
        drawing = _Drawing(figure, endings)
        if self.num:
            if len(self.running) == self.num:
                self.running.popleft().receive()
            self.running.append(drawing)
            drawing.fork()
        return drawing.files


class _Drawing:
    def __init__(self, figure: Figure, endings: Collection[str]) -> None:
        self.figure, self.endings = figure, endings
        self.made: Files | None = None
        self.pipe: Connection | None = None

    def fork(self) -> None:
        for ending in BACKENDS.keys() & set(self.endings):  # here, and not in every process
            importlib.import_module(f"matplotlib.backends.backend_{BACKENDS[ending]}")
        forked = multiprocessing.get_context("fork")
        self.pipe, sender = forked.Pipe(duplex=False)
        gc.freeze()  # else a collection in the new process would copy all objects that it visits
        with warnings.catch_warnings():  # Python 3.12 warns of any thread
            warnings.simplefilter("ignore", DeprecationWarning)
            forked.Process(target=self._send, args=(sender,), daemon=True).start()
        gc.unfreeze()
        sender.close()

    def receive(self) -> None:
        """Waits for what the process sends: nothing if it failed, or was killed."""
        if self.pipe:
            with contextlib.suppress(EOFError), self.pipe as pipe:
                self.made = pipe.recv()
            self.pipe = None

    def files(self) -> Files:
        """The files; drawn here if no process has sent them, which also raises its error."""
        self.receive()
        return as_files(self.figure, self.endings) if self.made is None else self.made

    def _send(self, sender: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this one ends with its parent
        with contextlib.suppress(Exception):
            sender.send(as_files(self.figure, self.endings))
