"""Studies about another column of the rows than the top-1 error: a loss, a calibration error, a
top-5 error. Tables, sentences, figures and files speak of that metric.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import WITHOUT_PDF
from golden.capture import load
from support.refusals import refusing

from vitscale.analysis import power
from vitscale.analysis.cells import choose_lr
from vitscale.analysis.kinds import KINDS
from vitscale.analysis.report.report import summary, write_report
from vitscale.analysis.results import Results
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import METRICS, columns_of
from vitscale.plan.plan_warnings import plan_warnings
from vitscale.plan.study import Study
from vitscale.plan.trial import Arm, Trial
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.store import Store
from vitscale.record.table import outcomes, read_trials, tidy
from vitscale.record.workdir import Workdir
from vitscale.train.loop import diverged_row, train

QUICK = TrainConfig(
    dataset="digits",
    resolution=8,
    patch_size=4,
    width=16,
    depth=1,
    heads=2,
    batch_size=200,
    epochs=2,
    warmup_epochs=0.0,
    ema_decay=0.5,
)
WRITTEN = ("csv", "md", "html", "svg")  # what a reader of a report sees


EDF_TABLES = ("edf_summary", "arm_comparison", "good_range", "edf_curves")


def distribution(metric: str, **fields: object) -> Study:
    """Two arms of four draws and three reference runs each."""
    plan = [
        Trial(arm, QUICK.replace(lr=lr, wd=wd, seed=9, more_evals="minival"), point)
        for arm, wd in (("a", 0.1), ("b", 0.3))
        for point, lr in enumerate((1e-3, 3e-3, 1e-2, 3e-2))
    ]
    plan += [
        Trial(arm, QUICK.replace(lr=1e-2, wd=wd, seed=seed))
        for arm, wd in (("a", 0.1), ("b", 0.3))
        for seed in (1, 2, 3)
    ]
    given = {
        "figures": tuple(KINDS["distribution"].figures),
        "tables": (*EDF_TABLES, "tuning_budget", "tuning_crossings"),
        "pairs": (("a", "b"),),
        "kind": "distribution",
        "trials": tuple(plan),
        **fields,
    }
    return Study(
        name="about",
        scale="demo",
        question="Which loses less?",
        source="none",
        metric=metric,
        **given,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrainConfig], tuple[Row, ...]]:
    """The rows that the trainer gives for a config, trained once."""
    known: dict[str, tuple[Row, ...]] = {}

    def rows_of(config: TrainConfig) -> tuple[Row, ...]:
        if config.id not in known:
            folder = tmp_path_factory.mktemp("trial")
            known[config.id] = tuple(train(config, folder))
        return known[config.id]

    return rows_of


def results_of(study: Study, rows: Callable[[TrainConfig], tuple[Row, ...]]) -> Results:
    """The study's results; its last draw of each arm has diverged."""
    last = {trial.arm: trial for trial in study.trials if trial.point is not None}
    read = {}
    for trial in study.trials:
        made = list(rows(trial.config))
        if study.kind == "distribution" and trial is last[trial.arm]:
            made = [made[0], {**diverged_row(trial.config, 5), "unix_s": made[1]["unix_s"]}]
        read[trial.config.id] = Outcome.from_rows(made, {})
    return Results(study, outcomes(study, read), tidy(study, read))


def texts(folder: Path) -> dict[str, str]:
    """Everything that is written, without pictures in pages and without columns of all rows."""
    found = {path.name: path.read_text() for path in folder.iterdir() if path.suffix[1:] in WRITTEN}
    return {name: re.sub(r"base64,[^\"]*", "", text) for name, text in found.items()}


