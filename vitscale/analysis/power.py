"""The power of a plan, before training: the smallest true difference detected with 80% power.

No outcome is read: apart from the numbers of runs, what determines the power is assumed, and the
sentences state the assumptions. The power is that of one comparison at the first, strictest step of
Holm's correction. `SENTENCES` are about tables that compare no arms, `COMPARED` about the others.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import scipy
from scipy.special import betaincinv, ndtr, stdtrit

from vitscale.analysis.questions.seed_precision import of_seeds
from vitscale.analysis.scaling.precision import of_laws
from vitscale.analysis.stats.bands import band_tail, order_bounds
from vitscale.analysis.stats.intervals import LEAST_REFERENCES
from vitscale.plan.comparisons import num_independent
from vitscale.plan.metrics import Metric
from vitscale.plan.questions import COMPARED
from vitscale.plan.study import Study

if TYPE_CHECKING:
    import numpy as np

POWER, ALPHA = 0.8, 0.05
# Assumed where areas are compared: spreads as those on digits, and 8 in 10 draws between 0 and
# `beyond` above the reference. REFERENCE_SD is in tenths of `beyond` (points, for the top-1 error),
# so that one tenth of the reference moves the area by 0.08.
PAIR_SD, SCORE_SD, REFERENCE_SD, SENSITIVITY = 0.25, 0.3, 0.6, 0.08
CORRELATION = 0.5  # assumed, of two runs from one parent
WIDER = 1.6  # times these sds, the second assumption: 0.4 for pairs


def sentences(study: Study) -> list[str]:
    """What the plan can detect: sentences for each kind of comparison in the study's tables."""
    own = [line for name, say in SENTENCES.items() if name in study.tables for line in say(study)]
    compared = (_of_comparisons(study, name) for name in COMPARED if name in study.tables)
    # one sentence for paired and other comparisons of single runs
    return list(dict.fromkeys([*own, *itertools.chain.from_iterable(compared)]))


@functools.lru_cache
def smallest_area(
    n: int, references: int, paired: bool = True, alpha: float = ALPHA, spread: float = 1.0
) -> float:
    """Smallest detectable difference of areas between two arms with n draws each.

    `references` is the number of reference runs per arm. `spread` multiplies the assumed sd of
    score differences, or of scores. A value above 1 means that none is detectable. Simulated with
    normal values, since the test estimates the noise of few references and its df from them.
    """
    import numpy as np

    rng, sims = np.random.default_rng(0), 4000
    sd, df = (PAIR_SD, n - 1) if paired else (2**0.5 * SCORE_SD, 2 * (n - 1))
    noise = (SENSITIVITY * REFERENCE_SD) ** 2 / references
    true = (spread * sd) ** 2 / n
    draws = true * rng.chisquare(df, sims) / df
    of_arms = noise * rng.chisquare(references - 1, (2, sims)) / (references - 1)
    error = draws + of_arms.sum(0)
    freedom = error**2 / (draws**2 / df + (of_arms**2).sum(0) / (references - 1))
    limit = stdtrit(freedom, 1 - alpha / 2) * error**0.5
    off = rng.standard_normal(sims) * (true + 2 * noise) ** 0.5
    # the share POWER of studies is beyond the limit on the side of the difference
    return float(np.quantile(limit - off, POWER))


def smallest_share(n: int, alpha: float = ALPHA) -> float:
    """Smallest difference of shares of n pairs detected by McNemar's mid-p test; 1: none.

    Conditional on the references. Exact, in the best case for the test: the better arm loses no
    draw that the worse arm forgives. Then the mid-p of x discordant pairs is 2^-x.
    """
    needed = next(x for x in range(1, 200) if 0.5**x <= alpha)
    needed = needed if 0.5 ** (n - 1) <= alpha else n + 1  # p is not below that of an exact test
    return float(betaincinv(needed, n - needed + 1, POWER)) if needed <= n else 1.0


def smallest_sign(n: int, alpha: float = ALPHA) -> float:
    """Smallest share of n pairs won, without ties, that the exact sign test detects; NaN: none."""
    needed = int(scipy.stats.binom.isf(alpha / 2, n, 0.5)) + 1
    return float(betaincinv(needed, n - needed + 1, POWER)) if needed <= n else float("nan")


