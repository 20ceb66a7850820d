"""What evaluations report, against scikit-learn, definitions written out and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from support.mlflow_runs import history, roles
from torch import Tensor, nn

from vitscale.analysis.report.report import write_report
from vitscale.analysis.results import Results
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import ERRORS, WEIGHTS, column, evaluation_columns
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.mlflow.place import create_database
from vitscale.record.mlflow.view import View, synchronize
from vitscale.record.outcome import Outcome, Row, Rows, Status
from vitscale.record.store import Store
from vitscale.record.table import PROVENANCE, outcomes, read_trials, take_tidy, tidy
from vitscale.record.workdir import Workdir
from vitscale.train import checkpoint, loop
from vitscale.train.data import HeldOut
from vitscale.train.evaluate import evaluate
from vitscale.train.loop import train
from vitscale.train.metrics import calibration_gaps, in_top
from vitscale.train.model import build_model
from vitscale.train.parallel import Team
from vitscale.train.sources import Images, load_split

torch.set_num_threads(1)

CONV = TrainConfig(
    width=8, depth=1, heads=2, patch_size=4, stem="conv", stem_channels="4-8", stem_strides="2-2"
)
QUICK = TrainConfig(
    width=8, depth=1, heads=2, patch_size=4, batch_size=332, epochs=2, warmup_epochs=1.0
)


def ece_by_definition(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Guo et al. 2017, equations 2 and 3 and the definitions of acc
    and conf before them, a bin and a sample a time.
    """
    confidences, total = probabilities.max(1), 0.0
    for m in range(1, 16):
        members = [i for i, p in enumerate(confidences) if (m - 1) / 15 < p <= m / 15]
        if members:
            acc = sum(float(right[i]) for i in members) / len(members)
            conf = sum(float(confidences[i]) for i in members) / len(members)
            total += len(members) / len(confidences) * abs(acc - conf)
    return total


