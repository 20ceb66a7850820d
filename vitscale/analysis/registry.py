"""The functions of the tables, figures and answers of a kind, from the questions of the plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from vitscale.analysis.report.text import about
from vitscale.analysis.results import Results
from vitscale.plan.questions import functions, of_kind

Functions = dict[str, Callable[..., Any]]
OWN_ANSWERS: Functions = {}  # of questions that study scripts add


def tables(kind: str) -> Functions:
    """The tables of a kind by name, as in a study's `tables`."""
    return _functions(kind, "table")


def figures(kind: str) -> Functions:
    """The figures of a kind by name, as in a study's `figures`."""
    return _functions(kind, "figure")


def answers(results: Results) -> list[str]:
    """The sentences of the tables of the study that have some, for its headline."""
    study, every = results.study, dict[str, Callable[[Results], list[str]]]()
    for question in of_kind(study.kind):
        every |= getattr(_module(question.module), "ANSWERS", {})
    every |= OWN_ANSWERS
    return [
        sentence
        for name, answer in every.items()
        if name in study.tables
        for sentence in about(name, answer(results))
    ]


def _functions(kind: str, wanted: str) -> Functions:
    return {
        name: getattr(_module(module), function)
        for what, name, module, function in functions(kind)
        if what == wanted
    }


def _module(name: str) -> Any:
    return importlib.import_module(f"vitscale.analysis.{name}")
