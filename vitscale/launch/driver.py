"""One start of a study: trains what is missing, shows it in MLflow, draws the report, says what there is."""

from __future__ import annotations

import json
import queue
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscale.launch.resources import Event, Resources, refuse_company
from vitscale.plan.data import refuse_unreadable
from vitscale.plan.search import Search
from vitscale.plan.study import Study, to_json
from vitscale.record.store import Damaged, Store, Workdir

if TYPE_CHECKING:
    from vitscale.launch.optuna_search import Rounds

EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED, EXIT_NOT_SHOWN, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def run(study: Study | Search, store: Store, resources: Resources) -> int:
    """Trains what is missing of a study, or goes on with a search; returns the exit status.

    Raises ValueError or OSError, before anything is trained, for what can be refused.
    """
    stop = threading.Event()
    listen(stop)
    from vitscale.analysis.report import refuse_unknown

    sample = study.stand_in() if isinstance(study, Search) else study
    refuse_unknown(sample)
    for dataset in {trial.config.dataset for trial in sample.trials if not sample.measures}:  # a profile reads none
        refuse_unreadable(dataset, resources.data_root)
    with store.drive(study.slug) as attempt:
        refuse_company(sample, store)
        if isinstance(study, Study):
            return Driver(study, store, resources, attempt, stop).run()
        rounds = _begin(study, store)
        return Driver(rounds.study(), store, resources, attempt, stop, rounds).run()


def _begin(search: Search, store: Store) -> Rounds:
    """The rounds of a search as far as they got, or the first."""
    from vitscale.launch.optuna_search import Rounds

    rounds = Rounds(search, store)
    if not any(rounds.points.values()):
        rounds.grow({})
    return rounds


def listen(stop: threading.Event) -> None:
    """Makes Ctrl-C and SIGTERM, with which schedulers preempt, ask for a stop; a second one insists.

    Nothing is raised the first time: an exception out of the middle of Ray may be swallowed there.
    """

    def ask(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, ask)


