"""The report of a study: figures, tables and one self-contained page; it can be drawn again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from vitscale.analysis import report_look
from vitscale.analysis.kind import Kind, Summary, mixed_evaluations, provenance
from vitscale.analysis.kinds import check, kind_of
from vitscale.analysis.report import text
from vitscale.analysis.report.page import TEMPLATE
from vitscale.analysis.report.save import as_files, inline
from vitscale.analysis.results import Results
from vitscale.record.table import ROW_COLUMNS, axes_of, with_fields
from vitscale.record.workdir import Workdir

PAGE = "report.html"
LINKS = ("MLflow", "trials", "documentation")  # facts that are addresses
MOST_ROWS = 12  # of a table that is not folded
TRIALS, ROWS = "trials", "rows"  # one row per trial; one row per trial and evaluation
OF_TABLES, OF_FIGURES = ("csv", "md", "tex", "parquet"), ("png", "svg", "pdf")
FORMATS = ("html", *OF_TABLES, *OF_FIGURES)


def write_report(
    results: Results,
    folder: Workdir,
    facts: Mapping[str, str],
    formats: Collection[str] = FORMATS,
) -> str:
    """Writes figures, tables, what they are made of, and report.html into `folder`; returns the
    page, or "" if "html" is not among the formats. Files of other formats stay as they are.

    Each table is made once, and all that figures and sentences use is written as parquet. `facts`
    are shown as they are, "command" as the way to run it again. Works on an unfinished study and
    says what is missing. Raises ValueError for a figure or table that does not exist.
    """
    study = results.study
    check(study)
    kind = kind_of(study)
    drawn = study.figures if {"html", *OF_FIGURES} & set(formats) else ()
    endings = {*formats, *(["svg"] if "html" in formats else [])}
    figures = [_figure(name, kind, results, folder, endings, formats) for name in drawn]
    made = study.tables if {"html", *OF_TABLES} & set(formats) else ()
    tables = [_table(name, kind, results, folder, formats) for name in made]
    if "parquet" in formats:
        _write_parquet(results, folder)
    page = _page(results, facts, figures, tables) if "html" in formats else ""
    if page:
        folder.write(PAGE, page.encode())
    return page


def _page(
    results: Results,
    facts: Mapping[str, str],
    figures: Sequence[Mapping[str, str]],
    tables: Sequence[Mapping[str, Any]],
) -> str:
    study, kind = results.study, kind_of(results.study)
    return _render(
        {
            "study": study,
            "facts": dict(facts),
            "links": LINKS,
            "most_rows": MOST_ROWS,
            "headline": headline(results),
            "explanation": kind.explain(study),
            "unfinished": kind.unfinished(results),
            "figures": figures,
            "tables": tables,
            "design": text.as_text(kind.design(study)),
            "design_words": kind.design_text(study),
            "populations": text.as_text(kind.counts(results)),
            "caveats": caveats(results),
        }
    )


def _write_parquet(results: Results, folder: Workdir) -> None:
    """Writes what the report is made of: trials, rows, and every table that a figure, a sentence or
    the summary asked for.
    """
    headline(results), caveats(results), summary(results)  # whatever the formats are
    made = results.made(kind_of(results.study).tables)
    for name, table in {TRIALS: results.trials, **made}.items():
        folder.write(f"{name}.parquet", table.to_parquet(None, index=False))
    folder.write(f"{ROWS}.parquet", partial(_write_rows, results))


def _write_rows(results: Results, file: BinaryIO) -> None:
    """Writes all rows, with the fields of their configs, as parquet."""
    writer = None
    # repeated fields as numbers of a dictionary; values of rows are all different
    fields = [*ROW_COLUMNS, *axes_of(results.study)]
    for part in with_fields(results.study, results.rows, results.trials):
        table = pa.Table.from_pandas(part, writer and writer.schema, preserve_index=False)
        writer = writer or pq.ParquetWriter(file, table.schema, use_dictionary=fields)
        writer.write_table(table)
    assert writer
    writer.close()


def headline(results: Results) -> list[str]:
    """The answer of a study in a few plain sentences, with n and
    intervals, claiming no more than the tests do.
    """
    kind = kind_of(results.study)
    lines = [*results.once(kind.headline), *report_look.sentences(results, kind.uncorrected)]
    return [*mixed_evaluations(results.trials), *lines]


def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number, a
    sentence each; code, versions and machines last.
    """
    return [*results.once(kind_of(results.study).caveats), *results.once(provenance)]


def summary(results: Results) -> Summary:
    """The existing numbers of each arm, for one-line summaries of a study."""
    return results.once(kind_of(results.study).summary)


def _figure(
    name: str,
    kind: Kind,
    results: Results,
    folder: Workdir,
    endings: Collection[str],
    formats: Collection[str],
) -> dict[str, str]:
    """Writes a figure; returns what the page shows of it, which has no drawing without "html"."""
    files = as_files(kind.figures[name](results), endings)
    for ending in files.keys() & set(formats):
        folder.write(f"{name}.{ending}", files[ending])
    drawing = inline(files["svg"].decode(), name) if "html" in formats else ""
    return {"svg": drawing, "name": name, "caption": _doc(kind.figures[name])}


def _table(
    name: str, kind: Kind, results: Results, folder: Workdir, formats: Collection[str]
) -> dict[str, Any]:
    make = kind.tables[name]
    table, metric = results.once(make), results.metric
    shown, caption = text.in_reading_order(table), _doc(make)
    texts: dict[str, Callable[[], str]] = {
        "csv": lambda: table.to_csv(index=False),
        "md": lambda: text.to_markdown(shown, metric),
        "tex": lambda: text.to_latex(shown, name, caption, metric),
    }
    for ending in texts.keys() & set(formats):
        folder.write(f"{name}.{ending}", texts[ending]().encode())
    return {"name": name, "caption": caption, "cells": text.as_text(shown, metric)}


def _doc(function: Callable[..., Any]) -> str:
    """The docstring, a line for each paragraph: a caption that cannot drift from the code."""
    return "\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))


def _render(page: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["in_words"] = text.in_words
    environment.filters["code"] = lambda caption: Markup(
        text.CODE.sub(r"<code>\1</code>", str(escape(caption)))
    )
    return environment.from_string(TEMPLATE).render(**page)
