"""A training that is interrupted, killed or finds its
checkpoints damaged yields the rows of one that was not.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import itertools
import math
import os
import pickle
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SPAWNER
from support.trainings import CONV, assert_same, every_step, final_tensors, timeless

from vitscale.plan.config import TrainConfig
from vitscale.record.outcome import Outcome, Row
from vitscale.record.store import Store
from vitscale.record.workdir import Fenced, Left, Workdir
from vitscale.train import checkpoint, loop
from vitscale.train.loop import train
from vitscale.train.step import TrainingStep

torch.set_num_threads(1)

CONFIGS = {
    "adamw": CONV,  # 3 steps per epoch, 6 in all
    "adamw-4": CONV.replace(batch_size=498),  # 2 and 4: fewer files to be killed at
    "sgd": CONV.replace(optimizer="sgd", nesterov=True, lr=0.1, wd=1e-4, batch_size=498),
    "bf16": CONV.replace(precision="bf16"),
    "fp16": CONV.replace(precision="fp16"),
    "diverged": CONV.replace(
        optimizer="sgd", lr=1e20, clip_norm=0.0, mixup_alpha=0.0, cutmix_alpha=0.0
    ),
}


@pytest.fixture(autouse=True, scope="module")
def checkpoints_may_take_all_the_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "OFTEN_SHARE", math.inf)
        yield


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[list[Row], dict[str, torch.Tensor]]]:
    """Rows and final state of trainings that nothing
    disturbed, with no checkpoint before the last.
    """
    outcomes = {}
    for name, config in CONFIGS.items():
        path = tmp_path_factory.mktemp(name)
        outcomes[name] = timeless(list(train(config, path))), final_tensors(path)
        assert len(list(path.glob("checkpoint-*"))) == 1
    return outcomes


def test_the_cases_are_what_they_claim(whole: dict[str, Any]) -> None:
    assert [len(rows) for rows, _ in whole.values()] == [2, 2, 2, 2, 2, 1]
    assert whole["diverged"][0][0]["diverged"] == 1
    assert not any(
        row["diverged"] for name in whole if name != "diverged" for row in whole[name][0]
    )
    assert any("running_mean" in name for name in whole["adamw"][1])


@pytest.mark.parametrize("name", CONFIGS)
def test_frequent_checkpoints_change_nothing(
    name: str, whole: dict[str, Any], tmp_path: Path
) -> None:
    rows = list(every_step(CONFIGS[name], tmp_path))
    assert_same(tmp_path, rows, whole[name])
    assert len(list(tmp_path.iterdir())) == 2  # the newest two checkpoints, and nothing else


@pytest.mark.parametrize("name", CONFIGS)
def test_a_finished_training_only_replays(name: str, whole: dict[str, Any], tmp_path: Path) -> None:
    rows = list(every_step(CONFIGS[name], tmp_path))
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert list(every_step(CONFIGS[name], tmp_path)) == rows  # with their times
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("name", ["adamw", "sgd", "bf16", "fp16"])
def test_closing_after_each_epoch_changes_nothing(
    name: str, whole: dict[str, Any], tmp_path: Path
) -> None:
    config = CONFIGS[name]
    seen: list[Row] = []
    for epoch in range(1, config.epochs + 1):
        training = every_step(config, tmp_path)
        rows = [next(training) for _ in range(epoch)]
        training.close()
        assert timeless(rows) == whole[name][0][:epoch]
        seen = rows
    assert_same(tmp_path, seen, whole[name])


def test_a_resumed_training_goes_on_from_its_checkpoint(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    """Not from the start: the steps before the checkpoint leave no
    file again, and rows come back with their times.
    """
    config = CONV.replace(epochs=3)
    training = every_step(config, tmp_path)
    first = next(training)
    next(training)  # two epochs; the checkpoint is at step 5 of 9, with the row of the first
    training.close()
    (newest,) = [
        path for path in tmp_path.iterdir() if path.name.startswith("checkpoint-000000005-")
    ]
    resumed = every_step(config, tmp_path)
    assert next(resumed) == first
    next(resumed)
    resumed.close()
    assert newest.exists() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("changes", [{}, {"precise_bn": 300}, {"eval_every": 2}])
def test_a_training_may_be_told_to_end_anywhere(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each step and in the middle of each evaluation: no step is taken twice, and an
    evaluation begins again.
    """
    monkeypatch.setattr(loop, "EVAL_BATCH", 200)  # two batches
    config = CONV.replace(batch_size=498, **changes)
    places: list[int] = []  # the steps done, each time that it is asked
    steps: list[int] = []

    def take(self: TrainingStep, step: int, *rest: Any) -> torch.Tensor:
        steps.append(step)
        return original(self, step, *rest)

    def is_leaving() -> bool:
        places.append(len(steps))
        return len(places) == when

    original, when = TrainingStep.take, 0
    monkeypatch.setattr(TrainingStep, "take", take)
    whole = timeless(list(train(config, tmp_path, is_leaving=is_leaving)))
    expected = whole, final_tensors(tmp_path)
    asked, num = places.copy(), config.num_steps
    evaluations = num // config.steps_per_epoch // config.eval_every
    # for each of the weights, one to estimate on, and before it is found that there is no other
    batches = 2 + (2 * 2 if config.precise_bn else 0)
    assert len(asked) == num + evaluations * batches and asked[-1] == num
    for when in range(1, len(asked) + 1):
        places.clear()
        steps.clear()
        path = tmp_path / f"{when}"
        path.mkdir()
        with pytest.raises(Left):
            list(train(config, path, checkpoint_every_s=1e9, is_leaving=is_leaving))
        left = asked[when - 1]
        saved = [int(name.name.split("-")[1]) for name in path.glob("checkpoint-*")]
        assert saved == ([left] if left else [])
        rows = list(train(config, path, checkpoint_every_s=1e9))
        assert steps == list(range(num))
        assert_same(path, rows, expected)


