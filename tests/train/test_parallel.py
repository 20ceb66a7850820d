"""However a batch is cut, over micro-batches or processes, it is the same training."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusals import refusing
from support.teams import assert_close, on_team, timeless

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Row
from vitscale.record.workdir import Workdir
from vitscale.train import checkpoint, parallel
from vitscale.train.loop import train
from vitscale.train.parallel import Parting, Team, cut, num_parts

torch.set_num_threads(1)

# All randomness on. 50 samples per batch cannot be cut evenly into 3; val has 400 images, which 3
# do not divide either.
BUSY = TrainConfig(
    width=16,
    depth=2,
    heads=2,
    branches=2,
    patch_size=4,
    layerscale=0.1,
    batch_size=50,
    epochs=2,
    warmup_epochs=1.0,
    lr=3e-3,
    crop_padding=1,
    flip_prob=0.5,
    erasing_prob=0.5,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    label_smoothing=0.1,
    dropout=0.1,
    drop_path=0.2,
    ema_decay=0.9,
    clip_norm=1.0,
    repeats=2,
    subset_images=300,
)
NORMED = BUSY.replace(
    branches=1,
    dropout=0.0,
    stem="conv",
    stem_channels="4-8",
    stem_strides="2-2",
    optimizer="sgd",
    lr=0.05,
)
NO_MIX = BUSY.replace(batch_size=51, repeats=1, mixup_alpha=0.0, cutmix_alpha=0.0, loss="bce")
CASES = {"busy": BUSY, "normed": NORMED.replace(precise_bn=120), "odd": NO_MIX}


def test_a_team_is_asked_about_every_half_second_from_its_first_steps_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its setup took, and however its steps become slower or faster."""
    now, asked = [0.0], []
    monkeypatch.setattr(parallel.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Team, "largest", lambda self, values, device: values)

    def is_leaving() -> bool:
        asked.append(now[0])
        return False

    parting = Parting(is_leaving, Team(0, 2), torch.device("cpu"))
    now[0] += 0.001
    for step_s in (60.0, *[0.1] * 100, *[0.01] * 2000, *[0.04] * 1000):
        parting()
        now[0] += step_s
    gaps = np.diff(asked)
    assert asked[0] == 0.001 and gaps.max() <= 60.1 and np.sort(gaps)[-2] <= 4 * 0.5
    assert 0.4 < np.median(gaps) <= 0.501


@pytest.mark.slow
@pytest.mark.parametrize("told", [0, 1])
def test_a_team_leaves_together_when_one_of_it_is_told_to_end(tmp_path: Path, told: int) -> None:
    """At one step, saved by the process of rank 0; its rows are those of a team left alone."""
    config = BUSY.replace(epochs=20)
    first, second = on_team(2, config, tmp_path / "left", told={"TOLD_TO_END": str(told)})
    assert timeless(first) == timeless(second) and 1 <= len(first) < 20
    state = checkpoint.load(Workdir(tmp_path / "left"), torch.device("cpu"))
    assert state is not None and state["rows"] == first
    assert first[-1]["step"] <= state["step"] < config.num_steps
    rows = on_team(2, config, tmp_path / "left")[told]
    assert timeless(rows) == timeless(on_team(2, config, tmp_path / "whole")[0])


@pytest.mark.parametrize("told", [0, 2])
def test_a_team_leaves_together_in_the_middle_of_an_evaluation(tmp_path: Path, told: int) -> None:
    """Of 400 images, rank 0 has 134 in two batches, and the others have 133 in one."""
    config = BUSY.replace(epochs=4, batch_size=48)
    batches = {"EVAL_BATCH": "133"}
    rows = on_team(3, config, tmp_path / "left", told={**batches, "TOLD_TO_END": str(told)})
    state = checkpoint.load(Workdir(tmp_path / "left"), torch.device("cpu"))
    assert state is not None and state["rows"] == rows[0] and len(rows[0]) == 1
    assert state["step"] == 2 * config.steps_per_epoch
    again = on_team(3, config, tmp_path / "left", told=batches)
    whole = on_team(3, config, tmp_path / "whole", told=batches)
    assert [timeless(rows) for rows in again] == [timeless(rows) for rows in whole]
    assert len(whole[0]) == 4


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return {
        name: list(train(config, tmp_path_factory.mktemp(name))) for name, config in CASES.items()
    }


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("busy", 3),
        ("normed", 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("busy", 2), ("normed", 3), ("odd", 3))
        ),
    ],
)
def test_a_team_trains_as_one_process_does(
    name: str, size: int, alone: dict[str, list[Row]], tmp_path: Path
) -> None:
    """With BatchNorm, too: its statistics are those of all processes.

    Every member has the same rows, bit for bit.
    """
    rows, *others = on_team(size, CASES[name], tmp_path)
    assert_close(rows, alone[name])
    assert all(timeless(other) == timeless(rows) for other in others)


