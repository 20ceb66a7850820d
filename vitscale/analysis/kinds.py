"""All kinds of studies, and the only place that asks for the kind of a study."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from vitscale.analysis import registry, repeats, shapes
from vitscale.analysis.distribution import words as distribution
from vitscale.analysis.kind import Draw, Kind, Table, named
from vitscale.analysis.profile import words as profile
from vitscale.analysis.results import Results
from vitscale.analysis.scaling import words as scaling
from vitscale.analysis.search import words as search
from vitscale.plan.comparisons import Compared
from vitscale.plan.questions import COMPARED
from vitscale.plan.spelling import shown
from vitscale.plan.study import Study

ROOMS = (distribution, repeats, shapes, scaling, profile, search)
KINDS: dict[str, Kind] = {room.KIND.name: room.KIND for room in ROOMS}


def register(kind: Kind) -> Kind:
    """Adds a kind, from the study script that needs it.

    Raises ValueError if the name is taken.
    """
    if KINDS.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"a kind must have a name of its own, but got (name={kind.name!r})")
    return kind


def add_question(
    kind: str,
    *,
    tables: Sequence[Table] = (),
    figures: Sequence[Draw] = (),
    compared: Mapping[str, Compared] = MappingProxyType({}),
    answers: Mapping[str, Callable[[Results], list[str]]] = MappingProxyType({}),
) -> None:
    """Adds tables and figures to a kind, from the study script that needs them.

    A study asks for them by the names of the functions. `compared`: table -> its comparisons of
    arms, from which its rows (`comparisons.table_of`), Holm's correction, the power that --plan
    prints and what plan.json registers follow. `answers`: table -> its sentences in the headline.
    Raises ValueError for an unknown kind and a name that is taken.
    """
    if kind not in KINDS:
        raise ValueError(f"a kind must be among ({', '.join(KINDS)}), but got (kind={kind!r})")
    given, base = {**named(tables), **named(figures)}, KINDS[kind]
    if taken := sorted(given.keys() & {*base.tables, *base.figures, *COMPARED}):
        raise ValueError(f"a table or figure must have a name of its own, but got {shown(taken)}")
    made = replace(
        base,
        tables={**base.tables, **named(tables)},
        figures={**base.figures, **named(figures)},
    )
    KINDS[kind] = made
    COMPARED.update(compared)
    registry.OWN_ANSWERS.update(answers)


def kind_of(study: Study) -> Kind:
    """The kind of a study.

    Raises ValueError if no imported module defines it.
    """
    if study.kind not in KINDS:
        near = difflib.get_close_matches(study.kind, KINDS, n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else "run the study's own script: with --report it draws the report, without it also "
            "updates MLflow"
        )
        raise ValueError(
            f"the kind of a study must be among ({', '.join(KINDS)}), or be registered by the "
            f"script that is run, but got (study={study.slug!r}, kind={study.kind!r}); {hint}"
        )
    return KINDS[study.kind]


def check(study: Study) -> None:
    """Raises ValueError for figures and tables that the kind lacks, and for what the kind refuses.

    For use before training: nothing is computed.
    """
    kind = kind_of(study)
    for what, names, allowed in (
        ("figures", study.figures, kind.figures),
        ("tables", study.tables, kind.tables),
    ):
        unknown = [name for name in names if name not in allowed]
        if unknown:
            law = f"{what} of a study of kind {kind.name} must be among ({', '.join(allowed)})"
            because = f": {kind.because}" if kind.because else ""
            raise ValueError(f"{law}{because}, but got ({', '.join(unknown)})")
    kind.check(study)
