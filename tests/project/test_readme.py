"""Every command and every line of code of the README and the guides, run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, Script, wait_for
from golden.capture import load
from PIL import Image
from support.guides import BLOCK, python_of, run
from support.mlflow_runs import runs_of_experiment, stop

from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome
from vitscale.record.store import Store

README = (ROOT / "README.md").read_text()
GUIDES = [
    ROOT / "docs" / f"{name}.md" for name in ("install", "running", "data", "models", "cluster")
]  # own-study.md is run by test_guide.py
LINKED = [*GUIDES, *(ROOT / "docs" / f"{n}.md" for n in ("own-study", "study-file", "config"))]
BLOCKS = BLOCK.findall("\n".join([README, *(guide.read_text() for guide in GUIDES)]))
COMMANDS = [
    line.split("  #")[0].strip()
    for kind, text in BLOCKS
    if kind == "bash"
    for line in text.splitlines()
]
ELSEWHERE = {  # run, but not in this file
    "make demo": "its command is run here, its set-up by .ci/run",
    "make test": "by .ci/run",
    "source .venv/bin/activate": "the environment in which the others run",
    "python studies/lr_wd_edf.py --retrain-other-code": "with fewer draws, by test_housekeeping.py",
    "python studies/tune_lr_wd.py": "shortened, by test_search.py",
    "vitscale adopt tune_lr_wd-demo": "in a copy of the project, by test_search.py",
    "pip wheel --no-deps --wheel-dir dist .": "by test_installed.py",
    "pip install 'vitscale-0.2.0-py3-none-any.whl[train]'": "by test_installed.py",
    "pip install vitscale-0.2.0-py3-none-any.whl": "by test_installed.py",
    "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu": (
        "needs an index that the tests do not have"
    ),
    "vitscale run lr_wd_edf": "by test_installed.py, with fewer draws",
    "vitscale doctor": "by test_doctor.py",
    "vitscale doctor --address auto --store /shared/runs --quick": (
        "what is new in it, the check of the nodes, by test_cluster.py"
    ),
    "vitscale run studies/mine.py": "by test_installed.py",
    "vitscale init my-project": "by test_installed.py",
    "python studies/lr_wd_edf.py --address auto --store /shared/runs --gpus-per-trial 0.25": (
        "by test_cluster.py"
    ),
    "pip install 'vitscale[bucket]'": "obstore is installed with the tests' packages",
    "export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_REGION=eu-central-1": (
        "as variables of test_bucket_study.py"
    ),
    "export AWS_ENDPOINT_URL=https://storage.example.org": "as above, for a server on loopback",
    "python studies/lr_wd_edf.py --address auto --store s3://my-bucket/runs "
    "--gpus-per-trial 0.25": "by test_bucket_study.py, on a server that speaks S3",
}


WHOLE = os.environ.get("VITSCALE_TEST_DEMO") == "whole"


def of_the_demo() -> tuple[Study, dict[str, Outcome], set[str]]:
    """(study, trials of an earlier run of the whole demo, ids of those that the test trains: two
    draws and a reference of each arm, or all).
    """
    study, read, _ = load("lr_wd_edf-demo")
    seen: Counter[tuple[str, bool]] = Counter()
    trained = set()
    for trial in study.trials:
        is_reference = trial.point is None
        seen[trial.arm.name, is_reference] += 1
        if WHOLE or seen[trial.arm.name, is_reference] <= (1 if is_reference else 2):
            trained.add(trial.config.id)
    return study, read, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the README's relative paths are right, with the demo run by its own
    command. It resumes: 60 of its 72 trials, five minutes of 2 cores, are of an earlier run.
    """
    place = tmp_path_factory.mktemp("readme")
    store, (study, read, trained) = Store.open(place / "runs"), of_the_demo()
    for config in (trial.config for trial in study.trials if trial.config.id not in trained):
        workdir = store.claim(config.id, config.non_default(), study.slug, 1)
        store.finish(workdir, read[config.id])
    (place / "studies").symlink_to(ROOT / "studies")
    write_flowers(place)
    result = run("python studies/lr_wd_edf.py", place, timeout=2400)
    (place / "demo.txt").write_text(result.stdout)
    assert result.returncode == 0, result.stdout
    return place


def write_flowers(folder: Path) -> None:
    """A user's own dataset: class folders of images, divided, and not divided."""
    for number, name in enumerate(("daisy", "rose")):
        for place in (
            "data/flowers/train/{}/1.png",
            "data/flowers/val/{}/1.png",
            "photos/{}/1.png",
            "photos/{}/2.png",
        ):
            path = folder / place.format(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (80, 70), (99, 9 * number, 0)).save(path)


def test_make_runs_what_the_readme_says() -> None:
    asked = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert ".venv/bin/python studies/lr_wd_edf.py" in asked
    asked = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert ".venv/bin/python -m pytest" in asked


