"""When a plan is done on so many devices: the makespan of
independent trials that run a fixed number at a time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from vitscale.plan.config import shown

MOST_DEVICES, LEAST_SHARE = 10**6, 1e-3


class Makespan(NamedTuple):
    """Hours from the first start to the last end: two that
    can be had, and one that no schedule is below.
    """

    lower_bound_h: float
    longest_first_h: float  # at most 4/3 of the best there is (Graham 1969)
    plan_order_h: float  # how a study starts its trials


def makespan(hours: Sequence[float], slots: int) -> Makespan:
    """Makespan of trials of these durations with `slots` at a time. Raises ValueError without a
    slot.

    A free slot takes the next trial at once: no trial is split or waits for another, and starting
    one takes no time.
    """
    if slots < 1:
        raise ValueError(f"slots >= 1 must hold, but got (slots={slots})")
    longest_first = sorted(hours, reverse=True)
    return Makespan(
        _lower_bound(longest_first, slots),
        _list_schedule(longest_first, slots),
        _list_schedule(hours, slots),
    )


def num_slots(devices: int, devices_per_trial: float) -> int:
    """Trials that run at once; a share of a device packs several on each.

    Raises ValueError where none fits.
    """
    check_devices_per_trial(devices_per_trial)
    if not 1 <= devices <= MOST_DEVICES:
        law = "devices >= 1" if devices < 1 else f"devices <= {MOST_DEVICES}"
        raise ValueError(f"{law} must hold, but got (devices={shown(devices)})")
    if devices_per_trial > devices:
        raise ValueError(
            "devices_per_trial <= devices must hold, but got "
            f"(devices_per_trial={devices_per_trial:g}, devices={devices})"
        )
    if devices_per_trial < 1:
        return devices * int(1 / devices_per_trial + 1e-9)
    return devices // int(devices_per_trial)


def check_devices_per_trial(devices_per_trial: float) -> None:
    """Raises ValueError unless a trial has whole devices, or a share of one that is no speck."""
    if 0 < devices_per_trial < LEAST_SHARE:
        law = f"devices_per_trial >= {LEAST_SHARE:g}"
        raise ValueError(f"{law} must hold, but got (devices_per_trial={devices_per_trial:g})")
    if not (0 < devices_per_trial <= 1 or (devices_per_trial > 1 and devices_per_trial % 1 == 0)):
        raise ValueError(
            "devices_per_trial must be a whole number or a share of 1, "
            f"but got (devices_per_trial={devices_per_trial:g})"
        )


def _lower_bound(longest_first: Sequence[float], slots: int) -> float:
    """An even share of all hours, or more: of the k * slots +
    1 longest trials, some k + 1 share a slot.
    """
    before = [0.0, *itertools.accumulate(longest_first)]
    rounds = range(math.ceil(len(longest_first) / slots))
    shares = (before[k * slots + 1] - before[k * (slots - 1)] for k in rounds)
    return max([math.fsum(longest_first) / slots, *shares])


def _list_schedule(hours: Sequence[float], slots: int) -> float:
    """The end of the last trial if each, in this order, goes to the slot that is free first."""
    ends = [0.0] * max(1, min(slots, len(hours)))  # more slots than trials stay empty
    for duration in hours:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
