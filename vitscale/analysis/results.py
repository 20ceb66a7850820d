"""What a study found: a row per trial, a row per evaluation,
and all that is made of them, each made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import pandas as pd

from vitscale.plan.study import Study
from vitscale.record.outcome import FIXED

T = TypeVar("T")
STATUSES = tuple(status.value for status in FIXED)


class Results:
    """The outcomes of a study, and what was made of them so far.

    Tables, figures and sentences ask `once` for what they are made of, so that each number of a
    report is computed in one place and one time. `trials` has a row per planned trial
    (vitscale.record.table.outcomes), `rows` a row per trial and evaluation; without it there is
    none.
    """

    def __init__(
        self,
        study: Study,
        trials: pd.DataFrame,
        rows: pd.DataFrame | None = None,
        made: Mapping[Callable[[Results], Any], Any] | None = None,
    ) -> None:
        """`made`: what is known already, such as the tables of an earlier report."""
        self.study = study
        self.trials = trials
        self.rows = pd.DataFrame() if rows is None else rows
        self._made: dict[Callable[[Results], Any], Any] = dict(made or {})

    def once(self, make: Callable[[Results], T]) -> T:
        """What a function makes of these results; it is called at the first request only.

        Do not change its value.
        """
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    def made(
        self, tables: Mapping[str, Callable[[Results], pd.DataFrame]]
    ) -> dict[str, pd.DataFrame]:
        """Those of these tables that were asked for so far, by name."""
        return {name: self._made[make] for name, make in tables.items() if make in self._made}


def panels(study: Study) -> dict[str, tuple[str, ...]]:
    """The study's panels, or one with all its arms."""
    return dict(study.panels) or {study.name.replace("_", " "): study.arms}
