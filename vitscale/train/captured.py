"""Training steps as CUDA graphs.

The host of a GPU launches each of a step's hundreds of kernels; a graph launches all of them at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.train.batchnorm import has_batchnorm
from vitscale.train.evaluate import logits_of
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.parts import reason_of
from vitscale.train.step import TrainingStep

# Steps of a process that are taken kernel by kernel, before the capture: libraries choose their
# algorithms and reserve their workspaces.
EAGER_STEPS = 3
# torch then raises if a graph reads memory that has been freed; it looks at each replay, so tests
# alone ask for it
CHECKS_INPUTS = False
DEVICE = "cuda"  # that has graphs
MOST_LAYOUTS = 4  # of what an augmentation takes; parts of a batch have two sizes
# `model` of configs whose captured trainings had, with --deterministic, the rows of eager ones by
# the bit: the card, the date and the versions with which that was seen
SEEN: dict[str, str] = {}
AUGMENTATION, EVALUATION = "augmentation", "evaluation"
Pool = Any  # torch's handle of the memory that graphs share


def is_captured(config: TrainConfig, device: str, asked: bool | None) -> bool:
    """Whether the steps of a training shall be captured; `asked` is None where the user says
    nothing.
    """
    return device == "cuda" and config.model in SEEN if asked is None else asked


class Graph(NamedTuple):
    """A captured function of tensors, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def fits(self, *inputs: Tensor) -> bool:
        pairs = zip(self.inputs, inputs, strict=True)
        return all(ours.shape == its.shape and ours.dtype == its.dtype for ours, its in pairs)

    def replay(self, *inputs: Tensor) -> Tensor:
        """The output, whose values the next replay replaces."""
        for ours, its in zip(self.inputs, inputs, strict=True):
            if ours is not its:
                ours.copy_(its, non_blocking=True)
        self.graph.replay()
        return self.output


def capture(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], pool: Pool) -> Graph:
    """Captures a function of tensors on the GPU, without computing it.

    The graph reads these tensors themselves. `pool` is that of all graphs of a training, which are
    replayed one after another. Raises what the function raises, or the end of the capture.
    """
    graph, failure = torch.cuda.CUDAGraph(), None
    try:
        with torch.cuda.graph(
            graph,
            pool=pool,
            # threads that write checkpoints and pin memory go on meanwhile
            capture_error_mode="thread_local",
            check_input_liveness=CHECKS_INPUTS,
        ):
            try:
                output = function(*inputs)
            except Exception as error:
                failure = error
                raise
    except Exception:  # of the end of the capture, which hides why it was ended
        if failure is None:
            raise
        raise failure from None
    return Graph(graph, inputs, output)


class CapturedTransform:
    """Crops, augments and normalizes batches of images by a graph.

    What has been drawn is in the arrays of a PackedCopy; a graph needs the same arrays each time,
    with other values.
    """

    def __init__(self, pool: Pool, left_out: dict[str, str]) -> None:
        self.pool = pool
        self.num_eager = EAGER_STEPS
        # by shape of the images and layout of the arrays; the copy is the one that the graph reads
        self.graphs: dict[Any, tuple[Graph, PackedCopy]] = {}
        self.left_out = left_out  # what is not captured, and why

    def __call__(
        self,
        transform: Callable[..., Tensor],
        images: tuple[Tensor, ...],
        packed: PackedCopy,
    ) -> Tensor:
        """Sends `packed` and returns transform(*images).

        The next call may replace the values of the result and of what was sent.
        """
        key = *((tensor.shape, tensor.dtype) for tensor in images), packed.layout
        if key in self.graphs:
            graph, sent = self.graphs[key]
            packed.send_over(sent)
            return graph.replay(*images)
        packed.send()
        if self.num_eager or AUGMENTATION in self.left_out:
            self.num_eager = max(0, self.num_eager - 1)
            return transform(*images)
        if len(self.graphs) == MOST_LAYOUTS:
            self.left_out[AUGMENTATION] = "batches differ in what is drawn"
            return transform(*images)
        try:
            inputs = tuple(tensor.clone() for tensor in images)
            self.graphs[key] = capture(transform, inputs, self.pool), packed
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.left_out[AUGMENTATION] = reason_of(error)
            return transform(*images)
        return self.graphs[key][0].replay(*images)

    def owns(self, images: Tensor) -> bool:
        """Whether these are the output of a graph, which stays where it is."""
        return any(images is graph.output for graph, _ in self.graphs.values())


class CapturedForward:
    """Computes logits in evaluations by a graph for each model and size of a batch.

    The second evaluation captures; the first one is computed operation by operation.
    """

    def __init__(self, config: TrainConfig, pool: Pool, left_out: dict[str, str]) -> None:
        self.config, self.pool, self.left_out = config, pool, left_out
        self.graphs: dict[Any, Graph | None] = {}  # None: seen once

    def __call__(self, model: nn.Module, images: Tensor) -> Tensor:
        """float32 (b, classes) of images (b, C, R, R), whose values the next call may replace."""
        logits = partial(logits_of, self.config, model)
        key = model, images.shape
        if key in self.graphs and EVALUATION not in self.left_out:
            graph = self.graphs[key]
            try:
                graph = graph or capture(logits, (images.clone(),), self.pool)
                self.graphs[key] = graph
                return graph.replay(images)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.left_out[EVALUATION] = reason_of(error)
        self.graphs[key] = None
        return logits(images)