@pytest.mark.slow
@pytest.mark.timeout(2600)
def test_the_demo_learns_and_ends_with_figure_report_and_page(folder: Path) -> None:
    out = (folder / "demo.txt").read_text()
    for kind in ("figure", "report"):
        paths = re.findall(rf"^{kind} +(\S+)$", out, re.MULTILINE)
        assert paths and all(Path(path).stat().st_size > 10_000 for path in paths)
    assert re.search(r"^mlflow +http://127.0.0.1:5000/#/experiments/\d+/runs", out, re.MULTILINE)
    trials = pd.read_parquet(folder / "runs/studies/lr_wd_edf-demo/report/trials.parquet")
    assert len(trials) == 72
    assert (trials["status"] != "missing").all() and (trials["status"] != "failed").all()
    _, earlier, trained = of_the_demo()
    now = trials.set_index("trial_id")["value"]
    apart = [now[i] - earlier[i].rows[-1]["val_ema_error_pct"] for i in trained]
    assert len(trained) == (72 if WHOLE else 12)
    assert np.median(np.abs(apart)) <= 1  # 0 on the same kind of processor
    references = trials[trials["point"].isna()].groupby("arm")["value"].mean()
    assert references["ViT_C AdamW"] < 6 and references["ViT_C SGD"] < 6
    assert (references < 15).all()
    assert set(trials.groupby("arm").size()) == {18}
    children = runs_of_experiment(f"sqlite:///{folder}/runs/mlflow.db", "lr_wd_edf-demo", "trial")
    assert set(children) == set(trials["trial_id"])


EXPECTED = {
    "python studies/lr_wd_edf.py": "72 trials, 72 done, 0 to do",
    "vitscale sync": "lr_wd_edf-demo: 72 of 72 trials shown",
    "python studies/lr_wd_edf.py --plan": "all 72 72 0",
    "python studies/lr_wd_edf.py --num 15": "76 trials, 72 done, 4 to do",
    "python studies/lr_wd_edf.py --num 15 --report": "report /",
    "python studies/lr_wd_edf.py --report --published": "report /",
    "python studies/lr_wd_edf.py --scale imagenet --plan": "1170",
    "python studies/lr_wd_edf.py --num 64 --num-scrambles 8 --plan": "lr_wd_edf_sobol-demo",
    "vitscale status": "lr_wd_edf-demo",
    "vitscale report lr_wd_edf-demo": "report /",
    "vitscale report lr_wd_edf-demo --format pdf,tex": "report (tex, pdf)",
    'vitscale show "lr_wd_edf-demo:ViT_C AdamW:7"': "lr_wd_edf-demo: ViT_C AdamW, 007",
    "vitscale status --orphans": "is planned by a study",
    "vitscale clean": "nothing to delete",
    "vitscale report lr_wd_edf-demo --published": "report /",
    'vitscale compare "lr_wd_edf-demo:ViT_P AdamW" "lr_wd_edf-demo:ViT_C AdamW"': "ViT_C AdamW",
    "vitscale plan lr_wd_edf --scale imagenet --devices 64 --epoch-minutes xiao2021": "875",
    "vitscale run": "lr_wd_edf",
    "vitscale run lr_wd_edf --num 15": "76 trials, 76 done, 0 to do",
    "vitscale plan lr_wd_edf --scale imagenet": "1170",
    "vitscale evaluate lr_wd_edf-demo --split test": "ViT_C AdamW",
    'vitscale evaluate lr_wd_edf-demo --split val --arm "ViT_C*" --predictions --json': '"arms"',
    "vitscale complexity": "178.4 | 178.36",
    "vitscale complexity --runtime": "acts_m r = 0.93",
    "vitscale prepare data/flowers data --size 64": "flowers-64",
    "vitscale prepare photos data --size 64 --val-fraction 0.2 --seed 0": "val: 2 images",
}


def test_every_command_is_accounted_for() -> None:
    assert set(COMMANDS) == {*EXPECTED, *ELSEWHERE, "vitscale ui"}


@pytest.mark.slow
@pytest.mark.timeout(2600)
@pytest.mark.parametrize("command", EXPECTED)
def test_command_does_what_the_readme_says(folder: Path, command: str) -> None:
    result = run(command, folder)
    assert result.returncode == 0, result.stdout
    assert EXPECTED[command] in " ".join(result.stdout.split())


@pytest.mark.slow
def test_ui_opens_on_the_results(folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    command = [str(Path(sys.executable).parent / "vitscale"), "ui"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert b"http://127.0.0.1:5000" in process.stdout.readline()
        wait_for(lambda: answers("http://127.0.0.1:5000"), 120, "the UI")
    finally:
        stop(process)


def answers(address: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return b"MLflow" in answer.read()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_study_of_the_readme_runs_to_figure_and_comparison(tmp_path: Path) -> None:
    (text,) = python_of(ROOT / "README.md")
    script = tmp_path / "sgd.py"
    script.write_text(text)
    result = Script(tmp_path, script).run(timeout=500)
    assert result.returncode == 0, result.stdout
    assert "16 finished, 0 diverged, 0 failed, 0 missing of 16" in result.stdout
    assert "warning" not in result.stdout
    report = tmp_path / "runs/studies/sgd-digits/report"
    assert (report / "learning_curves.png").stat().st_size > 10_000
    (pair,) = pd.read_parquet(report / "pair_differences.parquet").to_dict("records")
    assert (pair["a"], pair["b"], pair["n_a"]) == ("AdamW", "SGD", 8)
    trials = pd.read_parquet(report / "trials.parquet")
    medians = trials.groupby("arm")["value"].median()
    assert (medians < 60).all()  # both have learned: chance is 90


@pytest.mark.parametrize("page", [ROOT / "README.md", *LINKED], ids=lambda page: page.name)
def test_links_and_figures_of_the_readme_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    paths = re.findall(r"`((?:studies|vitscale|docs)/[\w./]+\.\w+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing + [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_fits_on_a_screen_or_two() -> None:
    assert len(re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()) < 1000
