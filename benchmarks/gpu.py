"""What one GPU does for this trainer, in one command of at most nine minutes.

    facts   the card's rates, and the microseconds of the host per operation and per node of a graph
    equal   trainings with captured steps against those without, by the bit, with --deterministic
    step    a step of the trainer, eager, captured, compiled and both
    pack    1 to 16 trainings of the demo's ViT on the card at once, eager and captured
    timm    timm's loop, and ours with its recipe
    eval    evaluations
    fuse    several trainings of a ViT as one batched model, whole steps as graphs

Rows are written after each one, with what was predicted beside what was measured; a part or a case
for which no time is left is named. Run it before and after a change on the same card.

    python benchmarks/gpu.py --out results  # on a GPU: results/gpu.json
    python benchmarks/gpu.py --compare results/gpu.json  # ratios to an earlier run
    python benchmarks/gpu.py --quick  # anywhere: does it run?
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

import torch  # noqa: E402
from nullcuda import configs  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.fused import step_of  # noqa: E402
from benchmarks.throughput import timms  # noqa: E402
from search_spaces import demo  # noqa: E402
from search_spaces.recipes import RECIPES  # noqa: E402
from search_spaces.vit import SHAPES  # noqa: E402
from vitscale.doctor.training import complete  # noqa: E402
from vitscale.plan.config import TrainConfig  # noqa: E402
from vitscale.plan.fields import DEFAULTS  # noqa: E402
from vitscale.record.outcome import Row  # noqa: E402
from vitscale.train import loop  # noqa: E402
from vitscale.train.captured import capture, new_pool  # noqa: E402
from vitscale.train.complexity import measured_complexity  # noqa: E402
from vitscale.train.data import HeldOut  # noqa: E402
from vitscale.train.deterministic import set_deterministic  # noqa: E402
from vitscale.train.evaluate import evaluate  # noqa: E402
from vitscale.train.model import build_model, place  # noqa: E402
from vitscale.train.parallel import Team  # noqa: E402
from vitscale.train.sources import Images  # noqa: E402

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
LONG: dict[str, Any] = {
    "epochs": 10**6,
    "eval_every": 10**6,
    "warmup_epochs": 0.0,
    "warmup_steps": 10,
    "lr": 1e-4,
}
AT_224: dict[str, Any] = {
    **LONG,
    "dataset": "bench",
    "num_images": 4096,
    "num_classes": 1000,
    "channels": 3,
    "resolution": 224,
    "crop": "rrc",
    "flip_prob": 0.5,
    "precision": "bf16",
}
AT_32: dict[str, Any] = {
    **AT_224,
    **SHAPES["Ti"],
    "num_classes": 10,
    "resolution": 32,
    "patch_size": 4,
    "crop": "pad",
    "crop_padding": 4,
    "num_images": 8192,
}
DEIT: dict[str, Any] = {
    name: value for name, value in RECIPES["deit"].fields.items() if name in DEFAULTS
}
SMALL: dict[str, Any] = {**demo.RECIPE, **demo.MODELS["ViT_P"], **LONG}
DEMO = "demo ViT_P, batch 32"
CIFAR = "ViT-Ti/4 at 32 px, batch 128"
CASES: dict[str, TrainConfig] = {
    DEMO: TrainConfig(**SMALL),
    CIFAR: TrainConfig(**AT_32, batch_size=128, ema_decay=0.99),
    "ViT-Ti, batch 256": TrainConfig(**{**AT_224, **SHAPES["Ti"]}, batch_size=256),
    "ViT-S, batch 256": TrainConfig(**{**AT_224, **SHAPES["S"]}, batch_size=256),
    "ViT-S with DeiT's recipe, batch 256": TrainConfig(
        **{**DEIT, **AT_224, **SHAPES["S"], "repeats": 1, "batch_size": 256}
    ),
    "ViT-B, batch 128": TrainConfig(**{**AT_224, **SHAPES["B"]}, batch_size=128),
    "ResNet-50, batch 256": TrainConfig(
        **AT_224, model="timm:resnet50", patch_size=2, batch_size=256
    ),
}
HOWS = ("eager", "captured", "compiled", "compiled, captured")
COMPILED = (DEMO, "ViT-S, batch 256", "ResNet-50, batch 256")  # others take too long to compile
WARM_UP = 12  # steps
EQUAL_S = 150.0  # of a process that is waited for
DEMO_STEPS = 620  # of a trial: 20 epochs of 31
# Predictions for one H100, made before any run of this command: (part, case, how) -> what is
# measured, from, to. Times are of a host that needs 33 microseconds per operation.
PREDICTED: dict[tuple[str, str, str], tuple[str, float, float]] = {
    ("facts", "host", "operation"): ("us", 8, 33),
    ("facts", "card", "node of a graph"): ("us", 2, 3),
    ("facts", "card", "bf16"): ("tflops", 700, 900),
    ("facts", "card", "fp32"): ("tflops", 50, 60),
    ("facts", "card", "tf32"): ("tflops", 350, 500),
    ("facts", "card", "copy"): ("tb_per_s", 2.5, 3.2),
    ("step", DEMO, "eager"): ("step_ms", 5, 6),
    ("step", DEMO, "captured"): ("step_ms", 0.4, 0.9),
    ("step", CIFAR, "eager"): ("step_ms", 10, 14),
    ("step", CIFAR, "captured"): ("step_ms", 2, 3),
    ("step", "ViT-S, batch 256", "eager"): ("step_ms", 38, 47),
    ("step", "ViT-S, batch 256", "captured"): ("step_ms", 38, 47),
    ("step", "ViT-S with DeiT's recipe, batch 256", "eager"): ("step_ms", 43, 50),
    ("step", "ViT-S with DeiT's recipe, batch 256", "captured"): ("step_ms", 38, 47),
    ("step", "ResNet-50, batch 256", "eager"): ("step_ms", 85, 100),
    ("step", "ResNet-50, batch 256", "captured"): ("step_ms", 85, 100),
    ("pack", DEMO, "eager, 16 at once"): ("steps_per_s", 1500, 2000),
    ("pack", DEMO, "captured, 1 at once"): ("steps_per_s", 1100, 2500),
    ("pack", DEMO, "captured, 4 at once"): ("steps_per_s", 2000, 5000),
    ("timm", "ViT-Ti, batch 256", "ratio"): ("times_timm", 1.2, 3),
    ("timm", "ViT-S, batch 256", "ratio"): ("times_timm", 1.2, 2),
    ("timm", "ResNet-50, batch 256", "ratio"): ("times_timm", 1.0, 1.3),
    ("eval", "ViT-S, batch 256", "evaluation"): ("images_per_s", 15_000, 20_000),
    ("eval", "ResNet-50, batch 256", "evaluation"): ("images_per_s", 9_000, 11_000),
    ("fuse", DEMO, "16 of them, compiled"): ("times_alone", 8, 15),
    ("fuse", CIFAR, "4 of them, compiled"): ("times_alone", 1.1, 1.5),
}
Measured = dict[str, Any]


class Enough(Exception):
    """The steps are timed."""


class Clock:
    """What is left of the budget."""

    def __init__(self, budget_s: float) -> None:
        self.began, self.budget_s = time.perf_counter(), budget_s

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    @property
    def is_over(self) -> bool:
        return self.spent_s > self.budget_s


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], object], num: int, warm_up: int = 3) -> float:
    """Seconds per call, until the device has finished all of them."""
    for _ in range(warm_up):
        call()
    synchronize()
    began = time.perf_counter()
    for _ in range(num):
        call()
    synchronize()
    return (time.perf_counter() - began) / num


# ---- the trainer's own step


def images_of(config: TrainConfig) -> Images | None:
    """Random pixels on the device; None for digits, which come with scikit-learn."""
    if config.dataset == "digits":
        return None
    shape = (config.num_images, config.channels, config.resolution, config.resolution)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    return Images(torch.arange(config.num_images) % config.num_classes, pixels)


@contextmanager
def patched(at_a_step: Callable[..., float], images: Images | None) -> Iterator[None]:
    """Lets train() call at_a_step before each step, and train on these images."""
    true = loop.lr_at, loop.load_split
    loop.lr_at = at_a_step
    if images is not None:
        loop.load_split = lambda *_: images
    try:
        yield
    finally:
        loop.lr_at, loop.load_split = true


def train(config: TrainConfig, how: str, **options: Any) -> Iterator[Row]:
    """Raises RuntimeError if something of a captured training is not captured."""
    with tempfile.TemporaryDirectory() as folder:
        yield from complete(
            loop.train(
                config,
                Path(folder),
                DEVICE,
                compiled="compiled" in how,
                capture="captured" in how,
                checkpoint_every_s=1e9,
                **options,
            )
        )


def timed_steps(config: TrainConfig, how: str, images: Images | None, seconds: float) -> Measured:
    """Times of the steps of train() after a warm-up."""
    lr_at = loop.lr_at
    marks: list[tuple[int, float, float]] = []  # step, time, CPU time

    def at_a_step(step: int, config: TrainConfig) -> float:
        if step == WARM_UP or (len(marks) == 1 and time.perf_counter() - marks[0][1] > seconds):
            asked = time.perf_counter()
            synchronize()
            marks.append((step, time.perf_counter(), time.process_time()))
            if len(marks) == 2:
                ahead.append(marks[1][1] - asked)
                raise Enough
        return float(lr_at(step, config))

    ahead: list[float] = []
    with patched(at_a_step, images), suppress(Enough):
        list(train(config, how))
    (first, began, cpu_began), (last, ended, cpu_ended) = marks
    num = last - first
    return {
        "steps": num,
        "step_ms": 1e3 * (ended - began) / num,
        "host_ms": 1e3 * (cpu_ended - cpu_began) / num,
        "ahead_ms": 1e3 * ahead[0],  # of the host; about 0 where it sets the pace
        "images_per_s": config.batch_size * num / (ended - began),
    }


# ---- parts: each yields rows


def facts(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    number = torch.zeros(1, device=DEVICE)
    us = 1e6 * seconds_of(lambda: number.add_(1), 5_000, 200)
    yield {"case": "host", "how": "operation", "us": us}
    if not ON_GPU:
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1_000):
            number.add_(1)
    us = 1e3 * seconds_of(graph.replay, 10)
    yield {"case": "card", "how": "node of a graph", "us": us}
    size = 512 if options.quick else 8192
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a = torch.randn(size, size, device=DEVICE, dtype=dtype)
        tflops = 2e-12 * size**3 / seconds_of(lambda a=a: a @ a, 8)  # type: ignore[misc]
        yield {"case": "card", "how": name, "tflops": tflops}
    torch.backends.cuda.matmul.allow_tf32 = False
    block = torch.empty(size * size * 16, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(block)
    tb_per_s = 2e-12 * len(block) / seconds_of(lambda: other.copy_(block), 20)
    yield {"case": "card", "how": "copy", "tb_per_s": tb_per_s}


def equal(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    """In several processes, whose trainings are of a few steps each."""
    if not ON_GPU:
        yield {"how": "captured", "failed": "needs a GPU"}
        return
    names = list(configs.RESUMED)[: 2 if options.quick else None]
    with tempfile.TemporaryDirectory() as folder:
        configs.write_set(Path(folder))
        num = max(1, min(8, (os.cpu_count() or 2) // 2, len(names)))
        command = [sys.executable, __file__, "--part-of", "equal", "--root", folder]
        groups = [names[start::num] for start in range(num)]
        processes = [
            subprocess.Popen(
                [*command, "--names", ";".join(group)], stdout=subprocess.PIPE, text=True
            )
            for group in groups
        ]
        try:
            for process, group in zip(processes, groups, strict=True):
                lines = process.communicate(timeout=EQUAL_S)[0].splitlines()
                rows = [json.loads(line) for line in lines]
                yield from rows
                for name in group[len(rows) :]:
                    why = f"its process ended with status {process.returncode}"
                    yield {"case": name, "how": "captured", "failed": why}
        finally:
            for process in processes:
                process.kill()
                process.wait()


def one_equal(options: argparse.Namespace) -> None:
    """Prints, for each training, whether it has the same rows by captured steps."""
    set_deterministic(True)
    torch.set_num_threads(1)
    for name in options.names.split(";"):
        config = configs.RESUMED[name].replace(epochs=4)
        rows: dict[str, Any] = {}
        for how in ("eager", "captured"):
            try:
                rows[how] = [
                    {column: value for column, value in row.items() if column not in loop.TIMING}
                    for row in train(config, how, data_root=Path(options.root))
                ]
            except Exception as error:
                rows[how] = one_line(error)
        is_equal = isinstance(rows["eager"], list) and rows["eager"] == rows["captured"]
        why = "" if is_equal or isinstance(rows["captured"], list) else rows["captured"]
        facts = {"case": name, "how": "captured", "equal": is_equal, "why": why}
        print(json.dumps(facts), flush=True)


def step(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    for case, config in CASES.items():
        if options.quick and case != DEMO:
            continue
        images, macs = images_of(config), measured_complexity(config).flops
        for how in HOWS if case in COMPILED else HOWS[:2]:
            if "captured" in how and not ON_GPU:
                continue
            if options.quick and "compiled" in how:
                continue
            if clock.is_over:
                yield {"case": case, "how": how, "failed": "no time left"}
                continue
            if ON_GPU:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            torch.compiler.reset()
            try:
                row = timed_steps(config, how, images, 0.3 if options.quick else 3.0)
            except Exception as error:
                yield {"case": case, "how": how, "failed": one_line(error)}
                continue
            row["tflops"] = 6e-12 * macs * row["images_per_s"]
            if ON_GPU:
                row["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
            yield {"case": case, "how": how, **row}
        del images


def timm(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    """Epochs of 16 steps, so that the start of timm's loader processes weighs little."""
    for case in ("ViT-Ti, batch 256", "ViT-S, batch 256", "ResNet-50, batch 256"):
        if clock.is_over:
            yield {"case": case, "how": "timm", "failed": "no time left"}
            continue
        config = CASES[case].replace(
            mixup_alpha=0.8, cutmix_alpha=1.0, ema_decay=0.99, crop="pad", crop_padding=0
        )
        if options.quick:
            config = config.replace(batch_size=2, num_images=8, resolution=32, precision="fp32")
        shape = (config.num_images, config.channels, config.resolution, config.resolution)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
        labels = torch.arange(config.num_images) % config.num_classes
        epochs = timms(config, pixels, labels, torch.device(DEVICE))
        spent = [next(epochs) for _ in range(2 if options.quick else 4)][1:]
        theirs = config.num_images / statistics.median(spent)
        yield {"case": case, "how": "timm", "images_per_s": theirs, "n": len(spent)}
        how = "captured" if ON_GPU else "eager"
        ours = timed_steps(config, how, images_of(config), 0.3 if options.quick else 3.0)
        yield {"case": case, "how": how, **ours}
        yield {"case": case, "how": "ratio", "times_timm": ours["images_per_s"] / theirs}
        if options.quick:
            return


