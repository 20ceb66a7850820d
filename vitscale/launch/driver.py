"""One start of a study, from its plan to its report.

Trains the missing trials, mirrors them to MLflow, draws the report and prints what was achieved.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from vitscale.launch.branching import pins, why_not
from vitscale.launch.command import command
from vitscale.launch.costs import with_costs
from vitscale.launch.earlier_plan import (
    changed_parts,
    is_encoded_as,
    new_throughout,
    once_planned,
    plan_before,
    renamed,
)
from vitscale.launch.faults import NO_START
from vitscale.launch.preflight import (
    Data,
    check_fits,
    check_loaders,
    check_precision,
    check_ray_folder,
    clock_apart,
)
from vitscale.launch.process import (
    EXIT_DONE,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_NOT_SHOWN,
    Output,
    handle_signals,
)
from vitscale.launch.progress import Progress
from vitscale.launch.resources import Event, News, Resources, check_alone
from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import followers, next_wave
from vitscale.plan.parts import parts_of
from vitscale.plan.plan_warnings import plan_warnings
from vitscale.plan.search import Search
from vitscale.plan.study import Study, encoded, to_json
from vitscale.record import sources
from vitscale.record.look_ledger import declare
from vitscale.record.outcome import DONE, ENDINGS, Outcome, Status
from vitscale.record.provenance import CAPTURED
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN, Overtaken
from vitscale.record.trial_files import FAILURE, FAULT, SET_ASIDE
from vitscale.record.trial_links import update_links
from vitscale.record.workdir import CLAIM, Damaged, Workdir

if TYPE_CHECKING:
    from rich.console import Console

    from vitscale.launch.optuna_search import Rounds
    from vitscale.record.look_ledger import FinalSize
    from vitscale.record.mlflow.view import View

MAX_FAULT_WARNINGS = 20
# A trial that stands still for its images for longer gets a line: share of the time until its first
# row, and seconds
MAX_WAIT_SHARE, MIN_WAIT_S = 0.1, 1.0
Display = Callable[[Progress, "Console"], AbstractContextManager[object]]
RAY_LOG, REPORT_LOG = "ray.log", "report-failure.log"


def run(
    study: Study | Search,
    store: Store,
    resources: Resources,
    display: Display | None = None,
    retrain: bool = False,
    final: FinalSize | None = None,
    goes_on: bool = False,
    hint: str = "",
) -> int:
    """Trains the missing trials of a study, or continues a search; returns the exit status.

    `display` shows the progress while trials run. `retrain`: also trains those again that another
    commit trained, and keeps what that gave beside them; a search refuses it, since its later
    points follow from the outcomes of earlier ones. `final`: the size that the study will grow to,
    over which its looks spend the error. `goes_on`: the process does so after this start, and is
    not ended by it. `hint`: a line for the user, printed once nothing can be refused any more.

    Raises ValueError or OSError, before anything is trained, for mistakes that can be detected
    beforehand.
    """
    if retrain and isinstance(study, Search):
        raise ValueError(
            "the outcomes from which a search chose its points must be kept, but got "
            "(--retrain-other-code)"
        )
    stop = threading.Event()
    output = Output(sys.stdout, stop)
    handle_signals(stop, goes_on)
    from vitscale.analysis.kinds import check
    from vitscale.record.mlflow.place import experiment_prefix, tracking_uri

    sample = study.stand_in() if isinstance(study, Search) else study
    check(sample)
    check_precision(sample, resources)
    if resources.address:
        from vitscale.launch.cluster import check_cluster

        check_cluster(resources.address)
    else:
        check_fits(resources)
        check_ray_folder()
        check_loaders(resources)
    tracking_uri(store)
    experiment_prefix()  # a wrong one is refused now
    sources.check_trusted((trial.config for trial in sample.trained), (), store)
    data = Data(resources.data_root)
    data.look(sample)
    _try_parts(sample, store, resources)
    store.make()  # not before: a refusal creates nothing
    store.check_permitted(study.slug)
    _announce_new(store, output)
    if hint:
        print(hint, file=cast(TextIO, output))
    try:
        with store.drive(study.slug) as attempt:
            check_alone(sample, store)
            if final:
                declare(store, study.slug, final)
            if isinstance(study, Study):
                driver = Driver(study, store, resources, attempt, stop, data, None, display, output)
            else:
                rounds = _begin(study, store)
                begun = with_costs(rounds.study())
                driver = Driver(
                    begun, store, resources, attempt, stop, data, rounds, display, output
                )
            status = driver.run(retrain)
            if driver.is_head_lost and not goes_on:  # in an orderly exit, Ray would wait for it
                with contextlib.suppress(OSError):
                    sys.stderr.flush()
                os._exit(status)
            return status
    except Overtaken as taken:  # report and MLflow are written by the other start
        print(f"interrupted: {taken}", file=cast(TextIO, output))
        output.finish()
        return EXIT_INTERRUPTED


def _try_parts(study: Study, store: Store, resources: Resources) -> None:
    """Raises ValueError for a part that cannot be trained with, or does not resume by the bit, if
    there is something to train; also for a batch in parts of which one must see the whole.
    """
    with_parts = {
        (*parts_of(trial.config).items(), trial.config.own): trial.config
        for trial in study.trained
        if parts_of(trial.config) and not store.is_done(trial.config.id)
    }
    if with_parts:
        from vitscale.train.try_parts import try_out

        for config in with_parts.values():
            whole = try_out(config)
            if whole and (resources.workers_per_trial > 1 or resources.micro_batch):
                raise ValueError(
                    "a model or an augmentation that draws for the images that it gets must get "
                    f"whole batches, but got ({', '.join(parts_of(config).values())}, "
                    f"workers_per_trial={resources.workers_per_trial}, "
                    f"micro_batch={resources.micro_batch})"
                )


def _several_kinds(study: Study, resources: Resources, kinds: Sequence[str]) -> str:
    """A line where trainings may run on several kinds of GPUs; else empty."""
    chosen = resources.accelerator_type or not resources.gpus_per_trial or study.measures
    if chosen or len(kinds) < 2:
        return ""
    return (
        f"the GPUs of the cluster are of several kinds ({', '.join(kinds)}), so arms may run on "
        "different ones; --accelerator-type keeps the study on one"
    )


def waits_for_data(event: Event, has_readers: bool) -> str:
    """A line if a trial waited long for its images before its first row; else empty."""
    row = event.rows[0] if event.rows else {}
    waits_s, spent_s = row.get("wait_data_s", 0.0), row.get("train_s", 0.0)
    if waits_s < MIN_WAIT_S or waits_s <= MAX_WAIT_SHARE * spent_s:
        return ""
    hint = "--num-loader-workers auto with --cpus-per-trial N gives it "
    return (
        f"{event.trial_id} waited for images for {waits_s:.3g} s of its first {spent_s:.3g}; "
        f"{hint}{'more readers' if has_readers else 'readers'}, and `vitscale prepare` spares the "
        "decoding of files"
    )


def _announce_new(store: Store, output: Output) -> None:
    """Says that a store is new: the most common mistake is to start a study in another folder."""
    if not store.slugs() and not store.trial_ids():
        print(
            f"new store {store.root}: nothing is done in it (another is named by --store or "
            "VITSCALE_STORE)",
            file=cast(TextIO, output),
        )


def _begin(search: Search, store: Store) -> Rounds:
    """Restores the rounds of a search, and proposes the first round of a new one."""
    from vitscale.launch.optuna_search import Rounds

    rounds = Rounds(search, store)
    if not any(rounds.points.values()):
        rounds.grow({})
    return rounds


class Driver:
    """The state shared by the parts of one start."""

    def __init__(
        self,
        study: Study,
        store: Store,
        resources: Resources,
        attempt: int,
        stop: threading.Event,
        data: Data,
        rounds: Rounds | None = None,
        display: Display | None = None,
        output: Output | None = None,
    ) -> None:
        from rich.console import Console

        from vitscale.launch.colors import arm_colors
        from vitscale.record.mlflow.mirror import Mirror
        from vitscale.record.mlflow.place import tracking_uri

        self.study, self.store, self.resources, self.attempt = study, store, resources, attempt
        self.output = output or Output(sys.stdout, stop)
        self.console = Console(
            file=cast(TextIO, self.output),
            highlight=False,
            soft_wrap=True,
            markup=False,
            emoji=False,
            force_jupyter=False,  # lines are text, in a notebook too
        )  # this stdout, not a redirected one
        self.stop = stop  # set by the first signal
        self.data = data
        self.display = display or (lambda progress, console: nullcontext())
        self.rounds = rounds  # of a search, whose study grows round by round
        self.uri = tracking_uri(store)
        self.mirror = Mirror(
            study, self.uri, store, arm_colors, self._warn_not_shown, self._still_drives
        )
        self.is_head_lost = False  # Ray's: this process must not call Ray any more
        self.trains = False  # whether this start has something to train
        self.trials_shown = False  # whether MLflow has all rows of all trials
        self.folder = store.study(study.slug)
        self.uncaptured: set[str] = set()  # reasons that were printed
        self.num_faults = 0  # of machines, in this start
        self.waits_for_data = False  # whether a trial does, which was said
        self.num_restarts: Counter[str] = Counter()  # as in tune.Run
        # trial id -> why it is missing, where the store could not record it
        self.reasons: dict[str, str] = {}
        self.orphaned: set[str] = set()  # trials that had no trunk or parent to start from
        self.parents = {config.id for config in study.parents}

    def run(self, retrain: bool = False) -> int:
        """Trains, then draws the report, whatever ended the training; returns the exit status."""
        from vitscale.record.table import read_trials

        with self.store.planning():
            outcomes = self._read_done()
            self.data.compare(self.study, outcomes)
            note_of_code = self._treat_other_code(outcomes, retrain)
            self._grow(outcomes)
            sources.keep((trial.config for trial in self.study.trained), self.store)
            self._write_plan()
            self.store.check_planning()
        todo = self._to_do(outcomes)
        self.store.check_trials_permitted(config.id for config in todo)
        so_far = f" so far of {self.rounds.search.num_trials}" if self.rounds else ""
        num = sum(config.id in self.parents for config in todo)
        first = f", after {num} of {len(self.parents)} parents" if num else ""
        self.console.print(
            f"{self.study.slug}: {len(self.study.trials)} trials{so_far}, {len(outcomes)} done, "
            f"{len(todo) - num} to do{first} (store {self.store.root}, attempt {self.attempt})"
        )
        if self.left_out and (num := len({*self.left_out} & {*self.store.trial_ids()})):
            self.console.print(
                f"{num} trial{'s' * (num > 1)} of an earlier plan left out of the report and its "
                "pages; the store keeps them"
            )
        differs = () if outcomes else (self.difference,)
        for line in filter(None, (*differs, note_of_code, *self.changed)):
            self.console.print(line)
        warnings = plan_warnings(self.study)
        if todo:
            ahead_s = self.store.clock_ahead_s(self.study.slug)
            warnings.append(clock_apart("of this machine", ahead_s, self.store.in_bucket))
        for warning in filter(None, warnings):
            self.console.print(f"warning: {warning}")
        stopped_by = ""
        self.trains = bool(todo)
        with self.mirror:
            try:
                if todo and not self.stop.is_set():
                    self._show_renamed(outcomes)
                    self._train(outcomes)
            except SystemExit:  # SIGTERM while ray.init had its own handler in place
                self.stop.set()
            except ValueError:  # a mistake of the user, found before the first step
                raise
            # the cluster is lost, or Ray failed: completed trials are safe and worth a report
            except Exception as error:
                stopped_by = f"{type(error).__name__}: {error}".splitlines()[0]
                from vitscale.launch.cluster import HeadLost

                self.is_head_lost = isinstance(error, HeadLost)
            try:
                self.store.check_drives(self.study.slug)
                read = read_trials(self.study, self.store, outcomes)
                outcomes.clear()  # their rows leave memory once they are in a table
                status = self._conclude(self._with_reasons(read), stopped_by)
            except Overtaken as taken:  # report and MLflow are written by the other start
                self.console.print(f"interrupted: {taken}")
                status = EXIT_INTERRUPTED
            except OSError as error:  # the store does not answer, or permits nothing any more
                why = f"stopped by {stopped_by}; " if stopped_by else ""
                self.console.print(f"{why}the start cannot end as usual, since {error}")
                self.console.print(
                    "nothing is lost: the same command resumes, and draws the report"
                )
                status = EXIT_INTERRUPTED if self.stop.is_set() else EXIT_INCOMPLETE
        self.output.finish()
        return status

    def _still_drives(self) -> bool:
        return self.store.still_drives(self.study.slug)

    def _warn_not_shown(self, error: str) -> None:
        """Says at the first error of MLflow, and not after hours, that a server shows nothing."""
        from vitscale.record.mlflow.place import without_user

        if self.trains and not self.stop.is_set():
            self.console.print(
                f"warning: mlflow {without_user(self.uri)} shows nothing yet ({error}); the "
                "training goes on, and what it records is sent once the server accepts it"
            )

    def _show_renamed(self, outcomes: Mapping[str, Outcome]) -> None:
        """Lets MLflow show done trials under the arms that they have in this plan."""
        for trial_id in self.renamed & outcomes.keys():
            self.mirror.put(trial_id, outcomes[trial_id])

    def _with_reasons(self, read: dict[str, Outcome]) -> dict[str, Outcome]:
        """Adds the reasons for missing trials that only this start knows."""
        for trial_id, reason in self.reasons.items():
            if read.get(trial_id) == Outcome(Status.MISSING):
                read[trial_id] = read[trial_id].because(reason)
        return read

    def _read_done(self) -> dict[str, Outcome]:
        """The outcomes of the completed trials.

        Unreadable rows are moved aside, so that the trial is restored from its checkpoint.
        """
        from vitscale.record.index import Index
        from vitscale.record.table import check_reported, read_done, stopped

        outcomes: dict[str, Outcome] = {}
        ids = [trial.config.id for trial in self.study.trials]
        index = Index(self.store, self.study.slug, ids, self.store.states(ids))
        for trial_id in ids:
            if trial_id in index.done:
                try:
                    outcomes[trial_id] = read_done(trial_id, self.study, index)
                except Damaged as damage:
                    self._set_aside(trial_id, damage)
        index.save()
        outcomes |= stopped(self.study, self.store)
        check_reported(self.study, outcomes, self.store)
        return outcomes

    def _set_aside(self, trial_id: str, damage: Damaged) -> None:
        self.store.check_drives(self.study.slug)
        aside = self.store.set_aside(trial_id)
        self.console.print(f"warning: {damage}; moved to {aside}, the trial is restored")

    def _is_done(self, trial_id: str) -> bool:
        """Whether a parent is done; if its rows are unreadable, they are moved aside, too."""
        try:
            return self.store.is_done(trial_id) and bool(self.store.read(trial_id).rows)
        except Damaged as damage:
            self._set_aside(trial_id, damage)
            return False

    def _treat_other_code(self, outcomes: dict[str, Outcome], retrain: bool) -> str:
        """A line about done trials that other code than this trained; empty if there are none.

        With `retrain`, they are moved aside, with all their files, and taken out of `outcomes`.
        """
        from vitscale.record.provenance import commits_of, counted, describe_commit, provenance

        own = provenance()["commit"]
        others = {i: commit for i, commit in commits_of(outcomes).items() if commit != own}
        if not others:
            return ""
        line = (
            f"{len(others)} of {len(outcomes)} done trials were trained by other code than this "
            f"({describe_commit(own)}): {counted(others.values())}"
        )
        if not retrain:
            return f"{line}; they are kept (--retrain-other-code trains them again)"
        stamp = time.strftime("%Y%m%dT%H%M%S")
        for trial_id in others:
            if self.stop.is_set():  # in a bucket, a trial takes a second
                break
            self.store.check_drives(self.study.slug)
            self.store.set_trial_aside(trial_id, stamp)
            del outcomes[trial_id]
        where = self.store.trials.address(f"*{SET_ASIDE}{stamp}")
        return f"{line}; moved to {where}, they are trained again"

    def _write_plan(self) -> None:
        """Writes plan.json before anything is trained, with the ids that only earlier plans had.

        The links follow it. Raises Overtaken.
        """
        planned = {trial.config.id for trial in self.study.trained}
        plan: dict[str, Any] = {}

        def make() -> bytes | None:
            before = plan_before(self.store, self.study.slug)
            self.renamed = renamed(before, self.study)
            self.changed = changed_parts(before, self.study)
            self.difference = new_throughout(before, self.study)
            self.left_out = [i for i in once_planned(before) if i not in planned]
            plan.update(
                command=command().text,
                script=command().script,
                **to_json(self.study),
                earlier=self.left_out,
            )
            if self.store.in_bucket:  # what a start that was taken over saw must be replaced
                plan["start"] = self.attempt
            # to write 100,000 trials takes a second
            return None if is_encoded_as(before, plan) else encoded(plan)

        self.store.write_driving(self.study.slug, PLAN, make)
        update_links(self.store, self.study.slug, plan["trials"])

    def _grow(self, outcomes: Mapping[str, Outcome]) -> bool:
        """Asks a search for its next round; returns whether there is one."""
        from vitscale.record.table import read_trials

        if self.rounds is None or self.stop.is_set():
            return False
        if not self.rounds.grow(read_trials(self.study, self.store, outcomes)):
            return False
        self.study = with_costs(self.rounds.study())
        self.mirror.study = self.study
        return True

    def _train(self, outcomes: Mapping[str, Outcome]) -> None:
        """Trains until every trial has an outcome and, in a search, no round is left."""
        from vitscale.launch.cluster import cluster
        from vitscale.launch.nodes import (
            await_slots,
            check_nodes,
            kinds_of_gpus,
            look_at_hardware,
            share_of_cores,
        )

        events: queue.Queue[Event] = queue.Queue()
        where = (
            f"joining Ray at {self.resources.address}" if self.resources.address else "starting Ray"
        )
        self.console.print(f"{where}, log {self.folder.address(RAY_LOG)}")
        with cluster(self.resources, self._log):
            slots = await_slots(self.resources, self.stop, self.console.print)
            if self.stop.is_set():
                return
            if self.resources.address:
                for line in check_nodes(self.store, self.study, self.resources):
                    self.console.print(f"warning: {line}")
            if line := _several_kinds(self.study, self.resources, kinds_of_gpus(self.resources)):
                self.console.print(f"warning: {line}")
            each = ""
            if self.resources.cores_by_share and self.data.is_on_disk:
                cores = share_of_cores(self.resources)
                self.resources = replace(self.resources, cpus_per_trial=cores)
                each = f", each with {cores:g} cores"
            for line in look_at_hardware(self.study, self.resources, self.data):
                self.console.print(f"warning: {line}")
            self.console.print(
                f"training {slots} at a time{each}; Ctrl-C stops, and the same command resumes"
            )
            threading.Thread(
                target=self._consume, args=(events,), name="events", daemon=True
            ).start()
            self._train_planned(outcomes, events)
            while self._grow(outcomes):
                with self.store.planning():
                    self._write_plan()
                    done = self._read_done()
                    is_sure = self.store.still_plans()
                if not is_sure:  # trials may have been deleted; this process is told to end, too
                    return
                self._train_planned(done, events)

    def _train_planned(self, outcomes: Mapping[str, Outcome], events: queue.Queue[Event]) -> None:
        """Runs Ray Tune on the missing trials.

        Trials that ran out of memory beside others are then run with a device to themselves. Trials
        held by another study, or waiting for nodes that have left, are tried again until they are
        done.
        """
        from vitscale.launch.nodes import missing_nodes
        from vitscale.launch.tune import Run

        todo = self._to_do(outcomes)
        pinned = pins(todo, self.store, self.study.parents)
        waiting, missing = {config.id for config in todo}, Outcome(Status.MISSING)
        statuses: dict[str, Status | News] = {
            trial.config.id: outcomes.get(
                trial.config.id,
                missing if trial.config.id in waiting else Outcome(Status.FINISHED),
            ).status
            for trial in self.study.trained
        }
        self.progress = Progress(self.study, statuses, store=self.store)
        with self.display(self.progress, self.console):
            while todo and not self.stop.is_set():
                left: set[str] = set()
                wave = next_wave(todo)  # trunks and parents before what starts from them
                claimed = self.store.trials.states(CLAIM, [config.id for config in wave])
                free = [
                    config
                    for config in wave
                    if not (config.id in claimed and self._is_held(config.id))
                    and not self._lacks_start(config)
                ]
                later = followers(free, todo)
                for status, where in (("", self.resources), ("crowded", self.resources.alone())):
                    configs = [
                        config
                        for config in (*free, *later)
                        if not status or statuses[config.id] == status
                    ]
                    try:
                        if configs and not self.stop.is_set():
                            if lack := missing_nodes(where):
                                self.console.print(f"waiting for nodes: {lack}; Ctrl-C stops")
                            left |= Run(
                                configs,
                                self.store,
                                self.study.slug,
                                self.attempt,
                                where,
                                events,
                                self.stop,
                                self._log,
                                self.rounds.should_stop if self.rounds else None,
                                pinned,
                                self.num_restarts,
                            ).train()
                    finally:
                        events.join()
                begun = [*wave, *(c for c in later if statuses[c.id] != Status.MISSING)]
                held = {config.id for config in begun if statuses[config.id] == "elsewhere"} | left
                ended = {config.id for config in begun} - held
                todo = [config for config in todo if config.id not in ended]
                self.stop.wait(2 if held else 0)

    def _log(self) -> AbstractContextManager[TextIO]:
        """The file that receives the output of Ray and Tune."""
        return self.folder.append(RAY_LOG)

    def _is_held(self, trial_id: str) -> bool:
        """Whether a running study holds the claim on a trial of ours; if so, shows it.

        A claim that its worker no longer renews is taken away.
        """
        holder = self.store.holder(trial_id)
        if not holder or holder == self.study.slug or not self.store.driver_is_alive(holder):
            return False
        if self.store.trial(trial_id).expire():
            return False
        self.progress.update(Event(trial_id, "elsewhere", facts={"study": holder}))
        return True

    def _to_do(self, outcomes: Mapping[str, Outcome]) -> list[TrainConfig]:
        """The trainings without an outcome; of parents, those of trials without one."""
        todo = [trial.config for trial in self.study.trials if trial.config.id not in outcomes]
        needed = {need for config in todo for need in config.needs}
        parents: list[TrainConfig] = []
        for config in reversed(self.study.parents):  # one may have a parent of its own
            if config.id in needed and not self._is_done(config.id):
                parents.insert(0, config)
                needed.update(config.needs)
        return parents + todo

    def _lacks_start(self, config: TrainConfig) -> bool:
        """Whether a trial cannot start from its trunk or parent; if so, records and prints the
        reason.
        """
        if not (reason := why_not(config, self.store)):
            return False
        self._orphan(Event(config.id, "lost", facts={"error": reason}))
        return True

    def _orphan(self, event: Event) -> None:
        reason = event.facts["error"]
        self.reasons[event.trial_id] = reason
        self.orphaned.add(event.trial_id)
        self.console.print(f"warning: {event.trial_id} is missing: {reason}")
        self._record_lost(event)

    def _consume(self, events: queue.Queue[Event]) -> None:
        """Passes all events to the display and to MLflow, until the process ends."""
        while True:
            event = events.get()
            try:
                self._dispatch(event, self.progress)
            # an event may be lost, but not the training, which waits until all are processed
            except Exception as error:
                with contextlib.suppress(Exception):
                    self.console.print(f"warning: {type(error).__name__}: {error}")
            finally:
                events.task_done()

    def _dispatch(self, event: Event, progress: Any) -> None:
        """Shows an event and passes it to MLflow.

        There, a trial that a machine failed has no outcome.
        """
        progress.update(event)
        if not self.waits_for_data and event.status != "elsewhere":
            line = waits_for_data(event, bool(self.resources.num_loader_workers))
            if line:
                self.waits_for_data = True
                self.console.print(f"warning: {line}")
        if event.status == "lost" and event.facts["error"].startswith(NO_START):
            self._orphan(event)
        elif event.status in ("again", "crowded", "lost"):
            self._warn_fault(event)
            if event.status == "lost":
                self._record_lost(event)
        if (how := event.facts.get(CAPTURED, "yes")) != "yes" and how not in self.uncaptured:
            self.uncaptured.add(how)
            self.console.print(f"warning: {event.trial_id} trained without CUDA graphs: {how}")
        if event.trial_id in self.parents:  # in no table, and not in MLflow
            return
        if event.status in DONE and not self.store.is_done(event.trial_id):
            self._warn_unseen(event)
        elif isinstance(event.status, Status) or event.status == "lost":
            self.mirror.put(event.trial_id, event.outcome)

    def _warn_unseen(self, event: Event) -> None:
        """Reports a trial that a worker completed in another store: here it is missing."""
        machine = event.facts.get("machine") or "a node"
        reason = (
            f"its rows, of a worker on {machine}, are not in the store {self.store.root}, which "
            "all nodes must share"
        )
        self.reasons[event.trial_id] = reason
        self.console.print(f"warning: {event.trial_id} is {event.status}, but {reason}")
        self.mirror.put(event.trial_id, Outcome(Status.RUNNING, event.rows))

    def _warn_fault(self, event: Event) -> None:
        """Prints a warning for each of the first machine failures.

        Without them, a study that only retries would seem to train.
        """
        self.num_faults += 1
        where = " on another node, once one has place" * ("elsewhere" in event.facts)
        actions = {
            "again": f"tried again{where}, {event.facts.get('tries')}",
            "crowded": "tried again with a device to itself",
        }
        if self.num_faults <= MAX_FAULT_WARNINGS:
            action = actions.get(event.status, "not tried again by this start")
            self.console.print(
                f"warning: {event.facts.get('node') or 'a machine'} failed {event.trial_id} "
                f"({action}): {event.facts['error']}"
            )
        elif self.num_faults == MAX_FAULT_WARNINGS + 1:
            self.console.print(
                f"warning: machines fail more trials; see {self.folder.address(RAY_LOG)} and the "
                "summary at the end"
            )

    def _record_lost(self, event: Event) -> None:
        """Records a fault for a trial whose workers died too often to record one themselves, or
        that has no trunk or parent to start from.

        On a full disk this fails as well; then the reason is kept for this start only.
        """
        if self.store.fault(event.trial_id) or self.store.holder(event.trial_id) not in (
            "",
            self.study.slug,
        ):
            return
        if not self._still_drives():  # then the other start trains it
            return
        try:
            self.store.lose(
                self.store.trial(event.trial_id), event.facts["error"], event.facts["error"]
            )
        except OSError as error:
            self.reasons[event.trial_id] = event.facts["error"]
            self.console.print(f"warning: {event.facts['error']}; {error}")

    def _conclude(self, read: dict[str, Outcome], stopped_by: str) -> int:
        """Draws the report, updates MLflow, and prints a summary; returns the exit status."""
        from vitscale.record.mlflow.place import without_user

        statuses = [outcome.status for outcome in read.values()]
        if not self.trains:  # else the report does not wait for a slow server
            self.mirror.finish(lambda view: self._show_trials(view, read))
        report, lines, summary = self._draw(read)
        self.store.check_drives(self.study.slug)  # it may have taken long
        pages, problem = self._show(read, summary)
        shown = [status for status in ENDINGS if status is not Status.STOPPED or status in statuses]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in shown)
        self.console.print(f"\n{self.study.slug}: {counts} of {len(statuses)}")
        for line in lines:  # sentences wrap between words, paths are never broken
            self.console.print(
                line, soft_wrap=not line.startswith(" ") or not self.console.is_terminal
            )
        if problem:
            self.console.print(
                f"mlflow  {without_user(self.uri)} is not up to date ({problem}); "
                f"`vitscale sync{self._option()}` does it later"
            )
        else:
            hint = (
                ""
                if self.uri.startswith("http")
                else f"  (start it with `vitscale ui{self._option()}`)"
            )
            self.console.print(f"mlflow  {pages[0]}{hint}")
        self._print_reasons(read, Status.FAILED, FAILURE)
        self._print_reasons(read, Status.MISSING, FAULT)
        if stopped_by:
            self.console.print(
                f"stopped by {stopped_by}\n        log {self.folder.address(RAY_LOG)}; the same "
                f"command resumes: {command().text}"
            )
        if self.stop.is_set() and Status.MISSING in statuses:
            self.console.print(f"interrupted: the same command resumes: {command().text}")
            return EXIT_INTERRUPTED
        if Status.MISSING in statuses or Status.FAILED in statuses or report is None:
            return EXIT_INCOMPLETE
        return EXIT_NOT_SHOWN if problem else EXIT_DONE

    def _option(self) -> str:
        """The --store option to print in suggested commands; empty for the default store."""
        root = self.store.root
        return "" if root == Path("runs").absolute() else f" --store {shlex.quote(str(root))}"

    def _draw(self, read: dict[str, Outcome]) -> tuple[Workdir | None, list[str], tuple[Any, ...]]:
        """Draws the report: (its folder, lines to print, arguments of View.summarize).

        The folder is None if drawing fails, which loses no result.
        """
        try:
            from vitscale.analysis.report.draw import draw
            from vitscale.analysis.report.report import PAGE

            # rows are still needed where MLflow has not all of them
            read = read if self.trials_shown else dict(read)
            report, headline, summary = draw(self.study, self.store, read)
        # a full disk, or an error in a plot: the trials are safe, and MLflow is still updated
        except Exception as error:
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            lines = [f"report  not drawn ({line}); `--report` draws it from what is done"]
            with contextlib.suppress(OSError):  # on a full disk, the line must do
                self.folder.write(REPORT_LOG, traceback.format_exc().encode())
                lines.append(f"        log {self.folder.address(REPORT_LOG)}")
            return None, lines, ({}, None)
        self.folder.remove(REPORT_LOG)  # of an earlier start
        figures = [f"figure  {report.address(name)}.png" for name in self.study.figures]
        page = f"report  {report.address(PAGE)}"
        lines = [*(f"  {line}" for line in headline), *figures, page]
        return report, lines, (summary, report, headline)

    def _show_trials(self, view: View, read: Mapping[str, Outcome]) -> None:
        from vitscale.record.mlflow.view import synchronize

        synchronize(view, read)
        self.trials_shown = True

    def _show(self, read: Mapping[str, Outcome], summary: tuple[Any, ...]) -> tuple[list[str], str]:
        """Updates MLflow: ([page address], "") or ([], why it is not up to date)."""
        pages: list[str] = []

        def complete(view: View) -> None:
            if not self.trials_shown:
                self._show_trials(view, read)
            view.runs.interrupt()
            view.summarize(*summary)
            view.end(read)
            pages.append(view.page())

        return pages, self.mirror.finish(complete)

    def _print_reasons(self, read: Mapping[str, Outcome], status: Status, log: str) -> None:
        """Prints the reason and the log of each trial with `status`, for the first ten."""
        outcomes = [(trial, read[trial.config.id]) for trial in self.study.trials]
        ended = [
            (t.config.id, t.arm.name, o.error)
            for t, o in outcomes
            if o.status is status and o.error
        ]
        for trial_id, arm, error in ended[:10]:
            self.console.print(f"{status}  {arm} {trial_id}: {error}")
            if self.store.trial(trial_id).exists(log):
                self.console.print(f"        log {self.store.trial(trial_id).address(log)}")
        if len(ended) > 10:
            self.console.print(f"{status}  and {len(ended) - 10} more")
        if status is Status.MISSING and {trial_id for trial_id, *_ in ended} - self.orphaned:
            self.console.print(
                "        no results, since machines failed them: the same command tries them again"
            )
