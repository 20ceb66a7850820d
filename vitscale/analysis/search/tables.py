"""Tables of a search: its points, winners and importances; and the search as an Optuna study.

Points are chosen by the results of earlier ones. So they are not a sample of the space, and no
share, interval or comparison of arms is computed over them. The value of a point is the mean error
over its seeds, with diverged and failed trainings at the worst; a point with a training that is
missing or was stopped early has no value.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vitscale.analysis import estimates
from vitscale.analysis.results import Results
from vitscale.plan.config import TrainConfig
from vitscale.plan.study import SearchInfo, Study

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

COLUMNS = (
    "value",
    "sd",
    "worst",
    "num_seeds",
    "state",
    "diverged",
    "failed",
    "epoch",
    "last_value",
)
BESIDE = ("finished_value", "trial_ids", "seeds")
STATES = ("complete", "stopped", "running")
NUM_BEST = 5  # points of an arm in a table
EDGE = 0.05  # share of an axis at either end: a winner there says that the space may be too narrow
NUM_GOOD = 5  # points that PED-ANOVA needs on its good side, says its documentation
MIN_POINTS = 3 * NUM_GOOD
NUM_NOISE = 300  # permutations, for a quantile to about 0.01: half a second an arm
WINNER = (
    "lowest mean error over the seeds that finished, of the points with an outcome for each seed "
    "of which at least half finished; of equals that with the lower worst seed, then with the "
    "smaller lr, then the one proposed first"
)


# ---- what was asked


def info(study: Study) -> SearchInfo:
    """How a search chooses its points: each study of this kind has that."""
    assert study.search
    return study.search


def procedure(study: Study) -> str:
    """How a search chose its points, in words."""
    return info(study).describe()


def is_adaptive(study: Study) -> bool:
    """True if results decide which points are proposed, or how long they are trained."""
    return info(study).sampler != "random" or info(study).asha


def space_of(study: Study, arm: str) -> Mapping[str, str]:
    """Axis -> its distribution in Optuna's JSON, for an arm."""
    return info(study).spaces.get(arm, {})


def spaces(study: Study, arm: str) -> dict[str, BaseDistribution]:
    """Axis -> its distribution, of one arm."""
    from optuna.distributions import json_to_distribution

    return {name: json_to_distribution(text) for name, text in space_of(study, arm).items()}


def axes(study: Study) -> tuple[str, ...]:
    """The axes of all arms, in the order of the first arm that has them."""
    return tuple(dict.fromkeys(name for arm in study.arms for name in space_of(study, arm)))


def points(results: Results) -> pd.DataFrame:
    """One row per proposed point, in the order of proposal: arm, point, its value on each axis,
    COLUMNS, BESIDE.

    value, sd (ddof=1) and worst are in the unit of the metric, over the seeds, of which a diverged
    one has the metric's worst value; NaN unless the state is "complete". `finished_value` is the
    mean over those that finished, NaN if they are fewer than half. "running" has a training without
    an outcome, "stopped" one that was stopped early: `epoch` and `last_value` are those of its
    last evaluation. Raises ValueError if a training with an outcome has no finite error.
    """
    configs = {trial.config.id: trial.config for trial in results.study.trials}
    proposals = results.trials[results.trials["point"].notna()]
    rows = [
        {
            "arm": arm,
            "point": int(runs["point"].iloc[0]),
            **_point(runs, configs, tuple(space_of(results.study, arm))),
        }
        for arm in results.study.arms
        for _, runs in proposals[proposals["arm"] == arm].groupby("point")
    ]
    return pd.DataFrame(
        rows,
        columns=["arm", "point", *axes(results.study), *COLUMNS, *BESIDE],
    )