@functools.cache
def smallest_superiority(n: int, alpha: float = ALPHA) -> float:
    """Smallest probability that a draw of one arm is below one of the other which the test of
    Brunner & Munzel detects, for n independent draws per arm; NaN: none.

    Simulated, with normal errors of equal spread: there is no exact power. As in the tables, arms
    that do not overlap are compared by a sign test of n pairs.
    """
    import numpy as np

    samples = min(2000, max(20, 32_000 // n))
    lower, higher = np.random.default_rng(0).standard_normal((2, samples, n))
    within = [_ranks(values) for values in (lower, higher)]

    def missing(shift: float) -> float:
        ranks = _ranks(np.concatenate([lower, higher + shift], axis=1))
        wins = 1 - (ranks[:, :n] - within[0]) / n, (ranks[:, n:] - within[1]) / n
        parts = np.stack([of_arm.var(axis=1, ddof=1) / n for of_arm in wins])
        error = parts.sum(axis=0)
        apart = error < 1e-20
        df = np.where(apart, 1.0, error**2 / np.maximum((parts**2).sum(axis=0), 1e-40)) * (n - 1)
        t = (wins[0].mean(axis=1) - 0.5) / np.sqrt(np.where(apart, 1.0, error))
        rejected = np.where(apart, 2 * 0.5**n <= alpha, abs(t) > stdtrit(df, 1 - alpha / 2))
        return float(rejected.mean()) - POWER

    low, high = 0.0, 8.0
    if n < 2 or missing(high) < 0:
        return math.nan
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if missing(middle) < 0 else (low, middle)
    return float(ndtr(high / math.sqrt(2)))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks within each row, from 1, without ties."""
    return values.argsort(axis=1).argsort(axis=1) + 1.0


def _of_draws(study: Study) -> list[str]:
    """For pairs of arms with draws: forgiveness, if there are references, and absolute error."""
    if not study.pairs:
        return []
    metric = study.column.metric
    n, references = (_fewest(study, drawn) for drawn in (True, False))
    paired, alpha = _pairs_share_points(study), ALPHA / len(study.pairs)
    head = (
        f"{n} draws per arm, {len(study.pairs)} {'pair' if len(study.pairs) == 1 else 'pairs'} of "
        "arms"
    )
    head += ", Holm" if len(study.pairs) > 1 else ""
    parts = []
    if 0 < references < LEAST_REFERENCES:
        parts.append(
            f"forgiveness ({head}): nothing: a test needs at least {LEAST_REFERENCES} reference "
            f"runs per arm, to know their noise ({references} planned)"
        )
    elif references and n > 1:
        parts.append(_forgiveness(head, metric, n, references, paired, alpha))
    if paired:
        share = smallest_sign(n, alpha)
        detectable = f"an arm that is truly lower at {100 * share:.0f}% of the points"
    else:
        share = smallest_superiority(n, alpha)
        detectable = (
            f"an arm of which a draw is truly lower than one of the other in {100 * share:.0f}% of "
            "cases (normal values of equal spread are assumed)"
        )
    test = "sign test" if paired else "Brunner-Munzel"
    detectable = "no difference" if math.isnan(share) else detectable
    return [*parts, f"absolute {metric.label} ({head}; {test}): {detectable}"]


def _forgiveness(
    head: str, metric: Metric, n: int, references: int, paired: bool, alpha: float
) -> str:
    area, share = smallest_area(n, references, paired, alpha), smallest_share(n, alpha)
    wider = smallest_area(n, references, paired, alpha, WIDER)
    sd = PAIR_SD if paired else SCORE_SD
    spread = f"{'score differences' if paired else 'scores'} of sd {sd}"
    text = f"forgiveness ({head}, {references} reference runs): " + (
        f"a difference of {area:.2f} in area, the primary comparison (t; assumed: {spread}, "
        f"references of sd {metric.apart(REFERENCE_SD * metric.beyond / 10)}, 8 in 10 draws within "
        f"{metric.apart(metric.beyond)}; {wider:.2f} for an sd of {WIDER * sd:g}, as where draws "
        "of one arm diverge)"
        if area <= 1
        else "no difference in area"
    )
    if not paired:
        return text
    points = f"{100 * share:.0f} percentage points" if share < 1 else "none"
    return (
        f"{text}; of the share within {metric.apart(metric.near)} {points} (McNemar's mid-p, "
        "conditional on the references, none lost)"
    )


def _fewest(study: Study, drawn: bool) -> int:
    """The smallest number of draws, or of reference runs, of an arm among the pairs."""
    number = Counter(trial.arm.name for trial in study.trials if (trial.point is not None) == drawn)
    return min(number[arm] for pair in study.pairs for arm in pair)


def _pairs_share_points(study: Study) -> bool:
    draws = {
        (t.arm.name, t.point): (t.config.lr, t.config.wd)
        for t in study.trials
        if t.point is not None
    }
    points = {t.point for t in study.trials if t.point is not None}
    return all(
        draws.get((a, point)) == draws.get((b, point)) for a, b in study.pairs for point in points
    )


def _of_tuning(study: Study) -> list[str]:
    """Up to which k the band of the best of k draws has a low end: beyond it, none can be lower."""
    n = min(Counter(t.arm.name for t in study.trials if t.point is not None).values(), default=0)
    head = f"best of k draws ({n} draws per arm)"
    # the most that a share can be below the lowest draw, by a band of 97.5%
    most = float(order_bounds(n, band_tail(n, 0.975, one_sided=True))[1][0]) if n > 1 else 1.0
    largest = math.ceil(-1 / math.log2(1 - most)) - 1 if most < 0.5 else 0
    if not largest:
        return [f"{head}: nothing: no 95% band has a low end"]
    return [
        f"{head}: a lower median up to k = {largest}, where 95% bands have a low end; none beyond"
    ]


# ---- arms that are one setting, trained with several seeds


@functools.cache
def smallest_mean(n: int, comparisons: int = 1, weights: tuple[float, ...] = (1, -1)) -> float:
    """Smallest difference of means, in sd of a seed, that Welch's t test detects.

    Each arm has n runs; all sds are equal; at the strictest step of Holm's correction; `weights`
    are those of the arms. Simulated, since the test estimates its degrees of freedom, too: over
    10,000 samples without a difference, the quantile of the shift above which each is rejected.
    """
    import numpy as np

    estimates, errors, df = _welch(n, weights)
    return float(np.quantile(stdtrit(df, 1 - ALPHA / comparisons / 2) * errors - estimates, POWER))


@functools.cache
def smallest_margin(n: int, comparisons: int = 1, weights: tuple[float, ...] = (1, -1)) -> float:
    """Smallest margin, in sd of a seed, within which two one-sided tests show arms without a
    difference to be equivalent; otherwise as smallest_mean.
    """
    import numpy as np

    estimates, errors, df = _welch(n, weights)
    return float(np.quantile(stdtrit(df, 1 - ALPHA / comparisons) * errors + abs(estimates), POWER))


def _welch(n: int, weights: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(10,000,) estimates without a difference, their standard errors and df."""
    import numpy as np

    runs = np.random.default_rng(0).standard_normal((10_000, len(weights), n))
    parts = np.square(weights) * runs.var(axis=2, ddof=1) / n
    df = parts.sum(axis=1) ** 2 / (parts**2 / (n - 1)).sum(axis=1)
    return runs.mean(axis=2) @ np.array(weights), np.sqrt(parts.sum(axis=1)), df


def _of_means(
    study: Study, what: str, comparisons: int, weights: tuple[float, ...], paired: bool = False
) -> list[str]:
    if not comparisons:
        return []
    starts: dict[tuple[str, float], list[str]] = {}
    for t in study.trials:
        if t.point is not None:
            start = t.config.init_from or t.config.id
            starts.setdefault((t.arm.name, t.config.lr), []).append(start)
    n = min(map(num_independent, starts.values()))
    head = (
        f"{what} ({n} seed{'s' * (n > 1)} per cell, {comparisons} "
        f"comparison{'s' * (comparisons > 1)}"
    )
    head += ", Holm)" if comparisons > 1 else ")"
    if n == 1:
        return [f"{head}: nothing: single runs have no spread"]
    test = "Welch's t; equal sds are assumed"
    if paired:  # the sd of a weighted sum within a parent, as one run
        weights = (math.sqrt((1 - CORRELATION) * sum(weight**2 for weight in weights)),)
        test = f"paired t by parent; equal sds and a correlation of {CORRELATION:g} are assumed"
    sds, margin = (f(n, comparisons, weights) for f in (smallest_mean, smallest_margin))
    if n == 2:
        return [
            (
                f"{head}: nothing that two seeds per cell could be expected to show: above "
                f"{sds:.0f} sd of a seed"
            )
        ]
    return [
        f"{head}: a true difference of {sds:.1f} sd of a seed, or equivalence within a margin of "
        f"{margin:.1f} sd where there is none ({test})"
    ]


def _of_comparisons(study: Study, name: str) -> list[str]:
    """The statements about the families of a table."""
    compared, label = COMPARED[name], study.column.metric.label
    families = compared.families(study)
    return [
        sentence
        for family, what in compared.what.items()
        for paired in (True, False)
        if (family, paired) in families
        for sentence in _of_means(
            study, what.format(metric=label), *families[family, paired], paired
        )
    ]


SENTENCES: dict[str, Callable[[Study], list[str]]] = {  # table -> what its tests can show
    "arm_comparison": _of_draws,
    "tuning_budget": _of_tuning,
    "scaling_fit": of_laws,
    "seed_statistics": of_seeds,
}
