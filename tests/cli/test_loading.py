"""vitscale.load: the results of a study as tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from golden.capture import load as load_golden
from support.guides import python_of
from support.refusals import refusing

import vitscale
from vitscale.analysis.report.draw import draw
from vitscale.plan.study import Study, to_json
from vitscale.record.outcome import Outcome
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN

SLUG = "lr_wd_edf-demo"


def stored(folder: Path, slug: str = SLUG) -> tuple[Store, Study, dict[str, Outcome]]:
    """A store with the trials of a demo as they were trained, and no report."""
    study, read, _ = load_golden(slug)
    store = Store.open(folder)
    store.study(slug).write(PLAN, json.dumps(to_json(study)).encode())
    for trial in study.trials:
        workdir = store.claim(trial.config.id, trial.config.non_default(), slug, 1)
        store.finish(workdir, read[trial.config.id])
    return store, study, read


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(tmp_path_factory.mktemp("loading") / "runs")[0]


def test_the_block_of_the_guide_runs_and_draws(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(store.root.parent)
    monkeypatch.delenv("VITSCALE_STORE", raising=False)
    (text,) = python_of(ROOT / "docs/running.md")
    names: dict[str, object] = {}
    exec(compile(text, "running.md", "exec"), names)
    assert (store.root.parent / "edf.pdf").read_bytes().startswith(b"%PDF")
    out = capsys.readouterr().out
    assert "val_ema_error_pct" in out and out.count("ViT_C SGD") >= 3


def test_files_of_a_report_are_the_tables_that_are_loaded(tmp_path: Path) -> None:
    store, study, read = stored(tmp_path / "runs")
    folder = draw(study, store, read)[0]
    # trials that no start of the study has linked by arm: the page leads to no absent folder
    assert "../trials/" not in folder.read("report.html").decode()
    after = vitscale.load(SLUG, store.root)
    assert f"{SLUG}, by the plan of its last start: {len(study.trials)} trials" in repr(after)
    assert after.study == study and list(after.tables) == list(study.tables)
    for name in (*study.tables, "edf_curves", "trials", "rows"):
        table = getattr(after, name) if name in ("trials", "rows") else after.table(name)
        written = pd.read_parquet(folder.address(f"{name}.parquet"))
        pd.testing.assert_frame_equal(table, written, check_dtype=False)
    # against the store itself, read by nothing of ours
    trial = study.trials[0]
    file = store.root / "trials" / trial.config.id / "rows.parquet"
    written = pd.read_parquet(file)[study.metric].to_numpy()
    mine = after.rows.loc[after.rows["trial_id"] == trial.config.id, study.metric].to_numpy()
    assert np.array_equal(mine, written) and len(mine) == trial.config.epochs
    assert len(after.trials) == len(study.trials)


def test_a_lost_trial_is_missing(tmp_path: Path) -> None:
    store, study, _ = stored(tmp_path / "runs")
    lost = study.trials[-1].config.id
    (store.root / "trials" / lost / "rows.parquet").unlink()
    results = vitscale.load(SLUG, store.root)
    assert (results.trials["status"] == "missing").sum() == 1
    assert lost not in set(results.rows["trial_id"])


def test_what_is_changed_in_a_table_stays_there(store: Store) -> None:
    results = vitscale.load(SLUG, store.root)
    results.tables["edf_summary"]["n"] = 0
    assert (results.table("edf_summary")["n"] > 0).all()


def test_refusals_name_what_there_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITSCALE_STORE", str(store.root))
    with refusing("'lr_wd'", SLUG):
        vitscale.load("lr_wd")
    with refusing("'edf'"):
        vitscale.load(SLUG).table("edf")
    with refusing("'edf'"):
        vitscale.load(SLUG).tables["edf"]
    with refusing("runs/nothing", "name another store with store or VITSCALE_STORE"):
        vitscale.load(SLUG, store.root / "nothing")
    assert not (store.root / "nothing").exists()


def test_the_import_stays_light() -> None:
    code = (
        "import sys, vitscale; vitscale.load; print([name for name in "
        "('pandas', 'matplotlib', 'pyarrow', 'torch', 'ray', 'mlflow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "[]"
