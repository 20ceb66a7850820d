"""The draws of an arm: which of them count, and the reference runs they are compared with.

Trials start in the order of the plan, and diverged trials end first. For an unfinished arm we
therefore count only the draws before its first missing one: among all draws with an outcome,
diverged ones would be overrepresented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.metrics import ERROR, Metric
from vitscale.plan.study import Study

BASELINES = ("reference", "best draw")
# axis -> the fields of which it is the product; according to the documentation of pycls, that of lr
# and wd predicts the error best
AXES = {"lr": ("lr",), "wd": ("wd",), "lr*wd": ("lr", "wd")}
COLUMNS = ("arm", "point", "trial_id", "status", "value", "lr", "wd")


@dataclass(frozen=True)
class Population:
    """The n draws of an arm that count, and the counts of all planned draws."""

    arm: str
    point: np.ndarray  # (n,) int, ascending
    error: np.ndarray  # (n,) the metric, in its unit; its worst value for diverged and failed
    status: np.ndarray  # (n,) str
    # (n,) int: the independent Sobol scramble of a draw; None when draws are i.i.d.
    scramble: np.ndarray | None
    values: dict[str, np.ndarray]  # axis -> (n,) values of the draws
    sampled: dict[str, np.ndarray]  # axis -> values of all planned draws
    setting: dict[str, float]  # axis -> value of the reference runs; NaN if none is planned
    counts: dict[str, int]  # per status, among the n draws that count; all missing draws
    not_counted: int  # draws with an outcome after the first missing one
    references: np.ndarray  # (k,) the metric of the reference runs that finished
    reference_counts: dict[str, int]  # per status, over all planned reference runs
    metric: Metric = ERROR

    @property
    def n(self) -> int:
        """Number of draws that count: finished, diverged and failed."""
        return len(self.error)

    @property
    def planned(self) -> int:
        return sum(self.counts.values()) + self.not_counted

    @property
    def finished(self) -> np.ndarray:
        """(n,) bool."""
        return self.status == "finished"

    @property
    def reference(self) -> float:
        """Mean of the metric over the reference runs that finished; NaN if none did."""
        return float(self.references.mean()) if len(self.references) else np.nan

    @property
    def reference_sd(self) -> float:
        """Standard deviation of the reference runs over their seeds; NaN for fewer than two."""
        return float(self.references.std(ddof=1)) if len(self.references) > 1 else np.nan

    @property
    def reference_noise(self) -> tuple[float, int]:
        """Standard error of the reference and its df; NaN and 0 for fewer than two runs."""
        k = len(self.references)
        return self.reference_sd / np.sqrt(max(k, 1)), max(k - 1, 0)

    def reference_reach(self, confidence: float = 0.95) -> float:
        """How far the reference may be off, by Student's t; 0 for fewer than two runs (unknown)."""
        error, df = self.reference_noise
        return float(stdtrit(df, (1 + confidence) / 2)) * error if df else 0.0

    @property
    def given(self) -> str:
        """In words: whether intervals include the noise of the references."""
        return "with the references' noise" if self.reference_noise[1] else "given the reference"

    def num_beyond(self, baseline: str = "reference") -> int | None:
        """Finished draws more than `beyond` above the baseline; None if there is no baseline."""
        exists = self.finished.any() if baseline == "best draw" else not np.isnan(self.reference)
        return (
            int((self.delta(baseline)[self.finished] > self.metric.beyond).sum())
            if exists
            else None
        )

    @property
    def num_better(self) -> int | None:
        """Number of draws with a lower value than the reference; None without a reference."""
        return None if np.isnan(self.reference) else int((self.delta() < 0).sum())

    def describe(self, baseline: str = "reference") -> str:
        """The population in words, for legends: n and everything that did not finish."""
        parts = [self.describe_ended()]
        beyond = self.num_beyond(baseline)
        parts += (
            [] if beyond is None else [f"{beyond} beyond {self.metric.apart(self.metric.beyond)}"]
        )
        return ", ".join(parts)

    def describe_ended(self) -> str:
        """n and everything that did not finish."""
        parts = [f"{self.counts[s]} {s}" for s in STATUSES[1:] if self.counts[s] or s == "diverged"]
        parts += [f"{self.not_counted} later ones not counted"] if self.not_counted else []
        return ", ".join([f"n={self.n}", *parts])

    def describe_references(self) -> str:
        """How the reference runs ended, in words."""
        parts = [f"{num} {status}" for status, num in self.reference_counts.items() if num]
        return ", ".join(parts) or "not planned"

    def level(self) -> np.ndarray:
        """(n,) values; +inf for diverged and failed draws, which therefore reach no level."""
        return np.where(self.finished, self.error, np.inf)

    def delta(self, baseline: str = "reference") -> np.ndarray:
        """(n,) differences to the baseline, +inf for diverged and failed draws.

        The baseline of Xiao et al. 2021, Figure 5, is the reference, a setting found good
        beforehand: deltas can be negative. "best draw" is the lowest value of the n draws. Raises
        ValueError if the baseline has no value; there is no fallback from one to the other. Values
        are rounded to 1e-9, so that a draw exactly at a threshold (in counts of images) is at it in
        floating point, too.
        """
        return np.round(self.level() - self._baseline(baseline), 9)

    def above(self, factor: float) -> np.ndarray:
        """(n,) differences to `factor` times the reference, rounded as in `delta`.

        +inf for diverged and failed draws.
        """
        return np.round(self.level() - factor * self._baseline("reference"), 9)

    def log_ratio(self) -> np.ndarray:
        """(n,) logs of value over reference.

        Diverged and failed draws count as the metric's worst value. All NaN for a reference or a
        draw of 0, which has no logarithm, and if a draw's worst value is infinite: then the mean
        ratio is undefined, and a mean over the other draws would favour arms that diverge.
        """
        if not self.reference > 0 or not ((self.error > 0) & np.isfinite(self.error)).all():
            return np.full(self.n, np.nan)
        return np.log(self.error / self.reference)

    def _baseline(self, baseline: str) -> float:
        if baseline not in BASELINES:
            raise ValueError(f"baseline in {BASELINES} must hold, but got (baseline={baseline!r})")
        if baseline == "reference":
            if np.isnan(self.reference):
                state = f"(arm={self.arm!r}, reference={self.describe_references()!r})"
                raise ValueError(f"a delta needs a finished reference run, but got {state}")
            return self.reference
        if not self.finished.any():
            raise ValueError(
                f"a best draw needs a finished draw, but got (arm={self.arm!r}, {self.describe()})"
            )
        return float(self.error[self.finished].min())


