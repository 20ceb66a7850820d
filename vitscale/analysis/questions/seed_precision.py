"""What a plan of seeds will be able to say, before training."""

from __future__ import annotations

from collections import Counter

from scipy.special import chdtri, stdtrit

from vitscale.plan.study import Study


def of_seeds(study: Study) -> list[str]:
    """How precisely the seeds of the arm that has fewest give its mean and its sd."""
    n = min(Counter(t.arm.name for t in study.trials if t.point is not None).values(), default=0)
    head = f"mean and sd over seeds ({n} seed{'s' * (n != 1)} per arm)"
    if n < 2:
        return [f"{head}: nothing: single runs have no spread"]
    half = stdtrit(n - 1, 0.975) / n**0.5
    below, above = (((n - 1) / chdtri(n - 1, tail)) ** 0.5 for tail in (0.025, 0.975))
    return [
        f"{head}: 95% intervals, whatever the power: the mean within {half:.2f} sd of a seed, the "
        f"sd within {below:.2f} to {above:.2f} times its estimate (assumed: normal errors, no seed "
        "that diverges)"
    ]