@pytest.mark.parametrize("metric", ["val_ema_loss", "val_ema_ece_pct", "val_top5_error_pct"])
def test_a_distribution_speaks_of_its_metric(
    metric: str, rows: Callable[[TrainConfig], tuple[Row, ...]], tmp_path: Path
) -> None:
    study = distribution(metric)
    results, kind = results_of(study, rows), columns_of("val")[metric].metric
    page = write_report(results, Workdir(tmp_path), {}, WITHOUT_PDF)
    table = results.trials
    assert set(table.loc[table["status"] == "diverged", "value"]) == {kind.worst}
    draws = table[(table["arm"] == "a") & table["point"].notna()]
    finals = [
        kind.worst if status == "diverged" else rows(trial.config)[-1][metric]
        for trial, status in zip(
            [t for t in study.trials if t.arm.name == "a" and t.point is not None],
            draws["status"],
            strict=True,
        )
    ]
    saved = pd.read_parquet(tmp_path / "edf_summary.parquet").set_index("arm")
    assert saved.loc["a", "median"] == pytest.approx(np.median(finals))
    assert (saved["near"] == kind.near).all() and (saved["beyond"] == kind.beyond).all()
    assert {"within_near_pct", "num_beyond", "ratio"} <= set(saved.columns)
    budget = pd.read_parquet(tmp_path / "tuning_budget.parquet")
    assert budget.loc[budget["k"] == 2, "median"].between(0, kind.worst).all()
    trials = pd.read_parquet(tmp_path / "trials.parquet")
    assert "value" in trials and "error_pct" not in trials
    numbers = summary(results)["a"]
    assert "median" in numbers
    words = {"edf_panels.svg", "report.html", "edf_summary.md", "arm_comparison.csv"}
    shown = texts(tmp_path)
    assert words <= set(shown) and kind.label in page and f"Absolute {kind.label}" in page
    check_words(shown, kind.name)


def without_printed(page: str) -> str:
    """The page without the sections of the papers' printed errors."""
    parts = re.split(r"(?=<h3)", page)
    return "".join(part for part in parts if "published_" not in part[:200])


def check_words(shown: dict[str, str], name: str) -> None:
    """No text speaks of the top-1 error, its thresholds, or percent where the loss is meant."""
    for file, text in shown.items():
        others = (
            r"[Tt]op-?5[ _]error|calibration error|(?:standard|sampling) error"
            r"|error distribution function"  # the term of Xiao et al. 2021, of any metric
        )
        plain = re.sub(others, "", text)
        plain = re.sub(r"of top-1 error", "", plain)  # a caption's example
        assert not re.search(r"\berror", plain), (file, re.search(r".{60}\berror.{60}", plain))
        assert "4 points)" not in plain.replace("(4 points)", "") and "error_pct" not in plain
        if name == "loss" and file.endswith(".html"):
            assert "nats" in text and not re.search(
                r"\d% loss|loss (of )?[\d.]+%|loss \(%", plain
            ), file


def test_an_infinite_loss_is_the_worst_rank_and_in_no_mean(
    rows: Callable[[TrainConfig], tuple[Row, ...]],
) -> None:
    results = results_of(distribution("val_ema_loss"), rows)
    tables = KINDS["distribution"].tables
    table = results.once(tables["edf_summary"]).set_index("arm")
    assert np.isfinite(table["median"]).all()
    assert np.isinf(table["median_high"]).all()  # of four draws one is infinite
    assert table["ratio"].isna().all() and table["area"].between(0, 1).all()
    pair = results.once(tables["arm_comparison"]).iloc[0]
    assert pair["n_a"] == 4 and "without a finite value" in pair["ratio_method"]
    assert np.isfinite(pair["median_difference"]) and 0 <= pair["prob_a_lower"] <= 1


def test_trials_of_an_older_version_are_refused_in_one_line_and_stay(
    rows: Callable[[TrainConfig], tuple[Row, ...]], tmp_path: Path
) -> None:
    store, study = Store.open(tmp_path), distribution("val_ema_ece_pct")
    for number, trial in enumerate(study.trials):
        made = [dict(row) for row in rows(trial.config)]
        if number < 5:
            made = [{k: v for k, v in row.items() if "ece" not in k} for row in made]
        claimed = store.claim(trial.config.id, trial.config.non_default(), study.slug, 1)
        store.finish(claimed, Outcome.from_rows(made, {}))
    with refusing("5 of 14") as caught:
        read_trials(study, store)
    line = str(caught.value)
    assert "\n" not in line and "(5 of 14 of an older version" in line and "and 2 more" in line
    assert all(trial.config.id in line for trial in study.trials[:3])
    assert "val_ema_loss" in line and "--store" in line
    assert all(store.is_done(trial.config.id) for trial in study.trials)
    about_loss = dataclasses.replace(study, metric="val_ema_loss")
    assert {o.status for o in read_trials(about_loss, store).values()} == {Status.FINISHED}


