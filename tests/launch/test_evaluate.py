"""Final weights evaluated again: against the trial's own rows, and predictions made here."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.final_weights import TINY, final_state, predicted, train_all
from support.refusals import refusing

from vitscale.cli import parsers
from vitscale.cli.evaluation import _as_text, summarize
from vitscale.launch.evaluating import evaluate_study, on_device
from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.evaluation import Evaluation
from vitscale.plan.metrics import evaluation_columns
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Outcome
from vitscale.record.store import Store
from vitscale.train import evaluate as stage
from vitscale.train.evaluate import model_with
from vitscale.train.model import build_model

torch.set_num_threads(1)

BASE = TINY.replace(more_evals="")
CONV = BASE.replace(
    stem="conv",
    stem_channels="4-8",
    stem_strides="2-2",
    optimizer="sgd",
    lr=0.05,
    ema_decay=0.0,
    precise_bn=120,
)
WILD = BASE.replace(optimizer="sgd", lr=1e9, momentum=0.99)
ARMS = {"ViT": (BASE, BASE.replace(seed=1)), "conv": (CONV,), "wild": (WILD,)}


def study_of(arms: dict[str, tuple[TrainConfig, ...]]) -> Study:
    return Study(
        kind="repeats",
        name="again",
        scale="demo",
        question="Is it the same?",
        source="none",
        trials=tuple(Trial(a, c, i) for a, configs in arms.items() for i, c in enumerate(configs)),
        metric="val_ema_error_pct",
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Store]:
    study = study_of(ARMS)
    return study, train_all(study, tmp_path_factory.mktemp("store"))


def cpu() -> Resources:
    return on_device("cpu", Resources())


def test_on_its_own_set_a_trial_has_the_values_of_its_last_row_bit_for_bit(
    trained: tuple[Study, Store],
) -> None:
    study, store = trained
    results = list(evaluate_study(study, store, [Evaluation(split="val")], cpu()))
    assert [result.status for result in results] == ["done", "done", "done", "diverged"]
    for result in results[:3]:
        last, own = store.read(result.trial.config.id), result.outcome
        assert own is not None
        for name in evaluation_columns("val"):
            assert own.rows[0][name] == last.rows[-1][name], name
        before, after = (store.misclassified(result.trial.config.id, s) for s in (last, own))
        assert before is not None and after is not None and before.images == after.images
        for name, bits in before.bits.items():
            np.testing.assert_array_equal(after.bits[name], bits)
        assert own.facts["images"] == before.images["val"] and own.facts["commit"]
    again = evaluate_study(study, store, [Evaluation(split="val")], cpu())
    assert [r.outcome for r in again] == [r.outcome for r in results]


def test_another_set_and_its_predictions_are_those_of_the_final_model(
    trained: tuple[Study, Store],
) -> None:
    study, store = trained
    evaluation = Evaluation(split="test")
    first, *_ = evaluate_study(study, store, [evaluation], cpu(), arms="ViT", predictions=True)
    config, outcome = first.trial.config, first.outcome
    assert outcome is not None
    state = final_state(store.trial(config.id))
    expected = predicted(config, state["ema"], "test")
    wrong = store.misclassified(config.id, outcome)
    assert wrong is not None
    np.testing.assert_array_equal(wrong.bits_of("test", "ema_"), expected)
    assert outcome.rows[0]["test_ema_error_pct"] == 100.0 * expected.sum() / 200
    path = store.trial(config.id).path / f"predictions-{evaluation.id(config)}.parquet"
    table = pd.read_parquet(path)
    assert table["image"].tolist() == list(range(200))
    np.testing.assert_array_equal((table["predicted"] != table["label"]).to_numpy(), expected)
    tops = np.stack(table["top_classes"].to_list())
    assert tops.shape == (200, 5) and (tops[:, 0] == table["predicted"]).all()
    probabilities = np.stack(table["top_probabilities"].to_list())
    assert (np.diff(probabilities, axis=1) <= 0).all() and (probabilities.sum(1) <= 1 + 1e-6).all()


def test_an_interrupted_evaluation_goes_on_and_a_done_one_computes_nothing(
    trained: tuple[Study, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store = trained
    evaluation = Evaluation(split="minival", crop_ratio=0.8)
    running = evaluate_study(study, store, [evaluation], cpu())
    first = next(running)
    running.close()
    statuses = [r.status for r in evaluate_study(study, store, [evaluation], cpu())]
    assert first.status == "done" and statuses == ["known", "done", "done", "diverged"]

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("it was evaluated already")

    monkeypatch.setattr(stage, "evaluate_weights", refused)
    statuses = [r.status for r in evaluate_study(study, store, [evaluation], cpu())]
    assert statuses == ["known", "known", "known", "diverged"]


def test_what_equals_the_config_has_no_part_in_the_id() -> None:
    same = Evaluation(split="val", dataset="digits", resolution=8, crop_ratio=1.0)
    assert same.id(BASE) == Evaluation(split="val").id(BASE)
    others = [
        Evaluation(split="test"),
        Evaluation(split="val", resolution=12),
        Evaluation(split="val", crop_ratio=0.9),
        Evaluation(split="val", dataset="other"),
    ]
    assert len({e.id(BASE) for e in (same, *others)}) == 5


def test_learned_positions_are_resampled_for_another_resolution(
    trained: tuple[Study, Store],
) -> None:
    """2x2 to 4x4 patches; constant embeddings stay constant, the class token's stays as it is."""
    study, store = trained
    state = final_state(store.trial(BASE.id))
    weights = dict(state["model"])
    weights["pos_embed"] = torch.ones_like(weights["pos_embed"])
    weights["pos_embed"][:, 0] = 7.0
    model = model_with(weights, BASE.replace(resolution=16))
    positions = model.state_dict()["pos_embed"]
    assert positions.shape[1] == 17 and (positions[:, 0] == 7).all()
    assert torch.allclose(positions[:, 1:], torch.ones(1))
    results = evaluate_study(study, store, [Evaluation(split="val", resolution=16)], cpu())
    assert [r.status for r in results] == ["done"] * 3 + ["diverged"]


