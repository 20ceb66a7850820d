"""Searches by Optuna in rounds; a ledger records what was proposed and what was stopped.

    <root>/studies/<slug>/asked.json    written before a round is trained: the points of each arm,
                                        in order; and, with ASHA, the rows of each training that
                                        was stopped

Optuna's own study is rebuilt for each round from the ledger and the store, and then discarded.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from vitscale.launch.resources import Event
from vitscale.plan.design import Point
from vitscale.plan.search import TRIES, Search, as_json, rounded
from vitscale.plan.spelling import shown
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.store import Store
from vitscale.record.study_files import ASKED

if TYPE_CHECKING:
    import optuna

REDUCTION = 3  # ASHA continues the best third of a rung


class Rounds:
    """The rounds of one search in one store."""

    def __init__(self, search: Search, store: Store) -> None:
        """Raises ValueError if the store has a different search of the same name.

        The points of that search were proposed from other outcomes.
        """
        self.search, self.store = search, store
        ledger = store.asked(search.slug)
        current = identity(search)
        previous = ledger.get("search", current)
        changed = [name for name, value in current.items() if value != previous[name]]
        if changed:
            raise ValueError(
                f"a search must go on as it began, but got another ({search.slug}: "
                f"{_difference(changed[0], previous[changed[0]], current[changed[0]])}); give it "
                "another name: it takes over all trials that both have"
            )
        self.points: dict[str, list[Point]] = {
            arm.name: ledger.get("points", {}).get(arm.name, []) for arm in search.configs
        }
        self.stopped: dict[str, list[Row]] = ledger.get("stopped", {})
        # arms whose space has no new point left
        self.exhausted: list[str] = ledger.get("exhausted", [])
        self._rungs: Rungs | None = None

    def study(self) -> Study:
        """The study of all points proposed so far, up to the number that the search wants.

        Raises ValueError if no point was proposed yet.
        """
        if not any(self.points.values()):
            raise ValueError(
                f"a search must have begun, but got no point yet (study={self.search.slug!r})"
            )
        return self.search.study(
            {arm: points[: self.search.num] for arm, points in self.points.items()}
        )

    def plan(self) -> Study:
        """As `study`, with random points in place of those that are still to be proposed."""
        return self.search.stand_in(self.points, self.exhausted)

    def grow(self, read: Mapping[str, Outcome]) -> bool:
        """Proposes the next round, if one is due; returns whether there are new points.

        A round is due if all trials so far have an outcome and more points are wanted. `read` has
        the outcome of each trial so far, as from record.table.read_trials; a failed trial counts as
        having none, since the next start retries it. Rounds are always whole: `study` takes as many
        of their points as the search wants.
        """
        open_arms = [
            arm
            for arm, points in self.points.items()
            if len(points) < self.search.num and arm not in self.exhausted
        ]
        if not open_arms or any(
            outcome.status in (Status.MISSING, Status.FAILED) for outcome in read.values()
        ):
            return False
        new = {arm: self._ask(arm, self.search.per_round, read) for arm in open_arms}
        for arm, points in new.items():
            self.points[arm] += points
        self.exhausted += [
            arm for arm, points in new.items() if len(points) < self.search.per_round
        ]
        self._rungs = None  # they know only the trials of earlier rounds
        self._write()
        return any(new.values())

    def should_stop(self, event: Event) -> bool:
        """Whether ASHA stops the training that sent this event.

        If so, the training's rows are written to the ledger before it ends.
        """
        if not self.search.asha or not event.rows:
            return False
        self._rungs = self._rungs or Rungs(self.search, self.study(), self.store, self.stopped)
        row = self._rungs.first_pruned(event.trial_id, event.rows)
        if event.status is not Status.RUNNING or row is None:
            return False
        self.stopped[event.trial_id] = list(event.rows[: event.rows.index(row) + 1])
        self._write()
        return True

    def _ask(self, arm: str, num: int, read: Mapping[str, Outcome]) -> list[Point]:
        """Proposes `num` points for an arm, from earlier outcomes but not from each other's.

        Deterministic given the outcomes. A point that gives no config is not recorded, and another
        one is proposed. Returns fewer points if a space of integers or choices has no more new
        ones.
        """
        from vitscale.analysis.results import Results
        from vitscale.analysis.search.tables import optuna_study

        space, earlier = self.search.spaces[arm], self.points[arm]
        if earlier:
            from vitscale.record.table import outcomes

            study = self.study()
            proposer = optuna_study(
                Results(study, outcomes(study, read)), arm, sampler=self._sampler(arm)
            )
        else:
            import optuna

            proposer = optuna.create_study(sampler=self._sampler(arm))
        new: list[Point] = []
        for _ in range(TRIES * num):
            proposed = proposer.ask(dict(space)).params
            point = {name: rounded(space[name], value) for name, value in proposed.items()}
            if point not in earlier + new and not self.search.why_not(arm, point):
                new.append(point)
            if len(new) == num:
                break
        return new

    def _sampler(self, arm: str) -> optuna.samplers.BaseSampler:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        key = [self.search.sampler_seed, list(self.points).index(arm), len(self.points[arm])]
        seed, startup = int(np.random.SeedSequence(key).generate_state(1)[0]), self.search.per_round
        match self.search.sampler:
            case "gp":
                return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
            case "tpe":
                return optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=startup, multivariate=True
                )
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case never:
                assert_never(never)

    def _write(self) -> None:
        ledger = {
            "search": identity(self.search),
            "num": self.search.num,
            "points": self.points,
            "stopped": self.stopped,
            "exhausted": self.exhausted,
        }
        content = json.dumps(ledger, indent=1).encode()
        self.store.write_driving(self.search.slug, ASKED, lambda: content)


def _difference(name: str, before: Any, now: Any) -> str:
    """What has changed in a property of a search, as briefly as it can be said."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{name} was {shown(before)}, is {shown(now)}"
    first = next(key for key in {**before, **now} if before.get(key) != now.get(key))
    if first in before and first in now:
        return _difference(f"{name} of {first!r}", before[first], now[first])
    return f"{name}: {first!r} is {'new' if first in now else 'gone'}"