class CapturedStep:
    """Takes the steps of a TrainingStep on a GPU with graphs.

    A graph launches the kernels of the step that was captured, with the same arguments, so a step
    has the results of TrainingStep.take. Gradients stay in the memory of the graphs: the first
    part of a batch writes them, the others add to them. Another graph updates the weights with a
    fused optimizer. Outside stay the masks of dropout and drop path, which the host draws, the sum
    of a team's gradients, other optimizers, fp16's loss scale, and averages that are not updated in
    each step.

    The first EAGER_STEPS steps are taken as by TrainingStep.take. Where the passes cannot be
    captured, as those of a model that reads a value from the device, all steps are.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.of = step
        self.num_eager = EAGER_STEPS  # steps to take before the capture
        self.graphs: list[Graph] = []  # of the first part of a batch, and of others by their shape
        self.update: Graph | None = None
        self.updates = not step.loss_scale.on and is_fused(step.optimizer)
        self.averages = step.ema.every == 1 and not step.ema.num_copied  # in the same graph
        self.left_out: dict[str, str] = {}  # what is not captured, and why
        if step.device.type != DEVICE:
            self.left_out["steps"] = "not on a GPU"
        elif step.team.size > 1 and has_batchnorm(step.model) and not step.config.norm_batch:
            self.left_out["steps"] = "BatchNorm over several workers"
        self.pool = None if self.left_out else new_pool()
        self.transform: CapturedTransform | None = None
        self.forward: CapturedForward | None = None
        if not self.left_out:
            self.transform = CapturedTransform(self.pool, self.left_out)
            self.forward = CapturedForward(step.config, self.pool, self.left_out)

    @property
    def status(self) -> str:
        """The word yes, or what is not captured and why."""
        return "; ".join(f"no {what} ({why})" for what, why in self.left_out.items()) or "yes"

    def take(
        self,
        step: int,
        lr: float,
        parts: Iterator[tuple[Tensor, Tensor]],
        bad_step: Tensor | None = None,
    ) -> Tensor:
        """As TrainingStep.take."""
        of = self.of
        if "steps" in self.left_out or self.num_eager:
            self.num_eager -= 1
            return of.take(step, lr, parts, bad_step)
        of.set_lr(lr)
        loss: Tensor | None = None
        for part, positions in enumerate(of.positions):
            images, targets = next(parts)
            of.draws.at(step, positions)
            graph = self._graph(part == 0, images, targets)
            if graph is None:
                self.graphs.clear()
                so_far = torch.zeros((), device=of.device) if loss is None else loss
                rest = chain([(images, targets)], parts)
                return of.take_from(part, step, so_far, rest, bad_step)
            share = graph.replay(images, targets)
            loss = share if loss is None else loss + share
        assert loss is not None
        if not self.updates:
            return of.update(step, loss, bad_step)
        of.team.add_up(of.model.parameters())
        self._update(lr)
        if not self.averages:
            of.ema.update(of.model, step)
        return of.team.sum(loss)

    def _graph(self, is_first: bool, images: Tensor, targets: Tensor) -> Graph | None:
        """The graph of a part of the batch; None if there is none, with gradients from which its
        passes can go on: those of the earlier parts.
        """
        for graph in self.graphs[:1] if is_first else self.graphs[1:]:
            if graph.fits(images, targets):
                return graph
        if is_first:
            self.of.optimizer.zero_grad(set_to_none=True)
            if self.graphs:  # the others add to the gradients of this first one
                self.left_out["steps"] = "batches differ in shape"
                return None
        parameters = list(self.of.model.parameters())
        before = [parameter.grad for parameter in parameters]
        try:
            owned = self.transform is not None and self.transform.owns(images)
            inputs = images if owned else images.clone(), targets.clone()
            self.graphs.append(capture(self.of.compute, inputs, self.pool))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.left_out["steps"] = reason_of(error)
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient  # no kernel has run, but tensors may be in their place
            return None
        return self.graphs[-1]

    def _update(self, lr: float) -> None:
        """Updates the weights, and the average if that is in the graph, from the gradients."""
        if self.update is None:
            self.update = capture(
                self._updated, (torch.zeros((), device=self.of.device),), self.pool
            )
        self.update.inputs[0].fill_(lr)
        self.update.graph.replay()

    def _updated(self, lr: Tensor) -> Tensor:
        of, groups = self.of, self.of.optimizer.param_groups
        before = [dict(group) for group in groups]
        try:
            for group in groups:
                group["lr"] = lr
                if "capturable" in group:  # Adam's; torch asks for it, but fused ones always are
                    group["capturable"] = True
            of.clip()
            of.optimizer.step()
        finally:
            for group, own in zip(groups, before, strict=True):
                group.update(own)
        if self.averages:
            of.ema.update(of.model, 0)
        return lr


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is one of torch's kernels that read a learning rate from the device."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    return type(optimizer) in kinds and all(group["fused"] for group in optimizer.param_groups)


def new_pool() -> Pool:
    """Memory for the graphs of a training."""
    return torch.cuda.graph_pool_handle()