@pytest.mark.parametrize(
    ("name", "num_prefix"),
    [("cait_xxs24_224", 0), ("convit_tiny", 0), ("deit_tiny_distilled_patch16_224", 2)],
)
def test_positions_of_a_timm_model_are_resampled_in_rows(name: str, num_prefix: int) -> None:
    """2x2 to 3x3 patches: row numbers stay row numbers, tokens before the patches stay."""
    config = TrainConfig(model=f"timm:{name}", resolution=32)
    weights = build_model(config).state_dict()
    assert weights["pos_embed"].shape[1] == num_prefix + 4
    weights["pos_embed"][:, :num_prefix] = 7.0
    weights["pos_embed"][:, num_prefix:] = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]
    model = model_with(weights, config.replace(resolution=48)).eval()
    positions = model.state_dict()["pos_embed"]
    assert (positions[:, :num_prefix] == 7).all()
    rows = positions[0, num_prefix:, 0].reshape(3, 3)
    assert torch.allclose(rows, rows[:, :1]) and torch.isclose(rows[1, 0], torch.tensor(0.5))
    assert rows[0, 0] < 0.5 < rows[2, 0]
    assert torch.isfinite(model(torch.zeros(1, 1, 48, 48))).all()


def test_positions_that_timm_does_not_resample_are_refused() -> None:
    config = TrainConfig(model="timm:pit_ti_224", resolution=32)
    weights = build_model(config).state_dict()
    with refusing("pit_ti_224', resolution=48: pos_embed)"):
        model_with(weights, config.replace(resolution=48))


