"""What a store says about the trunk of a trial: whether the trial can start from it."""

from __future__ import annotations

from collections.abc import Iterable

from vitscale.plan.config import TrainConfig
from vitscale.plan.trunks import branch_steps
from vitscale.record.described import readable_plans
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.workdir import CHECKPOINT, pinned


def diverged_trunk(config: TrainConfig, store: Store) -> Outcome | None:
    """The outcome of a trial's trunk that diverged before the trial branched off, else None.

    A trunk that diverged later has kept its state for the trial, which goes its own way from there.
    """
    if not config.trunk or not store.is_done(config.trunk):
        return None
    if store.peek(config.trunk).status is not Status.DIVERGED:
        return None
    trunk = store.read(config.trunk)
    return trunk if trunk.rows[-1]["step"] <= config.trunk_step else None


def can_start(config: TrainConfig, store: Store) -> bool:
    """Whether there is a checkpoint, of the trial or of its trunk, to start from."""
    if not config.trunk or store.trial(config.id).names(CHECKPOINT):
        return True
    return bool(pinned(store.trial(config.trunk), config.trunk_step))


def why_not(config: TrainConfig, store: Store) -> str:
    """Why a trial cannot start from its trunk, in one line; empty if it can, or has diverged."""
    if can_start(config, store) or diverged_trunk(config, store) is not None:
        return ""
    trunk = store.outcome(config.trunk, store.peek)
    if trunk.status in (Status.FAILED, Status.MISSING):
        reason = f": {trunk.error}" if trunk.error else ""
        return f"its trunk {config.trunk} is {trunk.status.value}{reason}"
    where = store.trial(config.trunk).address()
    return (
        f"its trunk {config.trunk} must have its checkpoint at step {config.trunk_step}, but got "
        f"none ({where}); remove this folder to train the trunk again"
    )


def pins(configs: Iterable[TrainConfig], store: Store) -> dict[str, set[int]]:
    """Trunk -> steps at which trials of any study of the store start, for trunks of `configs`."""
    trunks = {config.id for config in configs if config.constant_until}
    plans = readable_plans(store).values() if trunks else ()
    return branch_steps((entry for plan in plans for entry in plan["trials"]), trunks)
