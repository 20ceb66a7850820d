"""Corrections for the number of tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p: Sequence[float]) -> np.ndarray:
    """p values corrected for their number (Holm 1979).

    A NaN is a comparison that has no outcome yet: it counts and stays NaN.
    """
    values = np.asarray(p, dtype=float)
    numbers = np.nan_to_num(values, nan=1.0)
    order = np.argsort(numbers)
    # By hand, since statsmodels' multipletests collects garbage at each call: 0.1 to 0.5 s,
    # hundreds of times a report.
    steps = np.maximum.accumulate(numbers[order] * np.arange(len(numbers), 0, -1))
    corrected = np.empty_like(numbers)
    corrected[order] = np.minimum(steps, 1.0)
    return np.where(np.isnan(values), np.nan, corrected)
