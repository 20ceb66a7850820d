"""One pass over the images evaluates raw and averaged weights, by loader processes that stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from conftest import wait_for

from vitscale.doctor.training import write_images
from vitscale.plan.config import TrainConfig
from vitscale.plan.metrics import column
from vitscale.train.data import HeldOut, readers_of
from vitscale.train.ema import Ema
from vitscale.train.evaluate import evaluate, evaluate_all
from vitscale.train.loop import TIMING, train
from vitscale.train.model import build_model
from vitscale.train.parallel import Team
from vitscale.train.sources import Images, load_split

CPU = torch.device("cpu")


@pytest.fixture
def noise(tmp_path: Path) -> tuple[TrainConfig, Images]:
    """64 training images in class folders, decoded one by one, and a config that averages."""
    config = write_images(tmp_path).replace(ema_decay=0.9)
    return config, load_split(config, "train", tmp_path)


def test_each_image_is_decoded_once_and_both_weights_have_their_own_values(
    noise: tuple[TrainConfig, Images],
) -> None:
    config, images = noise
    decoded: list[int] = []
    decode = images.decode
    assert decode is not None

    def counted(index: int) -> torch.Tensor:
        decoded.append(index)
        return decode(index)

    torch.manual_seed(0)
    model = build_model(config)
    ema = Ema(model, config)
    torch.nn.init.normal_(model.head.weight)
    held_out = HeldOut(replace(images, decode=counted), config, CPU, Team(), 24)
    wrong: dict = {}
    row = evaluate_all(model, ema, {"val": held_out}, None, config, Team(), wrong=wrong)
    assert decoded == list(range(64))
    assert list(wrong) == ["val_wrong", "val_ema_wrong"]
    for weights, module in (("", model), ("ema_", ema.module)):
        alone = evaluate(module, held_out, config, Team())
        assert alone == {name: row[column("val", weights, name)] for name in alone}
    assert row["val_loss"] != row["val_ema_loss"]


def test_auto_reads_with_the_other_threads_what_is_on_disk_and_alone_what_is_in_memory(
    noise: tuple[TrainConfig, Images], tmp_path: Path
) -> None:
    """And rows do not depend on it."""
    config, images = noise
    digits = load_split(TrainConfig(), "train", None)
    threads = torch.get_num_threads()
    try:
        found = []
        for num in (1, 3):
            torch.set_num_threads(num)
            found.append([readers_of(asked, i) for asked in (5, "auto") for i in (images, digits)])
        assert found == [[5, 5, 1, 0], [5, 5, 2, 0]]
        torch.set_num_threads(1)
        rows = [
            [{k: v for k, v in row.items() if k not in TIMING} for row in training]
            for training in (
                train(config, tmp_path / str(num), data_root=tmp_path, num_loader_workers=num)
                for num in (0, "auto")
            )
        ]
        assert len(rows[0]) == 1 and rows[0] == rows[1]
    finally:
        torch.set_num_threads(threads)


def test_loader_processes_stay_between_evaluations_and_end_with_the_set(
    noise: tuple[TrainConfig, Images],
) -> None:
    config, images = noise
    held_out = HeldOut(images, config, CPU, Team(), 24)
    before = set(psutil.Process().children())
    passes, workers = [], []
    for _ in range(2):
        passes.append([batch for batch, _, _ in held_out.iterate(2)])
        workers.append(set(psutil.Process().children()) - before)
    assert len(workers[0]) == 2 and workers[0] == workers[1]
    alone = [batch for batch, _, _ in held_out.iterate(0)]
    assert all(torch.equal(a, b) for found in passes for a, b in zip(alone, found, strict=True))
    del held_out
    wait_for(lambda: not (workers[0] & set(psutil.Process().children())), 10, "their end")