class Driver:
    """Holds what the parts of one start share."""

    def __init__(
        self,
        study: Study,
        store: Store,
        resources: Resources,
        attempt: int,
        stop: threading.Event,
        rounds: Rounds | None = None,
    ) -> None:
        from rich.console import Console

        from vitscale.record.mlflow_view import Mirror, default_uri

        self.study, self.store, self.resources, self.attempt = study, store, resources, attempt
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)  # this stdout, not a redirected one
        self.stop = stop  # set by Ctrl-C
        self.rounds = rounds  # of a search, whose study grows
        self.uri = default_uri()
        self.mirror = Mirror(study, self.uri)
        self.ray_log = store.study(study.slug) / "ray.log"

    def run(self) -> int:
        """Trains, then concludes, whatever stopped the training."""
        from vitscale.record.table import read_trials

        known = self._read_done()
        self._grow(known)
        todo = [trial for trial in self.study.trials if trial.config.id not in known]
        self._write_plan()
        so_far = f" so far of {self.rounds.search.num_trials}" if self.rounds else ""
        self.console.print(f"{self.study.slug}: {len(self.study.trials)} trials{so_far}, {len(known)} done, "
                           f"{len(todo)} to do (store {self.store.root}, attempt {self.attempt})")  # fmt: skip
        stopped_by = ""
        with self.mirror:
            try:
                if todo and not self.stop.is_set():
                    self._train(known)
            except SystemExit:  # SIGTERM while ray.init had its own handler in place
                self.stop.set()
            except ValueError:  # refused before the first step
                raise
            except Exception as error:  # the cluster is lost, or Ray broke: what is trained is safe and worth a report
                stopped_by = f"{type(error).__name__}: {error}".splitlines()[0]
            return self._conclude(read_trials(self.study, self.store, known), stopped_by)

    def _read_done(self) -> dict[str, Any]:
        """(rows, facts) of the done trials. Unreadable rows are moved away, to be restored from the checkpoint."""
        from vitscale.record.table import stopped

        known: dict[str, Any] = {}
        for trial_id in (trial.config.id for trial in self.study.trials):
            if self.store.is_done(trial_id):
                try:
                    known[trial_id] = self.store.read_rows(trial_id)
                except Damaged as damage:
                    aside = self.store.set_aside(trial_id)
                    self.console.print(f"warning: {damage}; moved to {aside.name}, the trial is restored")
        return known | stopped(self.study, self.store)

    def _write_plan(self) -> None:
        """Writes what is to be trained, before it is."""
        plan = {"command": _command(), **to_json(self.study)}
        Workdir(self.store.study(self.study.slug)).write("plan.json", json.dumps(plan, indent=1).encode())

    def _grow(self, known: Mapping[str, Any]) -> bool:
        """Asks a search for its next round, if there is one; says whether there is."""
        from vitscale.record.table import read_trials

        if self.rounds is None or self.stop.is_set():
            return False
        if not self.rounds.grow(read_trials(self.study, self.store, known)):
            return False
        self.study = self.rounds.study()
        self.mirror.study = self.study
        return True

    def _train(self, known: Mapping[str, Any]) -> None:
        """Trains until every trial has an outcome; in a search, until no round is left."""
        from vitscale.launch.ray_tune import cluster

        events: queue.Queue[Event] = queue.Queue()
        with cluster(self.resources, self.ray_log) as slots:
            if not self.stop.is_set():
                listen(self.stop)  # again: ray.init puts a handler of its own in place
            self.console.print(f"training {slots} at a time; Ctrl-C stops, and the same command resumes")
            threading.Thread(target=self._follow, args=(events,), name="events", daemon=True).start()
            self._train_planned(known, events)
            while self._grow(known):
                self._write_plan()
                self._train_planned(self._read_done(), events)

    def _train_planned(self, known: Mapping[str, Any], events: queue.Queue[Event]) -> None:
        """Starts Ray Tune on what is missing, and again for trials that another study has."""
        from vitscale.launch.progress import Display, Progress
        from vitscale.launch.ray_tune import run_trials

        todo = [trial.config for trial in self.study.trials if trial.config.id not in known]
        statuses = {t.config.id: "missing" for t in self.study.trials} | {i: f["status"] for i, (_, f) in known.items()}
        self.progress = Progress(self.study, statuses)
        with Display(self.progress, self.console):
            while todo and not self.stop.is_set():
                run_trials(todo, self.store, self.study.slug, self.attempt, self.resources, events, self.stop,
                           self.ray_log, self.rounds.judge if self.rounds else None)  # fmt: skip
                events.join()
                todo = [config for config in todo if statuses[config.id] == "elsewhere"]
                self.stop.wait(2 if todo else 0)

    def _follow(self, events: queue.Queue[Event]) -> None:
        """Tells news to the display and to MLflow, for ever."""
        while True:
            event = events.get()
            try:
                self._tell(event, self.progress)
            except Exception as error:  # news may be lost, the training not: it waits until all news are told
                self.console.print(f"warning: {type(error).__name__}: {error}")
            finally:
                events.task_done()

    def _tell(self, event: Event, progress: Any) -> None:
        progress.update(event)
        if event.status == "failed" and not self.store.failure(event.trial_id):
            self._record_lost_worker(event)
        if event.status != "elsewhere":
            self.mirror.put(event.trial_id, event.status, event.rows, event.facts)

    def _record_lost_worker(self, event: Event) -> None:
        """A trial whose worker died too often left no record; on a full disk there is none from here either."""
        try:
            self.store.fail(self.store.trial(event.trial_id), event.facts["error"], event.facts["error"])
        except OSError as error:
            self.console.print(f"warning: {event.facts['error']}; {error}")

    def _conclude(self, read: Mapping[str, Any], stopped_by: str) -> int:
        """Draws the report, brings MLflow up to date, and says what there is and what is not."""
        statuses = [facts["status"] for _, facts in read.values()]
        report, said, last_words = self._draw(read)
        pages, problem = self._show(read, statuses, last_words)
        names = ("finished", "diverged", *(["stopped"] if "stopped" in statuses else []), "failed", "missing")
        counts = ", ".join(f"{statuses.count(name)} {name}" for name in names)
        self.console.print(f"\n{self.study.slug}: {counts} of {len(statuses)}")
        self.console.print("\n".join(said))
        if problem:
            self.console.print(f"mlflow  {self.uri} is not up to date ({problem}); `vitscale sync` does it later")
        else:
            hint = "" if self.uri.startswith("http") else "  (start it with `vitscale ui`)"
            self.console.print(f"mlflow  {pages[0]}{hint}")
        self._print_failures(read)
        if stopped_by:
            self.console.print(f"stopped by {stopped_by}\n        log {self.ray_log}; the same command resumes")
        if self.stop.is_set() and "missing" in statuses:
            self.console.print("interrupted: the same command resumes")
            return EXIT_INTERRUPTED
        if "missing" in statuses or "failed" in statuses or report is None:
            return EXIT_INCOMPLETE
        return EXIT_NOT_SHOWN if problem else EXIT_DONE

    def _draw(self, read: Mapping[str, Any]) -> tuple[Path | None, list[str], tuple[Any, ...]]:
        """(report, lines to say, what MLflow is told); no report if it cannot be drawn, which loses no result."""
        try:
            report, headline, summary = draw(self.study, self.store, read)
        except Exception as error:  # a full disk, a plot that breaks: the trials are safe, and MLflow must be told
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            return None, [f"report  not drawn ({line}); `--report` draws it from what is done"], ({}, None)
        figures = [f"figure  {report.parent / name}.png" for name in self.study.figures]
        return (
            report,
            [*(f"  {line}" for line in headline), *figures, f"report  {report}"],
            (summary, report.parent, headline),
        )

    def _show(self, read: Mapping[str, Any], statuses: list[str], told: tuple[Any, ...]) -> tuple[list[str], str]:
        """(address of the page, "") or ([], why the view is not up to date)."""
        from vitscale.record.mlflow_view import View, state_of, synchronize

        pages: list[str] = []

        def last_words(view: View) -> None:
            synchronize(view, read)
            view.interrupt()
            view.summarize(*told)
            view.set_parent(state_of(statuses))
            pages.append(view.page(self.uri))

        return pages, self.mirror.finish(last_words)

    def _print_failures(self, read: Mapping[str, Any]) -> None:
        failed = [trial for trial in self.study.trials if read[trial.config.id][1]["status"] == "failed"]
        for trial in failed[:10]:
            trial_id = trial.config.id
            self.console.print(f"failed  {trial.arm} {trial_id}: {read[trial_id][1]['error']}\n"
                               f"        log {self.store.failure_log(trial_id)}")  # fmt: skip
        if len(failed) > 10:
            self.console.print(f"failed  and {len(failed) - 10} more")


