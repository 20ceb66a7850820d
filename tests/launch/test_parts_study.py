"""A study with parts of a user's own: killed, edited, evaluated, read by a stranger, and trained by
nodes that have neither its folder nor its store.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Script, kill_family, wait_for
from support.buckets import KEYS, fresh, point_at
from support.cluster import Cluster, short_folder, where_hidden
from support.tiny_study import without_times

from vitscale import Study, TrainConfig, Trial, load, main
from vitscale.launch.earlier_plan import changed_parts
from vitscale.plan import parts
from vitscale.plan.study import to_json
from vitscale.record.sources import fetch, keep
from vitscale.record.store import Store
from vitscale.train.loop import train

PARTS = """
import math
import os
import torch
from torch import nn
from layers import activation
from vitscale import Metric, reports

open(os.environ.get("RAN", os.devnull), "w").close()  # a trace of each run of this file


class Perceptron(nn.Module):
    def __init__(self, num_classes, resolution, dim: int = 16, rate: float = 0.1):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(resolution**2, dim), activation(), nn.Dropout(rate),
            nn.Linear(dim, num_classes),
        )

    def forward(self, x):
        return self.layers(x)


class Signs(torch.optim.Optimizer):
    def __init__(self, groups, lr, beta1):
        super().__init__(groups, {"lr": lr, "beta1": beta1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["beta1"])
                weight.sub_(average.sign(), alpha=group["lr"])


@reports(Metric(name="margin", label="margin", unit="nats", worst=-math.inf, near=0.2, beyond=0.5,
                bounds=(-math.inf, math.inf), lower_is_better=False))
def margin(logits, labels):
    own = logits.gather(1, labels[:, None])[:, 0]
    return {"margin": own - logits.scatter(1, labels[:, None], -math.inf).amax(1)}
"""
STUDY = """
from typing import Literal
from vitscale import Study, TrainConfig, Trial, main

BASE = TrainConfig(
    model="parts/mine.py:Perceptron", optimizer="parts/mine.py:Signs", lr=1e-3, patch_size=2,
    metrics="parts/mine.py:margin", epochs=4, warmup_epochs=1.0, ema_decay=0.9,
)


def study(scale: Literal["demo"] = "demo", num: int = 2) -> Study:
    return Study(
        kind="repeats", name="own", scale=scale, question="Which width?", source="ours",
        trials=tuple(
            Trial(f"width {dim}", BASE.replace(**{"own.dim": dim}, seed=seed))
            for seed in range(num) for dim in (8, 16)
        ),
        pairs=(("width 8", "width 16"),), metric="val_ema_margin",
        tables=("arm_means", "pair_differences"), figures=("comparison_forest",),
    )


if __name__ == "__main__":
    main(study)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a study and of its parts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study/parts").mkdir(parents=True)
    (tmp_path / "study/parts/mine.py").write_text(PARTS)
    (tmp_path / "study/parts/layers.py").write_text("from torch.nn import GELU as activation\n")
    (tmp_path / "study/own.py").write_text(STUDY)
    return tmp_path / "study"


@pytest.fixture
def script(folder: Path) -> Script:
    return Script(folder.parent, folder / "own.py")


def vitscale(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitscale", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def assert_as_by_hand(store: Store, slug: str, folder: Path) -> None:
    """The rows of each trial are those of a training in this process, by the bit."""
    for entry in store.plan(slug)["trials"]:
        fetch(entry["config"], store)
        (folder / entry["id"]).mkdir(parents=True)
        expected = train(TrainConfig(**entry["config"]), folder / entry["id"])
        assert without_times(store.read(entry["id"]).rows) == without_times(expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_with_own_parts_is_killed_edited_and_evaluated(
    script: Script, tmp_path: Path
) -> None:
    frequent = ("--checkpoint-every-s", "0.05")
    process = script.start(*frequent, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    store = script.store()
    wait_for(lambda: bool(store.trial_ids() and store.trials.having("rows.parquet")), 120, "rows")
    kill_family(process.pid)
    process.wait()
    again = script.run(*frequent)
    assert again.returncode == 0, again.stdout
    assert_as_by_hand(store, "own-demo", tmp_path / "by_hand")
    table = load("own-demo", tmp_path / "runs").trials
    assert sorted(table["own.dim"]) == [8, 8, 16, 16]  # 16 is the default
    assert table["val_ema_margin"].notna().all()

    (tmp_path / "study/parts/layers.py").write_text("from torch.nn import ReLU as activation\n")
    edited = script.run("--num", "1")
    assert "mine.py:Perceptron has changed: 2 new trials" in edited.stdout, edited.stdout
    assert edited.returncode == 0 and len(store.trial_ids()) == 6
    shutil.rmtree(tmp_path / "study")  # an evaluation has the source from the store
    evaluation = ("evaluate", "own-demo", "--split", "val", "--json")
    evaluated = vitscale(*evaluation)
    assert evaluated.returncode == 0, evaluated.stderr
    found = {t["trial_id"]: t["val_ema_margin"] for t in json.loads(evaluated.stdout)["trials"]}
    assert found == {i: store.read(i).rows[-1]["val_ema_margin"] for i in found}

    # another user, who has not run these sources, reads the store
    other = {"RAN": str(tmp_path / "ran"), "XDG_STATE_HOME": str(tmp_path / "other")}
    for command in ("status", "plan own-demo", "report own-demo"):
        assert vitscale(*command.split(), **other).returncode == 0
    again = (*evaluation, "--predictions")
    refused = vitscale(*again, **other)
    assert refused.returncode == 2 and not (tmp_path / "ran").exists()
    assert "a part of a store must be trusted before it runs" in refused.stderr
    contents = [file.read_bytes() for file in (tmp_path / "runs/parts").iterdir()]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    assert any(digest in refused.stderr for digest in digests)
    trusted = [f"--trust-parts={digest}" for digest in digests]
    assert vitscale(*again, *trusted, **other).returncode == 0
    assert (tmp_path / "ran").exists()


def test_trials_of_a_part_whose_edit_is_undone_are_not_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def planned(source: str, num: int = 2) -> Study:
        Path("net.py").write_text(source)
        base = TrainConfig(model="net.py:Net")
        trials = tuple(Trial("net", base.replace(seed=seed)) for seed in range(num))
        texts = {"question": "Does it train?", "source": "ours", "metric": "val_error_pct"}
        return Study(
            kind="repeats", name="net", scale="demo", trials=trials, tables=("arm_means",), **texts
        )

    source = "def Net(num_classes): ...\n"
    first, edited = planned(source), planned(source + "# edited\n")
    (said,) = changed_parts(to_json(first), edited)
    assert said == "net.py:Net has changed: 2 new trials"
    plan = {**to_json(edited), "earlier": [trial.config.id for trial in first.trials]}
    for num, count in ((2, "no new trials"), (3, "1 new trial")):
        (said,) = changed_parts(plan, planned(source, num))
        assert said == f"net.py:Net has changed: {count}"


def test_a_study_may_have_the_metric_of_a_part_that_only_the_store_has(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    config = TrainConfig(metrics="parts/mine.py:margin")
    keep([config], Store.open(tmp_path / "runs"))
    monkeypatch.setattr(parts, "_sources", {})  # as another process
    monkeypatch.setattr(parts, "_read", {})
    shutil.rmtree(folder / "parts")

    def study() -> Study:
        trial = Trial("again", TrainConfig(**config.asdict()))
        texts = {"question": "Does it go on?", "source": "ours", "metric": "val_ema_margin"}
        return Study(
            kind="repeats",
            name="again",
            scale="demo",
            trials=(trial,),
            tables=("arm_means",),
            **texts,
        )

    with pytest.raises(SystemExit) as ended:
        main(study, ["--plan", "--store", str(tmp_path / "runs")])
    assert ended.value.code == 0


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    made = Cluster(short_folder(), "--num-cpus=0", "--num-gpus=0")
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_without_the_folder_of_the_study_train_its_parts_through_a_bucket(
    script: Script,
    tmp_path: Path,
    nodes: Cluster,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"http://127.0.0.1:{server}"
    point_at(url, monkeypatch)
    script.environment = {**script.environment, **os.environ}
    given = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", **KEYS}
    for _ in range(3):
        nodes.grow(
            "env",
            *(f"{name}={value}" for name, value in given.items()),
            *where_hidden([tmp_path / "study"]),
        )
    address = fresh()
    result = script.run("--address", nodes.address, "--store", address, "--max-concurrent", "3")
    assert result.returncode == 0, result.stdout
    assert_as_by_hand(Store.at(address), "own-demo", tmp_path / "by_hand")
