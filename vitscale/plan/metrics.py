"""Metrics: the columns that evaluations add to the rows, with units, bounds and thresholds.

METRICS is the only definition of what a column contains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple


def fixed(value: float, decimals: int, sign: str = "") -> str:
    """A number with so many decimals, of two equally near ones the larger: 4.25 is 4.3, as 4.35 is
    4.4.

    Python's own formats give 4.2 and 4.3, by the binary fraction; shares of images are often ties.
    """
    return f"{value + math.copysign(1e-9, value):{sign}.{decimals}f}"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric in a column of the rows.

    `near` and `beyond` are differences in its unit: a draw at most `near` above the reference is
    called forgiven, one more than `beyond` above it has collapsed. They were chosen once per
    metric, before any result, so that the tables of two studies are comparable.
    """

    name: str  # the suffix of the column: "error_pct" in "val_ema_error_pct"
    label: str  # a noun for sentences and axes
    unit: str  # "%", or the name of the unit
    worst: float  # the value of a diverged or failed training
    bounds: tuple[float, float]  # of all values; intervals of a mean are clipped to them
    lower_is_better: bool = True
    near: float
    beyond: float
    of_images: bool = False  # a share of images, with binomial noise
    # which value of a trial's rows is its result
    result: Literal["final", "median"] = "final"
    decimals: int = 1  # of a value in a sentence

    @property
    def difference_unit(self) -> str:
        """The unit of a difference: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit

    @property
    def differences(self) -> tuple[float, float]:
        """The bounds of a difference of two values."""
        low, high = self.bounds
        return low - high, high - low

    @property
    def within(self) -> tuple[float, float, float]:
        """The differences for which tables show the share of draws: near/4, near/2 and near."""
        return self.near / 4, self.near / 2, self.near

    @property
    def is_bounded(self) -> bool:
        """Whether the worst value is finite, so that means and ratios can include it."""
        return math.isfinite(self.worst)

    def number(self, value: float, digits: int = 1, sign: str = "") -> str:
        """A value without its unit, with `decimals` places; `digits` - 1 more for closer looks.

        A dash for a number that does not exist, as in tables.
        """
        if math.isnan(value):
            return "–"
        return fixed(value, self.decimals + digits - 1, sign)

    def text(self, value: float, digits: int = 1) -> str:
        """A value with its unit: "12.3%", "0.412 nats"."""
        return self.number(value, digits) + ("%" if self.unit == "%" else f" {self.unit}")

    def apart(self, difference: float) -> str:
        """A difference with its unit: "4 points", "1 point", "0.2 nats"."""
        unit = self.difference_unit
        return f"{difference:g} {unit.removesuffix('s') if difference == 1 else unit}"

    def unit_of(self, column: str) -> str:
        """The unit of a column of a table: the metric's, that of its differences, or "" where the
        column is neither.
        """
        name = column.removesuffix("_low").removesuffix("_high")
        if name in VALUES or name.endswith("_mean"):
            return self.unit
        return self.difference_unit if name in DIFFERENCES else ""


# columns of tables in the unit of the study's metric, beside means on a set such as val_mean, and
# in that of its differences
VALUES = {
    *("value", "best_value", "last_value", "mean", "median", "min", "max", "worst", "reference"),
    *("best_of_n", "predicted", "measured", "floor", "lower", "upper"),
}
DIFFERENCES = {
    *("sd", "shared_sd", "seed_sd", "chance_sd", "reference_sd", "over_seeds", "over_images"),
    *("sd_over_seeds", "one_run_sampling", "difference", "median_difference", "gap", "delta"),
    *("interaction", "above_best", "difference_at_least", "difference_at_greatest"),
    *("size_gain", "images_gain"),
}
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
        # A cross entropy has no upper bound, so the worst value is infinite. Infinity has the right
        # rank in medians, EDFs and comparisons of ranks. Means are over finite values.
        # 0.2 nats correspond to about 4 points of top-1 error near 25% on ImageNet.
        Metric(
            name="loss",
            label="loss",
            unit="nats",
            worst=math.inf,
            bounds=(0.0, math.inf),
            near=0.2,
            beyond=0.5,
            decimals=3,
        ),
        ERROR,
        # top-5 errors are at most about half of top-1 errors, so the thresholds are half
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
        # 100%: full confidence in every image, and all wrong
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
# of profiles, each of which runs alone on its device
SPEED = Metric(
    name="images_per_s",
    label="images per second",
    unit="images/s",
    worst=math.nan,  # a failed profile has no speed
    bounds=(0.0, math.inf),
    lower_is_better=False,
    result="median",
    near=math.nan,
    beyond=math.nan,
)
# the row of a diverged training has the worst value of these, and none of the others
ERRORS = tuple(name for name, metric in METRICS.items() if metric.of_images)
# raw and averaged weights; without an average the columns of both are equal
WEIGHTS = ("", "ema_")


class Column(NamedTuple):
    """What a column of the rows contains: "val_ema_loss" is the loss of averaged weights on val.

    Studies name a column; `columns_of` maps the name to its meaning, so no name is parsed.
    """

    split: str  # evaluation set; empty for a speed
    weights: str  # as in WEIGHTS
    metric: Metric

    @property
    def name(self) -> str:
        return column(self.split, self.weights, self.metric.name) if self.split else SPEED.name

    @property
    def averaged(self) -> bool:
        """Whether the column is about averaged weights."""
        return self.weights == WEIGHTS[1]

    def on(self, split: str) -> Column:
        """The same metric and weights on another evaluation set."""
        return self._replace(split=split)


SPEED_COLUMN = Column("", WEIGHTS[0], SPEED)


def column(split: str, weights: str, quantity: str) -> str:
    """The name of a column: "val_error_pct", "val_ema_loss"."""
    return f"{split}_{weights}{quantity}"


def columns_of(split: str, more: Iterable[Metric] = ()) -> dict[str, Column]:
    """The columns of one evaluation set by name, in the order of `evaluation_columns`; then those
    of other metrics.
    """
    columns = (
        Column(split, w, m) for some in (METRICS.values(), more) for w in WEIGHTS for m in some
    )
    return {column.name: column for column in columns}


def evaluation_columns(split: str) -> tuple[str, ...]:
    """The columns of one evaluation set in each row, as returned by `train.loop.evaluate`.

    Rows of trials from before a metric was added lack its columns.
    """
    return tuple(columns_of(split))
