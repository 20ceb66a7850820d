"""Optuna proposes, round by round; the ledger of a search remembers what was asked and what was
stopped.

    <root>/studies/<slug>/asked.json    written before a round is trained: the points of
                                        each arm, in order; and, with ASHA, the rows of each
                                        training that was stopped

Optuna's own study is made anew from the ledger and the store for each round, and thrown away after
it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from vitscale.launch.resources import Event
from vitscale.plan.design import Point
from vitscale.plan.search import Search, as_json, rounded
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.store import ASKED, Store

if TYPE_CHECKING:
    import optuna

    from vitscale.analysis.results import Results

REDUCTION = 3  # ASHA lets the best third of a rung go on
TRIES = 20  # proposals for one that was not asked before


class Rounds:
    """The rounds of one search in one store."""

    def __init__(self, search: Search, store: Store) -> None:
        """Raises ValueError if the store has another search of
        that name: its points came from other outcomes.
        """
        self.search, self.store = search, store
        ledger = store.asked(search.slug)
        told = ledger.get("search", identity(search))
        differ = [name for name, value in identity(search).items() if value != told[name]]
        if differ:
            raise ValueError(
                "a search must go on as it began (another store starts anew), but got "
                f"({differ[0]}: began={told[differ[0]]!r}, now={identity(search)[differ[0]]!r})"
            )
        self.points: dict[str, list[Point]] = {
            arm: ledger.get("points", {}).get(arm, []) for arm in search.arms
        }
        self.stopped: dict[str, list[Row]] = ledger.get("stopped", {})
        # arms whose space has no point that is new
        self.exhausted: list[str] = ledger.get("exhausted", [])
        self._rungs: Rungs | None = None

    def study(self) -> Study:
        """What was asked so far, and no more than the search wants.

        Raises ValueError if nothing was.
        """
        if not any(self.points.values()):
            raise ValueError(
                f"a search must have begun, but got no point yet (study={self.search.slug!r})"
            )
        return self.search.study(
            {arm: points[: self.search.num] for arm, points in self.points.items()}
        )

    def grow(self, read: Mapping[str, Outcome]) -> bool:
        """Asks for the next round, if all that was asked has an outcome and points are still
        wanted; says whether.

        `read` has the outcome of every trial so far, as from record.table.read_trials. A failed
        trial, which the next start tries again, has none. Rounds are always whole: how many points
        a study takes of them is its own affair.
        """
        wanted = [
            arm
            for arm, points in self.points.items()
            if len(points) < self.search.num and arm not in self.exhausted
        ]
        if not wanted or any(
            outcome.status in (Status.MISSING, Status.FAILED) for outcome in read.values()
        ):
            return False
        new = {arm: self._ask(arm, self.search.per_round, read) for arm in wanted}
        for arm, points in new.items():
            self.points[arm] += points
        self.exhausted += [
            arm for arm, points in new.items() if len(points) < self.search.per_round
        ]
        self._rungs = None  # they know the trials of earlier rounds alone
        self._write()
        return any(new.values())

    def should_stop(self, event: Event) -> bool:
        """Whether ASHA stops the training that tells this news; if
        so, its rows are in the ledger before it ends.
        """
        if not self.search.asha or not event.rows:
            return False
        self._rungs = self._rungs or Rungs(self.search, self.study(), self.store, self.stopped)
        row = self._rungs.behind_at(event.trial_id, event.rows)
        if event.status is not Status.RUNNING or row is None:
            return False
        self.stopped[event.trial_id] = list(event.rows[: event.rows.index(row) + 1])
        self._write()
        return True

    def _ask(self, arm: str, num: int, read: Mapping[str, Outcome]) -> list[Point]:
        """`num` points that do not know each other's outcome; the same for the same outcomes,
        wherever.

        Fewer, if a space of whole numbers or choices has no more that are new.
        """
        from vitscale.analysis.results import Results
        from vitscale.analysis.search.tables import optuna_study

        space, asked = self.search.spaces[arm], self.points[arm]
        if asked:
            from vitscale.record.table import outcomes

            study = self.study()
            of_arm = optuna_study(
                Results(study, outcomes(study, read)), arm, sampler=self._sampler(arm)
            )
        else:
            import optuna

            of_arm = optuna.create_study(sampler=self._sampler(arm))
        new: list[Point] = []
        for _ in range(TRIES * num):
            proposed = of_arm.ask(dict(space)).params
            point = {name: rounded(space[name], value) for name, value in proposed.items()}
            if point not in asked + new:
                new.append(point)
            if len(new) == num:
                break
        return new

    def _sampler(self, arm: str) -> optuna.samplers.BaseSampler:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        key = [self.search.sampler_seed, list(self.search.arms).index(arm), len(self.points[arm])]
        seed, startup = int(np.random.SeedSequence(key).generate_state(1)[0]), self.search.per_round
        match self.search.sampler:
            case "gp":
                return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
            case "tpe":
                return optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=startup, multivariate=True
                )
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
        self.store.study(self.search.slug).write(ASKED, json.dumps(ledger, indent=1).encode())


def identity(search: Search) -> dict[str, Any]:
    """What may not change while a search goes on, as plain values; more points may be asked for."""
    return {
        "arms": {arm: base.non_default() for arm, base in search.arms.items()},
        "spaces": {arm: as_json(space) for arm, space in search.spaces.items()},
        "seeds": list(search.seeds),
        **{
            name: getattr(search, name)
            for name in ("per_round", "sampler", "sampler_seed", "asha", "metric")
        },
    }


def found(results: Results) -> dict[str, Any]:
    """What a search found so far, and by which means: plain
    values, as `vitscale adopt` keeps them.
    """
    from vitscale.analysis.search.tables import winners

    study = results.study

    def known(column: str) -> list[str]:
        return sorted({str(value) for value in results.trials[column].dropna()} - {""})

    return {
        "search": study.slug,
        "how": study.adaptive,
        "metric": study.metric,
        "epochs": max(trial.config.epochs for trial in study.trials),
        "trained": _trained(study),
        **{
            name: known(column)
            for name, column in (
                ("commits", "commit"),
                ("versions", "versions"),
                ("machines", "machine"),
            )
        },
        "winners": results.once(winners),
    }


def _trained(study: Study) -> dict[str, dict[str, Any]]:
    """Arm -> all that its trials share: what differs from its
    default, and what data, length and split they had.
    """
    shared = {}
    for arm in study.arms:
        config = next(trial.config for trial in study.trials if trial.arm == arm)
        own, told = {"seed", *study.spaces.get(arm, {})}, {*config.non_default(), *ALWAYS_TOLD}
        shared[arm] = {name: value for name, value in config.asdict().items() if name in told - own}
    return shared


def check_ended(study: Study, store: Store) -> None:
    """Raises ValueError unless a study is a search that has
    asked for all its points and has all outcomes.
    """
    if not study.adaptive:
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


ALWAYS_TOLD = (
    "dataset",
    "minival_images",
    "subset_images",
    "split_seed",
    "resolution",
    "model",
    "epochs",
    "eval_split",
)


class Rungs:
    """ASHA's rungs for each arm (Li et al. 2020, asynchronous successive halving), by Optuna's
    pruner.

    A training is compared with all that reached the rung before it, in this start or an earlier
    one. Which those are depends on timing, so a search with ASHA is not the same twice; its
    decisions are kept in the ledger.
    """

    def __init__(
        self, search: Search, study: Study, store: Store, stopped: Mapping[str, list[Row]]
    ) -> None:
        import optuna

        self.metric = search.metric
        self.epochs = {arm: base.epochs for arm, base in search.arms.items()}
        self.arms = {trial.config.id: trial.arm for trial in study.trials}
        self.studies = {}
        for arm, base in search.arms.items():
            least = max(1, round(base.epochs / REDUCTION**2))
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=least, reduction_factor=REDUCTION
            )
            self.studies[arm] = optuna.create_study(pruner=pruner)
        self.trials: dict[str, optuna.Trial] = {}
        self.told: dict[str, int] = {}  # rows told so far
        for trial_id in self.arms:
            known = stopped.get(trial_id) or (
                store.read(trial_id).rows if store.is_done(trial_id) else ()
            )
            self.behind_at(trial_id, tuple(known))

    def behind_at(self, trial_id: str, rows: tuple[Row, ...]) -> Row | None:
        """The first row that was not told before and is behind at a rung; None if there is none.

        The last epoch is no rung: who has got there has finished.
        """
        if trial_id not in self.trials:
            self.trials[trial_id] = self.studies[self.arms[trial_id]].ask()
        trial = self.trials[trial_id]
        for row in rows[self.told.get(trial_id, 0) :]:
            self.told[trial_id] = self.told.get(trial_id, 0) + 1
            if row["epoch"] >= self.epochs[self.arms[trial_id]]:
                break
            trial.report(row[self.metric], step=int(row["epoch"]))
            if trial.should_prune():
                return row
        return None
