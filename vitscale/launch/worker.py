"""Runs one trial in a worker process.

Knows the store and the trainer, and leaves Ray to its callers.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Collection, Iterator
from typing import Any

from vitscale.launch.branching import diverged_start
from vitscale.launch.faults import not_deterministic, one_line, too_big, verdict
from vitscale.launch.resources import Event, Resources
from vitscale.launch.run_claimed import end_with_start, profile_claimed, train_claimed
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import config_of
from vitscale.record import sources
from vitscale.record.outcome import Status
from vitscale.record.store import Store
from vitscale.record.trial_files import ClaimedByOther
from vitscale.record.workdir import Fenced, Left, Workdir


def train_trial(
    trial_id: str,
    fields: dict[str, Any],
    store: Store,
    slug: str,
    attempt: int,
    resources: Resources,
    pins: Collection[int] = (),
) -> Iterator[Event]:
    """Trains a trial into the store, from its checkpoint if there is one.

    `pins` are the steps at which it keeps its state for trials that start there.

    Yields an Event about every second. An exception that the config causes is recorded and ends in
    an Event. A failure of the machine (see launch.faults) is recorded as a fault, which is no
    result, and raised again so that the trial is retried in another process.
    """
    if store.is_done(trial_id):  # another study trained it in the meantime
        yield Event.ended(trial_id, store.read(trial_id))
        return
    workdir: Workdir | None = None
    # on a cluster, only within a start is a trial that failed so placed on another node
    before = store.fault(trial_id, (slug, attempt) if resources.address else None)
    try:
        sources.fetch(fields, store)
        config = config_of(fields)
        workdir = store.claim(trial_id, fields, slug, attempt)
        with workdir.renewed():
            if isinstance(config, ProfileConfig):
                yield from profile_claimed(config, workdir, store, attempt, resources)
            elif (start := diverged_start(config, store)) is not None:
                yield from end_with_start(config, workdir, store, attempt, *start)
            elif resources.workers_per_trial > 1:
                from vitscale.launch.ray_team import train_on_team

                yield from train_on_team(
                    config, workdir, store, attempt, resources, before, pins, slug
                )
            else:
                yield from train_claimed(config, workdir, store, attempt, resources, pins)
    except (ClaimedByOther, Fenced) as reason:
        yield Event(
            trial_id,
            "elsewhere",
            facts={"error": str(reason), "study": getattr(reason, "study", "")},
        )
    except Left:
        raise  # in a process that ends: the next process continues from there
    except Exception as error:
        line, text = one_line(error), traceback.format_exc()
        action = verdict(error, line, before, resources)
        if action == "unfit":
            line = too_big(config, line, resources)
        if action == "refused":
            line = not_deterministic(config, line)
        # without parts, the config decides whether it fits on its hardware
        if action == "config" or (action == "unfit" and not config.is_divisible):
            store.fail(workdir or store.trial(trial_id), line, text)
            yield Event(trial_id, Status.FAILED, facts={"error": line})
            return
        if workdir is not None:
            with contextlib.suppress(OSError, Fenced):  # the disk may be the cause
                store.lose(workdir, line, text)
        if action == "again":
            raise
        yield Event(trial_id, "crowded" if action == "alone" else "lost", facts={"error": line})
