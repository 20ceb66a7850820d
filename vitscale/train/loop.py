"""The trainer: one straight loop that yields a row of metrics after every epoch."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import SMALL_BYTES
from vitscale.plan.metrics import QUANTITIES, WEIGHTS, column, error_columns, metric_of
from vitscale.record.outcome import Row
from vitscale.record.workdir import Workdir
from vitscale.train import checkpoint
from vitscale.train.answers import Answers
from vitscale.train.batchnorm import has_batchnorm, reestimate
from vitscale.train.blocks import run_branches
from vitscale.train.data import EVAL_BATCH, Batches, HeldOut, fingerprint, resident
from vitscale.train.draws import seed_layers
from vitscale.train.ema import Ema
from vitscale.train.loss_scale import LossScale
from vitscale.train.metrics import NUM_BINS, calibration_gaps, in_top
from vitscale.train.model import build_model
from vitscale.train.optim import build_optimizer
from vitscale.train.parallel import Team, cut, num_parts, synchronize_batchnorm
from vitscale.train.schedule import lr_at
from vitscale.train.sources import load_split
from vitscale.train.step import TrainingStep, autocast

CHECKPOINT_SHARE = 0.05  # of the time, at most, goes into checkpoints: large ones come less often
# steps between two looks at whether the loss is still finite: each look waits for the device
CHECK_EVERY = 50
# Columns of a row that two runs of one trial do not share. train_s: all that it took so far, eval_s
# of it evaluation.
TIMING = ("train_s", "eval_s", "unix_s", "peak_memory_mib")
# What the last checkpoint keeps: all that a training needs; rows and final weights; the same if the
# weights are small; rows alone.
Kept = Literal["all", "weights", "small", "rows"]


class Trained(NamedTuple):
    """What a training leaves beside its rows."""

    data: str  # fingerprint of the training images, by which two datasets of one name differ
    # column -> (N,) bool: images that the final weights got wrong; empty if it diverged
    wrong: dict[str, np.ndarray]
    images: dict[str, str]  # evaluation set -> fingerprint


def train(
    config: TrainConfig,
    workdir: Workdir | Path,
    device: str = "cpu",
    *,
    data_root: Path | None = None,
    num_loader_workers: int = 0,
    checkpoint_every_s: float = 5.0,
    micro_batch: int = 0,
    parallel_branches: bool = False,
    compiled: bool = False,
    kept: Kept = "all",
) -> Generator[Row, None, Trained]:
    """Trains one model and yields a row of metrics for each epoch; errors in percent, losses in
    nats. It returns what else it found.

    The rows are always those of the whole training: an interrupted one first yields the rows of its
    newest checkpoint again and goes on from there, bit for bit as if nothing had happened (TIMING
    columns apart). A non-finite loss or weight ends the training with a row of `diverged` 1 at the
    step where it arose, and error 100. With precision fp16 a row has `skipped_steps`, the steps so
    far that the loss scale skipped; a skipped step is no divergence.

    The arguments after `workdir` bear on speed and safety, never on results, up to the rounding of
    sums: at most `micro_batch` images pass through the model at once (0: the batch),
    `parallel_branches` computes the branches of a parallel ViT in one go, `compiled` calls
    torch.compile, `kept` says what the last checkpoint holds. Where torch.distributed is set up,
    its processes train the trial together, all of them yield the rows, and the first one writes the
    checkpoints.

    Raises ValueError for a dataset that cannot be read or a cut of the batch that BatchNorm would
    notice, OSError if a checkpoint cannot be written, and vitscale.record.workdir.Fenced if another
    worker has claimed the workdir.
    """
    workdir = Workdir(workdir) if isinstance(workdir, Path) else workdir
    at, team = device_at(device), Team.join()
    seed_everything(config.seed)
    # else fp32 convolutions would not be
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    model = build_model(config).to(at)
    normed = has_batchnorm(model)
    cuts = cut(config.batch_size, num_parts(config, micro_batch, team, normed))
    mine = cuts[team.rank * len(cuts) // team.size :][: len(cuts) // team.size]
    images = load_split(config, "train", data_root)
    data, images = fingerprint(images), resident(images, at)
    batches = Batches(images, config, at, mine)
    most = min(EVAL_BATCH, micro_batch or EVAL_BATCH)
    sets = {name: load_split(config, name, data_root) for name in config.evals}
    trained = Trained(data, {}, {name: fingerprint(of) for name, of in sets.items()})
    held_out = {
        name: HeldOut(resident(of, at), config, at, team, most) for name, of in sets.items()
    }
    del sets

    if parallel_branches:
        run_branches(model, parallel=True)
    if config.model != "vit":
        model = model.to(memory_format=torch.channels_last)
    if normed and team.size > 1 and not config.norm_batch:
        model = synchronize_batchnorm(model)
    draws = seed_layers(model, config.seed)
    optimizer = build_optimizer(model, config)
    ema, loss_scale = Ema(model, config), LossScale(config, at)
    own = cuts if config.norm_batch else cut(config.batch_size, 1)
    precise = Batches(images, config, at, own) if config.precise_bn and normed else None

    step, rows, spent_s = 0, [], 0.0
    loss_sum, bad_step = (
        torch.zeros((), dtype=torch.float64, device=at),
        torch.tensor(-1, device=at),
    )
    state = team.share(
        checkpoint.load(workdir, torch.device("cpu"), config.id) if team.rank == 0 else None
    )
    if state is not None:
        if state["data"] != data:
            raise checkpoint.OtherImages(
                "a training must resume on its own images, but got others "
                f"(dataset={config.dataset!r}, data_root={str(data_root)!r})"
            )
        step, rows, spent_s = state["step"], state["rows"], state["spent_s"]
        trained.wrong.update({name: w.numpy() for name, w in state.get("wrong", {}).items()})
        if rows and is_last(rows[-1], config):  # it may have kept no more than its rows
            yield from rows
            return trained
        loss_sum, bad_step = state["loss_sum"].to(at), state["bad_step"].to(at)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        ema.load_state_dict(state["ema"])
        loss_scale.load_state_dict(state.get("loss_scale", {}))
        checkpoint.set_rng_state(state["rng"])
        del state
    eval_s = rows[-1].get("eval_s", 0.0) if rows else 0.0
    yield from rows

    def commit() -> float:
        began = time.perf_counter()
        state: dict[str, Any] = {
            "trial": config.id,
            "step": step,
            "data": data,
            "rows": rows,
            "spent_s": spent_s + time.perf_counter() - start,
            "loss_sum": loss_sum,
            "bad_step": bad_step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "ema": ema.state_dict(),
            "loss_scale": loss_scale.state_dict(),
            "rng": checkpoint.rng_state(at),
        }
        if rows and is_last(rows[-1], config):
            state["wrong"] = {name: torch.from_numpy(w) for name, w in trained.wrong.items()}
            state = last_state(state, kept)
        checkpoint.save(workdir, step, state)
        return time.perf_counter() + max(
            checkpoint_every_s, (time.perf_counter() - began) / CHECKPOINT_SHARE
        )

    replica = team.wrap(cast(nn.Module, torch.compile(model)) if compiled else model)
    positions = [torch.from_numpy(part) for part in mine]
    training_step = TrainingStep(
        config, model, replica, draws, optimizer, ema, loss_scale, team, positions
    )
    stream = batches.iterate(step, num_loader_workers)
    start = time.perf_counter()
    next_commit = start + checkpoint_every_s
    while step < config.num_steps:
        lr = lr_at(step, config)
        loss = training_step.take(step, lr, stream, bad_step)
        loss_sum += loss
        bad_step.masked_fill_((bad_step < 0) & ~loss.isfinite(), step)
        if loss_scale.on:
            bad_step.masked_fill_((bad_step < 0) & loss_scale.exhausted, step)
        step += 1

        epoch_ends = step % config.steps_per_epoch == 0
        if epoch_ends or step % CHECK_EVERY == 0:
            diverged_step = _diverged_step(bad_step, model, step - 1 if epoch_ends else None)
            row = None
            if diverged_step is not None:
                row = diverged_row(config, diverged_step)
            elif epoch_ends:
                eval_began = time.perf_counter()
                row = {
                    "epoch": step // config.steps_per_epoch,
                    "step": step,
                    "samples": step * config.batch_size,
                    "lr_now": lr,
                    "train_loss": loss_sum.item() / config.steps_per_epoch,
                    "diverged": 0.0,
                    **evaluate_all(
                        model,
                        ema,
                        held_out,
                        precise,
                        config,
                        team,
                        num_loader_workers,
                        trained.wrong if step == config.num_steps else None,
                    ),
                }
                loss_sum.zero_()
                eval_s += time.perf_counter() - eval_began
            if row is not None:
                timing = {
                    "train_s": spent_s + time.perf_counter() - start,
                    "eval_s": eval_s,
                    "unix_s": time.time(),
                    **peak_memory(at),
                }
                rows.append(
                    {
                        name: float(value)
                        for name, value in {**row, **loss_scale.columns(), **timing}.items()
                    }
                )
                if is_last(rows[-1], config) and team.rank == 0:
                    commit()
                yield rows[-1]
                if diverged_step is not None:
                    return trained
        if team.rank == 0 and time.perf_counter() > next_commit and step < config.num_steps:
            next_commit = commit()
    return trained


def is_last(row: Row, config: TrainConfig) -> bool:
    """Whether a training ends with this row."""
    return bool(row["diverged"]) or row["epoch"] == config.epochs


def last_state(state: dict[str, Any], kept: Kept) -> dict[str, Any]:
    """What the checkpoint of an ended training keeps of its state.

    Rows always: they restore a damaged file of rows. The weights of a diverged training are of no
    use.
    """
    if kept == "all":
        return state
    size = sum(t.nbytes for part in ("model", "ema") for t in state[part].values())
    fits = kept == "weights" or (kept == "small" and size <= SMALL_BYTES)
    weights = ("model", "ema") if fits and not state["rows"][-1]["diverged"] else ()
    names = ("trial", "step", "data", "rows", "spent_s", "wrong", *weights)
    return {name: state[name] for name in names}


def diverged_row(config: TrainConfig, step: int) -> Row:
    """The last row of a training whose loss or weights became
    non-finite at optimizer step `step` (from 0).
    """
    epoch = step // config.steps_per_epoch + 1
    errors = {
        name: metric_of(name).worst for split in config.evals for name in error_columns(split)
    }
    return {
        "epoch": epoch,
        "step": step + 1,
        "samples": (step + 1) * config.batch_size,
        "lr_now": lr_at(step, config),
        "diverged": 1.0,
        "diverged_step": step,
        **errors,
    }


def evaluate_all(
    model: nn.Module,
    ema: Ema,
    held_out: Mapping[str, HeldOut],
    precise: Batches | None,
    config: TrainConfig,
    team: Team,
    num_loader_workers: int = 0,
    wrong: dict[str, np.ndarray] | None = None,
) -> Row:
    """The `evaluation_columns` of every evaluation set: what `evaluate` says of the raw and of the
    averaged weights.

    `wrong`, if given, takes the images that were wrong, (N,) bool under "val_wrong",
    "val_ema_wrong"; without an average, of the raw weights alone.

    With `precise` batches, the statistics of BatchNorm are estimated on them first, for each of the
    two.
    """
    row: Row = {}
    for weights, module in zip(WEIGHTS, (model, ema.module if ema.on else None), strict=True):
        if module is not None and precise is not None:
            images = precise.unmixed(config.precise_bn, num_loader_workers)
            reestimate(module, images, partial(autocast, config, precise.device))
        for split, data in held_out.items():
            if module is not None:
                answers = Answers() if wrong is not None else None
                found = evaluate(module, data, config, team, num_loader_workers, answers)
                if wrong is not None and answers is not None:
                    wrong[column(split, weights, "wrong")] = answers.wrong(team, data.num)
            else:
                found = {quantity: row[column(split, "", quantity)] for quantity in QUANTITIES}
            row |= {column(split, weights, quantity): value for quantity, value in found.items()}
    return row


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: HeldOut,
    config: TrainConfig,
    team: Team,
    num_loader_workers: int = 0,
    answers: Answers | None = None,
) -> Row:
    """The QUANTITIES of vitscale.plan.metrics on an evaluation set, for any team those of all its
    images.

    loss: mean cross entropy in nats, to the label. error_pct and top5_error_pct: share of images,
    in percent, whose label is not the class, or among the five classes, of the largest logits; 0
    for the latter where there are five classes or fewer. ece_pct: expected calibration error in
    percent, over 15 bins of equal width of the top-1 confidence (Guo et al. 2017), weighted by
    their images.

    With several accepted labels (ReaL), a prediction is right if it is one of them, and the loss is
    to the original. `answers`, if given, takes those to each image.
    """
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=data.device)
    wrong = torch.zeros(2, dtype=torch.int64, device=data.device)  # top-1, top-5
    gaps = torch.zeros(NUM_BINS, dtype=torch.float64, device=data.device)
    for images, labels, allowed in data.iterate(num_loader_workers):
        with autocast(config, data.device):
            logits = model(images).float()
        loss += F.cross_entropy(logits, labels).double() * len(labels)
        guess = logits.argmax(1)
        right = (guess == labels) if allowed is None else allowed.gather(1, guess[:, None])[:, 0]
        missed = ~right
        wrong += torch.stack([missed, ~in_top(logits, labels, allowed)]).sum(1)
        if answers is not None:
            answers.add(missed, logits)
        gaps += calibration_gaps(logits, right)
    model.train()
    # Sums of all processes; this is the one place of an evaluation that waits for the device.
    sums = torch.cat(
        [team.sum(loss)[None], team.sum(wrong).double(), team.sum(gaps).abs().sum()[None]]
    )
    loss_sum, num_wrong, num_wrong_top5, gap = sums.tolist()
    return {
        "loss": loss_sum / data.num,
        "error_pct": 100.0 * num_wrong / data.num,
        "top5_error_pct": 100.0 * num_wrong_top5 / data.num,
        "ece_pct": 100.0 * gap / data.num,
    }


def device_at(name: str) -> torch.device:
    """The device of a name; "cuda" is the current GPU, with its
    index: parts of torch.cuda take no device without.
    """
    return (
        torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    )


def peak_memory(device: torch.device) -> Row:
    """The most memory that tensors took on the GPU since the
    process started on it, MiB; nothing on a CPU.
    """
    return (
        {"peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
        if device.type == "cuda"
        else {}
    )


def seed_everything(seed: int) -> None:
    """Seeds the global generators; batches do not draw from them, but init and layers do."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _diverged_step(bad_step: Tensor, model: nn.Module, last_step: int | None) -> int | None:
    """The first step with a non-finite loss; else, if `last_step`
    is given, that step if a weight is non-finite.
    """
    if (step := int(bad_step.item())) >= 0:
        return step
    if last_step is None:
        return None
    # Norms are finite if all weights are, short of overflow: weights beyond 1e19 count as diverged,
    # too.
    norm = torch.stack(torch._foreach_norm([p.detach() for p in model.parameters()])).sum().item()
    return None if math.isfinite(norm) else last_step
