"""Searches: a simulated bowl with a known optimum and a cliff
of divergence, and what Optuna's own tools read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
import scipy.stats
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import TrialState
from support import known
from support.refusals import refusing

from vitscale.analysis import kinds, side_by_side
from vitscale.analysis.report import report
from vitscale.analysis.report.report import headline
from vitscale.analysis.results import Results
from vitscale.analysis.search import tables as search
from vitscale.analysis.search import words as search_words
from vitscale.plan.config import TrainConfig
from vitscale.plan.design import sample
from vitscale.plan.kinds import check_use
from vitscale.plan.study import SearchInfo, Study, from_json, to_json
from vitscale.plan.trial import Trial
from vitscale.record.workdir import Workdir

SPACES = {
    "A": {
        "lr": FloatDistribution(1e-4, 1e-1, log=True),
        "wd": FloatDistribution(1e-3, 1.0, log=True),
    },
    "B": {
        "lr": FloatDistribution(1e-2, 1.0, log=True),
        "wd": FloatDistribution(1e-6, 1e-2, log=True),
    },
}
FIGURES, TABLES = tuple(search_words.KIND.figures), tuple(search_words.KIND.tables)
SETTINGS: dict = {
    "kind": "search",
    "name": "made",
    "scale": "demo",
    "question": "Which lr and wd?",
    "source": "Nobody 2021",
    "metric": "minival_ema_error_pct",
    "figures": FIGURES,
    "tables": TABLES,
}
BASE = TrainConfig(eval_split="minival", epochs=9)
NO_ROWS = pd.DataFrame(columns=["arm", "point", "trial_id", "status", "epoch"])


def make_study(
    asked: dict[str, list[dict]], seeds: tuple[int, ...] = (0, 1), spaces: dict | None = None
) -> Study:
    """A search that has asked for these points."""
    depth = {arm: i for i, arm in enumerate(asked, start=2)}
    plan = tuple(
        Trial(arm, BASE.replace(**point, seed=seed, depth=depth[arm]), number)
        for arm, points in asked.items()
        for number, point in enumerate(points)
        for seed in seeds
    )
    written = {
        arm: {name: distribution_to_json(axis) for name, axis in (spaces or SPACES)[arm].items()}
        for arm in asked
    }
    return Study(
        trials=plan, search=SearchInfo(sampler="tpe", per_round=4, spaces=written), **SETTINGS
    )


def bowl(config: TrainConfig) -> float:
    """Percent: least at lr 3e-3 and wd 0.1; lr matters nine
    times as much as wd; beyond lr 3e-2 it diverges.
    """
    if config.lr > 3e-2:
        return 100.0
    noise = np.random.default_rng([config.seed, int(1e7 * config.lr), int(1e7 * config.wd)]).normal(
        0, 0.2
    )
    return float(5 + 9 * np.log10(config.lr / 3e-3) ** 2 + np.log10(config.wd / 0.1) ** 2 + noise)


def make_outcomes(
    study: Study,
    error: Callable[[TrainConfig], float] = bowl,
    status: dict[tuple[int, int], str] | None = None,
) -> pd.DataFrame:
    """Outcomes of a search; `status`: (point, seed) to what is neither finished nor diverged."""
    records = []
    for trial in study.trials:
        config, value = trial.config, error(trial.config)
        state = (status or {}).get(
            (trial.point or 0, config.seed), "diverged" if value == 100 else "finished"
        )
        value = {"missing": np.nan, "failed": 100.0}.get(state, value)
        epoch = {"missing": np.nan, "stopped": 3.0}.get(state, 9.0)
        records.append(
            {
                "arm": trial.arm.name,
                "point": trial.point,
                "trial_id": config.id,
                "status": state,
                "value": value,
                **config.asdict(),
                "epoch": epoch,
                "commit": "abc",
            }
        )
    return pd.DataFrame(records).astype({"point": "Int64"})


def random_search(num: int = 40, arms: str = "A", seeds: tuple[int, ...] = (0, 1)) -> Study:
    return make_study({arm: sample(SPACES[arm], num=num) for arm in arms}, seeds)


# ---- points and winners


def test_values_of_points_are_those_of_the_simulation() -> None:
    study = random_search()
    found = search.points(Results(study, make_outcomes(study)))
    errors = np.array([bowl(trial.config) for trial in study.trials]).reshape(40, 2)
    assert found["value"].tolist() == pytest.approx(errors.mean(1).tolist())
    assert found["sd"].tolist() == pytest.approx(
        (np.abs(errors[:, 0] - errors[:, 1]) / np.sqrt(2)).tolist()
    )
    assert found["diverged"].tolist() == (errors == 100).sum(1).tolist()
    assert found["diverged"].sum() > 0
    assert found["lr"].tolist() == [trial.config.lr for trial in study.trials[::2]]


def test_a_point_that_diverged_is_no_winner() -> None:
    study = random_search(num=4, arms="AB")
    outcomes = make_outcomes(study)
    of_arm = outcomes["arm"] == "A"
    outcomes.loc[of_arm, ["value", "status"]] = [100.0, "diverged"]
    results = Results(study, outcomes)
    assert set(search.winners(results)) == {"B"}
    assert not any("100.00%" in line for line in headline(results))


def test_winner_is_that_of_brute_force_and_lies_near_the_bottom_of_the_bowl() -> None:
    study = random_search(num=200)
    best = search.winners(Results(study, make_outcomes(study)))["A"]
    errors = np.array([bowl(trial.config) for trial in study.trials]).reshape(200, 2).mean(1)
    lowest, second = np.argsort(errors)[:2]
    assert best["point"] == lowest
    assert best["value"] == pytest.approx(errors[lowest])
    assert best["runner_up"]["point"] == second
    assert best["runner_up"]["difference"] == pytest.approx(errors[second] - errors[lowest])
    assert best["trial_ids"] == [
        trial.config.id for trial in study.trials[2 * lowest : 2 * lowest + 2]
    ]
    assert abs(np.log10(best["values"]["lr"] / 3e-3)) < 0.2
    assert (best["num_points"], best["at_edge"], best["commit"]) == (200, {}, ["abc"])
    assert json.loads(json.dumps(best, allow_nan=False)) == best


def test_of_equal_means_the_lower_worst_seed_wins_then_the_smaller_lr() -> None:
    places = [{"lr": lr, "wd": 0.1} for lr in (0.01, 0.004, 0.002, 0.02)]
    errors = {
        (0.01, 0): 3.0,
        (0.01, 1): 5.0,
        (0.004, 0): 4.5,
        (0.004, 1): 3.5,
        (0.002, 0): 3.5,
        (0.002, 1): 4.5,
        (0.02, 0): 1.0,
        (0.02, 1): 7.1,
    }
    study = make_study({"A": places})
    outcomes = make_outcomes(study, lambda config: errors[config.lr, config.seed])
    assert search.ranked(search.points(Results(study, outcomes)), "A")["point"].tolist() == [
        2,
        1,
        0,
        3,
    ]


def test_a_point_with_half_of_its_seeds_diverged_wins_by_the_others() -> None:
    """The rule of tests/analysis/test_cells.py. A sampler learns of the divergence."""
    study = make_study({"A": [{"lr": 1e-3, "wd": 0.1}, {"lr": 3e-3, "wd": 0.1}]})
    errors = {(1e-3, 0): 30.0, (1e-3, 1): 31.0, (3e-3, 0): 1.0, (3e-3, 1): 100.0}
    outcomes = make_outcomes(
        study, lambda config: errors[config.lr, config.seed], status={(1, 1): "diverged"}
    )
    results = Results(study, outcomes)
    best = search.winners(results)["A"]
    assert (best["point"], best["value"], best["diverged"]) == (1, 1.0, 1)
    assert best["runner_up"]["difference"] == pytest.approx(29.5)
    (sampled,) = [search.optuna_study(results, "A").trials[1].value]
    assert sampled == pytest.approx(50.5)


def test_a_point_with_a_missing_or_a_stopped_training_has_no_value_and_cannot_win() -> None:
    study = make_study(
        {"A": [{"lr": 3e-3, "wd": 0.1}, {"lr": 4e-3, "wd": 0.1}, {"lr": 1e-3, "wd": 0.1}]}
    )
    outcomes = make_outcomes(study, status={(0, 1): "missing", (1, 0): "stopped"})
    found = search.points(Results(study, outcomes))
    assert found["state"].tolist() == ["running", "stopped", "complete"]
    assert found["value"].isna().tolist() == [True, True, False]
    assert found["last_value"].tolist()[1] == pytest.approx(bowl(study.trials[2].config))
    assert search.winners(Results(study, outcomes))["A"]["point"] == 2
    assert search.winners(Results(study, outcomes))["A"]["runner_up"] is None


def test_diverged_and_failed_trainings_are_values_of_100() -> None:
    study = make_study({"A": [{"lr": 3e-3, "wd": 0.1}, {"lr": 0.09, "wd": 0.1}]})
    found = search.points(Results(study, make_outcomes(study, status={(0, 1): "failed"})))
    assert found["value"].tolist() == pytest.approx(
        [(100 + bowl(study.trials[0].config)) / 2, 100.0]
    )
    assert (found["failed"].tolist(), found["diverged"].tolist()) == ([1, 0], [0, 2])


def test_a_finished_training_without_an_error_is_refused() -> None:
    study = make_study({"A": [{"lr": 3e-3, "wd": 0.1}]})
    with refusing("trial_id="):
        search.points(Results(study, make_outcomes(study, lambda _: np.nan)))


@pytest.mark.parametrize(
    ("lr", "edge"), [(1e-4, "low"), (1.3e-4, "low"), (1.5e-4, None), (6e-2, None), (8e-2, "high")]
)
def test_the_edge_is_the_outer_20th_of_a_log_axis(lr: float, edge: str | None) -> None:
    share = np.log(lr / 1e-4) / np.log(1e3)
    assert (share < 0.05 or share > 0.95) == (edge is not None)
    assert search.at_edge({"lr": lr, "wd": 0.03}, SPACES["A"]).get("lr") == edge


# ---- Optuna's study


def test_optuna_has_the_points_in_order_with_exact_values() -> None:
    study = random_search(arms="AB")
    outcomes = make_outcomes(study)
    made = search.optuna_study(Results(study, outcomes), "B")
    asked = [
        trial.config for trial in study.trials if trial.arm.name == "B" and trial.config.seed == 0
    ]
    assert [trial.params for trial in made.trials] == [
        {"lr": config.lr, "wd": config.wd} for config in asked
    ]
    assert [trial.number for trial in made.trials] == list(range(40))
    assert made.trials[0].distributions == SPACES["B"]
    values = outcomes[outcomes["arm"] == "B"].groupby("point")["value"].mean()
    assert [trial.value for trial in made.trials] == pytest.approx(values.tolist())
    assert made.direction == optuna.study.StudyDirection.MINIMIZE
    assert made.best_trial.user_attrs["seeds"] == [0, 1]


def test_unfinished_points_are_running_and_stopped_ones_pruned_at_their_epoch() -> None:
    study = random_search(num=6, seeds=(0,))
    outcomes = make_outcomes(study, status={(1, 0): "stopped", (4, 0): "missing"})
    made = search.optuna_study(Results(study, outcomes), "A")
    states = [trial.state for trial in made.trials]
    assert (states.pop(4), states.pop(1)) == (TrialState.RUNNING, TrialState.PRUNED)
    assert set(states) == {TrialState.COMPLETE}
    assert made.trials[1].intermediate_values == {3: pytest.approx(bowl(study.trials[1].config))}


def test_values_of_every_kind_of_axis_survive_unchanged() -> None:
    space = {
        "A": {
            "lr": FloatDistribution(1e-4, 0.1, log=True),
            "batch_size": IntDistribution(16, 64, step=16),
            "optimizer": CategoricalDistribution(["adamw", "sgd"]),
            "nesterov": CategoricalDistribution([False]),
            "clip_norm": FloatDistribution(0.0, 1.0, step=0.25),
        }
    }
    drawn = sample(space["A"], num=12)
    study = make_study({"A": drawn}, spaces=space)
    study = from_json(json.loads(json.dumps(to_json(study))))
    trials = search.optuna_study(Results(study, make_outcomes(study)), "A").trials
    assert [trial.params for trial in trials] == drawn
    assert {type(trial.params["batch_size"]) for trial in trials} == {int}
    assert trials[0].distributions == space["A"]
    for name in FIGURES:  # drawn, whatever the axes
        known.FIGURES[name](Results(study, make_outcomes(study), NO_ROWS))


def test_a_sampler_goes_on_as_if_it_had_never_stopped() -> None:
    """Proposals after a rebuild against those of one Optuna study that lived through it all."""

    def sampler() -> optuna.samplers.TPESampler:
        return optuna.samplers.TPESampler(seed=7, n_startup_trials=4)

    study = random_search(num=12, seeds=(0,))
    rebuilt = search.optuna_study(Results(study, make_outcomes(study)), "A", sampler=sampler())
    lived = optuna.create_study(sampler=sampler())
    for trial in study.trials:
        lived.enqueue_trial({"lr": trial.config.lr, "wd": trial.config.wd})
    for trial in study.trials:
        asked = lived.ask(SPACES["A"])
        lived.tell(asked, bowl(trial.config))
    lived.sampler = sampler()
    assert [rebuilt.ask(SPACES["A"]).params for _ in range(4)] == [
        lived.ask(SPACES["A"]).params for _ in range(4)
    ]


LOAD = """
import json, optuna, sys
storage = f"sqlite:///{sys.argv[1]}"
found = {}
for name in optuna.study.get_all_study_names(storage):
    study = optuna.load_study(study_name=name, storage=storage)
    found[name] = [[t.state.name, t.value, t.params] for t in study.trials]
