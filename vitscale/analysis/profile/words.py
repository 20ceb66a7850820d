"""Sentences of a report about profiles."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscale.analysis import registry
from vitscale.analysis.kind import Kind, Summary
from vitscale.analysis.profile.tables import ALPHA, BUSY, speeds, throughput
from vitscale.analysis.report.text import about
from vitscale.analysis.results import STATUSES, Results
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import Study


def headline(results: Results) -> list[str]:
    """How many profiles are measured, then in how many cells a layout is faster."""
    return [progress(results), *about("throughput", answer(results))]


def progress(results: Results) -> str:
    """How many profiles have an outcome."""
    num_by_status = results.trials["status"].value_counts()
    num_by_outcome = ", ".join(
        f"{num_by_status.get(status, 0)} {status}" for status in ("finished", "failed", "missing")
    )
    return f"Of {len(results.trials)} profiles on {_hardware(results.study)}: {num_by_outcome}."


def answer(results: Results) -> list[str]:
    """In how many cells par is faster or slower than seq, the largest change, and whether the
    machine was quiet.
    """
    table = results.once(throughput)
    sentences = [
        _profile_sentence(str(profile), rows)
        for profile, rows in table.groupby("profile", sort=False)
        if "par_over_seq_pct" in rows and rows["par_over_seq_pct"].notna().any()
    ]
    threads, loads = (
        _first(results.study).threads,
        results.trials.get("load", pd.Series(dtype=float)),
    )
    busy = int((loads > threads + BUSY).sum()) if threads else 0
    if busy:
        above = f"load above {threads + BUSY:g}"
        sentences.append(
            f"The machine was busy ({above}) during {busy} profiles: these are not to be trusted."
        )
    return sentences


def _profile_sentence(profile: str, table: pd.DataFrame) -> str:
    comparable = table[table["par_over_seq_pct"].notna()]
    name, tested = "par_over_seq_pct", comparable[comparable["par_over_seq_p"].notna()]
    shown = tested["par_over_seq_p_holm"] < ALPHA
    faster, slower = (
        int((shown & is_side).sum()) for is_side in (tested[name] > 0, tested[name] < 0)
    )
    top = comparable.iloc[int(comparable[name].argmax())]
    low, high = top[f"{name}_low"], top[f"{name}_high"]
    where = f"{top['model']}, batch {top['batch_size']}, {top['resolution']} pixels"
    text = (
        f"branches in one go are faster than one after another in {faster} and slower in {slower} "
        f"of {len(tested)} cells (p after Holm below 5%). "
    )
    ends = "no interval"
    if pd.notna(low):
        ends = (
            f"95% interval of a cell chosen in advance {low:.0f} to {high:.0f}, p after Holm "
            f"{_p(top)}"
        )
    return (
        f"In {profile}, {text if len(tested) else ''}the largest change of {len(comparable)} cells "
        f"by computing branches in one go, picked because it is the largest: {top[name]:.0f}% "
        f"({ends}), {where}."
    ).replace(". the largest", ". The largest")


def _p(row: pd.Series) -> str:
    p = row["par_over_seq_p_holm"]
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def unfinished(results: Results) -> str:
    """What is missing, in a sentence; empty when nothing is."""
    num = int((results.trials["status"] == "missing").sum())
    return f"{num} of {len(results.trials)} profiles are not measured yet." if num else ""


def counts(results: Results) -> pd.DataFrame:
    """One row per arm: numbers of profiles by status."""
    statuses_by_arm = [
        (arm, results.trials.loc[results.trials["arm"] == arm, "status"])
        for arm in results.study.arms
    ]
    statuses = [status for status in STATUSES if status != "diverged"]
    rows = [
        {"arm": arm, **{status: int((status_of_arm == status).sum()) for status in statuses}}
        for arm, status_of_arm in statuses_by_arm
    ]
    return pd.DataFrame(rows)


def summary(results: Results) -> Summary:
    """Images per second of each arm at each batch, at the arm's first resolution; those that
    exist.
    """
    table, numbers = results.once(speeds), Summary()
    for arm in results.study.arms:
        of_arm = table[table["arm"] == arm]
        numbers_of_arm = {
            status: float((of_arm["status"] == status).sum()) for status in ("failed", "missing")
        }
        for _, row in of_arm[of_arm["resolution"] == of_arm["resolution"].iloc[0]].iterrows():
            numbers_of_arm |= {
                f"images_per_s_batch_{row['batch_size']}{end}": row[f"speed{end}"]
                for end in ("", "_low", "_high")
            }
        numbers[arm] = {name: value for name, value in numbers_of_arm.items() if np.isfinite(value)}
    return numbers


def design(study: Study) -> pd.DataFrame:
    """One row per arm: what is varied, and the model's size."""
    rows = []
    for arm in study.arms:
        configs = [trial.config for trial in study.trials if trial.arm.name == arm]
        size = study.cost(configs[0])
        axes = {
            name: ", ".join(str(v) for v in sorted({getattr(c, name) for c in configs}))
            for name in ("batch_size", "resolution", "precision", "timed_runs")
        }
        rows.append(
            {
                "arm": arm,
                "profiles": len(configs),
                **axes,
                "parameters": f"{size.params:,}",
                "multiply-adds": f"{size.flops:,}",
            }
        )
    return pd.DataFrame(rows)


def design_text(study: Study) -> str:
    """How the profiles were chosen."""
    return (
        f"{len(study.trials)} profiles in {len(study.arms)} arms, all fixed before the first was "
        f"measured, on {_hardware(study)}. Multiply-adds are those of one image at the arm's "
        "first resolution."
    )


def caveats(results: Results) -> list[str]:
    """What a reader must know before believing a number, a sentence each."""
    sentences = [
        "Images per second are medians over the timed runs of a profile, each a mean over many "
        "passes of one batch. The lowest and the highest are in the table.",
        (
            "Intervals are 95%, from order statistics for a median and from a bootstrap over runs "
            "for a change. They assume independent runs, but runs within seconds on one machine "
            "share its state: another hour, process or machine may differ by more than the "
            "interval; for the same reason p is too small where runs drift. Intervals are not "
            "corrected for the number of rows; par_over_seq_p_holm is, over the cells of a profile."
        ),
        "A profile that failed, as when memory ran out, has no speed; the table names it.",
        (
            "The batch is synthetic and on the device: these numbers do not include reading, "
            "augmenting and moving images."
        ),
    ]
    return [
        *sentences,
        *([unfinished(results)] if (results.trials["status"] == "missing").any() else []),
    ]


def _first(study: Study) -> ProfileConfig:
    config = study.trials[0].config
    assert isinstance(config, ProfileConfig)
    return config


def _hardware(study: Study) -> str:
    return _first(study).hardware


KIND = Kind(
    name="profile",
    tables=registry.tables("profile"),
    figures=registry.figures("profile"),
    incomparable="arms compared must be trainings and not profiles",
    headline=headline,
    caveats=caveats,
    summary=summary,
    unfinished=unfinished,
    counts=counts,
    design=design,
    design_text=design_text,
)
