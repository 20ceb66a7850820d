"""Statistics of the spread over seeds of one setting, of plain arrays."""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
import scipy
from scipy.special import ndtr

from vitscale.analysis.stats.intervals import clopper_pearson

ALPHA = 0.05
MAX_SEEDS = 10**6
# equal errors of a few runs are rounding to whole images, and no proof of no noise
NO_SPREAD = 1e-9


def expected_maximum(n: int) -> float:
    """Expected largest of n independent standard normal values; the expected smallest is its
    negative.
    """
    if n < 2:
        return 0.0
    density = scipy.stats.norm.pdf
    return float(
        scipy.integrate.quad(
            lambda z: z * n * density(z) * ndtr(z) ** (n - 1), -8, 12, points=(0.0, 3.0)
        )[0]
    )


def position_among(values: np.ndarray, reference: float) -> dict[str, float]:
    """Position of one more value among (n,) values: z, percentile in percent with its interval, and
    p.

    z is in standard deviations (ddof=1) from the mean. The percentile is the share of values below
    it, with ties counted half, and has the interval of Clopper and Pearson. p tests whether the
    value is a draw of the same distribution: z / sqrt(1 + 1/n) has Student's t with n - 1 degrees
    of freedom for normal values. NaN for fewer than two values.
    """
    n = len(values)
    names = ("z", "percentile_pct", "percentile_pct_low", "percentile_pct_high", "p")
    sd = float(np.std(values, ddof=1)) if n > 1 else 0.0
    if sd < NO_SPREAD or np.isnan(reference):
        return dict.fromkeys(names, np.nan)
    z = (reference - float(np.mean(values))) / sd
    below = float((values < reference).sum() + 0.5 * (values == reference).sum())
    low, high = clopper_pearson(below, n)
    p = 2 * float(scipy.stats.t.sf(abs(z) / np.sqrt(1 + 1 / n), n - 1))
    return dict(
        zip(names, (z, 100 * below / n, 100 * float(low), 100 * float(high), p), strict=True)
    )


def normality(values: np.ndarray) -> dict[str, float]:
    """Shapiro and Wilk's W and p for (n,) values, skewness and excess kurtosis (unbiased); NaN
    where undefined.

    A small p is evidence against a normal distribution, or for errors rounded to few distinct
    values, which the test cannot distinguish. A large p is not evidence for one: `shapiro_power`
    gives the power of n values.
    """
    n = len(values)
    if n < 4 or np.ptp(values) < NO_SPREAD:
        return dict.fromkeys(("shapiro_w", "shapiro_p", "skewness", "excess_kurtosis"), np.nan)
    w, p = scipy.stats.shapiro(values)
    shape = scipy.stats.skew(values, bias=False), scipy.stats.kurtosis(values, bias=False)
    return {
        "shapiro_w": float(w),
        "shapiro_p": float(p),
        "skewness": float(shape[0]),
        "excess_kurtosis": float(shape[1]),
    }


@functools.cache
def shapiro_power(n: int, alternative: str, *, step: float = 0.0, num: int = 500) -> float:
    """Share of `num` simulated samples of n in which Shapiro-Wilk has p < 0.05, from seed 0.

    Alternatives: "heavy", Student's t with 4 df; "skewed", chi-square with 8 df, of skewness 1;
    "normal", for which it is the test's level. `step`: samples are rounded to multiples of it, in
    units of the alternative.
    """
    rng = np.random.default_rng(0)
    samples = {
        "heavy": lambda: rng.standard_t(4, (num, n)),
        "skewed": lambda: rng.chisquare(8, (num, n)),
        "normal": lambda: rng.standard_normal((num, n)),
    }[alternative]()
    samples = np.round(samples / step) * step if step else samples
    return float(np.mean([scipy.stats.shapiro(sample).pvalue < ALPHA for sample in samples]))


def normality_power(values: np.ndarray, images: int | None) -> dict[str, float]:
    """How often the test of `normality` has p < 0.05 at this n, in percent: for Student's t with 4
    df, for a chi-square of skewness 1, and for a normal distribution of this sd that is rounded to
    whole images; NaN where undefined.
    """
    n, names = len(values), ("finds_heavy_tails_pct", "finds_skew_pct", "rejects_for_rounding_pct")
    if n < 4 or np.ptp(values) < NO_SPREAD:
        return dict.fromkeys(names, np.nan)
    step = 100 / images / float(values.std(ddof=1)) if images else 0.0
    shares = (
        shapiro_power(n, "heavy"),
        shapiro_power(n, "skewed"),
        shapiro_power(n, "normal", step=step),
    )
    return dict(zip(names, (100 * share for share in shares), strict=True))


def extremes(values: np.ndarray) -> dict[str, float]:
    """Largest and smallest of (n,) values in sd from their mean, and the expected largest."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    if sd < NO_SPREAD:
        return dict.fromkeys(("max_z", "min_z", "expected_max_z"), np.nan)
    z = (values - values.mean()) / sd
    return {
        "max_z": float(z.max()),
        "min_z": float(z.min()),
        "expected_max_z": expected_maximum(len(values)),
    }


def sampling_error(error_pct: float, num_images: int) -> float:
    """Standard error of the error rate of one run over samples of `num_images` images, in points:
    sqrt(p (1 - p) / N).

    It applies to one trained network on other images. For the mean over several seeds it is an
    upper bound: images that only some seeds classify correctly average out, which leaves
    sqrt(Var(p_i) / N), where p_i is the share of seeds that are wrong about image i. The table
    seed_spread estimates it.
    """
    share = error_pct / 100
    return 100 * math.sqrt(share * (1 - share) / num_images)


def seeds_needed(
    difference: float,
    sd: float,
    power: float = 0.8,
    *,
    alpha: float = ALPHA,
    correlation: float | None = None,
) -> int:
    """Seeds per arm for which a two-sided t test detects a true difference of means with this
    power.

    Two arms of independent runs with one sd; with `correlation`, that of two arms at a shared seed,
    the number of pairs. Assumes normal errors and a known sd (see its interval). At least 2, at
    most a million. Raises ValueError for a difference or sd that is not positive.
    """
    from statsmodels.stats.power import TTestIndPower, TTestPower

    if not (difference > 0 and sd > 0):
        raise ValueError(
            f"difference > 0 and sd > 0 must hold, but got (difference={difference}, sd={sd})"
        )
    spread = sd if correlation is None else sd * math.sqrt(2 * (1 - correlation))
    test = TTestIndPower() if correlation is None else TTestPower()

    def enough(n: int) -> bool:
        reached = test.power(difference / spread, n, alpha)
        # NaN: far beyond the reach of the noncentral t
        return bool(np.isnan(reached) or reached >= power)

    return bisect.bisect_left(range(MAX_SEEDS), True, lo=2, key=enough)
