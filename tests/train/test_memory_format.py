"""Memory formats: which a model gets where, and trainings that go on in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NARROW

from vitscale.plan.config import TrainConfig
from vitscale.record.workdir import CHECKPOINT, CheckpointName, Workdir
from vitscale.train import checkpoint
from vitscale.train.loop import TIMING, train
from vitscale.train.model import build_model, memory_format, place

torch.set_num_threads(1)
CONV = NARROW.replace(
    batch_size=332,
    ema_decay=0.7,
)
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def test_convolutions_are_channels_last_where_tensor_cores_compute_them() -> None:
    for config, there in {
        CONV: False,
        CONV.replace(precision="bf16"): True,
        CONV.replace(precision="fp16"): True,
        TrainConfig(precision="bf16"): False,  # cuts patches
        TrainConfig(model="timm:resnet18"): True,
    }.items():
        assert (memory_format(config, GPU) == torch.channels_last) is there
        assert memory_format(config, CPU) == torch.preserve_format


def test_a_model_on_a_cpu_is_as_it_was_built() -> None:
    """But for convolutional networks, whose weights were channels last before their images were."""
    vit = build_model(CONV.replace(precision="bf16"))
    strides = [weight.stride() for weight in vit.parameters()]
    assert [w.stride() for w in place(vit, CONV.replace(precision="bf16"), CPU).parameters()] == (
        strides
    )
    resnet = TrainConfig(model="timm:resnet18")
    weights = [w for w in place(build_model(resnet), resnet, CPU).parameters() if w.dim() == 4]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def channels_last(value: Any) -> Any:
    """The same state with all images and weights of convolutions channels last."""
    if isinstance(value, dict):
        return {name: channels_last(part) for name, part in value.items()}
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_image else value


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb"])
def test_a_checkpoint_of_another_format_is_gone_on_from_bit_for_bit(
    optimizer: str, tmp_path: Path
) -> None:
    """As a GPU writes it that a CPU resumes, and the other way round. torch's fused optimizers take
    moments for laid out as their weights, on a CPU without a word.
    """
    config = CONV.replace(optimizer=optimizer)

    def rows(folder: str, **options: Any) -> list[dict[str, float]]:
        found = train(config, tmp_path / folder, **options)
        return [{k: row[k] for k in row if k not in TIMING} for row in found]

    whole = rows("whole")
    first = train(config, tmp_path / "cut", checkpoint_every_s=0.0)
    next(first)
    first.close()
    workdir = Workdir(tmp_path / "cut")
    newest = CheckpointName.parse(workdir.names(CHECKPOINT)[-1])
    state = checkpoint.load(workdir, CPU)
    assert newest is not None and state is not None and 0 < state["step"] < config.num_steps
    workdir.remove(str(newest))
    checkpoint.save(workdir, newest.step, channels_last(state))
    assert rows("cut") == whole
