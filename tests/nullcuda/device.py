"""What the null CUDA device has counted in this process."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple


class Counts(NamedTuple):
    """Since the process started; the order is that of the enumeration in runtime.c."""

    launches: int
    gemms: int
    convs: int
    h2d: int
    d2h: int
    d2d: int
    memsets: int
    syncs: int
    event_syncs: int
    mallocs: int
    pinned: int
    collectives: int
    h2d_bytes: int
    d2h_bytes: int
    graphs: int
    nodes: int
    refused: int

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def ops(self) -> int:
        """What the device is asked to do: kernels, products, convolutions, copies, memsets."""
        return (
            self.launches + self.gemms + self.convs + self.h2d + self.d2h + self.d2d + self.memsets
        )

    @property
    def waits(self) -> int:
        """How often the host waited for the device, or took
        something from it, which is a wait, too.
        """
        return self.syncs + self.event_syncs + self.d2h


def counts() -> Counts:
    values = (ctypes.c_long * len(Counts._fields))()
    _library().nullcuda_read(values)
    return Counts(*values)


def launches_of(text: str) -> int:
    """Launches of the kernels whose mangled names contain a text."""
    asked = _library().nullcuda_launches_of
    asked.restype = ctypes.c_long
    return int(asked(text.encode()))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["LD_PRELOAD"])
