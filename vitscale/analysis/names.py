"""The check of a plan's tables and figures, in a moment where all of them are ours."""

from __future__ import annotations

from vitscale.plan.kinds import check_use
from vitscale.plan.questions import of_kind
from vitscale.plan.study import Study


def check_known_names(study: Study) -> None:
    """Raises ValueError as vitscale.analysis.kinds.check does, which it calls only for kinds of a
    user's own and names that are not listed.

    Also for what the kind would ignore, of which a stored study is still reported.
    """
    check_use(study)
    names = {name for q in of_kind(study.kind) for name in (*q.tables, *q.figures)}
    if not names.issuperset((*study.figures, *study.tables)):
        from vitscale.analysis.kinds import check

        check(study)
