"""The CUDA path on a device that computes nothing (tests/nullcuda), since no GPU is here.

CUDA's runtime, driver, cuBLAS, cuDNN, NCCL and NVML are replaced by libraries that keep memory,
copy for real, and count what they are asked to do; torch and Ray take them for a GPU. So this sees
devices that do not match, what waits for the device, what it is asked to do, memory that is not
given back, the loading of checkpoints, and packing. It cannot see numbers: kernels do nothing, and
losses and errors read as 0. Nor NCCL's transport, the choices of cuDNN's heuristics and of
attention kernels, or time: nothing here is evidence that a result on a GPU is right, or fast.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Script
from nullcuda import configs
from nullcuda.build import build
from support.null_device import NULL, saved_when_told
from support.teams import on_team

from vitscale.plan.config import TrainConfig
from vitscale.record.workdir import CheckpointName, Workdir
from vitscale.train import checkpoint

# The most operations, and copies from the host among them, that a training step asks of the device:
# what `count_steps.py` counts. Mixup asks for two operations more than CutMix. A number that falls
# is progress, and is put down here; one that rises has to be worth it.
DEMO = {
    "demo ViT_P": (157, 1),
    "demo ViT_C": (137, 1),
    "demo SGD": (155, 1),
    "demo LAMB": (185, 3),
    "demo clip": (167, 2),
    "demo drop path": (171, 2),
    "demo dropout": (489, 2),
    "demo 2 branches": (274, 1),
    "demo 2 branches, drop path": (300, 2),
}
PUBLISHED = {
    "ViT-S fp32": (624, 1),
    "ViT-S bf16": (855, 1),
    "ViT-S fp16": (877, 1),
    "ViT-S bf16, drop path": (905, 2),
    "xiao2021, ViT_P-1GF": (985, 1),
    "xiao2021, ViT_C-1GF, fp32": (1596, 2),
    "xiao2021, RegNetY-1GF, fp32": (2479, 2),
    "deit, S": (1123, 2),
    "a2, S": (1097, 5),
    "deit3, S": (1160, 4),
    "depth-layerscale, S": (1197, 1),
    "vit, B": (2089, 3),
}
STEMS = {
    "xiao2021, ViT_C-1GF, fp16": (2058, 2),
    "ViT-S, graham, fp16": (902, 1),
    "ViT-S, hmlp, layer norm, fp16": (920, 1),
}
DETERMINISTIC = {
    "demo ViT_P, deterministic": (157, 1),
    "ViT-S, graham, fp16, deterministic": (914, 1),
}
# Operations beside the graphs of a captured step, copies among them, graphs, and their operations
CAPTURED = {
    "demo ViT_P": (12, 1, 3, 145),
    "demo ViT_C": (12, 1, 3, 125),
    "demo SGD": (12, 1, 3, 143),
    "demo LAMB": (44, 3, 2, 140),
    "demo clip": (12, 1, 3, 155),
    "demo drop path": (14, 2, 3, 157),
    "demo dropout": (14, 2, 3, 475),
    "demo 2 branches": (12, 1, 3, 262),
    "demo 2 branches, drop path": (14, 2, 3, 286),
    "ViT-S fp32": (12, 1, 3, 612),
    "ViT-S bf16": (12, 1, 3, 1097),
    "ViT-S fp16": (35, 1, 2, 841),
    "ViT-S bf16, drop path": (14, 2, 3, 1145),
    "xiao2021, ViT_P-1GF": (38, 1, 3, 1201),
    "xiao2021, ViT_C-1GF, fp32": (35, 2, 5, 1562),
    "xiao2021, RegNetY-1GF, fp32": (35, 2, 5, 2445),
    "deit, S": (114, 3, 3, 1264),
    "a2, S": (82, 5, 2, 1268),
    "deit3, S": (80, 4, 2, 1333),
    "depth-layerscale, S": (112, 2, 3, 1340),
    "vit, B": (14, 2, 3, 2329),
    "xiao2021, ViT_C-1GF, fp16": (58, 2, 4, 2000),
    "ViT-S, graham, fp16": (35, 1, 2, 866),
    "ViT-S, hmlp, layer norm, fp16": (35, 1, 2, 884),
}
QUICK = (
    "adamw",
    "lamb, clip",
    "bf16",
    "fp16",
    "precise BatchNorm",
    "randaugment",
    "erasing",
    "bce",
    "dropout",
    "drop path",
    "branches",
    "repeats, averages",
)


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment under which a process has the null device. Where CI is true, a machine must
    be able to build it.

    Otherwise the tests are skipped, with the reason, if there is no compiler or no torch for CUDA.
    """
    try:
        return build(tmp_path_factory.mktemp("nullcuda"))
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the null CUDA device needs gcc, binutils and a torch for CUDA: {error}")


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    configs.write_set(root)
    return root


