"""The columns that the evaluations of a training give to its rows, and what a study about one of
them must know of it: a `Metric`.

METRICS is the only place that says what is in a column: name, unit, the worst value, thresholds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a column of the rows measures.

    `near` and `beyond` are differences in its unit: a draw at most `near` above the reference is
    called forgiven, one more than `beyond` above it has collapsed. They are chosen once per metric
    and before any result, so that the tables of two studies mean the same.
    """

    name: str  # how the column ends: "error_pct" of "val_ema_error_pct"
    label: str  # a noun for sentences and axes
    unit: str  # "%", or the name of the unit
    worst: float  # what a diverged or failed training counts as
    bounds: tuple[float, float]  # no value is outside; intervals of a mean are cut there
    lower_is_better: bool = True
    near: float
    beyond: float
    of_images: bool = False  # a share of images: it has the binomial noise of its evaluation set

    @property
    def difference_unit(self) -> str:
        """Of a difference of two values: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit

    @property
    def differences(self) -> tuple[float, float]:
        """Between which a difference of two values lies."""
        low, high = self.bounds
        return low - high, high - low

    @property
    def within(self) -> tuple[float, float, float]:
        """The differences at which tables give the share of draws: a quarter and a half of near,
        and near.
        """
        return self.near / 4, self.near / 2, self.near

    @property
    def is_bounded(self) -> bool:
        """Whether the worst value is a number that a mean or a ratio can hold."""
        return math.isfinite(self.worst)

    def number(self, value: float, digits: int = 1, sign: str = "") -> str:
        """A value without its unit; `digits` are those of a percentage, others have two more."""
        return f"{value:{sign}.{digits if self.unit == '%' else digits + 2}f}"

    def text(self, value: float, digits: int = 1) -> str:
        """A value with its unit: "12.3%", "0.412 nats"."""
        return self.number(value, digits) + ("%" if self.unit == "%" else f" {self.unit}")

    def apart(self, difference: float) -> str:
        """A difference with its unit: "4 points", "0.2 nats"."""
        return f"{difference:g} {self.difference_unit}"

    def column(self, name: str) -> str:
        """The name in a table about this metric of what a table about the top-1 error calls `name`.

        `mean_error_pct` is `mean_loss`, `sd_points` is `sd_nats`. Thresholds are in names for the
        error alone, whose tables have always had them; those of others are in the columns `near`
        and `beyond`: `within_4_points_pct` is `within_near_pct`. For the error nothing changes.
        """
        if self is ERROR:
            return name
        for pattern, said in _THRESHOLDS:
            name = re.sub(pattern, said, name)
        name = re.sub(r"(?<![a-z])error_pct(?![a-z])", self.name, name)
        if self.unit != "%":  # the edges of a histogram's bins
            name = re.sub(r"^(low|high)_pct$", rf"\1_{self.unit}", name)
        short = self.name.removesuffix("_pct")
        name = re.sub(r"^error(?=_ratio|_median|_prob|_p$|_p_|_method)", short, name)
        return re.sub(r"_points(?=$|_low$|_high$)", f"_{self.difference_unit}", name)


_THRESHOLDS = (
    (r"within_1_points", "within_quarter_near"),
    (r"within_2_points", "within_half_near"),
    (r"within_4_points", "within_near"),
    (r"beyond_10_points", "beyond"),
)
# Xiao et al. 2021, Figure 5: draws up to 10 points above the reference
ERROR = Metric(
    name="error_pct",
    label="error",
    unit="%",
    worst=100.0,
    bounds=(0.0, 100.0),
    near=4.0,
    beyond=10.0,
    of_images=True,
)
METRICS = {
    metric.name: metric
    for metric in (
        # A cross entropy has no upper bound, so no finite number is the worst. Infinity keeps its
        # rank: it is right in medians, EDFs and comparisons of ranks. Means are of finite values.
        # 0.2 nats: about what 4 points of top-1 error are near 25% on ImageNet.
        Metric(
            name="loss",
            label="loss",
            unit="nats",
            worst=math.inf,
            bounds=(0.0, math.inf),
            near=0.2,
            beyond=0.5,
        ),
        ERROR,
        # top-5 errors are about half of top-1 errors or less, and so are their thresholds
        Metric(
            name="top5_error_pct",
            label="top-5 error",
            unit="%",
            worst=100.0,
            bounds=(0.0, 100.0),
            near=2.0,
            beyond=5.0,
            of_images=True,
        ),
        # 100%: sure of every image, and wrong
        Metric(
            name="ece_pct",
            label="calibration error",
            unit="%",
            worst=100.0,
            bounds=(0.0, 100.0),
            near=2.0,
            beyond=5.0,
        ),
    )
}
# of profiles, each of which has the device to itself
SPEED = Metric(
    name="images_per_s",
    label="images per second",
    unit="images/s",
    worst=0.0,
    bounds=(0.0, math.inf),
    lower_is_better=False,
    near=math.nan,
    beyond=math.nan,
)
QUANTITIES = tuple(METRICS)
# a diverged training has a row with the worst value of these, and has none of the others
ERRORS = tuple(name for name, metric in METRICS.items() if metric.of_images)
# raw and averaged; without an average the columns of the latter repeat those of the former
WEIGHTS = ("", "ema_")


def metric_of(column: str) -> Metric:
    """The metric in a column of the rows: "val_ema_loss" holds the loss.

    Raises ValueError for a column that holds none.
    """
    known = {**METRICS, SPEED.name: SPEED}
    for name in sorted(known, key=len, reverse=True):
        if column == name or column.endswith(f"_{name}"):
            return known[name]
    raise ValueError(f"a metric must end in one of ({', '.join(known)}), but got ({column!r})")


def column(split: str, weights: str, quantity: str) -> str:
    """The name of a column: "val_error_pct", "val_ema_loss"."""
    return f"{split}_{weights}{quantity}"


def evaluation_columns(split: str) -> tuple[str, ...]:
    """The columns of one evaluation set in the row of each epoch; `vitscale.train.loop.evaluate`
    defines them.

    Rows of trials that were trained before a quantity was there lack its columns.
    """
    return tuple(column(split, weights, quantity) for weights in WEIGHTS for quantity in QUANTITIES)


def error_columns(split: str) -> tuple[str, ...]:
    """Those of `evaluation_columns` that are errors in percent,
    and are in the row of a diverged training too.
    """
    return tuple(column(split, weights, quantity) for weights in WEIGHTS for quantity in ERRORS)