# --- kills ----------------------------------------------------------------------------------------


class Countdown:
    """Kills its process at the k-th file operation, before
    it is done; a write is cut in the middle.
    """

    def __init__(self, k: int) -> None:
        self.left = k

    def tick(self) -> bool:
        self.left -= 1
        return self.left == 0

    def before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.tick():
                die()
            return operation(*args, **kwargs)

        return counted

    def open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode != "wb":
            return OPEN(path, mode, *args, **kwargs)
        if self.tick():
            die()
        return CutFile(self, path)


class CutFile(io.BufferedWriter):
    """A file of which a killed process has written the first half."""

    def __init__(self, countdown: Countdown, path: Any) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.countdown = countdown

    def write(self, content: Any) -> int:
        if self.countdown.tick():
            super().write(content[: len(content) // 2])
            self.flush()
            die()
        return super().write(content)


OPEN = builtins.open


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(config: TrainConfig, path: Path, k: int) -> None:
    """In a process of its own: trains until the k-th file operation."""
    torch.set_num_threads(1)
    loop.OFTEN_SHARE = math.inf
    countdown = Countdown(k)
    for name in ("replace", "fsync", "link", "scandir"):
        setattr(os, name, countdown.before(getattr(os, name)))
    Path.unlink = countdown.before(Path.unlink)  # type: ignore[method-assign]
    builtins.open = io.open = countdown.open  # type: ignore[assignment]  # pathlib takes the second
    for _ in every_step(config, path):
        pass
    os._exit(0)


def is_killed(config: TrainConfig, path: Path, k: int) -> bool:
    child = SPAWNER.Process(target=train_and_die, args=(config, path, k))
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL), (
        f"the child must be killed or finish, but got ({child.exitcode=})"
    )
    return child.exitcode != 0


# a kill leaves whole checkpoints or none
@pytest.mark.filterwarnings("error:checkpoint is damaged")
@pytest.mark.parametrize("name", ["adamw-4", "sgd"])
def test_a_kill_between_any_two_file_operations_changes_nothing(
    name: str, whole: dict[str, Any], tmp_path: Path
) -> None:
    """A fresh training is killed at its k-th operation and
    started again, for every k that there is.
    """
    config, resumed_from = CONFIGS[name], set()
    for k in itertools.count(1):
        path = tmp_path / f"{k}"
        path.mkdir()
        if not is_killed(config, path, k):
            break
        checkpoints = sorted(path.glob("checkpoint-*"))
        resumed_from.add(int(checkpoints[-1].name.split("-")[1]) if checkpoints else 0)
        rows = list(every_step(config, path))
        assert_same(path, rows, whole[name])
    # a checkpoint is at least: open, write, fsync, replace, unlink, fsync of the directory, scandir
    assert k > 7 * config.num_steps and resumed_from == set(range(config.num_steps + 1))


def test_a_chain_of_kills_changes_nothing(whole: dict[str, Any], tmp_path: Path) -> None:
    """One training that is killed again and again, each time a few operations after its start."""
    kills = 0
    while is_killed(CONV, tmp_path, k=11):
        kills += 1
        assert kills < 40
    assert kills >= 3
    assert_same(tmp_path, list(every_step(CONV, tmp_path)), whole["adamw"])


# --- damage ---------------------------------------------------------------------------------------


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_byte(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def empty(content: bytes) -> bytes:
    return b""


def interrupted(path: Path) -> list[Path]:
    """A training of CONV closed after its first epoch, and
    again after a step more; its two checkpoints.
    """
    training = every_step(CONV, path)
    next(training)
    training.close()
    checkpoints = sorted(path.glob("checkpoint-*"))
    assert [int(checkpoint.name.split("-")[1]) for checkpoint in checkpoints] == [1, 2]
    return checkpoints


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, empty])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(
    damage: Callable[[bytes], bytes], whole: dict[str, Any], tmp_path: Path
) -> None:
    before, newest = interrupted(tmp_path)
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match=re.escape(str(newest))) as warned:
        rows = list(every_step(CONV, tmp_path))
    assert not any(str(before) in str(warning.message) for warning in warned)
    assert_same(tmp_path, rows, whole["adamw"])


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, empty])
def test_with_all_checkpoints_damaged_a_training_starts_over(
    damage: Callable[[bytes], bytes], whole: dict[str, Any], tmp_path: Path
) -> None:
    checkpoints = interrupted(tmp_path)
    for path in checkpoints:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="checkpoint is damaged") as warned:
        rows = list(every_step(CONV, tmp_path))
    said = "".join(str(warning.message) for warning in warned)
    assert all(str(path) in said for path in checkpoints)
    assert_same(tmp_path, rows, whole["adamw"])


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def of_another_trial(tmp_path: Path) -> bytes:
    training = every_step(CONV.replace(seed=CONV.seed + 1), tmp_path / "other")
    next(training)
    return max((tmp_path / "other").glob("checkpoint-*")).read_bytes()


