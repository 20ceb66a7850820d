"""Profiles: what one is, what it measures against a stopwatch,
and the statistics of gains against what is known.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import platform
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, WITHOUT_PDF, Script
from rich.console import Console
from support.mlflow_runs import mlflow_statuses
from support.refusals import refusing
from support.scripts import plan, shortened
from torch.nn.modules.module import register_module_forward_hook

import vitscale.train
from search_spaces import profiles
from search_spaces.touvron2022 import Shape
from search_spaces.vit import SHAPES
from vitscale.analysis.profile.tables import (
    change,
    change_p,
    epoch_minutes,
    gain,
    median_with_ends,
    published_throughput,
    throughput,
)
from vitscale.analysis.published.tables import read
from vitscale.analysis.report.report import summary, write_report
from vitscale.analysis.results import Results
from vitscale.analysis.stats.correction import holm
from vitscale.catalog.costs import agrees
from vitscale.cli.display import table as live_table
from vitscale.launch.progress import Progress
from vitscale.launch.resources import Event, Resources, check_alone, resources_for
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import complexity
from vitscale.plan.profile import BEARING, ProfileConfig, processor, processor_name
from vitscale.plan.study import Study, config_of, from_json, to_json
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Outcome, Status
from vitscale.record.provenance import provenance
from vitscale.record.store import Store
from vitscale.record.table import outcomes, tidy
from vitscale.record.workdir import Workdir
from vitscale.train.loop import train
from vitscale.train.profile import build_pass, peak_memory_mib, profile
from vitscale.train.step import TrainingStep

torch.set_num_threads(1)

HERE = processor(threads=1)
SMALL = ProfileConfig(
    profile="inference", hardware=HERE, width=32, heads=2, depth=2, branches=2, timed_runs=2
)
OTHER = {
    "profile": "training",
    "layout": "par",
    "timed_runs": 3,
    "hardware": "NVIDIA H200",
    "branches": 3,
}
CPU = torch.device("cpu")


# ---- what a profile is


def test_a_profile_is_no_training_and_each_of_its_fields_is_part_of_its_id() -> None:
    trained = TrainConfig(
        **{name: getattr(SMALL, name) for name in ("width", "heads", "depth", "branches")}
    )
    ids = {
        trained.id,
        SMALL.id,
        *(SMALL.replace(**{name: value}).id for name, value in OTHER.items()),
    }
    assert len(ids) == 2 + len(OTHER)


def test_a_profile_survives_json_under_its_own_class() -> None:
    fields = json.loads(json.dumps(SMALL.non_default()))
    assert config_of(fields) == SMALL and config_of(fields).id == SMALL.id
    assert type(config_of(TrainConfig(seed=7).non_default())) is TrainConfig
    assert ProfileConfig(**SMALL.asdict()) == SMALL


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"profile": "backward"},
            "profile in (inference, training) must hold, but got (profile='backward'",
        ),
        (
            {"layout": "par", "branches": 1},
            "branches > 1 with the layout par must hold, but got (layout='par'",
        ),
        (
            {"lr": 0.1},
            (
                "lr == 0.001 in a profile of inference must hold, but got (profile='inference', "
                "lr=0.1)"
            ),
        ),
        ({"optimizer": "sgd"}, "optimizer == 'adamw' in a profile of inference must hold"),
        ({"hardware": ""}, "hardware named must hold"),
        ({"timed_runs": 0}, "timed_runs >= 1 must hold"),
        ({"num_runs": 2}, "a field of ProfileConfig must be known, but got (num_runs=2)"),
    ],
)
def test_what_a_profile_cannot_be_is_refused_in_one_line(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError) as error:
        SMALL.replace(**fields)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_fields_with_a_bearing_on_training_are_free_there() -> None:
    assert BEARING["inference"] < BEARING["training"]
    config = SMALL.replace(profile="training", optimizer="sgd", clip_norm=1.0, drop_path=0.1)
    assert (config.optimizer, config.peak_lr) == ("sgd", TrainConfig().lr)


def study(*configs: TrainConfig, metric: str = "images_per_s") -> Study:
    trials = tuple(Trial("arm", config, index) for index, config in enumerate(configs))
    kind = "profile" if isinstance(configs[0], ProfileConfig) else "distribution"
    return Study(
        kind=kind, name="p", scale="demo", question="?", source="none", trials=trials, metric=metric
    )


def test_a_study_is_of_profiles_on_one_device_or_of_trainings() -> None:
    both = SMALL, SMALL.replace(batch_size=2)
    assert study(*both).measures and from_json(
        json.loads(json.dumps(to_json(study(*both))))
    ) == study(*both)
    mixed = (SMALL, TrainConfig()), (SMALL, SMALL.replace(hardware="x")), (TrainConfig(),)
    for configs, metric, value in [
        (mixed[0], "images_per_s", "['', "),
        (mixed[1], "images_per_s", "'x'"),
        (mixed[2], "images_per_s", "metric='images_per_s'"),
        (both, "val_error_pct", "metric='val_error_pct'"),
    ]:
        with refusing(value):
            study(*configs, metric=metric)


# ---- plans


def test_the_plan_at_imagenet_has_the_cells_of_the_published_tables() -> None:
    made = plan("throughput", "imagenet")
    own = [(t.arm.factors["model"], t.config) for t in made.trials]
    table_4 = [(model, c.batch_size, c.layout) for model, c in own if model in ("S18x2", "B18x2")]
    assert sorted(table_4) == sorted(
        itertools.product(("S18x2", "B18x2"), (1, 2, 4, 8, 16, 32, 64), ("seq", "par"))
    )
    assert (
        all(c.timed_runs == 30 and c.precision == "fp16" for _, c in own)
        and len(own) == 28 + 8 + 5 + 11
    )
    pairs = {model: complexity(c).flops / 1e9 for model, c in own if "18x2" in model}
    assert pairs["B18x2"] == pytest.approx(52.5, abs=0.1)  # of B18x2: Touvron et al. 2022, Table 3
    others = [c for model, c in own if c.profile == "inference" and model not in ("S18x2", "B18x2")]
    assert {c.batch_size for c in others} == {256}


def test_the_plan_at_imagenet_has_the_models_whose_memory_table_3_prints() -> None:
    """At 224 pixels and batch 256: L24x1 is ViT-L of the thesis,
    and B12x1 differs from its ViT-B in LayerScale.
    """
    found = {
        t.config for t in plan("throughput", "imagenet").trials if t.config.profile == "inference"
    }
    for _, row in read("touvron2022_table3").iterrows():
        shape = Shape(row["size"], int(row["depth"]), int(row["branches"]), bool(row["layerscale"]))
        expected = {
            "batch_size": 256,
            "resolution": 224,
            "width": SHAPES[shape.size]["width"],
            **shape.fields,
        }
        (config,) = [c for c in found if {name: getattr(c, name) for name in expected} == expected]
        cost = complexity(config)
        assert config.layout == "seq" and row["inference_memory_mb"] > 0
        assert agrees(str(row["params_m"]), cost.params / 1e6) and agrees(
            str(row["flops_g"]), cost.flops / 1e9
        )
    thesis = {"B": 2078, "L": 3789}  # Tables 6.7 and 6.8, batch 256
    printed = read("touvron2022_table3").set_index(["size", "depth", "branches"])[
        "inference_memory_mb"
    ]
    assert (printed["B", 12, 1], printed["L", 24, 1]) == (thesis["B"] - 1, thesis["L"] - 1)


@pytest.mark.parametrize("scale", ["demo", "cifar", "imagenet"])
def test_layouts_share_their_points_and_follow_each_other(scale: str) -> None:
    made = plan("throughput", scale, hardware="x")
    for index, trial in enumerate(made.trials):
        if trial.config.layout == "par":
            before = made.trials[index - 1]
            assert (
                before.config == trial.config.replace(layout="seq") and before.point == trial.point
            )
    assert (
        made.slug == f"throughput-{scale}"
        and {"demo": 10, "cifar": 30, "imagenet": 30}[scale] == made.trials[0].config.timed_runs
    )


# ---- a device to itself


def test_a_profile_gets_a_whole_device_and_refuses_less() -> None:
    on_cpu, on_gpu = (
        study(SMALL.replace(hardware=name)) for name in ("AMD EPYC, 8 threads", "NVIDIA H200")
    )
    given = {"cpus_per_trial": None, "max_concurrent": 0, "device": "auto", "compiled": False}
    alone = resources_for(on_cpu, given)
    assert (alone.cpus_per_trial, alone.max_concurrent, alone.device_name()) == (8, 1, "cpu")
    assert (
        resources_for(on_gpu, given).gpus_per_trial,
        resources_for(on_gpu, given).device_name(),
    ) == (1, "cuda")
    trained = study(TrainConfig(), metric="val_ema_error_pct")
    assert resources_for(trained, given) == Resources()
    # with a GPU, readers and cores that are not given are as many as images on disk need
    by_share = resources_for(trained, given | {"gpus_per_trial": 1.0})
    assert (by_share.num_loader_workers, by_share.cores_by_share) == ("auto", True)
    asked = {"gpus_per_trial": 1.0, "cpus_per_trial": 3.0, "num_loader_workers": 0}
    assert resources_for(trained, asked) == Resources(cpus_per_trial=3.0, gpus_per_trial=1.0)
    less = [
        (on_gpu, "gpus_per_trial", 0.5),
        (on_cpu, "max_concurrent", 2),
        (on_cpu, "cpus_per_trial", 1.0),
    ]
    other = [
        (on_cpu, "compiled", True),
        (on_gpu, "workers_per_trial", 2),
        (on_gpu, "device", "cpu"),
    ]
    for config, name, value in [*less, *other]:
        with refusing(f"{name}={value}"):
            resources_for(config, {name: value})


def test_profiles_do_not_start_beside_another_study(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.study("other-demo").write("plan.json", b"{}")
    check_alone(study(SMALL), store)
    with store.drive("other-demo"):
        check_alone(study(TrainConfig(), metric="val_ema_error_pct"), store)
        with refusing("running=['other-demo']"):
            check_alone(study(SMALL), store)
        other = to_json(replace(study(SMALL), name="other"))
        store.study("other-demo").write("plan.json", json.dumps(other).encode())
        with refusing("running=['other-demo']"):
            check_alone(study(TrainConfig(), metric="val_ema_error_pct"), store)


def test_another_device_fails_the_trial_with_both_names(tmp_path: Path) -> None:
    store, config = Store.open(tmp_path), SMALL.replace(hardware="Tesla V100-SXM2-32GB")
    *_, event = train_trial(config.id, config.non_default(), store, "p-demo", 1, Resources())
    assert event.status == "failed"
    line = store.failure(config.id)
    assert (
        "a profile must be taken on its hardware" in line
        and "Tesla V100-SXM2-32GB" in line
        and HERE in line
    )


def shown(progress: Progress) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(live_table(progress))
    return capture.get()


def test_a_running_profile_shows_its_timed_runs_and_its_speed() -> None:
    """Two of ten runs of one of two profiles are a tenth of the study; no epochs, lr or error."""
    made = study(*(SMALL.replace(timed_runs=10, batch_size=batch) for batch in (8, 16)))
    first, second = (trial.config.id for trial in made.trials)
    progress = Progress(made, {first: "missing", second: "missing"})
    progress.update(Event(first, Status.RUNNING, ({"epoch": 2.0, "images_per_s": 123.44},)))
    line = shown(progress).splitlines()[-1].split()
    assert line == ["arm", "8", "8", "2/10", "123.4", "images/s"]
    assert not {"epoch", "error", "lr"} & set(shown(progress).split()) and "%" not in shown(
        progress
    )
    assert progress.eta_s() is None  # there is no rate before half a trial
    progress.started -= 60
    progress.update(Event(first, Status.RUNNING, ({"epoch": 6.0, "images_per_s": 123.44},)))
    assert progress.eta_s() == pytest.approx(60 / 0.6 * 1.4, rel=0.01)


def test_a_running_training_shows_its_epochs_and_its_error() -> None:
    made = study(TrainConfig(lr=0.002, wd=0.1, epochs=7), metric="val_ema_error_pct")
    progress = Progress(made, {made.trials[0].config.id: "running"})
    assert shown(progress).splitlines()[-1].split() == ["arm", "2.00e-03", "1.00e-01", "0/7"]
    progress.update(
        Event(
            made.trials[0].config.id, Status.RUNNING, ({"epoch": 3.0, "val_ema_error_pct": 41.25},)
        )
    )
    assert shown(progress).splitlines()[-1].split()[-2:] in (["3/7", "41.2%"], ["3/7", "41.3%"])


def test_a_profile_and_the_provenance_name_one_processor() -> None:
    """As the kernel lists it."""
    assert all(text.startswith(f"{processor_name()}, ") for text in (provenance()["machine"], HERE))
    listed = Path("/proc/cpuinfo")
    assert not listed.exists() or processor_name() in listed.read_text() + platform.machine()


# ---- what is measured


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_images_per_second_agree_with_a_stopwatch(kind: str) -> None:
    """Of timm's own blocks in a plain loop. By a loose factor in one round of ten, for the machine
    may be busy: numbers that are wrong by the batch, by a pass or by a unit agree in none.
    """
    config = SMALL.replace(profile=kind, batch_size=8)
    one_pass = build_pass(config, CPU)
    one_pass()
    ratios = []
    for _ in range(10):
        rows = list(profile(config))
        start = time.perf_counter()
        for _ in range(20):
            one_pass()
        speed = 20 * 8 / (time.perf_counter() - start)
        ratios.append(max(row["images_per_s"] for row in rows) / speed)
        assert [row["epoch"] for row in rows] == [1, 2] and all(
            row["diverged"] == 0 for row in rows
        )
        for row in rows:
            assert row["step_ms"] * row["images_per_s"] == pytest.approx(1000 * 8)
            assert row["train_s"] > 0.2 and row["load"] >= 0
        if 0.4 < ratios[-1] < 2.5:
            return
    pytest.fail(f"images per second over the stopwatch's in each of ten rounds: {ratios}")


def last_norm(config: ProfileConfig) -> torch.Tensor:
    """What the last norm of the model gives in a pass; the head after it starts at zero."""
    torch.manual_seed(0)
    one_pass, seen = build_pass(config, CPU), []
    hook = register_module_forward_hook(
        lambda layer, _inputs, output: (
            seen.append(output) if isinstance(layer, torch.nn.LayerNorm) else None
        )
    )
    one_pass()
    hook.remove()
    return seen[-1]


def test_layouts_compute_the_same_function() -> None:
    one_after_another, in_one_go = last_norm(SMALL), last_norm(SMALL.replace(layout="par"))
    torch.testing.assert_close(one_after_another, in_one_go, rtol=1e-4, atol=1e-4)
    assert one_after_another.std() > 0.1


def test_peak_memory_is_that_of_weights_and_what_a_pass_must_hold() -> None:
    """Inference holds the weights and a few activations; training
    three more copies of the weights, and activations.
    """
    config = SMALL.replace(width=256, heads=2, batch_size=1)
    weights = complexity(config).params * 4 / 2**20
    assert weights < peak_memory_mib(config, CPU) < 1.2 * weights
    # gradients, and two moments of AdamW
    training = peak_memory_mib(config.replace(profile="training"), CPU)
    assert 4 * weights < training < 5 * weights
    larger = peak_memory_mib(config.replace(batch_size=129), CPU) - peak_memory_mib(config, CPU)
    assert larger > 128 * 17 * 4 * 256 * 4 / 2**20  # the hidden layer of one MLP, float32


def test_peak_memory_beyond_the_weights_is_that_of_the_width_and_not_of_the_depth() -> None:
    """Touvron et al. 2022, section 3.1: in inference constant in depth. It is, but for weights."""
    beyond = {}
    for width, depth in ((32, 2), (32, 8), (64, 2)):
        config = SMALL.replace(width=width, depth=depth, branches=1, batch_size=8)
        weights = complexity(config).params * 4 / 2**20
        beyond[width, depth] = peak_memory_mib(config, CPU) - weights
    assert beyond[32, 8] == pytest.approx(beyond[32, 2], abs=1e-3)
    assert beyond[64, 2] == pytest.approx(2 * beyond[32, 2], rel=0.05)  # linear; weights are not


# ---- statistics


def test_published_gains_are_those_of_the_published_images_a_second() -> None:
    """Touvron et al. 2022, Table 4: printed gains, from unrounded images per second."""
    table = published_throughput(Results(study(SMALL), pd.DataFrame()))
    assert len(table) == 14 and (table["printed_gain_pct"] - table["gain_pct"]).abs().max() < 1.0
    positive = table[table["gain_pct"] > 0].set_index(["model", "batch_size"])["gain_pct"].round(1)
    assert list(positive["S18x2"]) == [38.6, 46.4, 45.8, 41.9] and list(positive["B18x2"]) == [
        45.2,
        46.2,
        20.6,
    ]
    assert (table["best_printed"] == table[["seq_printed", "par_printed"]].max(axis=1)).all()


def test_a_change_without_noise_is_exact() -> None:
    assert change(np.full(6, 44.0), np.full(6, 61.0)) == pytest.approx([100 * 17 / 44] * 3)
    assert gain((-5.0, -9.0, 2.0)) == (0.0, 0.0, 2.0)
    assert (
        np.isnan(change(np.empty(0), np.ones(6))).all()
        and np.isnan(change(np.ones(5), np.ones(6))[1:]).all()
    )


def test_intervals_cover_as_they_say() -> None:
    """10 log-normal runs per profile, medians known; 400
    repetitions, so 95% is 91 to 98 with great probability.
    """
    rng = np.random.default_rng(0)
    medians = [median_with_ends(100 * np.exp(0.1 * rng.normal(size=10))) for _ in range(400)]
    assert np.mean([low <= 100 <= high for _, low, high in medians]) >= 0.93
    changes = [
        change(*(s * np.exp(0.1 * rng.normal(size=10)) for s in (100, 120)), seed=i)
        for i in range(400)
    ]
    assert 0.90 <= np.mean([low <= 20 <= high for _, low, high in changes]) <= 0.99


def measured(made: Study, speed: float = 100.0, num: int = 6) -> dict[str, Outcome]:
    """num runs per profile, around a speed that par raises by a half; the last profile failed."""
    read: dict[str, Outcome] = {}
    for trial in made.trials:
        around = speed * (1.5 if getattr(trial.config, "layout", "") == "par" else 1.0)
        rows = tuple(
            {
                "epoch": i + 1.0,
                "images_per_s": around + i - 2.5,
                "step_ms": 1.0,
                "peak_memory_mib": 7.0,
                "load": 0.5,
                "train_s": 1.0,
                "unix_s": 1.0,
                "diverged": 0.0,
            }
            for i in range(num)
        )
        read[trial.config.id] = Outcome(Status.FINISHED, rows)
    read[made.trials[-1].config.id] = Outcome(
        Status.FAILED, facts={"error": "OutOfMemoryError: too large"}
    )
    return read


def test_the_table_has_both_layouts_and_names_what_failed() -> None:
    made = plan("throughput", "demo", num=6)
    done = outcomes(made, measured(made))
    table = throughput(Results(made, done))
    first, last = table.iloc[0], table.iloc[-1]
    assert (first["seq_images_per_s"], first["par_images_per_s"], first["seq_n"]) == (100, 150, 6)
    assert (first["gain_pct"], first["seq_min"], first["seq_max"], first["best"]) == (
        50,
        97.5,
        102.5,
        "par",
    )
    assert (
        np.isnan(last["par_images_per_s"])
        and last["not_measured"] == "par: OutOfMemoryError: too large"
    )
    assert "error_pct" not in done or done["error_pct"].isna().all()
    numbers = summary(Results(made, done))
    assert "images_per_s_batch_1" in numbers["S6x2 inference seq"]


def test_minutes_an_epoch_stand_beside_the_printed_ones() -> None:
    """Xiao et al. 2021, Table 1: ViT_P-1GF takes 2.6 minutes on 8 V100; 1,281,167 images."""
    made = plan("throughput", "imagenet", hardware="x")
    table = epoch_minutes(Results(made, outcomes(made, measured(made, speed=1000.0)))).set_index(
        "model"
    )
    assert len(table) == 11 and table.loc["ViT_P-1GF", "printed_minutes"] == 2.6
    assert table.loc["ViT_P-1GF", "minutes_on_8"] == pytest.approx(1281167 / 1000 / 60 / 8)
    assert table.loc["ViT_P-1GF", "minutes_low"] < table.loc["ViT_P-1GF", "minutes"]


@pytest.mark.parametrize(("scale", "num"), [("demo", 6), ("demo", 2), ("imagenet", 6)])
def test_a_report_of_profiles_speaks_of_no_error(scale: str, num: int, tmp_path: Path) -> None:
    """Two runs have no interval, and are drawn all the same."""
    made = replace(plan("throughput", scale, hardware=processor(2)), published=True)
    read = measured(made, num=num)
    results = Results(made, outcomes(made, read), tidy(made, read))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of a layout without room for its axes
        page = write_report(results, Workdir(tmp_path), {}, WITHOUT_PDF)
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in made.figures)
    assert (
        "lr drawn" not in page and "held-out" not in page and "OutOfMemoryError: too large" in page
    )


@pytest.mark.slow
def test_a_shortened_demo_is_measured_shown_and_resumed(tmp_path: Path) -> None:
    part = profiles.DEMO[0]
    axes = {**part.axes, "batch_size": (1, 8), "resolution": (8,)}
    parts = (part._replace(models={"S6x2": part.models["S6x2"]}, axes=axes),)
    script = shortened(tmp_path, "throughput", parts=parts)
    options = ("--num", "2", "--hardware", HERE)
    result = script.run(*options)
    assert result.returncode == 0 and "4 finished" in result.stdout, result.stdout
    assert mlflow_statuses(script, "throughput-demo").count("FINISHED") >= 4
    table = pd.read_csv(script.folder / "runs/studies/throughput-demo/report/throughput.csv")
    assert (
        list(table["batch_size"]) == [1, 8]
        and (table["seq_images_per_s"] > 0).all()
        and (table["par_n"] == 2).all()
    )
    again = script.run(*options)
    assert again.returncode == 0 and "4 trials, 4 done, 0 to do" in again.stdout, again.stdout
    assert_shown(script)
    refused = script.run(*options, "--max-concurrent", "2")
    assert refused.returncode == 2 and "must hold for a profile" in refused.stdout


def assert_shown(script: Script) -> None:
    """MLflow has the speed of each run, what a profile is, and no error."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{script.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("throughput-demo")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'trial'")
    assert len(runs) == 4
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`vitscale.role` = 'study'")
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "images_per_s")
        assert [metric.step for metric in history] == [
            1,
            2,
        ] and "final_error_pct" not in run.data.metrics
        assert run.data.metrics["median_images_per_s"] == pytest.approx(
            np.median([m.value for m in history])
        )
        params = {**parent.data.params, **run.data.params}
        assert {"batch_size", "resolution", "layout", "profile", "hardware"} <= set(params)
        assert not {"lr", "log10_lr", "epochs"} & set(params)


