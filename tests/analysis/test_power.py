"""What a plan can show: against statsmodels, exact sums
over binomial counts, and simulated studies.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from conftest import ROOT, load_script
from statsmodels.stats.contingency_tables import mcnemar

from vitscale import Study, TrainConfig, trials
from vitscale.analysis import power
from vitscale.analysis.distribution.budget import low_ends
from vitscale.analysis.scaling.precision import of_laws
from vitscale.plan.trial import Trial


@pytest.mark.parametrize("alpha", [0.05, 0.025])
def test_the_smallest_share_is_the_exact_power_of_mcnemars_mid_p(alpha: float) -> None:
    n = 16
    rejects = []
    for lost in range(n + 1):  # pairs that one arm alone forgives
        exact = mcnemar([[n - lost, lost], [0, 0]], exact=True).pvalue
        point = 2 * scipy.stats.binom.pmf(lost, lost, 0.5) / 2
        rejects.append(lost > 0 and exact - point <= alpha)
    found = power.smallest_share(n, alpha)
    assert scipy.stats.binom.pmf(np.arange(n + 1), n, found)[rejects].sum() == pytest.approx(0.8)
    assert power.smallest_share(4, 0.05) == 1.0


def test_the_smallest_sign_is_the_exact_power_of_the_sign_test() -> None:
    found = power.smallest_sign(16)
    wins = np.arange(17)
    rejects = np.array([scipy.stats.binomtest(int(k), 16).pvalue <= 0.05 for k in wins])
    upper = scipy.stats.binom.pmf(wins, 16, found)[rejects & (wins > 8)].sum()
    assert upper == pytest.approx(0.8) and math.isnan(power.smallest_sign(4))


@pytest.mark.parametrize("n", [2, 8, 16, 64, 256])
def test_a_tuning_band_has_a_low_end_up_to_the_k_that_the_plan_says(n: int) -> None:
    trials = tuple(Trial("a", TrainConfig(seed=i), i) for i in range(n))
    study = SimpleNamespace(trials=trials)
    (said,) = power._of_tuning(study)  # type: ignore[arg-type]
    reached = int((low_ends(np.arange(1.0, n + 1), 0.025, 0.0) > 0).sum())
    assert (f"up to k = {reached}," in said) if reached else ("nothing" in said)


def test_a_plan_of_scaling_says_how_precise_it_is() -> None:
    """Four times the seeds halve the interval of the exponent, which holds the guess."""
    script, found = load_script(ROOT / "studies" / "scaling.py"), []
    for seeds in (1, 4):
        said, *_ = of_laws(script.study(num=seeds))
        low, high = map(float, re.findall(r"find ([\d.]+) to ([\d.]+)", said)[0])
        assert low < 0.45 < high
        found.append(high - low)
    assert found[0] / found[1] == pytest.approx(2, rel=0.25)


@pytest.mark.parametrize(("n", "k"), [(16, 8), (14, 3), (64, 3)])
def test_the_smallest_area_is_seen_in_four_of_five_simulated_studies(n: int, k: int) -> None:
    """Normal scores and references of the assumed spreads;
    the standard error is 1.3% at 1,000 studies.
    """
    sims, rng = 1000, np.random.default_rng(1)
    truth, draws = power.smallest_area(n, k), rng.normal(0, power.PAIR_SD, (sims, n))
    runs = power.SENSITIVITY * rng.normal(0, power.REFERENCE_SD, (2, sims, k))
    parts = np.stack([draws.var(axis=1, ddof=1) / n, *(runs.var(axis=2, ddof=1) / k)])
    freedom = parts.sum(axis=0) ** 2 / (parts**2 / np.array([[n - 1], [k - 1], [k - 1]])).sum(
        axis=0
    )
    t = (truth + draws.mean(axis=1) + runs[0].mean(axis=1) - runs[1].mean(axis=1)) / np.sqrt(
        parts.sum(axis=0)
    )
    assert (2 * scipy.stats.t.sf(abs(t), freedom) <= 0.05).mean() == pytest.approx(
        0.8, abs=3 * 0.013
    )


@pytest.mark.parametrize(("n", "alpha"), [(8, 0.05), (16, 0.025)])
def test_the_smallest_superiority_is_seen_in_four_of_five_simulated_studies(
    n: int, alpha: float
) -> None:
    """By scipy's Brunner-Munzel test; the standard error is 1.3% at 1,000 studies."""
    shift = math.sqrt(2) * scipy.stats.norm.ppf(power.smallest_superiority(n, alpha))
    rng, p = np.random.default_rng(1), []
    for _ in range(1000):
        a, b = rng.normal(0, 1, n), rng.normal(shift, 1, n)
        apart = a.max() < b.min()  # where scipy's statistic is infinite
        p.append(2 * 0.5**n if apart else scipy.stats.brunnermunzel(a, b).pvalue)
    assert np.mean(np.array(p) <= alpha) == pytest.approx(0.8, abs=0.04)
    assert math.isnan(power.smallest_superiority(4))  # 2 * 0.5**4 is above 0.05


def test_a_plan_of_arms_without_common_points_says_what_it_can_show() -> None:
    base, arms = TrainConfig(), {"AdamW": {}, "SGD": {"optimizer": "sgd", "lr": 0.03}}
    study = Study(
        kind="distribution",
        name="two",
        scale="demo",
        source="ours",
        question="Which?",
        trials=trials(base, arms, [{"seed": seed} for seed in range(8)]),
        pairs=(("AdamW", "SGD"),),
        tables=("arm_comparison",),
    )
    (said,) = power.sentences(study)
    assert said.startswith(
        "absolute error (8 draws per arm, 1 pair of arms; Brunner-Munzel): an arm"
    )


def test_a_plan_says_what_it_can_show() -> None:
    study = load_script(Path(ROOT / "studies" / "lr_wd_edf.py")).study
    near, error, budget = power.sentences(study("demo"))
    assert near.startswith(
        "forgiveness (14 draws per arm, 2 pairs of arms, Holm, 4 reference runs): a difference of "
        "0.2"
    )
    assert error.endswith("an arm that is truly lower at 89% of the points")
    assert "best of k draws (14 draws per arm): a lower median up to k = 1" in budget
    paper, error, *_ = power.sentences(study("imagenet"))
    assert "nothing: a test needs at least 3 reference runs per arm" in paper
    assert "Brunner-Munzel): an arm of which a draw is truly lower" in error  # no common points
    assert "no difference" in power.sentences(study("demo", num=4))[1]
