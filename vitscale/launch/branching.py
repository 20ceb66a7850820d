"""What a store says about the trunk or parents of a trial: whether the trial can start."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import AT_END, branch_steps, entries
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.trial_info import readable_plans
from vitscale.record.workdir import CHECKPOINT, FINAL, pinned


def diverged_start(config: TrainConfig, store: Store) -> tuple[str, Outcome] | None:
    """A trial's parent that diverged, or its trunk that did so before the trial branched off, with
    its outcome; else None.

    A trunk that diverged later has kept its state for the trial, which goes its own way from there.
    """
    for need in config.needs:
        if store.is_done(need) and store.peek(need).status is Status.DIVERGED:
            outcome = store.read(need)
            if need != config.trunk or outcome.rows[-1]["step"] <= config.trunk_step:
                return need, outcome
    return None


def _missing(config: TrainConfig, store: Store) -> str:
    """The trunk or parent without which a trial cannot start or go on; empty if there is none. A
    trial that has begun needs its teacher alone.
    """
    begun = bool(config.needs) and bool(store.trial(config.id).names(CHECKPOINT))
    for need in config.needs:
        if need == config.trunk:
            is_kept = begun or bool(pinned(store.trial(need), config.trunk_step))
        else:
            parent = store.trial(need)
            done = store.is_done(need)  # then its last checkpoint may hold its weights
            is_kept = bool(parent.names(FINAL) or (done and parent.names(CHECKPOINT)))
            is_kept = is_kept or (begun and need != config.teacher)
        if not is_kept:
            return need
    return ""


def why_not(config: TrainConfig, store: Store) -> str:
    """Why a trial cannot start from its trunk or parents, in one line; empty if it can, or has
    diverged.
    """
    start = _missing(config, store)
    if not start or diverged_start(config, store) is not None:
        return ""
    who = "trunk" if start == config.trunk else "parent"
    outcome = store.outcome(start, store.peek)
    if outcome.status in (Status.FAILED, Status.MISSING):
        reason = f": {outcome.error}" if outcome.error else ""
        return f"its {who} {start} is {outcome.status.value}{reason}"
    what = f"checkpoint at step {config.trunk_step}" if who == "trunk" else "final weights"
    return (
        f"its {who} {start} must have its {what}, but got none ({store.trial(start).address()}); "
        f"remove this folder to train the {who} again"
    )


def pins(
    configs: Collection[TrainConfig], store: Store, parents: Iterable[TrainConfig] = ()
) -> dict[str, set[int]]:
    """Trial -> steps at which trials of any study of the store start, for trials of `configs`; for
    `parents`, which are among them, and for those that others of `configs` start from, AT_END, too.
    """
    starts = {config.id for config in parents} | {
        need for config in configs for need in config.parents
    }
    starts &= {config.id for config in configs}
    ids = {config.id for config in configs if config.constant_until} | starts
    plans = readable_plans(store).values() if ids else ()
    steps = branch_steps((entry for plan in plans for entry in entries(plan)), ids)
    for parent in starts:
        steps.setdefault(parent, set()).add(AT_END)
    return steps
