"""The functions of the tables, figures and answers of a kind, from the questions of the plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from vitscale.analysis.results import Results
from vitscale.plan.questions import of_kind

Functions = dict[str, Callable[..., Any]]


def tables(kind: str) -> Functions:
    """The tables of a kind by name, as in a study's `tables`."""
    return {name: getattr(_module(of.module), name) for of in of_kind(kind) for name in of.tables}


def figures(kind: str) -> Functions:
    """The figures of a kind by name, as in a study's `figures`."""
    return {
        name: getattr(_module(of.drawn or of.module), f"{name}_figure" * (name in every) or name)
        for every in [tables(kind)]
        for of in of_kind(kind)
        for name in of.figures
    }


def answers(results: Results) -> list[str]:
    """The sentences of the tables of the study that have some, for its headline."""
    study, every = results.study, dict[str, Callable[[Results], list[str]]]()
    for of in of_kind(study.kind):
        every |= getattr(_module(of.module), "ANSWERS", {})
    asked = [answer for name, answer in every.items() if name in study.tables]
    return [sentence for answer in asked for sentence in answer(results)]


def _module(name: str) -> Any:
    return importlib.import_module(f"vitscale.analysis.{name}")
