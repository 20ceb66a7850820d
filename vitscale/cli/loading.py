"""The results of a study of a store, for scripts and notebooks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from vitscale.cli.stores import existing, read_plan
from vitscale.plan.spelling import shown
from vitscale.plan.study import Study
from vitscale.record.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from vitscale.analysis.results import Results


class StudyResults:
    """The results of a study as pandas tables; they are copies, so you may change them."""

    def __init__(self, results: Results) -> None:
        self._results = results

    @property
    def study(self) -> Study:
        """The study by the plan of its last start: `question`, `source`, `metric`, `arms`, ..."""
        return self._results.study

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per planned trial: labels, config, metrics of its last row, provenance.

        Labels are study, arm, point (NA for a reference run), trial_id and status. `value` is
        the final value of the study's metric: 100 for a diverged or failed trial, NaN for a missing
        one.
        """
        return self._results.trials.copy()

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per trial and evaluation: labels and config as in `trials`, epoch, metrics."""
        import pandas as pd

        from vitscale.record.table import with_fields

        of = self._results
        return pd.concat(with_fields(of.study, of.rows, of.trials), ignore_index=True)

    @cached_property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The tables of the report by name; the 95% interval of `x` is in `x_low` and `x_high`."""
        return {name: self.table(name) for name in self.study.tables}

    def table(self, name: str) -> pd.DataFrame:
        """Any table of this kind of study, such as "edf_curves", even if it is not in the report.

        Raises ValueError for other names.
        """
        from vitscale.analysis.kinds import kind_of

        known = kind_of(self.study).tables
        if name not in known:
            raise ValueError(
                f"tables of a study of kind {self.study.kind} must be among ({', '.join(known)}), "
                f"but got ({shown(name)})"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return self._results.once(known[name]).copy()

    def __repr__(self) -> str:
        return (
            f"{self.study.slug}: {len(self._results.trials)} trials, {len(self._results.rows)} "
            f"rows, tables ({', '.join(self.study.tables)})"
        )


def load(study: str, store: str | os.PathLike[str] = "") -> StudyResults:
    """The results of a started study, complete or not; trains and writes nothing.

    `study` is its directory in the store, such as "lr_wd_edf-demo"; `store` is a folder, by default
    $VITSCALE_STORE or runs. Tables are computed from the trials, each at its first use. Raises
    ValueError for an unknown study or store, or a kind that only its script defines, and Damaged, a
    ValueError, for an unreadable plan.
    """
    place = existing(os.fspath(store))
    return StudyResults(_results(read_plan(place, study), place))


def _results(study: Study, store: Store) -> Results:
    from vitscale.analysis.kinds import check
    from vitscale.analysis.report_look import look_of, place
    from vitscale.analysis.results import Results
    from vitscale.launch.costs import with_costs
    from vitscale.record.look_ledger import read_ledger
    from vitscale.record.table import outcomes, read_trials, tidy

    study = with_costs(study)
    check(study)
    read = read_trials(study, store)
    trials = outcomes(study, read)
    looks = place(read_ledger(store, study.slug), look_of(study, trials))
    return Results(study, trials, tidy(study, read), looks=looks)
