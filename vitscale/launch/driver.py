"""One start of a study: trains what is missing, shows it in
MLflow, draws the report, says what there is.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from vitscale.launch.preflight import Data
from vitscale.launch.progress import Progress
from vitscale.launch.resources import Event, Resources, check_alone
from vitscale.plan.doubts import doubts
from vitscale.plan.search import Search
from vitscale.plan.study import Study, to_json
from vitscale.record.outcome import DONE, ENDINGS, Outcome, Status
from vitscale.record.store import FAILURE, FAULT, PLAN, TRIAL_ID, Store
from vitscale.record.workdir import Damaged, Workdir

if TYPE_CHECKING:
    from rich.console import Console

    from vitscale.launch.optuna_search import Rounds

MOST_FAULTS_SAID = 20
Display = Callable[[Progress, "Console"], AbstractContextManager[object]]
RAY_LOG, PAGE = "ray.log", "report.html"
EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED, EXIT_NOT_SHOWN, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def run(
    study: Study | Search, store: Store, resources: Resources, display: Display | None = None
) -> int:
    """Trains what is missing of a study, or goes on with a search; returns the exit status.

    `display` shows the progress while trials run. Raises ValueError or OSError, before anything is
    trained, for what can be refused.
    """
    stop = threading.Event()
    listen(stop)
    from vitscale.analysis.kinds import check

    sample = study.stand_in() if isinstance(study, Search) else study
    check(sample)
    data = Data(resources.data_root)
    data.look(sample)
    if not store.slugs():  # the commonest slip: the command was given in another folder
        print(
            f"new store {store.root}: nothing is done in it (another is named by --store or "
            "VITSCALE_STORE)"
        )
    with store.drive(study.slug) as attempt:
        check_alone(sample, store)
        if isinstance(study, Study):
            return Driver(study, store, resources, attempt, stop, data, display=display).run()
        rounds = _begin(study, store)
        return Driver(rounds.study(), store, resources, attempt, stop, data, rounds, display).run()


def _begin(search: Search, store: Store) -> Rounds:
    """The rounds of a search as far as they got, or the first."""
    from vitscale.launch.optuna_search import Rounds

    rounds = Rounds(search, store)
    if not any(rounds.points.values()):
        rounds.grow({})
    return rounds


def listen(stop: threading.Event) -> None:
    """Makes Ctrl-C, SIGTERM, with which schedulers preempt, and SIGHUP of a closed terminal ask for
    a stop.

    A second one insists, but for SIGHUP, which comes twice by itself; `nohup` stays in force.
    Nothing is raised the first time: an exception out of the middle of Ray may be swallowed there.
    """

    def ask(name: int, _: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if name == signal.SIGHUP:
            _let_go_of_terminal()

    _handle(ask)


def listen_early() -> None:
    """Makes the same signals end the process in one line before it has begun anything."""

    def leave(name: int, _: object) -> NoReturn:
        if name == signal.SIGHUP:
            _let_go_of_terminal()
        print("\ninterrupted before anything was begun", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)

    _handle(leave)


def _handle(handler: Callable[[int, Any], None]) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if name != signal.SIGHUP or signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, handler)


def _let_go_of_terminal() -> None:
    """What is written to a terminal that has gone would raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and stream.isatty():
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Driver:
    """Holds what the parts of one start share."""

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
    ) -> None:
        from rich.console import Console

        from vitscale.launch.colors import arm_colors
        from vitscale.record.mlflow_place import tracking_uri
        from vitscale.record.mlflow_view import Mirror

        self.study, self.store, self.resources, self.attempt = study, store, resources, attempt
        self.console = Console(
            file=sys.stdout, highlight=False, soft_wrap=True, markup=False, emoji=False
        )  # this stdout, not a redirected one
        self.stop = stop  # set by Ctrl-C
        self.data = data
        self.display = display or (lambda progress, console: nullcontext())
        self.rounds = rounds  # of a search, whose study grows
        self.uri = tracking_uri(store)
        self.mirror = Mirror(study, self.uri, store, arm_colors)
        self.folder = store.study(study.slug)
        self.num_faults = 0  # of machines, in this start
        # why trials are missing, where the store could not be told
        self.reasons: dict[str, str] = {}

    def run(self) -> int:
        """Trains, then concludes, whatever stopped the training."""
        from vitscale.record.mlflow_place import note_of_old_database
        from vitscale.record.table import read_trials

        known = self._read_done()
        self.data.compare(self.study, known)
        self._grow(known)
        todo = [trial for trial in self.study.trials if trial.config.id not in known]
        self._write_plan()
        so_far = f" so far of {self.rounds.search.num_trials}" if self.rounds else ""
        self.console.print(
            f"{self.study.slug}: {len(self.study.trials)} trials{so_far}, {len(known)} done, "
            f"{len(todo)} to do (store {self.store.root}, attempt {self.attempt})"
        )
        if num := sum(self.store.trial(trial_id).exists() for trial_id in self.left_out):
            self.console.print(
                f"{num} trial{'s' * (num > 1)} of an earlier plan left out of the report and its "
                "pages; the store keeps them"
            )
        if note := note_of_old_database(self.store):
            self.console.print(note)
        for doubt in doubts(self.study):
            self.console.print(f"warning: {doubt}")
        stopped_by, deaf = "", False
        with self.mirror:
            try:
                if todo and not self.stop.is_set():
                    self._train(known)
            except SystemExit:  # SIGTERM while ray.init had its own handler in place
                self.stop.set()
            except ValueError:  # refused before the first step
                raise
            # the cluster is lost, or Ray broke: what is trained is safe and worth a report
            except Exception as error:
                stopped_by, deaf = (
                    f"{type(error).__name__}: {error}".splitlines()[0],
                    _is_head_lost(error),
                )
            status = self._conclude(
                self._with_reasons(read_trials(self.study, self.store, known)), stopped_by
            )
        if deaf:  # at an orderly exit Ray would wait for its head
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return status

    def _with_reasons(self, read: dict[str, Outcome]) -> dict[str, Outcome]:
        """Adds why trials are missing, where this start knows and the store does not."""
        for trial_id, reason in self.reasons.items():
            if read.get(trial_id) == Outcome(Status.MISSING):
                read[trial_id] = read[trial_id].because(reason)
        return read

    def _read_done(self) -> dict[str, Outcome]:
        """The outcomes of the done trials.

        Unreadable rows are moved away, to be restored from the checkpoint.
        """
        from vitscale.record.table import check_reported, read_done, stopped

        known: dict[str, Outcome] = {}
        for trial_id in (trial.config.id for trial in self.study.trials):
            if self.store.is_done(trial_id):
                try:
                    known[trial_id] = read_done(trial_id, self.study, self.store)
                except Damaged as damage:
                    aside = self.store.set_aside(trial_id)
                    self.console.print(
                        f"warning: {damage}; moved to {aside}, the trial is restored"
                    )
        known |= stopped(self.study, self.store)
        check_reported(self.study, known, self.store)
        return known

    def _write_plan(self) -> None:
        """Writes what is to be trained, before it is, and which trials only earlier plans had."""
        planned = {trial.config.id for trial in self.study.trials}
        self.left_out = [i for i in _once_planned(self.store, self.study.slug) if i not in planned]
        plan = {"command": _command(), **to_json(self.study), "earlier": self.left_out}
        self.folder.write(PLAN, json.dumps(plan, indent=1).encode())

    def _grow(self, known: Mapping[str, Outcome]) -> bool:
        """Asks a search for its next round, if there is one; says whether there is."""
        from vitscale.record.table import read_trials

        if self.rounds is None or self.stop.is_set():
            return False
        if not self.rounds.grow(read_trials(self.study, self.store, known)):
            return False
        self.study = self.rounds.study()
        self.mirror.study = self.study
        return True

    def _train(self, known: Mapping[str, Outcome]) -> None:
        """Trains until every trial has an outcome; in a search, until no round is left."""
        from vitscale.launch.ray_tune import check_shared, cluster

        events: queue.Queue[Event] = queue.Queue()
        where = (
            f"joining Ray at {self.resources.address}" if self.resources.address else "starting Ray"
        )
        self.console.print(f"{where}, log {self.folder.address(RAY_LOG)}")
        with cluster(self.resources, self._log, self.stop, self.console.print) as slots:
            if self.stop.is_set():
                return
            listen(self.stop)  # again: ray.init puts a handler of its own in place
            if self.resources.address:
                check_shared(self.store, self.study.slug)
            self.console.print(
                f"training {slots} at a time; Ctrl-C stops, and the same command resumes"
            )
            threading.Thread(
                target=self._follow, args=(events,), name="events", daemon=True
            ).start()
            self._train_planned(known, events)
            while self._grow(known):
                self._write_plan()
                self._train_planned(self._read_done(), events)

    def _train_planned(self, known: Mapping[str, Outcome], events: queue.Queue[Event]) -> None:
        """Starts Ray Tune on what is missing; again for what another
        study has, and for what wants a device alone.
        """
        from vitscale.launch.ray_tune import run_trials

        todo = [trial.config for trial in self.study.trials if trial.config.id not in known]
        ids = [trial.config.id for trial in self.study.trials]
        self.progress = Progress(
            self.study,
            {i: known.get(i, Outcome(Status.MISSING)).status for i in ids},
            store=self.store,
        )
        statuses = self.progress.statuses
        with self.display(self.progress, self.console):
            while todo and not self.stop.is_set():
                free = [config for config in todo if not self._is_held(config.id)]
                for status, where in (("", self.resources), ("crowded", self.resources.alone())):
                    configs = [
                        config for config in free if not status or statuses[config.id] == status
                    ]
                    try:
                        if configs and not self.stop.is_set():
                            run_trials(
                                configs,
                                self.store,
                                self.study.slug,
                                self.attempt,
                                where,
                                events,
                                self.stop,
                                self._log,
                                self.rounds.should_stop if self.rounds else None,
                            )
                    finally:
                        events.join()
                todo = [config for config in todo if statuses[config.id] == "elsewhere"]
                self.stop.wait(2 if todo else 0)

    def _log(self) -> AbstractContextManager[TextIO]:
        """What Ray and Tune print."""
        return self.folder.append(RAY_LOG)

    def _is_held(self, trial_id: str) -> bool:
        """Whether a study that runs now has a trial of ours; if so, the display says which."""
        holder = self.store.holder(trial_id)
        if not holder or holder == self.study.slug or not self.store.driver_is_alive(holder):
            return False
        self.progress.update(Event(trial_id, "elsewhere", facts={"study": holder}))
        return True

    def _follow(self, events: queue.Queue[Event]) -> None:
        """Tells news to the display and to MLflow, for ever."""
        while True:
            event = events.get()
            try:
                self._tell(event, self.progress)
            # news may be lost, the training not: it waits until all news are told
            except Exception as error:
                self.console.print(f"warning: {type(error).__name__}: {error}")
            finally:
                events.task_done()

    def _tell(self, event: Event, progress: Any) -> None:
        """Shows news and passes them on to MLflow, where a
        trial that a machine failed has no outcome.
        """
        progress.update(event)
        if event.status in ("again", "crowded", "lost"):
            self._say_fault(event)
        if event.status == "lost":
            self._record_lost_worker(event)
            self.mirror.put(event.trial_id, event.outcome)
        elif event.status in DONE and not self.store.is_done(event.trial_id):
            self._say_unseen(event)
        elif isinstance(event.status, Status):
            self.mirror.put(event.trial_id, event.outcome)

    def _say_unseen(self, event: Event) -> None:
        """A worker has finished a trial, but not in this store:
        it is missing here, and the reason is said.
        """
        where = event.facts.get("machine") or "a node"
        reason = (
            f"its rows, of a worker on {where}, are not in the store {self.store.root}, which all "
            "nodes must share"
        )
        self.reasons[event.trial_id] = reason
        self.console.print(f"warning: {event.trial_id} is {event.status}, but {reason}")
        self.mirror.put(event.trial_id, Outcome(Status.RUNNING, event.rows))

    def _say_fault(self, event: Event) -> None:
        """A line for each of the first faults of machines: silence would look like work."""
        self.num_faults += 1
        then = {
            "again": f"tried again, {event.facts.get('tries')}",
            "crowded": "tried again with a device to itself",
        }
        if self.num_faults <= MOST_FAULTS_SAID:
            what = then.get(event.status, "not tried again by this start")
            self.console.print(
                f"warning: a machine failed {event.trial_id} ({what}): {event.facts['error']}"
            )
        elif self.num_faults == MOST_FAULTS_SAID + 1:
            self.console.print(
                f"warning: machines fail more trials; see {self.folder.address(RAY_LOG)} and the "
                "end"
            )

    def _record_lost_worker(self, event: Event) -> None:
        """A trial whose worker died too often left no note; on a
        full disk there is none from here either.
        """
        if self.store.fault(event.trial_id) or self.store.holder(event.trial_id) not in (
            "",
            self.study.slug,
        ):
            return
        try:
            self.store.lose(
                self.store.trial(event.trial_id), event.facts["error"], event.facts["error"]
            )
        except OSError as error:
            self.reasons[event.trial_id] = event.facts["error"]
            self.console.print(f"warning: {event.facts['error']}; {error}")

    def _conclude(self, read: Mapping[str, Outcome], stopped_by: str) -> int:
        """Draws the report, brings MLflow up to date, and says what there is and what is not."""
        statuses = [outcome.status for outcome in read.values()]
        report, said, last_words = self._draw(read)
        pages, problem = self._show(read, last_words)
        shown = [status for status in ENDINGS if status is not Status.STOPPED or status in statuses]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in shown)
        self.console.print(f"\n{self.study.slug}: {counts} of {len(statuses)}")
        for line in said:  # sentences wrap between words, paths are never cut
            self.console.print(
                line, soft_wrap=not line.startswith(" ") or not self.console.is_terminal
            )
        if problem:
            self.console.print(
                f"mlflow  {self.uri} is not up to date ({problem}); "
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
                "command resumes"
            )
        if self.stop.is_set() and Status.MISSING in statuses:
            self.console.print("interrupted: the same command resumes")
            return EXIT_INTERRUPTED
        if Status.MISSING in statuses or Status.FAILED in statuses or report is None:
            return EXIT_INCOMPLETE
        return EXIT_NOT_SHOWN if problem else EXIT_DONE

    def _option(self) -> str:
        """The option that names the store to other commands, where it is not the default."""
        root = self.store.root
        return "" if root == Path("runs").absolute() else f" --store {shlex.quote(str(root))}"

    def _draw(
        self, read: Mapping[str, Outcome]
    ) -> tuple[Workdir | None, list[str], tuple[Any, ...]]:
        """(report, lines to say, what MLflow is told); no report
        if it cannot be drawn, which loses no result.
        """
        try:
            report, headline, summary = draw(self.study, self.store, read)
        # a full disk, a plot that breaks: the trials are safe, and MLflow must be told
        except Exception as error:
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            return (
                None,
                [f"report  not drawn ({line}); `--report` draws it from what is done"],
                ({}, None),
            )
        figures = [f"figure  {report.address(name)}.png" for name in self.study.figures]
        said = [*(f"  {line}" for line in headline), *figures, f"report  {report.address(PAGE)}"]
        return report, said, (summary, report, headline)

    def _show(self, read: Mapping[str, Outcome], told: tuple[Any, ...]) -> tuple[list[str], str]:
        """(address of the page, "") or ([], why the view is not up to date)."""
        from vitscale.record.mlflow_view import View, state_of, synchronize

        pages: list[str] = []

        def last_words(view: View) -> None:
            synchronize(view, read)
            view.interrupt()
            view.summarize(*told)
            view.set_parent(state_of(read))
            pages.append(view.page())

        return pages, self.mirror.finish(last_words)

    def _print_reasons(self, read: Mapping[str, Outcome], status: Status, log: str) -> None:
        """Names the trials that failed, or that a machine failed, with the reason and its log."""
        outcomes = [(trial, read[trial.config.id]) for trial in self.study.trials]
        ended = [
            (t.config.id, t.arm, o.error) for t, o in outcomes if o.status is status and o.error
        ]
        for trial_id, arm, error in ended[:10]:
            self.console.print(f"{status}  {arm} {trial_id}: {error}")
            if self.store.trial(trial_id).exists(log):
                self.console.print(f"        log {self.store.trial(trial_id).address(log)}")
        if len(ended) > 10:
            self.console.print(f"{status}  and {len(ended) - 10} more")
        if ended and status is Status.MISSING:
            self.console.print(
                "        no results, since machines failed them: the same command tries them again"
            )


