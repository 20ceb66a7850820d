"""Runs that differ in their seed alone: what an arm is made of, means, spreads and contrasts with intervals.

Means and spreads are over the runs that finished. A diverged run has no error that a mean could use: its 100 is a
label. So every number here is conditional on finishing, and the counts of what did not finish stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import chdtri, ndtri, stdtrit
from scipy.special import ndtr as normal_cdf

from vitscale.analysis.intervals import t_test
from vitscale.analysis.population import STATUSES
from vitscale.plan.study import Study

NO_SPREAD = 1e-9  # points; equal errors of a few runs are rounding to whole images, and no proof of no noise


class Contrast(NamedTuple):
    """A weighted sum of means in points, its interval, two-sided p of 0, standard error, df and how it was made."""

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p: float = np.nan
    error: float = np.nan
    df: float = np.nan
    method: str = ""


def is_repeats(study: Study) -> bool:
    """Whether each arm is one setting, trained with several seeds or once: draws that differ in nothing else."""
    settings: dict[str, set[object]] = {}
    for trial in study.trials:
        settings.setdefault(trial.arm, set()).add(trial.config.replace(seed=0))
    return all(len(configs) == 1 for configs in settings.values())


def labelled(study: Study, outcomes: pd.DataFrame) -> pd.DataFrame:
    """The table with a column for each factor of the study's arms, in place of a config column of that name."""
    names = next(iter(study.factors.values()), {})
    columns = {name: outcomes["arm"].map({arm: factors[name] for arm, factors in study.factors.items()})
               for name in names}  # fmt: skip
    return outcomes.assign(**columns)


def evaluations(study: Study) -> dict[str, str]:
    """Evaluation set -> the column with its error in percent, of the weights that the study's metric is about."""
    first = study.trials[0].config
    kind = study.metric.removeprefix(f"{first.eval_split}_")
    common = [name for name in first.evals if all(name in trial.config.evals for trial in study.trials)]
    return {name: f"{name}_{kind}" for name in common}


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that trained to the end."""
    return runs[runs["status"] == "finished"]


def errors(runs: pd.DataFrame, column: str = "error_pct") -> np.ndarray:
    """(n,) percent: errors of the finished runs. Raises ValueError if a finished run has none."""
    if column not in runs:
        return np.empty(0)
    done = finished(runs)
    values = done[column].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        trial = done["trial_id"].to_numpy()[~np.isfinite(values)][0]
        raise ValueError(f"a finished run must have a finite error, but got (trial_id={trial!r}, column={column!r})")
    return values


def counts(runs: pd.DataFrame) -> dict[str, int]:
    """How many runs ended how, under the names of the statuses."""
    return {status: int((runs["status"] == status).sum()) for status in STATUSES}


def said(runs: pd.DataFrame) -> str:
    """The population in words: finished ones as n, and what did not finish."""
    of = counts(runs)
    return ", ".join([f"n={of['finished']}", *(f"{of[s]} {s}" for s in STATUSES[1:] if of[s] or s == "diverged")])


def mean_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of (n,) values and Student's interval: exact for normal values. Ends are NaN without any spread."""
    result = contrast([values], [1.0], confidence=confidence)
    return result.estimate, result.low, result.high


def error_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """The same of (n,) errors in percent; ends that few runs push beyond 0 or 100, where no error lies, are cut."""
    mean, low, high = mean_interval(values, confidence)
    return mean, float(np.clip(low, 0, 100)), float(np.clip(high, 0, 100))


def sd_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Standard deviation (ddof=1) of (n,) values and its chi-square interval; NaN for fewer than two.

    Exact for normal values, and only for them: with heavier tails it is too narrow, at any n.
    """
    df, tail = len(values) - 1, (1 - confidence) / 2
    if df < 1:
        return np.nan, np.nan, np.nan
    sd = float(np.std(values, ddof=1))
    low, high = (sd * float(np.sqrt(df / chdtri(df, p))) for p in (tail, 1 - tail))
    return sd, low, high


def contrast(
    groups: Sequence[np.ndarray],
    weights: Sequence[float],
    *,
    sd: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Contrast:
    """The weighted sum of the means of groups, by Welch and Satterthwaite (Welch 1947): no equal variances.

    Assumes independent runs and means that are nearly normal. Without `sd` a group needs two runs and some group a
    spread, or there is no interval. `sd`: standard deviations known from elsewhere, one a group, with normal
    quantiles: for single runs, and no better than the claim that the spread is the same here.
    """
    sizes = np.array([len(values) for values in groups])
    if not sizes.all():
        return Contrast(method="no run finished")
    estimate = float(np.dot(weights, [np.mean(values) for values in groups]))
    if sd is not None:
        return _known(estimate, np.asarray(weights) * np.asarray(sd) / np.sqrt(sizes), confidence)
    if (sizes < 2).any():
        return Contrast(estimate, method="single run: no interval")
    parts = np.square(weights) * np.array([np.var(values, ddof=1) for values in groups]) / sizes
    error = float(np.sqrt(parts.sum()))
    if error < NO_SPREAD:
        return Contrast(estimate, method="equal errors: no interval")
    df = float(parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum())
    half = float(stdtrit(df, (1 + confidence) / 2)) * error
    name = "t" if len(groups) == 1 else "Welch's t"
    return Contrast(estimate, estimate - half, estimate + half, t_test(estimate, error, df), error, df, name)


def _known(estimate: float, parts: np.ndarray, confidence: float) -> Contrast:
    error = float(np.sqrt((parts**2).sum()))
    half = float(ndtri((1 + confidence) / 2)) * error
    p = float(2 * normal_cdf(-abs(estimate) / error))
    return Contrast(estimate, estimate - half, estimate + half, p, error, np.inf, "normal, spread from elsewhere")


def difference(a: pd.DataFrame, b: pd.DataFrame, column: str = "error_pct", confidence: float = 0.95) -> Contrast:
    """Mean error of a minus that of b: paired by seed if both were planned with the same seeds, else Welch's t.

    The rule looks at the plan and never at the errors. A seed that did not finish in both arms is in no pair.
    """
    if not shares_seeds(a, b):
        return contrast([errors(a, column), errors(b, column)], [1.0, -1.0], confidence=confidence)
    result = contrast([paired_errors(a, b, column)], [1.0], confidence=confidence)
    return result._replace(method="paired t over seeds") if result.method == "t" else result


def shares_seeds(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Whether two arms were planned with the same seeds, each once."""
    first, second = sorted(a["seed"]), sorted(b["seed"])
    return first == second and len(set(first)) == len(first)


def paired_errors(a: pd.DataFrame, b: pd.DataFrame, column: str = "error_pct") -> np.ndarray:
    """(n,) points: error of a minus error of b for each seed that finished in both."""
    if not len(errors(a, column)) or not len(errors(b, column)):
        return np.empty(0)
    first, second = (finished(runs).set_index("seed")[column].astype(float) for runs in (a, b))
    return (first - second).dropna().to_numpy()