def _point(
    runs: pd.DataFrame, configs: Mapping[str, TrainConfig], names: tuple[str, ...]
) -> dict[str, Any]:
    """One point; `runs` are its trainings, which differ only in their seed."""
    ids, status = tuple(runs["trial_id"]), set(runs["status"])
    seen = runs[runs["status"] != "missing"]
    errors = seen["value"].to_numpy(dtype=float)
    if not np.isfinite(errors).all():
        broken = seen["trial_id"].to_numpy()[~np.isfinite(errors)][0]
        raise ValueError(
            f"a training with an outcome must have a finite error, but got (trial_id={broken!r})"
        )
    state = "running" if "missing" in status else "stopped" if "stopped" in status else "complete"
    whole = errors if state == "complete" else np.array([np.nan])
    ended = estimates.errors(runs)
    last = (
        seen[seen["status"] == "stopped"].iloc[-1]
        if state == "stopped"
        else {"epoch": np.nan, "value": np.nan}
    )
    return {
        **{name: configs[ids[0]].axis(name) for name in names},
        "value": float(whole.mean()),
        "finished_value": float(ended.mean()) if 2 * len(ended) >= len(runs) else np.nan,
        "sd": float(whole.std(ddof=1)) if len(whole) > 1 else np.nan,
        "worst": float(whole.max()),
        "num_seeds": len(runs),
        "state": state,
        **{name: int((runs["status"] == name).sum()) for name in ("diverged", "failed")},
        "epoch": float(last["epoch"]),
        "last_value": float(last["value"]),
        "trial_ids": ids,
        "seeds": tuple(configs[i].seed for i in ids),
    }


