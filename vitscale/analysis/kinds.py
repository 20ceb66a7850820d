"""All kinds of studies, and the only place that asks for the kind of a study."""

from __future__ import annotations

import difflib

from vitscale.analysis import repeats, shapes
from vitscale.analysis.distribution import words as distribution
from vitscale.analysis.kind import Kind
from vitscale.analysis.profile import words as profile
from vitscale.analysis.scaling import words as scaling
from vitscale.analysis.search import words as search
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
    for what, names, known in (
        ("figures", study.figures, kind.figures),
        ("tables", study.tables, kind.tables),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            law = f"{what} of a study of kind {kind.name} must be among ({', '.join(known)})"
            because = f": {kind.because}" if kind.because else ""
            raise ValueError(f"{law}{because}, but got ({', '.join(unknown)})")
    kind.check(study)
