"""The notebook of the documentation: executed, and what its text says of its last table."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, empty_database

from vitscale import load

NOTEBOOK = ROOT / "docs/notebook.ipynb"


def last_table(notebook: Any) -> str:
    *_, last = (cell for cell in notebook.cells if cell.cell_type == "code")
    return last.outputs[-1]["data"]["text/plain"]


def test_the_answer_has_the_numbers_of_the_last_table() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    (row,) = [line.split() for line in last_table(notebook).splitlines() if "patch 2" in line]
    difference, low, high = map(float, row[5:8])
    answer = " ".join(notebook.cells[-1].source.split())
    said = f"the higher error on val, by {difference:.1f} points, 95% interval {low:.1f} to"
    assert f"{said} {high:.1f}." in answer


@pytest.mark.slow
def test_the_notebook_runs_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    (tmp_path / "mlflow.db").write_bytes(empty_database())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=400, resources=place).execute()
    results = load("patches-photos", tmp_path / "runs")
    table = results.tables["pair_differences"]
    columns = ["a", "b", "difference", "difference_low", "difference_high", "difference_p_holm"]
    with pd.option_context("display.width", 80, "display.max_columns", 20):  # of a kernel
        assert last_table(notebook) == repr(table[columns])
    means = results.trials.groupby("arm")["val_error_pct"].mean()
    assert len(results.trials) == 8 and (results.trials["status"] == "finished").all()
    assert np.isclose(table["difference"].item(), means["patch 2"] - means["patch 4"])