def run(null: dict[str, str], out: Path, program: str, *arguments: str) -> dict:
    """What a program of tests/nullcuda writes to `out`, on the null device."""
    command = [sys.executable, str(NULL / program), *arguments]
    environment = {**os.environ, **null, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("group", "how"),
    [
        ("DEMO", ()),
        ("PUBLISHED", ()),
        ("STEMS", ()),
        ("DETERMINISTIC", ("deterministic",)),
        ("DEMO", ("captured",)),
        pytest.param("PUBLISHED", ("captured",), marks=pytest.mark.slow),
        pytest.param("STEMS", ("captured",), marks=pytest.mark.slow),
    ],
)
def test_a_step_waits_for_nothing_and_asks_for_no_more_than_it_did(
    group: str, how: tuple[str, ...], null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    found = run(
        null,
        tmp_path / "out.json",
        "count_steps.py",
        group,
        str(data_root),
        str(tmp_path / "out.json"),
        *how,
    )
    assert not any(step["waits"] for steps in found.values() for step in steps)
    counted = ("ops", "h2d", "graphs", "nodes") if how == ("captured",) else ("ops", "h2d")
    most = {
        name: tuple(max(step[what] for step in steps) for what in counted)
        for name, steps in found.items()
    }
    pinned = CAPTURED if how == ("captured",) else globals()[group]
    assert most == {name: pinned[name] for name in getattr(configs, group)}
    assert not any(step["refused"] for steps in found.values() for step in steps)


OTHERS = tuple(name for name in configs.RESUMED if name not in QUICK)
OF_CAPTURED = (*QUICK, "fp16, clip", "BatchNorm of parts", "mixup", "recipe deit")


@pytest.mark.parametrize(
    ("names", "how"),
    [
        pytest.param(QUICK, "", id="quick"),
        pytest.param(OTHERS, "", id="others", marks=pytest.mark.slow),
        pytest.param(OF_CAPTURED, "captured", id="captured", marks=pytest.mark.slow),
        pytest.param(
            tuple(configs.RESUMED),
            "captured",
            id="all captured",
            marks=[pytest.mark.slow, pytest.mark.chaos],
        ),
    ],
)
def test_a_training_resumes_waits_for_nothing_and_leaves_no_memory(
    names: tuple[str, ...], how: str, null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    """One after another in a process, as a reused worker trains them; the first with loader
    workers. Captured ones have a graph for each part of a batch.
    """
    out, given = tmp_path / "out.json", [*names, how] if how else names
    found = run(null, out, "resume.py", str(data_root), str(out), *given)
    expected = {
        "rows_before": 1,
        "rows": 4 if how else 2,
        "same": True,
        "resumed_at": 6,
        "steps": 10 if how else 2,
        "waits": 0,
        "refused": 0,
        "left_bytes": 0,
    }
    graphs = {name: f.pop("graphs") for name, f in found.items()}
    assert found == dict.fromkeys(names, expected)
    assert all(num >= bool(how) for num in graphs.values()), graphs


def test_parts_keep_their_gradients_host_draws_are_eager_and_an_earlier_torch_captures(
    null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    """The graph of the images is launched again between the parts. Versions of torch from 2.11 on
    are allowed.
    """
    found = run(
        null, tmp_path / "out.json", "graphs.py", str(data_root), str(tmp_path / "out.json")
    )
    assert found["memory"].pop("used") > 100
    assert found["memory"] == {"results": 34, "overwritten": 0}  # 32 gradients, 2 losses
    # a graph would repeat what was drawn
    assert found["draws"]["again"] == {"python": True, "numpy": True, "torch": True, "none": False}
    assert set(found["draws"]["left_out"].values()) == {
        "RuntimeError: it draws random numbers on the host"
    }
    assert found["earlier"].pop("left_out").keys() == {"waits"}
    assert found["earlier"] == {"captured": True, "same_stream": True}


@pytest.mark.parametrize("how", ["", "held", "loaders"])
def test_a_training_that_is_told_to_end_is_saved(
    null: dict[str, str], data_root: Path, tmp_path: Path, how: str
) -> None:
    """By SIGTERM to a process whose main thread does not train; with nobody who takes the first
    row, by another one. Python gives nothing to other threads while it ends, and torch would take
    from an evaluation the process that reads its images.
    """
    saved = saved_when_told(null, data_root, tmp_path, how)
    state = checkpoint.load(Workdir(tmp_path), torch.device("cpu"))
    assert state is not None
    assert state["step"] == CheckpointName.parse(saved.name).step
    assert state["step"] >= 3 if not how else state["step"] == 3
    assert (state["rows"] == []) == (how == "loaders")
    assert all(t.device.type == "cpu" for t in state["model"].values())


def test_a_thread_writes_checkpoints_of_which_none_is_lost_or_mixed(
    null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    found = run(null, out, "saving.py", str(data_root), str(out))
    assert found["saver"] == {
        "syncs": 0,
        "d2h": 6,  # one copy per tensor, into one block, and one wait, in the thread
        "blocks": 1,
        "waits": 1,
        "blocks_again": 0,
        "due_while_writing": False,
        "due": True,
        "same": True,
        "rows": [{"epoch": 1.0}],
        "storages": True,
        "names": [1, 2],
        "error": errno.ENOSPC,
        "at_the_end": [5, 6],
    }
    assert found["trainings"] == {
        "raised": errno.ENOSPC,
        "when_reported": 3,
        "syncs_of_two": 0,
        "threads": [],
    }
    # of three checkpoints: fsync, replace, unlink, fsync of the folder, unlink of the oldest
    steps = found["kills"]["steps"]
    assert found["kills"]["damaged"] == 0 and set(steps) == {0, 1, 2, 3}
    assert len(steps) >= 12 and steps == sorted(steps)


def test_a_parcel_travels_in_one_copy_loaders_get_nothing_of_a_gpu_and_profiles_run(
    null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    found = run(null, tmp_path / "out.json", "host.py", str(data_root), str(tmp_path / "out.json"))
    assert found["copies"] == 1 and len(found["arrived"]) == 8 and all(found["arrived"].values())
    assert found["read_alike"] and found["pickled_on_gpu"] == [] and found["profiled"] == [1, 2]
    assert found["devices"] == ["cuda:0", "cuda:0", "cpu"]
    # operations and waits, whatever is drawn
    assert found["policies"] == {
        "randaugment": [[122, 0]],
        "autoaugment": [[103, 0]],
        "trivialaugment": [[64, 0]],
        "3augment": [[45, 0]],
        "jitter": [[75, 0]],
    }
    # copies to the device, operations and waits of 4 batches: averaged weights see them, too
    raw, averaged = found["evaluations"]
    assert raw == {"one pass": [8, 308, 2], "each": [8, 308, 2]}
    assert averaged == {"one pass": [8, 580, 4], "each": [16, 616, 4]}


def test_images_on_disk_are_sent_raw_and_what_a_step_waits_for_them_is_in_its_row(
    null: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    found = run(null, tmp_path / "out.json", "disk.py", str(data_root), str(tmp_path / "out.json"))
    # 4 steps per epoch; readers of an evaluation are no wait of a step
    assert {name: found[name]["batches"] for name in ("resident", "read here", "readers")} == {
        "resident": [0, 0],
        "read here": [4, 8],
        "readers": [4, 8],
    }
    assert {f["waits"] for f in found.values() if isinstance(f, dict) and "waits" in f} == {0}
    # a prepared set of 40 pixels, cropped on the device to 32
    assert found["sent"] == ["cpu", "torch.uint8", 64, 3, 40, 40]
    assert found["finished"] == [64, 3, 32, 32]
    # whether matrix products and convolutions of fp32 are computed in TF32
    tf32 = {name: found[name]["tf32"] for name in ("resident", "bf16", "tf32")}
    assert tf32 == {"resident": [[False] * 2], "bf16": [[False, True]], "tf32": [[True] * 2]}
    assert found["left as before"]
    # of 80 GiB, 0.6 for each process
    shares = {"1.0": 1.0, "0.5": (80 / 2 - 0.6) / 80, "0.125": (80 / 8 - 0.6) / 80}
    assert {name: round(share, 6) for name, share in found["shares"].items()} == {
        name: round(share, 6) for name, share in shares.items()
    }


@pytest.mark.slow
@pytest.mark.chaos
def test_the_doctor_finds_that_this_device_computes_nothing(
    null: dict[str, str], tmp_path: Path
) -> None:
    """Whatever compares numbers fails, as it should, on each of two devices, which are checked at
    the same time; what asks torch, Ray, the store or MLflow passes.
    """
    options = ["--store", str(tmp_path / "runs"), "--quick", "--json"]
    environment = {**os.environ, **null, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", "vitscale", "doctor", *options],
        env={**environment, "NULLCUDA_DEVICES": "2"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1, finished.stderr
    checks = json.loads(finished.stdout)["checks"]
    found = {(check["check"], check["device"]): check["result"] for check in checks}
    assert len(found) == len(checks)
    wrong = ["matrix products", "convolutions", "fp32 as on the CPU", "bf16", "fp16", "resume"]
    wrong += ["micro-batches", "deterministic", "captured"]
    for device in ("cuda:0", "cuda:1"):
        assert {name for name in wrong if found.pop((name, device)) == "fail"} == set(wrong)
        found.pop(("loader processes", device))  # compares memory that no kernel has written
        assert found.pop(("memory", device)) == "pass"
    assert found.pop(("team of two", "")) == "fail"  # NCCL, too, computes nothing
    assert found.pop(("conditional writes", "")) == "not applicable"  # of a folder
    assert set(found.values()) == {"pass"}, finished.stdout
    assert {device for _, device in found} == {""}


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_whole_here(null: dict[str, str], tmp_path: Path) -> None:
    """With tiny sizes; of captured steps, it says that all of them are captured."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--out", str(tmp_path)]
    environment = {**os.environ, **null}
    result = subprocess.run(
        [*command, "--quick"], env=environment, capture_output=True, text=True, timeout=400
    )
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert result.returncode == 0, (result.stdout, [row for row in rows if "failed" in row])
    parts = ["machine", "facts", "equal", "step", "pack", "timm", "eval", "fuse"]
    assert list(dict.fromkeys(row["part"] for row in rows)) == parts
    assert {row["why"] for row in rows if row["part"] == "equal"} == {""}
    demo = {row["how"]: row for row in rows if row["part"] == "step"}
    assert demo["eager"]["host_ms"] > demo["captured"]["host_ms"] > 0
    assert demo["captured"]["predicted"] == "0.4 to 0.9"
    again = subprocess.run(
        [*command, "--budget-s", "0", "--compare", str(tmp_path / "gpu.json")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert again.returncode == 1
    assert again.stdout.count("failed: TimeoutError: no time left") == len(parts) - 1


@pytest.mark.slow
def test_a_study_packs_two_trials_on_a_gpu(null: dict[str, str], tmp_path: Path) -> None:
    """On a cluster that Ray starts and whose GPU Ray finds;
    the cores would do for 20 trials at a time.
    """
    script = Script(tmp_path, is_lean=True)
    result = script.run(
        "--num", "1", "--epochs", "2", "--gpus-per-trial", "0.5", "--cpus-per-trial", "0.1", **null
    )
    assert result.returncode == 0, result.stdout
    assert "training 2 at a time" in result.stdout
    assert "3 finished, 0 diverged, 0 failed, 0 missing of 3" in result.stdout
    for path in tmp_path.glob("runs/trials/*"):
        outcome = script.store().read(path.name)
        rows, facts = outcome.rows, outcome.facts
        assert facts["device"] == "cuda" and "Null GPU" in facts["machine"]
        assert [row["epoch"] for row in rows] == [1, 2] and rows[-1]["peak_memory_mib"] > 0


SIZES = """
from typing import Literal

from vitscale import Study, TrainConfig, main, trials

BASE = TrainConfig(
    heads=2, batch_size=256, epochs=1, warmup_epochs=0.0, ema_decay=0.9, crop_padding=1
)
ARMS = {
    "small": {"width": 16, "depth": 1},
    "middle": {"width": 64, "depth": 4},
    "large": {"width": 128, "depth": 8},
}


def study(scale: Literal["demo"] = "demo") -> Study:
    return Study(
        kind="distribution",
        name="sizes",
        scale=scale,
        question="Do they fit?",
        source="none",
        trials=trials(BASE, ARMS, [{"lr": 1e-3}]),
    )


if __name__ == "__main__":
    main(study)
"""


@pytest.mark.slow
def test_what_does_not_fit_beside_others_is_tried_alone_and_what_does_not_fit_alone_is_named(
    null: dict[str, str], tmp_path: Path
) -> None:
    """On a device of 200 MiB, of which a trial gets half: they take 14, 88 and 328 MiB.

    The errors are torch's own.
    """
    (tmp_path / "sizes.py").write_text(SIZES)
    script = Script(tmp_path, tmp_path / "sizes.py", is_lean=True)
    result = script.run(
        "--gpus-per-trial", "0.5", "--cpus-per-trial", "0.1", **null, NULLCUDA_LIMIT_MB="200"
    )
    assert result.returncode == 1, result.stdout
    assert "2 finished, 0 diverged, 0 failed, 1 missing of 3" in result.stdout
    assert (
        result.stdout.count(
            "(tried again with a device to itself): OutOfMemoryError: CUDA out of memory"
        )
        == 2
    )
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("missing  large ")]
    assert (
        "a model must fit on a device that it has to itself, but got (device_memory=0.2 GiB, "
        "batch_size=256"
    ) in line
    result = script.run(
        "--gpus-per-trial",
        "1",
        "--cpus-per-trial",
        "0.1",
        "--micro-batch",
        "64",
        **null,
        NULLCUDA_LIMIT_MB="200",
    )
    assert result.returncode == 0, result.stdout  # as the line advises


@pytest.mark.slow
@pytest.mark.parametrize("captures", [{}, {"TEAM_CAPTURES": "1"}], ids=["eager", "captured"])
def test_a_team_trains_on_two_gpus(
    captures: dict[str, str], null: dict[str, str], tmp_path: Path
) -> None:
    """With gradients averaged by gloo: the null NCCL brings nothing from one process to another."""
    environment = {**os.environ, **null, "NULLCUDA_DEVICES": "2", "TEAM_DEVICE": "cuda", **captures}
    config = TrainConfig(
        width=16,
        depth=2,
        heads=2,
        batch_size=64,
        epochs=2,
        warmup_epochs=1.0,
        drop_path=0.2,
        precision="bf16",
        ema_decay=0.9,
        mixup_alpha=0.8,
    )
    both = on_team(2, config, tmp_path, environment=environment)
    assert [[row["epoch"] for row in rows] for rows in both] == [[1, 2], [1, 2]]
