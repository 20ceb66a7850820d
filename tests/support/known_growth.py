"""How often a growing study of draws without any difference claims one, at some look.

`python tests/support/known_growth.py 1000` prints it for areas and ratios of two equal arms in the
populations of populations.py, by what was declared; docs/method.md has the results. The
references are the same runs at every look.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from populations import POPULATIONS, Draw, studies

from benchmarks.looks import DECLARED, looks_at
from vitscale.analysis.distribution import anytime
from vitscale.analysis.distribution.forgiveness import forgiveness
from vitscale.analysis.distribution.population import Population
from vitscale.analysis.report_look import place
from vitscale.record.look_ledger import Ledger

Pair = tuple[Population, Population]
TESTS = ("area", "ratio")
SCHEDULES = {(4, 8, 12, 16): 5, (8, 16, 32, 64): 3}  # looks at n draws -> references per arm
SD = 0.6  # of a reference run, in points


def first(arm: Population, n: int) -> Population:
    """The arm when it had n draws."""
    return replace(arm, point=arm.point[:n], error=arm.error[:n], status=arm.status[:n])


def p_values(pairs: Sequence[Pair], schedule: Sequence[int]) -> dict[str, np.ndarray]:
    """Test -> (looks, studies) p for n fixed beforehand; "anytime": that of areas by betting."""
    grown = [[(first(a, n), first(b, n)) for a, b in pairs] for n in schedule]
    found = [[forgiveness(a, b, True) for a, b in look] for look in grown]
    p = {
        test: np.array([[row[f"{test}_p"] for row in look] for look in found], dtype=float)
        for test in TESTS
    }
    p["anytime"] = np.array([[anytime.area_difference(a, b, True)[3] for a, b in x] for x in grown])
    return p


def false_claims(
    p: np.ndarray, at_any_look: np.ndarray, schedule: Sequence[int], declared: str
) -> tuple[float, float]:
    """Shares of studies with a claim at some look, and at some look from the second on."""
    looks, final = looks_at(schedule, declared)
    claims = np.zeros(p.shape, dtype=bool)
    for k, look in enumerate(looks):
        placed = place(Ledger(tuple(looks[:k]), final), look)
        for i in range(p.shape[1]):
            (corrected,) = placed.corrected([p[k, i]], [at_any_look[k, i]], [p[0, i]])
            claims[k, i] = corrected < 0.05
    return float(claims.any(axis=0).mean()), float(claims[1:].any(axis=0).mean())


def growing(draw: Draw, schedule: Sequence[int], num: int) -> dict[str, dict[str, list[float]]]:
    """Test -> what was declared -> the two shares; "not corrected" among them."""
    pairs = studies(draw, schedule[-1], SCHEDULES[tuple(schedule)], SD, num, seed=11)
    p = p_values(pairs, schedule)
    none = np.full_like(p["anytime"], np.nan)
    shares: dict[str, dict[str, list[float]]] = {}
    for test in TESTS:
        of_betting = p["anytime"] if test == "area" else none
        raw = p[test] < 0.05
        shares[test] = {"not corrected": [raw.any(axis=0).mean(), raw[1:].any(axis=0).mean()]}
        for declared in DECLARED:
            shares[test][declared] = list(false_claims(p[test], of_betting, schedule, declared))
    return shares


def main(num: int) -> None:
    print("| looks at n =, references, test | " + " | ".join(("not corrected", *DECLARED)) + " |")
    print("|---" * (2 + len(DECLARED)) + "|")
    for schedule, k in SCHEDULES.items():
        made = {name: growing(draw, schedule, num) for name, draw in POPULATIONS.items()}
        for test in TESTS:
            cells = []
            for declared in ("not corrected", *DECLARED):
                both = 100 * np.array([made[name][test][declared] for name in POPULATIONS])
                (low, later), (high, most) = both.min(axis=0), both.max(axis=0)
                cells.append(f"{low:.1f} to {high:.1f} ({later:.1f} to {most:.1f})")
            at = ", ".join(map(str, schedule))
            print(f"| {at}; {k}; {test} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
