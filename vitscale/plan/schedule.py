"""Estimates when a plan is done on a number of devices.

This is the makespan of independent trials of which a fixed number runs at a time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from vitscale.plan.spelling import shown

MAX_DEVICES, MIN_FRACTION = 10**6, 1e-3


class Makespan(NamedTuple):
    """Hours from the first start to the last end: of two schedules, and a lower bound for all."""

    lower_bound_h: float
    longest_first_h: float  # at most 4/3 of the optimum (Graham 1969)
    plan_order_h: float  # in the order in which a study starts its trials


def makespan(hours: Sequence[float], slots: int) -> Makespan:
    """The makespan of trials with these durations, with `slots` at a time.

    A free slot takes the next trial at once; no trial is split or waits for another, and starting
    one takes no time. Raises ValueError without a slot.
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
    """The number of trials that run at once; a fraction of a device packs several on each.

    Raises ValueError if none fits.
    """
    check_devices_per_trial(devices_per_trial)
    if not 1 <= devices <= MAX_DEVICES:
        law = "devices >= 1" if devices < 1 else f"devices <= {MAX_DEVICES}"
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
    """Raises ValueError unless a trial has whole devices, or a fraction of one of at least 1e-3."""
    if 0 < devices_per_trial < MIN_FRACTION:
        law = f"devices_per_trial >= {MIN_FRACTION:g}"
        raise ValueError(f"{law} must hold, but got (devices_per_trial={devices_per_trial:g})")
    if not (0 < devices_per_trial <= 1 or (devices_per_trial > 1 and devices_per_trial % 1 == 0)):
        raise ValueError(
            "devices_per_trial must be a whole number or a fraction of 1, "
            f"but got (devices_per_trial={devices_per_trial:g})"
        )


def _lower_bound(longest_first: Sequence[float], slots: int) -> float:
    """A lower bound of the makespan, in hours.

    No schedule beats the sum of all hours over the slots. And of the k * slots + 1 longest trials,
    some k + 1 must run in the same slot.
    """
    before = [0.0, *itertools.accumulate(longest_first)]
    rounds = range(math.ceil(len(longest_first) / slots))
    loads = (before[k * slots + 1] - before[k * (slots - 1)] for k in rounds)
    return max([math.fsum(longest_first) / slots, *loads])


def _list_schedule(hours: Sequence[float], slots: int) -> float:
    """The end of the last trial if each, in this order, goes to the first free slot."""
    ends = [0.0] * max(1, min(slots, len(hours)))  # slots beyond the number of trials stay empty
    for duration in hours:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