def random_logits(num: int, classes: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    return scale * torch.randn(num, classes, generator=generator), torch.arange(num) % classes


def model_and_images(classes: int) -> tuple[nn.Module, Images, TrainConfig]:
    """A model with BatchNorm and random answers; 600
    training images with labels of so many classes.
    """
    config = CONV.replace(num_classes=10)
    torch.manual_seed(1)
    model = build_model(config)
    model.head = nn.Linear(config.width, classes)
    nn.init.normal_(model.head.weight, std=2.0)
    images = load_split(config, "train", None).select(np.arange(600))
    return model, Images(images.labels % classes, images.pixels, white=images.white), config


# ---- against scikit-learn and definitions


# Batches of an evaluation: an incomplete last one, all images in one, one of each.
@pytest.mark.parametrize(
    ("classes", "most"), [(3, 512), (5, 7), (6, 512), (6, 7), (10, 600), (10, 512), (10, 1)]
)
def test_an_evaluation_is_that_of_sklearn_and_of_the_definition(classes: int, most: int) -> None:
    model, data, config = model_and_images(classes)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    found = evaluate(
        model, HeldOut(data, config, torch.device("cpu"), Team(), most), config, Team()
    )
    whole = load_split(config, "train", None).pixels.float() / data.white
    images = (data.pixels.float() / data.white - whole.mean()) / whole.std()
    with torch.no_grad():
        probabilities = model.eval()(images).double().softmax(1).numpy()
    labels, names = data.labels.numpy(), range(classes)
    right = probabilities.argmax(1) == labels
    assert found["error_pct"] == pytest.approx(
        100 * (1 - accuracy_score(labels, probabilities.argmax(1)))
    )
    assert found["loss"] == pytest.approx(log_loss(labels, probabilities, labels=names), rel=1e-5)
    assert found["ece_pct"] == pytest.approx(
        100 * ece_by_definition(probabilities, right), abs=1e-4
    )
    top5 = top_k_accuracy_score(labels, probabilities, k=5, labels=names) if classes > 5 else 1.0
    assert found["top5_error_pct"] == pytest.approx(100 * (1 - top5))
    assert 5 < found["ece_pct"] < 95 and 50 < found["error_pct"] < 100
    assert (found["top5_error_pct"] == 0) == (classes <= 5)
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_with_several_accepted_labels_the_best_of_them_counts() -> None:
    """ReaL (Beyer et al. 2020). Images without a label are in no number."""
    model, data, config = model_and_images(10)
    allowed = torch.rand(600, 10, generator=torch.Generator().manual_seed(0)) < 0.15
    data = Images(
        torch.where(allowed.any(1), data.labels, -1), data.pixels, white=data.white, allowed=allowed
    )
    held_out = HeldOut(data, config, torch.device("cpu"), Team(), 512)
    found = evaluate(model, held_out, config, Team())
    rows = allowed.any(1).nonzero()[:, 0]
    assert held_out.num == len(rows) < 600
    model.eval()
    batches = [model(images).detach() for images, *_ in held_out.iterate()]
    logits, accepted = torch.cat(batches).numpy(), allowed[rows].numpy()
    order = np.argsort(-logits, 1)
    hits = np.take_along_axis(accepted, order, 1)
    assert found["error_pct"] == pytest.approx(100 * (1 - hits[:, 0].mean()))
    assert found["top5_error_pct"] == pytest.approx(100 * (1 - hits[:, :5].any(1).mean()))
    assert 0 < found["top5_error_pct"] < found["error_pct"]
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy()
    assert found["ece_pct"] == pytest.approx(
        100 * ece_by_definition(probabilities, hits[:, 0]), abs=1e-4
    )


# ---- closed forms and edges


def test_equal_logits_are_no_top_five() -> None:
    """As argmax takes the first class of equals, the top five are the first five."""
    assert in_top(torch.zeros(10, 10), torch.arange(10)).tolist() == [True] * 5 + [False] * 5
    assert in_top(torch.full((10, 10), torch.nan), torch.arange(10)).any().item() is False
    assert in_top(torch.zeros(3, 3), torch.arange(3)).all()


def test_logits_that_are_not_finite_are_seen() -> None:
    logits, right = torch.zeros(4, 10), torch.ones(4, dtype=torch.bool)
    logits[0, 3] = torch.nan
    assert calibration_gaps(logits, right).sum().isnan()


def test_calibration_of_constant_confidence_is_its_distance_from_the_accuracy() -> None:
    """Confidence p = e^a / (e^a + 9) for all: one bin, so
    |accuracy - p|; at 1/10, 6/15 and 1, in different bins.
    """
    for a, num_right in ((0.0, 10), (np.log(6.0), 40), (1e4, 100), (1e4, 0)):
        logits = torch.zeros(100, 10)
        logits[:, 0] = a
        gaps = calibration_gaps(logits, torch.arange(100) < num_right).abs()
        confidence = 1.0 if a > 100 else float(np.exp(a) / (np.exp(a) + 9))
        assert gaps.sum().item() / 100 == pytest.approx(abs(num_right / 100 - confidence), abs=1e-6)
        assert gaps.argmax().item() == int(np.ceil(15 * confidence)) - 1 or gaps.max() < 1e-4


def test_gaps_of_parts_add_up() -> None:
    logits, labels = random_logits(1000, 10)
    right = logits.argmax(1) == labels
    parts = sum(
        calibration_gaps(logits[part], right[part]) for part in torch.arange(1000).split(173)
    )
    torch.testing.assert_close(parts, calibration_gaps(logits, right), rtol=0, atol=1e-10)


# ---- rows


def evaluated(row: Row, split: str) -> set[str]:
    return {name for name in row if name.startswith(f"{split}_")}


def test_rows_have_the_columns_that_a_plan_counts_on(tmp_path: Path) -> None:
    (tmp_path / "diverged").mkdir()
    config = QUICK.replace(more_evals="test")
    for row in train(config, tmp_path):
        assert all(
            evaluated(row, split) == set(evaluation_columns(split)) for split in config.evals
        )
    bad = config.replace(optimizer="sgd", lr=1e20, wd=0.0)
    (row,) = train(bad, tmp_path / "diverged")
    assert row["diverged"]
    for split in bad.evals:
        errors = {column(split, weights, error) for weights in WEIGHTS for error in ERRORS}
        assert evaluated(row, split) == errors and {row[name] for name in errors} == {100.0}


def test_averaged_weights_have_numbers_of_their_own(tmp_path: Path) -> None:
    for decay, folder in ((0.0, tmp_path / "off"), (0.9, tmp_path / "on")):
        folder.mkdir()
        row = list(train(QUICK.replace(ema_decay=decay, lr=0.01), folder))[-1]
        raw, averaged = (
            np.array([row[f"val_{w}{q}"] for q in ("loss", "error_pct", "ece_pct")])
            for w in ("", "ema_")
        )
        assert (raw == averaged).all() if not decay else (raw != averaged).all()


# ---- trials that were trained before there were these columns


def without_news(rows: list[Row]) -> list[Row]:
    return [
        {name: value for name, value in row.items() if "top5" not in name and "ece" not in name}
        for row in rows
    ]


def test_a_training_that_older_code_began_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "OFTEN_SHARE", math.inf)
    config, (work, store) = (
        QUICK.replace(ema_decay=0.5),
        (tmp_path / "work", Store.open(tmp_path / "runs")),
    )
    work.mkdir()
    whole = list(train(config, tmp_path / "whole"))
    training = train(config, work, checkpoint_every_s=0.0)
    next(training), next(training), training.close()
    for path in sorted(work.glob("checkpoint-*"))[1:]:
        path.unlink()
    (path,) = work.glob("checkpoint-*")
    state: dict[str, Any] = torch.load(path, weights_only=True)
    assert state["step"] >= 3 and len(state["rows"]) == 1
    state["rows"] = without_news(state["rows"])
    path.unlink()
    checkpoint.save(Workdir(work), state["step"], state)
    first, last = train(config, work)
    assert evaluated(first, "val") == {
        "val_loss",
        "val_error_pct",
        "val_ema_loss",
        "val_ema_error_pct",
    }
    assert [last[n] for n in evaluation_columns("val")] == [
        whole[1][n] for n in evaluation_columns("val")
    ]
    trial = store.claim(config.id, config.non_default(), "s", 1)
    assert store.finish(trial, Outcome.from_rows([first, last], {}))
    assert store.read(config.id).rows == (first, last)


