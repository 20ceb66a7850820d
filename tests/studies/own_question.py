"""A question of a script's own on a standing kind: each arm against the first, with a figure."""

import functools
from collections.abc import Iterator
from typing import Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscale import Study, TrainConfig, grid, main, trials
from vitscale.analysis.comparisons import Layout, sentences, table_of
from vitscale.analysis.displays import lines
from vitscale.analysis.kinds import add_question
from vitscale.analysis.report.layout import STYLE, finish
from vitscale.analysis.results import Results
from vitscale.plan.comparisons import Compared, Comparison, minus
from vitscale.plan.trial import Plan


def against_the_first(plan: Plan) -> Iterator[Comparison]:
    """Every arm minus the first."""
    first, *others = plan.arms
    for arm in others:
        yield Comparison(minus(arm, first), {"a": arm, "b": first})


def gain(results: Results) -> pd.DataFrame:
    """One row per arm but the first: its mean minus that of the first arm."""
    return table_of(results, "gain", Layout(("a", "b"), "difference", ("_a", "_b"), "last"))


@matplotlib.rc_context(STYLE)
def gains(results: Results) -> Figure:
    """The differences of the table gain with their 95% intervals."""
    table, figure = results.once(gain), Figure(figsize=(5, 4), layout="constrained")
    ax, x = figure.subplots(), np.arange(len(table)).astype(float)
    ends, look = lines.ends(table, "difference"), lines.look(0)
    lines.Line(x=x, ends=ends, texts=table["a"].tolist(), look=look).draw(ax)
    lines.ticks(ax, x, lambda place: table["a"][round(place)], margin=0.5)
    return finish(figure, "Differences of means over the finished runs, 95% intervals.")


add_question(
    "repeats",
    tables=[gain],
    figures=[gains],
    compared={"gain": Compared(against_the_first, "reported", {"": "gain over the first arm"})},
    answers={"gain": functools.partial(sentences, table=gain, what="Arms against the first")},
)


def study(scale: Literal["demo"] = "demo", num: int = 3) -> Study:
    base = TrainConfig(heads=2, width=8, batch_size=64, epochs=1, warmup_epochs=0.5)
    arms = {f"depth {depth}": {"depth": depth} for depth in (1, 2, 3)}
    return Study(
        kind="repeats",
        name="own_question",
        scale=scale,
        question="What do more blocks bring?",
        source="none",
        metric="val_error_pct",
        trials=trials(base, arms, grid(seed=range(num))),
        figures=("gains",),
        tables=("gain",),
    )


if __name__ == "__main__":
    main(study)