def saved(state: object, tmp_path: Path) -> bytes:
    torch.save(state, tmp_path / "made")
    return (tmp_path / "made").read_bytes()


UNUSABLE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "code": (
        lambda path: pickle.dumps({"step": Payload(path / "proof")}),
        "refused by torch (UnpicklingError)",
    ),
    "code in a file of torch": (
        lambda path: saved({"step": Payload(path / "proof")}, path),
        "refused by torch",
    ),
    "half a zip": (lambda path: saved({"step": 1}, path)[:300], "refused by torch"),
    "no state": (lambda path: saved([1], path), "no state of a training"),
    "another trial's": (of_another_trial, "of another trial"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_checkpoint_that_cannot_be_used_is_said_once_and_the_one_before_it_serves(
    name: str, whole: dict[str, Any], tmp_path: Path
) -> None:
    """With a right digest, as somebody writes it who knows how."""
    path = tmp_path / "t"
    _, newest = interrupted(path)
    content, reason = UNUSABLE[name][0](tmp_path), UNUSABLE[name][1]
    newest.unlink()
    newest = path / f"checkpoint-{2:09d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    newest.write_bytes(content)
    training = every_step(CONV, path)
    with pytest.warns(UserWarning, match=re.escape(f"checkpoint is {reason}")) as warned:
        next(training)
    training.close()
    assert len([w for w in warned if str(newest) in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(path, list(every_step(CONV, path)), whole["adamw"])
    assert not (tmp_path / "proof").exists()


def test_a_checkpoint_of_a_version_that_named_no_trial_is_gone_on_from(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "t"
    _, newest = interrupted(path)
    state = torch.load(newest, weights_only=True)
    assert state.pop("trial") == CONV.id
    newest.unlink()
    checkpoint.save(Workdir(path), 2, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(path, list(every_step(CONV, path)), whole["adamw"])


# --- fences ---------------------------------------------------------------------------------------


def test_a_worker_whose_trial_was_claimed_again_commits_nothing_more(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    store = Store.open(tmp_path)
    first = every_step(CONV, store.claim("t", {}, "study", 1))
    next(first)
    second_workdir = store.claim("t", {}, "study", 2)
    second = list(every_step(CONV, second_workdir))
    files = {path.name: path.read_bytes() for path in second_workdir.path.iterdir()}
    with pytest.raises(Fenced):
        list(first)
    assert {path.name: path.read_bytes() for path in second_workdir.path.iterdir()} == files
    assert_same(second_workdir.path, second, whole["adamw"])


def test_a_worker_is_fenced_when_the_trial_is_done(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first = every_step(CONV, store.claim("t", {}, "study", 1))
    next(first)
    second_workdir = store.claim("t", {}, "study", 2)
    assert store.finish(second_workdir, Outcome.from_rows(every_step(CONV, second_workdir), {}))
    with pytest.raises(Fenced):
        list(first)
    assert [row["epoch"] for row in store.read("t").rows] == [1, 2]


def test_create_is_exclusive(tmp_path: Path) -> None:
    """Of many threads that create one file at one time, one
    succeeds, and the content is that one's.
    """
    outcomes: dict[int, bool] = {}
    start = threading.Barrier(16)

    def contend(index: int) -> None:
        start.wait()
        outcomes[index] = Workdir(tmp_path).create("rows", f"{index}".encode())

    threads = [threading.Thread(target=contend, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [index for index, first in outcomes.items() if first]
    assert (tmp_path / "rows").read_text() == f"{winner}" and len(outcomes) == 16
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_repeated_damage_does_not_stop_progress(tmp_path: Path) -> None:
    """Damaged files with high steps must not pass for the
    newest two for ever: what is saved next counts.
    """
    import torch

    workdir = Workdir(tmp_path)
    for step in (490, 500):
        (tmp_path / f"checkpoint-{step:09d}-0123456789abcdef.pt").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="checkpoint is damaged"):
        assert checkpoint.load(workdir, torch.device("cpu")) is None
    checkpoint.save(workdir, 100, {"step": 100})
    assert checkpoint.load(workdir, torch.device("cpu")) == {"step": 100}
    assert len(workdir.names("damaged-")) == 2  # kept, for whoever wants to know
