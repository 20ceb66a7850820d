"""Every number of a study's report as plain values: of its tables, sentences, summary and figures.

`python tests/golden/capture.py STORE` writes what the studies of a store report, and their rows,
for test_golden.py; without a store, the reports of the rows that are kept. Run it only where
numbers are meant to change, and name each change in the log.
"""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscale.analysis.kinds import kind_of
from vitscale.analysis.report.report import caveats, headline, summary
from vitscale.analysis.results import Results
from vitscale.plan.study import Study, from_json
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.table import outcomes, read_trials, tidy

GOLDEN = Path(__file__).parent
DIGITS = 10  # significant ones, of numbers in figures


def results_of(study: Study, read: Mapping[str, Outcome]) -> Results:
    """Results of a study of which `read` has the outcome of every trial."""
    return Results(study, outcomes(study, read), tidy(study, read))


def report(results: Results) -> dict[str, Any]:
    """The numbers of a study's report."""
    study, kind = results.study, kind_of(results.study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = {name: _figure(kind.figures[name](results)) for name in study.figures}
        for name in study.tables:
            results.once(kind.tables[name])
        return {
            "tables": {name: _table(made) for name, made in results.made(kind.tables).items()},
            "headline": headline(results),
            "caveats": caveats(results),
            "summary": {
                f"{arm}/{name}": value
                for arm, numbers in sorted(summary(results).items())
                for name, value in sorted(numbers.items())
            },
            "figures": figures,
        }


def _table(table: pd.DataFrame) -> dict[str, list[Any]]:
    return json.loads(table.to_json(orient="split", double_precision=15))


def _figure(figure: Figure) -> list[dict[str, Any]]:
    return [_axes(ax) for ax in figure.axes]


def _axes(ax: Axes) -> dict[str, Any]:
    """The data of an axes, each series once; not how they are drawn."""
    series = {json.dumps(_numbers(line.get_xydata())) for line in ax.lines}
    return {
        "lines": [json.loads(line) for line in sorted(series - {"[]"})],
        "offsets": [_numbers(collection.get_offsets()) for collection in ax.collections],
        "texts": sorted(text.get_text() for text in ax.texts),
    }


def _numbers(values: Any) -> list[Any]:
    flat = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    return [None if not np.isfinite(x) else float(f"{x:.{DIGITS}g}") for x in flat]


def load(slug: str) -> tuple[Study, dict[str, Outcome], dict[str, Any]]:
    """(study, the outcome of each trial, what was reported) of a golden file."""
    golden, read = kept(slug), {}
    for trial_id, (status, rows, facts) in golden["trials"].items():
        named = (zip(golden["columns"], row, strict=True) for row in rows)
        kept_rows = tuple(
            {name: value for name, value in row if value is not None} for row in named
        )
        read[trial_id] = Outcome(Status(status), kept_rows, facts)
    return from_json(golden["plan"]), read, golden["report"]


def kept(slug: str) -> dict[str, Any]:
    """The content of a golden file."""
    content: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / f"{slug}.json.gz").read_bytes()))
    return content


def of_store(store: Store, slug: str) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """(plan, outcome of each trial) of a study in a store."""
    plan = {
        name: value for name, value in store.plan(slug).items() if name not in ("command", "script")
    }
    return plan, read_trials(from_json(plan), store)


def write(slug: str, plan: dict[str, Any], read: Mapping[str, Outcome]) -> None:
    study = from_json(plan)
    names = list(dict.fromkeys(name for end in read.values() for row in end.rows for name in row))
    trials = {
        i: (end.status, [[row.get(name) for name in names] for row in end.rows], dict(end.facts))
        for i, end in read.items()
    }
    golden = {
        "plan": plan,
        "columns": names,
        "trials": trials,
        "report": report(results_of(study, read)),
    }
    path = GOLDEN / f"{slug}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(golden, separators=(",", ":")).encode(), mtime=0))
    print(path, path.stat().st_size)


if __name__ == "__main__":
    if sys.argv[1:]:
        place = Store.at(sys.argv[1])
        for name in sys.argv[2:] or place.slugs():
            write(name, *of_store(place, name))
    else:
        for path in sorted(GOLDEN.glob("*.json.gz")):
            name = path.name.removesuffix(".json.gz")
            write(name, kept(name)["plan"], load(name)[1])
