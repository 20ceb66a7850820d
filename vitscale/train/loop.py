"""The trainer: one straight loop that yields a row of metrics at each evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
)
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import SMALL_BYTES
from vitscale.plan.metrics import ERRORS, METRICS, WEIGHTS, column
from vitscale.plan.parents import AT_END
from vitscale.record.outcome import Row
from vitscale.record.workdir import CHECKPOINT, FINAL, Damaged, Left, Workdir, pinned
from vitscale.train import checkpoint
from vitscale.train.batchnorm import has_batchnorm
from vitscale.train.blocks import run_branches
from vitscale.train.captured import CapturedStep
from vitscale.train.data import (
    EVAL_BATCH,
    Batches,
    HeldOut,
    fingerprint,
    readers_of,
    resident,
)
from vitscale.train.deterministic import is_deterministic
from vitscale.train.device import (
    check_precision,
    device_at,
    peak_memory,
    products,
    seed_everything,
)
from vitscale.train.draws import seed_layers
from vitscale.train.ema import Ema
from vitscale.train.evaluate import evaluate_all
from vitscale.train.inherit import build_teacher, freeze, inherit
from vitscale.train.loss_scale import LossScale
from vitscale.train.model import build_model, place
from vitscale.train.optim import build_optimizer, match_formats
from vitscale.train.parallel import Parting, Team, cut, num_parts, synchronize_batchnorm
from vitscale.train.saver import Saver
from vitscale.train.schedule import lr_at
from vitscale.train.sources import load_split
from vitscale.train.sources.images import describe_left_out
from vitscale.train.step import TrainingStep

# What a training loses by its checkpoints, at most, of the time (see Saver): large ones are written
# less often than by the clock. On a CPU, a user who asks for more of them pays more.
CHECKPOINT_EVERY_S = 5.0
CHECKPOINT_SHARE, OFTEN_SHARE = 0.01, 0.05
CHECK_EVERY = 50  # steps between two checks for a finite loss: each waits for the device
# Columns in which two runs of one trial differ. train_s: seconds so far, eval_s of them evaluation.
# wait_data_s: seconds so far without work, as a batch was not read (data.Waits).
TIMING = ("train_s", "eval_s", "wait_data_s", "unix_s", "peak_memory_mib")
# The last checkpoint keeps all that a training needs; rows and final weights; the same if the
# weights are small; or rows alone.
Kept = Literal["all", "weights", "small", "rows"]


class Trained(NamedTuple):
    """What a training leaves beside its rows."""

    data: str  # fingerprint of the training images; distinguishes two datasets of one name
    # column -> (N,) bool: images that the final weights got wrong; empty if it diverged
    wrong: dict[str, np.ndarray]
    images: dict[str, str]  # evaluation set -> fingerprint
    deterministic: bool  # whether all of it, and of its trunk, was computed so
    left_out: str  # files of the dataset that are no images, by set; empty if none
    captured: str = ""  # as of CapturedStep; empty if that was not asked for


def train(
    config: TrainConfig,
    workdir: Workdir | Path,
    device_name: str = "cpu",
    *,
    data_root: Path | None = None,
    num_loader_workers: int | Literal["auto"] = 0,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    micro_batch: int = 0,
    parallel_branches: bool = False,
    compiled: bool = False,
    capture: bool = False,
    kept: Kept = "all",
    trunk: Workdir | Path | None = None,
    parent: Workdir | Path | None = None,
    teacher: tuple[TrainConfig, Workdir | Path] | None = None,
    pins: Collection[int] = (),
    is_leaving: Callable[[], bool] | None = None,
) -> Generator[Row, None, Trained]:
    """Trains one model, yields a row at each evaluation, and returns what else it leaves.

    Errors are in percent, losses in nats. The rows are always those of the whole training: an
    interrupted one first yields the rows of its newest checkpoint again and continues from there,
    bit for bit as if nothing had happened (except for the columns TIMING). A non-finite loss or
    weight ends the training with a row of `diverged` 1 at the step where it occurred, and error
    100. With precision fp16 a row has `skipped_steps`, the steps so far that the loss scale
    skipped; a skipped step does not count as divergence.

    The arguments after `workdir` affect speed and safety, never results, up to the rounding of
    sums: `device_name` is "cpu", "cuda" or "cuda:1"; `num_loader_workers` processes read images
    ("auto": as of plan.cores); at most `micro_batch` images pass through the model at once (0:
    the batch); `parallel_branches` computes the branches of a parallel ViT at once; `compiled`
    calls torch.compile; `capture` replays the passes of a GPU's steps as CUDA graphs; `kept` is
    what the last checkpoint holds. In a torch.distributed group all processes train the trial
    together and yield the rows, and the first one writes the checkpoints.

    A config with a trunk begins at the state that its trunk kept, in the folder `trunk`, and first
    yields the rows of the trunk up to there; rows and weights are, by the bit, those of the same
    training in one piece. A config with `init_from` begins with the final weights that its parent
    kept in the folder `parent`. A config with a teacher needs, also to go on, the config of that
    training and the folder with its final weights. `pins` are the steps at which this training
    keeps its state for others; with AT_END it keeps its final weights.
    `is_leaving` is asked before the first step, after each, and before each batch of an evaluation
    whether the process must end: then a checkpoint of what is new is written, and Left raised; an
    evaluation begins again. A training that has ended goes on. In a team, any process may have to
    end, and all leave; it is asked less often (see Parting), and not before batches that only some
    processes have.

    Raises ValueError for a dataset that cannot be read or a split of the batch that BatchNorm would
    notice, OSError if a checkpoint cannot be written or the device lacks TF32 that is asked for,
    vitscale.record.workdir.Damaged if the state of the trunk is missing or damaged, and
    vitscale.record.workdir.Fenced if another worker has claimed the workdir.
    """
    workdir = Workdir(workdir) if isinstance(workdir, Path) else workdir
    trunk = Workdir(trunk) if isinstance(trunk, Path) else trunk
    parent = Workdir(parent) if isinstance(parent, Path) else parent
    assert bool(config.trunk) == (trunk is not None), "a trunk needs its folder"
    assert bool(config.init_from) == (parent is not None), "a parent needs its folder"
    assert bool(config.teacher) == (teacher is not None), "a teacher needs its folder"
    device, team = device_at(device_name), Team.join()
    check_precision(config, device)

    # --- model: built on the CPU, so that initial weights do not depend on the device; those of the
    # student do not depend on the teacher
    taught_by = build_teacher(*teacher, device) if teacher is not None else None
    seed_everything(config.seed)
    model = build_model(config)
    inherited = parent is None
    if parent is not None:
        try:
            weights = checkpoint.load_final(parent, config.init_from)
            inherit(model, config, weights[_kept_in(config)])
            inherited = True
        except Damaged:
            if not workdir.names(CHECKPOINT):  # a training that has begun goes on without it
                raise
    model = place(freeze(model, config), config, device)
    normed = has_batchnorm(model)

    # --- data: each process takes consecutive parts of each batch, which is the same for any
    # number of processes and micro-batches
    parts = cut(config.batch_size, num_parts(config, micro_batch, team, normed))
    own_parts = parts[team.rank * len(parts) // team.size :][: len(parts) // team.size]
    images = load_split(config, "train", data_root)
    data, images = fingerprint(images), resident(images, device)
    num_loader_workers = readers_of(num_loader_workers, images)
    batches = Batches(images, config, device, own_parts)
    eval_batch = min(EVAL_BATCH, micro_batch or EVAL_BATCH)
    splits = {name: load_split(config, name, data_root) for name in config.evals}
    digests = {name: fingerprint(split) for name, split in splits.items()}
    left_out = describe_left_out({"train": images, **splits})
    trained = Trained(data, {}, digests, is_deterministic(), left_out)
    held_out = {
        name: HeldOut(resident(split, device), config, device, team, eval_batch)
        for name, split in splits.items()
    }
    del splits

    # --- how the model is computed; its weights and their initial values are final
    if parallel_branches:
        run_branches(model, parallel=True)
    if normed and team.size > 1 and not config.norm_batch:
        model = synchronize_batchnorm(model)
    draws = seed_layers(model, config.seed)  # dropout and drop path, by sample and step
    optimizer = build_optimizer(model, config)
    ema, loss_scale = Ema(model, config), LossScale(config, device)
    norm_parts = parts if config.norm_batch else cut(config.batch_size, 1)
    precise = Batches(images, config, device, norm_parts) if config.precise_bn and normed else None

    # --- resume: the first process reads the newest checkpoint, or that of the trunk; all continue
    # from it
    step, rows, spent_s = 0, [], 0.0
    # Both stay on the device: reading them would make each step wait for it.
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    bad_step = torch.tensor(-1, device=device)  # first step with a non-finite loss
    state = team.share(_newest_state(config, workdir, trunk) if team.rank == 0 else None)
    if state is None and not inherited:
        raise Damaged(f"a training must begin with its parent, but got none ({config.init_from})")
    if state is not None:
        ours = {"train": data, **digests}
        if other := [name for name, own in state["images"].items() if ours.get(name, own) != own]:
            raise checkpoint.OtherImages(
                "a training must resume on its own images, but got others "
                f"({other[0]} of dataset={config.dataset!r}, data_root={str(data_root)!r})"
            )
        step, rows, spent_s = state["step"], state["rows"], state["spent_s"]
        so_far = trained.deterministic and state.get("deterministic", False)
        trained = trained._replace(deterministic=so_far)
        trained.wrong.update({name: w.numpy() for name, w in state.get("wrong", {}).items()})
        if rows and is_last(rows[-1], config):  # such a checkpoint may hold rows alone
            yield from rows
            return trained
        loss_sum, bad_step = state["loss_sum"].to(device), state["bad_step"].to(device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        match_formats(optimizer)
        ema.load_state_dict(state["ema"])
        loss_scale.load_state_dict(state.get("loss_scale", {}))
        checkpoint.set_rng_state(state["rng"])
        del state
    eval_s = rows[-1].get("eval_s", 0.0) if rows else 0.0
    batches.waits.past_s = rows[-1].get("wait_data_s", 0.0) if rows else 0.0
    counted_from = int(rows[-1]["step"]) if rows else 0  # the first step of loss_sum
    begun = step, len(rows)  # with nothing new to save
    parting = Parting(is_leaving, team, device) if is_leaving is not None else None
    yield from rows

    def state_now() -> dict[str, Any]:
        """All that the training needs to continue from here."""
        return {
            "trial": config.id,
            "step": step,
            "images": {"train": data, **digests},
            "deterministic": trained.deterministic,
            "rows": rows,
            "spent_s": spent_s + time.perf_counter() - start,
            "loss_sum": loss_sum,
            "bad_step": bad_step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "ema": ema.state_dict(),
            "loss_scale": loss_scale.state_dict(),
            "rng": checkpoint.rng_state(device),
        }

    def weights_now() -> dict[str, Any]:
        """All that other trials need to start from these weights."""
        state = state_now()
        return {name: state[name] for name in ("trial", "step", "images", "model", "ema")}

    def keep_for_others() -> None:
        """Writes the state from which other trials start, if they do at this step."""
        if step in pins and team.rank == 0 and not pinned(workdir, step):
            saver.save(checkpoint.pin, step, state_now)

    def keep_final() -> None:
        """Writes the weights with which other trials start, unless they diverged."""
        if AT_END in pins and not rows[-1]["diverged"] and not workdir.names(FINAL):
            saver.save(checkpoint.keep_final, step, weights_now)

    def commit() -> None:
        """Begins to write a checkpoint, and waits until the last one is written."""
        if not (rows and is_last(rows[-1], config)):
            saver.save(checkpoint.save, step, state_now)
            return
        wrong = {name: torch.from_numpy(w) for name, w in trained.wrong.items()}
        saver.save(checkpoint.save, step, lambda: last_state(state_now() | {"wrong": wrong}, kept))
        saver.wait()

    def leave_if_told(now: bool = False) -> None:
        """Raises Left, after a checkpoint of what has been trained, if the process must end. `now`:
        as in Parting.
        """
        if parting is None or (rows and is_last(rows[-1], config)) or not parting(now):
            return
        if (step, len(rows)) != begun and team.rank == 0:
            commit()
            saver.wait()
        team.share(None)  # none ends before it is saved
        raise Left(f"the process was told to end, and step {step} is saved")

    # --- train
    replica = cast(nn.Module, torch.compile(model)) if compiled else model
    positions = [torch.from_numpy(part) for part in own_parts]
    training_step = TrainingStep(
        config,
        model,
        replica,
        draws,
        optimizer,
        ema,
        loss_scale,
        team,
        positions,
        device,
        taught_by,
    )
    captured = CapturedStep(training_step) if capture else None
    take = (captured or training_step).take
    batches.captured = captured.transform if captured else None
    stream = batches.iterate(step, num_loader_workers)
    start = time.perf_counter()
    is_often = device.type == "cpu" and checkpoint_every_s < CHECKPOINT_EVERY_S
    share = OFTEN_SHARE if is_often else CHECKPOINT_SHARE
    with products(config), Saver(workdir, device, checkpoint_every_s, share) as saver:
        leave_if_told()
        # an evaluation, by a process that ended in the middle of it
        owed = is_evaluated(step, config) and not (rows and rows[-1]["step"] == step)
        lr = lr_at(step - 1, config) if owed else 0.0  # of the last step
        while step < config.num_steps or owed:
            if not owed:
                keep_for_others()
                lr = lr_at(step, config)
                loss = take(step, lr, stream, bad_step)
                loss_sum += loss
                bad_step.masked_fill_((bad_step < 0) & ~loss.isfinite(), step)
                if loss_scale.on:
                    bad_step.masked_fill_((bad_step < 0) & loss_scale.exhausted, step)
                step += 1
            owed = False

            # --- end of an epoch: evaluate every `eval_every` epochs; at each end, and in between
            # every CHECK_EVERY steps, look for divergence
            epoch_ends = step % config.steps_per_epoch == 0
            if epoch_ends or step % CHECK_EVERY == 0:
                diverged_step = _diverged_step(bad_step, model, step - 1 if epoch_ends else None)
                row = None
                if diverged_step is not None:
                    row = diverged_row(config, diverged_step)
                elif is_evaluated(step, config):
                    eval_began = time.perf_counter()
                    wrong = trained.wrong if step == config.num_steps else None
                    row = {
                        "epoch": step // config.steps_per_epoch,
                        "step": step,
                        "samples": step * config.batch_size,
                        "lr_now": lr,
                        "train_loss": loss_sum.item() / (step - counted_from),
                        "diverged": 0.0,
                        **evaluate_all(
                            model,
                            ema,
                            held_out,
                            precise,
                            config,
                            team,
                            num_loader_workers,
                            wrong,
                            partial(leave_if_told, now=True),
                            captured.forward if captured else None,
                        ),
                    }
                    loss_sum.zero_()
                    counted_from = step
                    eval_s += time.perf_counter() - eval_began
                if row is not None:
                    row |= loss_scale.columns()
                    row |= {
                        "train_s": spent_s + time.perf_counter() - start,
                        "eval_s": eval_s,
                        "wait_data_s": batches.waits.total_s,
                        "unix_s": time.time(),
                        **peak_memory(device),
                    }
                    rows.append({name: float(value) for name, value in row.items()})
                    if is_last(rows[-1], config) and team.rank == 0:
                        keep_for_others()
                        keep_final()
                        commit()  # before the row is reported: what was reported is never lost
                    yield rows[-1]
                    if diverged_step is not None:
                        break

            # --- checkpoint: by the clock, and at most a share of the time
            leave_if_told()
            if team.rank == 0 and saver.is_due and step < config.num_steps:
                commit()
    return trained._replace(captured=captured.status) if captured else trained


def _kept_in(config: TrainConfig) -> str:
    """Under which name final weights have those with which a child begins."""
    return {"raw": "model", "ema": "ema"}[config.init_weights]


def _newest_state(
    config: TrainConfig, workdir: Workdir, trunk: Workdir | None
) -> dict[str, Any] | None:
    """The state from which a training continues; None at its beginning."""
    state = checkpoint.load(workdir, torch.device("cpu"), config.id)
    if state is None and trunk is not None:
        return checkpoint.load_pinned(trunk, config.trunk_step, torch.device("cpu"))
    return state


def is_evaluated(step: int, config: TrainConfig) -> bool:
    """Whether the weights after `step` steps are evaluated."""
    epoch, within = divmod(step, config.steps_per_epoch)
    return within == 0 < step and (epoch % config.eval_every == 0 or epoch == config.epochs)


def is_last(row: Row, config: TrainConfig) -> bool:
    """Whether a training ends with this row."""
    return bool(row["diverged"]) or row["epoch"] == config.epochs


def last_state(state: dict[str, Any], kept: Kept) -> dict[str, Any]:
    """The part of its state that the checkpoint of an ended training keeps.

    Always the rows, which restore a damaged file of rows; never the weights of a diverged training.
    """
    if kept == "all":
        return state
    size = sum(t.nbytes for part in ("model", "ema") for t in state[part].values())
    fits = kept == "weights" or (kept == "small" and size <= SMALL_BYTES)
    weights = ("model", "ema") if fits and not state["rows"][-1]["diverged"] else ()
    names = ("trial", "step", "images", "deterministic", "rows", "spent_s", "wrong", *weights)
    return {name: state[name] for name in names}


def diverged_row(config: TrainConfig, step: int) -> Row:
    """The last row of a training that became non-finite at optimizer step `step` (from 0)."""
    epoch = step // config.steps_per_epoch + 1
    errors = {
        column(split, weights, name): METRICS[name].worst
        for split in config.evals
        for weights in WEIGHTS
        for name in ERRORS
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


def _diverged_step(bad_step: Tensor, model: nn.Module, last_step: int | None) -> int | None:
    """The first step with a non-finite loss; otherwise `last_step`, if a weight is non-finite."""
    if (step := int(bad_step.item())) >= 0:
        return step
    if last_step is None:
        return None
    # Norms are finite if all weights are, short of overflow: weights beyond 1e19 count as diverged,
    # too.
    norm = torch.stack(torch._foreach_norm([p.detach() for p in model.parameters()])).sum().item()
    return None if math.isfinite(norm) else last_step