def _is_head_lost(error: Exception) -> bool:
    from vitscale.launch.ray_tune import HeadLost

    return isinstance(error, HeadLost)


def draw(
    study: Study, store: Store, read: Mapping[str, Outcome]
) -> tuple[Workdir, list[str], dict[str, float]]:
    """Writes the tables, figures and page of a study as it
    stands: (their folder, headline, summary numbers).
    """
    from vitscale.analysis.report.report import headline, summary_metrics, write_report
    from vitscale.analysis.results import Results
    from vitscale.record.table import outcomes, tidy

    folder = store.report(study.slug)
    done, rows = outcomes(study, read), tidy(study, read)
    results = Results(study, done, rows)
    if study.adaptive:
        from vitscale.analysis.search.tables import as_optuna
        from vitscale.launch.optuna_search import found

        folder.write("winners.json", json.dumps(found(results), indent=1).encode())
        folder.write("optuna.db", as_optuna(results))
    facts = {
        "install": "make .venv/installed",
        "command": _planned_command(study, store),
        "store": str(store.root),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        write_report(results, folder, facts)
    return folder, headline(results), summary_metrics(results)


def _planned_command(study: Study, store: Store) -> str:
    """The command that started the study, not the one that redraws it."""
    return store.plan(study.slug).get("command") or _command()


def _once_planned(store: Store, slug: str) -> list[str]:
    """Ids of all trials that the study's plans have had so far, as far as they can be read."""
    try:
        plan = store.plan(slug)
        ids = [*plan.get("earlier", ()), *(trial["id"] for trial in plan.get("trials", ()))]
        return [trial_id for trial_id in dict.fromkeys(ids) if TRIAL_ID.fullmatch(trial_id)]
    except (ValueError, KeyError, TypeError, AttributeError):  # it is written anew
        return []


def _command() -> str:
    """This process' command line, with the script as seen from the folder above `studies/`."""
    script = Path(sys.argv[0])
    name = f"studies/{script.name}" if script.parent.name == "studies" else str(script)
    return shlex.join(["python", name, *sys.argv[1:]])
