"""Images per second in training and inference: the project's trainer against a loop made of timm's
own parts.

Both train the same model on the same images at the same batch, precision and augmentation (flip,
mixup or CutMix), with the same optimizer and EMA, in one process, an epoch of the one after an
epoch of the other, so that what disturbs the machine disturbs both. The images lie in memory, ready
to use: reading files is another benchmark (data.py).

    vitscale   train() and evaluate(), as trials run them
    timm       create_loader, Mixup, ClassificationTask, create_optimizer_v2, ModelEmaV3

The first epoch of both is left out. The ratio is that of neighbouring epochs; its median and range
are printed with images per second, the most memory tensors took on a GPU, and there the share of
the rate at which the card multiplies large bf16 matrices, measured in this run (MFU). Where there
is a GPU, a third contestant is compiled.

    python benchmarks/throughput.py  # about 5 minutes on 2 cores, which must be quiet
    python benchmarks/throughput.py --case vit-s --batch-size 256 --precision bf16  # on a GPU
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from search_spaces import demo
from search_spaces.vit import SHAPES
from vitscale.plan.config import TrainConfig
from vitscale.train import loop
from vitscale.train.complexity import measured_complexity
from vitscale.train.data import HeldOut
from vitscale.train.evaluate import evaluate
from vitscale.train.model import build_model
from vitscale.train.parallel import Team
from vitscale.train.sources import Images

COLOR: dict[str, Any] = {"channels": 3, "resolution": 224, "patch_size": 16}
CASES: dict[str, tuple[dict[str, Any], int]] = {  # fields, batch size on a CPU
    "vit-ti": ({**COLOR, **SHAPES["Ti"]}, 16),
    "resnet-50": ({**COLOR, "model": "timm:resnet50", "patch_size": 2}, 8),
    "demo": ({**demo.MODELS["ViT_P"], "channels": 1}, 32),
    "vit-s": ({**COLOR, **SHAPES["S"]}, 8),
    "vit-b": ({**COLOR, **SHAPES["B"]}, 4),
}
ON_CPU = ("vit-ti", "resnet-50", "demo")
CONTESTANTS = {"vitscale": False, "vitscale compiled": True}


def random_images(config: TrainConfig) -> Images:
    generator = torch.Generator().manual_seed(0)
    shape = (config.num_images, config.channels, config.resolution, config.resolution)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return Images(torch.arange(config.num_images) % config.num_classes, pixels)


# The contestants: each yields seconds per epoch


def ours(config: TrainConfig, device: str, workdir: Path, compiled: bool) -> Iterator[float]:
    workdir.mkdir()
    evaluated = 0.0
    training = loop.train(config, workdir, device, compiled=compiled, checkpoint_every_s=1e9)
    while True:
        start = time.perf_counter()  # the clock of the rows goes on while another contestant runs
        row = next(training)
        yield time.perf_counter() - start - (row["eval_s"] - evaluated)
        evaluated = row["eval_s"]


def timms(
    config: TrainConfig, images: Tensor, labels: Tensor, device: torch.device
) -> Iterator[float]:
    from timm.data import Mixup
    from timm.optim import create_optimizer_v2
    from timm.task import ClassificationTask
    from timm.utils import ModelEmaV3

    torch.manual_seed(0)
    model = build_model(config).to(device)
    if config.model != "vit":
        model = model.to(memory_format=torch.channels_last)
    loader = timm_loader(config, images, labels, device, is_training=True)
    mixup = Mixup(
        mixup_alpha=config.mixup_alpha,
        cutmix_alpha=config.cutmix_alpha,
        num_classes=config.num_classes,
    )
    optimizer = create_optimizer_v2(model, opt="adamw", lr=config.lr, weight_decay=config.wd)
    task = ClassificationTask(model, nn.CrossEntropyLoss(), device=device, verbose=False)
    ema = ModelEmaV3(model, decay=config.ema_decay)
    while True:
        start = time.perf_counter()
        for pixels, target in loader:
            pixels, target = mixup(pixels, target)
            if config.model != "vit":
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            with autocast(config, device):
                loss = task(pixels, target)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.update(model)
        loss.item()
        yield time.perf_counter() - start


def timm_loader(
    config: TrainConfig, images: Tensor, labels: Tensor, device: torch.device, is_training: bool
) -> Any:
    """timm's loader over images in memory, with its transforms: flip in training, none else."""
    from timm.data import create_loader

    class InMemory(torch.utils.data.Dataset[Any]):
        transform: Any = None  # create_loader sets it

        def __init__(self) -> None:
            self.images = [
                Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()) for image in images
            ]

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> Any:
            return self.transform(self.images[index]), int(labels[index])

    side = config.resolution
    dataset: Any = InMemory()
    return create_loader(
        dataset,
        (config.channels, side, side),
        config.batch_size,
        is_training=is_training,
        no_aug=not is_training,
        train_crop_mode="rkrc" if is_training else None,
        hflip=config.flip_prob,
        color_jitter=0.0,
        num_workers=8 if device.type == "cuda" else 0,
        pin_memory=device.type == "cuda",
        crop_pct=1.0,
        mean=(0.5,) * config.channels,
        std=(0.5,) * config.channels,
        device=device,
        persistent_workers=device.type == "cuda",
        img_dtype=torch.float32,
    )


