"""Which look at a study a report is, and what it says about that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, takewhile

import pandas as pd

from vitscale.analysis.results import Results
from vitscale.analysis.stats.sequential import ALPHA, OPEN_FIRST, Looks, spent_at
from vitscale.plan.study import Study
from vitscale.record.look_ledger import OPEN, Ledger, Look, sizes

ROUNDING = 1e-9  # of an error that is spent


def look_of(study: Study, trials: pd.DataFrame) -> Look:
    """What a report of these outcomes sees; `tested` and `claimed` are for `with_claims`."""
    done = set(trials.loc[trials["status"] != "missing", "trial_id"])
    rows = sorted(
        (trial_id, str(status), repr(error))
        for trial_id, status, error in zip(
            trials["trial_id"], trials["status"], trials["value"], strict=True
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
        p=results.p,
    )


def place(ledger: Ledger, look: Look) -> Looks:
    """The place of a report among the looks so far, of which those without any p do not count.

    Without a declared size, a plan that stays the same is one: all of it was fixed before the
    first look. Nothing is left to spend on rows that replace others, such as those of trials that
    were trained again. What a plan that grew has left is what its looks before had not spent. Where
    nothing is left, no p falls below that of the first look that spent it.
    """
    past = [old for old in ledger.looks if any(old.tested.values())]
    of_p, of_all = (
        list(takewhile(lambda old: old.digest != look.digest, looks))
        for looks in (past, ledger.looks)
    )
    same = next((old for old in past if old.digest == look.digest), None)
    tested: dict[str, set[str]] = {}
    digests = {old.digest for old in of_p}
    for old in (*of_p, *(repeat for repeat in ledger.again if repeat.digest in digests)):
        for column, of_tests in old.p.items():
            tested.setdefault(column, set()).update(of_tests)
    again = None if same is None else same.p
    placed = _place(ledger, look, of_p)
    return replace(placed, reports=len(of_all) + 1, again=again, tested=tested)


def _place(ledger: Ledger, look: Look, past: Sequence[Look]) -> Looks:
    """The same, with the looks before that count."""
    seen = [*past, look]
    num, n = len(seen), _runs(look.seen)
    if ledger.final and ledger.final.is_open:
        share = OPEN_FIRST if num == 1 else 1 - OPEN_FIRST
        return Looks(num, (), n, growth="open", budget=ALPHA * share)
    final_num = ledger.final.num if ledger.final else 0
    size = ledger.final.planned if ledger.final else seen[0].planned
    if not ledger.final and any(old.planned != size for old in seen):  # it grew
        of_first_plan = list(takewhile(lambda old: old.planned == size, past))
        shares = _fractions(of_first_plan, size)
        left = ALPHA - spent_at(shares[-1])
        if left > ROUNDING:
            return Looks(num, (), n, growth="grown", budget=left)
        kept = of_first_plan[shares.index(shares[-1])].p
        return Looks(num, (), n, growth="grown", budget=0.0, kept=kept)
    fractions = _fractions(seen, size)
    if len(fractions) > 1 and 0 < fractions[-1] <= fractions[-2]:
        kept = seen[fractions.index(fractions[-1])].p
        return Looks(num, (), n, final_num, growth="replaced", budget=0.0, kept=kept)
    return Looks(num, fractions, n, final_num)


def next_look(ledger: Ledger, planned: Mapping[str, int]) -> Looks:
    """The place of a look at new rows that sees the whole of a plan."""
    return place(ledger, Look("", planned, planned))


def _fractions(looks: Sequence[Look], size: Mapping[str, int]) -> tuple[float, ...]:
    """Shares of the information of a size at each look, which never fall: those of the pair of arms
    that has least. That of a difference of means is the harmonic mean of both numbers.
    """
    shares, most = [], 0.0
    for look in looks:
        of_arms = {arm: min(look.seen.get(arm, 0), num) for arm, num in size.items()}
        most = max(most, min(_information(of_arms, pair, size) for pair in _pairs(size)))
        shares.append(most)
    return tuple(shares)


def _pairs(size: Mapping[str, int]) -> list[tuple[str, ...]]:
    """All pairs of arms with draws or seeds; an arm alone if it is the only one."""
    arms = [arm for arm, num in size.items() if num]
    return list(combinations(arms, 2)) or [tuple(arms)]


def _runs(seen: Mapping[str, int]) -> float:
    """Draws or seeds of the pair of arms that has fewest: the harmonic mean of both numbers."""
    fewest = sorted(num for num in seen.values() if num)[:2]
    return len(fewest) / sum(1 / num for num in fewest) if fewest else 0.0


def _information(seen: Mapping[str, int], pair: Sequence[str], size: Mapping[str, int]) -> float:
    """The share of the information about a difference that these draws or seeds have."""
    if not pair or not all(seen[arm] for arm in pair):
        return 0.0
    return sum(1 / size[arm] for arm in pair) / sum(1 / seen[arm] for arm in pair)


def sentences(results: Results, uncorrected: str = "") -> list[str]:
    """What p and claims of a report hold for; nothing for one look at a whole study. `uncorrected`:
    what the kind of study reports without any p.
    """
    looks, later = results.looks, []
    if uncorrected and looks.reports > 1:
        later = [
            f"This is report {looks.reports} of a study whose rows were others before: the "
            f"intervals of {uncorrected} are each for one look at a size fixed beforehand, and are "
            "not corrected for the reports."
        ]
    if results.late:
        later = [
            f"{results.late} tests were not made by the first report of these rows. They may have "
            "been chosen by their results, so their corrected p is 1.",
            *later,
        ]
    if looks.is_plain or not any(num for num, _ in results.tests.values()):
        return later
    intervals = "Intervals and bands are for n fixed beforehand" + (
        ", but those named anytime." if looks.number > 1 else "."
    )
    return [f"This is look {looks.number}{_rule(looks)} {intervals}", *later]


def _rule(looks: Looks) -> str:
    """What a look is at, and what its claims may spend."""
    single = f"a single test needs p < {looks.threshold:.2g} for its n"
    if looks.rule == "spending":
        size = f"--final-num {looks.final_num}" if looks.final_num else "its plan"
        return (
            f", at {100 * looks.fractions[-1]:.0f}% of the final size ({size}): p and claims spend "
            f"{100 * looks.spent:.2g} of {100 * ALPHA:g}% error so far (O'Brien-Fleming type; "
            f"{single})."
        )
    error = f"{100 * looks.budget:.2g}% error"
    if looks.growth == "open":
        kind = " are" if looks.rule == "fixed" else " are anytime-valid and"
        return (
            f" at a study without a declared end (--final-num {OPEN}): p and claims{kind} "
            f"within {error} ({single})."
        )
    kept = "what was claimed then can be kept, and there are no new claims."
    if looks.growth == "replaced":
        return (
            " at rows that replace others, or add none to the pair of arms with fewest: the error "
            "for their number is spent, so no corrected p is below that of the first look at as "
            f"many: {kept}"
        )
    where = (
        "at a study that grew beyond its first plan, and whose final size was not declared "
        "(--final-num)"
    )
    if not looks.budget:
        return (
            f" {where}: the looks before it have spent the {100 * ALPHA:g}% error, so no corrected "
            f"p is below that of the first look at the size that was planned: {kept}"
        )
    return (
        f" {where}: p and claims are anytime-valid within the {error} that the looks before "
        f"it left ({single})."
    )
