"""The outcomes of a study and everything computed from them, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd

from vitscale.analysis.stats.sequential import ALPHA, ONE_LOOK, Looks
from vitscale.plan.metrics import Metric
from vitscale.plan.study import Study
from vitscale.record.misclassified import Misclassified
from vitscale.record.outcome import FIXED

T = TypeVar("T")
STATUSES = tuple(status.value for status in FIXED)


class Results:
    """The outcomes of a study, and the values computed from them so far.

    Tables, figures and sentences get their inputs from `once`, so that each number of a report is
    computed in one place and only once. Columns such as `mean` and `difference` are in the unit of
    the study's metric (`Metric.unit_of`). `trials` has one row per planned trial
    (vitscale.record.table.outcomes), `rows` one per trial and evaluation; by default it is empty.
    """

    def __init__(
        self,
        study: Study,
        trials: pd.DataFrame,
        rows: pd.DataFrame | None = None,
        misclassified: Callable[[str], Misclassified | None] | None = None,
        looks: Looks = ONE_LOOK,
    ) -> None:
        """`misclassified` reads which images a finished trial got wrong, None if that was not kept.

        `looks` is the place of this look among all at the study.
        """
        self.study = study
        self.trials = trials
        self.rows = pd.DataFrame() if rows is None else rows
        self._made: dict[Callable[[Results], Any], Any] = {}
        self._misclassified = misclassified
        self.looks = looks
        self.tests: dict[str, tuple[int, int]] = {}  # column of p -> tests, claims
        self.p: dict[str, dict[str, float]] = {}  # metric/column of p -> test -> corrected p
        self.late = 0  # tests that the first report of these rows did not make

    @property
    def metric(self) -> Metric:
        """The metric that the study is about."""
        return self.study.column.metric

    def once(self, make: Callable[[Results], T]) -> T:
        """The value of a function of these results, which is called at the first request only.

        Do not modify the value.
        """
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    def corrected(
        self,
        name: str,
        tests: Sequence[tuple[object, ...]],
        p: Sequence[float],
        anytime: Sequence[float] | None = None,
        family: str = "",
    ) -> np.ndarray:
        """(n,) p of a column, corrected for their number and for the looks at the study.

        All claims rest on these. `tests` says what each of them is about, by which later looks find
        it again: under the metric, the column, and the family, if several families of tests share
        the column. `anytime` are p that hold at any look, where they are known; they replace those
        that are derived from p if the study grew without a declared size. Tests of earlier looks
        that this one lacks count, too, also those of other metrics: any of them may have decided
        what is tested now. In a report of rows that were reported before, no p is below that of
        the first report, and a test that this lacked has p = 1: it may have been chosen by its
        result.
        """
        key = "/".join(filter(None, (self.study.metric, name, family)))
        labels = [" / ".join(map(str, test)) for test in tests]
        absent = self.looks.absent(key, labels)
        kept = self.looks.kept.get(key, {})
        corrected = self.looks.corrected(
            [*p, *[np.nan] * absent],
            None if anytime is None else [*anytime, *[np.nan] * absent],
            [*(kept.get(label, 1.0) for label in labels), *[1.0] * absent],
        )[: len(labels)]
        if self.looks.again is not None:
            first = self.looks.again.get(key, {})
            corrected = np.maximum(corrected, [first.get(label, 1.0) for label in labels])
            tested = np.isfinite(corrected)
            self.late += sum(
                label not in first for label, is_p in zip(labels, tested, strict=True) if is_p
            )
        made = self.p.setdefault(key, {})  # tables with the same column may test the same
        for label, value in zip(labels, corrected.tolist(), strict=True):
            if np.isfinite(value):
                made[label] = max(value, made.get(label, 0.0))
        num, claims = self.tests.get(name, (0, 0))
        self.tests[name] = (
            max(num, int(np.isfinite(corrected).sum())),
            max(claims, int((corrected < ALPHA).sum())),
        )
        return corrected

    def misclassified(self, trial_id: str) -> Misclassified | None:
        """Which images a trial got wrong; None if it is not known. Reads a file each time."""
        return self._misclassified(trial_id) if self._misclassified else None

    def made(
        self, tables: Mapping[str, Callable[[Results], pd.DataFrame]]
    ) -> dict[str, pd.DataFrame]:
        """Those of these tables that were computed so far, by name."""
        return {name: self._made[make] for name, make in tables.items() if make in self._made}


def panels(study: Study) -> dict[str, tuple[str, ...]]:
    """The study's panels, or a single one with all its arms."""
    return dict(study.panels) or {study.name.replace("_", " "): tuple(study.arms)}