def population(study: Study, outcomes: pd.DataFrame, arm: str, whole: bool = False) -> Population:
    """The draws of an arm, from a table with one row per planned trial.

    Draws after the first missing one do not count, unless `whole`. Raises ValueError if the table
    is malformed.
    """
    absent = [name for name in COLUMNS if name not in outcomes.columns]
    if absent:
        raise ValueError(
            f"the table of outcomes must have the columns {COLUMNS}, but got (missing={absent})"
        )
    of_arm = outcomes.loc[outcomes["arm"] == arm, list(COLUMNS)]
    _check(of_arm)
    planned = of_arm[of_arm["point"].notna()].sort_values("point")
    missing = (planned["status"] == "missing").to_numpy()
    counted = planned[~missing & (whole | (np.cumsum(missing) == 0))]
    point = counted["point"].to_numpy(dtype=int)
    runs = of_arm[of_arm["point"].isna()]
    _check_references(runs, arm)
    return Population(
        arm=arm,
        point=point,
        error=counted["value"].to_numpy(dtype=float),
        status=counted["status"].to_numpy(dtype=str),
        scramble=scrambles(study, point, num=len(planned)),
        values={name: axis(counted, name) for name in AXES},
        sampled={name: axis(planned, name) for name in AXES},
        setting={name: float(axis(runs, name)[0]) if len(runs) else np.nan for name in AXES},
        counts={status: int((counted["status"] == status).sum()) for status in STATUSES[:-1]}
        | {STATUSES[-1]: int(missing.sum())},
        not_counted=int((~missing).sum()) - len(counted),
        references=runs.loc[runs["status"] == "finished", "value"].to_numpy(dtype=float),
        reference_counts={status: int((runs["status"] == status).sum()) for status in STATUSES},
        metric=study.column.metric,
    )