def mixed(**fields: Any) -> Study:
    about = {"question": "Do they mix?", "source": "none"}
    return Study(kind="distribution", name="mixed", scale="demo", **about, **fields)


def test_a_study_of_older_and_newer_trials_is_read_reported_and_shown(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "runs")
    points = [{"lr": 1e-3}, {"lr": 3e-3}, {"lr": 1e-2}, {"lr": 3e-2}]
    plan = tuple(
        Trial(arm, QUICK.replace(**point, wd=wd), i)
        for arm, wd in (("a", 0.1), ("b", 0.2))
        for i, point in enumerate(points)
    )
    study = mixed(
        trials=plan,
        figures=("edf_panels", "learning_curves"),
        tables=("edf_summary", "arm_comparison"),
        pairs=(("a", "b"),),
    )
    written: dict[str, list[Row]] = {}
    for number, trial in enumerate(study.trials):
        rows = list(train(trial.config, tmp_path / trial.config.id))
        written[trial.config.id] = without_news(rows) if number % 2 else rows
        claimed = store.claim(trial.config.id, trial.config.non_default(), study.slug, 1)
        store.finish(claimed, Outcome.from_rows(written[trial.config.id], {}))
    read = read_trials(study, store)
    assert {trial_id: list(outcome.rows) for trial_id, outcome in read.items()} == written
    table, rows_table = outcomes(study, read), tidy(study, read)
    assert table["value"].notna().all() and table["val_ece_pct"].notna().sum() == len(plan) // 2
    assert "mixed" in write_report(
        Results(study, table, rows_table), Workdir(tmp_path / "report"), {}
    )
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_database(uri)
    assert synchronize(View(study, uri, store), read) == len(plan)
    for run in roles(uri, "trial"):
        rows = written[run.data.tags["vitscale.trial_id"]]
        shown = history(uri, run.info.run_id, "val_ema_ece_pct")
        assert [value for _, _, value in shown] == [
            row["val_ema_ece_pct"] for row in rows if "val_ema_ece_pct" in row
        ]


def test_tables_are_those_of_one_dictionary_per_row() -> None:
    """Trials of several layouts, some without a row; a foreign column hides no field."""
    rng, plan = np.random.default_rng(0), []
    for i in range(300):
        config = QUICK.replace(lr=1e-3 * (i + 1), seed=i, depth=1 + i % 3)
        plan.append(Trial("ab"[i % 2], config, i // 2))
    study = mixed(
        trials=tuple(plan),
        figures=("edf_panels",),
        tables=("edf_summary",),
    )
    read, metric = {}, study.metric
    for i, trial in enumerate(study.trials):
        layout = ["epoch", metric, *(["more"] if i % 5 else []), *(["lr"] if i % 11 == 0 else [])]
        rows = [{name: float(rng.random()) for name in layout} for _ in range(rng.integers(1, 4))]
        if i % 17 == 0:
            del rows[-1]["more" if "more" in layout else "epoch"]
        status = (Status.FINISHED, Status.MISSING, Status.FAILED)[(i % 13 == 1) + (i % 29 == 1)]
        read[trial.config.id] = Outcome(
            status,
            Rows.pack(rows) if status is Status.FINISHED else (),
            {"commit": f"c{i % 4}", "machine": "m"},
        )
    records, of_rows = [], []
    for trial in study.trials:
        outcome = read[trial.config.id]
        labels = {
            "study": study.slug,
            "arm": trial.arm.name,
            "point": trial.point,
            "trial_id": trial.config.id,
            "status": str(outcome.status),
        }
        last = {**dict(outcome.rows[-1]), "lr": trial.config.lr} if outcome.rows else {}
        facts = {name: outcome.facts.get(name, "") for name in PROVENANCE}
        records.append({**labels, **last, **trial.config.asdict(), **facts})
        of_rows += [{**labels, **{n: v for n, v in row.items()}} for row in outcome.rows]
    table, expected = outcomes(study, read), pd.DataFrame(records)
    expected["point"] = expected["point"].astype("Int64")
    assert set(table) - set(expected) == {
        "value", "best_value", "diverged_step", "train_s"
    }  # fmt: skip
    pd.testing.assert_frame_equal(table[list(expected)], expected)
    finished = expected["status"] == "finished"
    assert (table["value"][finished] == expected[metric][finished]).all()
    assert set(table["value"][expected["status"] == "failed"]) == {study.column.metric.worst}
    assert table["value"][expected["status"] == "missing"].isna().all()

    rows_table, expected = tidy(study, read), pd.DataFrame(of_rows)
    expected["point"] = expected["point"].astype("Int64")
    pd.testing.assert_frame_equal(rows_table[list(expected)], expected)
    taken = dict(read)
    pd.testing.assert_frame_equal(take_tidy(study, taken), rows_table)
    assert taken == {trial_id: replace(outcome, rows=()) for trial_id, outcome in read.items()}
