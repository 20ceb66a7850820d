"""How often a study without any difference claims one, at some look while it grows.

p of single tests over normal seeds of two arms, corrected as reports correct them by their ledger
of looks: nothing declared, a size, or growth without an end (--final-num). Then arms that are
complete at different times, of one plan.

    python benchmarks/looks.py 20000  # studies per cell; prints docs/method.md's tables
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from scipy import stats

from vitscale.analysis.estimates import contrast
from vitscale.analysis.report_look import place
from vitscale.record.look_ledger import FinalSize, Ledger, Look

SCHEDULES: dict[str, tuple[int, ...]] = {
    "5, 10, 15, 20": (5, 10, 15, 20),
    "2, 3, 4, 5": (2, 3, 4, 5),
    "4, 8, 16, 32, 64": (4, 8, 16, 32, 64),
    "every n of 3 to 40": tuple(range(3, 41)),
}
# runs of arms a and b at each look; the plan is those of the last
UNEQUAL: dict[str, list[tuple[int, int]]] = {
    "a complete with 20, b 3 to 20": [(20, n) for n in range(3, 21)],
    "a complete with 20, b 2 to 20": [(20, n) for n in range(2, 21)],
    "30 and 6, in six steps": [(5 * n, n) for n in range(1, 7)],
    "a 2 to 20, b half as many": [(2 * n, n) for n in range(1, 11)],
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


def unequal(schedule: Sequence[tuple[int, int]], test: str, num: int) -> float:
    """The share of studies of one plan, sds 1 and 2 for Welch's t, with a claim at some look."""
    rng, claimed = np.random.default_rng(4), np.zeros(num, dtype=bool)
    a, b = (rng.standard_normal((num, size)) for size in schedule[-1])
    size = dict(zip("ab", schedule[-1], strict=True))
    looks = [Look(str(n), dict(zip("ab", n, strict=True)), size, {"p": 1}) for n in schedule]
    for k, (n, m) in enumerate(schedule):
        if test == "known sd":
            z = (a[:, :n].mean(1) - b[:, :m].mean(1)) / (1 / n + 1 / m) ** 0.5
            p = 2 * stats.norm.sf(abs(z))
        else:
            p = np.array(
                [contrast([x[:n], 2 * y[:m]], [1, -1]).p for x, y in zip(a, b, strict=True)]
            )
        claimed |= place(Ledger(tuple(looks[:k])), looks[k]).adjusted(p) < 0.05
    return float(claimed.mean())


def chosen(keys: Sequence[str], tests: Sequence[str], num: int) -> float:
    """The share of studies with a claim if the first of some tests is reported with half of the
    runs, then all of them with the same runs, and the one with the least p with all runs.
    """
    size, half = {"a": 20, "b": 20}, {"a": 10, "b": 10}
    z = np.random.default_rng(6).standard_normal((2, num, len(keys)))
    p = [2 * stats.norm.sf(abs(score)) for score in (z[0], z.sum(0) / 2**0.5)]
    looks = [
        Look(key, half, size, {"p": 1}, {}, {key: {test: 0.5}})
        for key, test in zip(keys, tests, strict=True)
    ]
    of_rows = tuple({look.digest: look for look in reversed(looks)}.values())[::-1]
    ledger = Ledger(of_rows, None, tuple(look for look in looks if look not in of_rows))
    last = place(ledger, Look("whole", size, size, {"p": 1}))
    absent = last.absent(keys[0], tests[:1])
    claimed = place(Ledger(), looks[0]).adjusted(p[0][:, 0]) < 0.05
    least = p[1][np.arange(num), p[0].argmin(1)]
    return float((claimed | (last.adjusted(least) * (1 + absent) < 0.05)).mean())


def main(num: int) -> None:
    six, four = ["metric/p"] * 6, [f"metric {i}/p" for i in range(4)]
    for name, keys in (("pair of six", six), ("metric of four", four)):
        share = chosen(keys, [str(i) for i in range(len(keys))] if keys is six else ["0"] * 4, num)
        print(f"the {name} with the least p at half: {100 * share:.1f}% claim something")
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
    print("\n| runs of a and b | known sd | Welch |\n|---|---|---|")
    for name, pairs in UNEQUAL.items():
        claimed = [unequal(pairs, test, num) for test in ("known sd", "Welch")]
        texts = [f"{100 * x:.1f} ± {100 * (x * (1 - x) / num) ** 0.5:.1f}" for x in claimed]
        print(f"| {name} | " + " | ".join(texts) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