def populations(results: Results) -> dict[str, Population]:
    """The draws of every arm."""
    return {arm: population(results.study, results.trials, arm) for arm in results.study.arms}


def counts_of(arms: Sequence[Population]) -> pd.DataFrame:
    """One row per arm: how its draws and its reference runs ended."""
    return pd.DataFrame(
        [
            {
                "arm": draws.arm,
                "planned": draws.planned,
                **{status: draws.counts[status] for status in STATUSES},
                "not counted": draws.not_counted,
                "reference runs": draws.describe_references(),
            }
            for draws in arms
        ]
    )


def still_missing(arms: Sequence[Population], why: str) -> str:
    """Draws and reference runs without an outcome and the consequence; "" if nothing is missing."""
    parts = [
        f"{draws.counts['missing']} of {draws.planned} draws of {draws.arm}"
        for draws in arms
        if draws.counts["missing"]
    ]
    parts += [
        (
            f"{draws.reference_counts['missing']} of {sum(draws.reference_counts.values())} "
            f"reference runs of {draws.arm}"
        )
        for draws in arms
        if draws.reference_counts["missing"]
    ]
    return f"Still missing: {', '.join(parts)}. {why}" if parts else ""


def scrambles(study: Study, point: np.ndarray, num: int) -> np.ndarray | None:
    """The scramble of each point of a Sobol design with `num` points; None for independent draws.

    Scrambles are consecutive blocks of equal size.
    """
    if study.num_scrambles == 0:
        return None
    size, rest = divmod(num, study.num_scrambles)
    if rest or (num and size == 0):
        raise ValueError(
            "the draws of an arm must be equal blocks of scrambles, "
            f"but got (num={num}, num_scrambles={study.num_scrambles})"
        )
    return point // size if num else point


def axis(trials: pd.DataFrame, name: str) -> np.ndarray:
    """(n,) values of the trials on one of AXES."""
    columns = [trials[field].to_numpy(dtype=float) for field in AXES[name]]
    return np.prod(columns, axis=0)


def _check(trials: pd.DataFrame) -> None:
    """Checks that statuses are known and that outcomes have values.

    Those of finished trials must be finite.
    """
    unknown = sorted(set(trials["status"]) - set(STATUSES))
    if unknown:
        raise ValueError(f"status in {STATUSES} must hold, but got ({unknown})")
    values, status = trials["value"].astype(float), trials["status"]
    broken = trials[
        (status != "missing") & (values.isna() | ((status == "finished") & ~np.isfinite(values)))
    ]
    if len(broken):
        row = broken.iloc[0]
        raise ValueError(
            "an outcome must have a value, and a finished trial a finite value, but got "
            f"(trial_id={row['trial_id']!r}, status={row['status']!r}, "
            f"value={row['value']})"
        )


def _check_references(runs: pd.DataFrame, arm: str) -> None:
    """Checks that reference runs share one setting: a mean over several would belong to none."""
    settings = sorted(
        {(float(lr), float(wd)) for lr, wd in zip(runs["lr"], runs["wd"], strict=True)}
    )
    if len(settings) > 1:
        raise ValueError(
            f"the reference runs of an arm must share (lr, wd), but got (arm={arm!r}, {settings})"
        )
