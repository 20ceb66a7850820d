"""What single images say about a spread over seeds: arrays of wrong predictions in, estimates out.

X[s, i] is 1 if seed s is wrong about image i; p_i is the share of all seeds that are. Seeds and
images are two crossed random factors with one observation per cell. The estimators are those of the
analysis of variance (Searle, Casella & McCulloch 1992, chapter 4): unbiased for independent seeds
and images, whatever the distribution. How often the intervals cover: docs/method-repeats.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from vitscale.analysis.stats.spread import NO_SPREAD

Estimate = tuple[float, float, float]  # value and the ends of its interval
NONE: Estimate = (np.nan, np.nan, np.nan)


class Parts(NamedTuple):
    """Variances of the test error in points squared, and its mean in percent; NaN if unknown."""

    seed: float  # over seeds, of their errors on images without end; unbiased, may be below 0
    chance: float  # of the error over seeds if mistakes on different images were independent
    seed_over_images: float  # of `seed` itself, over draws of the images: points^4
    mean_over_images: float  # of the mean over all seeds, over draws of the images; may be below 0
    mean_error: float


def parts(wrong: np.ndarray) -> Parts:
    """Of wrong (seeds, images) bool; NaN for fewer than two seeds or images.

    With S^2 the variance of the errors over seeds and v_i that of image i (both ddof=1), the seeds'
    part is (N^2 S^2 - sum v_i) / (N (N - 1)): the mean covariance of two images. Jordan 2023,
    section 3, has it as the variance of true errors. The variance of the mean over images is
    Var(p_i) / N, where the variance of the observed shares is less by what n seeds leave in them.
    `seed` is a mean over pairs of images, so its variance over images is 4 Var(h_i) / N, with h_i
    the covariance of image i with the mean of the others (Hoeffding 1948); of the observed one, the
    noise that n seeds leave in h_i if images are independent is taken off.
    """
    n, num = wrong.shape
    if n < 2 or num < 2:
        return Parts(*[np.nan] * 5)
    share = wrong.mean(0)
    of_image = n / (n - 1) * share * (1 - share)  # v_i
    errors = wrong.mean(1)
    over_seeds = float(errors.var(ddof=1))  # S^2
    chance = float(of_image.sum()) / num**2
    seed = num / (num - 1) * (over_seeds - chance)
    left = (float(of_image.mean()) - seed) / n
    over_images = (float(share.var(ddof=1)) - left) / num
    with_mean = (errors - errors.mean()) @ (wrong - share) / (n - 1)  # (N,) covariances
    with_others = (num * with_mean - of_image) / (num - 1)
    noise = float(of_image.mean()) * over_seeds / (n - 1)
    of_seed = max(4 / num * (float(with_others.var(ddof=1)) - noise), 0.0)
    return Parts(
        1e4 * seed, 1e4 * chance, 1e8 * of_seed, 1e4 * over_images, 100 * float(share.mean())
    )


class Spread(NamedTuple):
    """How much the error varies over seeds and images, in points."""

    sd: Estimate  # over seeds, on these images
    seed_sd: Estimate  # the same on images without end; 0 where its square is estimated below 0
    chance_sd: float  # of seeds of one true error, if mistakes on different images were independent
    seed_share_pct: Estimate  # of the variance over seeds
    mean: Estimate  # in percent; over other seeds and other images
    over_seeds: float  # standard error of the mean
    over_images: float


def spread(wrong: np.ndarray, sd: Estimate) -> Spread:
    """Of wrong (seeds, images) bool, two or more of each, with the sd of their errors."""
    n, num = wrong.shape
    made = parts(wrong)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.square(sd)
        seed = num / (num - 1) * (squares - made.chance)
        share = seed / squares
        of_share = made.seed_over_images / squares[0] ** 2
    over_images = max(made.mean_over_images, 0.0)
    seed_sd = np.sqrt(np.maximum(_wider(seed, made.seed_over_images), 0))
    share_pct = 100 * np.clip(_wider(share, of_share), 0, 1)
    return Spread(
        sd,
        tuple(seed_sd),
        float(np.sqrt(made.chance)),
        tuple(share_pct),
        _mean(made.mean_error, sd[0] ** 2 / n, over_images, n),
        sd[0] / float(np.sqrt(n)),
        float(np.sqrt(over_images)),
    )


def _wider(estimate: np.ndarray, variance: float) -> np.ndarray:
    """(value, low, high) with ends widened for another independent error of this variance:
    distances add in squares (Zou & Donner 2008).
    """
    value, low, high = estimate
    more = float(ndtri(0.975)) ** 2 * variance
    ends = value - np.sqrt((value - low) ** 2 + more), value + np.sqrt((high - value) ** 2 + more)
    return np.array([value, *ends])


def _mean(mean: float, over_seeds: float, over_images: float, n: int) -> Estimate:
    """The mean with its interval over seeds and images, t with Satterthwaite's df; clipped to 0 and
    100.
    """
    variance = over_seeds + over_images
    if variance < NO_SPREAD**2:
        return mean, np.nan, np.nan
    # images are many: their part is taken as known
    df = (n - 1) * (variance / over_seeds) ** 2 if over_seeds else np.inf
    half = float(stdtrit(min(df, 1e6), 0.975)) * float(np.sqrt(variance))
    return mean, max(mean - half, 0.0), min(mean + half, 100.0)


class Agreement(NamedTuple):
    """How often a run of one group and a run of another agree about an image."""

    share: Estimate  # of images about which both are right or both are wrong
    by_chance: float  # the same for independent runs of these accuracies
    kappa: Estimate  # (share - by_chance) / (1 - by_chance)


def agreement(a: np.ndarray, b: np.ndarray | None = None, confidence: float = 0.95) -> Agreement:
    """Of wrong a, b (seeds, images) bool on the same images; of two seeds of `a` without `b`.

    Means over all pairs of different runs. kappa is the error consistency of Geirhos, Meding &
    Wichmann 2020 (Beyond accuracy) of these means: 0 by chance, 1 if all mistakes are shared.
    Intervals are normal, with the sum of two jackknife variances, over seeds and over images: that
    counts their interaction twice, so they are conservative for a few seeds. The groups are taken
    as independent. NaN with fewer than two seeds in a group, or two images; kappa is NaN if no run
    or every run is wrong about all.
    """
    groups = [a] if b is None else [a, b]
    if min(map(len, groups)) < 2 or a.shape[1] < 2:
        return Agreement(NONE, np.nan, NONE)
    shares, sizes = [group.mean(0) for group in groups], [len(group) for group in groups]
    variances = [_without_one_image(shares, sizes)]
    for place, group in enumerate(groups):
        variances.append(_without_one_seed(shares, sizes, place, group))
    value = _alike(shares, sizes)
    half = float(ndtri((1 + confidence) / 2)) * np.sqrt(np.sum(variances, 0))
    ends = np.stack([value, value - half, np.minimum(value + half, 1.0)], axis=1)
    share, kappa = ((float(x), float(low), float(high)) for x, low, high in ends)
    return Agreement(share, _chance(*_means(shares)), kappa)


Shares = Sequence[np.ndarray]  # per group (N,): the share of its runs that is wrong about an image


def _alike(shares: Shares, sizes: Sequence[int]) -> np.ndarray:
    """(2,) share and kappa."""
    alike, chance = _per_image(shares, sizes).mean(), _chance(*_means(shares))
    return np.array([alike, (alike - chance) / (1 - chance) if chance < 1 else np.nan])


def _per_image(shares: Shares, sizes: Sequence[int]) -> np.ndarray:
    """(N,) share of the pairs of runs that agree about an image."""
    if len(shares) == 2:
        return shares[0] * shares[1] + (1 - shares[0]) * (1 - shares[1])
    n, share = sizes[0], shares[0]
    return 1 - 2 * n / (n - 1) * share * (1 - share)  # pairs of different runs


def _means(shares: Shares) -> tuple[float, float]:
    return float(shares[0].mean()), float(shares[-1].mean())


def _chance(first: float, second: float) -> float:
    return first * second + (1 - first) * (1 - second)


def _without_one_seed(
    shares: Shares, sizes: Sequence[int], place: int, group: np.ndarray
) -> np.ndarray:
    """(2,) jackknife variances over the seeds of a group; 0 where two seeds are too few for it."""
    n = len(group)
    if n - 1 < (2 if len(shares) == 1 else 1):
        return np.full(2, np.nan)
    rest = [size - (index == place) for index, size in enumerate(sizes)]
    left = []
    for run in group:
        without = list(shares)
        without[place] = (n * shares[place] - run) / (n - 1)
        left.append(_alike(without, rest))
    return _jackknife(np.array(left))


def _without_one_image(shares: Shares, sizes: Sequence[int]) -> np.ndarray:
    """(2,) jackknife variances over images, of means without each image in turn."""
    num = len(shares[0])
    alike, first, second = (
        (x.sum() - x) / (num - 1) for x in (_per_image(shares, sizes), shares[0], shares[-1])
    )
    chance = first * second + (1 - first) * (1 - second)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa = (alike - chance) / (1 - chance)
    return _jackknife(np.stack([alike, kappa], axis=1))


def _jackknife(left: np.ndarray) -> np.ndarray:
    """Variances (Efron 1982, section 3.1) from (n, ...) values without one observation each."""
    n = len(left)
    return np.asarray((n - 1) / n * ((left - left.mean(0)) ** 2).sum(0))
