"""A study of a kind of its own, in thirty lines: what an epoch costs in seconds, by width."""

from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from vitscale import Study, TrainConfig, grid, main, trials
from vitscale.analysis.kind import Kind, named
from vitscale.analysis.kinds import register
from vitscale.analysis.results import Results


def epoch_cost(results: Results) -> pd.DataFrame:
    """A row per arm: mean seconds per epoch over its seeds."""
    seconds = (
        results.trials.groupby("arm", sort=False)["train_s"].mean()
        / results.trials["epochs"].iloc[0]
    )
    return seconds.rename("seconds_per_epoch").reset_index()


def cost_by_width(results: Results) -> Figure:
    """Seconds per epoch of each arm, as bars."""
    table, figure = results.once(epoch_cost), Figure()
    figure.subplots().bar(table["arm"], table["seconds_per_epoch"])
    return figure


def dearest(results: Results) -> list[str]:
    table = results.once(epoch_cost).sort_values("seconds_per_epoch")
    return [f"The dearest arm is {table['arm'].iloc[-1]}."]


register(
    Kind(
        name="cost",
        tables=named([epoch_cost]),
        figures=named([cost_by_width]),
        headline=dearest,
        summary=lambda results: {
            row["arm"]: {"seconds_per_epoch": row["seconds_per_epoch"]}
            for row in results.once(epoch_cost).to_dict("records")
        },
    )
)


def study(scale: Literal["demo"] = "demo", num: int = 2) -> Study:
    base = TrainConfig(heads=2, depth=1, batch_size=64, epochs=1, warmup_epochs=0.5)
    arms = {f"width {width}": {"width": width} for width in (8, 64)}
    return Study(
        kind="cost",
        name="own_kind",
        scale=scale,
        question="What does width cost?",
        source="none",
        trials=trials(base, arms, grid(seed=range(num))),
        figures=("cost_by_width",),
        tables=("epoch_cost",),
    )


if __name__ == "__main__":
    main(study)