print(json.dumps(found))
study.optimize(lambda trial: trial.suggest_float("lr", 1e-2, 1, log=True), n_trials=1)
print(json.dumps([t.state.name for t in study.trials] + [study.trials[2].params["lr"]]))
"""


def test_the_file_opens_in_another_process_and_in_optunas_command_line(tmp_path: Path) -> None:
    study = random_search(num=3, arms="AB")
    outcomes = make_outcomes(study, status={(2, 0): "missing"})
    path = tmp_path / "search.db"
    path.write_bytes(search.as_optuna(Results(study, outcomes)))

    cli = [str(Path(sys.executable).with_name("optuna")), "--storage", f"sqlite:///{path}"]
    said = subprocess.run(
        [*cli, "studies", "-f", "json"], capture_output=True, text=True, check=True
    )
    assert [(row["name"], row["n_trials"]) for row in json.loads(said.stdout)] == [
        ("made-demo:A", 3),
        ("made-demo:B", 3),
    ]
    best = subprocess.run(
        [*cli, "best-trial", "--study-name", "made-demo:A", "-f", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    winner = search.winners(Results(study, outcomes))["A"]
    assert json.loads(best.stdout)["number"] == winner["point"]

    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True
    )
    found, after = map(json.loads, done.stdout.splitlines())
    values = search.points(Results(study, outcomes)).set_index(["arm", "point"])["value"]
    for arm in "AB":
        assert [state for state, _, _ in found[f"made-demo:{arm}"]] == [
            "COMPLETE",
            "COMPLETE",
            "WAITING",
        ]
        assert [value for _, value, _ in found[f"made-demo:{arm}"]][:2] == values[arm].tolist()[:2]
    # whoever goes on trains the waiting point, at the values proposed
    assert after[:3] == ["COMPLETE"] * 3
    assert after[3] == study.trials[-1].config.lr


# ---- importances, tables, figures, words


def test_importances_find_the_axis_that_dominates() -> None:
    study = random_search(num=150, seeds=(0,))
    outcomes = make_outcomes(study, lambda config: bowl(config.replace(lr=min(config.lr, 3e-2))))
    table = known.TABLES["search_importance"](Results(study, outcomes, NO_ROWS)).set_index("axis")
    assert table.loc["lr", "PED-ANOVA"] > 2 * table.loc["wd", "PED-ANOVA"]
    assert table.loc["lr", "fANOVA"] > 0.9
    assert table[["fANOVA", "PED-ANOVA"]].sum().tolist() == pytest.approx([1, 1])


def test_a_share_of_pure_noise_stands_beside_the_one_found() -> None:
    """Of 1,500 searches of 20 random points in which
    nothing matters, 5% gave an axis 0.954 or more.
    """
    study = random_search(num=20, seeds=(0,))
    noise = make_outcomes(study)
    noise = noise.assign(error_pct=np.random.default_rng(1).normal(20, 1, len(noise)))
    assert search.noise_shares(Results(study, noise), "A", num=300)["lr"] == pytest.approx(
        0.954, abs=0.045
    )
    few = random_search(num=14)
    assert np.isnan(list(search.noise_shares(Results(few, make_outcomes(few)), "A").values())).all()


def test_fanova_splits_the_variance_of_a_sum_over_the_axes_own_scale() -> None:
    """Equal slopes along log lr and dropout: a half each.

    On the raw axis log lr would have a fifth.
    """
    space = {
        "A": {"lr": FloatDistribution(1e-4, 0.1, log=True), "dropout": FloatDistribution(0.0, 0.9)}
    }
    study = make_study({"A": sample(space["A"], num=150)}, seeds=(0,), spaces=space)
    outcomes = make_outcomes(
        study, lambda config: 10 + np.log10(config.lr) + 3 * config.dropout / 0.9
    )
    found = search.importances(Results(study, outcomes), "A")["fanova"]
    assert found["lr"] == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(("num", "is_given"), [(14, False), (15, True)])
def test_importances_need_points(num: int, is_given: bool) -> None:
    study = random_search(num=num)
    found = search.importances(Results(study, make_outcomes(study)), "A")
    assert [np.isfinite(list(shares.values())).all() for shares in found.values()] == [is_given] * 2


def test_bars_of_importance_are_filled_beyond_noise_and_give_a_reason_without_any() -> None:
    """Of a bowl in lr; of pure noise; and of an arm that ASHA has stopped too often."""
    study = random_search(num=40, arms="AB", seeds=(0,))
    outcomes = make_outcomes(study, status={(i, 0): "stopped" for i in range(6, 40)})
    outcomes.loc[outcomes["arm"] == "B", "status"] = "finished"
    results = Results(study, outcomes, NO_ROWS)
    why = search.why_no_importance(results, "A")
    assert why.startswith("6 of 40 points are complete, 15 are needed, 34 were stopped early")
    a, b = known.FIGURES["importance_bars"](results).axes
    assert "6 of 40" in " ".join(a.texts[0].get_text().split()) and not a.patches
    table = results.once(search.search_importance).set_index(["arm", "axis"]).loc["B"]
    assert {bar.get_width() for bar in b.patches} == set(table["PED-ANOVA"])
    for bar in b.patches:
        is_hollow = bar.get_facecolor()[:3] == (1, 1, 1)
        row = table[table["PED-ANOVA"] == bar.get_width()].iloc[0]
        assert is_hollow == (row["PED-ANOVA"] <= row["PED-ANOVA of noise"])


def test_the_table_of_best_points_says_of_how_many_they_are_the_best() -> None:
    study = random_search(arms="AB", seeds=(0, 1, 2))
    outcomes = make_outcomes(study)
    table = known.TABLES["search_best"](Results(study, outcomes, NO_ROWS))
    assert table.groupby("arm")["rank"].apply(list).tolist() == [[1, 2, 3, 4, 5]] * 2
    assert set(table["best_of"]) == {40}
    first = table.iloc[0]
    errors = outcomes.loc[(outcomes["arm"] == "A") & (outcomes["point"] == first["point"]), "value"]
    interval = scipy.stats.ttest_1samp(errors, 0).confidence_interval(0.95)
    assert (first["mean_low"], first["mean_high"]) == pytest.approx(tuple(interval))
    assert "optimistic" in " ".join(headline(Results(study, outcomes)))
    assert "mean_low" not in search.search_best(
        Results(random_search(seeds=(0,)), make_outcomes(random_search(seeds=(0,))))
    )


def test_the_report_of_a_search_calls_it_one_and_no_draws(tmp_path: Path) -> None:
    study = random_search(num=8, arms="AB")
    outcomes = make_outcomes(study, status={(3, 0): "stopped", (7, 1): "missing"})
    page = report.write_report(
        Results(study, outcomes, NO_ROWS), Workdir(tmp_path), {"command": "python x.py"}
    )
    text = page.split("<h2>Figures</h2>")[0] + page.split("What these numbers are")[1]
    for words in ("fixed before the first training", "independent draws", "draws"):
        assert words not in text
    assert "from the results of earlier ones" in text
    assert "4 trainings" not in text and "2 trainings were stopped early" in text
    assert "2 of 32 trainings asked for have no outcome yet" in text
    numbers = report.summary(Results(study, outcomes))
    assert numbers["A"]["best_lr"] == search.winners(Results(study, outcomes))["A"]["values"]["lr"]
    assert tuple(numbers["A"][name] for name in ("num_points", "stopped", "running")) == (6, 1, 1)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("state", ["missing", "stopped", "failed"])
def test_figures_are_drawn_when_nothing_finished(name: str, state: str) -> None:
    study = random_search(num=2, arms="AB", seeds=(0,))
    outcomes = make_outcomes(study, status={(0, 0): state, (1, 0): state})
    assert len(known.FIGURES[name](Results(study, outcomes, NO_ROWS)).axes) >= 2


def test_the_history_falls_to_the_winner() -> None:
    study = random_search()
    outcomes = make_outcomes(study)
    drawn = known.FIGURES["search_history"](Results(study, outcomes, NO_ROWS)).axes[0]
    steps = [line.get_ydata() for line in drawn.lines if line.get_drawstyle() == "steps-post"]
    values = search.points(Results(study, outcomes))["value"]
    expected = [min(values[: i + 1]) for i, value in enumerate(values) if value < 100]
    assert len(steps) == 1
    assert list(steps[0])[:-1] == pytest.approx(expected)


# ---- what a search may not feed


OTHERS = [
    (kind, name)
    for kind, known, own in (("figures", known.FIGURES, FIGURES), ("tables", known.TABLES, TABLES))
    for name in known
    if name not in own
]


@pytest.mark.parametrize(("kind", "name"), OTHERS)
def test_no_figure_or_table_of_a_distribution_takes_a_search(kind: str, name: str) -> None:
    """All that is registered, now and later, but what is made for a search."""
    study = from_json({**to_json(random_search(num=2)), kind: [name]})
    with refusing(f"({name})") as refusal:
        report.check(study)
    assert "\n" not in str(refusal.value)


def test_refused_are_pairs_of_a_search_and_figures_of_a_search_for_others() -> None:
    study = random_search(num=2, arms="AB")
    kinds.check(study)
    with pytest.raises(ValueError, match=r"no pairs .*pairs=.*A"):
        check_use(from_json({**to_json(study), "pairs": [["A", "B"]]}))
    with refusing("search_history"):
        kinds.check(from_json({**to_json(study), "kind": "distribution", "search": None}))
    with refusing("kind='search', search=None"):
        from_json({**to_json(study), "search": None})


def test_arms_of_a_search_are_not_compared_as_distributions() -> None:
    study = random_search(num=2, arms="AB")
    outcomes = make_outcomes(study)
    sides = [side_by_side.Side(study, outcomes, arm) for arm in "AB"]
    with refusing("made-demo:A"):
        side_by_side.side_by_side(*sides)
