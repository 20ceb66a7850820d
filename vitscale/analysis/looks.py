"""Which look at a study a report is, and what it says about that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from vitscale.analysis.results import Results
from vitscale.analysis.stats.looks import ALPHA, Looks
from vitscale.plan.study import Study
from vitscale.record.looks import Ledger, Look, sizes


def look_of(study: Study, trials: pd.DataFrame) -> Look:
    """What a report of these outcomes sees; `tested` and `claimed` are for `with_claims`."""
    done = set(trials.loc[trials["status"] != "missing", "trial_id"])
    rows = sorted(
        (trial_id, str(status), repr(error))
        for trial_id, status, error in zip(
            trials["trial_id"], trials["status"], trials["error_pct"], strict=True
        )
        if trial_id in done
    )
    digest = hashlib.sha256(json.dumps([study.metric, rows]).encode()).hexdigest()
    planned = sizes(study.trials)
    of_draws = [trial for trial in study.trials if trial.config.id in done]
    drawn = {trial.arm.name for trial in study.trials if trial.point is not None}
    seen = dict.fromkeys(planned, 0) | sizes(
        trial for trial in of_draws if trial.point is not None or trial.arm.name not in drawn
    )
    return Look(digest, seen, planned)


def with_claims(look: Look, results: Results) -> Look:
    """The look with the numbers of p and of claims that its report made."""
    return replace(
        look,
        tested={name: num for name, (num, _) in results.tests.items()},
        claimed={name: num for name, (_, num) in results.tests.items()},
    )


def place(ledger: Ledger, look: Look) -> Looks:
    """The place of a report among the looks so far, of which those without any p do not count.

    Without a declared size, a plan that stays the same is one: all of it was fixed before the
    first look. Nothing is left to spend on rows that replace others, such as those of trials that
    were trained again, so p are anytime-valid there.
    """
    past = [old for old in ledger.looks if any(old.tested.values())]
    digests = [old.digest for old in past]
    if look.digest in digests:
        past = past[: digests.index(look.digest)]
    seen = [*past, look]
    same_plan = all(old.planned == look.planned for old in past)
    size = ledger.final.planned if ledger.final else look.planned if same_plan else {}
    fractions = _fractions(seen, size) if size else ()
    is_new = len(fractions) < 2 or fractions[-1] > fractions[-2]
    n = [num for num in look.seen.values() if num]
    return Looks(
        len(seen),
        fractions if is_new else (),
        sum(n) / max(len(n), 1),
        ledger.final.num if ledger.final else 0,
    )


def next_look(ledger: Ledger, planned: Mapping[str, int]) -> Looks:
    """The place of a look at new rows that sees the whole of a plan."""
    return place(ledger, Look("", planned, planned))


def _fractions(looks: Sequence[Look], size: Mapping[str, int]) -> tuple[float, ...]:
    """Shares of a size at each look, which never fall."""
    shares, most = [], 0.0
    for look in looks:
        num = sum(min(look.seen.get(arm, 0), of_arm) for arm, of_arm in size.items())
        most = max(most, num / sum(size.values()))
        shares.append(most)
    return tuple(shares)


def sentences(results: Results) -> list[str]:
    """What p and claims of a report hold for; nothing for one look at a whole study."""
    looks = results.looks
    if looks.rule == "fixed" or not any(num for num, _ in results.tests.values()):
        return []
    single = f"a single test needs p < {looks.threshold:.2g} for its n"
    if looks.rule == "anytime":
        why = (
            "at other rows of a study of its final size"
            if looks.final_num
            else "at a study whose final size was not declared (--final-num)"
        )
        return [
            f"This is look {looks.number} {why}: p and claims are anytime-valid ({single}). "
            "Intervals and bands are for n fixed beforehand, but those named anytime."
        ]
    size = f"--final-num {looks.final_num}" if looks.final_num else "its plan"
    return [
        f"This is look {looks.number}, at {100 * looks.fractions[-1]:.0f}% of the final size "
        f"({size}): p and claims spend {100 * looks.spent:.2g} of {100 * ALPHA:g}% error so far "
        f"(O'Brien-Fleming type; {single}). Intervals and bands are for n fixed beforehand."
    ]