def evaluation(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    for case in ("ViT-S, batch 256", "ResNet-50, batch 256"):
        config, device = CASES[case], loop.device_at(DEVICE)
        if options.quick:
            config = config.replace(num_images=8, batch_size=2, resolution=32)
        images = images_of(config)
        assert images is not None
        held = HeldOut(images, config, device, Team(), 512)
        model = place(build_model(config), config, device)
        seconds = seconds_of(lambda m=model, h=held, c=config: evaluate(m, h, c, Team()), 1, 1)  # type: ignore[misc]
        yield {"case": case, "how": "evaluation", "images_per_s": len(images) / seconds}


def pack(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    """Windows of 4 s in which 1 to 16 processes take steps of a case; all begin together."""
    window_s = 0.5 if options.quick else 4.0
    hows = ("eager", "captured") if ON_GPU else ("eager",)
    cases = [(DEMO, how, 2 if options.quick else 16) for how in hows]
    if not options.quick:
        cases.append((CIFAR, hows[-1], 8))
    for case, how, most in cases:
        if clock.is_over:
            yield {"case": case, "how": how, "failed": "no time left"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            command = [sys.executable, __file__, "--part-of", "pack", "--names", f"{case};{how}"]
            processes = [
                subprocess.Popen(
                    [*command, "--root", folder, "--number", str(number)],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
                for number in range(most)
            ]
            try:
                await_files(root, [f"ready-{number}" for number in range(most)], 120)
                for num in (n for n in (1, 2, 4, 8, 16) if n <= most):
                    rate = window(root, num, window_s)
                    row = {"case": case, "how": f"{how}, {num} at once", "steps_per_s": rate}
                    row["images_per_s"] = rate * CASES[case].batch_size
                    if case == DEMO:  # without evaluations and starts
                        row["trials_per_hour"] = 3600 * rate / DEMO_STEPS
                    yield row
            finally:
                for process in processes:
                    process.kill()
                    process.wait()


def window(root: Path, num: int, window_s: float) -> float:
    """Steps per second of `num` of the processes, which take them at the same time."""
    start = time.time() + 0.3
    for number in range(num):
        put(root / f"go-{number}", f"{start} {start + window_s}")
    done = [root / f"done-{number}" for number in range(num)]
    await_files(root, [path.name for path in done], window_s + 60)
    rates = [float(path.read_text()) for path in done]
    for path in done:
        path.unlink()
    return sum(rates)


def one_pack(options: argparse.Namespace) -> None:
    """Trains a case, and takes steps only in the windows that it is told."""
    torch.set_num_threads(1)
    case, how = options.names.split(";")
    root, number, lr_at = Path(options.root), options.number, loop.lr_at
    first, began, until = 0, 0.0, 0.0

    def at_a_step(step: int, config: TrainConfig) -> float:
        nonlocal first, began, until
        if step < WARM_UP or (until and time.time() < until):
            return float(lr_at(step, config))
        synchronize()
        if until:
            put(root / f"done-{number}", str((step - first) / (time.time() - began)))
        put(root / f"ready-{number}", "")
        go = root / f"go-{number}"
        while not go.exists():
            time.sleep(0.002)
        start, until = map(float, go.read_text().split())
        go.unlink()
        time.sleep(max(0.0, start - time.time()))
        first, began = step, time.time()
        return float(lr_at(step, config))

    config = CASES[case].replace(seed=number)
    with patched(at_a_step, images_of(config)):
        list(train(config, how))


def fuse(options: argparse.Namespace, clock: Clock) -> Iterator[Measured]:
    """Trainings as one model are worth building if they are twice as fast as the best of `step` and
    `pack`, at the size of the second case.
    """
    cases = ((DEMO, (1, 4, 16)), (CIFAR, (1, 4, 8)))
    for case, nums in cases[:1] if options.quick else cases:
        for how in ("", ", compiled"):
            alone = 0.0
            for num in nums[:2] if options.quick else nums:
                label = f"{num} of them{how}"
                if clock.is_over or (how and options.quick):
                    if clock.is_over:
                        yield {"case": case, "how": label, "failed": "no time left"}
                    continue
                torch.compiler.reset()
                one_step = step_of(CASES[case], num, DEVICE, bool(how))
                for _ in range(3):
                    one_step()
                if ON_GPU:
                    one_step = capture(one_step, (), new_pool()).replay
                seconds = seconds_of(one_step, 2 if options.quick else 50)
                rate = num * CASES[case].batch_size / seconds
                alone = alone or rate
                yield {
                    "case": case,
                    "how": label,
                    "images_per_s": rate,
                    "times_alone": rate / alone,
                }


def put(path: Path, text: str) -> None:
    """Writes a file that others see whole."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def await_files(root: Path, names: list[str], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not all((root / name).exists() for name in names):
        if time.monotonic() > end:
            raise OSError(f"{len(names)} processes must answer within {seconds:g} s")
        time.sleep(0.01)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


# ---- output


def with_prediction(row: Measured) -> Measured:
    """The row, with the range that was predicted for one of its values."""
    predicted = PREDICTED.get((row["part"], row.get("case", ""), row.get("how", "")))
    if predicted is None or predicted[0] not in row:
        return row
    column, low, high = predicted
    return {**row, "predicted": f"{low:g} to {high:g}", "as_predicted": low <= row[column] <= high}


def compare(rows: list[Measured], earlier: list[Measured]) -> list[str]:
    """A line per number that both runs have: the new one over the earlier one."""
    before = {(row["part"], row.get("case"), row.get("how")): row for row in earlier}
    lines = []
    for row in rows:
        old = before.get((row["part"], row.get("case"), row.get("how")), {})
        for name, value in row.items():
            if type(value) is float and type(old.get(name)) is float and old[name]:
                label = f"{row['part']}  {row.get('case')}  {row.get('how')}  {name}"
                lines.append(f"{label}  {old[name]:.4g} -> {value:.4g}  x{value / old[name]:.2f}")
    return lines


PARTS: dict[str, Callable[[argparse.Namespace, Clock], Iterator[Measured]]] = {
    "facts": facts,
    "equal": equal,
    "step": step,
    "pack": pack,
    "timm": timm,
    "eval": evaluation,
    "fuse": fuse,
}


def measure(options: argparse.Namespace) -> list[Measured]:
    clock, rows = Clock(options.budget_s), list[Measured]()
    rows.append(
        {
            "part": "machine",
            "device": torch.cuda.get_device_name() if ON_GPU else "cpu",
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d"),
        }
    )
    for part in options.parts.split(","):
        try:
            if clock.is_over:
                raise TimeoutError("no time left")
            for facts in PARTS[part](options, clock):
                rows.append(with_prediction({"part": part, **facts}))
                shown = (
                    f"{k}={v:.4g}" if type(v) is float else f"{k}={v}" for k, v in facts.items()
                )
                print(f"{clock.spent_s:5.0f} s  {part:5s}", *shown, flush=True)
                put(options.out / "gpu.json", json.dumps(rows, indent=1))
        except Exception as error:
            rows.append({"part": part, "failed": one_line(error)})
            print(f"{clock.spent_s:5.0f} s  {part:5s} failed: {rows[-1]['failed']}", flush=True)
    put(options.out / "gpu.json", json.dumps(rows, indent=1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of gpu.json")
    parser.add_argument("--budget-s", type=float, default=510.0)
    parser.add_argument("--compare", type=Path, help="gpu.json of an earlier run")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    for name in ("--part-of", "--names", "--root"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part_of:
        {"equal": one_equal, "pack": one_pack}[options.part_of](options)
        return
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts must be of {', '.join(PARTS)}, but got {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = measure(options)
    if options.compare:
        print("\n".join(compare(rows, json.loads(options.compare.read_text()))))
    if any("failed" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
