"""A study on a user's own image files, with a model of timm: planned, refused, trained, shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, Script, load_script
from support.mlflow_runs import runs_of_experiment
from support.zoo import write_zoo

from vitscale import main

ZOO = ROOT / "tests" / "studies" / "zoo.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zoo(tmp_path_factory.mktemp("data"))


def test_a_plan_measures_what_a_model_of_timm_costs(tmp_path: Path) -> None:
    """ResNet-18 with 3 classes: 11.7 M parameters less the
    513,000 of its head for 1,000, and 1,539 of this one.
    """
    result = Script(tmp_path, ZOO).run("--plan")
    assert result.returncode == 0, result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("cnn")]
    assert "11.2 M" in line and "96" in line  # 2 trials x 2 epochs x 24 samples


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "resnet181"], "timm"),
        ([], "a data root must be given for a dataset other than digits, but got (dataset='zoo')"),
        (["--data-root", "."], "zoo"),
    ],
)
def test_an_unknown_model_or_dataset_is_refused_before_anything_is_trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(load_script(ZOO).study, arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if "error:" in line]
    assert said in line and "Traceback" not in out + err
    assert not list(tmp_path.glob("runs/trials/*"))


@pytest.mark.slow
def test_image_files_through_ray_and_mlflow(tmp_path: Path, root: Path) -> None:
    script = Script(tmp_path, ZOO, is_lean=True)
    result = script.run("--num", "1", "--data-root", str(root), "--num-loader-workers", "1")
    assert result.returncode == 0, result.stdout
    assert "2 finished, 0 diverged, 0 failed, 0 missing of 2" in result.stdout
    children = runs_of_experiment(f"sqlite:///{tmp_path}/mlflow.db", "zoo-demo", "trial")
    assert len(children) == 2
    (parent,) = runs_of_experiment(f"sqlite:///{tmp_path}/mlflow.db", "zoo-demo", "study").values()
    for run in children.values():
        assert {"val_error_pct", "v2_error_pct", "v2_loss"} <= set(run.data.metrics)
        params = {**parent.data.params, **run.data.params}
        assert params["lr_used"] == params["lr"] and params["samples"] == "48"
    # every third image is seen before the start
    (broken,) = sorted((root / "zoo" / "train" / "cat").glob("*"))[1:2]
    whole = broken.read_bytes()
    try:
        broken.write_bytes(whole[: len(whole) // 2])
        result = Script(tmp_path, ZOO).run(
            "--num", "1", "--data-root", str(root), "--store", str(tmp_path / "other")
        )
        assert result.returncode == 1 and str(broken) in result.stdout
    finally:
        broken.write_bytes(whole)
