"""A link between two network namespaces that delays frames and loses some of them.

    slow_link.py DELAY_S JITTER_S LOSS PID DEVICE PID DEVICE

It makes the device of each name in the namespace of the process, two TAPs, and passes on what is
sent into one to the other, in order, after DELAY_S and at most JITTER_S more. The kernel's own
netem is not everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
CLONE_NEWNET = 0x40000000
LARGEST = 65536


def device(pid: int, name: str) -> int:
    """The end of a new TAP in the network of a process that a program reads and writes."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"the network of {pid} must be open to this process")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return end


class Direction:
    """Frames on their way from one end to the other."""

    def __init__(self, source: int, target: int, delay_s: float, jitter_s: float, loss: float):
        self.source, self.target, self.loss = source, target, loss
        self.delay_s, self.jitter_s = delay_s, jitter_s
        self.frames: deque[tuple[float, bytes]] = deque()
        self.last = 0.0

    def take(self) -> None:
        """All frames that have been sent; each arrives after those before it."""
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(self.source, LARGEST)
                due = time.monotonic() + self.delay_s + random.random() * self.jitter_s
                self.last = max(self.last, due)
                if random.random() >= self.loss:
                    self.frames.append((self.last, frame))

    def deliver(self) -> None:
        while self.frames and self.frames[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # a device that is down drops the frame
                os.write(self.target, self.frames.popleft()[1])

    def waits_s(self) -> float:
        return max(0.0, self.frames[0][0] - time.monotonic()) if self.frames else 60.0


def main(delay_s: str, jitter_s: str, loss: str, *ends: str) -> None:
    pids, names = map(int, ends[::2]), ends[1::2]
    one, other = (device(pid, name) for pid, name in zip(pids, names, strict=True))
    speed = float(delay_s), float(jitter_s), float(loss)
    directions = {one: Direction(one, other, *speed), other: Direction(other, one, *speed)}
    poll = select.poll()
    for end in directions:
        poll.register(end, select.POLLIN)
    print("ready", flush=True)
    while True:
        wait_s = min(direction.waits_s() for direction in directions.values())
        for end, _ in poll.poll(wait_s * 1000):
            directions[end].take()
        for direction in directions.values():
            direction.deliver()


if __name__ == "__main__":
    main(*sys.argv[1:])