def autocast(config: TrainConfig, device: torch.device) -> Any:
    return (
        torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()
    )


# Inference: each returns seconds for all images


def our_inference(model: nn.Module, data: HeldOut, config: TrainConfig) -> float:
    start = time.perf_counter()
    evaluate(model, data, config, Team())
    return time.perf_counter() - start


@torch.no_grad()
def timm_inference(
    model: nn.Module, loader: Any, config: TrainConfig, device: torch.device
) -> float:
    start = time.perf_counter()
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for pixels, target in loader:
        with autocast(config, device):
            logits = model(pixels)
        right += (logits.argmax(1) == target).sum()
    right.item()
    return time.perf_counter() - start


def compare(name: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The rows of the table for one case."""
    device = torch.device(options.device)
    fields, batch_size = CASES[name]
    num = options.steps * (options.batch_size or batch_size)
    config = TrainConfig(
        **fields,
        dataset="bench",
        num_images=num,
        num_classes=10,
        batch_size=options.batch_size or batch_size,
        epochs=options.repeats + 1,
        warmup_epochs=1.0,
        flip_prob=0.5,
        mixup_alpha=0.8,
        cutmix_alpha=1.0,
        ema_decay=0.99,
        precision=options.precision,
    )
    images = random_images(config)
    assert images.pixels is not None
    loop.load_split = lambda *_: images
    macs = measured_complexity(config).flops
    training: dict[str, Iterator[float]] = {
        label: ours(config, options.device, folder / label.replace(" ", "-"), compiled)
        for label, compiled in CONTESTANTS.items()
        if device.type == "cuda" or not compiled
    }
    training["timm"] = timms(config, images.pixels[:], images.labels, device)
    rows = race(training, num, options.repeats, device)
    model = build_model(config).to(device)
    held_out = HeldOut(images, config, device, Team(), config.batch_size)
    loader = timm_loader(config, images.pixels[:], images.labels, device, is_training=False)
    inference: dict[str, Iterator[float]] = {
        "vitscale": iter(partial(our_inference, model, held_out, config), None),
        "timm": iter(partial(timm_inference, model, loader, config, device), None),
    }
    rows = [
        {"phase": "training", **row, "tera_flops": 6e-12 * macs * row["images_per_s"]}
        for row in rows
    ]
    rows += [
        {"phase": "inference", **row, "tera_flops": 2e-12 * macs * row["images_per_s"]}
        for row in race(inference, num, options.repeats, device)
    ]
    return [
        {"case": name, "batch": config.batch_size, "precision": config.precision, **row}
        for row in rows
    ]


def race(
    contestants: dict[str, Iterator[float]], num: int, repeats: int, device: torch.device
) -> list[dict[str, Any]]:
    """Images per second of each, an epoch of the one after an
    epoch of the other; ratios of neighbouring epochs.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    memory = dict.fromkeys(contestants, 0.0)
    for _ in range(repeats + 1):
        for name, contestant in contestants.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds[name].append(next(contestant))
            memory[name] = (
                torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
            )
    rows = []
    for name, spent in seconds.items():
        ratios = sorted(
            peer / own for own, peer in zip(spent[1:], seconds["timm"][1:], strict=True)
        )
        rows.append(
            {
                "who": name,
                "images_per_s": num / statistics.median(spent[1:]),
                "n": repeats,
                "ratio": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
                "peak_mib": memory[name],
            }
        )
    return rows


def matrix_rate() -> float:
    """Tera-FLOP/s of the card on bf16 products of 8192 x 8192 matrices, the best of 10."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * 8192**3 / best / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    parser.add_argument(
        "--case", choices=CASES, action="append", help="default: vit-ti, resnet-50 and demo"
    )
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="bf16" if on_gpu else "fp32"
    )
    parser.add_argument("--batch-size", type=int, default=0, help="default: by case")
    parser.add_argument("--steps", type=int, default=4, help="an epoch")
    parser.add_argument("--repeats", type=int, default=5, help="epochs that count")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rate = matrix_rate() if options.device == "cuda" else float("nan")
    rows = []
    for name in options.case or ON_CPU:
        with tempfile.TemporaryDirectory() as folder:
            rows += compare(name, options, Path(folder))
    machine = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.processor()} CPU"
    )
    print(
        f"torch {torch.__version__}, {machine}, {options.threads} threads; bf16 matrix rate "
        f"{rate:.0f} TFLOP/s"
    )
    print(
        "case       phase      batch  who                 images/s  ratio to timm (range), n   "
        "peak MiB    MFU"
    )
    for row in rows:
        print(
            f"{row['case']:10s} {row['phase']:10s} {row['batch']:5d}  {row['who']:18s} "
            f"{row['images_per_s']:9.1f}  {row['ratio']:.2f} "
            f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}), {row['n']}{row['peak_mib']:15.0f} "
            f"{row['tera_flops'] / rate:8.1%}"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine, "matrix_tflops": rate, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