@pytest.mark.parametrize("name", METRICS)
def test_every_column_has_a_metric_of_its_own(name: str) -> None:
    """A quantity that the trainer reports and METRICS lacks has no row.
    So what must be said of each is asked here."""
    metric = METRICS[name]
    low, high = metric.bounds
    assert metric.name == name and metric.label and metric.unit
    assert low <= 0 < metric.near < metric.beyond < high and metric.worst in metric.bounds
    assert math.isfinite(metric.near) and metric.unit_of("val_mean_low") == metric.unit
    columns = [name for name, column in columns_of("val").items() if column.metric is metric]
    assert columns == [f"val_{name}", f"val_ema_{name}"]


def test_columns_have_the_unit_of_the_metric_of_its_differences_or_none() -> None:
    columns = ("value", "mean_low", "val_mean", "sd", "gap_high", "ratio", "n", "within_near_pct")
    units = {name: list(map(METRICS[name].unit_of, columns)) for name in ("error_pct", "loss")}
    assert units["error_pct"] == ["%", "%", "%", "points", "points", "", "", ""]
    assert units["loss"] == ["nats"] * 5 + [""] * 3


def repeats(metric: str) -> Study:
    """Two arms of three seeds and a reference run each, on two evaluation sets."""
    plan = [
        Trial(arm, QUICK.replace(wd=wd, seed=seed, more_evals="test"), seed or None)
        for arm, wd in (("a", 0.1), ("b", 0.3))
        for seed in range(4)
    ]
    return distribution(
        metric,
        kind="repeats",
        trials=tuple(plan),
        pairs=(),
        tables=(
            *("seed_statistics", "seed_normality", "seed_noise", "seed_power", "seed_epochs"),
            "published_seed_statistics",
        ),
        figures=("seed_histogram", "seed_sets", "seed_curves", "seed_intermediate"),
    )


def shapes(metric: str) -> Study:
    """A sequence of two blocks and two parallel branches, at two lr with two seeds each."""
    plan = [
        Trial(
            Arm(arm, {"size": "Ti"}),
            QUICK.replace(lr=lr, seed=seed, more_evals="minival", **shape),
            point,
        )
        for arm, shape in (("two deep", {"depth": 2}), ("two beside", {"branches": 2}))
        for point, (lr, seed) in enumerate([(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)])
    ]
    return distribution(
        metric,
        kind="shapes",
        trials=tuple(plan),
        pairs=(("two deep", "two beside"),),
        tables=("shape_cells", "lr_sweep", "branch_differences", "blocks_or_width"),
        panels={"branches": ("two deep", "two beside")},
        figures=("branches", "lr_sweep"),
    )


@pytest.mark.parametrize("metric", ["val_ema_ece_pct", "val_loss"])
def test_repeats_speak_of_their_metric(
    metric: str, rows: Callable[[TrainConfig], tuple[Row, ...]], tmp_path: Path
) -> None:
    study, kind = repeats(metric), columns_of("val")[metric].metric
    page = write_report(results_of(study, rows), Workdir(tmp_path), {}, WITHOUT_PDF)
    saved = pd.read_parquet(tmp_path / "seed_statistics.parquet").set_index(["arm", "evaluation"])
    for name in ("val", "test"):
        column = metric.replace("val", name, 1)
        seeds = [rows(t.config)[-1][column] for t in study.trials if t.arm.name == "b" and t.point]
        mean = saved.loc[("b", name), "mean"]
        assert len(seeds) == 3 and mean == pytest.approx(np.mean(seeds))
        sd = saved.loc[("b", name), "sd"]
        assert sd == pytest.approx(np.std(seeds, ddof=1))
    noise = pd.read_parquet(tmp_path / "seed_noise.parquet")
    assert noise["one_run_sampling"].isna().all()  # no share of images
    assert f"a, {kind.label} on val: mean" in page
    printed = {name: texts(tmp_path)[f"published_seed_statistics.{name}"] for name in ("csv", "md")}
    assert "mean_error_pct" in printed["csv"] and "mean error (%)" in printed["md"]
    ours = {name: text for name, text in texts(tmp_path).items() if "published" not in name}
    ours["report.html"] = without_printed(ours["report.html"])
    check_words(ours, kind.name)


