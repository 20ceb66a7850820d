"""Profiles: images per second and peak memory with intervals, the gain of one layout over another,
minutes per epoch.

Estimates are medians over the timed runs of a profile. Their intervals are about other runs in the
same state of the machine. Consecutive runs share that state, so the intervals are narrower than the
variation over hours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from vitscale.analysis.columns import ends, named
from vitscale.analysis.estimates import labelled
from vitscale.analysis.published.tables import read
from vitscale.analysis.results import Results
from vitscale.analysis.stats.intervals import median_interval
from vitscale.catalog.datasets import dataset_facts
from vitscale.catalog.epoch_times import DEVICES
from vitscale.catalog.epoch_times import epoch_minutes as printed_minutes
from vitscale.plan.profile import LAYOUTS

# of a cell, in which the layouts are compared
KEYS = ["model", "profile", "resolution", "batch_size"]
NUM_BOOTSTRAPS = 2000
ALPHA = 0.05
MIN_RUNS = 6  # fewer have no distribution-free 95% interval of their median
BUSY = 0.5  # load above the number of threads: something else ran


def throughput(results: Results) -> pd.DataFrame:
    """One row per model, profile, resolution and batch: median images per second of each layout
    over its timed runs, with an interval from order statistics, range, and number of runs.

    `par_over_seq_pct` is the change by computing the branches in one operation, bootstrapped over
    runs; its interval is that of a cell chosen beforehand. `par_over_seq_p` is Mann and Whitney's
    for the runs of the two layouts, and `_holm` corrects it for the cells of its profile.
    `gain_pct` is the best of the two over seq (Touvron et al. 2022, Table 4), which is never below
    0. `load` is the highest 1-minute load average.
    """
    table = labelled(results.study, results.trials)
    rows = [
        dict(zip(KEYS, key, strict=True)) | _cell(group)
        for key, group in table.groupby(KEYS, sort=False)
    ]
    by_batch = pd.DataFrame(rows)
    tests = list(by_batch[KEYS].itertuples(index=False, name=None))
    corrected = by_batch.groupby("profile", sort=False)["par_over_seq_p"].transform(
        lambda p: pd.Series(
            results.corrected(
                "par_over_seq_p",
                [tests[i] for i in p.index],
                p.astype(float).tolist(),
                family=str(p.name),
            ),
            p.index,
        )
    )
    by_batch.insert(
        list(by_batch.columns).index("par_over_seq_p") + 1,
        "par_over_seq_p_holm",
        corrected.astype(float),
    )
    return by_batch.drop(columns=[] if (table["layout"] == "par").any() else _of_par())


def speeds(results: Results) -> pd.DataFrame:
    """One row per profile, with its factors and its numbers of `throughput`: `speed` in images per
    second, its interval and range, and the change par_over_seq_pct of its cell.
    """
    table, by_batch = labelled(results.study, results.trials), results.once(throughput)
    names = {"": "_images_per_s", "_low": "_images_per_s_low", "_high": "_images_per_s_high"}
    names |= {"_min": "_min", "_max": "_max"}
    change = [name for name in ends("par_over_seq_pct") if name in by_batch]
    of_layout = [
        by_batch[KEYS + change]
        .assign(layout=layout)
        .assign(**{f"speed{end}": by_batch[f"{layout}{name}"] for end, name in names.items()})
        for layout in LAYOUTS
        if f"{layout}_n" in by_batch
    ]
    return table.merge(pd.concat(of_layout), how="left", on=[*KEYS, "layout"])


def epoch_minutes(results: Results) -> pd.DataFrame:
    """One row per profile of training: minutes per epoch of the dataset at the measured images per
    second.

    On one device as measured, and on 8 if data and communication cost nothing, which is a bound.
    Printed: Xiao et al. 2021, Tables 1 and 2, on 8 V100.
    """
    table = labelled(results.study, results.trials)
    rows = [_epoch(trial) for _, trial in table[table["profile"] == "training"].iterrows()]
    columns = [
        *KEYS,
        "layout",
        "images",
        "n",
        "minutes",
        f"minutes_on_{DEVICES}",
        "printed_minutes",
        "status",
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def _epoch(trial: pd.Series) -> dict[str, object]:
    facts, (speed, low, high) = dataset_facts(trial["dataset"]), median_with_ends(runs_of(trial))
    images = facts.num_train if facts else int(trial["num_images"])
    # the most images per second are the fewest minutes
    minutes = [images / per_s / 60 for per_s in (speed, high, low)]
    on_one = named("minutes", minutes)
    on_devices = named(f"minutes_on_{DEVICES}", [value / DEVICES for value in minutes])
    printed = (
        printed_minutes().get(str(trial["model"]), np.nan)
        if trial["dataset"] == "imagenet"
        else np.nan
    )
    labels = {name: trial[name] for name in (*KEYS, "layout")}
    return {
        **labels,
        "images": images,
        "n": len(runs_of(trial)),
        **on_one,
        **on_devices,
        "printed_minutes": printed,
        "status": trial["status"],
    }


def published_throughput(results: Results) -> pd.DataFrame:
    """Touvron et al. 2022, Table 4 (models of ImageNet, 224 pixels, V100): printed images per
    second, without intervals.

    `gain_pct` is the best of the two over seq, from the printed images per second;
    `printed_gain_pct` is printed, from unrounded ones.
    """
    table = read("touvron2022_table4").rename(columns={"gain_pct": "printed_gain_pct"})
    table = table.rename(
        columns={name: name.replace("images_per_s", "printed") for name in table.columns}
    )
    return table.assign(
        gain_pct=100
        * (table[["seq_printed", "par_printed"]].max(axis=1) / table["seq_printed"] - 1)
    )


def published_gains() -> pd.DataFrame:
    """Touvron et al. 2022, Table 4: images per second of parallel over sequential branches minus 1,
    in percent, by model and batch size.
    """
    table = read("touvron2022_table4")
    gain = 100 * (table["par_images_per_s"] / table["seq_images_per_s"] - 1)
    return table[["model", "batch_size"]].assign(gain_pct=gain)


def median_with_ends(runs: np.ndarray) -> tuple[float, float, float]:
    """Median of (n,) runs with its distribution-free 95% interval; fewer than 6 runs have none:
    NaN.
    """
    if not len(runs):
        return np.nan, np.nan, np.nan
    low, high = (
        median_interval(runs, bounds=(0.0, np.inf)) if len(runs) >= MIN_RUNS else (np.nan, np.nan)
    )
    return float(np.median(runs)), low, high


def change(seq: np.ndarray, par: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Percent by which the median of (m,) runs exceeds that of (n,), with a 95% percentile
    bootstrap over the runs.

    Runs of each layout are resampled separately, as independent. NaN if there are none; the ends
    are NaN if either has fewer than 6 runs.
    """
    if not len(seq) or not len(par):
        return np.nan, np.nan, np.nan
    estimate = 100 * (np.median(par) / np.median(seq) - 1)
    if min(len(seq), len(par)) < MIN_RUNS:
        return float(estimate), np.nan, np.nan
    rng = np.random.default_rng(seed)
    medians = [
        np.median(rng.choice(runs, (NUM_BOOTSTRAPS, len(runs))), axis=1) for runs in (seq, par)
    ]
    low, high = np.percentile(100 * (medians[1] / medians[0] - 1), (2.5, 97.5))
    return float(estimate), float(low), float(high)


