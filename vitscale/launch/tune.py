"""Schedules trials on Ray Tune, which keeps no state between starts.

Each start makes a fresh Tuner over the missing trials. Which trials are done, and where the others
stopped, is in the store. Worker processes are reused between trials, so torch is imported once per
worker and not once per trial.
"""

from __future__ import annotations

import vitscale.launch.ray_settings  # isort: skip  # noqa: F401

import contextlib
import logging
import queue
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from vitscale.launch.cluster import Log, quiet, watched
from vitscale.launch.placement import Places, Teams, last_line
from vitscale.launch.resources import Event, News, Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import DONE, Status
from vitscale.record.store import Store

# It would warn, after each run, that Tune has no metrics of the trials: they are in the store.
logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
# retries of a trial after machine failures; what it trains meanwhile resets the count
MAX_RETRIES = 3
FIRST_PAUSE_S = 1.0  # before the first retry; four times as long before each further one
# trials lost in a row, while none makes progress, after which each trial is retried only once
LOST_BEFORE_ONE_RETRY = 2
# trials lost in a row, while none makes progress, after which the start ends: something is broken
MAX_LOST = 10


@dataclass(eq=False)
class Run(tune.Callback):
    """One run of Tune over trials: what it trains, and its state, which Tune's callbacks update.

    A trial that a machine fails is retried from its checkpoint in another process, after a pause,
    on a cluster perhaps on another node (see `Places.note_failure`). It is lost after MAX_RETRIES
    retries without a new row and without a checkpoint of a later step.
    """

    configs: Sequence[TrainConfig]
    store: Store
    slug: str
    attempt: int
    resources: Resources
    events: queue.Queue[Event]  # receives the events of the trials
    stop: threading.Event  # ends the run when it is set
    log: Log  # receives the output of Ray and Tune
    # of a search: whether to stop the trial of an event, whose status becomes "stopped"
    should_stop: Callable[[Event], bool] | None = None
    # trial -> the steps at which it keeps its state for trials that start there
    pins: Mapping[str, Collection[int]] = field(default_factory=dict)
    # trial -> how often runs have left it to another one, since it made progress; outlives a run
    num_restarts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        ids = {config.id for config in self.configs}
        # trial -> the trials of this run that must be done before it starts
        self.needs = {config.id: ids.intersection(config.needs) for config in self.configs}
        self.started: set[str] = set()  # trials that have reported since their last start
        self.stopped: set[str] = set()  # trials that the search has stopped: they send no events
        self.done: set[str] = set()  # trials that have a result
        self.left: set[str] = set()  # trials for which another run is needed
        # trial -> most rows, and latest step at which it started
        self.progress: dict[str, tuple[int, int]] = {}
        self.losses: list[str] = []  # errors of the trials lost since any trial made progress
        # Tune's trials:
        self.unstarted: set[str] = set()  # those that failed before a process took them
        self.errored: set[str] = set()  # those whose end by an error Tune has reported
        self.nonce = self.store.nonce(self.slug)
        self.places = Places(self.resources)
        in_teams = self.resources.workers_per_trial > 1
        self.teams = Teams(self.resources, len(ids), self.nonce) if in_teams else None

    def train(self) -> set[str]:
        """Trains the trials, once, on a Ray that is initialized (see `cluster`).

        Returns those for which another run is needed: trials that Tune gave up without a try, and,
        if each waiting trial avoids all nodes that are left, all that have not ended. Returns early
        when `stop` is set, within about a second; teams save first, for which they have GRACE_S.

        Raises OSError if MAX_LOST trials are lost in a row while no other trial makes progress, and
        HeadLost if the head of the cluster is gone, or the only node of a local one.
        """
        scratch = tempfile.TemporaryDirectory(prefix="vitscale-tune-", ignore_cleanup_errors=True)
        with scratch as folder, quiet(self.log), contextlib.suppress(_Stopped):
            watched(self._tuner(folder).fit, self.resources)
        if self.teams:
            self.teams.close()
        if len(self.losses) >= MAX_LOST:
            raise OSError(
                f"{len(self.losses)} trials were lost one after another, the last one to: "
                f"{self.losses[-1]}"
            )
        return self.left

    def _tuner(self, folder: str) -> tune.Tuner:
        resources = self.resources
        amounts: dict[str, Any] = {"cpu": resources.cpus_per_trial, "gpu": resources.gpus_per_trial}
        amounts |= resources.placement()
        # The workers of a team hold its cores and GPUs. One byte of memory represents its leader:
        # without any request, Tune would ask for a core.
        trainable = tune.with_resources(train, {"memory": 1} if self.teams else amounts)
        trainable.__mixins__ = (_Leader,) if self.teams else ()
        # trainables of the same name would overwrite each other on a shared cluster
        trainable.__name__ = f"vitscale_{self.slug}"
        trials = [(c.id, c.non_default(), sorted(self.pins.get(c.id, ()))) for c in self.configs]
        return tune.Tuner(
            trainable,
            param_space={
                "trial": tune.grid_search(trials),
                "pause_s": 0.0,
                "store": self.store,
                "slug": self.slug,
                "attempt": self.attempt,
                "nonce": self.nonce,
                "resources": resources,
            },
            tune_config=tune.TuneConfig(
                # the leader of a team that a search stops waits for its workers
                reuse_actors=not self.teams,
                search_alg=_Queue(self),
                scheduler=_Scheduler(self),
            ),
            run_config=tune.RunConfig(
                name=f"attempt-{self.attempt}",
                storage_path=folder,
                verbose=0,
                callbacks=[self],
                failure_config=tune.FailureConfig(max_failures=MAX_RETRIES),
                log_to_file=False,
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its callbacks, its searcher and its scheduler, to restore them in
        another process, which never happens. What it calls are the originals.
        """
        return {}

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        if len(self.losses) >= MAX_LOST:
            raise _Stopped
        if self.stop.is_set() and self.teams and not self.teams.deadline_s:
            # teams that wait for nodes, or start, have nothing to save
            self.teams.stop([trial for trial in trials if id_of(trial) in self.started])
            for trial in trials:
                self._set_retries(trial)
        if self.stop.is_set() and (not self.teams or self.teams.have_saved()):
            raise _Stopped
        if self.teams:
            self.teams.look(trials)
        if self.places.is_stuck(trials):
            ended = {id_of(trial) for trial in trials if trial.is_finished()}
            self.left |= self.needs.keys() - ended
            raise _Stopped

    def _set_retries(self, trial: Trial, makes_progress: bool = False) -> None:
        """Sets how often Tune retries a trial from now on, beyond its failures so far."""
        if makes_progress:
            num = MAX_RETRIES
        elif self.stop.is_set():
            num = 0
        elif self.places.gives_more(trial):  # tries on nodes that are now avoided do not count
            num = MAX_RETRIES
        elif len(self.losses) >= LOST_BEFORE_ONE_RETRY:
            num = 0  # the retry that begins now is the last one
        else:
            return
        trial.max_failures = trial.num_failures + num

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        self.places.note_start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict, **_: Any
    ) -> None:
        if not isinstance(event := result.get("event"), Event):
            return
        trial_id = event.trial_id
        self.started.add(trial_id)
        if event.status in (*DONE, Status.FAILED):
            self.losses.clear()
        if event.status in DONE:
            self.done.add(trial_id)
        num_rows, step = self.progress.get(trial_id, (0, event.from_step))
        progress = max(num_rows, len(event.rows)), max(step, event.from_step)
        self.progress[trial_id] = progress
        if progress > (num_rows, step):
            self.losses.clear()
            self._set_retries(trial, makes_progress=True)
            self.num_restarts.pop(trial_id, None)
            with contextlib.suppress(ray.exceptions.RayError):
                self.places.note_progress(trial)
        if trial_id not in self.stopped:
            self.events.put(event)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        if self.stop.is_set():
            return
        self.started.discard(id_of(trial))
        num = MAX_RETRIES - (trial.max_failures - trial.num_failures)
        trial.config["pause_s"] = FIRST_PAUSE_S * 4.0 ** (num - 1) if num > 0 else 0.0
        self._tell("again", trial, num)
        self._set_retries(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        if self.stop.is_set():
            return
        self.errored.add(trial.trial_id)
        if trial.trial_id in self.unstarted and self._leaves(trial):
            return
        self.losses.append(last_line(trial))
        self._tell("lost", trial)

    def on_experiment_end(self, trials: list[Trial], **_: Any) -> None:
        """Tune gives a trial up in silence whose worker does not get free of the one before."""
        for trial in trials:
            is_silent = trial.status == Trial.ERROR and trial.trial_id not in self.errored
            if is_silent and not self.stop.is_set() and not self._leaves(trial):
                self._tell("lost", trial)

    def _leaves(self, trial: Trial) -> bool:
        """Leaves a trial to another run of the driver; False if that was done too often."""
        trial_id = id_of(trial)
        if self.num_restarts[trial_id] >= MAX_RETRIES:
            return False
        self.num_restarts[trial_id] += 1
        self.left.add(trial_id)
        self._tell("again", trial, self.num_restarts[trial_id])
        return True

    def _tell(self, status: News, trial: Trial, num_tries: int | None = None) -> None:
        """Tells the driver of the last failure of a trial."""
        tries = {} if num_tries is None else {"tries": f"{num_tries} of {MAX_RETRIES}"}
        self.events.put(Event(id_of(trial), status, facts=self.places.facts(trial) | tries))


def train(params: dict[str, Any]) -> None:
    """Trains a trial on a worker, in Tune's trial for it.

    Raises OSError, before it writes anything, if the worker's store is not the driver's.
    """
    from vitscale.launch.worker import train_trial

    store, slug = params["store"], params["slug"]
    trial_id, fields, pins = params["trial"]
    time.sleep(params["pause_s"])
    store.check_shared(slug, params["nonce"])
    for event in train_trial(
        trial_id, fields, store, slug, params["attempt"], params["resources"], pins
    ):
        tune.report({"event": event})


class _Leader:
    """A mixin of Tune's trainable: SIGTERM does not end the leader of a team at once."""

    def setup(self, config: dict[str, Any]) -> None:  # in the main thread
        from vitscale.launch.ray_team import hold_sigterm

        hold_sigterm()
        super().setup(config)  # type: ignore[misc]


class _Stopped(BaseException):
    """Raised to leave Tune's loop: a BaseException, so that Tune does not catch it."""


def id_of(trial: Trial) -> str:
    """The id of the trial that one of Tune's trials trains."""
    return trial.config["trial"][0]


class _Scheduler(FIFOScheduler):
    """First in, first out. A search may stop a running trial, and retries avoid nodes."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        event, should_stop = result.get("event"), self.run.should_stop
        if should_stop is not None and isinstance(event, Event) and should_stop(event):
            self.run.stopped.add(event.trial_id)
            self.run.events.put(replace(event, status=Status.STOPPED))
            return FIFOScheduler.STOP
        return FIFOScheduler.CONTINUE

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Tune calls this before it queues the trial again, if it does. Only here may what the
        trial requests change. If the process died between the trial before and this one, Tune
        counts two failures, the second one of a pending trial, and gives it up.
        """
        if trial.status == Trial.PENDING:
            self.run.unstarted.add(trial.trial_id)
        with contextlib.suppress(ray.exceptions.RayError):
            self.run.places.note_failure(trial)


class _Queue(BasicVariantGenerator):
    """Starts a trial once what it needs is done; only as many teams at once as fit."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.held: list[Trial] = []  # trials that wait for others
        self.ids: dict[str, str] = {}  # Tune's id -> id

    def next_trial(self) -> Trial | None:
        teams = self.run.teams  # 0: no limit but the resources
        most = teams.num_fitting if teams else self.run.resources.max_concurrent
        self.max_concurrent = most + len(self.held) if most else 0
        num_running = len(self._live_trials) - len(self.held)
        for place, trial in enumerate(self.held):
            if self._may_start(trial) and (not most or num_running < most):
                return self.held.pop(place)
        while (trial := super().next_trial()) is not None:
            self.ids[trial.trial_id] = id_of(trial)
            if self._may_start(trial):
                break
            self.held.append(trial)
            self.max_concurrent += bool(most)
        return trial

    def is_finished(self) -> bool:
        """Not while a trial waits for one that runs. If its parent has failed, it never starts."""
        if not super().is_finished():
            return False
        running = {self.ids[i] for i in self._live_trials} - {id_of(trial) for trial in self.held}
        return not any(self._may_start(trial, running) for trial in self.held)

    def _may_start(self, trial: Trial, running: Collection[str] = ()) -> bool:
        return self.run.needs[id_of(trial)] <= self.run.done.union(running)
