"""Arms with several lr: the one rule by which each is shown at an lr of its own, and an interval
that includes this choice.

An lr is a candidate if at least half of its ended runs finished. The candidate with the lowest mean
on minival over the finished runs is chosen, the smallest of equal ones. minival is not reported,
but its runs are: one that is lucky on both sets makes an arm look better, by 0.36 of its sd over
seeds where five lr are equally good and the sets correlate by 0.7. docs/method.md compares this
rule with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.results import Results
from vitscale.analysis.stats.rounds import Runs, choose, relative_noise, rounds
from vitscale.plan.comparisons import CHOOSES
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import Metric

NUM_ROUNDS = 1000
QUANTILES = (2.5, 97.5)
# of a run, beside its values; a selection of all 100 columns takes time
OF_RUNS = ("trial_id", "arm", "lr", "seed", "status", "value", "init_from", "peak_memory_mib")


@dataclass(frozen=True)
class Cell:
    """An arm, and its runs at the lr at which it is shown."""

    arm: str
    config: TrainConfig  # of the first trial; lr and seed differ between trials
    lrs: tuple[float, ...]  # planned, ascending
    lr: float  # chosen; NaN if there are several, and none is a candidate
    # the planned runs at that lr; without one, the runs at all lr that ended without a value
    runs: pd.DataFrame
    every: pd.DataFrame  # the planned runs at all lr
    chooses: str  # the column that chooses; "" if there is one lr

    @property
    def at_edge(self) -> bool:
        """Whether the chosen lr is the least or the greatest of several."""
        return len(self.lrs) > 1 and self.lr in (self.lrs[0], self.lrs[-1])

    def interval(self, column: str, metric: Metric) -> tuple[float, float, float]:
        """Mean of a column over the runs that finished, and its 95% interval. Runs that start from
        one of several parents are averaged first.

        Student's for one lr. For several, quantiles of rounds in which the mean of each lr gets
        noise, of all runs of this arm relative to the mean of their lr, and the lr is chosen again.
        Ends are NaN without any spread.
        """
        if not self.chooses:
            values = estimates.by_parent(self.runs, estimates.errors(self.runs, column))
            return estimates.value_interval(values, metric)
        made = runs_of([self.every], [self.lrs], (self.chooses, column))
        chosen, noise = choose(made), relative_noise(made, np.ones(1))
        mean = float(chosen.error[0])
        if noise is None or np.isnan(mean):
            return mean, np.nan, np.nan
        drawn = rounds(made, NUM_ROUNDS, np.random.default_rng(0), noise).error[:, 0]
        low, high = np.percentile(drawn[np.isfinite(drawn)], QUANTILES)
        if low == high:
            return mean, np.nan, np.nan
        low, high = np.clip([low, high], *metric.bounds)
        return mean, float(low), float(high)


def cells(results: Results) -> dict[str, Cell]:
    """Every arm at its lr, in the order of the plan.

    Raises ValueError if lr must be chosen without minival.
    """
    study, evaluations = results.study, estimates.evaluations(results.study)
    configs: dict[str, TrainConfig] = {}
    for trial in study.trials:
        configs.setdefault(trial.arm.name, trial.config)
    ended = dict(
        list(results.trials.filter([*OF_RUNS, *evaluations.values()]).groupby("arm", sort=False))
    )
    return {
        arm: _cell(arm, ended[arm], config, evaluations.get(CHOOSES, ""))
        for arm, config in configs.items()
    }


def _cell(arm: str, runs: pd.DataFrame, config: TrainConfig, chooses: str) -> Cell:
    lrs = tuple(sorted({float(lr) for lr in runs["lr"]}))
    if len(lrs) == 1:
        return Cell(arm, config, lrs, lrs[0], runs, runs, "")
    if not chooses:
        raise ValueError(
            f"arms with several lr must be evaluated on {CHOOSES}, but got (arm={arm!r}, lr={lrs})"
        )
    lr = choose_lr(runs, chooses)
    lost = runs["status"].isin(("diverged", "failed"))
    shown = runs[lost] if np.isnan(lr) else runs[runs["lr"] == lr]
    return Cell(arm, config, lrs, lr, shown, runs, chooses)


def choose_lr(runs: pd.DataFrame, column: str) -> float:
    """The lr of an arm by the rule of this module; NaN without a candidate."""
    lrs = sorted({float(lr) for lr in runs["lr"]})
    (chosen,) = choose(runs_of([runs], [lrs], (column, column))).lr
    return lrs[chosen] if chosen >= 0 else np.nan


def runs_of(
    arms: Sequence[pd.DataFrame], lrs: Sequence[Sequence[float]], columns: tuple[str, str]
) -> Runs:
    """(arms, lrs, seeds) of the column that chooses and of the reported one; an arm with fewer lr
    than another has NaN there.

    Raises ValueError for a finished run without the column that chooses.
    """
    seeds = sorted({int(seed) for runs in arms for seed in runs["seed"]})
    shape = (len(arms), max(map(len, lrs)), len(seeds))
    values, diverged = np.full((2, *shape), np.nan), np.zeros(shape, bool)
    place = {seed: index for index, seed in enumerate(seeds)}
    for index, (runs, grid) in enumerate(zip(arms, lrs, strict=True)):
        at = (
            np.full(len(runs), index),
            np.searchsorted(grid, runs["lr"].to_numpy(dtype=float)),
            np.array([place[int(seed)] for seed in runs["seed"]], int),
        )
        finished = (runs["status"] == "finished").to_numpy()
        for which, name in enumerate(columns):
            numbers = runs[name].to_numpy(dtype=float) if name in runs else np.nan
            values[which][at] = np.where(finished, numbers, np.nan)
        if np.isnan(values[0][at][finished]).any():
            raise ValueError(
                "a finished run must have the metric that chooses its lr, but got none "
                f"(column={columns[0]!r})"
            )
        diverged[at] = runs["status"].isin(("diverged", "failed"))
    return Runs(values[0], values[1], diverged)
