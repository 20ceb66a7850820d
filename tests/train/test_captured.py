"""Captured steps against steps kernel by kernel. On a CPU, a graph is emulated: it computes the
passes again, on the tensors that the captured ones have read. tests/train/test_nullcuda.py holds
what is captured, tests/train/test_gpu.py the numbers of a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.parents import AT_END
from vitscale.train import captured, loop
from vitscale.train.captured import Graph, is_captured
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.step import TrainingStep

CONFIG = TrainConfig(
    width=16,
    depth=2,
    heads=2,
    batch_size=50,
    subset_images=100,
    epochs=4,
    eval_every=2,
    warmup_epochs=1.0,
    ema_decay=0.9,
    drop_path=0.3,
    dropout=0.1,
    mixup_alpha=0.8,
    crop_padding=1,
    clip_norm=1.0,
)
# batches of 50 in parts of 18, 16 and 16
OPTIONS = {"capture": True, "micro_batch": 18, "checkpoint_every_s": 1e9}


class Emulated:
    """What torch.cuda.CUDAGraph would do: the same passes on the tensors read at the capture."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self.function, self.inputs = function, inputs
        step = getattr(function, "__self__", None)
        self.step = step if isinstance(step, TrainingStep) else None
        if self.step is not None:  # of passes
            draws, of_model = self.step.draws, self.step.model.parameters()
            self.masks = draws.sent, draws.masks, draws.masks_bf16
            self.is_first = all(parameter.grad is None for parameter in of_model)
        self.gradients: list[Tensor] = []  # in the memory of the graph
        self.output = torch.zeros(())

    def replay(self) -> None:
        if self.step is not None:
            draws = self.step.draws
            draws.sent, draws.masks, draws.masks_bf16 = self.masks
            if self.is_first:  # its kernels write the gradients, those of later parts add to them
                self._write_gradients(self.step)
                return
        self.output.set_(self.function(*self.inputs))  # type: ignore[call-overload]

    def _write_gradients(self, step: TrainingStep) -> None:
        """Where the first replay has put them; weights keep the gradients that they have."""
        weights = list(step.model.parameters())
        theirs = [weight.grad for weight in weights]
        step.optimizer.zero_grad(set_to_none=True)
        self.output.set_(self.function(*self.inputs))  # type: ignore[call-overload]
        if not self.gradients:
            self.gradients = [weight.grad for weight in weights]  # type: ignore[misc]
            return
        for weight, gradient, their in zip(weights, self.gradients, theirs, strict=True):
            gradient.copy_(weight.grad)  # type: ignore[arg-type]
            weight.grad = their


@pytest.fixture
def failing_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Emulates captures on the CPU; those of passes whose numbers are in the list fail."""
    failing: list[int] = []
    numbers = itertools.count()

    def capture(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], pool: None) -> Graph:
        graph = Emulated(function, inputs)
        if graph.step is not None and next(numbers) in failing:
            for parameter in graph.step.model.parameters():  # in memory that no kernel has written
                parameter.grad = torch.full_like(parameter, torch.nan)
            raise RuntimeError("operation not permitted when stream is capturing")
        return Graph(graph, inputs, graph.output)  # type: ignore[arg-type]

    def send_over(self: PackedCopy, sent: PackedCopy) -> None:
        assert self.layout == sent.layout
        for tensor, array in zip(sent.tensors, self.arrays, strict=True):
            tensor.copy_(torch.from_numpy(array))
        self.tensors = sent.tensors

    lr_at = loop.lr_at
    monkeypatch.setattr(captured, "capture", capture)
    monkeypatch.setattr(captured, "DEVICE", "cpu")
    monkeypatch.setattr(captured, "new_pool", lambda: None)
    monkeypatch.setattr(PackedCopy, "send_over", send_over)
    monkeypatch.setattr(loop, "lr_at", lambda *given: float(np.float32(lr_at(*given))))
    return failing


def trained(folder: Path, config: TrainConfig = CONFIG, **options: object) -> tuple[list, str]:
    """The rows, without times, and the status of the capture."""
    folder.mkdir()
    training = loop.train(config, folder, **(OPTIONS | options))  # type: ignore[arg-type]
    rows = []
    while True:
        try:
            row = next(training)
        except StopIteration as end:
            return rows, end.value.captured
        rows.append({name: value for name, value in row.items() if name not in loop.TIMING})


def test_parts_of_several_sizes_have_the_rows_of_eager_steps(
    failing_at: list[int], tmp_path: Path
) -> None:
    eager, status = trained(tmp_path / "eager", capture=False)
    assert status == "" and len(eager) == 2
    assert trained(tmp_path / "captured") == (eager, "yes")


def test_a_student_with_a_token_is_captured(failing_at: list[int], tmp_path: Path) -> None:
    trained(tmp_path / "teacher", capture=False, pins=(AT_END,))
    config = CONFIG.replace(teacher=CONFIG.id, distill="token", seed=1)
    teacher = {"teacher": (CONFIG, tmp_path / "teacher")}
    eager, _ = trained(tmp_path / "eager", config, capture=False, **teacher)
    assert trained(tmp_path / "captured", config, **teacher) == (eager, "yes")


def test_a_compiled_model_is_captured(
    failing_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Inductor, which takes 20 seconds and needs no graph of ours."""
    monkeypatch.setattr(loop.torch, "compile", partial(torch.compile, backend="aot_eager"))
    eager, _ = trained(tmp_path / "eager", compiled=True, capture=False)
    assert trained(tmp_path / "captured", compiled=True) == (eager, "yes")


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "sgd", "clip_norm": 0.0},
        {"optimizer": "lamb"},
        {"ema_every": 2},
        {"ema_after_warmup": True},
        {"crop": "rrc", "crop_padding": 0, "flip_prob": 0.5, "erasing_prob": 0.5},
    ],
    ids=str,
)
def test_what_stays_outside_of_graphs_is_done_all_the_same(
    fields: dict[str, Any], failing_at: list[int], tmp_path: Path
) -> None:
    config = CONFIG.replace(**fields)
    eager, _ = trained(tmp_path / "eager", config, capture=False)
    assert trained(tmp_path / "captured", config) == (eager, "yes")


