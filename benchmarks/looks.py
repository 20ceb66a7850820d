"""How often a study without any difference claims one, at some look while it grows.

p of single tests over normal seeds of two arms, corrected as reports correct them by their ledger
of looks: nothing declared, a size, or growth without an end (--final-num).

    python benchmarks/looks.py 20000  # studies per cell; prints docs/method.md's table
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from scipy import stats

from vitscale.analysis.looks import place
from vitscale.record.looks import FinalSize, Ledger, Look

SCHEDULES: dict[str, tuple[int, ...]] = {
    "5, 10, 15, 20": (5, 10, 15, 20),
    "2, 3, 4, 5": (2, 3, 4, 5),
    "4, 8, 16, 32, 64": (4, 8, 16, 32, 64),
    "every n of 3 to 40": tuple(range(3, 41)),
}
DECLARED = ("nothing", "first plan twice as large", "`--final-num N`", "`--final-num open`")


def p_values(test: str, schedule: Sequence[int], num: int) -> np.ndarray:
    """(looks, studies) p for n fixed beforehand; sds of the arms are 1 and 2 for Welch's t."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, num, schedule[-1]))
    if test == "paired t":
        return np.array([stats.ttest_1samp(a[:, :n], 0, axis=1).pvalue for n in schedule])
    return np.array(
        [stats.ttest_ind(a[:, :n], 2 * b[:, :n], axis=1, equal_var=False).pvalue for n in schedule]
    )


def looks_at(schedule: Sequence[int], declared: str) -> tuple[list[Look], FinalSize | None]:
    """The ledger of a study that is looked at with so many draws or seeds, and its final size."""
    first = 2 * schedule[0] if declared.startswith("first plan") else schedule[0]
    final = {
        "`--final-num N`": FinalSize(schedule[-1], {"a": schedule[-1]}),
        "`--final-num open`": FinalSize(0, {}),
    }.get(declared)
    looks = [
        Look(str(n), {"a": n}, {"a": first if n == schedule[0] else max(n, first + 1)}, {"p": 1})
        for n in schedule
    ]
    return looks, final


def false_claims(p: np.ndarray, schedule: Sequence[int], declared: str) -> tuple[float, float]:
    """Shares of studies with a claim at some look, and at some look from the second on."""
    looks, final = looks_at(schedule, declared)
    claims = [
        place(Ledger(tuple(looks[:k]), final), look).adjusted(p[k], p[0]) < 0.05
        for k, look in enumerate(looks)
    ]
    return float(np.any(claims, axis=0).mean()), float(np.any(claims[1:], axis=0).mean())


def main(num: int) -> None:
    print("| looks at n =, test | " + " | ".join(DECLARED) + " |")
    print("|---" * (1 + len(DECLARED)) + "|")
    for name, schedule in SCHEDULES.items():
        for test in ("paired t", "Welch"):
            p = p_values(test, schedule, num)
            shares = [false_claims(p, schedule, declared) for declared in DECLARED]
            cells = [
                f"{100 * share:.1f} ± {100 * (share * (1 - share) / num) ** 0.5:.1f} "
                f"({100 * later:.1f})"
                for share, later in shares
            ]
            print(f"| {name}; {test} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
