"""The guide docs/own-study.md to the letter, on images of one's own: its Python blocks saved under
the names that it says, its commands run in order in one folder, and what comes out.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, load_script, wait_for
from support.guides import BLOCK, environment_of_a_user, run, write_digits

from vitscale.plan.config import TrainConfig
from vitscale.plan.plan_warnings import plan_warnings
from vitscale.record.store import Store

GUIDE = (ROOT / "docs/own-study.md").read_text()
COMMAND = "python early_conv.py --data-root data"
RUN = f"{COMMAND} --final-num 10"
SHARED = ["arm", "point", "lr", "wd", "seed", "value"]


def steps() -> list[tuple[str, str]]:
    """(file to save, its text) and ("", command), in the order of the guide."""
    found: list[tuple[str, str]] = []
    for block in BLOCK.finditer(GUIDE):
        if block[1] == "python":
            found.append((re.findall(r"`(\w+\.py)`", GUIDE[: block.start()])[-1], block[2]))
        else:
            found += [("", line.split("  #")[0].strip()) for line in block[2].splitlines()]
    return found


def test_the_guide_saves_four_files_and_runs_what_it_saves() -> None:
    saved = [name for name, _ in steps() if name]
    assert saved == ["models.py", "tune.py", "early_conv.py", "plot.py"]
    for number, (name, text) in enumerate(steps()):
        if not name and text.startswith("python "):
            assert shlex.split(text)[1] in [file for file, _ in steps()[:number]]
    assert sum(text == RUN for _, text in steps()) == 1


def interrupt(folder: Path) -> None:
    """Ctrl-C, as soon as a few trials are done."""
    store = Store(folder / "runs")
    done_before = len(list((folder / "runs/trials").glob("*/rows.parquet")))
    with (folder / "interrupted.txt").open("w") as log:
        process = subprocess.Popen(
            shlex.split(RUN),
            cwd=folder,
            env=environment_of_a_user(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: num_done(folder) >= done_before + 4, 400, "the first trials")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
    assert "early_conv-flowers" in store.slugs() and num_done(folder) < done_before + 24


def num_done(folder: Path) -> int:
    return len(list((folder / "runs/trials").glob("*/rows.parquet")))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_guide_ends_with_what_is_true(tmp_path: Path) -> None:
    """Trained so shortly, a patchify stem errs far more, at every shared point."""
    write_digits(tmp_path / "data" / "flowers")
    said: dict[str, str] = {}
    report = tmp_path / "runs/studies/early_conv-flowers/report"
    for name, text in steps():
        if name:
            (tmp_path / name).write_text(text)
            continue
        if text == RUN:
            interrupt(tmp_path)
        result = run(text, tmp_path, timeout=900)
        assert result.returncode == 0, (text, result.stdout)
        said[text] = " ".join(result.stdout.split())
        if text == RUN:
            first = pd.read_parquet(report / "trials.parquet")

    assert (
        "16 finished, 0 diverged, 0 failed, 0 missing of 16"
        in said["python tune.py --data-root data"]
    )
    assert (
        "all 24 0 24" in said[f"{COMMAND} --plan"] and "warning: " not in said[f"{COMMAND} --plan"]
    )
    assert "warning: no reference run is planned" in said[f"{COMMAND} --num-references 0 --plan"]
    assert "24 finished, 0 diverged, 0 failed, 0 missing of 24" in said[RUN]
    assert "24 trials, 0 done" not in said[RUN]  # it resumed
    assert "28 trials, 24 done, 4 to do" in said[f"{COMMAND} --num 10"]
    for command in said:
        assert "not compared" not in said[command] and "Traceback" not in said[command]
    assert "early_conv-flowers 28 28 0" in said["vitscale status"]
    compared = next(
        text for command, text in said.items() if command.startswith("vitscale compare")
    )
    assert "10 pairs of equal lr, wd, seed" in compared and "stem_channels 8-16-32" in compared
    assert (tmp_path / "error_against_lr.png").stat().st_size > 10_000
    assert "conv finished 14 patchify finished 14" in said["python plot.py"]

    trials = pd.read_parquet(report / "trials.parquet")
    draws, references = trials[trials["point"].notna()], trials[trials["point"].isna()]
    check_references(tmp_path, references)
    kept = trials[trials["point"].isna() | (trials["point"] < 8)][SHARED]
    order = ["arm", "seed"]
    pd.testing.assert_frame_equal(
        kept.sort_values(order).reset_index(drop=True),
        first[SHARED].sort_values(order).reset_index(drop=True),
    )
    assert (draws["seed"] == draws["point"]).all() and (trials["dataset"] == "flowers-32").all()
    (pair,) = pd.read_parquet(report / "arm_comparison.parquet").to_dict("records")
    assert (pair["a"], pair["b"], pair["n_a"], pair["paired"]) == ("conv", "patchify", 10, True)
    assert pair["prob_a_lower"] >= 0.9 and pair["prob_p"] < 0.05
    means = references.groupby("arm")["value"].mean()
    assert means["conv"] < means["patchify"] - 10 and (means < 70).all()  # chance is 90


def check_references(folder: Path, references: pd.DataFrame) -> None:
    """They train at the points with the lowest errors of the search, which are on minival."""
    asked = pd.read_parquet(folder / "runs/studies/tune_early_conv-flowers/report/trials.parquet")
    assert (asked["eval_split"] == "minival").all() and set(asked["seed"]) == {0}
    for arm, of_arm in asked.groupby("arm"):
        best = of_arm[of_arm["value"] == of_arm["value"].min()]
        ours = references[references["arm"] == arm]
        assert sorted(ours["seed"]) == [1000, 1001, 1002, 1003] and ours["lr"].nunique() == 1
        assert (ours["lr"].iloc[0], ours["wd"].iloc[0]) in set(
            zip(best["lr"], best["wd"], strict=True)
        )


def test_the_config_for_fashion_mnist_is_one(tmp_path: Path) -> None:
    text = re.search(r"```text\n(TrainConfig\(.*?\))\n```", GUIDE, re.DOTALL)
    fields = re.search(r'with `("stem_channels".*?)` for', GUIDE, re.DOTALL)
    assert text and fields
    base = eval(text[1], {"TrainConfig": TrainConfig})
    conv = base.replace(depth=1, stem="conv", **eval(f"{{{fields[1]}}}"))
    assert conv.num_train == 5_000 and conv.stem_layers == [(8, 7, 7), (16, 1, 3)]


def test_the_study_of_the_page_on_study_files_can_be_planned(tmp_path: Path) -> None:
    page = (ROOT / "docs/study-file.md").read_text()
    script = tmp_path / "width.py"
    (block,) = (text for kind, text in BLOCK.findall(page) if kind == "python")
    script.write_text(block)
    study = load_script(script).study()
    assert len(study.trials) == 6 and list(study.arms) == ["narrow", "wide"]
    assert not plan_warnings(study)
