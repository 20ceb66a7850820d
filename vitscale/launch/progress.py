"""What a user sees while a study runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitscale.launch.resources import Event
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import Study, Trial
from vitscale.record.store import Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_EVERY_S = 15.0
COLUMNS = {  # of a study of trainings, and of profiles
    False: ("arm", "lr", "wd", "epoch", "error"),
    True: ("arm", "batch", "pixels", "timed run", "images/s"),
}


@dataclass
class Progress:
    """Counts of a study's trials, fed by events."""

    study: Study
    statuses: dict[str, str]  # trial id -> finished, diverged, failed, running, elsewhere, missing
    started: float = field(default_factory=time.monotonic)
    rows: dict[str, Row] = field(default_factory=dict)  # newest row of each running trial

    def __post_init__(self) -> None:
        self.trials = {trial.config.id: trial for trial in self.study.trials}
        self.todo = {i for i, status in self.statuses.items() if status not in ("finished", "diverged")}

    def update(self, event: Event) -> None:
        self.statuses[event.trial_id] = event.status
        if event.rows:
            self.rows[event.trial_id] = event.rows[-1]

    def counts(self) -> Counter[str]:
        return Counter(self.statuses.values())

    def running(self) -> list[tuple[Trial, Row | None]]:
        return [(self.trials[i], self.rows.get(i)) for i, s in self.statuses.items() if s == "running"]

    def eta_s(self) -> float | None:
        """Seconds left at the rate of this start so far, counted in whole trials; None before there is a rate."""
        done = sum(self._share(i) for i in self.todo)
        if done < 0.5:
            return None
        return (time.monotonic() - self.started) / done * (len(self.todo) - done)

    def _share(self, trial_id: str) -> float:
        """How much of a trial is behind us, from 0 to 1."""
        status = self.statuses[trial_id]
        if status == "running" and trial_id in self.rows:
            return self.rows[trial_id]["epoch"] / num_rows(self.trials[trial_id])
        return 1.0 if status in ("finished", "diverged", "failed") else 0.0

    def line(self) -> str:
        """One line: "12/68 done, 2 running, 1 diverged, 0 failed, ETA 3:05"."""
        n = self.counts()
        done, eta = n["finished"] + n["diverged"], self.eta_s()
        parts = [f"{done}/{len(self.statuses)} done", f"{n['running']} running", f"{n['diverged']} diverged"]
        return ", ".join([*parts, f"{n['failed']} failed", f"ETA {_clock(eta)}"])


def num_rows(trial: Trial) -> int:
    """How far "epoch" of a trial's rows will count: epochs, or the timed runs of a profile."""
    return trial.config.timed_runs if isinstance(trial.config, ProfileConfig) else trial.config.epochs


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table(progress: Progress) -> RenderableType:
    """Counts, a bar, and a line for each running trial."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    n = progress.counts()
    done = n["finished"] + n["diverged"]
    running = Table(*COLUMNS[progress.study.measures], box=None, padding=(0, 2, 0, 0), header_style="dim")
    for trial, row in progress.running()[:12]:
        running.add_row(*_cells(progress.study, trial, row))
    if n["running"] > 12:
        running.add_row(f"and {n['running'] - 12} more")
    head = Text.assemble((progress.study.slug, "bold"), "  ", progress.line())
    return Group(head, ProgressBar(total=len(progress.statuses), completed=done, width=60), running)


def _cells(study: Study, trial: Trial, row: Row | None) -> list[str]:
    """What is shown of a running trial, under COLUMNS."""
    c, value = trial.config, row.get(study.metric) if row else None
    done = f"{int(row['epoch']) if row else 0}/{num_rows(trial)}"
    if study.measures:
        return [trial.arm, str(c.batch_size), str(c.resolution), done, "" if value is None else f"{value:.1f}"]
    return [trial.arm, f"{c.lr:.2e}", f"{c.wd:.2e}", done, "" if value is None else f"{value:.1f}%"]


class Display:
    """Shows a Progress until it is closed; a context manager."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress, self.console = progress, console
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="display", daemon=True)

    def __enter__(self) -> Display:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _run(self) -> None:
        if not self.console.is_terminal:
            while not self.stop.wait(LINE_EVERY_S):
                self.console.print(f"{self.progress.study.slug}: {self.progress.line()}", highlight=False)
            return
        from rich.live import Live

        # Redirection would fight with that of Ray's output; what this process prints goes through the console.
        live = Live(console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False)
        with live:
            while not self.stop.wait(0.25):
                live.update(table(self.progress))