def identity(search: Search) -> dict[str, Any]:
    """The properties of a search that must not change while it continues, as plain values.

    `num` is not among them: more points may be asked for later.
    """
    return {
        "arms": {arm.name: base.non_default() for arm, base in search.configs.items()},
        "spaces": {arm: as_json(space) for arm, space in search.spaces.items()},
        "seeds": list(search.seeds),
        **{
            name: getattr(search, name)
            for name in ("per_round", "sampler", "sampler_seed", "asha", "metric")
        },
    }


def check_ended(study: Study, store: Store) -> None:
    """Raises ValueError unless a study is a search that is complete.

    Complete means that all points were proposed and that every trial has an outcome.
    """
    if not study.search:
        raise ValueError(
            f"winners must be of a search, but got ({study.slug!r}, whose trials were fixed "
            "beforehand)"
        )
    ledger = store.asked(study.slug)
    asked = min(
        (len(points) for arm, points in ledger["points"].items() if arm not in ledger["exhausted"]),
        default=ledger["num"],
    )
    todo = [
        t
        for t in study.trials
        if t.config.id not in ledger["stopped"] and not store.is_done(t.config.id)
    ]
    if asked < ledger["num"] or todo:
        raise ValueError(
            f"a search must have ended, but got ({study.slug!r}: {asked} of {ledger['num']} "
            f"points asked, {len(todo)} trials to do)"
        )


class Rungs:
    """ASHA's rungs for each arm, by Optuna's SuccessiveHalvingPruner.

    ASHA is asynchronous successive halving (Li et al. 2020). A training is compared with all that
    reached the rung before it, in this start or an earlier one. Which those are depends on timing,
    so a search with ASHA is not reproducible; its decisions are kept in the ledger.
    """

    def __init__(
        self, search: Search, study: Study, store: Store, stopped: Mapping[str, list[Row]]
    ) -> None:
        import optuna

        self.metric = search.metric
        self.epochs = {arm.name: base.epochs for arm, base in search.configs.items()}
        self.arms = {trial.config.id: trial.arm.name for trial in study.trials}
        self.studies = {}
        for arm, base in search.configs.items():
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=max(1, round(base.epochs / REDUCTION**2)), reduction_factor=REDUCTION
            )
            self.studies[arm.name] = optuna.create_study(pruner=pruner)
        self.trials: dict[str, optuna.Trial] = {}
        self.num_reported: dict[str, int] = {}  # rows per trial that the pruner knows
        for trial_id in self.arms:
            rows = stopped.get(trial_id) or (
                store.read(trial_id).rows if store.is_done(trial_id) else ()
            )
            self.first_pruned(trial_id, tuple(rows))

    def first_pruned(self, trial_id: str, rows: Sequence[Row]) -> Row | None:
        """Reports new rows to the pruner; the first at which it prunes the trial, or None.

        Rows that were reported before are skipped. The last epoch is no rung: a trial that reached
        it has finished.
        """
        if trial_id not in self.trials:
            self.trials[trial_id] = self.studies[self.arms[trial_id]].ask()
        trial = self.trials[trial_id]
        for row in rows[self.num_reported.get(trial_id, 0) :]:
            self.num_reported[trial_id] = self.num_reported.get(trial_id, 0) + 1
            if row["epoch"] >= self.epochs[self.arms[trial_id]]:
                break
            trial.report(row[self.metric], step=int(row["epoch"]))
            if trial.should_prune():
                return row
        return None