def folder_set(root: Path, name: str, classes: tuple[str, ...]) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for label, class_name in enumerate(classes):
            (root / name / split / class_name).mkdir(parents=True)
            for i in range(2):
                pixels = np.full((8, 8), 20 * label + i, np.uint8)
                Image.fromarray(pixels).save(root / name / split / class_name / f"{i}.png")


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["vitscale", "evaluate", *arguments])
    status = 0
    try:
        parsers.main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_other_images_of_the_same_classes_and_refusals_in_one_line(
    trained: tuple[Study, Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, store = trained
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    folder_set(tmp_path, "ten", tuple("abcdefghij"))
    folder_set(tmp_path, "four", tuple("abcd"))
    here = ("--store", str(store.root), "--data-root", str(tmp_path))
    args = (study.slug, "--split", "val", "--dataset", "ten", *here)
    status, out, _ = command(monkeypatch, capsys, *args)
    assert status == 0 and "val of ten" in out and out.count("\n") >= 5
    for arguments, line in (
        ((study.slug, "--split", "dev", *here), "must be one of train, minival, val, test"),
        ((study.slug, "--split", "val", "--dataset", "four", *here), "got (4 classes)"),
        ((study.slug, "--split", "val", "--dataset", "none", *here), "but got (dataset='none'"),
        ((study.slug, "--split", "val", "--resolution", "9", *here), "resolution % patch_size"),
        ((study.slug, "--split", "val", "--arm", "x*", *here), "an arm must be of the study"),
        ((study.slug, "--split", "val", "--crop-ratio", "2", *here), "crop_ratio <= 1"),
    ):
        status, out, err = command(monkeypatch, capsys, *arguments)
        assert status == 2 and out == "" and err.count("\n") == 1 and line in err, err


def test_trials_without_weights_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_of({"ViT": (BASE,)})
    store = train_all(study, tmp_path / "runs", keep_weights=False)
    status, out, err = command(
        monkeypatch, capsys, study.slug, "--split", "test", "--store", str(store.root)
    )
    assert status == 2 and out == "" and err.count("\n") == 1
    assert "must have kept its final weights" in err and "--keep-weights" in err


def test_a_checkpoint_of_an_older_version_will_do(trained: tuple[Study, Store]) -> None:
    """It has the optimizer's state besides, and the rows no bits."""
    study, store = trained
    old = Outcome(*dataclasses.astuple(store.read(BASE.id))[:2], {"commit": "old"})
    assert store.misclassified(BASE.id, old) is None
    workdir = store.trial(BASE.id)
    state = {**final_state(workdir), "optimizer": {}, "rng": {}}
    del state["wrong"]
    for name in workdir.names("checkpoint-"):
        workdir.remove(name)
    from vitscale.train import checkpoint

    checkpoint.save(workdir, state["step"], state)
    first, *_ = evaluate_study(study, store, [Evaluation(split="val")], cpu(), arms="ViT")
    assert first.status == "done" and first.outcome is not None  # of other weights, by their name
    last = store.read(BASE.id).rows[-1]
    assert first.outcome.rows[0]["val_ema_loss"] == last["val_ema_loss"]


def test_mlflow_shows_an_evaluation_once_however_often_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from conftest import empty_database
    from mlflow import MlflowClient

    from vitscale.record.mlflow.view import View, synchronize
    from vitscale.record.table import read_trials

    study = study_of({"ViT": (BASE,)})
    store, uri = train_all(study, tmp_path / "runs"), f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "mlflow.db").write_bytes(empty_database())
    monkeypatch.setitem(os.environ, "MLFLOW_TRACKING_URI", uri)
    view = View(study, uri, store)
    synchronize(view, read_trials(study, store))
    view.save()
    arguments = (study.slug, "--split", "test", "--store", str(store.root))
    assert command(monkeypatch, capsys, *arguments)[0] == 0
    view.show_evaluations({BASE.id})
    client, run_id = MlflowClient(uri), view.runs.children[BASE.id].run_id
    (shown,) = client.get_metric_history(run_id, "evaluation/test/ema_error_pct")
    (outcome,) = store.evaluations(BASE.id).values()
    assert shown.value == outcome.rows[0]["test_ema_error_pct"] and shown.step == BASE.epochs


def test_the_summary_is_about_the_metric_of_the_study(trained: tuple[Study, Store]) -> None:
    study, store = trained
    other = dataclasses.replace(study, metric="val_ema_loss")
    results = list(evaluate_study(other, store, [Evaluation(split="val")], cpu()))
    rows = {row["arm"]: row for row in summarize(other, results)}
    losses = [store.read(c.id).rows[-1]["val_ema_loss"] for c in ARMS["ViT"]]
    assert rows["ViT"]["mean_loss"] == pytest.approx(np.mean(losses))
    assert "mean" not in rows["ViT"] and rows["wild"]["diverged"] == 1
    text = _as_text(other, list(rows.values()))
    assert "loss nats" in text and f"{np.mean(losses):.4f}" in text