def test_cells_without_a_change_seldom_have_one_after_holm() -> None:
    """16 cells of ten runs each, as in the demo; without the
    correction some cell has p below 5% in over half.
    """
    rng, num = np.random.default_rng(11), 200
    p = np.array(
        [[change_p(*cell) for cell in rng.normal(1000, 30, (16, 2, 10))] for _ in range(num)]
    )
    assert np.mean([min(holm(values.tolist())) < 0.05 for values in p]) < 0.05 + 3 * np.sqrt(
        0.05 * 0.95 / num
    )
    assert np.mean(p.min(axis=1) < 0.05) > 0.4
    assert np.isnan(change_p(np.arange(5.0), np.arange(10.0)))


def test_the_step_that_is_measured_is_that_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is one place with a backward pass, and a training and a profile both come through it;
    parts are tried in another one before any training.
    """
    package = Path(vitscale.train.__file__).parent
    calls = [
        (path.name, node.func.attr)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    ]
    assert set(calls) == {("step.py", "backward"), ("try_parts.py", "backward")}
    taken: list[tuple[str, int]] = []
    true = TrainingStep.take

    def take(self: TrainingStep, step: int, *arguments: Any) -> torch.Tensor:
        taken.append((type(self.config).__name__, step))
        return true(self, step, *arguments)

    monkeypatch.setattr(TrainingStep, "take", take)
    shape: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "patch_size": 4, "batch_size": 332}
    list(train(TrainConfig(**shape, epochs=1, warmup_epochs=0.0), tmp_path))
    one_pass = build_pass(
        ProfileConfig(**shape, profile="training", hardware=processor(1)), torch.device("cpu")
    )
    one_pass(), one_pass()
    assert taken == [
        *(("TrainConfig", step) for step in range(3)),
        ("ProfileConfig", 0),
        ("ProfileConfig", 1),
    ]


def test_the_benchmark_against_timm_trains_and_evaluates_both(tmp_path: Path) -> None:
    """At a tiny size; its operations per second are those of its images."""
    command = [sys.executable, str(ROOT / "benchmarks" / "throughput.py"), "--case", "demo"]
    command += ["--device", "cpu", "--precision", "bf16", "--threads", "1", "--batch-size", "4"]
    command += ["--steps", "2", "--repeats", "1", "--json", str(tmp_path / "rows.json")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    expected = [(phase, who) for phase in ("training", "inference") for who in ("vitscale", "timm")]
    assert [(row["phase"], row["who"]) for row in rows] == expected
    assert [row["ratio"] for row in rows[1::2]] == [1.0, 1.0]
    operations = [row["tera_flops"] / row["images_per_s"] for row in rows[:2]]
    # 6 operations for each parameter and token (Kaplan et al. 2020, table 1)
    assert operations == pytest.approx([6e-12 * 72_538 * 17] * 2, rel=0.1)


def test_the_benchmark_of_a_gpu_names_trainings_whose_process_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import gpu

    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "ends.py"))
    monkeypatch.setattr(gpu, "ON_GPU", True)
    monkeypatch.setattr(gpu.configs, "write_set", lambda _: None)
    found = list(gpu.equal(argparse.Namespace(quick=True), gpu.Clock(60)))
    assert [row["case"] for row in found] == ["adamw", "adam"]
    assert {row["failed"] for row in found} == {"its process ended with status 3"}