def change_p(seq: np.ndarray, par: np.ndarray) -> float:
    """Mann and Whitney's two-sided p that runs of the two layouts have one distribution; NaN if
    either has fewer than 6 runs.

    It assumes independent runs. Consecutive runs are not independent, and then p is too small.
    """
    if min(len(seq), len(par)) < MIN_RUNS:
        return np.nan
    return float(scipy.stats.mannwhitneyu(seq, par).pvalue)  # exact without ties, for few runs


def gain(best_over_seq: Sequence[float]) -> tuple[float, ...]:
    """The gain of the better layout and its interval, from the change of par over seq: values below
    0 become 0.
    """
    return tuple(np.maximum(0.0, best_over_seq))  # NaN stays


def _cell(group: pd.DataFrame) -> dict[str, object]:
    """Both layouts of a model at one batch and resolution."""
    trials = {str(trial["layout"]): trial for _, trial in group.iterrows()}
    runs = {name: runs_of(trials[name]) if name in trials else np.empty(0) for name in LAYOUTS}
    row: dict[str, object] = {}
    for name, values in runs.items():
        memory = float(trials[name]["peak_memory_mib"]) if len(values) else np.nan
        row |= (
            named(f"{name}_images_per_s", median_with_ends(values))
            | _extremes(name, values)
            | {f"{name}_peak_mib": memory}
        )
    shift = change(runs["seq"], runs["par"])
    row |= named("par_over_seq_pct", shift) | {"par_over_seq_p": change_p(*runs.values())}
    row |= named("gain_pct", gain(shift))
    medians = {name: float(np.median(values)) for name, values in runs.items() if len(values)}
    lost = [
        f"{name}: {trial['error'] or trial['status']}"
        for name, trial in trials.items()
        if not len(runs[name])
    ]
    return row | {
        "best": max(medians, key=medians.__getitem__) if len(medians) == len(LAYOUTS) else "",
        "load": group["load"].max() if "load" in group else np.nan,
        "hardware": group["hardware"].iloc[0],
        "not_measured": "; ".join(lost),
    }


def _extremes(name: str, runs: np.ndarray) -> dict[str, float]:
    lowest, highest = (runs.min(), runs.max()) if len(runs) else (np.nan, np.nan)
    return {f"{name}_min": lowest, f"{name}_max": highest, f"{name}_n": len(runs)}


def runs_of(trial: pd.Series) -> np.ndarray:
    """(n,) images per second of the timed runs of a finished profile; else empty."""
    return (
        np.asarray(trial["images_per_s_runs"], dtype=float)
        if trial["status"] == "finished"
        else np.empty(0)
    )


def _of_par() -> list[str]:
    """Columns of a comparison, for a study that has one layout."""
    par = [*ends("par_images_per_s"), "par_min", "par_max", "par_n", "par_peak_mib"]
    return [
        *par,
        *ends("par_over_seq_pct"),
        "par_over_seq_p",
        "par_over_seq_p_holm",
        *ends("gain_pct"),
        "best",
    ]