class Keeps(torch.optim.SGD):
    """SGD that adds half of the last gradient, which it keeps, and replaces the gradients."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                last = self.state[weight].get("last", torch.zeros_like(weight))
                self.state[weight]["last"] = weight.grad
                weight.grad = weight.grad + 0.5 * last
        super().step()


def test_an_optimizer_may_keep_and_replace_gradients(
    failing_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "build_optimizer", lambda model, _: Keeps(model.parameters(), 0.1))
    config = CONFIG.replace(optimizer="timm:mars", clip_norm=0.0)
    eager, _ = trained(tmp_path / "eager", config, capture=False)
    assert trained(tmp_path / "captured", config) == (eager, "yes")


def test_an_update_that_cannot_be_captured_is_done_all_the_same(
    failing_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, _ = trained(tmp_path / "eager", capture=False)
    emulated = captured.capture

    def capture(function: Callable[..., Tensor], *rest: Any) -> Graph:
        if getattr(function, "__name__", "") == "_updated":
            raise RuntimeError("operation not permitted")
        return emulated(function, *rest)

    monkeypatch.setattr(captured, "capture", capture)
    rows, status = trained(tmp_path / "captured")
    assert (rows, status) == (eager, "no update (RuntimeError: operation not permitted)")


@pytest.mark.parametrize("number", [0, 1])
def test_a_capture_that_fails_trains_the_same_batch_eagerly(
    number: int, failing_at: list[int], tmp_path: Path
) -> None:
    """Also that of the second part, after the first part's graph has run."""
    eager, _ = trained(tmp_path / "eager", capture=False)
    failing_at.append(number)
    rows, status = trained(tmp_path / "captured")
    assert rows == eager
    assert status == "no steps (RuntimeError: operation not permitted when stream is capturing)"


def test_without_memory_for_a_capture_the_trial_ends(
    failing_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Graph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(captured, "capture", full)
    with pytest.raises(torch.OutOfMemoryError):
        trained(tmp_path / "captured")


def test_images_of_another_shape_end_the_capture(
    failing_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an augmentation of a user's own may give them."""
    config = CONFIG.replace(drop_path=0.0, dropout=0.0)

    def train(name: str, **options: object) -> tuple[list, str]:
        iterate = loop.Batches.iterate

        def halved(self: loop.Batches, step: int, *rest: int):  # type: ignore[no-untyped-def]
            for number, (images, targets) in enumerate(iterate(self, step, *rest)):
                num = len(images) // (2 if number == 5 else 1)
                yield images[:num], targets[:num]

        with monkeypatch.context() as patched:
            patched.setattr(loop.Batches, "iterate", halved)
            return trained(tmp_path / name, config, micro_batch=0, **options)

    eager, _ = train("eager", capture=False)
    assert train("captured") == (eager, "no steps (batches differ in shape)")


def test_on_a_cpu_nothing_is_captured(tmp_path: Path) -> None:
    assert (
        trained(tmp_path / "cpu", CONFIG.replace(epochs=1, warmup_epochs=0.0))[1]
        == "no steps (not on a GPU)"
    )


def test_a_capture_must_be_asked_for_until_a_gpu_has_shown_that_it_is_exact() -> None:
    assert not is_captured(CONFIG, "cuda", None) and is_captured(CONFIG, "cuda", True)
    with pytest.raises(ValueError, match=r"gpus_per_trial=0\.0, device='auto'"):
        Resources(capture=True)
    assert Resources(capture=True, gpus_per_trial=0.5).capture
