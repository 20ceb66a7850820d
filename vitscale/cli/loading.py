"""The results of a study of a store, for scripts and notebooks."""

from __future__ import annotations

import base64
import contextlib
import html
import os
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from vitscale.cli.stores import existing, read_plan
from vitscale.launch.earlier_plan import plan_before
from vitscale.plan.spelling import Named, shown
from vitscale.plan.study import Study
from vitscale.record.store import Store

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from vitscale.analysis.results import Results

T = TypeVar("T")


class StudyResults:
    """The results of a study: pandas tables, which are copies, so you may change them, and
    matplotlib figures. In a notebook it shows the headline and the first figure.
    """

    def __init__(self, results: Results, store: Store) -> None:
        self._results, self._store = results, store

    @property
    def study(self) -> Study:
        """The study by the plan of its last start: `question`, `source`, `metric`, `arms`, ..."""
        return self._results.study

    @property
    def command(self) -> str:
        """The command or call of the last start, whose plan this is."""
        return str(plan_before(self._store, self.study.slug).get("command", "its last start"))

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

        r = self._results
        return pd.concat(with_fields(r.study, r.rows, r.trials), ignore_index=True)

    @cached_property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The tables of the report by name; the 95% interval of `x` is in `x_low` and `x_high`."""
        return Named({name: self.table(name) for name in self.study.tables}, "a table")

    def table(self, name: str) -> pd.DataFrame:
        """Any table of this kind of study, such as "edf_curves", even if it is not in the report.

        Raises ValueError for other names.
        """
        from vitscale.analysis.kinds import kind_of

        make = self._one_of("tables", kind_of(self.study).tables, name)
        with _quietly():
            return self._results.once(make).copy()

    def _one_of(self, what: str, by_name: Mapping[str, T], name: str) -> T:
        if name not in by_name:
            raise ValueError(
                f"{what} of a study of kind {self.study.kind} must be among "
                f"({', '.join(by_name)}), but got ({shown(name)})"
            )
        return by_name[name]

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """The figures of the report by name, which a notebook shows; `savefig` writes one."""
        return Named({name: self.figure(name) for name in self.study.figures}, "a figure")

    def figure(self, name: str) -> Figure:
        """Any figure of this kind of study, drawn again, even if it is not in the report.

        Raises ValueError for other names.
        """
        from vitscale.analysis.kinds import kind_of
        from vitscale.analysis.report.save import as_png

        draw = self._one_of("figures", kind_of(self.study).figures, name)
        with _quietly():
            figure = draw(self._results)
        # matplotlib shows a figure in a notebook only if pyplot has made it, and keeps all of those
        setattr(figure, "_repr_png_", lambda: as_png(figure))  # noqa: B010
        return figure

    @property
    def headline(self) -> list[str]:
        """The answer of the study in sentences, with n and intervals, as the report begins."""
        from vitscale.analysis.report.report import headline

        with _quietly():
            return headline(self._results)

    def _repr_html_(self) -> str:
        from vitscale.analysis.report.report import PAGE
        from vitscale.analysis.report.save import as_png

        results, escape = self._results, html.escape
        plan = f"by the plan of <code>{escape(self.command)}</code>"
        parts = [f"<p><b>{escape(self.study.question)}</b> {self._counts()}, {plan}</p><ul>"]
        parts += [f"<li>{escape(line)}</li>" for line in self.headline]
        parts.append("</ul>")
        if self.study.figures and len(results.rows):
            png = base64.b64encode(as_png(self.figure(self.study.figures[0]))).decode()
            image = f'<img src="data:image/png;base64,{png}" style="max-width: 100%; width: 50em"'
            parts.append(f'{image} alt="{escape(self.study.figures[0])}">')
        report = self._store.report(self.study.slug)
        if report.exists(PAGE):
            link = _link(report.address(PAGE))
            parts.append(
                f'<p><a href="{escape(link)}">Report</a>, with all figures and tables. '
                "<code>vitscale ui</code> shows all trials in MLflow.</p>"
            )
        return "\n".join(parts)

    def _counts(self) -> str:
        counts = self._results.trials["status"].value_counts()
        return ", ".join(f"{num} {status}" for status, num in counts.items())

    def __repr__(self) -> str:
        trials, rows, tables = self._results.trials, self._results.rows, self.study.tables
        return (
            f"{self.study.slug}, by the plan of {self.command}: {len(trials)} trials, {len(rows)} "
            f"rows, tables ({', '.join(tables)})"
        )


def load(study: str, store: str | os.PathLike[str] = "") -> StudyResults:
    """The results of a started study, complete or not; trains and writes nothing.

    `study` is its directory in the store, such as "lr_wd_edf-demo"; `store` is a folder, by default
    $VITSCALE_STORE or runs. Tables are computed from the trials, each at its first use. Raises
    ValueError for an unknown study or store, or a kind that only its script defines, and Damaged, a
    ValueError, for an unreadable plan.
    """
    place = existing(os.fspath(store), option="store")
    return StudyResults(results_of(read_plan(place, study), place), place)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without numpy's warnings of means and quotients of nothing, which tables have as NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _link(address: str) -> str:
    """An address as a link from the current folder, which is that of a notebook."""
    is_file = os.path.isabs(address)
    return urllib.parse.quote(os.path.relpath(address)) if is_file else address


def results_of(study: Study, store: Store) -> Results:
    """The outcomes of a study so far, and what is computed from them."""
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