def ranked(proposals: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The complete points of an arm, the best first, by the rule WINNER. `value` is the mean over
    the seeds that finished, if at least half did; points of which fewer did keep their place by the
    mean with the metric's worst value, which the sampler sees.
    """
    complete = proposals[(proposals["arm"] == arm) & (proposals["state"] == "complete")]
    complete = complete.assign(value=complete["finished_value"].fillna(complete["value"]))
    # sums of equal errors may differ
    keys = {
        "_fails": complete["finished_value"].isna(),
        "_value": complete["value"].round(9),
        "_worst": complete["worst"].round(9),
    }
    by = [*keys, *(name for name in ("lr",) if name in complete), "point"]
    return complete.assign(**keys).sort_values(by).drop(columns=list(keys))


# ---- Optuna's own study


def optuna_study(
    results: Results,
    arm: str,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    storage: optuna.storages.BaseStorage | None = None,
    name: str | None = None,
) -> optuna.Study:
    """The search of one arm as an Optuna study: one trial per proposed point, with the same number.

    COMPLETE with its value, PRUNED with the error at the epoch of the stop, RUNNING if a training
    is missing, so that a sampler does not propose it again. In memory, unless `storage` is given.
    """
    import optuna

    proposals = results.once(points)
    space = spaces(results.study, arm)
    rows = proposals[proposals["arm"] == arm].to_dict("records")
    with _quiet():
        made = optuna.create_study(storage=storage, sampler=sampler, pruner=pruner, study_name=name)
        made.add_trials(_frozen(row, space) for row in rows)
    return made


def as_optuna(results: Results) -> bytes:
    """The search as an SQLite file for Optuna's tools, one Optuna study per arm, named SLUG:ARM.

    A point without an outcome is WAITING there, not RUNNING: a reader of the file is not training
    it, and Optuna would treat it as a worker that hangs. `optimize` then trains it first, at the
    values proposed. Times in the file are those of its writing.
    """
    import optuna
    from sqlalchemy.pool import StaticPool

    # In memory first: each of a thousand small commits would wait for the disk.
    kwargs = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    with _quiet():
        storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs=kwargs)
    for arm in results.study.arms:
        _write_arm(results, arm, storage)
    memory = storage.engine.raw_connection().driver_connection
    assert memory is not None
    content = memory.serialize()
    storage.remove_session()
    storage.engine.dispose()
    return content


def _write_arm(results: Results, arm: str, storage: optuna.storages.RDBStorage) -> None:
    import optuna

    trials = optuna_study(results, arm).get_trials(deepcopy=False)
    with _quiet():
        written = optuna.create_study(storage=storage, study_name=f"{results.study.slug}:{arm}")
        written.add_trials(
            _waiting(t) if t.state == optuna.trial.TrialState.RUNNING else t for t in trials
        )
    facts = {
        "question": results.study.question,
        "metric": results.study.metric,
        "adaptive": procedure(results.study),
        "source": results.study.source,
    }
    for key, text in facts.items():
        written.set_user_attr(key, text)


def _frozen(
    row: Mapping[Any, Any], space: Mapping[str, BaseDistribution]
) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    states = {
        "complete": TrialState.COMPLETE,
        "stopped": TrialState.PRUNED,
        "running": TrialState.RUNNING,
    }
    names = ("trial_ids", "seeds", "diverged", "failed")
    attributes = {
        name: list(row[name]) if isinstance(row[name], tuple) else row[name] for name in names
    }
    return create_trial(
        state=states[row["state"]],
        value=row["value"] if row["state"] == "complete" else None,
        params={name: row[name] for name in space},
        distributions=dict(space),
        user_attrs=attributes,
        intermediate_values={int(row["epoch"]): row["last_value"]}
        if row["state"] == "stopped"
        else None,
    )


def _waiting(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """As `enqueue_trial` makes it."""
    from optuna.trial import TrialState, create_trial

    return create_trial(
        state=TrialState.WAITING,
        system_attrs={"fixed_params": trial.params},
        user_attrs=trial.user_attrs,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Optuna's message per created study, and its warnings about few points."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


# ---- winners and importances


def winners(results: Results) -> dict[str, dict[str, Any]]:
    """Arm -> its best point as plain values, with its provenance; without arms that have no
    complete point of which at least half of the seeds finished.

    By the rule WINNER. Errors are the best of num_points, so optimistic. `at_edge`: axis -> "low"
    or "high", where the point is in the outer 5% of the space.
    """
    proposals = results.once(points)
    ranked_by_arm = {arm: ranked(proposals, arm) for arm in results.study.arms}
    return {
        arm: _winner(results, arm, of_arm, int((proposals["arm"] == arm).sum()))
        for arm, of_arm in ranked_by_arm.items()
        if len(of_arm) and not np.isnan(of_arm["finished_value"].iloc[0])
    }


def _winner(results: Results, arm: str, complete: pd.DataFrame, num_asked: int) -> dict[str, Any]:
    space, best = spaces(results.study, arm), complete.iloc[0].to_dict()
    runs = results.trials[results.trials["trial_id"].isin(best["trial_ids"])]
    sources = {
        name: sorted({str(x) for x in runs[name].dropna()} - {""})
        for name in ("commit", "machine", "device")
        if name in runs
    }
    return {
        **_place(best, space),
        "model": results.study.arms[arm].factors.get("model", ""),
        "optimizer": _optimizer(results.study, arm),
        "num_points": len(complete),
        "num_asked": num_asked,
        "trial_ids": list(best["trial_ids"]),
        "seeds": list(best["seeds"]),
        "runner_up": _runner_up(complete, space),
        "at_edge": at_edge(best, space),
        "rule": WINNER,
        "study": results.study.slug,
        "metric": results.study.metric,
        "search": procedure(results.study),
        "spaces": dict(space_of(results.study, arm)),
        **sources,
    }


def _optimizer(study: Study, arm: str) -> str:
    return next(trial.config.optimizer for trial in study.trials if trial.arm.name == arm)


def _place(row: Mapping[Any, Any], space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Coordinates and value of a point; a spread that does not exist is None."""
    spread = None if math.isnan(row["sd"]) else row["sd"]
    return {
        "values": {name: row[name] for name in space},
        "point": int(row["point"]),
        "value": row["value"],
        "sd": spread,
        "worst": row["worst"],
        "num_seeds": int(row["num_seeds"]),
        "diverged": int(row["diverged"]),
    }


def _runner_up(
    complete: pd.DataFrame, space: Mapping[str, BaseDistribution]
) -> dict[str, Any] | None:
    if len(complete) < 2:
        return None
    second = complete.iloc[1].to_dict()
    return {
        **_place(second, space),
        "difference": second["value"] - float(complete["value"].iloc[0]),
    }


def at_edge(row: Mapping[Any, Any], space: Mapping[str, BaseDistribution]) -> dict[str, str]:
    """Axis -> "low" or "high", for numeric axes on which a point is in the outer 5% of the
    space.
    """
    shares = {name: share(axis, row[name]) for name, axis in space.items() if is_numeric(axis)}
    return {
        name: "low" if x < 0.5 else "high" for name, x in shares.items() if min(x, 1 - x) < EDGE
    }


def is_numeric(axis: BaseDistribution) -> bool:
    """Whether an axis has an order and a width."""
    return hasattr(axis, "low") and not axis.single()


def share(axis: Any, value: float) -> float:
    """Position of a value on a numeric axis, 0 to 1, on the axis' own scale."""
    low, high, x = (math.log(v) if axis.log else float(v) for v in (axis.low, axis.high, value))
    return (x - low) / (high - low)


def importances(results: Results, arm: str) -> dict[str, dict[str, float]]:
    """Evaluator -> axis -> share of importance of the axes of an arm; NaN for fewer than MIN_POINTS
    complete points, and if all have the same error, as where all diverged.

    Optuna's evaluators. PED-ANOVA (Watanabe et al. 2023) compares the best points, a tenth of them
    but at least NUM_GOOD, with all. fANOVA (Hutter et al. 2014) splits the variance of a forest's
    prediction; it is given axes on their own scale, log where the space is, since Optuna's averages
    over the raw one.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    made = optuna_study(results, arm)
    points = made.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(points) < MIN_POINTS or len({point.value for point in points}) == 1:
        return {
            name: dict.fromkeys(spaces(results.study, arm), np.nan)
            for name in ("ped_anova", "fanova")
        }
    return {
        "ped_anova": ped_anova(made),
        "fanova": get_param_importances(
            _on_own_scale(made), evaluator=FanovaImportanceEvaluator(seed=0)
        ),
    }


def ped_anova(
    made: optuna.Study, target: Callable[[optuna.trial.FrozenTrial], float] | None = None
) -> dict[str, float]:
    """Axis -> share of PED-ANOVA; `target` gives a trial another value than its own."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    num = len(made.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, NUM_GOOD / num))
    with warnings.catch_warnings():
        # that a target should be low, which a permuted error is, too
        warnings.filterwarnings("ignore", "PedAnovaImportanceEvaluator computes", UserWarning)
        return get_param_importances(made, evaluator=evaluator, target=target)


def noise_shares(results: Results, arm: str, num: int = NUM_NOISE) -> dict[str, float]:
    """Axis -> the PED-ANOVA share that 1 in 20 searches of pure noise exceed; NaN as in
    `importances`.

    The errors of the arm's points are permuted among them `num` times: the same points, but no axis
    matters.
    """
    from optuna.trial import TrialState

    made = optuna_study(results, arm)
    complete = made.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    values = {trial.number: float(trial.value or 0.0) for trial in complete}
    axes_of_arm, rng = spaces(results.study, arm), np.random.default_rng(0)
    if len(values) < MIN_POINTS or len({*values.values()}) == 1:
        return dict.fromkeys(axes_of_arm, np.nan)
    shares = []
    for _ in range(num):
        dealt = dict(zip(values, rng.permutation(list(values.values())).tolist(), strict=True))
        shares.append(ped_anova(made, _dealt(dealt)))
    return {name: float(np.quantile([s[name] for s in shares], 0.95)) for name in axes_of_arm}


def _dealt(values: Mapping[int, float]) -> Callable[[optuna.trial.FrozenTrial], float]:
    return lambda trial: values[trial.number]


def _on_own_scale(made: optuna.Study) -> optuna.Study:
    """The complete trials with numeric axes as shares of the space, 0 to 1."""
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.trial import TrialState, create_trial

    with _quiet():
        scaled = optuna.create_study()
        for trial in made.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            numeric = {name for name, axis in trial.distributions.items() if is_numeric(axis)}
            scaled.add_trial(
                create_trial(
                    value=trial.value,
                    params={
                        name: share(trial.distributions[name], value) if name in numeric else value
                        for name, value in trial.params.items()
                    },
                    distributions={
                        name: FloatDistribution(0, 1) if name in numeric else axis
                        for name, axis in trial.distributions.items()
                    },
                )
            )
    return scaled


# ---- tables


def search_best(results: Results) -> pd.DataFrame:
    """The five points of each arm with the lowest mean error over their seeds.

    Best of many: the errors of these points are optimistic, and more so with more points (`best
    of`). Intervals are Student's, over other seeds at that point, clipped to the bounds of the
    metric: with two or three seeds they are wide. They do not include the choice among points; a
    point with a diverged training has none. `at edge`: axes on which the point is in the outer 5%
    of the space, which may then be too narrow. `above best` shows which differences are small; it
    is not a test.
    """
    proposals = results.once(points)
    rows = [
        row
        for arm in results.study.arms
        for row in _best_rows(results, arm, ranked(proposals, arm))
    ]
    ends = ["mean_low", "mean_high"]
    names = [
        "arm",
        "rank",
        "point",
        *axes(results.study),
        "num_seeds",
        "mean",
        *ends,
        "worst",
        "above_best",
        "diverged",
        "best_of",
        "at_edge",
    ]
    table = pd.DataFrame(rows, columns=names)
    return table if (table["num_seeds"] > 1).any() else table.drop(columns=ends)


def _best_rows(results: Results, arm: str, complete: pd.DataFrame) -> list[dict[str, Any]]:
    space, rows = spaces(results.study, arm), []
    for rank, row in enumerate(complete.head(NUM_BEST).to_dict("records"), start=1):
        errors = estimates.errors(results.trials[results.trials["trial_id"].isin(row["trial_ids"])])
        _, low, high = estimates.value_interval(
            errors if len(errors) == row["num_seeds"] else np.empty(0), results.metric
        )
        edges = ", ".join(f"{name} {end}" for name, end in at_edge(row, space).items())
        rows.append(
            {
                "arm": arm,
                "rank": rank,
                "point": row["point"],
                **{name: row[name] for name in space},
                "num_seeds": row["num_seeds"],
                "mean": row["value"],
                "mean_low": low,
                "mean_high": high,
                "worst": row["worst"],
                "above_best": row["value"] - complete["value"].iloc[0],
                "diverged": row["diverged"],
                "best_of": len(complete),
                "at_edge": edges or "–",
            }
        )
    return rows


def why_no_importance(results: Results, arm: str) -> str:
    """Why an arm has no importances, in a sentence without its end; empty if it has some."""
    proposals = results.once(points)
    of_arm = proposals[proposals["arm"] == arm]
    complete, stopped = ranked(proposals, arm), int((of_arm["state"] == "stopped").sum())
    if len(complete) < MIN_POINTS:
        early = f", {stopped} were stopped early: a search without ASHA has their values"
        return f"{len(complete)} of {len(of_arm)} points are complete, {MIN_POINTS} are needed" + (
            early * bool(stopped)
        )
    return "all points have the same value" if complete["value"].nunique() == 1 else ""


def search_importance(results: Results) -> pd.DataFrame:
    """How much of the differences between points each axis explains, by two of Optuna's evaluators.

    PED-ANOVA (Optuna's default): how strongly the best points, the `good share` of all, concentrate
    on the axis compared with all points. fANOVA: the axis' share of the variance of a random
    forest, with diverged points at the worst, so it is largely about divergence. Each adds up to 1
    over the axes of an arm whether or not anything matters, and without interactions. A sampler
    proposes more points where errors were low: these are importances of the region it searched,
    from single values with the noise of their seeds. Pure noise has large shares, too. `PED-ANOVA
    of noise` is what the share of that axis exceeds in 1 of 20 searches whose errors are permuted
    among the same points: a share below it shows nothing. fANOVA of noise: of two axes and 16 or 20
    points the larger share exceeds 0.87 in 1% of searches. None for fewer than 15 points.
    """
    rows = []
    for arm in results.study.arms:
        complete = ranked(results.once(points), arm)
        of_arm, of_noise = importances(results, arm), noise_shares(results, arm)
        good = max(0.1, NUM_GOOD / len(complete)) if len(complete) >= MIN_POINTS else np.nan
        for name in spaces(results.study, arm):
            importance = {evaluator: of_axis[name] for evaluator, of_axis in of_arm.items()}
            rows.append(
                {
                    "arm": arm,
                    "axis": name,
                    "n": len(complete),
                    "diverged": int((complete["diverged"] > 0).sum()),
                    "good_share": good,
                    **importance,
                    "noise": of_noise[name],
                }
            )
    names = {"ped_anova": "PED-ANOVA", "noise": "PED-ANOVA of noise", "fanova": "fANOVA"}
    columns = ["arm", "axis", "n", "diverged", "good_share", *names]
    return pd.DataFrame(rows, columns=columns).rename(columns=names)


def contour_axes(study: Study, arm: str) -> tuple[str, ...]:
    """lr and wd, or else the first two numeric axes that the arm searches; fewer if there are
    fewer.
    """
    names = tuple(name for name, axis in spaces(study, arm).items() if is_numeric(axis))
    return ("lr", "wd") if {"lr", "wd"} <= set(names) else names[:2]


def surface(results: Results) -> pd.DataFrame:
    """One row per arm and position on its two contour_axes, x and y: mean value of the complete
    points there.
    """
    complete = results.once(points)
    complete = complete[complete["state"] == "complete"]
    tables = []
    for arm in results.study.arms:
        names = contour_axes(results.study, arm)
        if len(names) == 2:
            of_arm = complete[complete["arm"] == arm].rename(
                columns=dict(zip(names, "xy", strict=True))
            )
            mean = of_arm.groupby(["x", "y"])["value"].mean()
            tables.append(mean.reset_index().assign(arm=arm))
    return pd.concat(tables) if tables else pd.DataFrame(columns=["x", "y", "value", "arm"])
