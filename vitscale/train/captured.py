"""Training steps as CUDA graphs.

The host of a GPU launches each of a step's hundreds of kernels; a graph launches all of them at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitscale.plan.config import TrainConfig
from vitscale.train.batchnorm import has_batchnorm
from vitscale.train.checkpoint import rng_state, same_rng, set_rng_state
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
HOST = torch.device("cpu")
MOST_LAYOUTS = 4  # of what an augmentation takes; parts of a batch have two sizes
# `model` of configs whose captured trainings had, with --deterministic, the rows of eager ones by
# the bit: the card, the date and the versions with which that was seen
SEEN: dict[str, str] = {}
# optimizers that neither keep a gradient for a later step nor give a weight another one
LEAVES_GRADIENTS = ("adamw", "adam", "sgd", "lamb", "lion")
STEPS, UPDATE, AUGMENTATION, EVALUATION = "steps", "update", "augmentation", "evaluation"
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
        return all(ours.shape == given.shape and ours.dtype == given.dtype for ours, given in pairs)

    def replay(self, *inputs: Tensor) -> Tensor:
        """The output, whose values the next replay replaces."""
        for ours, given in zip(self.inputs, inputs, strict=True):
            if ours is not given:
                ours.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.output


def capture(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], pool: Pool) -> Graph:
    """Captures a function of tensors on the GPU, without computing it.

    The graph reads these tensors themselves. `pool` is shared by graphs that are replayed one after
    another: memory that one of them needs only meanwhile may hold results of those captured later.
    Raises what the function raises, or the end of the capture.
    """
    graph, failure = torch.cuda.CUDAGraph(), None
    # an argument that torch 2.12 does not have
    checks: dict[str, Any] = {"check_input_liveness": True} if CHECKS_INPUTS else {}
    # threads that write checkpoints and pin memory go on meanwhile
    context = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local", **checks)
    try:
        # earlier versions of torch stay on the stream of a capture whose end fails
        with torch.cuda.stream(torch.cuda.current_stream()), context:
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


class Captures:
    """Captures the functions of a training and records those that cannot be captured."""

    def __init__(self, num_parts: int = 1) -> None:
        self.pool = new_pool()
        # The images of a part of a batch come after the passes of earlier parts, whose gradients
        # and losses must not lie where an earlier graph, that of the first images, has computed.
        self.images_pool = self.pool if num_parts == 1 else new_pool()
        self.left_out: dict[str, str] = {}  # what is not captured, and why

    def graph(self, what: str, function: Callable[..., Tensor], *inputs: Tensor) -> Graph | None:
        """As `capture`; None if that fails, or if the function draws from a generator of the host,
        as a model of a user's own may: a graph would repeat what was drawn. Raises
        OutOfMemoryError.
        """
        pool = self.images_pool if what == AUGMENTATION else self.pool
        before = rng_state(HOST)
        try:
            graph = capture(function, inputs, pool)
            if not same_rng(before, rng_state(HOST)):
                raise RuntimeError("it draws random numbers on the host")
            return graph
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            set_rng_state(before)  # the same numbers are drawn again, eagerly
            self.left_out[what] = reason_of(error)
            return None


class CapturedTransform:
    """Crops, augments and normalizes batches of images by a graph.

    What has been drawn is in the arrays of a PackedCopy; a graph needs the same arrays each time,
    with other values.
    """

    def __init__(self, captures: Captures) -> None:
        self.captures = captures
        self.num_eager = EAGER_STEPS
        # by shape of the images and layout of the arrays; the copy is the one that the graph reads
        self.graphs: dict[Any, tuple[Graph, PackedCopy]] = {}

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
        if self.num_eager or AUGMENTATION in self.captures.left_out:
            self.num_eager = max(0, self.num_eager - 1)
            return transform(*images)
        if len(self.graphs) == MOST_LAYOUTS:
            self.captures.left_out[AUGMENTATION] = "batches differ in what is drawn"
            return transform(*images)
        inputs = (tensor.clone() for tensor in images)
        new = self.captures.graph(AUGMENTATION, transform, *inputs)
        if new is None:
            return transform(*images)
        self.graphs[key] = new, packed
        return new.replay(*images)

    def owns(self, images: Tensor) -> bool:
        """Whether these are the output of a graph, which stays where it is."""
        return any(images is graph.output for graph, _ in self.graphs.values())


class CapturedForward:
    """Computes logits in evaluations by a graph for each model and size of a batch.

    The first batch of a size is computed operation by operation, and the second one captures.
    """

    def __init__(self, config: TrainConfig, captures: Captures) -> None:
        self.config, self.captures = config, captures
        self.graphs: dict[Any, Graph | None] = {}  # None: one batch was seen

    def __call__(self, model: nn.Module, images: Tensor) -> Tensor:
        """float32 (b, classes) of images (b, C, R, R), whose values the next call may replace."""
        logits = partial(logits_of, self.config, model)
        key = model, images.shape
        graph = self.graphs.get(key)
        if graph is None and key in self.graphs and EVALUATION not in self.captures.left_out:
            graph = self.captures.graph(EVALUATION, logits, images.clone())
        self.graphs[key] = graph
        return logits(images) if graph is None else graph.replay(images)


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
        self.eager = step
        self.num_eager = EAGER_STEPS  # steps to take before the capture
        self.graphs: list[Graph] = []  # of the first part of a batch, and of others by their shape
        self.update: Graph | None = None
        self.updates = not step.loss_scale.on and is_fused(step.optimizer)
        self.averages = step.ema.every == 1 and not step.ema.num_copied  # in the same graph
        self.captures = Captures(len(step.positions))
        self.left_out = self.captures.left_out
        if step.device.type != DEVICE:
            self.left_out[STEPS] = "not on a GPU"
        elif step.team.size > 1 and has_batchnorm(step.model) and not step.config.norm_batch:
            self.left_out[STEPS] = "BatchNorm over several workers"
        is_on = not self.left_out
        self.transform = CapturedTransform(self.captures) if is_on else None
        self.forward = CapturedForward(step.config, self.captures) if is_on else None

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
        eager = self.eager
        if STEPS in self.left_out or self.num_eager:
            self.num_eager = max(0, self.num_eager - 1)
            return eager.take(step, lr, parts, bad_step)
        eager.set_lr(lr)
        loss: Tensor | None = None
        for part, positions in enumerate(eager.positions):
            images, targets = next(parts)
            eager.draws.at(step, positions)
            graph = self._graph(part == 0, images, targets)
            if graph is None:
                self.graphs.clear()
                so_far = torch.zeros((), device=eager.device) if loss is None else loss
                rest = chain([(images, targets)], parts)
                return eager.take_from(part, step, so_far, rest, bad_step)
            share = graph.replay(images, targets)
            loss = share if loss is None else loss + share
        assert loss is not None
        eager.team.add_up(eager.model.parameters())
        if not self._update(lr):
            with self._lent_gradients():
                eager.apply(step, bad_step)
        elif not self.averages:
            eager.ema.update(eager.model, step)
        return eager.team.sum(loss)

    def _graph(self, is_first: bool, images: Tensor, targets: Tensor) -> Graph | None:
        """The graph of a part of the batch; None if there is none, with gradients from which its
        passes can go on: those of the earlier parts.
        """
        for graph in self.graphs[:1] if is_first else self.graphs[1:]:
            if graph.fits(images, targets):
                return graph
        if is_first:
            self.eager.optimizer.zero_grad(set_to_none=True)
            if self.graphs:  # the others add to the gradients of this first one
                self.left_out[STEPS] = "batches differ in shape"
                return None
        parameters = list(self.eager.model.parameters())
        before = [parameter.grad for parameter in parameters]
        owned = self.transform is not None and self.transform.owns(images)
        images = images if owned else images.clone()
        new = self.captures.graph(STEPS, self.eager.compute, images, targets.clone())
        if new is None:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient  # no kernel has run, but tensors may be in their place
            return None
        self.graphs.append(new)
        return new

    def _update(self, lr: float) -> bool:
        """Updates the weights, and the average if that is in the graph, from the gradients; returns
        whether a graph does.
        """
        if not self.updates or UPDATE in self.left_out:
            return False
        if self.update is None:
            device_lr = torch.zeros((), device=self.eager.device)
            self.update = self.captures.graph(UPDATE, self._updated, device_lr)
            if self.update is None:
                return False
        self.update.inputs[0].fill_(lr)
        self.update.graph.replay()
        return True

    @contextmanager
    def _lent_gradients(self) -> Iterator[None]:
        """Gives an optimizer that may keep gradients copies, as each eager step has new ones: the
        next replay writes those of the graphs.
        """
        lent = self.eager.config.optimizer not in LEAVES_GRADIENTS
        weights = list(self.eager.model.parameters()) if lent else []
        own = [weight.grad for weight in weights]
        for weight, gradient in zip(weights, own, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        yield
        for weight, gradient in zip(weights, own, strict=True):
            weight.grad = gradient

    def _updated(self, lr: Tensor) -> Tensor:
        eager, groups = self.eager, self.eager.optimizer.param_groups
        before = [dict(group) for group in groups]
        try:
            for group in groups:
                group["lr"] = lr
                if "capturable" in group:  # Adam's; torch asks for it, but fused ones always are
                    group["capturable"] = True
            eager.clip()
            eager.optimizer.step()
        finally:
            for group, own in zip(groups, before, strict=True):
                group.update(own)
        if self.averages:
            eager.ema.update(eager.model, 0)
        return lr


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is one of torch's kernels that read a learning rate from the device."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    return type(optimizer) in kinds and all(group["fused"] for group in optimizer.param_groups)


def new_pool() -> Pool:
    """Memory for the graphs of a training; None without a GPU."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
