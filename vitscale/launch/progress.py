"""The progress of a running study, computed from the events of its trials."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from vitscale.launch.resources import Event, News
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.outcome import DONE, ENDINGS, Row, Status
from vitscale.record.store import Store
from vitscale.record.workdir import step_saved


@dataclass
class Progress:
    """Counts and states of a study's trials, updated by events."""

    study: Study
    statuses: dict[str, Status | News]  # by trial id
    started: float = field(default_factory=time.monotonic)
    rows: dict[str, Row] = field(default_factory=dict)  # latest row of each running trial
    holders: dict[str, str] = field(default_factory=dict)  # trial id -> study that trains it
    store: Store | None = None  # where checkpoints are, from which trials resume

    def __post_init__(self) -> None:
        self.trials = {trial.config.id: trial for trial in self.study.trained}
        self.todo = {i for i, status in self.statuses.items() if status not in DONE}
        # trial id -> epochs completed before the trial began to run in this start
        self.resumed: dict[str, int] = {}

    def update(self, event: Event) -> None:
        self.statuses[event.trial_id] = event.status
        self.holders[event.trial_id] = event.facts.get("study", "")
        if event.status == Status.RUNNING and event.trial_id not in self.resumed:
            self.resumed[event.trial_id] = epochs_behind(self.trials[event.trial_id], self.store)
        if event.rows:
            self.rows[event.trial_id] = event.rows[-1]

    def counts(self) -> Counter[str]:
        return Counter(self.statuses.values())

    def running(self) -> list[tuple[Trial, Row | None]]:
        return [
            (self.trials[i], self.rows.get(i))
            for i, s in self.statuses.items()
            if s == Status.RUNNING
        ]

    def waiting(self) -> list[tuple[Trial, str]]:
        """Trials that another study is training, and the name of that study."""
        return [
            (self.trials[i], self.holders.get(i) or "another start")
            for i, s in self.statuses.items()
            if s == "elsewhere"
        ]

    def epoch(self, trial: Trial) -> int:
        """Epochs that a running trial has completed, including those before this start."""
        row = self.rows.get(trial.config.id)
        return max(int(row["epoch"]) if row else 0, self.resumed.get(trial.config.id, 0))

    def resumes(self, trial: Trial) -> bool:
        """Whether a trial was resumed from a checkpoint and has not completed a new epoch yet."""
        row, before = self.rows.get(trial.config.id), self.resumed.get(trial.config.id, 0)
        return before > 0 and (row is None or row["epoch"] <= before)

    def eta_s(self) -> float | None:
        """Estimated seconds left, or None if less than half a trial is done.

        The rate is that of this start, counted in whole trials.
        """
        before = {i: self.resumed.get(i, 0) / self.trials[i].config.last_row for i in self.todo}
        done = sum(self._fraction(i) - before[i] for i in self.todo)
        if done < 0.5:
            return None
        return (
            (time.monotonic() - self.started)
            / done
            * (len(self.todo) - sum(before.values()) - done)
        )

    def _fraction(self, trial_id: str) -> float:
        """The completed fraction of a trial, in [0, 1]."""
        status = self.statuses[trial_id]
        if status == Status.RUNNING:
            return self.epoch(self.trials[trial_id]) / self.trials[trial_id].config.last_row
        if status == "lost" or (status in ENDINGS and status != Status.MISSING):
            return 1.0
        return self.resumed.get(trial_id, 0) / self.trials[trial_id].config.last_row

    def line(self) -> str:
        """The progress in one line: "12/68 done, 2 running, 1 diverged, 0 failed, ETA 3:05"."""
        return ", ".join(self.parts())

    def parts(self) -> list[str]:
        """The parts of that line; a display may break the line between them."""
        n = self.counts()
        done, eta = n["finished"] + n["diverged"] + n["stopped"], self.eta_s()
        begun = self.rows or set(n) - {Status.MISSING, *DONE}
        running = f"{n['running']} running" if begun or not n["missing"] else "starting workers"
        parts = [
            f"{done}/{len(self.statuses)} done",
            running,
            f"{n['diverged']} diverged",
            f"{n['failed']} failed",
        ]
        return [*parts, *self._waiting(n), f"ETA {_clock(eta)}"]

    def _waiting(self, n: Counter[str]) -> list[str]:
        """Parts about trials that machines failed, and about trials held by other studies."""
        retried = n["again"] + n["crowded"]
        holders = [holder for _, holder in self.waiting()]
        parts = [f"{retried} tried again"] if retried else []
        parts += [f"{n['lost']} lost to machines"] if n["lost"] else []
        studies = ", ".join(sorted(set(holders)))
        return parts + ([f"{len(holders)} waiting for {studies}"] if holders else [])


def epochs_behind(trial: Trial, store: Store | None) -> int:
    """Epochs completed at the newest checkpoint of a trial, from its file name, or by its trunk."""
    if store is None:
        return 0
    try:
        step = step_saved(store.trial(trial.config.id)) or trial.config.trunk_step
    except OSError:
        return 0
    return step // trial.config.steps_per_epoch


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