def test_a_team_diverges_at_the_step_of_one_process(tmp_path: Path) -> None:
    wild = BUSY.replace(optimizer="sgd", momentum=0.99, lr=1e6, clip_norm=0.0, epochs=3)
    for name in ("alone", "team"):
        (tmp_path / name).mkdir()
    *_, expected = train(wild, tmp_path / "alone")
    (rows, others) = on_team(2, wild, tmp_path / "team")
    assert expected["diverged"] and timeless(rows) == timeless(others)
    assert rows[-1]["diverged_step"] == expected["diverged_step"]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_another_number_of_workers_resumes(
    before: int, after: int, alone: dict[str, list[Row]], tmp_path: Path
) -> None:
    (row,) = on_team(before, BUSY, tmp_path, epochs=1)[0]
    # of 12 steps
    assert max(path.name for path in tmp_path.glob("checkpoint-*")) >= "checkpoint-000000005"
    rows = on_team(after, BUSY, tmp_path)[0]
    assert_close(rows, alone["busy"])
    assert rows[1]["train_s"] > row["train_s"]  # what was spent before counts on


@pytest.mark.parametrize("micro_batch", [1, 7, 25, 49])
@pytest.mark.parametrize("name", ["busy", "odd"])
def test_micro_batches_add_up_to_the_batch(
    name: str, micro_batch: int, alone: dict[str, list[Row]], tmp_path: Path
) -> None:
    if micro_batch == 1:
        with refusing("micro_batch=1", f"batch_size={CASES[name].batch_size}"):
            next(train(CASES[name], tmp_path, micro_batch=1))
        return
    assert_close(list(train(CASES[name], tmp_path, micro_batch=micro_batch)), alone[name])


@pytest.mark.slow
def test_a_compiled_model_is_the_same_training(alone: dict[str, list[Row]], tmp_path: Path) -> None:
    """With dropout, drop path and parallel branches, in one go or one after another."""
    (tmp_path / "both").mkdir()
    assert_close(list(train(BUSY, tmp_path, compiled=True)), alone["busy"])
    assert_close(
        list(train(BUSY, tmp_path / "both", compiled=True, parallel_branches=True)), alone["busy"]
    )


def test_batchnorm_notices_a_cut_unless_it_is_part_of_the_config(tmp_path: Path) -> None:
    """Its statistics are over the images that pass through
    together: norm_batch, and then it is another training.
    """
    for name in "abcdfg":
        (tmp_path / name).mkdir()
    with pytest.raises(
        ValueError,
        match=r"micro_batch >= 50 must hold with BatchNorm, or norm_batch > 0 .* \(micro_batch=25",
    ):
        next(train(NORMED, tmp_path / "a", micro_batch=25))
    ghost = NORMED.replace(batch_size=48, norm_batch=8, crop_padding=0)
    whole = list(train(ghost, tmp_path / "b"))
    same = list(train(ghost, tmp_path / "c", micro_batch=8))
    assert [row["train_loss"] for row in same] == [row["train_loss"] for row in whole]
    assert_close(same, whole)  # an evaluation is cut, too
    assert (
        whole[0]["train_loss"]
        != next(train(ghost.replace(norm_batch=0), tmp_path / "d"))["train_loss"]
    )
    assert_close(
        on_team(2, ghost.replace(precise_bn=300), tmp_path / "e")[0],
        list(train(ghost.replace(precise_bn=300), tmp_path / "f")),
    )
    with pytest.raises(ValueError, match="norm_batch <= micro_batch"):
        next(train(ghost, tmp_path / "g", micro_batch=4))


@pytest.mark.parametrize("batch_size", [2, 3, 10, 51, 64, 4096])
def test_parts_are_a_partition_closed_under_mirroring(batch_size: int) -> None:
    for num in range(1, min(batch_size // 2, 9) + 1):
        parts = cut(batch_size, num)
        assert sorted(itertools.chain(*(part.tolist() for part in parts))) == list(
            range(batch_size)
        )
        for part in parts:
            assert (np.diff(part) > 0).all()
            assert (part == batch_size - 1 - part[::-1]).all()
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= (0 if batch_size % (2 * num) == 0 else 3)


def test_the_number_of_parts() -> None:
    """Of batch 2048: closed form."""
    whole = TrainConfig(dataset="cifar10", channels=3, batch_size=2048)
    teams = [(Team(0, size), micro) for size in (1, 2, 8) for micro in (0, 256, 300)]
    assert [num_parts(whole, micro, team, False) for team, micro in teams] == [
        1,
        8,
        7,
        2,
        8,
        8,
        8,
        8,
        8,
    ]
    ghost = whole.replace(norm_batch=32, precise_bn=512)
    assert num_parts(ghost, 0, Team(0, 8), True) == 64
    assert num_parts(ghost, 0, Team(0, 8), False) == 8  # without BatchNorm, norm_batch says nothing
    with refusing("precise_bn=0", "norm_batch=32", "workers=8"):
        num_parts(ghost.replace(precise_bn=0), 0, Team(0, 8), True)
