"""What a store enforces: one winner of a creation, whole files, locks; and its speed.

All through the operations with which studies write to it, in a folder of the store that is removed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection

from vitscale.doctor.check import Finding, Machine, failed, judged, not_applicable
from vitscale.record.bucket import LEASE_S, off
from vitscale.record.cleanup import DOCTOR
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir

RACES, RACERS = 10, 8  # files that several threads try to create at once
REPLACED, SIZE = 50, 2**16  # how often a file of SIZE bytes is replaced while it is read
REPEATS = 20
LARGE = 2**25  # bytes, of a checkpoint
MAX_LATENCY_S = 1.0  # of a small file: a commit writes three


@contextlib.contextmanager
def scratch(machine: Machine) -> Iterator[Workdir]:
    """A folder of the store, removed afterwards, and with it the store if it had not existed."""
    store = Store.at(machine.store).folder.impatient()
    existed, name = store.exists(), f"{DOCTOR}{uuid.uuid4().hex[:8]}"
    try:
        yield store.within(name)
    finally:
        store.discard(name)
        if not existed and not store.names():
            store.discard("")


def conditions(machine: Machine) -> Finding:
    """A bucket refuses to overwrite when asked to: claims and locks rest on it."""
    store = Store.at(machine.store)
    if not store.in_bucket:
        return not_applicable("for buckets; a folder has hard links and locks")
    try:
        store.make()
    except ValueError as error:
        return failed(str(error))
    return judged(True, "the server keeps If-None-Match and If-Match, as a start of a study asks")


def creation(machine: Machine) -> Finding:
    """Exactly one of several processes that create a file succeeds: a trial is committed once."""
    with scratch(machine) as folder, ThreadPoolExecutor(RACERS) as pool:
        folder.write("first", b"")
        winners = []
        for race in range(RACES):
            contents = [f"{race}-{racer}".encode() for racer in range(RACERS)]
            made = list(pool.map(lambda content, n=race: folder.create(f"{n}", content), contents))
            winners.append([c for c, first in zip(contents, made, strict=True) if first])
            if winners[-1] != [folder.read(f"{race}")]:
                return judged(
                    False,
                    f"one creator of a file must win, but {len(winners[-1])} of {RACERS} did, "
                    f"and the file has the content of {folder.read(f'{race}')!r}",
                )
    return judged(True, f"one of {RACERS} creators won, in {RACES} of {RACES} races")


def replacement(machine: Machine) -> Finding:
    """A reader sees the old file or the new one, never a part: a checkpoint is whole or absent."""
    with scratch(machine) as folder, ThreadPoolExecutor(1) as pool:
        folder.write("file", b"a" * SIZE)
        writing = pool.submit(_replace, folder)
        num_reads = 0
        while not writing.done():
            content = folder.read("file")
            if content not in (b"a" * SIZE, b"b" * SIZE):
                return judged(False, f"a reader saw a part of a file ({len(content)} bytes)")
            num_reads += 1
        writing.result()
        folder.rename("file", "renamed")
        names = folder.names()
    return judged(
        names == ["renamed"] and num_reads > 0,
        f"{num_reads} reads during {REPLACED} replacements saw whole files; "
        f"after a rename the folder lists {names}",
    )


def _replace(folder: Workdir) -> None:
    for number in range(REPLACED):
        folder.write("file", (b"a", b"b")[number % 2] * SIZE)


def locks(machine: Machine) -> Finding:
    """A lock excludes other processes, and ends when it is released: one driver per study."""
    with scratch(machine) as folder:
        with folder.hold("lock", "doctor"):
            held = _seen_held(folder)
        released = not _seen_held(folder)
    detail = f"another process finds a lock {'held' if held else 'FREE'} while it is held"
    detail += f", and {'free' if released else 'HELD'} afterwards"
    return judged(held and released, f"{detail} (between nodes: see the check of Ray's nodes)")


def _seen_held(folder: Workdir) -> bool:
    """Whether another process finds the lock held."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_look, args=(folder, theirs))
    process.start()
    theirs.close()
    answer = bool(ours.recv())  # EOFError if the process has died
    process.join()
    return answer


def _look(folder: Workdir, pipe: Connection) -> None:
    pipe.send(folder.is_held("lock"))


def clock(machine: Machine) -> Finding:
    """This machine's clock is as the store's, within the time of a lease."""
    with scratch(machine) as folder:
        ahead_s = folder.clock_ahead_s()
    detail = f"this machine's clock is {off(ahead_s)} the store's (at most {LEASE_S:g} s)"
    return judged(abs(ahead_s) <= LEASE_S, detail, ahead_s=ahead_s)


def speed(machine: Machine) -> Finding:
    """Time of a small durable write and of a read; throughput of a large file."""
    with scratch(machine) as folder:
        small, large = os.urandom(1000), os.urandom(LARGE)
        write_s = _median_s(lambda: folder.write("small", small))
        read_s = _median_s(lambda: folder.read("small"))
        large_s = _median_s(lambda: folder.write("large", large), 3)
        whole = folder.read("large") == large
    rate = LARGE / 2**20 / large_s
    detail = (
        f"a file of 1 kB: {1e3 * write_s:.3g} ms to write durably, {1e3 * read_s:.3g} ms to read; "
        f"{rate:.3g} MiB/s written in one file of {LARGE // 2**20} MiB"
    )
    return judged(
        whole and write_s <= MAX_LATENCY_S, detail, write_s=write_s, read_s=read_s, mib_per_s=rate
    )


def _median_s(action: Callable[[], object], repeats: int = REPEATS) -> float:
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)
