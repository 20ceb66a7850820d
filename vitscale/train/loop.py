"""The trainer: one straight loop that yields a row of metrics after every epoch."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.record.store import Row, Workdir
from vitscale.train import checkpoint
from vitscale.train.augment import cross_entropy, normalize
from vitscale.train.data import Batches, Split, load
from vitscale.train.ema import Ema
from vitscale.train.model import build_model
from vitscale.train.optim import build_optimizer
from vitscale.train.schedule import lr_at

CHECKPOINT_SHARE = 0.05  # of the time, at most, goes into checkpoints: large ones come less often
CHECK_EVERY = 50  # steps between two looks at whether the loss is still finite: each look waits for the device
TIMING = ("train_s", "unix_s")  # columns of a row that two runs of one trial do not share


def train(
    config: TrainConfig,
    workdir: Workdir | Path,
    device: str = "cpu",
    *,
    data_root: Path | None = None,
    num_loader_workers: int = 0,
    checkpoint_every_s: float = 5.0,
) -> Iterator[Row]:
    """Trains one model and yields a row of metrics for each epoch; errors in percent, losses in nats.

    The rows are always those of the whole training: an interrupted one first yields the rows of its newest checkpoint
    again and goes on from there, bit for bit as if nothing had happened (TIMING columns apart). A non-finite loss or
    weight ends the training with a row of `diverged` 1 at the step where it arose, and error 100. The arguments after
    `workdir` bear on speed and safety, never on results.

    Raises ValueError for a dataset that cannot be read, OSError if a checkpoint cannot be written, and
    vitscale.record.store.Fenced if another worker has claimed the workdir.
    """
    workdir = Workdir(workdir) if isinstance(workdir, Path) else workdir
    at = torch.device(device)
    seed_everything(config.seed)
    batches = Batches(load(config, "train", data_root).to(torch.device("cpu") if num_loader_workers else at), config)
    held_out = load(config, config.eval_split, data_root).to(at)
    model = build_model(config).to(at)
    optimizer = build_optimizer(model, config)
    ema = Ema(model, config.ema_decay)

    step, rows, spent_s = 0, [], 0.0
    loss_sum, bad_step = torch.zeros((), dtype=torch.float64, device=at), torch.full((), -1, device=at)
    state = checkpoint.load(workdir, at)
    if state is not None:
        step, rows, spent_s = state["step"], state["rows"], state["spent_s"]
        loss_sum, bad_step = state["loss_sum"], state["bad_step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        ema.load_state_dict(state["ema"])
        checkpoint.set_rng_state(state["rng"])
        del state
    yield from rows
    if rows and is_last(rows[-1], config):
        return

    def commit() -> float:
        began = time.perf_counter()
        state = {
            "step": step, "rows": rows, "spent_s": spent_s + time.perf_counter() - start,
            "loss_sum": loss_sum, "bad_step": bad_step, "model": model.state_dict(),
            "optimizer": optimizer.state_dict(), "ema": ema.state_dict(), "rng": checkpoint.rng_state(),
        }  # fmt: skip
        checkpoint.save(workdir, step, state)
        return time.perf_counter() + max(checkpoint_every_s, (time.perf_counter() - began) / CHECKPOINT_SHARE)

    start = time.perf_counter()
    next_commit = start + checkpoint_every_s
    for images, targets in batches.iterate(step, num_loader_workers):
        images, targets = images.to(at, non_blocking=True), targets.to(at, non_blocking=True)
        lr = lr_at(step, config)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with autocast(config, at):
            loss = cross_entropy(model(images), targets, config.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        ema.update(model)
        loss_sum += loss.detach()
        bad_step = torch.where((bad_step < 0) & ~loss.detach().isfinite(), step, bad_step)
        step += 1

        epoch_ends = step % config.steps_per_epoch == 0
        if epoch_ends or step % CHECK_EVERY == 0:
            diverged_step = _diverged_step(bad_step, model, step - 1 if epoch_ends else None)
            row = None
            if diverged_step is not None:
                row = diverged_row(config, diverged_step)
            elif epoch_ends:
                row = {"epoch": step // config.steps_per_epoch, "step": step, "samples": step * config.batch_size,
                       "lr_now": lr, "train_loss": loss_sum.item() / config.steps_per_epoch, "diverged": 0.0,
                       **evaluate_both(model, ema, held_out, batches, config)}  # fmt: skip
                loss_sum.zero_()
            if row is not None:
                timing = {"train_s": spent_s + time.perf_counter() - start, "unix_s": time.time()}
                rows.append({name: float(value) for name, value in {**row, **timing}.items()})
                if is_last(rows[-1], config):
                    commit()
                yield rows[-1]
                if diverged_step is not None:
                    return
        if time.perf_counter() > next_commit and step < config.num_steps:
            next_commit = commit()


def is_last(row: Row, config: TrainConfig) -> bool:
    """Whether a training ends with this row."""
    return bool(row["diverged"]) or row["epoch"] == config.epochs


def diverged_row(config: TrainConfig, step: int) -> Row:
    """The last row of a training whose loss or weights became non-finite at optimizer step `step` (from 0)."""
    epoch = step // config.steps_per_epoch + 1
    errors = {f"{config.eval_split}_error_pct": 100.0, f"{config.eval_split}_ema_error_pct": 100.0}
    return {"epoch": epoch, "step": step + 1, "samples": (step + 1) * config.batch_size, "lr_now": lr_at(step, config),
            "diverged": 1.0, "diverged_step": step, **errors}  # fmt: skip


def evaluate_both(model: nn.Module, ema: Ema, data: Split, batches: Batches, config: TrainConfig) -> Row:
    """Loss and error of the raw and of the averaged weights on the held-out split."""
    loss, error_pct = evaluate(model, data, batches, config)
    ema_loss, ema_error_pct = evaluate(ema.module, data, batches, config) if ema.on else (loss, error_pct)
    return {f"{config.eval_split}_loss": loss, f"{config.eval_split}_error_pct": error_pct,
            f"{config.eval_split}_ema_loss": ema_loss, f"{config.eval_split}_ema_error_pct": ema_error_pct}  # fmt: skip


@torch.no_grad()
def evaluate(model: nn.Module, data: Split, batches: Batches, config: TrainConfig) -> tuple[float, float]:
    """(mean cross entropy in nats, top-1 error in percent) on a split, with the statistics of the training split."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=data.labels.device)
    wrong = torch.zeros((), dtype=torch.int64, device=data.labels.device)
    mean, std = batches.mean.to(loss.device), batches.std.to(loss.device)
    for images, labels in zip(data.images.split(512), data.labels.split(512), strict=True):
        with autocast(config, loss.device):
            logits = model(normalize(images, mean, std)).float()
        loss += cross_entropy(logits, labels, 0.0).double() * len(labels)
        wrong += (logits.argmax(1) != labels).sum()
    model.train()
    num = len(data.labels)
    return loss.item() / num, 100.0 * wrong.item() / num


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def seed_everything(seed: int) -> None:
    """Seeds the global generators; batches do not draw from them, but init and layers do."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _diverged_step(bad_step: Tensor, model: nn.Module, last_step: int | None) -> int | None:
    """The first step with a non-finite loss; else, if `last_step` is given, that step if a weight is non-finite."""
    if (step := int(bad_step.item())) >= 0:
        return step
    if last_step is None:
        return None
    # Norms are finite if all weights are, short of overflow: weights beyond 1e19 count as diverged, too.
    norm = torch.stack(torch._foreach_norm([p.detach() for p in model.parameters()])).sum().item()
    return None if math.isfinite(norm) else last_step