def draw(study: Study, store: Store, read: Mapping[str, Any]) -> tuple[Path, list[str], dict[str, float]]:
    """Writes the tables, figures and report of a study as it stands: (report, headline, summary numbers)."""
    from vitscale.analysis.headline import headline
    from vitscale.analysis.report import summary_metrics, write_report
    from vitscale.record.table import outcomes, tidy

    folder = store.study(study.slug) / "report"
    folder.mkdir(exist_ok=True)
    done, rows = outcomes(study, read), tidy(study, read)
    Workdir(folder).write("rows.parquet", rows.to_parquet(None, index=False))
    Workdir(folder).write("trials.parquet", done.to_parquet(None, index=False))
    if study.adaptive:
        from vitscale.analysis.search import write_optuna
        from vitscale.launch.optuna_search import found

        Workdir(folder).write("winners.json", json.dumps(found(study, done), indent=1).encode())
        write_optuna(study, done, folder / "optuna.db")
    facts = {"install": "make .venv/installed", "command": _planned_command(study, store), "store": str(store.root)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        report = write_report(study, done, rows, folder, facts)
    return report, headline(study, done), summary_metrics(study, done)


def _planned_command(study: Study, store: Store) -> str:
    """The command that started the study, not the one that redraws it."""
    try:
        return json.loads((store.study(study.slug) / "plan.json").read_text())["command"]
    except (FileNotFoundError, KeyError):
        return _command()


def _command() -> str:
    """This process' command line, with the script as seen from the folder above `studies/`."""
    script = Path(sys.argv[0])
    name = f"studies/{script.name}" if script.parent.name == "studies" else str(script)
    return shlex.join(["python", name, *sys.argv[1:]])