def test_axes_of_epochs_end_with_a_tick() -> None:
    study, read, _ = load("seed_distribution-demo")
    results = Results(study, outcomes(study, read), tidy(study, read))
    curves, snapshots = (
        KINDS["repeats"].figures[name](results) for name in ("seed_curves", "seed_intermediate")
    )
    ranks = [ax for ax in snapshots.axes if ax.get_xlabel() == "epoch"]
    assert [ax.get_xlabel() for ax in curves.axes] == ["epoch"] * 2 and len(ranks) == 1
    # the last of 20 epochs has no correlation with itself
    for ax, last in zip([*curves.axes, *ranks], (20, 20, 19), strict=True):
        assert max(ax.get_xticks()) == last <= ax.get_xlim()[1]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("val_loss", ("0.03 nats", "within 0.5 nats", "share within 0.2 nats", "absolute loss (")),
        (
            "val_error_pct",
            ("0.6 points", "within 10 points", "within 4 points", "absolute error ("),
        ),
    ],
)
def test_power_and_doubts_speak_of_the_metric(metric: str, words: tuple[str, ...]) -> None:
    seeds = {"a": (2, 3, 4), "b": (5, 6, 7)}
    runs = [(arm, seed, lr) for seed, arm in enumerate("ab") for lr in range(1, 17)]
    plan = [Trial(arm, QUICK.replace(lr=lr / 1e3, seed=seed), lr) for arm, seed, lr in runs]
    plan += [Trial(arm, QUICK.replace(seed=seed)) for arm in "ab" for seed in seeds[arm]]
    study = distribution(metric, trials=tuple(plan))
    sentences = " ".join(power.sentences(study))
    assert all(word in sentences for word in words), sentences
    if metric == "val_loss":
        check_words({"power": sentences}, "loss")
    unreferenced = distribution(
        metric, trials=tuple(trial for trial in study.trials if trial.point is not None)
    )
    (doubt,) = plan_warnings(unreferenced)
    assert f"only the {columns_of('val')[metric].metric.label} itself" in doubt


@pytest.mark.parametrize("metric", ["val_top5_error_pct", "val_ema_loss"])
def test_shapes_speak_of_their_metric_and_choose_lr_by_it(
    metric: str, rows: Callable[[TrainConfig], tuple[Row, ...]], tmp_path: Path
) -> None:
    study, kind = shapes(metric), columns_of("val")[metric].metric
    page = write_report(results_of(study, rows), Workdir(tmp_path), {}, WITHOUT_PDF)
    saved = pd.read_parquet(tmp_path / "shape_cells.parquet").set_index("shape")
    for arm in study.arms:
        means = {}
        for lr in (1e-3, 1e-2):
            runs = [t.config for t in study.trials if t.arm.name == arm and t.config.lr == lr]
            column = metric.replace("val", "minival", 1)
            means[lr] = np.mean([rows(config)[-1][column] for config in runs])
        assert saved.loc[arm, "lr"] == min(means, key=lambda lr: means[lr])
        shown = [t.config for t in study.trials if t.arm.name == arm]
        values = [rows(c)[-1][metric] for c in shown if c.lr == saved.loc[arm, "lr"]]
        assert saved.loc[arm, "val_mean"] == pytest.approx(np.mean(values))
    assert f"{kind.label} on val" in page
    check_words(texts(tmp_path), kind.name)


def test_an_lr_at_which_most_runs_diverged_is_not_chosen_by_the_loss() -> None:
    runs = pd.DataFrame(
        {
            "lr": [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0],
            "seed": [0, 1, 2, 0, 1, 2, 0],
            "status": ["finished", *["diverged"] * 2, "finished", "finished", *["diverged"] * 2],
            "minival_loss": [0.1, np.nan, np.nan, 0.9, 0.8, np.nan, np.nan],
        }
    )
    assert choose_lr(runs, "minival_loss") == 2.0
    half = runs[runs.index != 1]  # one of two finished
    assert choose_lr(half, "minival_loss") == 1.0
    assert np.isnan(choose_lr(runs[runs["lr"] != 2.0], "minival_loss"))
