"""What a store says about the trunk or parent of a trial: whether the trial can start from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import AT_END, branch_steps, entries
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.trial_info import readable_plans
from vitscale.record.workdir import CHECKPOINT, FINAL, pinned


def diverged_start(config: TrainConfig, store: Store) -> Outcome | None:
    """The outcome of a trial's parent that diverged, or of its trunk that did so before the trial
    branched off, else None.

    A trunk that diverged later has kept its state for the trial, which goes its own way from there.
    """
    for need in config.needs:
        if store.is_done(need) and store.peek(need).status is Status.DIVERGED:
            outcome = store.read(need)
            if need != config.trunk or outcome.rows[-1]["step"] <= config.trunk_step:
                return outcome
    return None


def can_start(config: TrainConfig, store: Store) -> bool:
    """Whether there is a checkpoint, of the trial or of its trunk or parent, to start from."""
    if not config.needs or store.trial(config.id).names(CHECKPOINT):
        return True
    if config.init_from:
        parent = store.trial(config.init_from)
        done = store.is_done(config.init_from)  # then its last checkpoint may hold its weights
        return bool(parent.names(FINAL) or (done and parent.names(CHECKPOINT)))
    return bool(pinned(store.trial(config.trunk), config.trunk_step))


def why_not(config: TrainConfig, store: Store) -> str:
    """Why a trial cannot start from its trunk or parent, in one line; empty if it can, or has
    diverged.
    """
    if can_start(config, store) or diverged_start(config, store) is not None:
        return ""
    who, start = ("trunk", config.trunk) if config.trunk else ("parent", config.init_from)
    outcome = store.outcome(start, store.peek)
    if outcome.status in (Status.FAILED, Status.MISSING):
        reason = f": {outcome.error}" if outcome.error else ""
        return f"its {who} {start} is {outcome.status.value}{reason}"
    what = f"checkpoint at step {config.trunk_step}" if config.trunk else "final weights"
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
    starts = {config.id for config in parents} | {config.init_from for config in configs}
    starts &= {config.id for config in configs}
    ids = {config.id for config in configs if config.constant_until} | starts
    plans = readable_plans(store).values() if ids else ()
    steps = branch_steps((entry for plan in plans for entry in entries(plan)), ids)
    for parent in starts:
        steps.setdefault(parent, set()).add(AT_END)
    return steps
